#include "worker/model/mlp.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/random.h"

namespace lodestone::worker {
namespace {

// Added to variances (proto/model.proto: layer_norm).
constexpr float kNormEpsilon = 1e-5f;

}  // namespace

Mlp::Mlp(std::vector<DenseLayer> layers, float dropout, kernels::Backend* backend)
    : layers_(std::move(layers)), dropout_(dropout), backend_(backend) {
  for (const DenseLayer& layer : layers_) {
    tensor_count_ += layer.has_bias() ? 2 : 1;
    inputs_.emplace_back(backend);
    outputs_.emplace_back(backend);
    gradients_.emplace_back(backend);
    normalized_.emplace_back(backend);
    factors_.emplace_back(backend);
    inverses_.emplace_back(backend);
  }
}

const float* Mlp::Forward(size_t rows, const float* x, std::span<const float* const> tensors,
                          std::optional<uint64_t> dropout_seed) {
  LODESTONE_CHECK(!layers_.empty() && tensors.size() == tensor_count_);
  dropout_seed_ = dropout_seed;
  size_t tensor = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const DenseLayer& layer = layers_[i];
    float* const y = outputs_[i].Resize(rows * layer.out);
    float* const sums = kernels::NeedsInput(layer.activation) ? inputs_[i].Resize(rows * layer.out) : y;
    if (layer.normalized) {
      float* const normalized = normalized_[i].Resize(rows * layer.out);
      backend_->Linear(rows, layer.in, layer.out, x, tensors[tensor++], normalized, &factors_[i]);
      backend_->LayerNorm(rows, layer.out, kNormEpsilon, normalized, inverses_[i].Resize(rows));
      backend_->Copy(rows * layer.out, normalized, sums);
    } else {
      backend_->Linear(rows, layer.in, layer.out, x, tensors[tensor++], sums, &factors_[i]);
    }
    if (layer.has_bias()) backend_->Activate(layer.activation, rows, layer.out, tensors[tensor++], sums, y);
    if (Drops(i)) backend_->Dropout(rows * layer.out, dropout_, StreamSeed(*dropout_seed_, i), y);
    x = y;
  }
  return x;
}

void Mlp::Backward(size_t rows, const float* x, std::span<const float* const> tensors, const float* dy,
                   std::span<float* const> gradients, float* dx) {
  LODESTONE_CHECK(tensors.size() == tensor_count_ && gradients.size() == tensor_count_);
  size_t tensor = tensor_count_;
  for (size_t i = layers_.size(); i-- > 0;) {
    const DenseLayer& layer = layers_[i];
    const size_t n = rows * layer.out;
    if (layer.has_bias()) {
      // dy of the last layer is the caller's; that of the others was left in gradients_[i] by the layer above.
      float* const own = gradients_[i].Resize(n);
      if (dy != own) backend_->Copy(n, dy, own);
      if (Drops(i)) backend_->Dropout(n, dropout_, StreamSeed(*dropout_seed_, i), own);
      const kernels::ScratchArray<float>& kept = kernels::NeedsInput(layer.activation) ? inputs_[i] : outputs_[i];
      backend_->ActivateBackward(layer.activation, n, kept.data(), own);
      backend_->ColumnSums(rows, layer.out, own, gradients[--tensor]);
      if (layer.normalized) {
        backend_->LayerNormBackward(rows, layer.out, normalized_[i].data(), inverses_[i].data(), own);
      }
      dy = own;
    }
    --tensor;
    const float* const input = i == 0 ? x : outputs_[i - 1].data();
    float* const dinput = i > 0 ? gradients_[i - 1].Resize(rows * layer.in) : dx;
    backend_->LinearBackward(rows, layer.in, layer.out, input, tensors[tensor], dy, factors_[i], gradients[tensor],
                             dinput, 0);
    dy = dinput;
  }
}

}  // namespace lodestone::worker
