// Bias, activations, dropout, column sums and products element by element, on row-major [rows, cols] float32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/activation_function.h"

namespace lodestone::kernels::cpu {

// x[r, c] += bias[c]; y[r, c] = f(x[r, c]). `y` may be x itself, which then holds the outputs. NaN stays NaN.
void Activate(Activation activation, size_t rows, size_t cols, const float* bias, float* x, float* y);

// dx[i] *= f'(x[i]). `kept`: the activation's inputs x where NeedsInput says so, else its outputs.
void ActivateBackward(Activation activation, size_t n, const float* kept, float* dx);

// Zeroes x[i] with probability `rate` and scales the others by 1 / (1 - rate); element i's fate is a function of
// (seed, i), so that the backward pass calls it with the same seed on dx.
void Dropout(size_t n, float rate, uint64_t seed, float* x);

// sums[c] = sum over r of x[r, c].
void ColumnSums(size_t rows, size_t cols, const float* x, float* sums);

// y[i] += alpha * x[i].
void Axpy(size_t n, float alpha, const float* x, float* y);

// z[i] += x[i] * y[i]. `y` may be x itself.
void MultiplyAdd(size_t n, const float* x, const float* y, float* z);

// y[r, col + c] = x[r, c]: copies [rows, cols] into columns of a wider matrix with `stride` columns.
void CopyColumns(size_t rows, size_t cols, const float* x, size_t stride, size_t col, float* y);

// y[r, c] = x[r, col + c]: the reverse.
void ExtractColumns(size_t rows, size_t cols, const float* x, size_t stride, size_t col, float* y);

}  // namespace lodestone::kernels::cpu
