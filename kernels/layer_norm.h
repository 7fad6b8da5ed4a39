// Layer normalisation (Ba, Kiros and Hinton 2016) without gain and bias, on row-major [rows, cols] float32, in place.
#pragma once

#include <cstddef>

namespace lodestone::kernels::cpu {

// x[r, c] = (x[r, c] - mean) * inverse[r] with the row's mean and inverse[r] = 1 / sqrt(the row's variance + epsilon).
void LayerNorm(size_t rows, size_t cols, float epsilon, float* x, float* inverse);

// dx[r, c] = inverse[r] * (dx[r, c] - mean of dx[r] - y[r, c] * mean of dx[r] * y[r]), y what LayerNorm left in x.
void LayerNormBackward(size_t rows, size_t cols, const float* y, const float* inverse, float* dx);

}  // namespace lodestone::kernels::cpu
