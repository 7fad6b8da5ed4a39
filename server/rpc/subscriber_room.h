// The part that one subscriber has of the memory's line of broadcasts (call_memory.h). What a collection may bring
// counts before it begins, and until all that the subscriber holds is written; for more than there is room for it waits
// in one place of the line.
//
// Not thread-safe: guarded by the subscriber's mutex. What it frees is to be given back without that.
#pragma once

#include <cstdint>
#include <utility>

#include "server/rpc/call_memory.h"

namespace lodestone::server {

class SubscriberRoom {
 public:
  // Null: there are no bounds. Must outlive this.
  explicit SubscriberRoom(CallMemory* memory) : line_(memory == nullptr ? nullptr : &memory->broadcasts()) {}

  // Whether a collection that may bring `bytes` may begin: they count from now on, or did when its turn came.
  bool Take(uint64_t bytes) {
    if (line_ == nullptr || std::exchange(has_turn_, false)) return true;
    if (waits_) return false;
    asked_ = bytes;
    if (!line_->Ask(bytes)) return false;
    counted_ += bytes;
    return true;
  }
  // After that said no: whether a place in the line is to be taken now, for asked() bytes.
  bool BeginWait() { return !std::exchange(waits_, true); }
  uint64_t asked() const { return asked_; }
  // The turn has come, and its bytes count.
  void OnTurn() {
    waits_ = false;
    has_turn_ = true;
    counted_ += asked_;
  }
  // It is of no use any more; its bytes are given back by the caller.
  void RefuseTurn() { waits_ = false; }

  // What was collected last takes so many bytes, if they are fewer than it might have.
  void Shrink(uint64_t bytes) {
    if (bytes < asked_ && asked_ <= counted_) Free(asked_ - std::exchange(asked_, bytes));
  }
  // The subscriber holds nothing; a turn that has come stays its.
  void FreeUnlessTurn() {
    if (!has_turn_) Free(counted_);
  }
  // Nor will it collect anything for now.
  void FreeAll() {
    has_turn_ = false;
    Free(counted_);
  }
  // What has been freed since the last call.
  uint64_t TakeFreed() { return std::exchange(freed_, 0); }

 private:
  void Free(uint64_t bytes) {
    counted_ -= bytes;
    freed_ += bytes;
  }

  MemoryLine* const line_;
  uint64_t counted_ = 0;   // In the line.
  uint64_t asked_ = 0;     // For the last collection, or what is waited for.
  uint64_t freed_ = 0;     // To be given back.
  bool waits_ = false;     // It has a place in the line.
  bool has_turn_ = false;  // Its turn has come, and has not been used.
};

}  // namespace lodestone::server
