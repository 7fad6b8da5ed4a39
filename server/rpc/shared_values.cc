#include "server/rpc/shared_values.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "server/store/copied_bytes.h"

namespace lodestone::server {
namespace {

constexpr char kSharedBytes[] = "lodestone_ps_shared_bytes_total";
constexpr char kSharedBytesHelp[] = "Payload bytes handed over in memory that clients of this machine share.";
CounterMetric push_metric(kSharedBytes, kSharedBytesHelp, {{"direction", "push"}});
CounterMetric pull_metric(kSharedBytes, kSharedBytesHelp, {{"direction", "pull"}});

// Bytes of the memory, which stays as long as the slice does.
grpc::Slice SliceIn(std::shared_ptr<SharedMemory> memory, uint64_t offset, uint64_t bytes) {
  uint8_t* const data = memory->data() + offset;
  return grpc::Slice(
      data, bytes, [](void* kept) { delete static_cast<std::shared_ptr<SharedMemory>*>(kept); },
      new std::shared_ptr<SharedMemory>(std::move(memory)));
}

// Bytes of the memory, copied.
grpc::Slice CopyOf(const SharedMemory& memory, uint64_t offset, uint64_t bytes) {
  grpc::Slice copy(bytes);
  std::memcpy(const_cast<uint8_t*>(copy.begin()), memory.data() + offset, bytes);  // Nobody else has it yet.
  copied_bytes_metric.Add(bytes);
  return copy;
}

bool HasRows(const google::protobuf::RepeatedPtrField<v1::Part>& parts) {
  return std::any_of(parts.begin(), parts.end(), [](const v1::Part& part) { return part.row_count() > 0; });
}

bool HasRows(const v1::Call& call) {
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
    refusal = absl::PermissionDeniedError("this ps shares no memory: cluster.shared_memory, or who calls is asked for");
  } else if (std::exchange(offered_, true)) {
    refusal = absl::InvalidArgumentError("a stream offers memory once");
  } else {
    auto memory = SharedMemory::Attach(offer);
    if (memory.ok()) memory_ = *std::move(memory);
    refusal = memory.status();
  }
  if (refusal.ok()) return v1::Answer::ACCEPTED;
  // As a rule a client of another machine, which offers what it has.
  LODESTONE_LOG(DEBUG, "server", "shares no memory with={} reason={}", peer_, refusal.ToString());
  return v1::Answer::REFUSED;
}

absl::Status SharedValues::CheckRange(const v1::SharedRange& range) const {
  if (memory_ == nullptr) return absl::InvalidArgumentError("values in shared memory, but this stream shares none");
  const uint64_t size = memory_->size();
  if (range.offset() >= kSharedMemoryHead && range.bytes() <= size && range.offset() <= size - range.bytes()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(range.bytes(), " bytes at ", range.offset(), " do not lie between ",
                                                 kSharedMemoryHead, " and ", size, ", the memory that is shared"));
}

absl::Status SharedValues::Take(const v1::Call& call, RequestPayload* numbers) {
  if (!call.has_values()) return absl::OkStatus();
  LODESTONE_RETURN_IF_ERROR(CheckRange(call.values()));
  if (!call.has_push() && !call.has_push_pull()) {
    return absl::InvalidArgumentError("values in shared memory for a call that is no push");
  }
  if (numbers->payload.size() > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("values in shared memory, and ", numbers->payload.size(), " bytes of them in the message"));
  }
  if (!numbers->keys.has_value() && HasRows(call)) {
    return absl::InvalidArgumentError("values of rows in shared memory, whose keys are no list of their own");
  }
  const uint64_t offset = call.values().offset();
  const uint64_t bytes = call.values().bytes();
  // So that copies do not take more than the memory has.
  if (bytes > memory_->size() - message_bytes_) {
    return absl::InvalidArgumentError("a message's calls have ranges of shared memory in common");
  }
  message_bytes_ += bytes;
  std::vector<grpc::Slice> slices;
  slices.push_back(use_ == SharedUse::kCopied ? CopyOf(*memory_, offset, bytes) : SliceIn(memory_, offset, bytes));
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
