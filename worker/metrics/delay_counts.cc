#include "worker/metrics/delay_counts.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lodestone::worker {

void DelayCounts::Add(double own, double others) {
  const double all = own + others;
  ++pushes_;
  all_sum_ += all;
  own_sum_ += own;
  max_ = std::max(max_, all);
  const auto at = static_cast<size_t>(std::llround(std::min(all, static_cast<double>(kDelayMax))));
  if (at >= counts_.size()) counts_.resize(at + 1, 0);
  ++counts_[at];
}

uint64_t DelayCounts::Quantile(double share) const {
  const auto wanted = static_cast<uint64_t>(std::ceil(share * static_cast<double>(pushes_)));
  uint64_t below = 0;
  for (size_t delay = 0; delay < counts_.size(); ++delay) {
    below += counts_[delay];
    if (below >= wanted) return delay;
  }
  return 0;
}

DelaySummary DelayCounts::Summarize(std::string table) const {
  DelaySummary summary{.table = std::move(table), .pushes = pushes_};
  if (pushes_ == 0) return summary;
  summary.mean = all_sum_ / static_cast<double>(pushes_);
  summary.own = own_sum_ / static_cast<double>(pushes_);
  summary.p50 = Quantile(0.5);
  summary.p90 = Quantile(0.9);
  summary.max = static_cast<uint64_t>(std::llround(max_));
  return summary;
}

}  // namespace lodestone::worker
