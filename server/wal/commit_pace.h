// The pace of the commits to the logs of one folder: decides whether the appending thread may still write itself.
//
// A write(2) that only fills the page cache takes microseconds, until the kernel makes writers wait for the disk: then
// it takes some tenths of a second, or, on a file system of the network that is away, for ever. The appending thread
// serves all clients. So once a commit was slow, or has been under way for that long, the logs' own threads write,
// until commits are fast again.
//
// Thread-safe. Shared by the logs of one folder, which outlive no commit that they have begun.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/base/limits.h"

namespace lodestone::server {

class CommitPace {
 public:
  struct Options {
    int64_t slow_ns = limits::kLogCommitSlowMs * 1'000'000;  // A commit that takes longer is slow.
    int64_t calm_ns = limits::kLogCommitCalmMs * 1'000'000;  // Since the last slow one, and commits are fast again.
  };
  CommitPace() : CommitPace(Options()) {}
  explicit CommitPace(const Options& options) : options_(options) {}
  CommitPace(const CommitPace&) = delete;
  CommitPace& operator=(const CommitPace&) = delete;

  // A commit of the log `log` begins and has ended. Times are of one steady clock.
  void Begin(uint32_t log, int64_t now_ns);
  void End(uint32_t log, int64_t began_ns, int64_t now_ns);

  // When the commit of the log that is under way began; 0: none is.
  int64_t SinceNs(uint32_t log) const { return slots_[log % kSlots].since_ns.load(std::memory_order_relaxed); }

  // Whether the logs' own threads are to write.
  bool IsSlow(int64_t now_ns);

 private:
  static constexpr size_t kSlots = 64;  // Logs that share one are looked at less exactly.
  struct alignas(64) Slot {
    std::atomic<int64_t> since_ns{0};  // Of the commit under way; 0: there is none.
  };

  void NoteSlow(int64_t now_ns, int64_t took_ns);

  const Options options_;
  std::atomic<bool> slow_{false};
  std::atomic<int64_t> slow_at_ns_{0};  // Of the last slow commit.
  std::atomic<int64_t> look_at_ns_{0};  // When to look at the commits under way again.
  std::array<Slot, kSlots> slots_;
};

}  // namespace lodestone::server
