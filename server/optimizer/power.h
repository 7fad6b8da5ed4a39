// Integer powers, the same on every machine (unlike pow).
#pragma once

#include <cstdint>

namespace lodestone::server {

// base ^ exponent by squaring, for base in [0, 1]. What is below 2^-200 counts as 0, which spares slow denormals.
inline double PowerOf(double base, uint64_t exponent) {
  double power = 1;
  for (; exponent != 0; exponent >>= 1, base *= base) {
    if (base < 0x1.0p-200) return 0;
    if (exponent & 1) power *= base;
  }
  return power;
}

}  // namespace lodestone::server
