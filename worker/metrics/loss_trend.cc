#include "worker/metrics/loss_trend.h"

#include <cmath>

#include "absl/strings/str_format.h"

namespace lodestone::worker {
namespace {

// Steps of the last quarter below which nothing is said.
constexpr uint64_t kStepsMin = 8;
// Of the constant prediction's loss: above it, nothing was learned.
constexpr double kShareMax = 0.98;

double EntropyOf(const std::vector<uint64_t>& counts) {
  double total = 0, sum = 0;
  for (const uint64_t count : counts) total += static_cast<double>(count);
  for (const uint64_t count : counts) {
    if (count > 0) sum -= static_cast<double>(count) * std::log(static_cast<double>(count) / total);
  }
  return total > 0 ? sum / total : 0;
}

}  // namespace

LossTrend::LossTrend(EvaluationMetrics::Kind kind, const std::vector<uint64_t>& class_counts, uint64_t samples_total)
    : kind_(kind), last_begin_(samples_total - samples_total / 4), entropy_(EntropyOf(class_counts)) {}

void LossTrend::Step(uint64_t position, size_t n, const float* labels, double loss_sum) {
  if (position <= last_begin_) return;
  ++last_steps_;
  last_loss_sum_ += loss_sum;
  for (size_t i = 0; i < n; ++i) {
    const double before = labels[i] - label_mean_;
    label_mean_ += before / static_cast<double>(++last_samples_);
    label_squares_ += before * (labels[i] - label_mean_);
  }
}

std::optional<double> LossTrend::last_loss() const {
  if (last_steps_ < kStepsMin) return std::nullopt;
  return last_loss_sum_ / static_cast<double>(last_samples_);
}

double LossTrend::constant_loss() const {
  if (kind_ != EvaluationMetrics::Kind::kRegression) return entropy_;
  return last_samples_ == 0 ? 0 : label_squares_ / static_cast<double>(last_samples_) / 2;
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
