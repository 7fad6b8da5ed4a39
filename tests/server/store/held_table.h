// A table whose making stands still: after its record is in the log, and before its parts are in the shards.
#pragma once

#include <latch>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "common/base/time_source.h"
#include "server/store/store.h"

namespace lodestone::server {

// A clock that shows what another one does, and where a HeldTable is made holds up its thread.
class HoldingTime final : public TimeSource {
 public:
  explicit HoldingTime(const TimeSource* time) : time_(time) {}
  int64_t NowMs() const override {
    if (std::latch* const released = std::exchange(released_here_, nullptr); released != nullptr) {
      std::exchange(reached_here_, nullptr)->count_down();
      released->wait();
    }
    return time_->NowMs();
  }

 private:
  friend class HeldTable;
  // Of the thread that is to be held up; null for all others.
  inline static thread_local std::latch* reached_here_ = nullptr;
  inline static thread_local std::latch* released_here_ = nullptr;

  const TimeSource* const time_;
};

// Makes a table in a store whose clock is a HoldingTime, on a thread of its own. When the constructor returns, the log
// has the table; it is made once Finish is called. The catalog asks for the time between the two.
class HeldTable {
 public:
  HeldTable(Store* store, const v1::TableSpec& spec)
      : thread_([this, store, spec] {
          HoldingTime::reached_here_ = &reached_;
          HoldingTime::released_here_ = &released_;
          status_ = store->tables().Ensure(spec).status();
          if (std::exchange(HoldingTime::released_here_, nullptr) != nullptr) reached_.count_down();  // It failed.
        }) {
    reached_.wait();
  }
  ~HeldTable() { Finish().IgnoreError(); }

  absl::Status Finish() {
    if (!thread_.joinable()) return status_;
    released_.count_down();
    thread_.join();
    return status_;
  }

 private:
  std::latch reached_{1};
  std::latch released_{1};
  absl::Status status_;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace lodestone::server
