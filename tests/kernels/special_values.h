// Floats that kernels must pass on as they are.
#pragma once

#include <limits>

namespace lodestone::kernels {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

}  // namespace lodestone::kernels
