// The formulas are embedding.cc's. Threads stand along rows' elements, so that neighbours read and write neighbours.
//
// Gradients of rows are sums over the features that have the row, in one of two ways. Without an order each feature
// adds its term by an atomic addition: the order, and so the last bits, are chance's. With one (FeatureOrder) each
// chunk of features is summed up by one thread per element, and the chunks of rows that have several by one block, in a
// fixed order; a row that half the batch has costs no more than others.
#include "kernels/cuda_launch-inl.h"
#include "kernels/embedding.h"

namespace lodestone::kernels {
namespace {

template <typename Element>
__device__ inline Element& At(const ColumnsOf<Element>& rows, size_t row, size_t d) {
  return rows.data[row * rows.stride + d];
}

__device__ inline float ValueOf(const float* value, size_t f) { return value != nullptr ? value[f] : 1.0f; }

struct SparseLinearBody {
  const uint32_t* offsets;
  const uint32_t* row;
  const float* value;
  size_t dim;
  RowColumns rows;
  float* out;
  template <typename Index>
  __device__ void operator()(Index i) const {
    const Index s = i / static_cast<Index>(dim);
    const Index d = i - s * static_cast<Index>(dim);
    const size_t end = offsets[s + 1];
    float sum = out[i];
#pragma unroll 4
    for (size_t f = offsets[s]; f < end; ++f) sum = fmaf(ValueOf(value, f), At(rows, row[f], d), sum);
    out[i] = sum;
  }
};

// What feature f of sample s adds to element d of its row's gradient.
struct SparseLinearTerm {
  const float* value;
  size_t dim;
  const float* dout;
  __device__ float operator()(size_t s, size_t f, size_t, size_t d) const {
    return ValueOf(value, f) * dout[s * dim + d];
  }
};

struct FactorizationMachineTerm {
  const float* value;
  size_t dim;
  RowColumns rows;
  const float* sums;
  const float* dout;
  __device__ float operator()(size_t s, size_t f, size_t row, size_t d) const {
    const float x = ValueOf(value, f);
    return dout[s] * x * fmaf(-x, At(rows, row, d), sums[s * dim + d]);
  }
};

struct ScatterFieldsTerm {
  const float* value;
  const uint32_t* offsets;
  size_t dim, stride, col;
  const float* dx;
  __device__ float operator()(size_t s, size_t f, size_t, size_t d) const {
    return ValueOf(value, f) * dx[s * stride + col + (f - offsets[s]) * dim + d];
  }
};

// One thread per sample and element.
template <typename Term>
struct AtomicBody {
  const uint32_t* offsets;
  const uint32_t* row;
  size_t dim;
  Term term;
  GradientColumns drows;
  template <typename Index>
  __device__ void operator()(Index i) const {
    const Index s = i / static_cast<Index>(dim);
    const Index d = i - s * static_cast<Index>(dim);
    const size_t end = offsets[s + 1];
#pragma unroll 4
    for (size_t f = offsets[s]; f < end; ++f) atomicAdd(&At(drows, row[f], d), term(s, f, row[f], d));
  }
};

// One thread per chunk and element.
template <typename Term>
struct ChunkBody {
  FeatureOrder order;
  size_t dim;
  Term term;
  float* partial;  // [chunks, dim]
  GradientColumns drows;
  template <typename Index>
  __device__ void operator()(Index i) const {
    const Index c = i / static_cast<Index>(dim);
    const Index d = i - c * static_cast<Index>(dim);
    const size_t row = order.chunk_row[c];
    const uint32_t end = order.chunk_begin[c + 1];
    float sum = 0.0f;
#pragma unroll 4
    for (uint32_t k = order.chunk_begin[c]; k < end; ++k) sum += term(order.sample[k], order.feature[k], row, d);
    const bool first = c == 0 || order.chunk_row[c - 1] != row;
    const bool last = c + 1 == order.chunks || order.chunk_row[c + 1] != row;
    if (first && last) {
      At(drows, row, d) += sum;
    } else {
      partial[i] = sum;
    }
  }
};

// One block per row with several chunks. Threads stand as [lanes of chunks][columns].
__global__ void __launch_bounds__(kBlock)
    LongRowsKernel(FeatureOrder order, size_t dim, const float* partial, GradientColumns drows) {
  __shared__ float sums[kBlock];
  const unsigned columns = dim < kBlock ? static_cast<unsigned>(dim) : kBlock;
  const unsigned lanes = kBlock / columns;
  const unsigned column = threadIdx.x % columns, lane = threadIdx.x / columns;
  for (size_t i = blockIdx.x; i < order.long_rows; i += gridDim.x) {
    const size_t first = order.first_chunk[i], end = order.end_chunk[i], row = order.chunk_row[first];
    for (size_t d0 = 0; d0 < dim; d0 += columns) {
      const size_t d = d0 + column;
      float sum = 0.0f;
      if (lane < lanes && d < dim) {
#pragma unroll 4
        for (size_t c = first + lane; c < end; c += lanes) sum += partial[c * dim + d];
      }
      sums[threadIdx.x] = sum;
      __syncthreads();
      if (lane == 0 && d < dim) {
        for (unsigned l = 1; l < lanes; ++l) sum += sums[l * columns + column];
        At(drows, row, d) += sum;
      }
      __syncthreads();  // Before `sums` is written again.
    }
  }
}

template <typename Term>
void AddTerms(CudaBackend* backend, const char* operation, std::initializer_list<size_t> shape,
              const SparseBatch& batch, size_t dim, const Term& term, GradientColumns drows) {
  if (dim == 0) return;
  if (batch.order == nullptr) {
    ForEach(backend, operation, shape, batch.samples * dim,
            AtomicBody<Term>{batch.offsets, batch.row, dim, term, drows});
    return;
  }
  const FeatureOrder& order = *batch.order;
  float* partial = nullptr;
  if (order.long_rows > 0) {
    const size_t bytes = order.chunks * dim * sizeof(float);
    partial = static_cast<float*>(backend->ScratchOf(CudaBackend::Scratch::kReduction, bytes));
    if (partial == nullptr) return;
  }
  ForEach(backend, operation, shape, order.chunks * dim, ChunkBody<Term>{order, dim, term, partial, drows});
  Launch(backend, operation, shape, {std::min(order.long_rows, kBlocksMax), kBlock, 0}, LongRowsKernel, order, dim,
         partial, drows);
}

// `lanes` threads per sample, a power of two up to a warp.
__global__ void __launch_bounds__(kBlock)
    FactorizationMachineKernel(size_t samples, const uint32_t* offsets, const uint32_t* row, const float* value,
                               size_t dim, unsigned lanes, RowColumns rows, float* sums, float* out) {
  const unsigned lane = threadIdx.x % lanes;
  // All threads of a warp go round together, since all take part in the sums across lanes.
  size_t base = ThreadIndex() / kWarp * kWarp / lanes;
  for (; base < samples; base += ThreadCount() / lanes) {
    const size_t s = base + threadIdx.x % kWarp / lanes;
    float twice = 0.0f;
    if (s < samples) {
      const size_t begin = offsets[s], end = offsets[s + 1];
      for (size_t d = lane; d < dim; d += lanes) {
        float sum = 0.0f, squares = 0.0f;
#pragma unroll 4
        for (size_t f = begin; f < end; ++f) {
          const float term = ValueOf(value, f) * At(rows, row[f], d);
          sum += term;
          squares = fmaf(term, term, squares);
        }
        sums[s * dim + d] = sum;
        twice += fmaf(sum, sum, -squares);
      }
    }
    for (unsigned other = lanes / 2; other > 0; other /= 2) twice += __shfl_xor_sync(0xffffffffu, twice, other);
    if (lane == 0 && s < samples) out[s] += 0.5f * twice;
  }
}

struct GatherFieldsBody {
  const uint32_t* offsets;
  const uint32_t* row;
  const float* value;
  size_t width, dim, stride, col;  // width: fields * dim
  RowColumns rows;
  float* out;
  template <typename Index>
  __device__ void operator()(Index i) const {
    const Index s = i / static_cast<Index>(width);
    const Index j = i - s * static_cast<Index>(width);
    const Index field = j / static_cast<Index>(dim);
    const size_t f = offsets[s] + static_cast<size_t>(field);
    out[s * stride + col + j] = ValueOf(value, f) * At(rows, row[f], j - field * static_cast<Index>(dim));
  }
};

struct MaxFieldsBody {
  const uint32_t* offsets;
  const uint32_t* row;
  const uint32_t* is_max;
  size_t fields, dim;
  const float* rows;
  float* out;
  template <typename Index>
  __device__ void operator()(Index i) const {
    const Index s = i / static_cast<Index>(dim);
    const Index d = i - s * static_cast<Index>(dim);
    if (is_max[s % static_cast<Index>(fields)] == 0) return;
    const size_t begin = offsets[s], end = offsets[s + 1];
    float largest = rows[row[begin] * dim + d];
    for (size_t f = begin + 1; f < end; ++f) largest = fmaxf(largest, rows[row[f] * dim + d]);
    out[i] = largest;
  }
};

struct MaxFieldsBackwardBody {
  const uint32_t* offsets;
  const uint32_t* row;
  const float* value;
  const uint32_t* is_max;
  size_t fields, dim;
  const float* rows;
  const float* pooled;
  const float* dout;
  float* dfeatures;
  template <typename Index>
  __device__ void operator()(Index i) const {
    const Index s = i / static_cast<Index>(dim);
    const Index d = i - s * static_cast<Index>(dim);
    const bool largest = is_max[s % static_cast<Index>(fields)] != 0;
    const size_t end = offsets[s + 1];
    float gradient = dout[i];
    for (size_t f = offsets[s]; f < end; ++f) {
      if (!largest) {
        dfeatures[f * dim + d] = ValueOf(value, f) * gradient;
        continue;
      }
      const bool has_it = rows[row[f] * dim + d] == pooled[i];
      dfeatures[f * dim + d] = has_it ? gradient : 0.0f;
      if (has_it) gradient = 0.0f;
    }
  }
};

}  // namespace

void CudaBackend::SparseLinear(const SparseBatch& batch, size_t dim, RowColumns rows, float* out) {
  ForEach(this, "SparseLinear", {batch.samples, dim}, batch.samples * dim,
          SparseLinearBody{batch.offsets, batch.row, batch.value, dim, rows, out});
}

void CudaBackend::SparseLinearBackward(const SparseBatch& batch, size_t dim, const float* dout, GradientColumns drows) {
  AddTerms(this, "SparseLinearBackward", {batch.samples, dim}, batch, dim, SparseLinearTerm{batch.value, dim, dout},
           drows);
}

void CudaBackend::FactorizationMachine(const SparseBatch& batch, size_t dim, RowColumns rows, float* sums, float* out) {
  unsigned lanes = 1;
  while (lanes < kWarp && lanes < dim) lanes *= 2;
  Launch(this, "FactorizationMachine", {batch.samples, dim}, GridFor(batch.samples * lanes), FactorizationMachineKernel,
         batch.samples, batch.offsets, batch.row, batch.value, dim, lanes, rows, sums, out);
}

void CudaBackend::FactorizationMachineBackward(const SparseBatch& batch, size_t dim, RowColumns rows, const float* sums,
                                               const float* dout, GradientColumns drows) {
  AddTerms(this, "FactorizationMachineBackward", {batch.samples, dim}, batch, dim,
           FactorizationMachineTerm{batch.value, dim, rows, sums, dout}, drows);
}

void CudaBackend::GatherFields(const SparseBatch& batch, size_t fields, size_t dim, RowColumns rows, size_t stride,
                               size_t col, float* out) {
  const size_t width = fields * dim;
  ForEach(this, "GatherFields", {batch.samples, fields, dim, stride}, batch.samples * width,
          GatherFieldsBody{batch.offsets, batch.row, batch.value, width, dim, stride, col, rows, out});
}

void CudaBackend::ScatterFields(const SparseBatch& batch, size_t fields, size_t dim, const float* dx, size_t stride,
                                size_t col, GradientColumns drows) {
  if (fields == 0) return;
  AddTerms(this, "ScatterFields", {batch.samples, fields, dim, stride}, batch, dim,
           ScatterFieldsTerm{batch.value, batch.offsets, dim, stride, col, dx}, drows);
}

void CudaBackend::MaxFields(const SparseBatch& batch, size_t fields, const uint32_t* is_max, size_t dim,
                            const float* rows, float* out) {
  ForEach(this, "MaxFields", {batch.samples, fields, dim}, batch.samples * dim,
          MaxFieldsBody{batch.offsets, batch.row, is_max, fields, dim, rows, out});
}

void CudaBackend::MaxFieldsBackward(const SparseBatch& batch, size_t fields, const uint32_t* is_max, size_t dim,
                                    const float* rows, const float* pooled, const float* dout, float* dfeatures) {
  ForEach(
      this, "MaxFieldsBackward", {batch.samples, fields, dim}, batch.samples * dim,
      MaxFieldsBackwardBody{batch.offsets, batch.row, batch.value, is_max, fields, dim, rows, pooled, dout, dfeatures});
}

}  // namespace lodestone::kernels
