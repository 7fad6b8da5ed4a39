#include "kernels/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "kernels/activation.h"
#include "kernels/embedding.h"
#include "kernels/layer_norm.h"
#include "kernels/loss.h"
#include "kernels/matmul.h"

namespace lodestone::kernels {
namespace {

constexpr std::align_val_t kAlignment{64};

class CpuBackend final : public Backend {
 public:
  const std::string& name() const override { return name_; }
  bool on_host() const override { return true; }

  void* Allocate(size_t bytes) override { return bytes == 0 ? nullptr : ::operator new(bytes, kAlignment); }
  void Free(void* memory) override { ::operator delete(memory, kAlignment); }
  void* AllocateHost(size_t bytes) override { return Allocate(bytes); }
  void FreeHost(void* memory) override { Free(memory); }
  void CopyIn(Queue, size_t bytes, const void* host, void* memory) override {
    if (bytes > 0) std::memcpy(memory, host, bytes);
  }
  void CopyOut(size_t bytes, const void* memory, void* host) override {
    if (bytes > 0) std::memcpy(host, memory, bytes);
  }
  uint32_t NewMark() override { return 0; }
  void SetMark(Queue, uint32_t) override {}
  void AwaitMark(uint32_t) override {}
  absl::Status Finish() override { return absl::OkStatus(); }

  void Copy(size_t n, const float* x, float* y) override {
    if (n > 0) std::memcpy(y, x, n * sizeof(float));
  }
  void Fill(size_t n, float value, float* y) override { std::fill_n(y, n, value); }

  void MatMul(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, float alpha, const float* a,
              const float* b, float beta, float* c) override {
    cpu::MatMul(transpose_a, transpose_b, m, n, k, alpha, a, b, beta, c);
  }

  void Activate(Activation activation, size_t rows, size_t cols, const float* bias, float* x, float* y) override {
    cpu::Activate(activation, rows, cols, bias, x, y);
  }
  void ActivateBackward(Activation activation, size_t n, const float* kept, float* dx) override {
    cpu::ActivateBackward(activation, n, kept, dx);
  }
  void Dropout(size_t n, float rate, uint64_t seed, float* x) override { cpu::Dropout(n, rate, seed, x); }
  void ColumnSums(size_t rows, size_t cols, const float* x, float* sums) override {
    cpu::ColumnSums(rows, cols, x, sums);
  }
  void Axpy(size_t n, float alpha, const float* x, float* y) override { cpu::Axpy(n, alpha, x, y); }
  void MultiplyAdd(size_t n, const float* x, const float* y, float* z) override { cpu::MultiplyAdd(n, x, y, z); }
  void CopyColumns(size_t rows, size_t cols, const float* x, size_t stride, size_t col, float* y) override {
    cpu::CopyColumns(rows, cols, x, stride, col, y);
  }
  void ExtractColumns(size_t rows, size_t cols, const float* x, size_t stride, size_t col, float* y) override {
    cpu::ExtractColumns(rows, cols, x, stride, col, y);
  }

  void LayerNorm(size_t rows, size_t cols, float epsilon, float* x, float* inverse) override {
    cpu::LayerNorm(rows, cols, epsilon, x, inverse);
  }
  void LayerNormBackward(size_t rows, size_t cols, const float* y, const float* inverse, float* dx) override {
    cpu::LayerNormBackward(rows, cols, y, inverse, dx);
  }

  void LogisticLoss(size_t rows, const float* logits, const float* labels, const float* weights, float* dlogits,
                    float* predictions, double* loss_sum) override {
    *loss_sum = cpu::LogisticLoss(rows, logits, labels, weights, dlogits, predictions);
  }
  void SoftmaxLoss(size_t rows, size_t classes, const float* logits, const float* labels, const float* weights,
                   float* dlogits, float* predictions, double* loss_sum) override {
    *loss_sum = cpu::SoftmaxLoss(rows, classes, logits, labels, weights, dlogits, predictions);
  }
  void SquaredLoss(size_t rows, const float* logits, const float* labels, const float* weights, float* dlogits,
                   float* predictions, double* loss_sum) override {
    *loss_sum = cpu::SquaredLoss(rows, logits, labels, weights, dlogits, predictions);
  }

  void Linear(size_t rows, size_t in, size_t out, const float* x, const float* w, float* y, LinearFactors*) override {
    cpu::MatMul(false, false, rows, out, in, 1, x, w, 0, y);
  }
  void LinearBackward(size_t rows, size_t in, size_t out, const float* x, const float* w, const float* dy,
                      const LinearFactors&, float* dw, float* dx, float dx_beta) override {
    cpu::MatMul(true, false, in, out, rows, 1, x, dy, 0, dw);
    if (dx != nullptr) cpu::MatMul(false, true, rows, in, out, 1, dy, w, dx_beta, dx);
  }
  void SparseLinear(const SparseBatch& batch, size_t dim, RowColumns rows, float* out) override {
    cpu::SparseLinear(batch, dim, rows, out);
  }
  void SparseLinearBackward(const SparseBatch& batch, size_t dim, const float* dout, GradientColumns drows) override {
    cpu::SparseLinearBackward(batch, dim, dout, drows);
  }
  void FactorizationMachine(const SparseBatch& batch, size_t dim, RowColumns rows, float* sums, float* out) override {
    cpu::FactorizationMachine(batch, dim, rows, sums, out);
  }
  void FactorizationMachineBackward(const SparseBatch& batch, size_t dim, RowColumns rows, const float* sums,
                                    const float* dout, GradientColumns drows) override {
    cpu::FactorizationMachineBackward(batch, dim, rows, sums, dout, drows);
  }
  void GatherFields(const SparseBatch& batch, size_t fields, size_t dim, RowColumns rows, size_t stride, size_t col,
                    float* out) override {
    cpu::GatherFields(batch, fields, dim, rows, stride, col, out);
  }
  void ScatterFields(const SparseBatch& batch, size_t fields, size_t dim, const float* dx, size_t stride, size_t col,
                     GradientColumns drows) override {
    cpu::ScatterFields(batch, fields, dim, dx, stride, col, drows);
  }
  void MaxFields(const SparseBatch& batch, size_t fields, const uint32_t* is_max, size_t dim, const float* rows,
                 float* out) override {
    cpu::MaxFields(batch, fields, is_max, dim, rows, out);
  }
  void MaxFieldsBackward(const SparseBatch& batch, size_t fields, const uint32_t* is_max, size_t dim, const float* rows,
                         const float* pooled, const float* dout, float* dfeatures) override {
    cpu::MaxFieldsBackward(batch, fields, is_max, dim, rows, pooled, dout, dfeatures);
  }
  void DotInteraction(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col,
                      float* out) override {
    cpu::DotInteraction(samples, vectors, dim, x, stride, col, out);
  }
  void DotInteractionBackward(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col,
                              const float* dout, float* dx) override {
    cpu::DotInteractionBackward(samples, vectors, dim, x, stride, col, dout, dx);
  }
  void MixExperts(size_t samples, size_t experts, size_t dim, const float* x, float* gates, float* out) override {
    cpu::MixExperts(samples, experts, dim, x, gates, out);
  }
  void MixExpertsBackward(size_t samples, size_t experts, size_t dim, const float* x, const float* gates,
                          const float* dout, float* dgates, float* dx) override {
    cpu::MixExpertsBackward(samples, experts, dim, x, gates, dout, dgates, dx);
  }

 private:
  const std::string name_ = "cpu";
};

}  // namespace

Backend* Cpu() {
  static CpuBackend* const backend = new CpuBackend;
  return backend;
}

}  // namespace lodestone::kernels
