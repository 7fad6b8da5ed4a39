#include "worker/metrics/evaluation_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "common/base/check.h"

namespace lodestone::worker {

void EvaluationMetrics::Ranked::Add(float prediction, float weight) {
  if (weight != 1 && weights.empty()) weights.assign(predictions.size(), 1.0f);
  predictions.push_back(prediction);
  if (weight != 1 || !weights.empty()) weights.push_back(weight);
}

void EvaluationMetrics::Ranked::Append(const Ranked& other) {
  if (weights.empty() && !other.weights.empty()) weights.assign(predictions.size(), 1.0f);
  const bool weighted = !weights.empty() || !other.weights.empty();
  predictions.insert(predictions.end(), other.predictions.begin(), other.predictions.end());
  weights.insert(weights.end(), other.weights.begin(), other.weights.end());
  if (weighted) weights.resize(predictions.size(), 1.0f);
}

double EvaluationMetrics::Ranked::Weight() const {
  return weights.empty() ? static_cast<double>(predictions.size())
                         : std::accumulate(weights.begin(), weights.end(), 0.0);
}

// The probability that a random positive ranks above a random negative, equal ones counted half (the Mann-Whitney U
// statistic over the number of pairs). Pairs are counted in integers, twice over, so that nothing is rounded before the
// division: 2 n m stays below 2^64 up to 3 * 10^9 samples of each class.
double EvaluationMetrics::Auc(Ranked negatives_and_weights, Ranked positives_and_weights) {
  if (!negatives_and_weights.weights.empty() || !positives_and_weights.weights.empty()) {
    return WeightedAuc(negatives_and_weights, positives_and_weights);
  }
  std::vector<float>&negatives = negatives_and_weights.predictions, &positives = positives_and_weights.predictions;
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

// The same where a pair counts the product of its weights.
double EvaluationMetrics::WeightedAuc(const Ranked& negatives, const Ranked& positives) {
  using Weighted = std::pair<float, double>;
  const auto sorted = [](const Ranked& ranked) {
    std::vector<Weighted> pairs;
    for (size_t i = 0; i < ranked.predictions.size(); ++i) {
      pairs.emplace_back(ranked.predictions[i], ranked.weights.empty() ? 1.0 : ranked.weights[i]);
    }
    std::sort(pairs.begin(), pairs.end());
    return pairs;
  };
  const std::vector<Weighted> low = sorted(negatives), high = sorted(positives);
  double below = 0, not_above = 0, twice = 0;  // Weights of negatives less than this positive; less or equal.
  size_t below_end = 0, not_above_end = 0;
  for (const auto& [prediction, weight] : high) {
    for (; below_end < low.size() && low[below_end].first < prediction; ++below_end) below += low[below_end].second;
    for (; not_above_end < low.size() && low[not_above_end].first <= prediction; ++not_above_end) {
      not_above += low[not_above_end].second;
    }
    twice += weight * (below + not_above);
  }
  return twice / (2 * negatives.Weight() * positives.Weight());
}

EvaluationMetrics::EvaluationMetrics(Kind kind, std::vector<std::string> label_names)
    : kind_(kind), label_names_(std::move(label_names)) {
  LODESTONE_CHECK(label_names_.empty() || kind == Kind::kBinary);
  for (size_t k = 0; k < label_names_.size(); ++k) of_labels_.emplace_back(kind);
}

void EvaluationMetrics::AddBinary(float prediction, float label, float weight) {
  const bool positive = label > 0.5f;
  if (std::isnan(prediction)) {
    ++nan_;
    return;
  }
  correct_ += (prediction >= 0.5f) == positive ? weight : 0;
  prediction_sum_ += static_cast<double>(weight) * prediction;
  (positive ? positives_ : negatives_).Add(prediction, weight);
}

void EvaluationMetrics::AddLogits(size_t n, const Details& details, const float* labels) {
  const size_t top = kind_ == Kind::kRetrieval ? kRecallK : kTopK;
  const float* logits = details.logits;
  for (size_t i = 0; i < n; ++i, logits += details.classes) {
    const double weight = details.weights == nullptr ? 1 : details.weights[i];
    const auto label = static_cast<size_t>(labels[i]);
    const float own = logits[label];
    size_t before = 0;  // Classes that rank above; of equal ones the first, as the prediction is.
    for (size_t c = 0; c < details.classes; ++c) before += logits[c] > own || (logits[c] == own && c < label);
    ranked_ += weight;
    if (std::isnan(own)) continue;
    in_top_ += before < top ? weight : 0;
    reciprocal_ranks_ += weight / static_cast<double>(before + 1);
    if (kind_ == Kind::kRetrieval) correct_ += before == 0 ? weight : 0;
  }
}

void EvaluationMetrics::AddLabels(size_t n, const Details& details, const float* labels) {
  LODESTONE_CHECK(details.logits != nullptr && details.label_weights != nullptr);
  const size_t count = label_names_.size();
  std::vector<float> probabilities, own_labels, weights;
  std::vector<uint64_t> groups;
  for (size_t k = 0; k < count; ++k) {
    probabilities.clear(), own_labels.clear(), weights.clear(), groups.clear();
    double loss_sum = 0;
    for (size_t i = 0; i < n; ++i) {
      const float weight = details.label_weights[k * n + i], label = labels[k * n + i];
      if (weight == 0) continue;
      const double logit = details.logits[i * count + k], power = std::exp(-std::abs(logit));
      loss_sum += weight * (std::max(logit, 0.0) - logit * label + std::log1p(power));
      probabilities.push_back(static_cast<float>((logit < 0 ? power : 1) / (1 + power)));
      own_labels.push_back(label);
      weights.push_back(weight);
      if (details.groups != nullptr) groups.push_back(details.groups[i]);
    }
    of_labels_[k].Add(weights.size(), probabilities.data(), own_labels.data(), loss_sum,
                      {.groups = details.groups == nullptr ? nullptr : groups.data(), .weights = weights.data()});
  }
  for (size_t i = 0; i < n; ++i) weight_sum_ += details.weights == nullptr ? 1 : details.weights[i];
}

void EvaluationMetrics::Add(size_t n, const float* predictions, const float* labels, double loss_sum,
                            const Details& details) {
  samples_ += n;
  loss_sum_ += loss_sum;
  if (!of_labels_.empty()) return AddLabels(n, details, labels);
  const bool ranks = kind_ == Kind::kRetrieval || (kind_ == Kind::kMulticlass && details.classes > kTopK);
  if (ranks && details.logits != nullptr) AddLogits(n, details, labels);
  for (size_t i = 0; i < n; ++i) {
    const float weight = details.weights == nullptr ? 1.0f : details.weights[i];
    weight_sum_ += weight;
    switch (kind_) {
      case Kind::kBinary:
        if (details.groups != nullptr) {
          group_samples_.push_back({details.groups[i], predictions[i], weight, labels[i] > 0.5f});
        }
        AddBinary(predictions[i], labels[i], weight);
        break;
      case Kind::kMulticlass:
        correct_ += predictions[i] == labels[i] ? weight : 0;
        break;
      case Kind::kRetrieval:
        if (details.logits == nullptr) correct_ += predictions[i] == labels[i] ? weight : 0;
        break;
      case Kind::kRegression: {
        const double error = static_cast<double>(predictions[i]) - labels[i];
        squared_error_sum_ += weight * error * error;
        absolute_error_sum_ += weight * std::abs(error);
        break;
      }
    }
  }
}

void EvaluationMetrics::Merge(const EvaluationMetrics& other) {
  LODESTONE_CHECK(kind_ == other.kind_ && label_names_ == other.label_names_);
  LODESTONE_CHECK(this != &other);
  samples_ += other.samples_;
  weight_sum_ += other.weight_sum_;
  correct_ += other.correct_;
  nan_ += other.nan_;
  loss_sum_ += other.loss_sum_;
  squared_error_sum_ += other.squared_error_sum_;
  absolute_error_sum_ += other.absolute_error_sum_;
  prediction_sum_ += other.prediction_sum_;
  negatives_.Append(other.negatives_);
  positives_.Append(other.positives_);
  group_samples_.insert(group_samples_.end(), other.group_samples_.begin(), other.group_samples_.end());
  ranked_ += other.ranked_;
  in_top_ += other.in_top_;
  reciprocal_ranks_ += other.reciprocal_ranks_;
  for (size_t k = 0; k < of_labels_.size(); ++k) of_labels_[k].Merge(other.of_labels_[k]);
}

std::optional<double> EvaluationMetrics::Gauc() const {
  std::vector<GroupSample> sorted = group_samples_;
  std::sort(sorted.begin(), sorted.end(), [](const GroupSample& a, const GroupSample& b) { return a.group < b.group; });
  double sum = 0, weight_sum = 0;
  for (size_t begin = 0, end = 0; begin < sorted.size(); begin = end) {
    Ranked negatives, positives;
    for (; end < sorted.size() && sorted[end].group == sorted[begin].group; ++end) {
      (sorted[end].positive ? positives : negatives).Add(sorted[end].prediction, sorted[end].weight);
    }
    const double negative = negatives.Weight(), positive = positives.Weight();
    if (negative == 0 || positive == 0) continue;
    const double weight = negative + positive;
    sum += weight * Auc(std::move(negatives), std::move(positives));
    weight_sum += weight;
  }
  if (weight_sum == 0) return std::nullopt;
  return sum / weight_sum;
}

EvaluationMetrics::Result EvaluationMetrics::Finish() const {
  Result result;
  result.samples = samples_;
  result.weight = weight_sum_;
  if (samples_ == 0) return result;
  result.loss = std::numeric_limits<double>::quiet_NaN();
  for (size_t k = 0; k < of_labels_.size(); ++k) {
    if (of_labels_[k].weight_sum_ == 0) result.missing_labels.push_back(label_names_[k]);
  }
  const bool has_labels = of_labels_.empty() || result.missing_labels.size() < of_labels_.size();
  if (weight_sum_ == 0 || !has_labels) return result;
  result.loss = loss_sum_ / weight_sum_;
  for (size_t k = 0; k < of_labels_.size(); ++k) {
    const Result of_label = of_labels_[k].Finish();
    if (of_label.weight == 0) continue;
    for (const NamedMetric& metric : MetricsOf(of_label)) {
      result.of_labels.push_back({label_names_[k] + "/" + metric.name, metric.value});
    }
  }
  if (!of_labels_.empty()) return result;
  if (kind_ == Kind::kRegression) {
    result.rmse = std::sqrt(squared_error_sum_ / weight_sum_);
    result.mae = absolute_error_sum_ / weight_sum_;
    return result;
  }
  if (kind_ == Kind::kRetrieval) {
    result.recall_at_1 = correct_ / weight_sum_;
    if (ranked_ == 0) return result;
    result.recall_at_10 = in_top_ / ranked_;
    result.mrr = reciprocal_ranks_ / ranked_;
    return result;
  }
  result.accuracy = correct_ / weight_sum_;
  if (ranked_ > 0) result.top5_accuracy = in_top_ / ranked_;
  if (kind_ != Kind::kBinary || nan_ > 0) return result;
  const double positive = positives_.Weight();
  if (positive > 0 && negatives_.Weight() > 0) {
    const double share = positive / weight_sum_;
    result.auc = Auc(negatives_, positives_);
    result.normalized_entropy = result.loss / -(share * std::log(share) + (1 - share) * std::log(1 - share));
  }
  if (positive > 0) result.calibration = prediction_sum_ / positive;
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
  add("recall_at_1", result.recall_at_1);
  add("recall_at_10", result.recall_at_10);
  add("mrr", result.mrr);
  metrics.insert(metrics.end(), result.of_labels.begin(), result.of_labels.end());
  return metrics;
}

bool LowerIsBetter(const NamedMetric& metric) {
  const std::string name = metric.name.substr(metric.name.rfind('/') + 1);  // All of it, if there is none.
  return name == "rmse" || name == "mae" || name == "loss" || name == "normalized_entropy";
}

std::vector<std::string> JudgingMetrics(EvaluationMetrics::Kind kind, const std::vector<std::string>& label_names) {
  if (!label_names.empty()) {
    std::vector<std::string> names = {"loss"};
    for (const std::string& label : label_names) {
      for (const std::string& name : JudgingMetrics(kind, {})) names.push_back(label + "/" + name);
    }
    return names;
  }
  switch (kind) {
    case EvaluationMetrics::Kind::kMulticlass:
      return {"loss", "accuracy", "top5_accuracy"};
    case EvaluationMetrics::Kind::kRegression:
      return {"loss", "rmse", "mae"};
    case EvaluationMetrics::Kind::kRetrieval:
      return {"loss", "recall_at_1", "recall_at_10", "mrr"};
    default:
      return {"loss", "accuracy", "auc", "gauc", "normalized_entropy"};
  }
}

NamedMetric JudgedBy(EvaluationMetrics::Kind kind, const EvaluationMetrics::Result& result) {
  if (!result.of_labels.empty()) return {"loss", result.loss};
  const auto named = [](const char* name, const std::optional<double>& value) {
    return value ? NamedMetric{name, *value} : NamedMetric();
  };
  switch (kind) {
    case EvaluationMetrics::Kind::kMulticlass:
      return named("accuracy", result.accuracy);
    case EvaluationMetrics::Kind::kRegression:
      return named("rmse", result.rmse);
    case EvaluationMetrics::Kind::kRetrieval:
      return result.recall_at_10 ? named("recall_at_10", result.recall_at_10)
                                 : named("recall_at_1", result.recall_at_1);
    default:
      return named("auc", result.auc);
  }
}

}  // namespace lodestone::worker
