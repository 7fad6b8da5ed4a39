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
// Thread-safe, as MemoryLine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/base/time_source.h"
#include "proto/admin.pb.h"
#include "server/store/memory_line.h"

namespace lodestone::server {

class CallMemory : public MemoryLine {
 public:
  CallMemory(std::function<uint64_t()> bytes_max, const TimeSource* time)
      : MemoryLine(std::move(bytes_max), time), large_answers_([this] { return this->bytes_max() / 2; }, time) {}

  // Counts `bytes` more of a call that `held` count of already. RESOURCE_EXHAUSTED, saying what to do, if there is no
  // room beside what others hold; a call alone has room for any answer.
  absl::Status TakeAnswer(uint64_t bytes, uint64_t held);

  // The line of answers of more than limits::kSmallAnswerBytes.
  MemoryLine& large_answers() { return large_answers_; }

  // Sets server.call_bytes and call_bytes_max, and adds those that wait to the waits, as of the ps called `who`.
  void FillStatus(const std::string& who, v1::StatusResponse* status) const;

 private:
  MemoryLine large_answers_;
};

}  // namespace lodestone::server
