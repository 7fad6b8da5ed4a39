#include "worker/metrics/progressive_metric.h"

#include <algorithm>
#include <cmath>

namespace lodestone::worker {

void ProgressiveMetric::Add(size_t n, const float* predictions, const float* labels, const float* weights) {
  weighted_ = weighted_ || weights != nullptr;
  size_t from = n - std::min(n, kSamplesMax);
  size_ = std::min(kSamplesMax, size_ + n - from);
  while (from < n) {
    const size_t count = std::min(n - from, kSamplesMax - next_);
    std::copy_n(predictions + from, count, predictions_.data() + next_);
    std::copy_n(labels + from, count, labels_.data() + next_);
    if (weights != nullptr) {
      std::copy_n(weights + from, count, weights_.data() + next_);
    } else if (weighted_) {
      std::fill_n(weights_.data() + next_, count, 1.0f);
    }
    from += count;
    next_ = (next_ + count) % kSamplesMax;
  }
}

void ProgressiveMetric::Update() {
  EvaluationMetrics metrics(kind_);
  metrics.Add(size_, predictions_.data(), labels_.data(), 0, {.weights = weighted_ ? weights_.data() : nullptr});
  NamedMetric value = JudgedBy(kind_, metrics.Finish());
  if (!value.name.empty() && std::isfinite(value.value)) value_ = {prefix_ + value.name, value.value};
}

}  // namespace lodestone::worker
