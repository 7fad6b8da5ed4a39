// The check and the clipping of a gradient before it is used. Pure functions, whose results do not depend on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/byte_view.h"

namespace lodestone::server {

// Euclidean norm of the floats in `gradient` after clamping each to [-clip_value, clip_value] (0: no clamp). The same
// bits in whatever runs they lie.
double GradientNorm(ByteView gradient, float clip_value);

// Index of the first of `n` unaligned floats that is NaN or infinite; n if all are finite.
size_t FirstNonFinite(const uint8_t* values, size_t n);

}  // namespace lodestone::server
