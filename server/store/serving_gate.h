// The gate of a ps: whether it answers calls now. It is closed until the ps has its shards back; then a check, such as
// that of the ps's lease, decides call by call.
//
// Thread-safe once the check is set.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/planted_defect.h"

namespace lodestone::server {

class ServingGate {
 public:
  // `check` is asked before anything is answered for a shard; OK: this ps may. Empty: always. Call before Open.
  void SetCheck(std::function<absl::Status()> check) { check_ = std::move(check); }
  // Why it is closed, if it is not that the ps waits for others; empty: it is.
  void SetReason(std::string reason) {
    MutexLock lock(&mu_);
    reason_ = std::move(reason);
  }
  // Lets calls in. REQUIRES: called once.
  void Open() { open_.store(true, std::memory_order_release); }
  bool open() const { return open_.load(std::memory_order_acquire); }

  // UNAVAILABLE before Open.
  absl::Status CheckReady() const {
    if (open()) return absl::OkStatus();
    MutexLock lock(&mu_);
    return absl::UnavailableError(
        reason_.empty() ? "this ps owns no shards yet: it waits for the other servers of the cluster" : reason_);
  }
  // The check's status: OK if this ps may answer for its shards now.
  absl::Status CheckServing() const {
    return check_ && !Planted(Defect::kLeaseCheckSkipped) ? check_() : absl::OkStatus();
  }

 private:
  std::function<absl::Status()> check_;  // Constant once open_.
  std::atomic<bool> open_{false};
  mutable Mutex mu_;
  std::string reason_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::server
