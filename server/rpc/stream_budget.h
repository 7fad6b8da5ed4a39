// The part that one stream Exchange has of the memory for calls (call_memory.h), and what it waits for there: to be
// read on, and to run calls whose answers need room.
//
// A stream that holds nothing may always be read, and the only answer of a stream has room if it is small
// (limits::kSmallAnswerBytes): what others do not read does not hold it up. For more it waits for its turn, in one
// place of each line; its calls are run in their order. A place is kept until its turn comes, also where nothing waits
// for that any more.
//
// Not thread-safe: guarded by the stream's mutex. What it returns is to be done without it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/rpc/call_memory.h"
#include "server/rpc/exchange_flow.h"

namespace lodestone::server {

class StreamBudget {
 public:
  enum class Turn { kRead, kAnswer, kLargeAnswer };
  // A call: OK runs it, and an error is its answer.
  using Run = std::function<void(const absl::Status&)>;

  // `memory`: null: there are no bounds. Both must outlive this.
  StreamBudget(CallMemory* memory, ExchangeFlow* flow) : memory_(memory), flow_(flow) {}

  // What is to be done without the mutex.
  struct Settlement {
    size_t bytes = 0, large_bytes = 0;  // To be given back: to the memory, and to its line of large answers.
    bool asked = false;                 // The stream has begun to wait.
  };
  static void Settle(const Settlement& settlement, CallMemory* memory);

  // Call once, first. `on_turn` is called when a turn has come, and its bytes count, as CallMemory's callbacks, also
  // when this is gone.
  void Start(std::function<void(Turn, size_t bytes)> on_turn) { on_turn_ = std::move(on_turn); }

  // Whether there is room to read on, or the stream holds nothing. If not, it waits for its turn.
  bool MayRead();
  // The read under way is over, and has brought `bytes`: the next may be as long.
  void OnRead(size_t bytes);

  // Whether there is room for an answer of so many bytes. If so, the flow expects it from now on.
  bool Admit(size_t bytes);
  // A call for whose answer there is none is run later. False, and it is not, after Close.
  bool Await(size_t bytes, Run run);
  // The first call that waits, if its answer is small and the stream has no other: it is to be run. Null: there is
  // none.
  Run TakeAlone();
  // The client is gone, and none waits any more. Returns those that did.
  std::vector<Run> Close();

  // A turn has come. Returns the call that has it, if any.
  Run OnTurn(Turn turn, size_t bytes);
  // Gives a turn back that came when the stream was gone.
  static void GiveBack(Turn turn, size_t bytes, CallMemory* memory) { LineOf(turn, memory).Give(bytes); }
  // Makes what is counted what the stream holds.
  Settlement Count();
  // gRPC does not use the stream any more. Returns as Count.
  Settlement End();

 private:
  struct Call {
    size_t bytes = 0;  // Of its answer.
    Run run;
  };
  static Turn TurnFor(const Call& call);
  static MemoryLine& LineOf(Turn turn, CallMemory* memory);
  void Queue(Turn turn, size_t bytes);
  void QueueFirst() { Queue(TurnFor(calls_.front()), calls_.front().bytes); }
  Run TakeFirst();

  CallMemory* const memory_;
  ExchangeFlow* const flow_;
  std::function<void(Turn, size_t)> on_turn_;
  std::array<bool, 3> queued_ = {};   // By turn: it has a place in the line for it.
  bool asked_ = false;                // It has begun to wait since the last Count.
  uint64_t counted_bytes_ = 0;        // In the memory, with the read under way, without large answers.
  uint64_t counted_large_bytes_ = 0;  // In the line of large answers,
  uint64_t large_bytes_ = 0;          // and of these, those of answers that it has.
  size_t read_bytes_ = 0;             // Of the read under way, for as long as it is and the stream holds anything.
  size_t message_bytes_ = 0;          // Of the last message.
  bool waits_to_read_ = false;
  bool may_read_ = false;   // It has its turn, and has not read yet.
  std::deque<Call> calls_;  // That wait.
  bool closed_ = false;
  bool ended_ = false;
};

}  // namespace lodestone::server
