// A device that computes: the CPU, or a CUDA device. One function for each operation of this folder, its memory, and
// copies between that memory and the host's.
//
// Operations and copies are queued: they run in the order of the calls, and may not have run when a call returns, so
// the memory that they use must stay until Finish. (The CPU's have.) What fails is kept: the first failure, which names
// the operation, its shape and the device, is what Finish returns from then on, and nothing queued after it does
// anything.
//
// Thread safety: memory, CopyIn on Queue::kCopy and marks are for any thread; all else is for one thread at a time.
//
// A backend must outlive the memory that it gave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/activation_function.h"
#include "kernels/sparse_batch.h"

namespace lodestone::kernels {

// Two queues, so that the next batch can be copied while one is computed. They know nothing of each other but by marks.
enum class Queue { kCompute, kCopy };

struct LinearFactors;  // linear_factors.h

class Backend {
 public:
  virtual ~Backend() = default;

  // "cpu", or "cuda:0 (NVIDIA H200)".
  virtual const std::string& name() const = 0;
  // Whether its memory is the host's, so that nothing has to be copied.
  virtual bool on_host() const = 0;

  // On boundaries of 64 bytes at least, not initialised. Null after a failure, and for 0 bytes. Frees what is not null.
  virtual void* Allocate(size_t bytes) = 0;
  virtual void Free(void* memory) = 0;
  // The same of the host's memory, which copies run to and from while others compute.
  virtual void* AllocateHost(size_t bytes) = 0;
  virtual void FreeHost(void* memory) = 0;

  virtual void CopyIn(Queue queue, size_t bytes, const void* host, void* memory) = 0;
  virtual void CopyOut(size_t bytes, const void* memory, void* host) = 0;
  // A new mark, for as long as the backend lives.
  virtual uint32_t NewMark() = 0;
  // Sets the mark behind all that has been queued.
  virtual void SetMark(Queue queue, uint32_t mark) = 0;
  // What is queued to compute from now on runs after all before the mark's newest place.
  virtual void AwaitMark(uint32_t mark) = 0;
  // Waits until everything that was queued to compute has run.
  virtual absl::Status Finish() = 0;

  // y = x.
  virtual void Copy(size_t n, const float* x, float* y) = 0;
  // y = value, everywhere.
  virtual void Fill(size_t n, float value, float* y) = 0;

  // matmul.h
  virtual void MatMul(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, float alpha, const float* a,
                      const float* b, float beta, float* c) = 0;
  // A linear layer: y [rows, out] = x [rows, in] w [in, out]. `factors` has, until the next call with it, what
  // LinearBackward takes.
  virtual void Linear(size_t rows, size_t in, size_t out, const float* x, const float* w, float* y,
                      LinearFactors* factors) = 0;
  // From dy, [rows, out]: dw = x' dy, and, unless it is null, dx = dy w' + dx_beta dx. REQUIRES: sizes, x and w are
  // those of the last Linear with `factors`, and x and w have not been written since.
  virtual void LinearBackward(size_t rows, size_t in, size_t out, const float* x, const float* w, const float* dy,
                              const LinearFactors& factors, float* dw, float* dx, float dx_beta) = 0;

  // activation.h
  virtual void Activate(Activation activation, size_t rows, size_t cols, const float* bias, float* x, float* y) = 0;
  virtual void ActivateBackward(Activation activation, size_t n, const float* kept, float* dx) = 0;
  void AddBias(size_t rows, size_t cols, const float* bias, float* x) {
    Activate(Activation::kNone, rows, cols, bias, x, x);
  }
  virtual void Dropout(size_t n, float rate, uint64_t seed, float* x) = 0;
  virtual void ColumnSums(size_t rows, size_t cols, const float* x, float* sums) = 0;
  virtual void Axpy(size_t n, float alpha, const float* x, float* y) = 0;
  virtual void MultiplyAdd(size_t n, const float* x, const float* y, float* z) = 0;
  virtual void CopyColumns(size_t rows, size_t cols, const float* x, size_t stride, size_t col, float* y) = 0;
  virtual void ExtractColumns(size_t rows, size_t cols, const float* x, size_t stride, size_t col, float* y) = 0;

  // layer_norm.h
  virtual void LayerNorm(size_t rows, size_t cols, float epsilon, float* x, float* inverse) = 0;
  virtual void LayerNormBackward(size_t rows, size_t cols, const float* y, const float* inverse, float* dx) = 0;

  // loss.h; the sum goes to *loss_sum, in the backend's memory.
  virtual void LogisticLoss(size_t rows, const float* logits, const float* labels, const float* weights, float* dlogits,
                            float* predictions, double* loss_sum) = 0;
  virtual void SoftmaxLoss(size_t rows, size_t classes, const float* logits, const float* labels, const float* weights,
                           float* dlogits, float* predictions, double* loss_sum) = 0;
  virtual void SquaredLoss(size_t rows, const float* logits, const float* labels, const float* weights, float* dlogits,
                           float* predictions, double* loss_sum) = 0;

  // embedding.h; the batch's arrays are in the backend's memory, the structs themselves are not.
  virtual void SparseLinear(const SparseBatch& batch, size_t dim, RowColumns rows, float* out) = 0;
  virtual void SparseLinearBackward(const SparseBatch& batch, size_t dim, const float* dout, GradientColumns drows) = 0;
  virtual void FactorizationMachine(const SparseBatch& batch, size_t dim, RowColumns rows, float* sums, float* out) = 0;
  virtual void FactorizationMachineBackward(const SparseBatch& batch, size_t dim, RowColumns rows, const float* sums,
                                            const float* dout, GradientColumns drows) = 0;
  virtual void GatherFields(const SparseBatch& batch, size_t fields, size_t dim, RowColumns rows, size_t stride,
                            size_t col, float* out) = 0;
  virtual void ScatterFields(const SparseBatch& batch, size_t fields, size_t dim, const float* dx, size_t stride,
                             size_t col, GradientColumns drows) = 0;
  virtual void MaxFields(const SparseBatch& batch, size_t fields, const uint32_t* is_max, size_t dim, const float* rows,
                         float* out) = 0;
  virtual void MaxFieldsBackward(const SparseBatch& batch, size_t fields, const uint32_t* is_max, size_t dim,
                                 const float* rows, const float* pooled, const float* dout, float* dfeatures) = 0;
  virtual void DotInteraction(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col,
                              float* out) = 0;
  virtual void DotInteractionBackward(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride,
                                      size_t col, const float* dout, float* dx) = 0;
  virtual void MixExperts(size_t samples, size_t experts, size_t dim, const float* x, float* gates, float* out) = 0;
  virtual void MixExpertsBackward(size_t samples, size_t experts, size_t dim, const float* x, const float* gates,
                                  const float* dout, float* dgates, float* dx) = 0;
};

}  // namespace lodestone::kernels
