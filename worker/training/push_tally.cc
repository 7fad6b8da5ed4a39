#include "worker/training/push_tally.h"

#include <algorithm>

#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"

namespace lodestone::worker {
namespace {

HistogramMetric staleness_metric("lodestone_worker_staleness_pushes",
                                 "Pushes by others between the reading of values and the push computed from them.", {},
                                 Histogram::Of::kNumbers);
HistogramMetric delay_metric("lodestone_worker_delay_updates",
                             "Updates, own and others', between the reading of values and the application of the push "
                             "computed from them, of the table that had most.",
                             {}, Histogram::Of::kNumbers);
CounterMetric refused_metric("lodestone_worker_pushes_refused_total", "Pushes that a table's guard refused.");

}  // namespace

PushTally::PushTally(const std::vector<TableHandle>& tables, uint32_t shards)
    : first_(tables.data()), delays_(tables.size()), applied_(shards, 0) {
  for (const TableHandle& table : tables) names_.push_back(table.spec.name());
}

void PushTally::SetAllCount(bool all_count) {
  MutexLock lock(&mu_);
  all_count_ = all_count;
}

void PushTally::Add(const Client::PushResult& result) {
  MutexLock lock(&mu_);
  // A step without one of its batches is never applied.
  if (absl::IsOutOfRange(result.status) && !all_count_) {
    refused_metric.Add(1);
    if (++counts_.refused == 1) LODESTONE_LOG(WARN, "trainer", "a push was refused: {}", result.status.ToString());
    return;
  }
  if (!result.status.ok()) {
    if (counts_.error.ok()) counts_.error = result.status;
    return;
  }
  Delay greatest;
  for (const PushDelay& of : result.delays) {
    delays_[static_cast<size_t>(of.table - first_)].Add(of.delay.own, of.delay.others);
    if (of.delay.all() > greatest.all()) greatest = of.delay;
  }
  staleness_metric.ObserveNumber(greatest.others);
  delay_metric.ObserveNumber(greatest.all());
  for (const auto& [shard, version] : result.applied) applied_[shard] = std::max(applied_[shard], version);
  ++counts_.acknowledged;
  counts_.late += result.late;
  counts_.duplicates += result.duplicate;
  counts_.staleness_sum += greatest.others;
  counts_.delay_sum += greatest.all();
}

ShardVersions PushTally::Applied() {
  MutexLock lock(&mu_);
  return applied_;
}

std::vector<DelaySummary> PushTally::Delays() {
  std::vector<DelaySummary> summaries;
  MutexLock lock(&mu_);
  for (size_t t = 0; t < delays_.size(); ++t) {
    if (delays_[t].pushes() > 0) summaries.push_back(delays_[t].Summarize(names_[t]));
  }
  return summaries;
}

PushTally::Counts PushTally::Get() {
  MutexLock lock(&mu_);
  return counts_;
}

}  // namespace lodestone::worker
