// Dense matrix products, row-major float32.
#pragma once

#include <cstddef>

namespace lodestone::kernels::cpu {

// c[m, n] = alpha * op(a)[m, k] * op(b)[k, n] + beta * c, where op transposes if asked. Matrices are contiguous: a is
// [m, k] ([k, m] if transposed), b is [k, n] ([n, k] if transposed). With beta == 0, c may be uninitialised.
// REQUIRES: m, n, k < 2^31. Thread-safe.
void MatMul(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, float alpha, const float* a,
            const float* b, float beta, float* c);

// Threads that MatMul may use in this process; 1 unless set. Those beside the caller's do not know of its
// FlushDenormals.
void SetMatMulThreads(int threads);

}  // namespace lodestone::kernels::cpu
