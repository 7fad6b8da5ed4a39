#include "worker/model/cross_network.h"

#include "common/base/check.h"

namespace lodestone::worker {

CrossNetwork::CrossNetwork(size_t width, size_t layers, size_t rank, kernels::Backend* backend)
    : width_(width),
      rank_(rank),
      per_layer_(rank > 0 ? 3 : 2),
      backend_(backend),
      dout_(backend),
      dproduct_(backend),
      dnarrow_(backend) {
  LODESTONE_CHECK(layers > 0);
  for (size_t l = 0; l < layers; ++l) {
    layers_.push_back({kernels::ScratchArray<float>(backend), kernels::ScratchArray<float>(backend),
                       kernels::ScratchArray<float>(backend), kernels::LinearFactors(backend),
                       kernels::LinearFactors(backend)});
  }
}

const float* CrossNetwork::Forward(size_t rows, const float* x, std::span<const float* const> tensors) {
  LODESTONE_CHECK(tensors.size() == tensor_count());
  const size_t n = rows * width_;
  const float* in = x;
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    const float* const* const own = tensors.data() + l * per_layer_;
    float* const product = layer.product.Resize(n);
    if (rank_ > 0) {
      float* const narrow = layer.narrow.Resize(rows * rank_);
      backend_->Linear(rows, width_, rank_, in, own[0], narrow, &layer.factors);
      backend_->Linear(rows, rank_, width_, narrow, own[1], product, &layer.up_factors);
    } else {
      backend_->Linear(rows, width_, width_, in, own[0], product, &layer.factors);
    }
    backend_->AddBias(rows, width_, own[per_layer_ - 1], product);
    float* const out = layer.out.Resize(n);
    backend_->Copy(n, in, out);
    backend_->MultiplyAdd(n, x, product, out);
    in = out;
  }
  return in;
}

void CrossNetwork::Backward(size_t rows, const float* x, std::span<const float* const> tensors, const float* dy,
                            std::span<float* const> gradients, float* dx) {
  LODESTONE_CHECK(tensors.size() == tensor_count() && gradients.size() == tensor_count());
  const size_t n = rows * width_;
  float* const dout = dout_.Resize(n);
  float* const dproduct = dproduct_.Resize(n);
  backend_->Copy(n, dy, dout);
  if (dx != nullptr) backend_->Fill(n, 0.0f, dx);
  for (size_t l = layers_.size(); l-- > 0;) {
    const float* const* const own = tensors.data() + l * per_layer_;
    float* const* const down = gradients.data() + l * per_layer_;
    const float* const in = l > 0 ? layers_[l - 1].out.data() : x;
    backend_->Fill(n, 0.0f, dproduct);
    backend_->MultiplyAdd(n, dout, x, dproduct);
    backend_->ColumnSums(rows, width_, dproduct, down[per_layer_ - 1]);
    // x_0 is a factor of every layer.
    if (dx != nullptr) backend_->MultiplyAdd(n, dout, layers_[l].product.data(), dx);
    // dout becomes the gradient of x_l, which has it already by itself.
    if (rank_ == 0) {
      backend_->LinearBackward(rows, width_, width_, in, own[0], dproduct, layers_[l].factors, down[0], dout, 1);
      continue;
    }
    float* const dnarrow = dnarrow_.Resize(rows * rank_);
    backend_->LinearBackward(rows, rank_, width_, layers_[l].narrow.data(), own[1], dproduct, layers_[l].up_factors,
                             down[1], dnarrow, 0);
    backend_->LinearBackward(rows, width_, rank_, in, own[0], dnarrow, layers_[l].factors, down[0], dout, 1);
  }
  if (dx != nullptr) backend_->Axpy(n, 1, dout, dx);
}

}  // namespace lodestone::worker
