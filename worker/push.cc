#include "worker/push.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/status.h"
#include "common/wire.h"
#include "proto/parameter_server.pb.h"

namespace lodestone {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers travel as they lie in memory");

// Copies `count` numbers to *at and moves it on.
template <typename T>
void Put(uint8_t** at, const T* numbers, size_t count) {
  std::memcpy(*at, numbers, count * sizeof(T));
  *at += count * sizeof(T);
}

void FreeBytes(void* bytes) { delete[] static_cast<uint8_t*>(bytes); }

// The shards of `message`, in order of first appearance.
std::vector<ShardId> ShardsOf(const RoutedMessage& message) {
  std::vector<ShardId> shards;
  shards.reserve(message.shards);
  for (const RoutedPart& part : message.parts) {
    if (shards.empty() || shards.back() != part.shard) shards.push_back(part.shard);
  }
  return shards;
}

absl::StatusOr<v1::PushResponse> ParseAnswer(const grpc::ByteBuffer& answer, std::span<const ShardId> shards) {
  v1::PushResponse response;
  Payload payload;
  if (absl::Status status = ParseMessage(answer, &response, &payload); !status.ok()) {
    return absl::InternalError(absl::StrCat("the answer is malformed: ", status.message()));
  }
  if (response.shards_size() != shards.size()) {
    return absl::InternalError(
        absl::StrCat("the answer names ", response.shards_size(), " shards, the push had ", shards.size()));
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    if (response.shards(i).shard() != shards[i]) {
      return absl::InternalError(
          absl::StrCat("the answer names shard ", response.shards(i).shard(), " in the place of shard ", shards[i]));
    }
  }
  return response;
}

}  // namespace

// One push: done when no message of it is under way.
struct Pusher::Operation {
  // Constant.
  ShardVersions read_versions;
  std::function<void(Client::PushResult)> done;

  Mutex mu;
  size_t messages ABSL_GUARDED_BY(mu) = 1;  // Under way, and one more while messages are being sent.
  absl::Status status ABSL_GUARDED_BY(mu);
  std::vector<StalenessMeter::Applied> applied ABSL_GUARDED_BY(mu);  // By shard, each once.

  void Begin() {
    MutexLock lock(&mu);
    ++messages;
  }

  void Apply(ShardId shard, Version version) {
    MutexLock lock(&mu);
    const auto at = std::lower_bound(applied.begin(), applied.end(), shard,
                                     [](const StalenessMeter::Applied& a, ShardId s) { return a.shard < s; });
    if (at != applied.end() && at->shard == shard) {
      at->version = std::max(at->version, version);
    } else {
      applied.insert(at, {shard, version});
    }
  }

  // True for the last one.
  bool End(const absl::Status& message_status) {
    MutexLock lock(&mu);
    if (status.ok()) status = message_status;
    return --messages == 0;
  }
};

absl::Status Pusher::Push(Clock clock, std::span<const DenseGradient> dense, std::span<const RowGradients> rows,
                          const ShardVersions& read_versions, std::function<void(Client::PushResult)> done) {
  std::vector<const TableHandle*> tables;
  for (const DenseGradient& gradient : dense) tables.push_back(gradient.table);
  std::vector<KeysOfTable> keys;
  for (const RowGradients& gradients : rows) keys.push_back({gradients.table, gradients.keys});
  LODESTONE_ASSIGN_OR_RETURN(const Routing routing, Route(*servers_.map, {tables, keys}, servers_.limits));
  LODESTONE_RETURN_IF_ERROR(window_.Enter(window_timeout_ms_));

  auto operation = std::make_shared<Operation>();
  operation->read_versions = read_versions;
  operation->done = std::move(done);
  absl::Status status;
  for (const RoutedMessage& message : routing.messages) {
    const absl::StatusOr<Sequence> sequence = window_.NextSequence(window_timeout_ms_);
    if (!sequence.ok()) {
      status = sequence.status();
      break;
    }
    operation->Begin();
    Send(message, *sequence, clock, PushPayload(message, dense, rows), operation);
  }
  EndMessage(operation.get(), status);
  return absl::OkStatus();
}

void Pusher::Send(const RoutedMessage& message, Sequence sequence, Clock clock, grpc::Slice payload,
                  std::shared_ptr<Operation> operation) {
  v1::PushRequest request;
  request.set_worker_incarnation(servers_.incarnation);
  request.set_sequence(sequence);
  request.set_clock(clock);
  request.mutable_parts()->Reserve(static_cast<int>(message.parts.size()));
  for (const RoutedPart& part : message.parts) *request.add_parts() = ToProto(part);
  servers_.callers[message.server]->Call(
      "Push", absl::StrCat("push sequence=", sequence, " clock=", clock), BuildMessage(request, {&payload, 1}),
      [this, server = message.server, sequence, shards = ShardsOf(message),
       operation = std::move(operation)](const absl::StatusOr<grpc::ByteBuffer>& answer) {
        OnAnswer(answer, server, sequence, shards, operation.get());
      });
}

void Pusher::OnAnswer(const absl::StatusOr<grpc::ByteBuffer>& answer, uint32_t server, Sequence sequence,
                      std::span<const ShardId> shards, Operation* operation) {
  window_.Acknowledge(sequence);
  if (!answer.ok()) {
    if (absl::IsFailedPrecondition(answer.status())) servers_.on_lost(answer.status());
    EndMessage(operation, answer.status());
    return;
  }
  const absl::StatusOr<v1::PushResponse> response = ParseAnswer(*answer, shards);
  if (!response.ok()) {
    EndMessage(operation, Annotate(response.status(),
                                   absl::StrCat("push sequence=", sequence, " to ", servers_.callers[server]->peer())));
    return;
  }
  for (const auto& result : response->shards()) {
    if (!result.duplicate()) staleness_.Record(result.shard(), result.version());
    operation->Apply(result.shard(), result.version());
  }
  EndMessage(operation, absl::OkStatus());
}

void Pusher::EndMessage(Operation* operation, const absl::Status& message_status) {
  if (!operation->End(message_status)) return;
  Client::PushResult result;
  {
    MutexLock lock(&operation->mu);
    result.status = operation->status;
    result.staleness_pushes = staleness_.Measure(operation->applied, operation->read_versions);
  }
  const absl::Status status = result.status;
  if (operation->done) operation->done(std::move(result));
  window_.Leave(status);
}

grpc::Slice PushPayload(const RoutedMessage& message, std::span<const DenseGradient> dense,
                        std::span<const RowGradients> rows) {
  size_t size = 0;
  for (const RoutedPart& part : message.parts) {
    size += ValueCount(part) * sizeof(float) + (part.dense ? 0 : part.items.size() * sizeof(Key));
  }
  if (size == 0) return grpc::Slice();
  auto* const bytes = new uint8_t[size];
  uint8_t* at = bytes;
  for (const RoutedPart& part : message.parts) {
    if (part.dense) {
      const BlockLayout& layout = part.table->layout;
      const float* values = dense[part.source].values;
      for (BlockIndex block : part.items) {
        Put(&at, values + uint64_t{block} * layout.block_elements, layout.ElementsOf(block));
      }
    } else {
      const RowGradients& source = rows[part.source];
      const size_t dim = part.table->dim;
      for (uint32_t row : part.items) Put(&at, &source.keys[row], 1);
      for (uint32_t row : part.items) Put(&at, source.values + row * dim, dim);
    }
  }
  return grpc::Slice(bytes, size, FreeBytes);
}

}  // namespace lodestone
