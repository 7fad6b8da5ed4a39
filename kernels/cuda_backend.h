// A CUDA device as a backend. Each operation's kernels are in the .cu file beside its .cc file; here are the queues,
// the memory and the errors.
//
// Kernels are started on two streams, one per Queue. A start that fails is noted with the operation and its shape; what
// goes wrong while a kernel runs shows at Finish, which can name the last operations only.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <atomic>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cublas.h"
#include "kernels/cuda.h"

namespace lodestone::kernels {

class CudaBackend final : public Backend {
 public:
  static absl::StatusOr<std::unique_ptr<Backend>> Create(const CudaOptions& options);
  ~CudaBackend() override;

  const std::string& name() const override { return name_; }
  bool on_host() const override { return false; }
  void* Allocate(size_t bytes) override;
  void Free(void* memory) override;
  void* AllocateHost(size_t bytes) override;
  void FreeHost(void* memory) override;
  void CopyIn(Queue queue, size_t bytes, const void* host, void* memory) override;
  void CopyOut(size_t bytes, const void* memory, void* host) override;
  uint32_t NewMark() override;
  void SetMark(Queue queue, uint32_t mark) override;
  void AwaitMark(uint32_t mark) override;
  absl::Status Finish() override;

  void Copy(size_t n, const float* x, float* y) override;
  void Fill(size_t n, float value, float* y) override;
  void MatMul(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, float alpha, const float* a,
              const float* b, float beta, float* c) override;
  void Linear(size_t rows, size_t in, size_t out, const float* x, const float* w, float* y,
              LinearFactors* factors) override;
  void LinearBackward(size_t rows, size_t in, size_t out, const float* x, const float* w, const float* dy,
                      const LinearFactors& factors, float* dw, float* dx, float dx_beta) override;
  void Activate(Activation activation, size_t rows, size_t cols, const float* bias, float* x, float* y) override;
  void ActivateBackward(Activation activation, size_t n, const float* kept, float* dx) override;
  void Dropout(size_t n, float rate, uint64_t seed, float* x) override;
  void ColumnSums(size_t rows, size_t cols, const float* x, float* sums) override;
  void Axpy(size_t n, float alpha, const float* x, float* y) override;
  void MultiplyAdd(size_t n, const float* x, const float* y, float* z) override;
  void CopyColumns(size_t rows, size_t cols, const float* x, size_t stride, size_t col, float* y) override;
  void ExtractColumns(size_t rows, size_t cols, const float* x, size_t stride, size_t col, float* y) override;
  void LayerNorm(size_t rows, size_t cols, float epsilon, float* x, float* inverse) override;
  void LayerNormBackward(size_t rows, size_t cols, const float* y, const float* inverse, float* dx) override;
  void LogisticLoss(size_t rows, const float* logits, const float* labels, const float* weights, float* dlogits,
                    float* predictions, double* loss_sum) override;
  void SoftmaxLoss(size_t rows, size_t classes, const float* logits, const float* labels, const float* weights,
                   float* dlogits, float* predictions, double* loss_sum) override;
  void SquaredLoss(size_t rows, const float* logits, const float* labels, const float* weights, float* dlogits,
                   float* predictions, double* loss_sum) override;
  void SparseLinear(const SparseBatch& batch, size_t dim, RowColumns rows, float* out) override;
  void SparseLinearBackward(const SparseBatch& batch, size_t dim, const float* dout, GradientColumns drows) override;
  void FactorizationMachine(const SparseBatch& batch, size_t dim, RowColumns rows, float* sums, float* out) override;
  void FactorizationMachineBackward(const SparseBatch& batch, size_t dim, RowColumns rows, const float* sums,
                                    const float* dout, GradientColumns drows) override;
  void GatherFields(const SparseBatch& batch, size_t fields, size_t dim, RowColumns rows, size_t stride, size_t col,
                    float* out) override;
  void ScatterFields(const SparseBatch& batch, size_t fields, size_t dim, const float* dx, size_t stride, size_t col,
                     GradientColumns drows) override;
  void MaxFields(const SparseBatch& batch, size_t fields, const uint32_t* is_max, size_t dim, const float* rows,
                 float* out) override;
  void MaxFieldsBackward(const SparseBatch& batch, size_t fields, const uint32_t* is_max, size_t dim, const float* rows,
                         const float* pooled, const float* dout, float* dfeatures) override;
  void DotInteraction(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col,
                      float* out) override;
  void DotInteractionBackward(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col,
                              const float* dout, float* dx) override;
  void MixExperts(size_t samples, size_t experts, size_t dim, const float* x, float* gates, float* out) override;
  void MixExpertsBackward(size_t samples, size_t experts, size_t dim, const float* x, const float* gates,
                          const float* dout, float* dgates, float* dx) override;

  // For the .cu files.
  // Whether something may be queued: nothing has failed. Makes the device the calling thread's.
  bool Ready();
  // Notes the operation as the newest, and `error` as the failure if it is one.
  void Started(const char* operation, std::initializer_list<size_t> shape, cudaError_t error);
  cudaStream_t stream(Queue queue) const { return streams_[static_cast<size_t>(queue)]; }
  // Scratch memory for one operation at a time, and for what it starts; null after a failure. Of two kinds, so that an
  // operation that uses one may call one that uses the other.
  enum class Scratch { kReduction, kProduct };
  void* ScratchOf(Scratch scratch, size_t bytes);

 private:
  // matmul.cu
  struct Product;
  Product PlanProduct(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, float beta) const;
  // Writes the copy of a factor that the product takes.
  void CopyFactor(const Product& product, bool of_a, const float* factor, void* copy);
  // `result`: where cuBLAS writes, c or memory for what is copied there.
  void Multiply(const Product& product, float alpha, const void* a, const void* b, float beta, float* result, float* c);

  CudaBackend(const CudaOptions& options, std::string name, const Cublas& cublas);
  absl::Status Start();
  void Fail(const std::string& what);
  // Notes a failed call that is not an operation.
  bool Check(cudaError_t error, const char* what, size_t bytes);

  // Constant after Start.
  const CudaOptions options_;
  const std::string name_;
  const Cublas cublas_;
  cudaStream_t streams_[2] = {nullptr, nullptr};
  cublasHandle_t handle_ = nullptr;

  // Of the thread that queues to compute.
  struct ScratchMemory {
    void* data = nullptr;
    size_t bytes = 0;
  };
  ScratchMemory scratch_[2];
  const char* newest_ = "nothing";  // The newest operation.

  std::atomic<bool> failed_{false};
  std::mutex mu_;
  absl::Status status_;             // Guarded by mu_.
  std::vector<cudaEvent_t> marks_;  // Guarded by mu_.
};

}  // namespace lodestone::kernels
