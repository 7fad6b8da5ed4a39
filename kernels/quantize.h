// Floats as smaller types, for messages: bf16, IEEE half precision, and bytes with a scale per block.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lodestone::kernels::cpu {

// Rounded to nearest, ties to even. NaN and infinities stay.
void ToBf16(size_t n, const float* x, uint16_t* y);
void FromBf16(size_t n, const uint16_t* x, float* y);

// The same; what is too large for a half becomes infinite.
void ToF16(size_t n, const float* x, uint16_t* y);
void FromF16(size_t n, const uint16_t* x, float* y);

// y[i] = x[i] / scales[i / block], rounded, from -127 to 127; a block's scale makes its largest magnitude 127. The last
// block may be shorter. If `error` is not null, what was lost before is added to x, and what is lost now is left there:
// error feedback (Seide et al. 2014). NaN or infinity in a block makes its scale NaN or infinite, and its bytes 0; its
// errors become 0.
// REQUIRES: block > 0.
void ToInt8(size_t n, size_t block, const float* x, float* error, int8_t* y, float* scales);
// y[i] = x[i] * scales[i / block].
void FromInt8(size_t n, size_t block, const int8_t* x, const float* scales, float* y);

}  // namespace lodestone::kernels::cpu
