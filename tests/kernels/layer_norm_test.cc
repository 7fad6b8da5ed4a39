#include "kernels/layer_norm.h"

#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/backend.h"
#include "tests/kernels/exact.h"

namespace lodestone::kernels {
namespace {

constexpr float kEpsilon = 1e-5f;

class LayerNormTest : public KernelTest {
 protected:
  // One row in double.
  static std::vector<double> Normalized(const std::vector<double>& x, double* inverse) {
    double mean = 0, variance = 0;
    for (const double value : x) mean += value / static_cast<double>(x.size());
    for (const double value : x) variance += (value - mean) * (value - mean) / static_cast<double>(x.size());
    *inverse = 1 / std::sqrt(variance + kEpsilon);
    std::vector<double> y;
    for (const double value : x) y.push_back((value - mean) * *inverse);
    return y;
  }
  static std::vector<double> Row(const std::vector<float>& x, size_t row, size_t cols) {
    return {x.begin() + row * cols, x.begin() + (row + 1) * cols};
  }
};

// Numbers are below 4. The mean is a sum of `cols` of them, off by (cols + 2) u 4, and differences from it by as much:
// times the inverse deviation, what outputs are off by. The inverse is off by as much in relation to itself, and
// outputs are at most sqrt(cols).
double ToleranceOf(size_t cols, double inverse) {
  const double relative = 1.01 * kUnitRoundoff * (static_cast<double>(cols) + 8) * 4 * inverse;
  return 2 * relative * (1 + std::sqrt(static_cast<double>(cols)));
}

TEST_P(LayerNormTest, GivesEveryRowTheMeanZeroAndTheVarianceOne) {
  for (const size_t rows : kSizes) {
    for (const size_t cols : kSizes) {
      const std::vector<float> before = Random(rows * cols, 4.0f);
      std::vector<float> x = before, inverse(rows, NAN);
      GetParam().layer_norm(rows, cols, kEpsilon, x.data(), inverse.data());
      for (size_t r = 0; cols > 0 && r < rows; ++r) {
        double want_inverse = 0;
        const std::vector<double> want = Normalized(Row(before, r, cols), &want_inverse);
        const double tolerance = ToleranceOf(cols, want_inverse);
        ASSERT_NEAR(inverse[r], want_inverse, tolerance * want_inverse) << rows << "x" << cols;
        for (size_t c = 0; c < cols; ++c) ASSERT_NEAR(x[r * cols + c], want[c], tolerance) << rows << "x" << cols;
      }
    }
  }
}

TEST_P(LayerNormTest, ARowOfEqualNumbersBecomesZero) {
  std::vector<float> x(70, 3.0f), inverse(2);
  GetParam().layer_norm(2, 35, kEpsilon, x.data(), inverse.data());
  for (const float value : x) EXPECT_NEAR(value, 0, 35 * 3 * kUnitRoundoff / std::sqrt(kEpsilon));
}

TEST_P(LayerNormTest, BackwardIsTheDifferenceQuotientOfASumOfItsOutputs) {
  // The third derivative of y along x is at most about 10 inverse^3 here, and y is exact to 2^-50.
  constexpr double kStep = 0x1p-14;
  for (const size_t cols : {2, 3, 8, 33, 65}) {
    const size_t rows = 3;
    const std::vector<float> x = Random(rows * cols, 4.0f), dy = Random(rows * cols);
    std::vector<float> y = x, inverse(rows), dx = dy;
    GetParam().layer_norm(rows, cols, kEpsilon, y.data(), inverse.data());
    GetParam().layer_norm_backward(rows, cols, y.data(), inverse.data(), dx.data());
    for (size_t r = 0; r < rows; ++r) {
      double scale = 0;
      const auto sum_at = [&](size_t c, double step) {
        std::vector<double> row = Row(x, r, cols);
        row[c] += step;
        const std::vector<double> out = Normalized(row, &scale);
        double sum = 0;
        for (size_t i = 0; i < cols; ++i) sum += dy[r * cols + i] * out[i];
        return sum;
      };
      for (size_t c = 0; c < cols; ++c) {
        const double quotient = (sum_at(c, kStep) - sum_at(c, -kStep)) / (2 * kStep);
        const double quotient_error = kStep * kStep * 10 * scale * scale * scale * static_cast<double>(cols);
        ASSERT_NEAR(dx[r * cols + c], quotient, 4 * ToleranceOf(cols, scale) * scale + quotient_error)
            << cols << " columns";
      }
    }
  }
}

LODESTONE_ON_EVERY_BACKEND(LayerNormTest);

}  // namespace
}  // namespace lodestone::kernels
