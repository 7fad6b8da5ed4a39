#include "worker/metrics/evaluation_metrics.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

void EvaluationMetrics::AddLogits(size_t n, const float* logits, size_t classes, const float* labels) {
  ranked_ += n;
  for (size_t i = 0; i < n; ++i, logits += classes) {
    const auto label = static_cast<size_t>(labels[i]);
    const float own = logits[label];
    size_t before = 0;  // Classes that rank above; of equal ones the first, as the prediction is.
    for (size_t c = 0; c < classes; ++c) before += logits[c] > own || (logits[c] == own && c < label);
    in_top_ += !std::isnan(own) && before < kTopK;
  }
}

void EvaluationMetrics::Add(size_t n, const float* predictions, const float* labels, double loss_sum,
                            const Details& details) {
  samples_ += n;
  loss_sum_ += loss_sum;
  if (kind_ == Kind::kMulticlass && details.logits != nullptr && details.classes > kTopK) {
    AddLogits(n, details.logits, details.classes, labels);
  }
  if (kind_ == Kind::kBinary && details.groups != nullptr) {
    for (size_t i = 0; i < n; ++i) group_samples_.push_back({details.groups[i], predictions[i], labels[i] > 0.5f});
  }
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
  group_samples_.insert(group_samples_.end(), other.group_samples_.begin(), other.group_samples_.end());
  ranked_ += other.ranked_;
  in_top_ += other.in_top_;
}

std::optional<double> EvaluationMetrics::Gauc() const {
  std::vector<GroupSample> sorted = group_samples_;
  std::sort(sorted.begin(), sorted.end(), [](const GroupSample& a, const GroupSample& b) { return a.group < b.group; });
  double sum = 0, weight = 0;
  for (size_t begin = 0, end = 0; begin < sorted.size(); begin = end) {
    std::vector<float> negatives, positives;
    for (; end < sorted.size() && sorted[end].group == sorted[begin].group; ++end) {
      (sorted[end].positive ? positives : negatives).push_back(sorted[end].prediction);
    }
    if (negatives.empty() || positives.empty()) continue;
    const auto samples = static_cast<double>(end - begin);
    sum += samples * Auc(std::move(negatives), std::move(positives));
    weight += samples;
  }
  if (weight == 0) return std::nullopt;
  return sum / weight;
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
  if (ranked_ > 0) result.top5_accuracy = static_cast<double>(in_top_) / static_cast<double>(ranked_);
  if (kind_ != Kind::kBinary || nan_ > 0) return result;
  if (!negatives_.empty() && !positives_.empty()) {
    const double share = static_cast<double>(positives_.size()) / samples;
    result.auc = Auc(negatives_, positives_);
    result.normalized_entropy = result.loss / -(share * std::log(share) + (1 - share) * std::log(1 - share));
  }
  if (!positives_.empty()) result.calibration = prediction_sum_ / static_cast<double>(positives_.size());
  result.gauc = Gauc();
  return result;
}

std::vector<NamedMetric> MetricsOf(const EvaluationMetrics::Result& result) {
  std::vector<NamedMetric> metrics = {{"loss", result.loss}};
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value) metrics.push_back({name, *value});
  };
  add("accuracy", result.accuracy);
  add("top5_accuracy", result.top5_accuracy);
  add("auc", result.auc);
  add("gauc", result.gauc);
  add("normalized_entropy", result.normalized_entropy);
  add("calibration", result.calibration);
  add("rmse", result.rmse);
  add("mae", result.mae);
  return metrics;
}

bool LowerIsBetter(const NamedMetric& metric) { return metric.name == "rmse" || metric.name == "loss"; }

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
