#include "server/rpc/shared_values.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/telemetry/copied_bytes.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "common/wire/owned_slice.h"
#include "common/wire/part.h"
#include "server/rpc/copied_slice.h"

namespace lodestone::server {
namespace {

constexpr char kSharedBytes[] = "lodestone_ps_shared_bytes_total";
constexpr char kSharedBytesHelp[] = "Payload bytes received from or given to clients of this machine in shared memory.";
CounterMetric push_metric(kSharedBytes, kSharedBytesHelp, {{"direction", "push"}});
CounterMetric pull_metric(kSharedBytes, kSharedBytesHelp, {{"direction", "pull"}});

// Bytes of the memory, which the slice keeps alive.
grpc::Slice SliceIn(std::shared_ptr<SharedMemory> memory, uint64_t offset, uint64_t bytes) {
  const uint8_t* const data = memory->data() + offset;
  return OwnedSlice(data, bytes, std::move(memory));
}

bool CarriesRows(const v1::Call& call) {
  return HasRows(call.push().parts()) || HasRows(call.push_pull().push().parts()) ||
         HasRows(call.push_pull().pull().parts());
}

}  // namespace

void SharedValues::BeginMessage(SharedUse use) {
  use_ = use;
  message_bytes_ = 0;
  if (use == SharedUse::kRefused) memory_.reset();
}

v1::Answer::SharedMemory SharedValues::Accept(const v1::SharedMemoryOffer& offer) {
  absl::Status refusal;
  if (use_ == SharedUse::kRefused) {
    refusal = absl::PermissionDeniedError(
        "this ps shares no memory: cluster.shared_memory is false, or callers must authenticate");
  } else if (std::exchange(offered_, true)) {
    refusal = absl::InvalidArgumentError("the stream has offered memory before; offer it once");
  } else {
    auto memory = SharedMemory::Attach(offer);
    if (memory.ok()) memory_ = *std::move(memory);
    refusal = memory.status();
  }
  if (refusal.ok()) return v1::Answer::ACCEPTED;
  // Usually a client of another machine: a client offers memory without knowing where the ps runs.
  LODESTONE_LOG(DEBUG, "server", "shared memory refused client={} reason={}", peer_, refusal.ToString());
  return v1::Answer::REFUSED;
}

absl::Status SharedValues::CheckRange(const v1::SharedRange& range) const {
  if (memory_ == nullptr) {
    return absl::InvalidArgumentError(
        "the call refers to shared memory, but this stream shares none; send the payload in the message");
  }
  const uint64_t size = memory_->size();
  if (range.offset() >= kSharedMemoryHead && range.bytes() <= size && range.offset() <= size - range.bytes()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("a range of ", range.bytes(), " bytes at ", range.offset(),
                                                 " lies outside the shared memory, which is from ", kSharedMemoryHead,
                                                 " to ", size));
}

absl::Status SharedValues::Take(const v1::Call& call, RequestPayload* numbers) {
  if (!call.has_values()) return absl::OkStatus();
  LODESTONE_RETURN_IF_ERROR(CheckRange(call.values()));
  if (!call.has_push() && !call.has_push_pull()) {
    return absl::InvalidArgumentError("the call has values in shared memory, but is no push");
  }
  if (numbers->payload.size() > 0) {
    return absl::InvalidArgumentError(absl::StrCat("the call has values in shared memory and ", numbers->payload.size(),
                                                   " bytes of them in the message; use one of the two"));
  }
  if (!numbers->keys.has_value() && CarriesRows(call)) {
    return absl::InvalidArgumentError(
        "the call has values of rows in shared memory, whose keys are no list; send the keys as a list");
  }
  const uint64_t offset = call.values().offset();
  const uint64_t bytes = call.values().bytes();
  // Copies of a message's ranges take at most the memory's size.
  if (bytes > memory_->size() - message_bytes_) {
    return absl::InvalidArgumentError(
        "the ranges of the message's calls are together larger than the shared memory; they must not overlap");
  }
  message_bytes_ += bytes;
  std::vector<grpc::Slice> slices;
  slices.push_back(use_ == SharedUse::kCopied ? CopiedSlice(ByteView(memory_->data() + offset, bytes))
                                              : SliceIn(memory_, offset, bytes));
  numbers->payload = Payload(std::move(slices));
  push_metric.Add(bytes);
  return absl::OkStatus();
}

absl::Status SharedValues::TakeRoom(const v1::Call& call, Room* room) const {
  if (!call.has_room()) return absl::OkStatus();
  LODESTONE_RETURN_IF_ERROR(CheckRange(call.room()));
  *room = {memory_, call.room().offset(), call.room().bytes()};
  return absl::OkStatus();
}

uint64_t SharedValues::Room::Put(std::vector<grpc::Slice>* values) const {
  if (memory == nullptr) return 0;
  uint64_t size = 0;
  for (const grpc::Slice& slice : *values) size += slice.size();
  if (size > bytes) return 0;
  uint8_t* to = memory->data() + offset;
  for (const grpc::Slice& slice : *values) {
    std::memcpy(to, slice.begin(), slice.size());
    to += slice.size();
  }
  values->clear();
  copied_bytes_metric.Add(size);
  pull_metric.Add(size);
  return size;
}

}  // namespace lodestone::server
