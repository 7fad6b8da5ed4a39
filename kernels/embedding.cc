// With x_f the value of a sample's feature f and v_f its row:
//   linear          out += sum_f x_f v_f                                    dv_f += x_f dout
//   factorization   out += 1/2 sum_d ((sum_f x_f v_fd)^2 - sum_f (x_f v_fd)^2)
//   machine         dv_fd += dout x_f (sum_g x_g v_gd - x_f v_fd)
//   fields          out[f dim + d] = x_f v_fd                               dv_fd += x_f dx[f dim + d]
//   interaction     out[(i, j)] = sum_d x_id x_jd, j < i                    dx_id += sum_{j != i} dout[(i, j)] x_jd
//   mixture         out[d] = sum_e g_e x_ed, g = softmax(z)                 dx_ed += g_e dout[d]
//                   p_e = sum_d dout[d] x_ed                                dz_e = g_e (p_e - sum_i g_i p_i)
//
// Rows are gathered from a compact matrix that mostly lies in the caches, so each vector of a row is loaded once, and
// what a sample sums up stays in a register while its features pass. Features are taken one after another, so that rows
// that occur twice in a batch, or in a sample, get both gradients.
#include "kernels/embedding.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
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
HWY_INLINE float GatherDot(const SparseBatch& batch, size_t f, size_t end, RowColumns rows) {
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (; f + 4 <= end; f += 4) {
    for (size_t i = 0; i < 4; ++i) sum[i] += Value(batch, f + i) * rows.data[batch.row[f + i] * rows.stride];
  }
  for (; f < end; ++f) sum[0] += Value(batch, f) * rows.data[batch.row[f] * rows.stride];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void SparseLinear(const SparseBatch& batch, size_t dim, RowColumns rows, float* out) {
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
        sum = hn::MulAdd(hn::Set(d, Value(batch, f)), hn::LoadU(d, rows.data + batch.row[f] * rows.stride + i), sum);
      }
      hn::StoreU(sum, d, out + i);
    });
  }
}

void SparseLinearBackward(const SparseBatch& batch, size_t dim, const float* dout, GradientColumns drows) {
  for (size_t s = 0; s < batch.samples; ++s, dout += dim) {
    const size_t begin = batch.offsets[s];
    const size_t end = batch.offsets[s + 1];
    ForLanes(dim, [&](auto d, size_t i) HWY_ATTR {
      const auto gradient = hn::LoadU(d, dout + i);
      for (size_t f = begin; f < end; ++f) {
        float* to = drows.data + batch.row[f] * drows.stride + i;
        hn::StoreU(hn::MulAdd(hn::Set(d, Value(batch, f)), gradient, hn::LoadU(d, to)), d, to);
      }
    });
  }
}

void FactorizationMachine(const SparseBatch& batch, size_t dim, RowColumns rows, float* sums, float* out) {
  for (size_t s = 0; s < batch.samples; ++s, sums += dim) {
    const size_t begin = batch.offsets[s];
    const size_t end = batch.offsets[s + 1];
    float twice = 0.0f;
    ForLanes(dim, [&](auto d, size_t i) HWY_ATTR {
      auto sum = hn::Zero(d);
      auto squares = hn::Zero(d);
      for (size_t f = begin; f < end; ++f) {
        const auto term =
            hn::Mul(hn::Set(d, Value(batch, f)), hn::LoadU(d, rows.data + batch.row[f] * rows.stride + i));
        sum = hn::Add(sum, term);
        squares = hn::MulAdd(term, term, squares);
      }
      hn::StoreU(sum, d, sums + i);
      twice += hn::GetLane(hn::SumOfLanes(d, hn::MulSub(sum, sum, squares)));
    });
    out[s] += 0.5f * twice;
  }
}

void FactorizationMachineBackward(const SparseBatch& batch, size_t dim, RowColumns rows, const float* sums,
                                  const float* dout, GradientColumns drows) {
  for (size_t s = 0; s < batch.samples; ++s, sums += dim) {
    const size_t begin = batch.offsets[s];
    const size_t end = batch.offsets[s + 1];
    ForLanes(dim, [&](auto d, size_t i) HWY_ATTR {
      const auto sum = hn::LoadU(d, sums + i);
      for (size_t f = begin; f < end; ++f) {
        const float value = Value(batch, f);
        const size_t row = batch.row[f];
        const auto others = hn::NegMulAdd(hn::Set(d, value), hn::LoadU(d, rows.data + row * rows.stride + i), sum);
        float* const to = drows.data + row * drows.stride + i;
        hn::StoreU(hn::MulAdd(hn::Set(d, dout[s] * value), others, hn::LoadU(d, to)), d, to);
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

void GatherFields(const SparseBatch& batch, size_t fields, size_t dim, RowColumns rows, size_t stride, size_t col,
                  float* out) {
  for (size_t s = 0; s < batch.samples; ++s) {
    const size_t begin = batch.offsets[s];
    float* to = out + s * stride + col;
    ForFields(fields, dim, [&](auto d, size_t f, size_t i) HWY_ATTR {
      const auto row = hn::LoadU(d, rows.data + batch.row[begin + f] * rows.stride + i);
      hn::StoreU(hn::Mul(hn::Set(d, Value(batch, begin + f)), row), d, to + f * dim + i);
    });
  }
}

void ScatterFields(const SparseBatch& batch, size_t fields, size_t dim, const float* dx, size_t stride, size_t col,
                   GradientColumns drows) {
  for (size_t s = 0; s < batch.samples; ++s) {
    const size_t begin = batch.offsets[s];
    const float* from = dx + s * stride + col;
    ForFields(fields, dim, [&](auto d, size_t f, size_t i) HWY_ATTR {
      float* to = drows.data + batch.row[begin + f] * drows.stride + i;
      const auto gradient = hn::LoadU(d, from + f * dim + i);
      hn::StoreU(hn::MulAdd(hn::Set(d, Value(batch, begin + f)), gradient, hn::LoadU(d, to)), d, to);
    });
  }
}

void MaxFields(const SparseBatch& batch, size_t fields, const uint32_t* is_max, size_t dim, const float* rows,
               float* out) {
  for (size_t s = 0; s < batch.samples; ++s) {
    if (is_max[s % fields] == 0) continue;
    const size_t begin = batch.offsets[s], end = batch.offsets[s + 1];
    ForLanes(dim, [&](auto d, size_t i) HWY_ATTR {
      auto largest = hn::LoadU(d, rows + batch.row[begin] * dim + i);
      for (size_t f = begin + 1; f < end; ++f) {
        largest = hn::Max(largest, hn::LoadU(d, rows + batch.row[f] * dim + i));
      }
      hn::StoreU(largest, d, out + s * dim + i);
    });
  }
}

void MaxFieldsBackward(const SparseBatch& batch, size_t fields, const uint32_t* is_max, size_t dim, const float* rows,
                       const float* pooled, const float* dout, float* dfeatures) {
  for (size_t s = 0; s < batch.samples; ++s) {
    const size_t begin = batch.offsets[s], end = batch.offsets[s + 1];
    const bool largest = is_max[s % fields] != 0;
    ForLanes(dim, [&](auto d, size_t i) HWY_ATTR {
      auto gradient = hn::LoadU(d, dout + s * dim + i);
      const auto from = hn::LoadU(d, pooled + s * dim + i);
      for (size_t f = begin; f < end; ++f) {
        if (!largest) {
          hn::StoreU(hn::Mul(hn::Set(d, Value(batch, f)), gradient), d, dfeatures + f * dim + i);
          continue;
        }
        const auto has_it = hn::Eq(hn::LoadU(d, rows + batch.row[f] * dim + i), from);
        hn::StoreU(hn::IfThenElseZero(has_it, gradient), d, dfeatures + f * dim + i);
        gradient = hn::IfThenZeroElse(has_it, gradient);
      }
    });
  }
}

// c[r, lane] = sum over l of a[r, l] b[l, lane] for kRows rows and a vector of lanes; the rows' sums are independent
// chains of additions, which overlap. `width` is that of b and of c.
template <size_t kRows, class D>
HWY_INLINE void MultiplyTile(D d, size_t depth, const float* a, const float* b, size_t width, float* c) {
  hn::Vec<D> sum[kRows];
  for (size_t r = 0; r < kRows; ++r) sum[r] = hn::Zero(d);
  for (size_t l = 0; l < depth; ++l) {
    const auto right = hn::LoadU(d, b + l * width);
    for (size_t r = 0; r < kRows; ++r) sum[r] = hn::MulAdd(hn::Set(d, a[r * depth + l]), right, sum[r]);
  }
  for (size_t r = 0; r < kRows; ++r) hn::StoreU(sum[r], d, c + r * width);
}

// to[i (i - 1) / 2 + j] = products[i, j] for j < i < vectors. What a row's last vector writes beyond the row, the next
// rows overwrite; beyond the last row nothing is written.
template <class D>
HWY_INLINE void CopyBelowDiagonal(D d, size_t vectors, const float* products, size_t width, float* to) {
  float* const end = to + vectors * (vectors - 1) / 2;
  for (size_t i = 1; i < vectors; to += i, ++i) {
    for (size_t j = 0; j < i; j += hn::Lanes(d)) {
      const float* const from = products + i * width + j;
      if (hn::Lanes(d) <= static_cast<size_t>(end - to) - j) {
        hn::StoreU(hn::LoadU(d, from), d, to + j);
      } else {
        std::memcpy(to + j, from, std::min(hn::Lanes(d), i - j) * sizeof(float));
      }
    }
  }
}

// to[k, i] = x[i, k], four by four.
HWY_INLINE void Transpose(size_t rows, size_t cols, const float* x, size_t width, float* to) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d;
  const size_t whole = cols / 4 * 4;
  for (; i + 4 <= rows; i += 4, x += 4 * cols) {
    for (size_t k = 0; k < whole; k += 4) {
      const auto a = hn::LoadU(d, x + k), b = hn::LoadU(d, x + cols + k);
      const auto c = hn::LoadU(d, x + 2 * cols + k), e = hn::LoadU(d, x + 3 * cols + k);
      const auto ab = hn::InterleaveLower(d, a, b), ce = hn::InterleaveLower(d, c, e);
      const auto ab2 = hn::InterleaveUpper(d, a, b), ce2 = hn::InterleaveUpper(d, c, e);
      hn::StoreU(hn::ConcatLowerLower(d, ce, ab), d, to + k * width + i);
      hn::StoreU(hn::ConcatUpperUpper(d, ce, ab), d, to + (k + 1) * width + i);
      hn::StoreU(hn::ConcatLowerLower(d, ce2, ab2), d, to + (k + 2) * width + i);
      hn::StoreU(hn::ConcatUpperUpper(d, ce2, ab2), d, to + (k + 3) * width + i);
    }
    for (size_t k = whole; k < cols; ++k) {
      for (size_t r = 0; r < 4; ++r) to[k * width + i + r] = x[r * cols + k];
    }
  }
#endif
  for (; i < rows; ++i, x += cols) {
    for (size_t k = 0; k < cols; ++k) to[k * width + i] = x[k];
  }
}

// All products of vectors with the transposed vectors, a vector of lanes at a time: cheaper than sums across the lanes
// of the wanted ones. Vectors of lanes that lie wholly above the diagonal are left out.
void DotInteraction(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col, float* out) {
  if (vectors < 2) return;
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const size_t width = (vectors + lanes - 1) / lanes * lanes;
  std::vector<float> transposed(std::max<size_t>(dim, 1) * width);  // Addresses are formed even for dim 0.
  std::vector<float> products(vectors * width);
  for (size_t s = 0; s < samples; ++s, x += vectors * dim) {
    Transpose(vectors, dim, x, width, transposed.data());
    for (size_t j = 0; j < vectors; j += lanes) {
      const auto multiply = [&](auto rows, size_t i) HWY_ATTR {
        MultiplyTile<rows>(d, dim, x + i * dim, transposed.data() + j, width, products.data() + i * width + j);
      };
      size_t i = j + 1;
      for (; i + 8 <= vectors; i += 8) multiply(std::integral_constant<size_t, 8>(), i);
      if (i + 4 <= vectors) multiply(std::integral_constant<size_t, 4>(), i), i += 4;
      for (; i < vectors; ++i) multiply(std::integral_constant<size_t, 1>(), i);
    }
    CopyBelowDiagonal(d, vectors, products.data(), width, out + s * stride + col);
  }
}

// dx of a pair's first vector is summed up in registers (two sums, since one would wait for each addition) while dx of
// the second ones is updated where it lies.
void DotInteractionBackward(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col,
                            const float* dout, float* dx) {
  for (size_t s = 0; s < samples; ++s, x += vectors * dim, dx += vectors * dim) {
    ForLanes(dim, [&](auto d, size_t k) HWY_ATTR {
      const float* weight = dout + s * stride + col;
      for (size_t i = 1; i < vectors; weight += i, ++i) {
        const auto first = hn::LoadU(d, x + i * dim + k);
        const auto add = [&](size_t j, auto sum) HWY_ATTR {
          const auto w = hn::Set(d, weight[j]);
          float* const to = dx + j * dim + k;
          hn::StoreU(hn::MulAdd(w, first, hn::LoadU(d, to)), d, to);
          return hn::MulAdd(w, hn::LoadU(d, x + j * dim + k), sum);
        };
        auto sum = hn::LoadU(d, dx + i * dim + k);
        auto other = hn::Zero(d);
        size_t j = 0;
        for (; j + 2 <= i; j += 2) {
          sum = add(j, sum);
          other = add(j + 1, other);
        }
        if (j < i) sum = add(j, sum);
        hn::StoreU(hn::Add(sum, other), d, dx + i * dim + k);
      }
    });
  }
}

void MixExperts(size_t samples, size_t experts, size_t dim, const float* x, float* gates, float* out) {
  for (size_t s = 0; s < samples; ++s, gates += experts, out += dim) {
    const float largest = *std::max_element(gates, gates + experts);
    double sum = 0;
    for (size_t e = 0; e < experts; ++e) sum += gates[e] = std::exp(gates[e] - largest);
    const auto share = static_cast<float>(1 / sum);
    for (size_t e = 0; e < experts; ++e) gates[e] *= share;
    ForLanes(dim, [&](auto d, size_t k) HWY_ATTR {
      auto mixed = hn::Zero(d);
      for (size_t e = 0; e < experts; ++e) {
        mixed = hn::MulAdd(hn::Set(d, gates[e]), hn::LoadU(d, x + (e * samples + s) * dim + k), mixed);
      }
      hn::StoreU(mixed, d, out + k);
    });
  }
}

void MixExpertsBackward(size_t samples, size_t experts, size_t dim, const float* x, const float* gates,
                        const float* dout, float* dgates, float* dx) {
  for (size_t s = 0; s < samples; ++s, gates += experts, dgates += experts, dout += dim) {
    float mean = 0;
    for (size_t e = 0; e < experts; ++e) {
      const size_t at = (e * samples + s) * dim;
      const auto gate = gates[e];
      float product = 0;
      ForLanes(dim, [&](auto d, size_t k) HWY_ATTR {
        const auto down = hn::LoadU(d, dout + k);
        product += hn::GetLane(hn::SumOfLanes(d, hn::Mul(down, hn::LoadU(d, x + at + k))));
        hn::StoreU(hn::MulAdd(hn::Set(d, gate), down, hn::LoadU(d, dx + at + k)), d, dx + at + k);
      });
      dgates[e] = product;
      mean += gate * product;
    }
    for (size_t e = 0; e < experts; ++e) dgates[e] = gates[e] * (dgates[e] - mean);
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
HWY_EXPORT(MaxFields);
HWY_EXPORT(MaxFieldsBackward);
HWY_EXPORT(DotInteraction);
HWY_EXPORT(DotInteractionBackward);
HWY_EXPORT(MixExperts);
HWY_EXPORT(MixExpertsBackward);

void SparseLinear(const SparseBatch& batch, size_t dim, RowColumns rows, float* out) {
  HWY_DYNAMIC_DISPATCH(SparseLinear)(batch, dim, rows, out);
}

void SparseLinearBackward(const SparseBatch& batch, size_t dim, const float* dout, GradientColumns drows) {
  HWY_DYNAMIC_DISPATCH(SparseLinearBackward)(batch, dim, dout, drows);
}

void FactorizationMachine(const SparseBatch& batch, size_t dim, RowColumns rows, float* sums, float* out) {
  HWY_DYNAMIC_DISPATCH(FactorizationMachine)(batch, dim, rows, sums, out);
}

void FactorizationMachineBackward(const SparseBatch& batch, size_t dim, RowColumns rows, const float* sums,
                                  const float* dout, GradientColumns drows) {
  HWY_DYNAMIC_DISPATCH(FactorizationMachineBackward)(batch, dim, rows, sums, dout, drows);
}

void GatherFields(const SparseBatch& batch, size_t fields, size_t dim, RowColumns rows, size_t stride, size_t col,
                  float* out) {
  HWY_DYNAMIC_DISPATCH(GatherFields)(batch, fields, dim, rows, stride, col, out);
}

void ScatterFields(const SparseBatch& batch, size_t fields, size_t dim, const float* dx, size_t stride, size_t col,
                   GradientColumns drows) {
  HWY_DYNAMIC_DISPATCH(ScatterFields)(batch, fields, dim, dx, stride, col, drows);
}

void MaxFields(const SparseBatch& batch, size_t fields, const uint32_t* is_max, size_t dim, const float* rows,
               float* out) {
  HWY_DYNAMIC_DISPATCH(MaxFields)(batch, fields, is_max, dim, rows, out);
}

void MaxFieldsBackward(const SparseBatch& batch, size_t fields, const uint32_t* is_max, size_t dim, const float* rows,
                       const float* pooled, const float* dout, float* dfeatures) {
  HWY_DYNAMIC_DISPATCH(MaxFieldsBackward)(batch, fields, is_max, dim, rows, pooled, dout, dfeatures);
}

void DotInteraction(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col, float* out) {
  HWY_DYNAMIC_DISPATCH(DotInteraction)(samples, vectors, dim, x, stride, col, out);
}

void DotInteractionBackward(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col,
                            const float* dout, float* dx) {
  HWY_DYNAMIC_DISPATCH(DotInteractionBackward)(samples, vectors, dim, x, stride, col, dout, dx);
}

void MixExperts(size_t samples, size_t experts, size_t dim, const float* x, float* gates, float* out) {
  HWY_DYNAMIC_DISPATCH(MixExperts)(samples, experts, dim, x, gates, out);
}

void MixExpertsBackward(size_t samples, size_t experts, size_t dim, const float* x, const float* gates,
                        const float* dout, float* dgates, float* dx) {
  HWY_DYNAMIC_DISPATCH(MixExpertsBackward)(samples, experts, dim, x, gates, dout, dgates, dx);
}

}  // namespace lodestone::kernels::cpu
#endif  // HWY_ONCE
