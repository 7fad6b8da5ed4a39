// With x_f the value of a sample's feature f and v_f its row:
//   linear          out += sum_f x_f v_f                                    dv_f += x_f dout
//   factorization   out += 1/2 sum_d ((sum_f x_f v_fd)^2 - sum_f (x_f v_fd)^2)
//   machine         dv_fd += dout x_f (sum_g x_g v_gd - x_f v_fd)
//   fields          out[f dim + d] = x_f v_fd                               dv_fd += x_f dx[f dim + d]
//   interaction     out[(i, j)] = sum_d x_id x_jd, j < i                    dx_id += sum_{j != i} dout[(i, j)] x_jd
//
// Rows are gathered from a compact matrix that mostly lies in the caches, so each vector of a row is loaded once, and
// what a sample sums up stays in a register while its features pass. Features are taken one after another, so that rows
// that occur twice in a batch, or in a sample, get both gradients.
#include "kernels/embedding.h"

#include <algorithm>
#include <cstring>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/embedding.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE float Value(const SparseBatch& batch, size_t f) { return batch.value != nullptr ? batch.value[f] : 1.0f; }

// A gathered dot product; four sums, since one would wait for each addition.
HWY_INLINE float GatherDot(const SparseBatch& batch, size_t f, size_t end, const float* rows) {
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (; f + 4 <= end; f += 4) {
    for (size_t i = 0; i < 4; ++i) sum[i] += Value(batch, f + i) * rows[batch.row[f + i]];
  }
  for (; f < end; ++f) sum[0] += Value(batch, f) * rows[batch.row[f]];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void SparseLinear(const SparseBatch& batch, size_t dim, const float* rows, float* out) {
  for (size_t s = 0; s < batch.samples; ++s, out += dim) {
    const size_t begin = batch.offsets[s];
    const size_t end = batch.offsets[s + 1];
    if (dim == 1) {
      *out += GatherDot(batch, begin, end, rows);
      continue;
    }
    ForLanes(dim, [&](auto d, size_t i) HWY_ATTR {
      auto sum = hn::LoadU(d, out + i);
      for (size_t f = begin; f < end; ++f) {
        sum = hn::MulAdd(hn::Set(d, Value(batch, f)), hn::LoadU(d, rows + batch.row[f] * dim + i), sum);
      }
      hn::StoreU(sum, d, out + i);
    });
  }
}

void SparseLinearBackward(const SparseBatch& batch, size_t dim, const float* dout, float* drows) {
  for (size_t s = 0; s < batch.samples; ++s, dout += dim) {
    const size_t begin = batch.offsets[s];
    const size_t end = batch.offsets[s + 1];
    ForLanes(dim, [&](auto d, size_t i) HWY_ATTR {
      const auto gradient = hn::LoadU(d, dout + i);
      for (size_t f = begin; f < end; ++f) {
        float* to = drows + batch.row[f] * dim + i;
        hn::StoreU(hn::MulAdd(hn::Set(d, Value(batch, f)), gradient, hn::LoadU(d, to)), d, to);
      }
    });
  }
}

void FactorizationMachine(const SparseBatch& batch, size_t dim, const float* rows, float* sums, float* out) {
  for (size_t s = 0; s < batch.samples; ++s, sums += dim) {
    const size_t begin = batch.offsets[s];
    const size_t end = batch.offsets[s + 1];
    float twice = 0.0f;
    ForLanes(dim, [&](auto d, size_t i) HWY_ATTR {
      auto sum = hn::Zero(d);
      auto squares = hn::Zero(d);
      for (size_t f = begin; f < end; ++f) {
        const auto term = hn::Mul(hn::Set(d, Value(batch, f)), hn::LoadU(d, rows + batch.row[f] * dim + i));
        sum = hn::Add(sum, term);
        squares = hn::MulAdd(term, term, squares);
      }
      hn::StoreU(sum, d, sums + i);
      twice += hn::GetLane(hn::SumOfLanes(d, hn::MulSub(sum, sum, squares)));
    });
    out[s] += 0.5f * twice;
  }
}

void FactorizationMachineBackward(const SparseBatch& batch, size_t dim, const float* rows, const float* sums,
                                  const float* dout, float* drows) {
  for (size_t s = 0; s < batch.samples; ++s, sums += dim) {
    const size_t begin = batch.offsets[s];
    const size_t end = batch.offsets[s + 1];
    ForLanes(dim, [&](auto d, size_t i) HWY_ATTR {
      const auto sum = hn::LoadU(d, sums + i);
      for (size_t f = begin; f < end; ++f) {
        const float value = Value(batch, f);
        const size_t at = batch.row[f] * dim + i;
        const auto others = hn::NegMulAdd(hn::Set(d, value), hn::LoadU(d, rows + at), sum);
        hn::StoreU(hn::MulAdd(hn::Set(d, dout[s] * value), others, hn::LoadU(d, drows + at)), d, drows + at);
      }
    });
  }
}

// Calls body(d, f, i) for the lanes from i of each field f. Short rows go one after another through the same loop over
// fields; each long row is passed through at once, as the memory likes it.
template <class Body>
HWY_INLINE void ForFields(size_t fields, size_t dim, const Body& body) {
  constexpr size_t kLongRow = 32;
  if (dim < kLongRow) {
    ForLanes(dim, [&](auto d, size_t i) HWY_ATTR {
      for (size_t f = 0; f < fields; ++f) body(d, f, i);
    });
  } else {
    for (size_t f = 0; f < fields; ++f) ForLanes(dim, [&](auto d, size_t i) HWY_ATTR { body(d, f, i); });
  }
}

void GatherFields(const SparseBatch& batch, size_t fields, size_t dim, const float* rows, size_t stride, size_t col,
                  float* out) {
  for (size_t s = 0; s < batch.samples; ++s) {
    const size_t begin = batch.offsets[s];
    float* to = out + s * stride + col;
    ForFields(fields, dim, [&](auto d, size_t f, size_t i) HWY_ATTR {
      const auto row = hn::LoadU(d, rows + batch.row[begin + f] * dim + i);
      hn::StoreU(hn::Mul(hn::Set(d, Value(batch, begin + f)), row), d, to + f * dim + i);
    });
  }
}

void ScatterFields(const SparseBatch& batch, size_t fields, size_t dim, const float* dx, size_t stride, size_t col,
                   float* drows) {
  for (size_t s = 0; s < batch.samples; ++s) {
    const size_t begin = batch.offsets[s];
    const float* from = dx + s * stride + col;
    ForFields(fields, dim, [&](auto d, size_t f, size_t i) HWY_ATTR {
      float* to = drows + batch.row[begin + f] * dim + i;
      const auto gradient = hn::LoadU(d, from + f * dim + i);
      hn::StoreU(hn::MulAdd(hn::Set(d, Value(batch, begin + f)), gradient, hn::LoadU(d, to)), d, to);
    });
  }
}

// c[r, lane] += sum over l of a[r, l] b[l, lane] for kRows rows and a vector of lanes; the rows' sums are independent
// chains of additions, which overlap. `width` is that of b and of c.
template <size_t kRows, class D>
HWY_INLINE void MultiplyTile(D d, size_t depth, const float* a, const float* b, size_t width, float* c) {
  hn::Vec<D> sum[kRows];
  for (size_t r = 0; r < kRows; ++r) sum[r] = hn::LoadU(d, c + r * width);
  for (size_t l = 0; l < depth; ++l) {
    const auto right = hn::LoadU(d, b + l * width);
    for (size_t r = 0; r < kRows; ++r) sum[r] = hn::MulAdd(hn::Set(d, a[r * depth + l]), right, sum[r]);
  }
  for (size_t r = 0; r < kRows; ++r) hn::StoreU(sum[r], d, c + r * width);
}

// c[rows, width] += a[rows, depth] b[depth, width], for matrices that lie in the first cache.
HWY_INLINE void MultiplySmall(size_t rows, size_t depth, const float* a, const float* b, size_t width, float* c) {
  ForLanes(width, [&](auto d, size_t i) HWY_ATTR {
    size_t r = 0;
    for (; r + 4 <= rows; r += 4) MultiplyTile<4>(d, depth, a + r * depth, b + i, width, c + r * width + i);
    for (; r < rows; ++r) MultiplyTile<1>(d, depth, a + r * depth, b + i, width, c + r * width + i);
  });
}

// All products x x^T at once, both of (i, j) and (j, i): cheaper than sums across the lanes of the wanted ones.
void DotInteraction(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col, float* out) {
  if (vectors < 2) return;
  const size_t lanes = hn::Lanes(hn::ScalableTag<float>());
  const size_t width = (vectors + lanes - 1) / lanes * lanes;
  std::vector<float> transposed(std::max<size_t>(dim, 1) * width);  // Addresses are formed even for dim 0.
  std::vector<float> products(vectors * width);
  for (size_t s = 0; s < samples; ++s, x += vectors * dim) {
    for (size_t i = 0; i < vectors; ++i) {
      for (size_t k = 0; k < dim; ++k) transposed[k * width + i] = x[i * dim + k];
    }
    std::memset(products.data(), 0, products.size() * sizeof(float));
    MultiplySmall(vectors, dim, x, transposed.data(), width, products.data());
    float* to = out + s * stride + col;
    for (size_t i = 1; i < vectors; to += i, ++i) std::memcpy(to, products.data() + i * width, i * sizeof(float));
  }
}

void DotInteractionBackward(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col,
                            const float* dout, float* dx) {
  if (vectors < 2) return;
  std::vector<float> weights(vectors * vectors);  // dout as a symmetric matrix; its diagonal stays 0.
  for (size_t s = 0; s < samples; ++s, x += vectors * dim, dx += vectors * dim) {
    const float* pair = dout + s * stride + col;
    for (size_t i = 1; i < vectors; ++i) {
      for (size_t j = 0; j < i; ++j) weights[i * vectors + j] = weights[j * vectors + i] = *pair++;
    }
    MultiplySmall(vectors, vectors, weights.data(), x, dim, dx);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lodestone::kernels::cpu {

HWY_EXPORT(SparseLinear);
HWY_EXPORT(SparseLinearBackward);
HWY_EXPORT(FactorizationMachine);
HWY_EXPORT(FactorizationMachineBackward);
HWY_EXPORT(GatherFields);
HWY_EXPORT(ScatterFields);
HWY_EXPORT(DotInteraction);
HWY_EXPORT(DotInteractionBackward);

void SparseLinear(const SparseBatch& batch, size_t dim, const float* rows, float* out) {
  HWY_DYNAMIC_DISPATCH(SparseLinear)(batch, dim, rows, out);
}

void SparseLinearBackward(const SparseBatch& batch, size_t dim, const float* dout, float* drows) {
  HWY_DYNAMIC_DISPATCH(SparseLinearBackward)(batch, dim, dout, drows);
}

void FactorizationMachine(const SparseBatch& batch, size_t dim, const float* rows, float* sums, float* out) {
  HWY_DYNAMIC_DISPATCH(FactorizationMachine)(batch, dim, rows, sums, out);
}

void FactorizationMachineBackward(const SparseBatch& batch, size_t dim, const float* rows, const float* sums,
                                  const float* dout, float* drows) {
  HWY_DYNAMIC_DISPATCH(FactorizationMachineBackward)(batch, dim, rows, sums, dout, drows);
}

void GatherFields(const SparseBatch& batch, size_t fields, size_t dim, const float* rows, size_t stride, size_t col,
                  float* out) {
  HWY_DYNAMIC_DISPATCH(GatherFields)(batch, fields, dim, rows, stride, col, out);
}

void ScatterFields(const SparseBatch& batch, size_t fields, size_t dim, const float* dx, size_t stride, size_t col,
                   float* drows) {
  HWY_DYNAMIC_DISPATCH(ScatterFields)(batch, fields, dim, dx, stride, col, drows);
}

void DotInteraction(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col, float* out) {
  HWY_DYNAMIC_DISPATCH(DotInteraction)(samples, vectors, dim, x, stride, col, out);
}

void DotInteractionBackward(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col,
                            const float* dout, float* dx) {
  HWY_DYNAMIC_DISPATCH(DotInteractionBackward)(samples, vectors, dim, x, stride, col, dout, dx);
}

}  // namespace lodestone::kernels::cpu
#endif  // HWY_ONCE
