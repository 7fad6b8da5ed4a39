// Bias, ReLU, dropout and column sums, on row-major [rows, cols] float32.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lodestone::kernels::cpu {

// x[r, c] += bias[c].
void AddBias(size_t rows, size_t cols, const float* bias, float* x);

// x[r, c] = max(0, x[r, c] + bias[c]).
void AddBiasRelu(size_t rows, size_t cols, const float* bias, float* x);

// dx[i] = y[i] > 0 ? dx[i] : 0, where y is the ReLU's output.
void ReluBackward(size_t n, const float* y, float* dx);

// Zeroes x[i] with probability `rate` and scales the others by 1 / (1 - rate); element i's fate is a function of
// (seed, i), so that the backward pass calls it with the same seed on dx.
void Dropout(size_t n, float rate, uint64_t seed, float* x);

// sums[c] = sum over r of x[r, c].
void ColumnSums(size_t rows, size_t cols, const float* x, float* sums);

// y[i] += alpha * x[i].
void Axpy(size_t n, float alpha, const float* x, float* y);

// y[r, col + c] = x[r, c]: copies [rows, cols] into columns of a wider matrix with `stride` columns.
void CopyColumns(size_t rows, size_t cols, const float* x, size_t stride, size_t col, float* y);

// y[r, c] = x[r, col + c]: the reverse.
void ExtractColumns(size_t rows, size_t cols, const float* x, size_t stride, size_t col, float* y);

}  // namespace lodestone::kernels::cpu
