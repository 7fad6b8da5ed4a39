// Sums in double that know how far a sum of the same terms in float may be off.
//
// In float arithmetic every operation rounds by a factor 1 + r with |r| <= u = 2^-24. A sum of n terms, in whatever
// order and with or without fused multiply-add, passes each of its terms through at most n additions, and through the
// few operations that made the term itself; so it is off by at most (n + few) u times the sum of the terms' magnitudes,
// to first order (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2). 1 % more covers the second
// order for all n < 10^5. The smallest float covers results that underflow.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <string>
#include <vector>

namespace lodestone::kernels {

inline constexpr double kUnitRoundoff = 0x1p-24;

class Exact {
 public:
  Exact() = default;
  // The value that is there before: the first term, exact itself.
  explicit Exact(double start) { Add(start, 0); }

  // `operations`: how many float operations make the term, including errors that its factors already have.
  void Add(double term, int operations = 1) { AddWithMagnitude(term, std::abs(term), operations); }

  // A term that is a sum or difference itself, whose own terms have this sum of magnitudes.
  void AddWithMagnitude(double term, double magnitude, int operations) {
    value_ += term;
    magnitude_ += magnitude;
    ++terms_;
    operations_ = std::max(operations_, operations);
  }

  // Replaces the value by one found in another way, exact to within `error`; the magnitudes stay.
  void SetValue(double value, double error) {
    value_ = value;
    error_ = error;
  }

  double value() const { return value_; }
  double magnitude() const { return magnitude_; }
  double tolerance() const {
    return 1.01 * (terms_ + operations_) * kUnitRoundoff * magnitude_ + error_ + FLT_TRUE_MIN;
  }

 private:
  double value_ = 0;
  double magnitude_ = 0;
  double error_ = 0;
  int terms_ = 0;
  int operations_ = 0;
};

// Fails, naming the first wrong element, unless all of `got` are within the tolerances.
inline void ExpectClose(const std::vector<float>& got, const std::vector<Exact>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - want[i].value());
    if (!(error <= want[i].tolerance())) {
      ADD_FAILURE() << what << ": element " << i << " is " << got[i] << ", should be " << want[i].value() << " +- "
                    << want[i].tolerance();
      return;
    }
  }
}

// Fails, naming the first wrong element, unless all elements are equal.
inline void ExpectEqual(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] != want[i]) {
      ADD_FAILURE() << what << ": element " << i << " is " << got[i] << ", should be " << want[i];
      return;
    }
  }
}

// The derivative of `loss` (of a vector of doubles) with respect to element i, by central differences. For a loss of
// degree two in x[i] it is exact but for the rounding of the two values, about 2^-53 |loss| / step each; otherwise
// there is step^2 / 6 times the third derivative besides.
template <class Loss>
double CentralDifference(const Loss& loss, std::vector<double>& x, size_t i, double step) {
  const double middle = x[i];
  x[i] = middle + step;
  const double above = loss(x);
  x[i] = middle - step;
  const double below = loss(x);
  x[i] = middle;
  return (above - below) / (2 * step);
}

inline std::vector<double> Widen(const std::vector<float>& x) { return {x.begin(), x.end()}; }

}  // namespace lodestone::kernels
