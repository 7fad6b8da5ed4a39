#include "worker/metrics/evaluation_metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace lodestone::worker {
namespace {

using Kind = EvaluationMetrics::Kind;

EvaluationMetrics::Result Binary(const std::vector<float>& predictions, const std::vector<float>& labels,
                                 double loss_sum = 0) {
  EvaluationMetrics metrics(Kind::kBinary);
  metrics.Add(predictions.size(), predictions.data(), labels.data(), loss_sum);
  return metrics.Finish();
}

TEST(EvaluationMetrics, WithoutSamplesThereAreNoScores) {
  for (const Kind kind : {Kind::kBinary, Kind::kMulticlass, Kind::kRegression}) {
    EvaluationMetrics metrics(kind);
    metrics.Add(0, nullptr, nullptr, 0);
    const EvaluationMetrics::Result result = metrics.Finish();
    EXPECT_EQ(result.samples, 0u);
    EXPECT_EQ(result.loss, 0);
    EXPECT_FALSE(result.accuracy || result.auc || result.rmse);
  }
}

TEST(EvaluationMetrics, BinaryScoresAreAsComputedByHand) {
  // Of the 2 * 3 pairs, 0.9 beats all three negatives and 0.4 beats two: 5 / 6.
  const EvaluationMetrics::Result result = Binary({0.9f, 0.1f, 0.4f, 0.6f, 0.2f}, {1, 0, 1, 0, 0}, 2.5);
  EXPECT_EQ(result.samples, 5u);
  EXPECT_DOUBLE_EQ(result.loss, 0.5);
  EXPECT_DOUBLE_EQ(result.accuracy.value(), 0.6);
  EXPECT_DOUBLE_EQ(result.auc.value(), 5.0 / 6);
  EXPECT_FALSE(result.rmse.has_value());
}

TEST(EvaluationMetrics, OfSeveralLabelsAreThoseOfTheSamplesThatHaveEach) {
  // Sample 1 has no conversion. Probabilities are 0.75, 0.25 and 0.5.
  const float up = std::log(3.0f);
  const std::vector<float> logits = {up, 0, -up, up, 0, -up}, labels = {1, 0, 0, 1, 0, 0};
  const std::vector<float> label_weights = {1, 1, 1, 1, 0, 1};
  EvaluationMetrics metrics(Kind::kBinary, {"click", "conversion"});
  EvaluationMetrics other(Kind::kBinary, {"click", "conversion"});
  const auto add = [&](EvaluationMetrics* to) {
    to->Add(3, nullptr, labels.data(), 6,
            {.logits = logits.data(), .classes = 2, .label_weights = label_weights.data()});
  };
  add(&metrics);
  add(&other);
  metrics.Merge(other);
  const EvaluationMetrics::Result result = metrics.Finish();
  EXPECT_EQ(result.samples, 6u);
  EXPECT_EQ(result.loss, 2);
  EXPECT_FALSE(result.auc || result.accuracy);
  const auto value = [&](const std::string& name) {
    for (const NamedMetric& metric : MetricsOf(result)) {
      if (metric.name == name) return metric.value;
    }
    return std::nan("");
  };
  const double quarter = std::log(4 / 3.0), half = std::log(2.0);
  EXPECT_NEAR(value("click/loss"), (2 * quarter + half) / 3, 1e-6);
  EXPECT_EQ(value("click/auc"), 1);
  EXPECT_NEAR(value("conversion/loss"), (half + quarter) / 2, 1e-6) << "of two samples";
  EXPECT_EQ(value("conversion/auc"), 1);
  EXPECT_EQ(MetricsOf(result)[0].name, "loss");
  EXPECT_EQ(JudgedBy(Kind::kBinary, result).name, "loss");
  EXPECT_TRUE(LowerIsBetter({"conversion/loss", 1}));
  EXPECT_FALSE(LowerIsBetter({"loss/auc", 1}));
}

TEST(EvaluationMetrics, ALabelThatNoSampleHasIsNamedAndWithoutAnyLabelTheLossIsNoNumber) {
  const std::vector<float> logits = {1, 1, -1, -1}, labels = {1, 0, 0, 0}, none(4, 0.0f);
  const std::vector<float> clicks_only = {1, 1, 0, 0};
  EvaluationMetrics metrics(Kind::kBinary, {"click", "conversion"});
  const auto add = [&](const std::vector<float>& label_weights, double loss_sum) {
    metrics.Add(2, nullptr, labels.data(), loss_sum,
                {.logits = logits.data(), .classes = 2, .label_weights = label_weights.data()});
  };
  add(none, 0);
  EXPECT_TRUE(std::isnan(metrics.Finish().loss));
  EXPECT_EQ(metrics.Finish().missing_labels, (std::vector<std::string>{"click", "conversion"}));
  add(clicks_only, 4);
  EXPECT_EQ(metrics.Finish().loss, 1);
  EXPECT_EQ(metrics.Finish().missing_labels, std::vector<std::string>{"conversion"});
}

// NumPy: p = [.8, .4, .3, .1, .1], y = [1, 1, 0, 0, 0]; loss = -(y*log(p) + (1-y)*log(1-p)).mean() = 0.3413661;
// loss / -(.4*log(.4) + .6*log(.6)) = 0.5072216; p.mean() / y.mean() = 0.85.
TEST(EvaluationMetrics, NormalizedEntropyAndCalibrationAreAsComputedWithNumPy) {
  const std::vector<float> predictions = {0.8f, 0.4f, 0.3f, 0.1f, 0.1f}, labels = {1, 1, 0, 0, 0};
  double loss_sum = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    loss_sum -= std::log(labels[i] > 0 ? double{predictions[i]} : 1 - double{predictions[i]});
  }
  const EvaluationMetrics::Result result = Binary(predictions, labels, loss_sum);
  // The predictions are floats: relative errors of 2^-24 in them.
  constexpr double kTolerance = 1e-6;
  EXPECT_NEAR(result.loss, 0.3413661, kTolerance);
  EXPECT_NEAR(result.normalized_entropy.value(), 0.5072216, kTolerance);
  EXPECT_NEAR(result.calibration.value(), 0.85, kTolerance);
  EXPECT_FALSE(result.mae.has_value());
}

TEST(EvaluationMetrics, AConstantAtTheShareOfPositivesHasANormalizedEntropyAndACalibrationOfOne) {
  const double loss = -(0.25 * std::log(0.25) + 0.75 * std::log(0.75));
  const EvaluationMetrics::Result result = Binary({0.25f, 0.25f, 0.25f, 0.25f}, {0, 1, 0, 0}, 4 * loss);
  EXPECT_DOUBLE_EQ(result.normalized_entropy.value(), 1);
  EXPECT_DOUBLE_EQ(result.calibration.value(), 1);
}

TEST(EvaluationMetrics, WithoutPositivesThereIsNoCalibration) {
  const EvaluationMetrics::Result negatives = Binary({0.25f}, {0}), positives = Binary({0.25f}, {1});
  EXPECT_FALSE(negatives.calibration || negatives.normalized_entropy || positives.normalized_entropy);
  EXPECT_EQ(positives.calibration, 0.25);
  EXPECT_FALSE(Binary({std::numeric_limits<float>::quiet_NaN(), 0.5f}, {1, 0}).calibration.has_value());
}

TEST(EvaluationMetrics, TheMeanAbsoluteErrorIsOfNumbers) {
  const std::vector<float> predictions = {1, 2, 5}, labels = {1.5f, 4, 1};
  EvaluationMetrics first(Kind::kRegression), second(Kind::kRegression);
  first.Add(2, predictions.data(), labels.data(), 0);
  second.Add(1, predictions.data() + 2, labels.data() + 2, 0);
  first.Merge(second);
  EXPECT_DOUBLE_EQ(first.Finish().mae.value(), (0.5 + 2 + 4) / 3);
  EXPECT_DOUBLE_EQ(first.Finish().rmse.value(), std::sqrt((0.25 + 4 + 16) / 3));
}

TEST(EvaluationMetrics, OneHalfSaysOne) {
  EXPECT_EQ(Binary({0.5f, 0.5f, std::nextafter(0.5f, 0.0f)}, {1, 0, 0}).accuracy.value(), 2.0 / 3);
}

TEST(EvaluationMetrics, TiesCountHalf) {
  EXPECT_DOUBLE_EQ(Binary({0.3f, 0.3f, 0.3f, 0.3f}, {1, 0, 0, 1}).auc.value(), 0.5);
  // 0.7 against {0.7, 0.7, 0.1}: 1/2 + 1/2 + 1; twice, as there are two such positives; 0.1: 0 + 0 + 1/2.
  EXPECT_DOUBLE_EQ(Binary({0.7f, 0.7f, 0.7f, 0.1f, 0.1f, 0.7f}, {1, 0, 0, 0, 1, 1}).auc.value(), 4.5 / 9);
}

TEST(EvaluationMetrics, AucIsOneOrZeroIfTheClassesAreApart) {
  EXPECT_EQ(Binary({0.1f, 0.2f, 0.8f}, {0, 0, 1}).auc.value(), 1.0);
  EXPECT_EQ(Binary({0.1f, 0.2f, 0.8f}, {1, 1, 0}).auc.value(), 0.0);
}

TEST(EvaluationMetrics, OneClassAloneHasNoAuc) {
  for (const float label : {0.0f, 1.0f}) {
    const EvaluationMetrics::Result result = Binary({0.1f, 0.9f}, {label, label});
    EXPECT_FALSE(result.auc.has_value());
    EXPECT_DOUBLE_EQ(result.accuracy.value(), 0.5);
  }
}

TEST(EvaluationMetrics, PredictionsThatAreNotNumbersAreWrongAndHaveNoRank) {
  const EvaluationMetrics::Result result =
      Binary({0.9f, std::numeric_limits<float>::quiet_NaN(), 0.1f, 0.2f}, {1, 1, 0, 0});
  EXPECT_FALSE(result.auc.has_value());
  EXPECT_DOUBLE_EQ(result.accuracy.value(), 0.75);
}

TEST(EvaluationMetrics, MulticlassAccuracyCountsEqualIndices) {
  const std::vector<float> predictions = {0, 2, 9, 4}, labels = {0, 2, 8, 5};
  EvaluationMetrics metrics(Kind::kMulticlass);
  metrics.Add(4, predictions.data(), labels.data(), 6);
  const EvaluationMetrics::Result result = metrics.Finish();
  EXPECT_DOUBLE_EQ(result.accuracy.value(), 0.5);
  EXPECT_DOUBLE_EQ(result.loss, 1.5);
  EXPECT_FALSE(result.auc || result.rmse);
}

TEST(EvaluationMetrics, RegressionRmseIsAsComputedByHand) {
  const std::vector<float> predictions = {1, 2, 5, -1}, labels = {1, 4, 2, 0};
  EvaluationMetrics metrics(Kind::kRegression);
  metrics.Add(4, predictions.data(), labels.data(), 7);
  const EvaluationMetrics::Result result = metrics.Finish();
  EXPECT_DOUBLE_EQ(result.rmse.value(), std::sqrt(14.0 / 4));
  EXPECT_FALSE(result.accuracy || result.auc);
}

// By rank sums, equal predictions having the mean of their ranks. Ranks are halves, so that their sum is exact.
double RankSumAuc(const std::vector<float>& predictions, const std::vector<float>& labels) {
  std::vector<size_t> order(predictions.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return predictions[a] < predictions[b]; });
  double rank_sum = 0, positives = 0;
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    while (end < order.size() && predictions[order[end]] == predictions[order[begin]]) ++end;
    for (size_t i = begin; i < end; ++i) {
      if (labels[order[i]] != 1) continue;
      rank_sum += (begin + 1 + end) / 2.0;
      ++positives;
    }
  }
  return (rank_sum - positives * (positives + 1) / 2) / (positives * (predictions.size() - positives));
}

TEST(EvaluationMetrics, AMillionSamplesInManyBatchesAreScoredAsOneSet) {
  constexpr uint32_t kSeed = 11;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  std::uniform_int_distribution<int> step(0, 99999);  // Many ties.
  std::vector<float> predictions(1000000), labels(predictions.size());
  uint64_t correct = 0;
  for (size_t i = 0; i < predictions.size(); ++i) {
    predictions[i] = static_cast<float>(step(random)) / 100000;
    labels[i] = static_cast<float>(step(random)) / 100000 < 0.05f + 0.1f * predictions[i] ? 1.0f : 0.0f;
    correct += (predictions[i] >= 0.5f) == (labels[i] == 1);
  }
  EvaluationMetrics first(Kind::kBinary), second(Kind::kBinary);
  size_t size = 1;
  for (size_t begin = 0; begin < predictions.size(); begin += size, size = size % 1013 + 1) {
    size = std::min(size, predictions.size() - begin);
    EvaluationMetrics& metrics = begin % 3 == 0 ? first : second;
    metrics.Add(size, predictions.data() + begin, labels.data() + begin, 0.25 * static_cast<double>(size));
  }
  first.Merge(second);
  const EvaluationMetrics::Result result = first.Finish();
  EXPECT_EQ(result.samples, predictions.size());
  EXPECT_EQ(result.loss, 0.25);
  EXPECT_EQ(result.accuracy.value(), static_cast<double>(correct) / 1e6);
  EXPECT_DOUBLE_EQ(result.auc.value(), RankSumAuc(predictions, labels));
  EXPECT_GT(result.auc.value(), 0.55);
}

TEST(EvaluationMetrics, MergedAccumulatorsEqualOneThatSawAll) {
  const std::vector<float> predictions = {1, 2, 3, 4}, labels = {1, 3, 3, 2};
  for (const Kind kind : {Kind::kBinary, Kind::kMulticlass, Kind::kRegression}) {
    EvaluationMetrics all(kind), left(kind), right(kind);
    all.Add(4, predictions.data(), labels.data(), 10);
    left.Add(1, predictions.data(), labels.data(), 4);
    right.Add(3, predictions.data() + 1, labels.data() + 1, 6);
    left.Merge(right);
    const EvaluationMetrics::Result one = all.Finish(), two = left.Finish();
    EXPECT_EQ(one.samples, two.samples);
    EXPECT_EQ(one.loss, two.loss);
    EXPECT_EQ(one.accuracy, two.accuracy);
    EXPECT_EQ(one.auc, two.auc);
    EXPECT_EQ(one.rmse, two.rmse);
  }
}

TEST(EvaluationMetrics, EachKindIsJudgedByOneOfThem) {
  EvaluationMetrics::Result result;
  result.samples = 7;
  for (const Kind kind : {Kind::kBinary, Kind::kMulticlass, Kind::kRegression}) {
    EXPECT_EQ(JudgedBy(kind, result).name, "") << "it lacks them";
  }
  result.accuracy = 0.5;
  EXPECT_EQ(JudgedBy(Kind::kBinary, result).name, "") << "all samples have one class";
  result.auc = 0.75;
  result.rmse = 2;
  EXPECT_EQ(JudgedBy(Kind::kBinary, result).name, "auc");
  EXPECT_EQ(JudgedBy(Kind::kBinary, result).value, 0.75);
  EXPECT_EQ(JudgedBy(Kind::kMulticlass, result).name, "accuracy");
  EXPECT_EQ(JudgedBy(Kind::kMulticlass, result).value, 0.5);
  EXPECT_EQ(JudgedBy(Kind::kRegression, result).name, "rmse");
  EXPECT_EQ(JudgedBy(Kind::kRegression, result).value, 2);
}

TEST(EvaluationMetrics, GoesOnAfterItHasFinished) {
  const std::vector<float> predictions = {0.2f, 0.8f}, labels = {0, 1};
  EvaluationMetrics metrics(Kind::kBinary);
  metrics.Add(1, predictions.data(), labels.data(), 1);
  EXPECT_FALSE(metrics.Finish().auc.has_value());
  metrics.Add(1, predictions.data() + 1, labels.data() + 1, 2);
  EXPECT_EQ(metrics.Finish().auc.value(), 1.0);
  EXPECT_EQ(metrics.Finish().loss, 1.5);
}

// Group 1 has 2 positives and 2 negatives, of whose 4 pairs 3 are in order; group 2 one of each, in order; group 3
// positives only: (4 * 3 / 4 + 2 * 1) / (4 + 2).
TEST(EvaluationMetrics, GaucIsTheGroupsAucWeightedByTheirSamples) {
  const std::vector<float> predictions = {0.9f, 0.4f, 0.3f, 0.6f, 0.2f, 0.1f, 0.8f};
  const std::vector<float> labels = {1, 1, 0, 0, 1, 0, 1};
  const std::vector<uint64_t> groups = {1, 1, 1, 1, 2, 2, 3};
  EvaluationMetrics first(Kind::kBinary), second(Kind::kBinary);
  first.Add(3, predictions.data(), labels.data(), 0, {.groups = groups.data()});
  second.Add(4, predictions.data() + 3, labels.data() + 3, 0, {.groups = groups.data() + 3});
  first.Merge(second);
  EXPECT_DOUBLE_EQ(first.Finish().gauc.value(), (4 * 0.75 + 2 * 1) / 6);
  EXPECT_NE(first.Finish().gauc, first.Finish().auc);
}

TEST(EvaluationMetrics, WithoutAGroupOfBothClassesThereIsNoGauc) {
  const std::vector<float> predictions = {0.9f, 0.4f}, labels = {1, 0};
  const std::vector<uint64_t> groups = {1, 2};
  EvaluationMetrics metrics(Kind::kBinary), without(Kind::kBinary);
  metrics.Add(2, predictions.data(), labels.data(), 0, {.groups = groups.data()});
  without.Add(2, predictions.data(), labels.data(), 0);
  EXPECT_FALSE(metrics.Finish().gauc.has_value());
  EXPECT_TRUE(metrics.Finish().auc.has_value());
  EXPECT_FALSE(without.Finish().gauc.has_value());
}

TEST(EvaluationMetrics, TopFiveAccuracyCountsLabelsAmongTheFiveGreatestLogits) {
  // Seven classes; the label ranks first, fifth, sixth, and not at all.
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits = {
      9, 1, 2, 3,   4, 5, 6,  // 0 is first.
      9, 8, 7, 6,   5, 4, 3,  // 4 is fifth.
      9, 8, 7, 6,   5, 4, 3,  // 5 is sixth.
      9, 8, 7, nan, 5, 4, 3,  // 3 has no logit.
  };
  const std::vector<float> predictions = {0, 0, 0, 0}, labels = {0, 4, 5, 3};
  EvaluationMetrics metrics(Kind::kMulticlass);
  metrics.Add(4, predictions.data(), labels.data(), 0, {.logits = logits.data(), .classes = 7});
  EXPECT_DOUBLE_EQ(metrics.Finish().top5_accuracy.value(), 0.5);
  EXPECT_DOUBLE_EQ(metrics.Finish().accuracy.value(), 0.25);
}

TEST(EvaluationMetrics, OfEqualLogitsTheFirstRankAbove) {
  const std::vector<float> logits(6, 1.0f), predictions = {0, 0}, labels = {4, 5};
  EvaluationMetrics metrics(Kind::kMulticlass);
  for (size_t i = 0; i < 2; ++i) {
    metrics.Add(1, &predictions[i], &labels[i], 0, {.logits = logits.data(), .classes = 6});
  }
  EXPECT_DOUBLE_EQ(metrics.Finish().top5_accuracy.value(), 0.5);
}

TEST(EvaluationMetrics, FiveClassesHaveNoTopFive) {
  const std::vector<float> logits(5, 1.0f);
  const float zero = 0;
  EvaluationMetrics metrics(Kind::kMulticlass);
  metrics.Add(1, &zero, &zero, 0, {.logits = logits.data(), .classes = 5});
  EXPECT_FALSE(metrics.Finish().top5_accuracy.has_value());
}

TEST(EvaluationMetrics, AllMetricsOfAResultHaveTheirNames) {
  std::vector<std::string> names;
  for (const NamedMetric& metric : MetricsOf(Binary({0.9f, 0.1f}, {1, 0}))) names.push_back(metric.name);
  EXPECT_EQ(names, (std::vector<std::string>{"loss", "accuracy", "auc", "normalized_entropy", "calibration"}));
  EXPECT_TRUE(LowerIsBetter({"rmse", 1}) && LowerIsBetter({"loss", 1}));
  EXPECT_FALSE(LowerIsBetter({"auc", 1}) || LowerIsBetter({"accuracy", 1}));
}

// Samples with whole weights, and the same samples as often as these say, have the same metrics.
TEST(EvaluationMetrics, AWeightOfNCountsAsNEqualSamples) {
  constexpr uint32_t kSeed = 22;
  std::mt19937 random(kSeed);
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  constexpr size_t kClasses = 12;
  for (const Kind kind : {Kind::kBinary, Kind::kMulticlass, Kind::kRegression, Kind::kRetrieval}) {
    SCOPED_TRACE(static_cast<int>(kind));
    EvaluationMetrics weighted(kind), merged(kind), repeated(kind);
    for (int batch = 0; batch < 3; ++batch) {
      std::vector<float> predictions, labels, weights, logits;
      std::vector<uint64_t> groups;
      for (int i = 0; i < 50; ++i) {
        const bool classes = kind == Kind::kMulticlass || kind == Kind::kRetrieval;
        predictions.push_back(classes ? static_cast<float>(random() % kClasses) : static_cast<float>(random() % 9) / 8);
        labels.push_back(static_cast<float>(random() % (classes ? kClasses : 2)));
        weights.push_back(static_cast<float>(random() % 4));
        groups.push_back(random() % 4);
        for (size_t c = 0; c < kClasses; ++c) logits.push_back(static_cast<float>(random() % 20));
        for (int n = 0; n < static_cast<int>(weights.back()); ++n) {
          repeated.Add(
              1, &predictions.back(), &labels.back(), 0.5,
              {.groups = &groups.back(), .logits = logits.data() + logits.size() - kClasses, .classes = kClasses});
        }
      }
      const double loss = 0.5 * std::accumulate(weights.begin(), weights.end(), 0.0);
      const EvaluationMetrics::Details details = {
          .groups = groups.data(), .weights = weights.data(), .logits = logits.data(), .classes = kClasses};
      weighted.Add(weights.size(), predictions.data(), labels.data(), loss, details);
      EvaluationMetrics part(kind);
      part.Add(weights.size(), predictions.data(), labels.data(), loss, details);
      merged.Merge(part);
    }
    const auto want = MetricsOf(repeated.Finish());
    EXPECT_EQ(weighted.Finish().samples, 150u);
    EXPECT_EQ(weighted.Finish().weight, static_cast<double>(repeated.Finish().samples));
    for (const EvaluationMetrics* metrics : {&weighted, &merged}) {
      const auto got = MetricsOf(metrics->Finish());
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i].value, want[i].value, 1e-12) << want[i].name;
    }
  }
}

TEST(EvaluationMetrics, SamplesThatWeighNothingHaveNoScores) {
  EvaluationMetrics metrics(Kind::kBinary);
  const std::vector<float> values = {0, 1}, weights = {0, 0};
  metrics.Add(2, values.data(), values.data(), 0, {.weights = weights.data()});
  const EvaluationMetrics::Result result = metrics.Finish();
  EXPECT_EQ(result.samples, 2u);
  EXPECT_TRUE(std::isnan(result.loss)) << "0 would be the best there is";
  EXPECT_FALSE(result.accuracy || result.auc || result.calibration);
}

TEST(EvaluationMetrics, RetrievalRanksTheOwnItemAmongTheCandidates) {
  // The own item is first, third (an equal one before it counts), and behind ten others.
  std::vector<float> logits;
  for (const int place : {0, 2, 11}) {
    for (int c = 0; c < 12; ++c) logits.push_back(static_cast<float>(c < place ? 2 : c == place ? 1 : 0));
  }
  const std::vector<float> scores = {0.1f, 0.2f, 0.3f}, labels = {0, 2, 11};
  EvaluationMetrics metrics(Kind::kRetrieval);
  metrics.Add(3, scores.data(), labels.data(), 6, {.logits = logits.data(), .classes = 12});
  const EvaluationMetrics::Result result = metrics.Finish();
  EXPECT_DOUBLE_EQ(result.loss, 2);
  EXPECT_DOUBLE_EQ(result.recall_at_1.value(), 1.0 / 3);
  EXPECT_DOUBLE_EQ(result.recall_at_10.value(), 2.0 / 3);
  EXPECT_DOUBLE_EQ(result.mrr.value(), (1 + 1.0 / 3 + 1.0 / 12) / 3);
  EXPECT_EQ(JudgedBy(Kind::kRetrieval, result).name, "recall_at_10");
  EXPECT_FALSE(result.accuracy || result.auc || result.rmse);
}

TEST(EvaluationMetrics, RetrievalWithoutScoresKnowsTheFirstCandidateOnly) {
  EvaluationMetrics metrics(Kind::kRetrieval);
  const std::vector<float> first = {4, 1, 2}, own = {4, 0, 2};
  metrics.Add(3, first.data(), own.data(), 0);
  const EvaluationMetrics::Result result = metrics.Finish();
  EXPECT_DOUBLE_EQ(result.recall_at_1.value(), 2.0 / 3);
  EXPECT_FALSE(result.recall_at_10 || result.mrr);
  EXPECT_EQ(JudgedBy(Kind::kRetrieval, result).name, "recall_at_1");
}

}  // namespace
}  // namespace lodestone::worker
