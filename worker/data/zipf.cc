#include "worker/data/zipf.h"

#include <algorithm>
#include <cmath>

#include "common/base/random.h"

namespace lodestone::worker {
namespace {

// log1p(x) / x and expm1(x) / x, with their limits at 0.
double LogRatio(double x) { return std::fabs(x) > 1e-8 ? std::log1p(x) / x : 1 - x / 2; }
double ExpRatio(double x) { return std::fabs(x) > 1e-8 ? std::expm1(x) / x : 1 + x / 2; }

}  // namespace

Zipf::Zipf(uint64_t n, double exponent) : n_(static_cast<double>(n)), exponent_(exponent) {
  integral_begin_ = Integral(1.5) - 1;
  integral_end_ = Integral(n_ + 0.5);
  accept_ = 2 - InverseIntegral(Integral(2.5) - Density(2));
}

double Zipf::Density(double x) const { return std::exp(-exponent_ * std::log(x)); }

double Zipf::Integral(double x) const {
  const double log_x = std::log(x);
  return ExpRatio((1 - exponent_) * log_x) * log_x;
}

double Zipf::InverseIntegral(double y) const {
  const double t = std::max(-1.0, y * (1 - exponent_));
  return std::exp(LogRatio(t) * y);
}

uint64_t Zipf::Draw(uint64_t seed, uint32_t draw) const {
  for (uint64_t attempt = 0;; ++attempt) {
    const double uniform = RandomUniform(seed, attempt << 32 | draw);
    const double y = integral_end_ + uniform * (integral_begin_ - integral_end_);
    const double x = InverseIntegral(y);
    const double rank = std::clamp(std::floor(x + 0.5), 1.0, n_);
    if (rank - x <= accept_ || y >= Integral(rank + 0.5) - Density(rank)) return static_cast<uint64_t>(rank);
  }
}

}  // namespace lodestone::worker
