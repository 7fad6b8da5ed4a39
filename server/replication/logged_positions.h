// Positions of followed shards that may be confirmed once the logs of this ps have all updates up to there.
//
// Thread-safe. Logs that have not called back keep it alive.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "proto/replication.pb.h"
#include "server/store/store.h"

namespace lodestone::server {

class LoggedPositions : public std::enable_shared_from_this<LoggedPositions> {
 public:
  using Positions = std::vector<v1::ShardPosition>;

  // Positions that have not come back are of no use any more: another stream begins.
  void Begin();
  // Has `positions`, of updates that were appended to the logs of `store` before, come back when these have them: at
  // once, returned, if they have; otherwise by TakeReady. Never, if a log cannot be written.
  std::optional<Positions> Await(Positions positions, Store* store);
  // Waits until some have come back; false after Stop.
  bool AwaitReady();
  // Those that have come back since the last call.
  Positions TakeReady();
  void Stop();

 private:
  struct Batch {
    Positions positions;
    uint64_t stream = 0;
    std::atomic<size_t> logs{1};
    std::atomic<bool> failed{false};
  };
  void Take(const std::shared_ptr<Batch>& batch);

  Mutex mu_;
  CondVar changed_;
  uint64_t stream_ ABSL_GUARDED_BY(mu_) = 0;
  Positions ready_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

// Waits until the logs of `store` have all that was appended to them. UNAVAILABLE if one cannot be written.
absl::Status AwaitLogs(Store* store);

}  // namespace lodestone::server
