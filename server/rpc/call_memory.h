// The bytes that a ps holds for calls: requests that are being handled, and answers that are not written yet. All
// streams share one budget; a stream that finds no room waits for it in the order of asking, so that each has its turn.
//
// What has been received counts whether there is room or not, and a stream that holds nothing may always receive a
// message: the budget is exceeded by one message of each stream at most. What is about to be received or answered asks
// for room first. The answer of a unary call, which has no turn to wait for, is refused where there is none.
//
// Large answers have a line of their own beside that, of half as many bytes more. What they wait for is that others of
// them are written, whatever else the ps holds: one of them always goes on. Those who do not read theirs hold up other
// large answers only, and are found by how long these wait (Exchange::Tick).
//
// How many bytes there are may change at any time: what the tables take there is not for calls.
//
// Thread-safe. Callbacks run on the thread whose Give or Settle makes room, without a lock of this class. Those to whom
// a callback makes room go on after it, not within it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "proto/admin.pb.h"

namespace lodestone::server {

// Bytes that many share, and the line of those that wait for some.
class MemoryLine {
 public:
  // `bytes_max` may be called on any thread, also with locks of this class. `time` must outlive this.
  MemoryLine(std::function<uint64_t()> bytes_max, const TimeSource* time)
      : bytes_max_(std::move(bytes_max)), time_(time) {}
  MemoryLine(const MemoryLine&) = delete;
  MemoryLine& operator=(const MemoryLine&) = delete;

  // True: `bytes` count from now on. False: there is no room, or others wait.
  bool Ask(uint64_t bytes);
  // `go_on` is called once `bytes` count, after those who wait. The caller calls Settle once it holds no lock.
  void Await(uint64_t bytes, std::function<void()> go_on);
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

 protected:
  const TimeSource* time() const { return time_; }
  std::atomic<uint64_t> bytes_{0};

 private:
  struct Waiter {
    uint64_t bytes = 0;
    int64_t since_ms = 0;
    std::function<void()> go_on;
  };
  bool Fits(uint64_t bytes) const;

  const std::function<uint64_t()> bytes_max_;
  const TimeSource* const time_;
  std::atomic<size_t> waiting_{0};  // waiters_.size().

  mutable Mutex mu_;
  std::deque<Waiter> waiters_ ABSL_GUARDED_BY(mu_);
};

class CallMemory : public MemoryLine {
 public:
  CallMemory(std::function<uint64_t()> bytes_max, const TimeSource* time)
      : MemoryLine(std::move(bytes_max), time), large_answers_([this] { return this->bytes_max() / 2; }, time) {}

  // Counts `bytes` more of a call that `held` count of already. RESOURCE_EXHAUSTED, saying what to do, if there is no
  // room beside what others hold; a call alone has room for any answer.
  absl::Status TakeAnswer(uint64_t bytes, uint64_t held);

  // The line of answers of more than limits::kSmallAnswerBytes.
  MemoryLine& large_answers() { return large_answers_; }
  int64_t NowMs() const { return time()->NowMs(); }

  // Sets server.call_bytes and call_bytes_max, and adds those that wait to the waits, as of the ps called `who`.
  void FillStatus(const std::string& who, v1::StatusResponse* status) const;

 private:
  MemoryLine large_answers_;
};

}  // namespace lodestone::server
