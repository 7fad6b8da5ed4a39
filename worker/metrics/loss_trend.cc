#include "worker/metrics/loss_trend.h"

#include <cmath>

#include "absl/strings/str_format.h"

namespace lodestone::worker {
namespace {

// Steps of the last quarter below which nothing is said.
constexpr uint64_t kStepsMin = 8;
// Of the constant prediction's loss: above it, nothing was learned.
constexpr double kShareMax = 0.98;

double EntropyOf(const std::vector<double>& weights) {
  double total = 0, sum = 0;
  for (const double weight : weights) total += weight;
  for (const double weight : weights) {
    if (weight > 0) sum -= weight * std::log(weight / total);
  }
  return total > 0 ? sum / total : 0;
}

}  // namespace

LossTrend::LossTrend(EvaluationMetrics::Kind kind, const std::vector<double>& class_weights, uint64_t samples_total,
                     double label_deviation)
    : kind_(kind),
      last_begin_(samples_total - samples_total / 4),
      entropy_(EntropyOf(class_weights)),
      label_deviation_(label_deviation > 0 ? label_deviation : 1) {}

void LossTrend::Step(uint64_t position, size_t n, const float* labels, double loss_sum, const float* weights) {
  if (position <= last_begin_) return;
  ++last_steps_;
  last_loss_sum_ += loss_sum;
  for (size_t i = 0; i < n; ++i) {
    const double weight = weights == nullptr ? 1 : weights[i];
    if (weight == 0) continue;
    const double before = labels[i] - label_mean_;
    last_weight_ += weight;
    label_mean_ += before * weight / last_weight_;
    label_squares_ += weight * before * (labels[i] - label_mean_);
  }
}

std::optional<double> LossTrend::last_loss() const {
  if (last_steps_ < kStepsMin || last_weight_ == 0) return std::nullopt;
  return last_loss_sum_ / last_weight_;
}

double LossTrend::constant_loss() const {
  if (kind_ != EvaluationMetrics::Kind::kRegression) return entropy_;
  if (last_weight_ == 0) return 0;
  return label_squares_ / last_weight_ / 2 / (label_deviation_ * label_deviation_);
}

std::string LossTrend::Complaint() const {
  const std::optional<double> loss = last_loss();
  const double constant = constant_loss();
  if (!loss || constant <= 0 || *loss <= kShareMax * constant) return "";
  return absl::StrFormat(
      "the training loss has not fallen: %.4g over the last quarter of the samples, and a constant prediction has "
      "%.4g; "
      "lower the learning rate (model.optimizer) or the delay (fewer workers, worker.pushes_in_flight_max: 1, "
      "worker.prefetch_batches: 0), or look at features and labels",
      *loss, constant);
}

}  // namespace lodestone::worker
