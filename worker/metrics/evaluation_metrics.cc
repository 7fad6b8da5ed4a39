#include "worker/metrics/evaluation_metrics.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace lodestone::worker {
namespace {

// The probability that a random positive ranks above a random negative, equal ones counted half (the Mann-Whitney U
// statistic over the number of pairs). Pairs are counted in integers, twice over, so that nothing is rounded before the
// division: 2 n m stays below 2^64 up to 3 * 10^9 samples of each class.
double Auc(std::vector<float> negatives, std::vector<float> positives) {
  std::sort(negatives.begin(), negatives.end());
  std::sort(positives.begin(), positives.end());
  uint64_t twice = 0;
  size_t below = 0;      // Negatives less than this positive.
  size_t not_above = 0;  // Negatives less than it or equal.
  for (const float positive : positives) {
    while (below < negatives.size() && negatives[below] < positive) ++below;
    not_above = std::max(not_above, below);
    while (not_above < negatives.size() && negatives[not_above] == positive) ++not_above;
    twice += below + not_above;
  }
  return static_cast<double>(twice) /
         (2.0 * static_cast<double>(negatives.size()) * static_cast<double>(positives.size()));
}

}  // namespace

void EvaluationMetrics::AddBinary(float prediction, float label) {
  const bool positive = label > 0.5f;
  if (std::isnan(prediction)) {
    ++nan_;
    return;
  }
  correct_ += (prediction >= 0.5f) == positive;
  prediction_sum_ += prediction;
  (positive ? positives_ : negatives_).push_back(prediction);
}

void EvaluationMetrics::Add(size_t n, const float* predictions, const float* labels, double loss_sum) {
  samples_ += n;
  loss_sum_ += loss_sum;
  for (size_t i = 0; i < n; ++i) {
    switch (kind_) {
      case Kind::kBinary:
        AddBinary(predictions[i], labels[i]);
        break;
      case Kind::kMulticlass:
        correct_ += predictions[i] == labels[i];
        break;
      case Kind::kRegression: {
        const double error = static_cast<double>(predictions[i]) - labels[i];
        squared_error_sum_ += error * error;
        absolute_error_sum_ += std::abs(error);
        break;
      }
    }
  }
}

void EvaluationMetrics::Merge(const EvaluationMetrics& other) {
  LODESTONE_CHECK(kind_ == other.kind_);
  LODESTONE_CHECK(this != &other);
  samples_ += other.samples_;
  correct_ += other.correct_;
  nan_ += other.nan_;
  loss_sum_ += other.loss_sum_;
  squared_error_sum_ += other.squared_error_sum_;
  absolute_error_sum_ += other.absolute_error_sum_;
  prediction_sum_ += other.prediction_sum_;
  negatives_.insert(negatives_.end(), other.negatives_.begin(), other.negatives_.end());
  positives_.insert(positives_.end(), other.positives_.begin(), other.positives_.end());
}

EvaluationMetrics::Result EvaluationMetrics::Finish() const {
  Result result;
  result.samples = samples_;
  if (samples_ == 0) return result;
  const double samples = static_cast<double>(samples_);
  result.loss = loss_sum_ / samples;
  if (kind_ == Kind::kRegression) {
    result.rmse = std::sqrt(squared_error_sum_ / samples);
    result.mae = absolute_error_sum_ / samples;
    return result;
  }
  result.accuracy = static_cast<double>(correct_) / samples;
  if (kind_ != Kind::kBinary || nan_ > 0) return result;
  if (!negatives_.empty() && !positives_.empty()) {
    const double share = static_cast<double>(positives_.size()) / samples;
    result.auc = Auc(negatives_, positives_);
    result.normalized_entropy = result.loss / -(share * std::log(share) + (1 - share) * std::log(1 - share));
  }
  if (!positives_.empty()) result.calibration = prediction_sum_ / static_cast<double>(positives_.size());
  return result;
}

NamedMetric JudgedBy(EvaluationMetrics::Kind kind, const EvaluationMetrics::Result& result) {
  const auto named = [](const char* name, const std::optional<double>& value) {
    return value ? NamedMetric{name, *value} : NamedMetric();
  };
  switch (kind) {
    case EvaluationMetrics::Kind::kMulticlass:
      return named("accuracy", result.accuracy);
    case EvaluationMetrics::Kind::kRegression:
      return named("rmse", result.rmse);
    default:
      return named("auc", result.auc);
  }
}

}  // namespace lodestone::worker
