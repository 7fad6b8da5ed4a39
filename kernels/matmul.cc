// c[i, j] = alpha * sum over l of op(a)[i, l] * op(b)[l, j] + beta * c[i, j], by OpenBLAS.
#include "kernels/matmul.h"

#include <cblas.h>

#include <algorithm>

namespace lodestone::kernels::cpu {
namespace {

// OpenBLAS itself would start with a thread for each core.
void EnsureThreadsAreSet() {
  static const bool set = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(set);
}

// c = beta * c, without reading c if beta is 0.
void Scale(size_t n, float beta, float* c) {
  if (beta == 0.0f) {
    std::fill_n(c, n, 0.0f);
  } else if (beta != 1.0f) {
    for (size_t i = 0; i < n; ++i) c[i] *= beta;
  }
}

// y = alpha * op(a) * x + beta * y, where a is stored as [rows, cols].
void MatrixTimesVector(bool transpose, size_t rows, size_t cols, float alpha, const float* a, const float* x,
                       float beta, float* y) {
  if (beta == 0.0f) Scale(transpose ? cols : rows, 0.0f, y);  // Some BLAS keep a NaN that y held: 0 * NaN.
  cblas_sgemv(CblasRowMajor, transpose ? CblasTrans : CblasNoTrans, static_cast<blasint>(rows),
              static_cast<blasint>(cols), alpha, a, static_cast<blasint>(cols), x, 1, beta, y, 1);
}

}  // namespace

void MatMul(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, float alpha, const float* a,
            const float* b, float beta, float* c) {
  if (m == 0 || n == 0) return;
  if (k == 0) return Scale(m * n, beta, c);
  EnsureThreadsAreSet();
  // One column or row, as the last layer of a network has: sgemm would spend its time on packing.
  if (n == 1) {
    return MatrixTimesVector(transpose_a, transpose_a ? k : m, transpose_a ? m : k, alpha, a, b, beta, c);
  }
  if (m == 1) {
    return MatrixTimesVector(!transpose_b, transpose_b ? n : k, transpose_b ? k : n, alpha, b, a, beta, c);
  }
  cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans,
              static_cast<blasint>(m), static_cast<blasint>(n), static_cast<blasint>(k), alpha, a,
              static_cast<blasint>(transpose_a ? m : k), b, static_cast<blasint>(transpose_b ? k : n), beta, c,
              static_cast<blasint>(n));
}

void SetMatMulThreads(int threads) {
  EnsureThreadsAreSet();
  openblas_set_num_threads(std::max(1, threads));
}

}  // namespace lodestone::kernels::cpu
