// The outcomes of a training's pushes, as their callbacks report them: how many were acknowledged, refused or late,
// their delay, and which versions they became.
//
// Thread-safe. It may outlive the tables, as a push may end after its job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "worker/client/client.h"
#include "worker/client/table_handle.h"
#include "worker/client/types.h"
#include "worker/metrics/delay_counts.h"

namespace lodestone::worker {

class PushTally {
 public:
  struct Counts {
    uint64_t acknowledged = 0;
    uint64_t refused = 0;     // By a table's guard.
    uint64_t late = 0;        // Contributions to steps that had been applied,
    uint64_t duplicates = 0;  // and those that another worker had brought.
    // Of the table with the greatest delay in each push: the others' updates, and all.
    double staleness_sum = 0;
    double delay_sum = 0;
    absl::Status error;  // The first.
  };

  // `tables`: those of the pushes' delays.
  PushTally(const std::vector<TableHandle>& tables, uint32_t shards);

  // Whether a push that is refused is an error.
  void SetAllCount(bool all_count);
  void Add(const Client::PushResult& result);
  // By shard, the newest version that a push of this worker became.
  ShardVersions Applied();
  // By table, in their order, of those that have been measured.
  std::vector<DelaySummary> Delays();
  Counts Get();

 private:
  const TableHandle* const first_;  // Only the address is used: the tables may be gone.
  std::vector<std::string> names_;

  Mutex mu_;
  bool all_count_ ABSL_GUARDED_BY(mu_) = false;
  Counts counts_ ABSL_GUARDED_BY(mu_);
  std::vector<DelayCounts> delays_ ABSL_GUARDED_BY(mu_);  // Beside names_.
  ShardVersions applied_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::worker
