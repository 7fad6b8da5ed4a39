#include "worker/metrics/loss_trend.h"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

using testing::HasSubstr;
using Kind = EvaluationMetrics::Kind;

constexpr uint64_t kSteps = 100, kBatch = 4;

// Steps with the labels 0, 1, 2, 3, the first half of them with the mean loss `before`, the others with `after`.
LossTrend Trained(Kind kind, const std::vector<double>& class_counts, double before, double after,
                  uint64_t steps = kSteps) {
  LossTrend trend(kind, class_counts, steps * kBatch);
  const std::vector<float> labels = {0, 1, 2, 3};
  for (uint64_t step = 0; step < steps; ++step) {
    trend.Step((step + 1) * kBatch, kBatch, labels.data(), kBatch * (step < steps / 2 ? before : after));
  }
  return trend;
}

TEST(LossTrend, TheBestConstantHasTheEntropyOfTheClasses) {
  // 1/4 ln 4 + 3/4 ln(4/3)
  EXPECT_NEAR(LossTrend(Kind::kBinary, {1, 3}, 1).constant_loss(), 0.5623351446, 1e-9);
  EXPECT_NEAR(LossTrend(Kind::kMulticlass, std::vector<double>(10, 7), 1).constant_loss(), std::log(10), 1e-12);
}

TEST(LossTrend, TheBestConstantHasHalfTheVarianceOfTheNumbers) {
  EXPECT_NEAR(Trained(Kind::kRegression, {}, 1, 1).constant_loss(), 1.25 / 2, 1e-12);
}

TEST(LossTrend, ComplainsOfALossThatStaysAtTheConstants) {
  const LossTrend trend = Trained(Kind::kMulticlass, {5, 5, 5, 5}, 1.5, 1.38);
  EXPECT_NEAR(*trend.last_loss(), 1.38, 1e-12);
  EXPECT_THAT(trend.Complaint(), HasSubstr("the training loss has not fallen: 1.38 over the last quarter of the "
                                           "samples, and a constant prediction has 1.386"));
  EXPECT_THAT(Trained(Kind::kRegression, {}, 1, 0.62).Complaint(), HasSubstr("has not fallen"));
}

TEST(LossTrend, ComplainsOfALossThatHasRisen) {
  EXPECT_THAT(Trained(Kind::kMulticlass, {5, 5, 5, 5}, 1, 1e6).Complaint(), HasSubstr("has not fallen"));
}

TEST(LossTrend, IsContentWithALossThatFell) {
  EXPECT_EQ(Trained(Kind::kMulticlass, {5, 5, 5, 5}, 1.4, 1.3).Complaint(), "");
  EXPECT_EQ(Trained(Kind::kRegression, {}, 0.7, 0.6).Complaint(), "");
}

TEST(LossTrend, AWeightOfTwoCountsAsTwoSamples) {
  const std::vector<float> labels = {0, 5, 5, 9}, once = {0, 5, 9}, weights = {1, 2, 1};
  LossTrend twice(Kind::kRegression, {}, 400), weighted(Kind::kRegression, {}, 400);
  for (uint64_t position = 0; position <= 400; position += 10) {
    twice.Step(position, 4, labels.data(), 6);
    weighted.Step(position, 3, once.data(), 6, weights.data());
  }
  EXPECT_NEAR(*weighted.last_loss(), *twice.last_loss(), 1e-12);
  EXPECT_NEAR(weighted.constant_loss(), twice.constant_loss(), 1e-12);
}

TEST(LossTrend, TheConstantsLossIsOfScaledLabelsWhereTheLossIs) {
  LossTrend trend(Kind::kRegression, {}, 4, /*label_deviation=*/2);
  const std::vector<float> labels = {0, 1, 2, 3};
  trend.Step(4, 4, labels.data(), 1);
  EXPECT_NEAR(trend.constant_loss(), 1.25 / 2 / 4, 1e-12);
}

TEST(LossTrend, SaysNothingOfAFewSteps) {
  const LossTrend trend = Trained(Kind::kMulticlass, {5, 5, 5, 5}, 2, 2, 20);
  EXPECT_FALSE(trend.last_loss().has_value());
  EXPECT_EQ(trend.Complaint(), "");
  EXPECT_EQ(LossTrend(Kind::kMulticlass, {5, 5}, 0).Complaint(), "");
}

}  // namespace
}  // namespace lodestone::worker
