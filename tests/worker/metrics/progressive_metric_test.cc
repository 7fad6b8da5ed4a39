#include "worker/metrics/progressive_metric.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

using Kind = EvaluationMetrics::Kind;

constexpr uint32_t kSeed = 11;
constexpr size_t kMax = ProgressiveMetric::kSamplesMax;
constexpr Kind kKinds[] = {Kind::kBinary, Kind::kMulticlass, Kind::kRegression};

struct Samples {
  std::vector<float> predictions;
  std::vector<float> labels;
};

// Predictions that are right more often than not.
Samples MakeSamples(Kind kind, size_t n) {
  std::mt19937 engine(kSeed);
  Samples samples;
  for (size_t i = 0; i < n; ++i) {
    const float label = static_cast<float>(engine() % 2), wrong = static_cast<float>(engine() % 1000) / 1500;
    samples.labels.push_back(label);
    const float probability = label > 0 ? 1 - wrong : wrong;
    samples.predictions.push_back(kind == Kind::kMulticlass ? std::round(probability) : probability);
  }
  return samples;
}

void Add(ProgressiveMetric* metric, const std::vector<float>& predictions, const std::vector<float>& labels) {
  ASSERT_EQ(predictions.size(), labels.size());
  metric->Add(predictions.size(), predictions.data(), labels.data());
}

TEST(ProgressiveMetric, IsAsComputedByHand) {
  ProgressiveMetric auc(Kind::kBinary), accuracy(Kind::kMulticlass), rmse(Kind::kRegression);
  // Of the 2 * 2 pairs the positives win three.
  Add(&auc, {0.1f, 0.4f}, {0, 0});
  Add(&auc, {0.35f, 0.8f}, {1, 1});
  auc.Update();
  EXPECT_EQ(auc.value().name, "auc");
  EXPECT_EQ(auc.value().value, 0.75);
  Add(&accuracy, {2, 0, 1, 7}, {2, 0, 0, 7});
  accuracy.Update();
  EXPECT_EQ(accuracy.value().name, "accuracy");
  EXPECT_EQ(accuracy.value().value, 0.75);
  Add(&rmse, {1, -2}, {1, 2});
  rmse.Update();
  EXPECT_EQ(rmse.value().name, "rmse");
  EXPECT_EQ(rmse.value().value, std::sqrt(8.0));
}

TEST(ProgressiveMetric, IsOfTheLatestSamplesWhateverTheBatches) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  for (const Kind kind : kKinds) {
    const Samples all = MakeSamples(kind, 5 * kMax);
    for (const size_t batch : {size_t{1}, size_t{100}, size_t{3001}, kMax, 2 * kMax + 1}) {
      ProgressiveMetric metric(kind);
      for (size_t begin = 0; begin < all.labels.size();) {
        const size_t n = std::min(batch, all.labels.size() - begin);
        metric.Add(n, all.predictions.data() + begin, all.labels.data() + begin);
        begin += n;
        if (begin != all.labels.size() && begin / kMax == (begin - n) / kMax) continue;
        // What the evaluation would say of the same.
        const size_t latest = std::min(begin, kMax), from = begin - latest;
        EvaluationMetrics expected(kind);
        expected.Add(latest, all.predictions.data() + from, all.labels.data() + from, 0);
        const NamedMetric judged = JudgedBy(kind, expected.Finish());
        metric.Update();
        EXPECT_EQ(metric.value().name, judged.name);
        // Sums of at most kMax squares are taken in another order; counts are exact.
        EXPECT_NEAR(metric.value().value, judged.value, kind == Kind::kRegression ? kMax * 0x1p-52 : 0)
            << "batches of " << batch << ", after " << begin;
      }
    }
  }
}

TEST(ProgressiveMetric, HasNoNameUntilThereIsOne) {
  for (const Kind kind : kKinds) {
    ProgressiveMetric metric(kind);
    metric.Update();
    EXPECT_EQ(metric.value().name, "");
    Add(&metric, {}, {});
    metric.Update();
    EXPECT_EQ(metric.value().name, "");
  }
  ProgressiveMetric metric(Kind::kBinary);
  Add(&metric, {0.1f, 0.2f}, {0, 0});
  metric.Update();
  EXPECT_EQ(metric.value().name, "") << "there is no pair of classes";
  Add(&metric, {0.3f}, {1});
  EXPECT_EQ(metric.value().name, "") << "it is computed when asked to be";
  metric.Update();
  EXPECT_EQ(metric.value().name, "auc");
}

TEST(ProgressiveMetric, StaysAsItIsWhileAllSamplesHaveOneClass) {
  ProgressiveMetric metric(Kind::kBinary);
  Add(&metric, {0.1f, 0.4f, 0.35f, 0.8f}, {0, 0, 1, 1});
  metric.Update();
  const std::vector<float> predictions(kMax, 0.5f), clicks(kMax, 1);
  Add(&metric, predictions, clicks);
  metric.Update();
  EXPECT_EQ(metric.value().name, "auc");
  EXPECT_EQ(metric.value().value, 0.75);
  Add(&metric, {0.75f}, {0});
  metric.Update();
  EXPECT_EQ(metric.value().value, 0);
}

TEST(ProgressiveMetric, IsNeverOtherThanANumber) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  ProgressiveMetric auc(Kind::kBinary), rmse(Kind::kRegression);
  Add(&auc, {kNan, 0.5f}, {0, 1});
  auc.Update();
  EXPECT_EQ(auc.value().name, "");
  Add(&rmse, {1}, {2});
  rmse.Update();
  Add(&rmse, {kInfinity}, {2});
  rmse.Update();
  EXPECT_EQ(rmse.value().value, 1);
}

TEST(ProgressiveMetric, SamplesCountTheirWeights) {
  ProgressiveMetric metric(Kind::kRegression);
  const std::vector<float> predictions = {1, 2}, labels = {0, 0}, weights = {3, 1};
  metric.Add(2, predictions.data(), labels.data(), weights.data());
  metric.Update();
  EXPECT_NEAR(metric.value().value, std::sqrt((3 * 1 + 4) / 4.0), 1e-12);
  Add(&metric, {3}, {0});  // Without a weight it counts one.
  metric.Update();
  EXPECT_NEAR(metric.value().value, std::sqrt((3 * 1 + 4 + 9) / 5.0), 1e-12);
}

}  // namespace
}  // namespace lodestone::worker
