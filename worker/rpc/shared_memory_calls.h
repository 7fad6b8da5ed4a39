// The memory that one stream Exchange shares with a ps on the same machine. It is offered with the first call that
// would gain by it; once the ps has accepted, large values of calls and answers lie there instead of in messages.
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

// Values of fewer bytes travel in messages: sharing them gains little (tools/bench/README.md).
inline constexpr size_t kSharedBytesMin = 16 << 10;

class SharedMemoryCalls {
 public:
  // Offers memory of `bytes`; 0: none, and everything travels in messages. `peer`: the name of the ps in logs.
  // `refused` is shared by the streams of a connection, which offer nothing once one of them was refused.
  SharedMemoryCalls(std::string peer, size_t bytes,
                    std::shared_ptr<std::atomic<bool>> refused = std::make_shared<std::atomic<bool>>(false))
      : peer_(std::move(peer)), bytes_(bytes), refused_(std::move(refused)) {}
  SharedMemoryCalls(const SharedMemoryCalls&) = delete;
  SharedMemoryCalls& operator=(const SharedMemoryCalls&) = delete;

  // The ranges that a call holds.
  struct Held {
    bool offered = false;                           // The call carried the offer.
    std::shared_ptr<SharedMemoryAllocator> ranges;  // Null: none.
    std::optional<SharedMemoryAllocator::Range> values;
    std::optional<SharedMemoryAllocator::Range> room;
  };
  // Sets the fields of `call` about shared memory, and copies the values there if it has_values() then. Such a call's
  // message has no values, and its keys are a list.
  Held Put(const CallPayload& payload, v1::Call* call);

  // The payload of an answer, from the memory or from the message. Frees what the call holds: the values now, the room
  // once the payload is destroyed. INTERNAL if the answer contradicts itself.
  absl::StatusOr<Payload> Take(const v1::Answer& answer, Payload payload, Held held);

 private:
  enum class State { kNothing, kOffered, kShared, kRefused };

  // The memory if it is shared. Offers it with `call` if it has not been offered yet, and sets `offered`.
  std::shared_ptr<SharedMemoryAllocator> Ranges(v1::Call* call, bool* offered);
  // Takes the outcome of the offer.
  void Learn(v1::Answer::SharedMemory outcome);

  const std::string peer_;
  const size_t bytes_;
  const std::shared_ptr<std::atomic<bool>> refused_;
  Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kNothing;
  std::shared_ptr<SharedMemoryAllocator> ranges_ ABSL_GUARDED_BY(mu_);  // Null without memory.
};

}  // namespace lodestone::worker
