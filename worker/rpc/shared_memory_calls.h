// What one stream Exchange shares with a ps of its machine: offers it memory once a call would gain by that, and from
// then on, if it is taken, puts large values of calls there instead of into messages.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/wire/message.h"
#include "proto/parameter_server.pb.h"
#include "worker/rpc/call_payload.h"
#include "worker/rpc/shared_memory_allocator.h"

namespace lodestone::worker {

// Values of fewer bytes travel in messages: sharing them gains less than half (tools/bench/README.md).
inline constexpr size_t kSharedBytesMin = 64 << 10;

class SharedCalls {
 public:
  // Offers memory of `bytes`; 0: none, and everything travels in messages. `peer`: what logs call the ps. `refused`:
  // shared by the streams of a connection, which offer nothing once one of them was refused.
  SharedCalls(std::string peer, size_t bytes,
              std::shared_ptr<std::atomic<bool>> refused = std::make_shared<std::atomic<bool>>(false))
      : peer_(std::move(peer)), bytes_(bytes), refused_(std::move(refused)) {}
  SharedCalls(const SharedCalls&) = delete;
  SharedCalls& operator=(const SharedCalls&) = delete;

  // What a call has of the memory.
  struct Held {
    bool offered = false;                  // The call has made the offer.
    std::shared_ptr<SharedRanges> ranges;  // Null: nothing.
    std::optional<SharedRanges::Range> values;
    std::optional<SharedRanges::Range> room;
  };
  // Fills in what `call` says of shared memory, and copies its values there if they go there. They are left out of the
  // message then, whose keys are a list, as a ps that shares memory knows.
  Held Put(const CallNumbers& numbers, v1::Call* call);

  // Takes what an answer says of the memory, and returns the answer's payload, from there or from the message. What the
  // call has of the memory is free again, the room once the payload is gone. INTERNAL if the answer contradicts itself.
  absl::StatusOr<Payload> Take(const v1::Answer& answer, Payload payload, Held held);

 private:
  enum class State { kNothing, kOffered, kShared, kRefused };

  // The memory if it is shared. Offers it with `call` if it has not been offered yet, and sets `offered`.
  std::shared_ptr<SharedRanges> Ranges(v1::Call* call, bool* offered);
  // Takes what became of the offer.
  void Learn(v1::Answer::SharedMemory outcome);

  const std::string peer_;
  const size_t bytes_;
  const std::shared_ptr<std::atomic<bool>> refused_;
  Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kNothing;
  std::shared_ptr<SharedRanges> ranges_ ABSL_GUARDED_BY(mu_);  // Null without memory.
};

}  // namespace lodestone::worker
