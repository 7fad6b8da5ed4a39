#include "server/optimizer/clipping.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace lodestone::server {
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

// Partial sums of GradientNorm.
constexpr size_t kSums = 8;

// Adds the squares of the `count` <= kSums clamped floats at `run` to as many sums.
inline void AddSquares(const uint8_t* run, size_t count, float bound, double* sums) {
  float g[kSums];
  std::memcpy(g, run, count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    const double x = std::min(std::max(g[i], -bound), bound);
    sums[i] += x * x;
  }
}

}  // namespace

double GradientNorm(ByteView gradient, float clip_value) {
  const float bound = clip_value > 0 ? clip_value : std::numeric_limits<float>::max();
  // Element i goes to sum i mod 8 whatever the machine and the runs, so the result is the same everywhere. Squares of
  // floats do not overflow in double.
  double sums[kSums] = {};
  size_t next = 0;  // The sum of the next element.
  gradient.ForEachRun<float>([&](const uint8_t* run, size_t count) {
    while (count > 0) {
      // The usual case has a constant length, so that the compiler vectorizes it.
      const size_t taken = std::min(count, kSums - next);
      if (taken == kSums) {
        AddSquares(run, kSums, bound, sums);
      } else {
        AddSquares(run, taken, bound, sums + next);
      }
      next = (next + taken) % kSums;
      run += taken * sizeof(float);
      count -= taken;
    }
  });
  return std::sqrt(((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7])));
}

size_t FirstNonFinite(const uint8_t* values, size_t n) {
  size_t i = 0;
  while (i + kScanElements <= n && !HoldsNonFinite(values + i * sizeof(float))) i += kScanElements;
  while (i < n && !IsNonFinite(values + i * sizeof(float))) ++i;
  return i;
}

}  // namespace lodestone::server
