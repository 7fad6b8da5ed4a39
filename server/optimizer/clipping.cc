#include "server/optimizer/clipping.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace lodestone {
namespace {

// All the bits of a float's exponent: set in NaN and infinities only.
constexpr uint32_t kExponentBits = 0x7f800000u;

// Elements that FirstNonFinite tests with one branch.
constexpr size_t kScanElements = 64;

// True if one of the kScanElements floats at `values` is NaN or infinite. Adding 1 to a full exponent carries into the
// sign bit; the fixed-length loop without a branch is one the compiler vectorizes.
bool HoldsNonFinite(const uint8_t* values) {
  uint32_t bits[kScanElements];
  std::memcpy(bits, values, sizeof(bits));
  uint32_t carries = 0;
  for (size_t i = 0; i < kScanElements; ++i) carries |= (bits[i] & kExponentBits) + (kExponentBits & -kExponentBits);
  return (carries >> 31) != 0;
}

bool IsNonFinite(const uint8_t* value) {
  uint32_t bits;
  std::memcpy(&bits, value, sizeof(bits));
  return (bits & kExponentBits) == kExponentBits;
}

}  // namespace

double GradientNorm(const uint8_t* gradient, size_t n, float clip_value) {
  const float bound = clip_value > 0 ? clip_value : std::numeric_limits<float>::max();
  // Element i goes to sum i mod 8 whatever the machine, so the result is the same everywhere. Squares of floats do not
  // overflow in double.
  double sums[8] = {};
  for (size_t i = 0; i < n; i += 8) {
    float g[8] = {};
    std::memcpy(g, gradient + i * sizeof(float), std::min<size_t>(8, n - i) * sizeof(float));
    for (size_t lane = 0; lane < 8; ++lane) {
      const double x = std::min(std::max(g[lane], -bound), bound);
      sums[lane] += x * x;
    }
  }
  return std::sqrt(((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7])));
}

size_t FirstNonFinite(const uint8_t* values, size_t n) {
  size_t i = 0;
  while (i + kScanElements <= n && !HoldsNonFinite(values + i * sizeof(float))) i += kScanElements;
  while (i < n && !IsNonFinite(values + i * sizeof(float))) ++i;
  return i;
}

}  // namespace lodestone
