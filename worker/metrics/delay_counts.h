// The distribution of a table's delay over a worker's pushes: updates between the reading of values and the application
// of the gradient that was computed from them. Quantiles are exact for delays below kDelayMax.
//
// Not thread-safe. Memory: 8 bytes for each delay up to the greatest that occurred, at most kDelayMax.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lodestone::worker {

// What is reported of a distribution. Zeros if nothing was measured.
struct DelaySummary {
  std::string table;
  uint64_t pushes = 0;
  double mean = 0;
  double own = 0;    // The worker's own updates' part of the mean.
  uint64_t p50 = 0;  // Half of the pushes had no more,
  uint64_t p90 = 0;  // nine of ten had no more.
  uint64_t max = 0;
};

class DelayCounts {
 public:
  // Greater delays count as this one in the quantiles, not in the mean and the maximum.
  static constexpr size_t kDelayMax = 4096;

  // A push: mean numbers of updates over the shards that it touched.
  void Add(double own, double others);

  uint64_t pushes() const { return pushes_; }
  // Sums over the pushes: of all updates, and of the worker's own.
  double all_sum() const { return all_sum_; }
  double own_sum() const { return own_sum_; }
  // The least delay, rounded to updates, that at least `share` of the pushes did not exceed. REQUIRES: 0 < share <= 1.
  uint64_t Quantile(double share) const;
  DelaySummary Summarize(std::string table) const;

 private:
  std::vector<uint64_t> counts_;  // By delay, rounded.
  uint64_t pushes_ = 0;
  double all_sum_ = 0;
  double own_sum_ = 0;
  double max_ = 0;
};

}  // namespace lodestone::worker
