// Zipf-distributed ranks: P(k) is proportional to k ^ -exponent for k = 1 … n.
//
// Rejection-inversion (Hörmann & Derflinger 1996): constant time and no tables for any n and exponent, 0 (uniform)
// included. Thread-safe: immutable.
#pragma once

#include <cstdint>

namespace lodestone::worker {

class Zipf {
 public:
  // REQUIRES: n >= 1, exponent >= 0.
  Zipf(uint64_t n, double exponent);

  // A rank in 1 … n: draw number `draw` of the stream `seed`. REQUIRES: nothing else uses that stream.
  uint64_t Draw(uint64_t seed, uint32_t draw) const;

 private:
  double Density(double x) const;   // h(x) = x ^ -exponent
  double Integral(double x) const;  // H(x), the integral of h from 1 to x
  double InverseIntegral(double y) const;

  const double n_;
  const double exponent_;
  double integral_begin_;  // H(1.5) - h(1)
  double integral_end_;    // H(n + 0.5)
  double accept_;          // Distances to the rank up to here are accepted at once.
};

}  // namespace lodestone::worker
