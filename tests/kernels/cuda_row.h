// CUDA as rows of functions on host pointers.
#pragma once

#include <cstdint>
#include <string>

#include "tests/kernels/on_cuda.h"
#include "tests/kernels/row.h"

namespace lodestone::kernels {

template <class Kind>
struct CudaFunctions {
  using On = OnCuda<Kind>;

  static std::string Missing() {
    const auto backend = FirstCudaDevice<Kind>();
    return backend.ok() ? std::string() : std::string(backend.status().message());
  }
  static void MatMul(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, float alpha, const float* a,
                     const float* b, float beta, float* c) {
    On on;
    on->MatMul(transpose_a, transpose_b, m, n, k, alpha, on.In(a, m * k), on.In(b, k * n), beta, on.InOut(c, m * n));
  }
  static void Activate(Activation activation, size_t rows, size_t cols, const float* bias, float* x, float* y) {
    On on;
    float* const inputs = on.InOut(x, rows * cols);
    on->Activate(activation, rows, cols, on.In(bias, cols), inputs, y == x ? inputs : on.InOut(y, rows * cols));
  }
  static void ActivateBackward(Activation activation, size_t n, const float* kept, float* dx) {
    On on;
    on->ActivateBackward(activation, n, on.In(kept, n), on.InOut(dx, n));
  }
  static void Dropout(size_t n, float rate, uint64_t seed, float* x) {
    On on;
    on->Dropout(n, rate, seed, on.InOut(x, n));
  }
  static void ColumnSums(size_t rows, size_t cols, const float* x, float* sums) {
    On on;
    on->ColumnSums(rows, cols, on.In(x, rows * cols), on.InOut(sums, cols));
  }
  static void Axpy(size_t n, float alpha, const float* x, float* y) {
    On on;
    on->Axpy(n, alpha, on.In(x, n), on.InOut(y, n));
  }
  static void MultiplyAdd(size_t n, const float* x, const float* y, float* z) {
    On on;
    on->MultiplyAdd(n, on.In(x, n), on.In(y, n), on.InOut(z, n));
  }
  static void CopyColumns(size_t rows, size_t cols, const float* x, size_t stride, size_t col, float* y) {
    On on;
    on->CopyColumns(rows, cols, on.In(x, rows * cols), stride, col, on.InOut(y, rows * stride));
  }
  static void ExtractColumns(size_t rows, size_t cols, const float* x, size_t stride, size_t col, float* y) {
    On on;
    on->ExtractColumns(rows, cols, on.In(x, rows * stride), stride, col, on.InOut(y, rows * cols));
  }

  static void LayerNorm(size_t rows, size_t cols, float epsilon, float* x, float* inverse) {
    On on;
    on->LayerNorm(rows, cols, epsilon, on.InOut(x, rows * cols), on.InOut(inverse, rows));
  }
  static void LayerNormBackward(size_t rows, size_t cols, const float* y, const float* inverse, float* dx) {
    On on;
    on->LayerNormBackward(rows, cols, on.In(y, rows * cols), on.In(inverse, rows), on.InOut(dx, rows * cols));
  }

  static double LogisticLoss(size_t rows, const float* logits, const float* labels, const float* weights,
                             float* dlogits, float* predictions) {
    double sum = -1;
    {
      On on;
      on->LogisticLoss(rows, on.In(logits, rows), on.In(labels, rows), on.In(weights, rows), on.InOut(dlogits, rows),
                       on.InOut(predictions, rows), on.InOut(&sum, 1));
    }
    return sum;
  }
  static double SoftmaxLoss(size_t rows, size_t classes, const float* logits, const float* labels, const float* weights,
                            float* dlogits, float* predictions) {
    double sum = -1;
    {
      On on;
      on->SoftmaxLoss(rows, classes, on.In(logits, rows * classes), on.In(labels, rows), on.In(weights, rows),
                      on.InOut(dlogits, rows * classes), on.InOut(predictions, rows), on.InOut(&sum, 1));
    }
    return sum;
  }
  static double SquaredLoss(size_t rows, const float* logits, const float* labels, const float* weights, float* dlogits,
                            float* predictions) {
    double sum = -1;
    {
      On on;
      on->SquaredLoss(rows, on.In(logits, rows), on.In(labels, rows), on.In(weights, rows), on.InOut(dlogits, rows),
                      on.InOut(predictions, rows), on.InOut(&sum, 1));
    }
    return sum;
  }

  static void SparseLinear(const SparseBatch& batch, size_t dim, RowColumns rows, float* out) {
    On on;
    const SparseBatch copy = on.In(batch);
    on->SparseLinear(copy, dim, on.In(rows, dim), on.InOut(out, batch.samples * dim));
  }
  static void SparseLinearBackward(const SparseBatch& batch, size_t dim, const float* dout, GradientColumns drows) {
    On on;
    const SparseBatch copy = on.In(batch);
    on->SparseLinearBackward(copy, dim, on.In(dout, batch.samples * dim), on.InOut(drows, dim));
  }
  static void FactorizationMachine(const SparseBatch& batch, size_t dim, RowColumns rows, float* sums, float* out) {
    On on;
    const SparseBatch copy = on.In(batch);
    on->FactorizationMachine(copy, dim, on.In(rows, dim), on.InOut(sums, batch.samples * dim),
                             on.InOut(out, batch.samples));
  }
  static void FactorizationMachineBackward(const SparseBatch& batch, size_t dim, RowColumns rows, const float* sums,
                                           const float* dout, GradientColumns drows) {
    On on;
    const SparseBatch copy = on.In(batch);
    on->FactorizationMachineBackward(copy, dim, on.In(rows, dim), on.In(sums, batch.samples * dim),
                                     on.In(dout, batch.samples), on.InOut(drows, dim));
  }
  static void GatherFields(const SparseBatch& batch, size_t fields, size_t dim, RowColumns rows, size_t stride,
                           size_t col, float* out) {
    On on;
    const SparseBatch copy = on.In(batch);
    on->GatherFields(copy, fields, dim, on.In(rows, dim), stride, col, on.InOut(out, batch.samples * stride));
  }
  static void ScatterFields(const SparseBatch& batch, size_t fields, size_t dim, const float* dx, size_t stride,
                            size_t col, GradientColumns drows) {
    On on;
    const SparseBatch copy = on.In(batch);
    on->ScatterFields(copy, fields, dim, on.In(dx, batch.samples * stride), stride, col, on.InOut(drows, dim));
  }
  static void MaxFields(const SparseBatch& batch, size_t fields, const uint32_t* is_max, size_t dim, const float* rows,
                        float* out) {
    On on;
    const SparseBatch copy = on.In(batch);
    on->MaxFields(copy, fields, on.In(is_max, fields), dim, on.In(rows, on.distinct() * dim),
                  on.InOut(out, batch.samples * dim));
  }
  static void MaxFieldsBackward(const SparseBatch& batch, size_t fields, const uint32_t* is_max, size_t dim,
                                const float* rows, const float* pooled, const float* dout, float* dfeatures) {
    On on;
    const SparseBatch copy = on.In(batch);
    on->MaxFieldsBackward(copy, fields, on.In(is_max, fields), dim, on.In(rows, on.distinct() * dim),
                          on.In(pooled, batch.samples * dim), on.In(dout, batch.samples * dim),
                          on.InOut(dfeatures, batch.offsets[batch.samples] * dim));
  }
  static void DotInteraction(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col,
                             float* out) {
    On on;
    on->DotInteraction(samples, vectors, dim, on.In(x, samples * vectors * dim), stride, col,
                       on.InOut(out, samples * stride));
  }
  static void DotInteractionBackward(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride,
                                     size_t col, const float* dout, float* dx) {
    On on;
    on->DotInteractionBackward(samples, vectors, dim, on.In(x, samples * vectors * dim), stride, col,
                               on.In(dout, samples * stride), on.InOut(dx, samples * vectors * dim));
  }
  static void MixExperts(size_t samples, size_t experts, size_t dim, const float* x, float* gates, float* out) {
    On on;
    on->MixExperts(samples, experts, dim, on.In(x, experts * samples * dim), on.InOut(gates, samples * experts),
                   on.InOut(out, samples * dim));
  }
  static void MixExpertsBackward(size_t samples, size_t experts, size_t dim, const float* x, const float* gates,
                                 const float* dout, float* dgates, float* dx) {
    On on;
    on->MixExpertsBackward(samples, experts, dim, on.In(x, experts * samples * dim), on.In(gates, samples * experts),
                           on.In(dout, samples * dim), on.InOut(dgates, samples * experts),
                           on.InOut(dx, experts * samples * dim));
  }
};

template <class Kind>
BackendRow CudaRow() {
  using F = CudaFunctions<Kind>;
  return {.name = Kind::kName,
          .instruction_set = 0,
          .missing = F::Missing,
          .factor_roundoff = Kind::kFactorRoundoff,
          .mat_mul = F::MatMul,
          .activate = F::Activate,
          .activate_backward = F::ActivateBackward,
          .dropout = F::Dropout,
          .column_sums = F::ColumnSums,
          .axpy = F::Axpy,
          .multiply_add = F::MultiplyAdd,
          .copy_columns = F::CopyColumns,
          .extract_columns = F::ExtractColumns,
          .layer_norm = F::LayerNorm,
          .layer_norm_backward = F::LayerNormBackward,
          .logistic_loss = F::LogisticLoss,
          .softmax_loss = F::SoftmaxLoss,
          .squared_loss = F::SquaredLoss,
          .sparse_linear = F::SparseLinear,
          .sparse_linear_backward = F::SparseLinearBackward,
          .factorization_machine = F::FactorizationMachine,
          .factorization_machine_backward = F::FactorizationMachineBackward,
          .gather_fields = F::GatherFields,
          .scatter_fields = F::ScatterFields,
          .max_fields = F::MaxFields,
          .max_fields_backward = F::MaxFieldsBackward,
          .dot_interaction = F::DotInteraction,
          .dot_interaction_backward = F::DotInteractionBackward,
          .mix_experts = F::MixExperts,
          .mix_experts_backward = F::MixExpertsBackward};
}

}  // namespace lodestone::kernels
