// Bytes that many share, and the line of those that wait for some: each has its turn, in the order of asking.
//
// Thread-safe. Callbacks run on the thread whose Give or Settle makes room, without a lock of this class. Those to whom
// a callback makes room go on after it, not within it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "proto/admin.pb.h"

namespace lodestone::server {

class MemoryLine {
 public:
  // `bytes_max` may be called on any thread, also with locks of this class. `time` must outlive this.
  MemoryLine(std::function<uint64_t()> bytes_max, const TimeSource* time)
      : bytes_max_(std::move(bytes_max)), time_(time) {}
  MemoryLine(const MemoryLine&) = delete;
  MemoryLine& operator=(const MemoryLine&) = delete;

  // True: `bytes` count from now on. False: there is no room, or others wait.
  bool Ask(uint64_t bytes);
  // `go_on` is called once `bytes` count, after those who wait. The caller calls Settle once it holds no lock. With an
  // owner: only as long as that lives; then its place is given up.
  using Owner = std::optional<std::weak_ptr<const void>>;
  void Await(uint64_t bytes, std::function<void()> go_on, Owner owner = std::nullopt);
  // Counts, room or not.
  void Take(uint64_t bytes) { bytes_.fetch_add(bytes); }
  // Gives back, and lets those go on who have room now. REQUIRES: the caller holds no lock that a callback may take.
  void Give(uint64_t bytes);
  // Lets those go on who have room now, as Give.
  void Settle();

  uint64_t bytes_max() const { return bytes_max_(); }
  uint64_t bytes() const { return bytes_.load(); }
  size_t waiting() const { return waiting_.load(); }
  // How long the first in the line has waited; 0 if none waits.
  int64_t waited_ms() const;
  int64_t NowMs() const { return time_->NowMs(); }
  // Adds those that wait, for room for `what`, to the waits, as of the ps called `who`.
  void FillStatus(const std::string& who, absl::string_view what, v1::StatusResponse* status) const;

 protected:
  std::atomic<uint64_t> bytes_{0};

 private:
  struct Waiter {
    uint64_t bytes = 0;
    int64_t since_ms = 0;
    std::function<void()> go_on;
    Owner owner;
    bool is_gone() const { return owner.has_value() && owner->expired(); }
  };
  bool Fits(uint64_t bytes) const;

  const std::function<uint64_t()> bytes_max_;
  const TimeSource* const time_;
  std::atomic<size_t> waiting_{0};  // waiters_.size().

  mutable Mutex mu_;
  std::deque<Waiter> waiters_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::server
