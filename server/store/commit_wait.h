// A wait for a number of commits: records that were appended and are to become durable, or to be held by followers.
//
// Thread-safe. REQUIRES: it outlives the callbacks that are to reach it.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "common/base/mutex.h"

namespace lodestone::server {

class CommitWait {
 public:
  explicit CommitWait(size_t count) : left_(count) {}

  // One of them has ended so.
  void Done(const absl::Status& status) {
    MutexLock lock(&mu_);
    status_.Update(status);
    if (--left_ == 0) changed_.NotifyAll();
  }
  // Waits for all. The first error, or OK.
  absl::Status Wait() {
    MutexLock lock(&mu_);
    while (left_ > 0) changed_.Wait(&mu_);
    return status_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  size_t left_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::server
