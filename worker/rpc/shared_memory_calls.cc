#include "worker/rpc/shared_memory_calls.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/telemetry/copied_bytes.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "common/wire/frame.h"
#include "common/wire/owned_slice.h"
#include "common/wire/shared_memory.h"
#include "grpcpp/support/slice.h"

namespace lodestone::worker {
namespace {

constexpr char kSharedBytes[] = "lodestone_worker_shared_bytes_total";
constexpr char kSharedBytesHelp[] = "Payload bytes handed over in memory that a ps of this machine shares.";
CounterMetric push_metric(kSharedBytes, kSharedBytesHelp, {{"direction", "push"}});
CounterMetric pull_metric(kSharedBytes, kSharedBytesHelp, {{"direction", "pull"}});

// The owner of a payload in shared memory.
class RoomOwner {
 public:
  RoomOwner(std::shared_ptr<SharedMemoryAllocator> ranges, const SharedMemoryAllocator::Range& room)
      : ranges_(std::move(ranges)), room_(room) {}
  ~RoomOwner() { ranges_->GiveBack(room_); }

 private:
  const std::shared_ptr<SharedMemoryAllocator> ranges_;
  const SharedMemoryAllocator::Range room_;
};

// The first `bytes` of `room`, which is freed with it.
Payload PayloadIn(std::shared_ptr<SharedMemoryAllocator> ranges, const SharedMemoryAllocator::Range& room,
                  size_t bytes) {
  return Payload({OwnedSlice(room.data, bytes, std::make_unique<RoomOwner>(std::move(ranges), room))});
}

}  // namespace

std::shared_ptr<SharedMemoryAllocator> SharedMemoryCalls::Ranges(v1::Call* call, bool* offered) {
  MutexLock lock(&mu_);
  if (state_ == State::kShared) return ranges_;
  if (state_ != State::kNothing || refused_->load(std::memory_order_relaxed)) return nullptr;
  auto memory = SharedMemory::Make(bytes_);
  if (!memory.ok()) {
    LODESTONE_LOG(INFO, "client", "shares no memory with={} reason={}", peer_, memory.status().ToString());
    state_ = State::kRefused;
    refused_->store(true, std::memory_order_relaxed);
    return nullptr;
  }
  *call->mutable_shared_memory() = (*memory)->Offer();
  ranges_ = std::make_shared<SharedMemoryAllocator>(*std::move(memory));
  state_ = State::kOffered;
  *offered = true;
  return nullptr;
}

SharedMemoryCalls::Held SharedMemoryCalls::Put(const CallPayload& payload, v1::Call* call) {
  call->clear_shared_memory();
  call->clear_values();
  call->clear_room();
  Held held;
  if (bytes_ == 0) return held;
  const size_t value_bytes = SizeOf(payload.values);
  const bool values = value_bytes >= kSharedBytesMin;
  const bool room = payload.answer_bytes >= kSharedBytesMin;
  if (!values && !room) return held;
  held.ranges = Ranges(call, &held.offered);
  if (held.ranges == nullptr) return held;
  if (values) held.values = held.ranges->Take(value_bytes);
  if (room) held.room = held.ranges->Take(payload.answer_bytes);
  if (held.values.has_value()) {
    uint8_t* to = held.values->data;
    for (const grpc::Slice& slice : payload.values) {
      std::memcpy(to, slice.begin(), slice.size());
      to += slice.size();
    }
    copied_bytes_metric.Add(value_bytes);
    push_metric.Add(value_bytes);
    *call->mutable_values() = ToProto(*held.values);
  }
  if (held.room.has_value()) *call->mutable_room() = ToProto(*held.room);
  return held;
}

void SharedMemoryCalls::Learn(v1::Answer::SharedMemory outcome) {
  MutexLock lock(&mu_);
  if (outcome == v1::Answer::ACCEPTED) {
    LODESTONE_LOG(INFO, "client", "shares memory with={} bytes_max={}", peer_, bytes_);
    state_ = State::kShared;
    return;
  }
  // Or knows nothing of it.
  LODESTONE_LOG(DEBUG, "client", "shares no memory with={}, which refuses; its log says why at level debug", peer_);
  state_ = State::kRefused;
  refused_->store(true, std::memory_order_relaxed);
  ranges_.reset();
}

absl::StatusOr<Payload> SharedMemoryCalls::Take(const v1::Answer& answer, Payload payload, Held held) {
  if (held.offered) Learn(answer.shared_memory());
  if (held.values.has_value()) held.ranges->GiveBack(*held.values);
  if (answer.shared_bytes() == 0) {
    if (held.room.has_value()) held.ranges->GiveBack(*held.room);
    return payload;
  }
  if (!held.room.has_value() || answer.shared_bytes() > held.room->bytes || payload.size() > 0) {
    return absl::InternalError(absl::StrCat("an answer with ", answer.shared_bytes(), " bytes in shared memory and ",
                                            payload.size(), " in the message, to a call with room for ",
                                            held.room.has_value() ? held.room->bytes : uint64_t{0}));
  }
  pull_metric.Add(answer.shared_bytes());
  return PayloadIn(std::move(held.ranges), *held.room, answer.shared_bytes());
}

}  // namespace lodestone::worker
