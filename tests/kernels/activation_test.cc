#include "kernels/activation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/backend.h"
#include "tests/kernels/exact.h"
#include "tests/kernels/special_values.h"

namespace lodestone::kernels {
namespace {

class ActivationTest : public KernelTest {
 protected:
  // Calls check(rows, cols, name) for all sizes of matrices.
  template <class Check>
  void ForShapes(const Check& check) {
    for (const size_t rows : kSizes) {
      for (const size_t cols : kSizes) check(rows, cols, std::to_string(rows) + "x" + std::to_string(cols));
    }
  }
};

std::vector<Activation> Activations() {
  std::vector<Activation> all;
  for (int a = 0; a <= static_cast<int>(kLastActivation); ++a) all.push_back(static_cast<Activation>(a));
  return all;
}

// GELU's sigmoid argument.
double GeluArgument(double x) { return 2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x); }

// What an activation makes of x.
double Value(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return std::max(0.0, x);
    case Activation::kGelu:
      return std::isinf(x) ? std::max(0.0, x) : x / (1 + std::exp(-GeluArgument(x)));
  }
  return kNan;
}

// How far float arithmetic may be off: the first is exact, the second only chooses. GELU's argument t is off by at most
// 8 roundings of its magnitude, which e^-t turns into that many of t in relation to itself, beside 4 of its own; what
// is left of them in s = 1 / (1 + e^-t) is their (1 - s)th part. Quotients and products add 8. Where e^-t is at its
// bound, numbers of 1e-36 stand for smaller ones. The derivative's terms, at most 1 + |x t'| (1 - s) s, have twice
// those errors.
double ToleranceOf(Activation activation, double x, bool derivative) {
  if (activation != Activation::kGelu) return 0;
  const double t = GeluArgument(x), s = 1 / (1 + std::exp(-t));
  const double relative = kUnitRoundoff * ((8 * std::abs(t) + 4) * (1 - s) + 8);
  if (!derivative) return std::abs(x) * s * relative + 1e-36;
  const double slope = 1.6 * (1 + 3 * 0.044715 * x * x);
  return s * relative + std::abs(x) * slope * s * (1 - s) * kUnitRoundoff * 2 * (8 * std::abs(t) + 12) + 1e-33;
}

TEST_P(ActivationTest, AddsTheBiasToEveryRowAndActivatesInPlaceOrBesideTheSums) {
  for (const Activation activation : Activations()) {
    ForShapes([&](size_t rows, size_t cols, const std::string& name) {
      const std::vector<float> bias = Random(cols);
      std::vector<float> x = Random(rows * cols, 12.0f);
      std::vector<float> sums = x;
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += bias[i % cols];  // Rounds the same everywhere.
      std::vector<Exact> want(sums.size());
      for (size_t i = 0; i < sums.size(); ++i) {
        want[i].SetValue(Value(activation, sums[i]), ToleranceOf(activation, sums[i], /*derivative=*/false));
      }
      std::vector<float> in_place = x, y(x.size(), kNan);
      GetParam().activate(activation, rows, cols, bias.data(), in_place.data(), in_place.data());
      GetParam().activate(activation, rows, cols, bias.data(), x.data(), y.data());
      ExpectClose(in_place, want, name);
      ExpectEqual(y, in_place, name);
      ExpectEqual(x, sums, name);
    });
  }
}

TEST_P(ActivationTest, KeepsNanAndInfinityAndTheLargestNumbers) {
  constexpr float kLarge = std::numeric_limits<float>::max();
  const std::vector<float> kinds = {kNan, kInf, -kInf, 1.0f, kLarge, -kLarge};
  for (const Activation activation : Activations()) {
    for (const size_t cols : {1, 17}) {
      const std::vector<float> bias(cols, 0.0f);
      std::vector<float> x(kinds.size() * cols);
      for (size_t i = 0; i < x.size(); ++i) x[i] = kinds[i % kinds.size()];
      const std::vector<float> before = x;
      GetParam().activate(activation, kinds.size(), cols, bias.data(), x.data(), x.data());
      for (size_t i = 0; i < x.size(); ++i) {
        if (std::isnan(before[i])) {
          EXPECT_TRUE(std::isnan(x[i])) << i;
        } else if (std::abs(before[i]) > 1.0f) {
          const double want = Value(activation, before[i]);
          EXPECT_TRUE(x[i] == want || std::abs(x[i] - want) < 1e-30) << i << ": " << x[i];
        }
      }
      std::vector<float> dx(x.size(), 1.0f);
      const std::vector<float>& kept = NeedsInput(activation) ? before : x;
      GetParam().activate_backward(activation, dx.size(), kept.data(), dx.data());
      for (size_t i = 0; i < x.size(); ++i) {
        if (std::isnan(before[i])) continue;
        EXPECT_LT(std::abs(dx[i]), 1.2f) << "a derivative at " << before[i];
      }
    }
  }
}

TEST_P(ActivationTest, BackwardMultipliesByTheDerivativeOfTheActivation) {
  // The quotient's error: step^2 / 6 times a third derivative below 2, and the rounding of two values below 16.
  constexpr double kStep = 0x1p-14;
  constexpr double kQuotientError = kStep * kStep / 3 + 16 * 0x1p-53 / kStep;
  for (const Activation activation : Activations()) {
    for (const size_t n : kSizes) {
      std::vector<float> x = Random(n, 12.0f);
      for (float& value : x) value += value < 0 ? -0.01f : 0.01f;  // A step must not cross a kink at 0.
      const std::vector<float> bias(n, 0.0f);
      std::vector<float> y(n, kNan);
      GetParam().activate(activation, n > 0, n, bias.data(), x.data(), y.data());
      const std::vector<float> dy = Random(n);
      std::vector<Exact> want(n);
      for (size_t i = 0; i < n; ++i) {
        const double quotient = (Value(activation, x[i] + kStep) - Value(activation, x[i] - kStep)) / (2 * kStep);
        const double error = kQuotientError + ToleranceOf(activation, x[i], /*derivative=*/true) + 2 * kUnitRoundoff;
        want[i].SetValue(dy[i] * quotient, std::abs(dy[i]) * error);
      }
      std::vector<float> dx = dy;
      GetParam().activate_backward(activation, n, NeedsInput(activation) ? x.data() : y.data(), dx.data());
      ExpectClose(dx, want, std::to_string(static_cast<int>(activation)) + " " + std::to_string(n));
    }
  }
}

TEST_P(ActivationTest, ReluBackwardPassesTheGradientWhereTheOutputIsPositive) {
  for (const size_t n : kSizes) {
    std::vector<float> y = Random(n);
    for (size_t i = 0; i < n; i += 3) y[i] = 0.0f;
    std::vector<float> dx = Random(n);
    std::vector<float> want = dx;
    for (size_t i = 0; i < n; ++i) want[i] = y[i] > 0 ? dx[i] : 0.0f;
    GetParam().activate_backward(Activation::kRelu, n, y.data(), dx.data());
    ExpectEqual(dx, want, std::to_string(n));
  }
}

TEST_P(ActivationTest, DropoutZeroesTheGivenShareAndScalesTheOthers) {
  constexpr size_t kCount = 100003;
  for (const float rate : {0.1f, 0.5f, 0.75f}) {
    std::vector<float> x(kCount, 3.0f);
    GetParam().dropout(kCount, rate, 7, x.data());
    size_t zeros = 0;
    for (const float value : x) {
      if (value == 0.0f) {
        ++zeros;
      } else {
        ASSERT_EQ(value, 3.0f * (1.0f / (1.0f - rate)));
      }
    }
    // A binomial count is within five standard deviations of its mean but for one seed in a million; the seed is fixed.
    const double deviation = std::sqrt(kCount * rate * (1.0 - rate));
    EXPECT_NEAR(static_cast<double>(zeros), kCount * static_cast<double>(rate), 5 * deviation) << rate;
  }
}

TEST_P(ActivationTest, DropoutFollowsFromSeedAndIndexAlone) {
  constexpr size_t kCount = 1000;
  std::vector<float> x = Random(kCount);
  for (float& value : x) value += value < 0 ? -1.0f : 1.0f;
  std::vector<float> dropped = x, again(kCount, 1.0f), other(kCount, 1.0f);
  GetParam().dropout(kCount, 0.5f, 1, dropped.data());
  GetParam().dropout(kCount, 0.5f, 1, again.data());
  GetParam().dropout(kCount, 0.5f, 2, other.data());
  size_t same_as_other = 0, same_as_neighbour = 0;
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(dropped[i] == 0.0f, again[i] == 0.0f) << i;
    EXPECT_EQ(dropped[i], x[i] * again[i]) << i;
    same_as_other += again[i] == other[i];
    if (i > 0) same_as_neighbour += again[i] == again[i - 1];
  }
  // Independent fates agree half the time; 5 standard deviations, as above.
  const double deviations = 5 * std::sqrt(kCount * 0.25);
  EXPECT_NEAR(static_cast<double>(same_as_other), kCount / 2.0, deviations);
  EXPECT_NEAR(static_cast<double>(same_as_neighbour), kCount / 2.0, deviations);
  // Shorter arrays, which end in other vectors, share the beginning.
  for (const size_t n : kSizes) {
    std::vector<float> shorter(x.begin(), x.begin() + n);
    GetParam().dropout(n, 0.5f, 1, shorter.data());
    ExpectEqual(shorter, std::vector<float>(dropped.begin(), dropped.begin() + n), std::to_string(n));
  }
}

TEST_P(ActivationTest, DropoutOfNothingKeepsAllAndDropoutOfAllKeepsNothing) {
  const std::vector<float> x = Random(65);
  std::vector<float> kept = x, gone = x;
  GetParam().dropout(65, 0.0f, 1, kept.data());
  GetParam().dropout(65, 1.0f, 1, gone.data());
  ExpectEqual(kept, x, "rate 0");
  ExpectEqual(gone, std::vector<float>(65, 0.0f), "rate 1");
}

TEST_P(ActivationTest, DropoutIsTheSameOnEveryBackend) {
  // The fates as activation.cc defines them, written out one by one.
  constexpr uint64_t kDropoutSeed = 42;
  constexpr float kRate = 0.3f;
  const auto mix64 = [](uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  const auto mix32 = [](uint32_t x) {
    x = (x ^ (x >> 16)) * 0x21f0aaadu;
    x = (x ^ (x >> 15)) * 0xd35a2d97u;
    return x ^ (x >> 15);
  };
  const uint64_t key = mix64(mix64(kDropoutSeed));
  std::vector<float> x(1001, 1.0f);
  std::vector<float> want = x;
  for (uint32_t i = 0; i < want.size(); ++i) {
    const uint32_t hash = mix32(mix32(i ^ static_cast<uint32_t>(key)) + static_cast<uint32_t>(key >> 32));
    want[i] = hash < static_cast<double>(kRate) * 0x1p32 ? 0.0f : 1.0f / (1.0f - kRate);
  }
  GetParam().dropout(x.size(), kRate, kDropoutSeed, x.data());
  ExpectEqual(x, want, "dropout");
}

TEST_P(ActivationTest, SumsColumnsOverWhatWasThere) {
  ForShapes([&](size_t rows, size_t cols, const std::string& name) {
    const std::vector<float> x = Random(rows * cols);
    std::vector<float> sums(cols, kNan);
    std::vector<Exact> want(cols);
    for (size_t i = 0; i < x.size(); ++i) want[i % cols].Add(x[i], 0);
    GetParam().column_sums(rows, cols, x.data(), sums.data());
    ExpectClose(sums, want, name);
  });
}

TEST_P(ActivationTest, SumsColumnsOfManyRows) {
  for (const auto& [rows, cols] : {std::pair<size_t, size_t>{20000, 1}, {5003, 10}, {1025, 70}}) {
    const std::vector<float> x = Random(rows * cols);
    std::vector<float> sums(cols, kNan), again(cols, kNan);
    std::vector<Exact> want(cols);
    for (size_t i = 0; i < x.size(); ++i) want[i % cols].Add(x[i], 0);
    GetParam().column_sums(rows, cols, x.data(), sums.data());
    GetParam().column_sums(rows, cols, x.data(), again.data());
    ExpectClose(sums, want, std::to_string(rows) + "x" + std::to_string(cols));
    ExpectEqual(again, sums, "again");
  }
}

TEST_P(ActivationTest, AxpyAddsAMultiple) {
  for (const size_t n : kSizes) {
    const std::vector<float> x = Random(n);
    std::vector<float> y = Random(n);
    std::vector<Exact> want;
    for (size_t i = 0; i < n; ++i) {
      want.emplace_back(y[i]);
      want.back().Add(static_cast<double>(-0.3f) * x[i]);
    }
    GetParam().axpy(n, -0.3f, x.data(), y.data());
    ExpectClose(y, want, std::to_string(n));
  }
}

TEST_P(ActivationTest, MultiplyAddAddsProductsOfElements) {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{7}, size_t{65}, size_t{1030}}) {
    const std::vector<float> x = Random(n), y = Random(n);
    std::vector<float> z = Random(n), squares = z;
    std::vector<Exact> want, want_squares;
    for (size_t i = 0; i < n; ++i) {
      want.emplace_back(z[i]);
      want.back().Add(static_cast<double>(x[i]) * y[i]);
      want_squares.emplace_back(z[i]);
      want_squares.back().Add(static_cast<double>(x[i]) * x[i]);
    }
    GetParam().multiply_add(n, x.data(), y.data(), z.data());
    ExpectClose(z, want, std::to_string(n));
    GetParam().multiply_add(n, x.data(), x.data(), squares.data());
    ExpectClose(squares, want_squares, std::to_string(n));
  }
}

TEST_P(ActivationTest, CopiesColumnsIntoAWiderMatrixAndBack) {
  ForShapes([&](size_t rows, size_t cols, const std::string& name) {
    constexpr size_t kCol = 3;
    const size_t stride = cols + 5;
    const std::vector<float> x = Random(rows * cols);
    std::vector<float> wide = Random(rows * stride);
    std::vector<float> want = wide;
    for (size_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < cols; ++c) want[r * stride + kCol + c] = x[r * cols + c];
    }
    GetParam().copy_columns(rows, cols, x.data(), stride, kCol, wide.data());
    ExpectEqual(wide, want, name);
    std::vector<float> back(rows * cols, kNan);
    GetParam().extract_columns(rows, cols, wide.data(), stride, kCol, back.data());
    ExpectEqual(back, x, name);
  });
}

LODESTONE_ON_EVERY_BACKEND(ActivationTest);

}  // namespace
}  // namespace lodestone::kernels
