// The part that one stream Exchange has of the memory for calls (call_memory.h), and what it waits for there: to be
// read on, and to run calls whose answers need room.
//
// A stream that holds nothing may always be read, and one answer of each stream always has room: what others do not
// read holds nobody up. For more it waits for its turn, in one place for reading and one for its calls, which are run
// in their order. A place is kept until its turn comes, also where nothing waits for that any more.
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
  enum class Turn { kRead, kAnswer };
  // A call: OK runs it, and an error is its answer.
  using Run = std::function<void(const absl::Status&)>;

  // `memory`: null: there are no bounds. Both must outlive this.
  StreamBudget(CallMemory* memory, ExchangeFlow* flow) : memory_(memory), flow_(flow) {}

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
  // The first call that waits, if the stream has no other answer: it is to be run. Null: there is none.
  Run TakeAlone();
  // The client is gone, and none waits any more. Returns those that did.
  std::vector<Run> Close();

  // A turn has come. Returns the call that has it, if any.
  Run OnTurn(Turn turn, size_t bytes);
  // Whether it has begun to wait since the last call: then CallMemory::Settle is to be called.
  bool TakeAsked() { return std::exchange(asked_, false); }
  // Makes what is counted what the stream holds, and returns what is to be given back.
  size_t Count();
  // gRPC does not use the stream any more. Returns as Count.
  size_t End();

 private:
  struct Call {
    size_t bytes = 0;  // Of its answer.
    Run run;
  };
  void Queue(Turn turn, size_t bytes);
  Run TakeFirst();

  CallMemory* const memory_;
  ExchangeFlow* const flow_;
  std::function<void(Turn, size_t)> on_turn_;
  std::array<bool, 2> queued_ = {};  // By turn: it has a place in the memory's line.
  bool asked_ = false;               // TakeAsked.
  uint64_t counted_bytes_ = 0;       // In the memory, with those of the read under way.
  size_t read_bytes_ = 0;            // Of the read under way, for as long as it is and the stream holds anything.
  size_t message_bytes_ = 0;         // Of the last message.
  bool waits_to_read_ = false;
  bool may_read_ = false;   // It has its turn, and has not read yet.
  std::deque<Call> calls_;  // That wait.
  bool closed_ = false;
  bool ended_ = false;
};

}  // namespace lodestone::server
