#include "kernels/loss.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/backend.h"
#include "tests/kernels/exact.h"
#include "tests/kernels/special_values.h"

namespace lodestone::kernels {
namespace {

constexpr float kLogitMax = 4.0f;
constexpr double kStep = 0x1p-13;  // Of central differences.

// Both losses' third derivative along a logit is p (1 - p) (1 - 2 p) <= 0.0963; the values, at most 13, are sums of at
// most `terms` numbers in double.
double DifferenceError(size_t rows, size_t terms) {
  return (kStep * kStep * 0.0963 / 6 + static_cast<double>(terms + 8) * 0x1p-53 * 13 / kStep) /
         static_cast<double>(rows);
}

double Logistic(double z, double y) { return std::max(z, 0.0) - z * y + std::log1p(std::exp(-std::abs(z))); }

double Softmax(const std::vector<double>& z, size_t label) {
  const double largest = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (const double value : z) sum += std::exp(value - largest);
  return std::log(sum) + largest - z[label];
}

class LossTest : public KernelTest {
 protected:
  std::vector<float> RandomLabels(size_t rows, size_t classes) {
    const std::vector<uint32_t> labels = RandomIndices(rows, static_cast<uint32_t>(classes));
    return {labels.begin(), labels.end()};
  }

  std::vector<double> Row(const std::vector<float>& logits, size_t row, size_t classes) {
    return {logits.begin() + row * classes, logits.begin() + (row + 1) * classes};
  }

  void CheckSoftmax(size_t rows, size_t classes) {
    const std::string name = std::to_string(rows) + "x" + std::to_string(classes);
    const std::vector<float> logits = Random(rows * classes, kLogitMax);
    const std::vector<float> labels = RandomLabels(rows, classes);
    std::vector<float> dlogits(rows * classes, kNan), predictions(rows, kNan), largest(rows);
    const double loss = GetParam().softmax_loss(rows, classes, logits.data(), labels.data(), nullptr, dlogits.data(),
                                                predictions.data());
    double want_loss = 0;
    std::vector<Exact> want(rows * classes);
    for (size_t r = 0; r < rows; ++r) {
      const std::vector<double> z = Row(logits, r, classes);
      largest[r] = static_cast<float>(std::max_element(z.begin(), z.end()) - z.begin());
      want_loss += Softmax(z, static_cast<size_t>(labels[r]));
      for (size_t c = 0; c < classes; ++c) {
        // z - max z is at most 8 and rounds once: 8 u in the exponential, which itself is off by 2 u, and as much in
        // the sum of them; four more operations follow.
        want[r * classes + c].Add(std::exp(-Softmax(z, c)) / rows, 2 * (8 + 2) + 4);
        if (c == labels[r]) want[r * classes + c].Add(-1.0 / rows, 2 * (8 + 2) + 4);
      }
    }
    ExpectClose(dlogits, want, name);
    ExpectEqual(predictions, largest, name);
    // The logarithm of a sum that is off by (8 + 2) u, as above; the rest is double.
    EXPECT_NEAR(loss, want_loss, 1.01 * (8 + 2) * kUnitRoundoff * rows) << name;
    EXPECT_EQ(loss, GetParam().softmax_loss(rows, classes, logits.data(), labels.data(), nullptr, nullptr, nullptr))
        << name;
  }
};

TEST_P(LossTest, LogisticLossAndProbabilitiesAreRight) {
  for (const size_t rows : kSizes) {
    const std::vector<float> logits = Random(rows, kLogitMax);
    const std::vector<float> labels = RandomLabels(rows, 2);
    std::vector<float> predictions(rows, kNan);
    const double loss =
        GetParam().logistic_loss(rows, logits.data(), labels.data(), nullptr, nullptr, predictions.data());
    double want_loss = 0;
    std::vector<Exact> want(rows);
    for (size_t r = 0; r < rows; ++r) {
      want_loss += Logistic(logits[r], labels[r]);
      want[r].Add(std::exp(-Logistic(logits[r], 1)), 2 * 2 + 3);  // e^z twice, 2 u each; +, /; the start.
    }
    ExpectClose(predictions, want, std::to_string(rows));
    // e^z is off by 2 u, the logarithm by 4 u, an addition by u; all terms are positive.
    EXPECT_NEAR(loss, want_loss, 1.01 * 7 * kUnitRoundoff * want_loss) << rows;
    EXPECT_EQ(loss, GetParam().logistic_loss(rows, logits.data(), labels.data(), nullptr, nullptr, nullptr)) << rows;
  }
}

TEST_P(LossTest, LogisticGradientIsTheDerivativeOfTheMean) {
  for (const size_t rows : kSizes) {
    const std::vector<float> logits = Random(rows, kLogitMax);
    const std::vector<float> labels = RandomLabels(rows, 2);
    std::vector<float> dlogits(rows, kNan);
    GetParam().logistic_loss(rows, logits.data(), labels.data(), nullptr, dlogits.data(), nullptr);
    std::vector<Exact> want(rows);
    for (size_t r = 0; r < rows; ++r) {
      std::vector<double> z = {logits[r]};
      const auto loss = [&](const std::vector<double>& at) { return Logistic(at[0], labels[r]) / rows; };
      // Seven operations for the probability, as above, then -, 1 / rows, *.
      want[r].AddWithMagnitude(0, (std::exp(-Logistic(logits[r], 1)) + labels[r]) / rows, 7 + 3);
      want[r].SetValue(CentralDifference(loss, z, 0, kStep), DifferenceError(rows, 3));
    }
    ExpectClose(dlogits, want, std::to_string(rows));
  }
}

TEST_P(LossTest, LogisticLossDoesNotOverflow) {
  const std::vector<float> logits = {1e4f, -1e4f, 1e4f, -1e4f, 3e38f, -3e38f, 100.0f, -100.0f, 0.0f};
  const std::vector<float> labels = {0, 1, 1, 0, 0, 1, 0, 1, 0};
  const std::vector<double> losses = {1e4, 1e4, 0, 0, 3e38f, 3e38f, 100, 100, std::log(2.0)};
  const std::vector<float> gradients = {1, -1, 0, 0, 1, -1, 1, -1, 0.5f};
  for (size_t i = 0; i < logits.size(); ++i) {
    // Alone, and as nine equal rows, which fill vectors.
    for (const size_t rows : {1, 9}) {
      const std::vector<float> z(rows, logits[i]), y(rows, labels[i]);
      std::vector<float> dz(rows);
      const double loss = GetParam().logistic_loss(rows, z.data(), y.data(), nullptr, dz.data(), nullptr);
      EXPECT_NEAR(loss, rows * losses[i], 8 * kUnitRoundoff * rows * losses[i] + FLT_MIN) << logits[i];
      for (const float gradient : dz) EXPECT_NEAR(gradient, gradients[i] / rows, 8 * kUnitRoundoff) << logits[i];
    }
  }
}

// Weights that are powers of two, or 0, round nothing.
TEST_P(LossTest, AWeightMultipliesItsRowsLossAndGradient) {
  constexpr size_t kRows = 37, kClasses = 5;
  const std::vector<float> powers = {0, 0.5f, 1, 2, 4};
  std::vector<float> weights;
  for (size_t r = 0; r < kRows; ++r) weights.push_back(powers[r % powers.size()]);
  const auto check = [&](const char* name, size_t width, size_t classes, const auto& loss) {
    SCOPED_TRACE(name);
    const std::vector<float> logits = Random(kRows * width, kLogitMax), labels = RandomLabels(kRows, classes);
    std::vector<float> plain(kRows * width, kNan), weighted(kRows * width, kNan), one(width), said(kRows), told(kRows);
    loss(kRows, logits.data(), labels.data(), nullptr, plain.data(), said.data());
    const double sum = loss(kRows, logits.data(), labels.data(), weights.data(), weighted.data(), told.data());
    double want = 0, magnitude = 0;
    for (size_t r = 0; r < kRows; ++r) {
      const double alone = loss(1, logits.data() + r * width, labels.data() + r, nullptr, one.data(), nullptr);
      want += weights[r] * alone;
      magnitude += weights[r] * std::abs(alone);
      for (size_t c = 0; c < width; ++c) EXPECT_EQ(weighted[r * width + c], weights[r] * plain[r * width + c]) << r;
    }
    // Vectors and the rest of a row, or a warp, may round a row's loss differently: by 7 u, as above.
    EXPECT_NEAR(sum, want, 2 * (8 + 2) * kUnitRoundoff * (magnitude + kRows));
    EXPECT_EQ(said, told);
  };
  check("logistic", 1, 2, GetParam().logistic_loss);
  check("squared", 1, 2, GetParam().squared_loss);
  check("softmax", kClasses, kClasses,
        [&](size_t rows, const float* logits, const float* labels, const float* w, float* dlogits, float* predictions) {
          return GetParam().softmax_loss(rows, kClasses, logits, labels, w, dlogits, predictions);
        });
}

TEST_P(LossTest, NanStaysNan) {
  for (size_t bad = 0; bad < 19; ++bad) {
    std::vector<float> logits = Random(19);
    const std::vector<float> labels = RandomLabels(19, 2);
    logits[bad] = kNan;
    std::vector<float> dlogits(19);
    EXPECT_TRUE(
        std::isnan(GetParam().logistic_loss(19, logits.data(), labels.data(), nullptr, dlogits.data(), nullptr)));
    for (size_t i = 0; i < 19; ++i) EXPECT_EQ(std::isnan(dlogits[i]), i == bad);
    EXPECT_TRUE(
        std::isnan(GetParam().squared_loss(19, logits.data(), labels.data(), nullptr, dlogits.data(), nullptr)));
    for (size_t i = 0; i < 19; ++i) EXPECT_EQ(std::isnan(dlogits[i]), i == bad);
    // One row of 19 classes: all of its gradient is lost.
    const float label = 3;
    EXPECT_TRUE(std::isnan(GetParam().softmax_loss(1, 19, logits.data(), &label, nullptr, dlogits.data(), nullptr)))
        << bad;
    for (size_t i = 0; i < 19; ++i) EXPECT_TRUE(std::isnan(dlogits[i])) << bad << " " << i;
  }
}

TEST_P(LossTest, SoftmaxLossGradientAndPredictionsAreRight) {
  for (const size_t rows : kSizes) {
    for (const size_t classes : kSizes) {
      if (classes > 0) CheckSoftmax(rows, classes);
    }
  }
}

TEST_P(LossTest, SoftmaxIsRightBeyondItsBuffer) {
  CheckSoftmax(1000, 10);
  CheckSoftmax(3, 5001);
}

TEST_P(LossTest, SoftmaxGradientIsTheDerivativeOfTheMean) {
  constexpr size_t kRows = 5;
  for (const size_t classes : {1, 2, 3, 10, 17, 33}) {
    const std::vector<float> logits = Random(kRows * classes, kLogitMax);
    const std::vector<float> labels = RandomLabels(kRows, classes);
    std::vector<float> dlogits(kRows * classes, kNan);
    GetParam().softmax_loss(kRows, classes, logits.data(), labels.data(), nullptr, dlogits.data(), nullptr);
    std::vector<Exact> want(kRows * classes);
    for (size_t r = 0; r < kRows; ++r) {
      std::vector<double> z = Row(logits, r, classes);
      const size_t label = static_cast<size_t>(labels[r]);
      const auto loss = [&](const std::vector<double>& at) { return Softmax(at, label) / kRows; };
      for (size_t c = 0; c < classes; ++c) {
        Exact& derivative = want[r * classes + c];
        derivative.AddWithMagnitude(0, (std::exp(-Softmax(z, c)) + (c == label)) / kRows, 2 * (8 + 2) + 4);
        derivative.SetValue(CentralDifference(loss, z, c, kStep), DifferenceError(kRows, classes + 3));
      }
    }
    ExpectClose(dlogits, want, std::to_string(classes));
  }
}

TEST_P(LossTest, SoftmaxDoesNotOverflow) {
  const std::vector<float> logits = {1e4f, -1e4f, 0, -3e38f, 1e38f, 1e38f};
  const std::vector<float> labels = {0, 2};
  std::vector<float> dlogits(6), predictions(2);
  const double loss =
      GetParam().softmax_loss(2, 3, logits.data(), labels.data(), nullptr, dlogits.data(), predictions.data());
  EXPECT_NEAR(loss, std::log(2.0), 2 * 2 * kUnitRoundoff);
  const std::vector<float> want = {0, 0, 0, 0, 0.25f, -0.25f};
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(dlogits[i], want[i], 4 * kUnitRoundoff) << i;
  EXPECT_EQ(predictions[0], 0);
  EXPECT_EQ(predictions[1], 1) << "the first of equals";
}

TEST_P(LossTest, SoftmaxLabelOutsideTheClassesGivesNan) {
  const std::vector<float> logits(9, 0.0f);
  for (const float bad : {-1.0f, 3.0f, 1e30f, kNan}) {
    const std::vector<float> labels = {1, bad, 2};
    std::vector<float> dlogits(9);
    EXPECT_TRUE(
        std::isnan(GetParam().softmax_loss(3, 3, logits.data(), labels.data(), nullptr, dlogits.data(), nullptr)));
    for (size_t i = 0; i < 9; ++i) EXPECT_EQ(std::isnan(dlogits[i]), i / 3 == 1) << bad;
  }
}

TEST_P(LossTest, SquaredLossAndItsGradientAreRight) {
  for (const size_t rows : kSizes) {
    const std::vector<float> logits = Random(rows, kLogitMax);
    const std::vector<float> labels = Random(rows, kLogitMax);
    std::vector<float> dlogits(rows, kNan), predictions(rows, kNan);
    const double loss =
        GetParam().squared_loss(rows, logits.data(), labels.data(), nullptr, dlogits.data(), predictions.data());
    double want_loss = 0;
    std::vector<Exact> want(rows);
    for (size_t r = 0; r < rows; ++r) {
      const double label = labels[r];
      const auto half_square = [&](const std::vector<double>& z) { return (z[0] - label) * (z[0] - label) / 2; };
      std::vector<double> z = {logits[r]};
      want_loss += half_square(z);
      want[r].Add((z[0] - label) / rows, 3);
      // Of degree two, so exact but for the two values' rounding.
      want[r].SetValue(CentralDifference(half_square, z, 0, 0.125) / rows, 8 * 0x1p-53 * 64 / 0.125);
    }
    ExpectClose(dlogits, want, std::to_string(rows));
    ExpectEqual(predictions, logits, std::to_string(rows));
    EXPECT_NEAR(loss, want_loss, 1.01 * 2 * kUnitRoundoff * want_loss) << rows;  // The difference's u, squared.
    EXPECT_EQ(loss, GetParam().squared_loss(rows, logits.data(), labels.data(), nullptr, nullptr, nullptr)) << rows;
  }
}

TEST_P(LossTest, SumsOverMoreRowsThanAGridHasThreads) {
  // Every row's loss is 1/2, an exact sum.
  constexpr size_t kRows = 131'079;
  const std::vector<float> logits(kRows, 1.0f), labels(kRows, 0.0f);
  std::vector<float> dlogits(kRows, kNan), predictions(kRows, kNan);
  EXPECT_EQ(GetParam().squared_loss(kRows, logits.data(), labels.data(), nullptr, dlogits.data(), predictions.data()),
            kRows / 2.0);
  ExpectEqual(dlogits, std::vector<float>(kRows, 1.0f * (1.0f / kRows)), "gradients");
  ExpectEqual(predictions, logits, "predictions");
  // Two equal classes: ln 2 each.
  constexpr size_t kSoftmaxRows = 65'543;
  const std::vector<float> equal(2 * kSoftmaxRows, 3.0f), classes(kSoftmaxRows, 1.0f);
  EXPECT_NEAR(GetParam().softmax_loss(kSoftmaxRows, 2, equal.data(), classes.data(), nullptr, nullptr, nullptr),
              kSoftmaxRows * std::log(2.0), 1e-15 * kSoftmaxRows * kSoftmaxRows);
}

TEST_P(LossTest, LossOfNoRowsIsZero) {
  EXPECT_EQ(GetParam().logistic_loss(0, nullptr, nullptr, nullptr, nullptr, nullptr), 0.0);
  EXPECT_EQ(GetParam().softmax_loss(0, 10, nullptr, nullptr, nullptr, nullptr, nullptr), 0.0);
  EXPECT_EQ(GetParam().squared_loss(0, nullptr, nullptr, nullptr, nullptr, nullptr), 0.0);
}

TEST_P(LossTest, SumsOfManyLossesAreDouble) {
  // 2^24 + 1 cannot be counted in float.
  constexpr size_t kRows = 1 << 12;
  const std::vector<float> logits(kRows, 4096.0f + 1.0f), labels(kRows, 1.0f), zeros(kRows, 0.0f);
  EXPECT_EQ(GetParam().squared_loss(kRows, logits.data(), labels.data(), nullptr, nullptr, nullptr), 0x1p12 * 0x1p23);
  EXPECT_EQ(GetParam().logistic_loss(kRows, logits.data(), zeros.data(), nullptr, nullptr, nullptr), 0x1p12 * 4097);
}

LODESTONE_ON_EVERY_BACKEND(LossTest);

}  // namespace
}  // namespace lodestone::kernels
