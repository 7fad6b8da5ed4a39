// What keeps a process from its first shard map, or from its lease: for its status, and logged when it is new and from
// time to time.
//
// Thread-safe; Set is called by one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/mutex.h"
#include "common/base/time_source.h"

namespace lodestone {

class LeaseWait {
 public:
  struct Wait {
    std::string what;
    double seconds = 0;
  };

  // What is waited for; empty: nothing. `has_map`: there was a shard map, so that the process could go on so far.
  void Set(const std::string& what, bool has_map);
  std::optional<Wait> Get() const;

 private:
  const SteadyTime time_{};
  int64_t logged_ms_ = 0;  // Owned by the thread that sets.

  mutable Mutex mu_;
  std::string what_ ABSL_GUARDED_BY(mu_);
  int64_t since_ms_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lodestone
