#include "worker/push.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/copy_counter.h"
#include "common/mutex.h"
#include "common/status.h"
#include "proto/parameter_server.pb.h"

namespace lodestone {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers travel as they lie in memory");

// The shards of `message`, in order of first appearance.
std::vector<ShardId> ShardsOf(const RoutedMessage& message) {
  std::vector<ShardId> shards;
  shards.reserve(message.shards);
  for (const RoutedPart& part : message.parts) {
    if (shards.empty() || shards.back() != part.shard) shards.push_back(part.shard);
  }
  return shards;
}

// Checks that `answer` is one to a push of `shards`.
absl::Status CheckAnswer(const v1::Answer& answer, std::span<const ShardId> shards) {
  if (!answer.has_push()) return absl::InternalError("the answer is not one to a push");
  const v1::PushResponse& response = answer.push();
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
  return absl::OkStatus();
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

  // Ends one, if it is not the last.
  bool EndUnlessLast() {
    MutexLock lock(&mu);
    if (messages == 1) return false;
    --messages;
    return true;
  }

  // True for the last one.
  bool End(const absl::Status& message_status) {
    MutexLock lock(&mu);
    if (status.ok()) status = message_status;
    return --messages == 0;
  }
};

// Lives as long as anything refers to the borrowed gradients of a push, which is not done before. May end anywhere
// within gRPC, so the timer's thread does what follows.
class Pusher::Release {
 public:
  Release(Pusher* pusher, std::shared_ptr<Operation> operation) : pusher_(pusher), operation_(std::move(operation)) {
    operation_->Begin();
    MutexLock lock(&pusher_->mu_);
    ++pusher_->borrowed_;
  }
  ~Release() {
    // As a rule the answers come later than this, and there is nothing to do but to count.
    if (operation_->EndUnlessLast()) {
      Forget(pusher_);
      return;
    }
    pusher_->servers_.timer->After(0, [pusher = pusher_, operation = std::move(operation_)] {
      pusher->EndMessage(operation.get(), absl::OkStatus());
      Forget(pusher);
    });
  }

 private:
  static void Forget(Pusher* pusher) {
    MutexLock lock(&pusher->mu_);
    if (--pusher->borrowed_ == 0) pusher->released_.NotifyAll();
  }

  Pusher* const pusher_;
  std::shared_ptr<Operation> operation_;
};

Pusher::~Pusher() {
  MutexLock lock(&mu_);
  while (borrowed_ > 0) released_.Wait(&mu_);
}

absl::Status Pusher::Push(Clock clock, std::span<const DenseGradient> dense, std::span<const RowGradients> rows,
                          const ShardVersions& read_versions, std::function<void(Client::PushResult)> done) {
  std::vector<const TableHandle*> tables;
  for (const DenseGradient& gradient : dense) tables.push_back(gradient.table);
  std::vector<KeysOfTable> keys;
  for (const RowGradients& gradients : rows) keys.push_back({gradients.table, gradients.keys});
  LODESTONE_ASSIGN_OR_RETURN(const Routing routing, Route(*servers_.map(), {tables, keys}, servers_.limits));
  LODESTONE_RETURN_IF_ERROR(window_.Enter(window_timeout_ms_));

  auto operation = std::make_shared<Operation>();
  operation->read_versions = read_versions;
  operation->done = std::move(done);
  std::shared_ptr<void> release;
  if (std::any_of(dense.begin(), dense.end(), [](const DenseGradient& gradient) { return gradient.borrowed; })) {
    release = std::make_shared<Release>(this, operation);
  }
  absl::Status status;
  for (const RoutedMessage& message : routing.messages) {
    const absl::StatusOr<Sequence> sequence = window_.NextSequence(window_timeout_ms_);
    if (!sequence.ok()) {
      status = sequence.status();
      break;
    }
    operation->Begin();
    Send(message, *sequence, clock, PushPayload(message, dense, rows, release), operation);
  }
  release.reset();
  EndMessage(operation.get(), status);
  return absl::OkStatus();
}

void Pusher::Send(const RoutedMessage& message, Sequence sequence, Clock clock, std::vector<grpc::Slice> payload,
                  std::shared_ptr<Operation> operation) {
  v1::Call call;
  v1::PushRequest& request = *call.mutable_push();
  request.set_worker_incarnation(servers_.incarnation);
  request.set_sequence(sequence);
  request.set_clock(clock);
  request.mutable_parts()->Reserve(static_cast<int>(message.parts.size()));
  for (const RoutedPart& part : message.parts) *request.add_parts() = ToProto(part);
  servers_.callers[message.server]->Call(
      std::move(call), std::move(payload), absl::StrCat("push sequence=", sequence, " clock=", clock),
      [this, server = message.server, sequence, shards = ShardsOf(message),
       operation = std::move(operation)](const absl::StatusOr<Connection::Answer>& answer) {
        OnAnswer(answer, server, sequence, shards, operation.get());
      });
}

void Pusher::OnAnswer(const absl::StatusOr<Connection::Answer>& answer, uint32_t server, Sequence sequence,
                      std::span<const ShardId> shards, Operation* operation) {
  window_.Acknowledge(sequence);
  if (!answer.ok()) {
    if (absl::IsFailedPrecondition(answer.status())) servers_.on_lost(answer.status());
    EndMessage(operation, answer.status());
    return;
  }
  if (const absl::Status status = CheckAnswer(answer->header, shards); !status.ok()) {
    EndMessage(operation,
               Annotate(status, absl::StrCat("push sequence=", sequence, " to ", servers_.callers[server]->peer())));
    return;
  }
  for (const auto& result : answer->header.push().shards()) {
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
  window_.Leave(absl::IsOutOfRange(status) ? absl::OkStatus() : status);
}

namespace {

// Builds a payload from copies, of which adjacent ones share a slice, and references.
class PayloadBuilder {
 public:
  // `copied_bytes`: of all that Copy will be given.
  explicit PayloadBuilder(size_t copied_bytes)
      : buffer_(copied_bytes == 0 ? nullptr : std::shared_ptr<uint8_t[]>(new uint8_t[copied_bytes])),
        from_(buffer_.get()),
        at_(from_) {}

  template <typename T>
  void Copy(const T* numbers, size_t count) {
    std::memcpy(at_, numbers, count * sizeof(T));
    at_ += count * sizeof(T);
  }

  // `owner` is kept as long as the slice lives.
  void Refer(const float* numbers, size_t count, const std::shared_ptr<void>& owner) {
    Cut();
    Add(numbers, count * sizeof(float), owner);
  }

  std::vector<grpc::Slice> Finish() {
    Cut();
    return std::move(slices_);
  }

 private:
  void Cut() {
    if (at_ != from_) Add(from_, at_ - from_, buffer_);
    from_ = at_;
  }
  void Add(const void* bytes, size_t size, const std::shared_ptr<void>& owner) {
    slices_.emplace_back(
        const_cast<void*>(bytes), size, [](void* kept) { delete static_cast<std::shared_ptr<void>*>(kept); },
        new std::shared_ptr<void>(owner));
  }

  const std::shared_ptr<uint8_t[]> buffer_;
  uint8_t* from_;  // Of what is not in a slice yet.
  uint8_t* at_;
  std::vector<grpc::Slice> slices_;
};

}  // namespace

std::vector<grpc::Slice> PushPayload(const RoutedMessage& message, std::span<const DenseGradient> dense,
                                     std::span<const RowGradients> rows, std::shared_ptr<void> release) {
  size_t copied = 0;
  for (const RoutedPart& part : message.parts) {
    if (part.dense && dense[part.source].borrowed) continue;
    copied += ValueCount(part) * sizeof(float) + (part.dense ? 0 : part.items.size() * sizeof(Key));
  }
  CountCopied(copied);
  PayloadBuilder payload(copied);
  for (const RoutedPart& part : message.parts) {
    if (part.dense) {
      const BlockLayout& layout = part.table->layout;
      const DenseGradient& gradient = dense[part.source];
      for (BlockIndex block : part.items) {
        const float* values = gradient.values + uint64_t{block} * layout.block_elements;
        if (gradient.borrowed) {
          payload.Refer(values, layout.ElementsOf(block), release);
        } else {
          payload.Copy(values, layout.ElementsOf(block));
        }
      }
    } else {
      const RowGradients& source = rows[part.source];
      const size_t dim = part.table->dim;
      for (uint32_t row : part.items) payload.Copy(&source.keys[row], 1);
      for (uint32_t row : part.items) payload.Copy(source.values + row * dim, dim);
    }
  }
  return payload.Finish();
}

}  // namespace lodestone
