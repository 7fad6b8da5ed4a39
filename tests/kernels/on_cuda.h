// The arrays of one operation on a CUDA device, in memory of exactly their size, copied there and back.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda.h"
#include "kernels/feature_order.h"

namespace lodestone::kernels {

// One of the backend's ways to work. They have the first device, from the first use to the process's end.
template <class Kind>
absl::StatusOr<Backend*> FirstCudaDevice() {
  static auto* const backend = new absl::StatusOr<std::unique_ptr<Backend>>(
      CreateCuda({.precision = Kind::kPrecision, .padded_flops_min = Kind::kPaddedFlopsMin}));
  if (!backend->ok()) return backend->status();
  return (*backend)->get();
}

struct CudaPlain {
  static constexpr char kName[] = "cuda";
  static constexpr Precision kPrecision = Precision::kFloat32;
  static constexpr double kFactorRoundoff = 0;
  static constexpr bool kOrdered = false;   // Sums over features come in a fixed order.
  static constexpr size_t kShiftBytes = 0;  // Arrays start so far behind a boundary of 256 bytes.
  static constexpr double kPaddedFlopsMin = 1 << 30;
};

struct CudaOrdered : CudaPlain {
  static constexpr char kName[] = "cuda_ordered_unaligned";
  static constexpr bool kOrdered = true;
  static constexpr size_t kShiftBytes = 4;
};

struct CudaTf32 : CudaPlain {
  static constexpr char kName[] = "cuda_tf32";
  static constexpr Precision kPrecision = Precision::kTf32;
  static constexpr double kFactorRoundoff = 1 << (24 - 11);
};

struct CudaBf16 : CudaPlain {
  static constexpr char kName[] = "cuda_bf16";
  static constexpr Precision kPrecision = Precision::kBf16;
  static constexpr double kFactorRoundoff = 1 << (24 - 8);
};

// Products of aligned copies, however small they are.
struct CudaTf32Padded : CudaTf32 {
  static constexpr char kName[] = "cuda_tf32_padded";
  static constexpr double kPaddedFlopsMin = 0;
};

struct CudaBf16Padded : CudaBf16 {
  static constexpr char kName[] = "cuda_bf16_padded";
  static constexpr double kPaddedFlopsMin = 0;
};

// The arrays of one operation.
template <class Kind>
class OnCuda {
 public:
  OnCuda() : backend_(*FirstCudaDevice<Kind>()) {}
  Backend* operator->() { return backend_; }

  template <class T>
  const T* In(const T* host, size_t n) {
    return Take(host, n);
  }
  // An array that the operation writes.
  template <class T>
  T* InOut(T* host, size_t n) {
    T* const memory = Take(host, n);
    if (memory != nullptr) outs_.push_back({memory, host, n * sizeof(T)});
    return memory;
  }
  // Columns of the rows that the newest batch has.
  RowColumns In(RowColumns rows, size_t dim) { return {In(rows.data, Extent(rows.stride, dim)), rows.stride}; }
  GradientColumns InOut(GradientColumns rows, size_t dim) {
    return {InOut(rows.data, Extent(rows.stride, dim)), rows.stride};
  }
  SparseBatch In(const SparseBatch& batch) {
    const size_t features = batch.samples == 0 ? 0 : batch.offsets[batch.samples];
    for (size_t f = 0; f < features; ++f) distinct_ = std::max<size_t>(distinct_, batch.row[f] + 1);
    SparseBatch copy{batch.samples, In(batch.offsets, batch.samples + 1), In(batch.row, features),
                     In(batch.value, features), nullptr};
    if (!Kind::kOrdered) return copy;
    arrays_.Fill(batch, distinct_);
    const FeatureOrder order = arrays_.View();
    order_ = {order.chunks,
              In(order.feature, features),
              In(order.sample, features),
              In(order.chunk_begin, order.chunks + 1),
              In(order.chunk_row, order.chunks),
              order.long_rows,
              In(order.first_chunk, order.long_rows),
              In(order.end_chunk, order.long_rows)};
    copy.order = &order_;
    return copy;
  }
  // Of the batch's rows, up to the last one that it has.
  size_t distinct() const { return distinct_; }

  ~OnCuda() {
    for (const Out& out : outs_) backend_->CopyOut(out.bytes, out.memory, out.host);
    EXPECT_EQ(backend_->Finish(), absl::OkStatus());
    for (void* memory : taken_) backend_->Free(memory);
  }

 private:
  size_t Extent(size_t stride, size_t dim) const { return distinct_ == 0 ? 0 : (distinct_ - 1) * stride + dim; }
  template <class T>
  T* Take(const T* host, size_t n) {
    if (host == nullptr || n == 0) return nullptr;
    // Wider types stay aligned as they must be.
    const size_t shift = sizeof(T) > Kind::kShiftBytes ? 0 : Kind::kShiftBytes;
    char* const memory = static_cast<char*>(backend_->Allocate(n * sizeof(T) + shift));
    if (memory == nullptr) return nullptr;
    taken_.push_back(memory);
    backend_->CopyIn(Queue::kCompute, n * sizeof(T), host, memory + shift);
    return reinterpret_cast<T*>(memory + shift);
  }

  struct Out {
    const void* memory;
    void* host;
    size_t bytes;
  };
  Backend* const backend_;
  std::vector<void*> taken_;
  std::vector<Out> outs_;
  FeatureOrderArrays arrays_;
  FeatureOrder order_;
  size_t distinct_ = 0;
};

}  // namespace lodestone::kernels
