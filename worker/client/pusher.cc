#include "worker/client/pusher.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/telemetry/metrics.h"
#include "proto/parameter_server.pb.h"
#include "worker/client/payload_metrics.h"

namespace lodestone::worker {
namespace {

HistogramMetric push_metric("lodestone_worker_push_duration_seconds",
                            "From the sending of a push until every server has acknowledged it.");

// Checks that `response` is one to `request`: it names the shards in order of first appearance.
absl::Status CheckAnswer(const v1::PushResponse& response, const v1::PushRequest& request) {
  int shards = 0;
  std::optional<ShardId> last;
  for (const v1::Part& part : request.parts()) {
    if (last == part.shard()) continue;
    last = part.shard();
    if (shards < response.shards_size() && response.shards(shards).shard() != *last) {
      return absl::InternalError(
          absl::StrCat("the answer names shard ", response.shards(shards).shard(), " in the place of shard ", *last));
    }
    ++shards;
  }
  if (response.shards_size() == shards) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the answer names ", response.shards_size(), " shards, the push had ", shards));
}

}  // namespace

// One push: done when no message of it is under way.
struct Pusher::Operation {
  // Constant.
  int64_t started_ns = 0;
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

absl::StatusOr<Routing> RouteBy(const ShardMap& map, const PushWork& work, const MessageLimits& limits) {
  std::vector<const TableHandle*> tables;
  for (const DenseGradient& gradient : work.dense) tables.push_back(gradient.table);
  std::vector<KeysOfTable> keys;
  for (const RowGradients& gradients : work.rows) keys.push_back({gradients.table, gradients.keys});
  return Route(map, {tables, keys}, limits);
}

absl::Status Pusher::Push(Clock clock, const PushWork& work, std::function<void(Client::PushResult)> done) {
  const std::shared_ptr<const ShardMap> map = servers_.map();
  LODESTONE_ASSIGN_OR_RETURN(const Routing routing, RouteBy(*map, work, servers_.limits));
  return Push(clock, work, *map, routing, {}, std::move(done));
}

absl::Status Pusher::Push(Clock clock, const PushWork& work, const ShardMap& map, const Routing& routing,
                          const Riders& riders, std::function<void(Client::PushResult)> done) {
  LODESTONE_RETURN_IF_ERROR(window_.Enter(window_timeout_ms_));

  auto operation = std::make_shared<Operation>();
  operation->started_ns = NowNs();
  operation->read_versions = work.read_versions;
  operation->done = std::move(done);
  std::shared_ptr<void> release;
  if (std::any_of(work.dense.begin(), work.dense.end(), [](const DenseGradient& dense) { return dense.borrowed; })) {
    release = std::make_shared<Release>(this, operation);
  }
  absl::Status status;
  for (size_t m = 0; m < routing.messages.size(); ++m) {
    const RoutedMessage& message = routing.messages[m];
    const absl::StatusOr<Sequence> sequence = window_.NextSequence(window_timeout_ms_);
    if (!sequence.ok()) {
      status = sequence.status();
      break;
    }
    operation->Begin();
    Piece piece{.server = message.server, .sequence = *sequence, .operation = operation};
    if (m < riders.size()) piece.rider = riders[m];
    Caller::Message sent{.numbers = PushNumbers(message, work.dense, work.rows, release, piece.rider.get()),
                         .what = absl::StrCat("push sequence=", *sequence, " clock=", clock),
                         .epoch = map.epoch()};
    if (piece.rider != nullptr) *sent.call.mutable_push_pull()->mutable_pull() = piece.rider->request;
    v1::PushRequest& request =
        piece.rider != nullptr ? *sent.call.mutable_push_pull()->mutable_push() : *sent.call.mutable_push();
    request.set_worker_incarnation(servers_.incarnation);
    request.set_sequence(*sequence);
    request.set_clock(clock);
    request.mutable_parts()->Reserve(static_cast<int>(message.parts.size()));
    for (size_t i = 0; i < message.parts.size(); ++i) {
      *request.add_parts() = ToProto(message.parts[i]);
      push_bytes_metric.Add(sent.numbers.parts[i].key_bytes + sent.numbers.parts[i].value_bytes);
    }
    Send(std::move(sent), std::move(piece));
  }
  release.reset();
  EndMessage(operation.get(), status);
  return absl::OkStatus();
}

void Pusher::Send(Caller::Message message, Piece piece) {
  piece.known = servers_.sessions->IsOpen(piece.server);
  Caller* const caller = servers_.callers[piece.server].get();
  caller->Call(std::move(message), [this, piece = std::move(piece)](const absl::StatusOr<Connection::Answer>& answer,
                                                                    Caller::Message* message) mutable {
    OnAnswer(answer, message, &piece);
  });
}

void Pusher::OnAnswer(const absl::StatusOr<Connection::Answer>& answer, Caller::Message* message, Piece* piece) {
  const absl::Status& status = answer.status();
  if (status.ok()) return EndPiece(*piece, TakeAnswer(*answer, message->call, *piece));
  if (std::exchange(piece->rider, nullptr) != nullptr) DropPull(message);  // What is sent again is the push alone.
  if (absl::IsAborted(status)) return OnTurnedBack(status, message, piece);
  if (IsUnknownThere(status) && !piece->known) return OnUnknown(message, piece);
  if (absl::IsFailedPrecondition(status)) servers_.on_lost(status);
  EndPiece(*piece, status);
}

absl::Status Pusher::TakeAnswer(const Connection::Answer& answer, const v1::Call& call, const Piece& piece) {
  const bool both = piece.rider != nullptr;
  const v1::Answer& header = answer.header;
  const v1::PushResponse& response = both ? header.push_pull().push() : header.push();
  absl::Status status = (both ? header.has_push_pull() : header.has_push())
                            ? CheckAnswer(response, both ? call.push_pull().push() : call.push())
                            : absl::InternalError("the answer is not one to a push");
  if (status.ok() && both) status = piece.rider->take(header.push_pull().pull(), answer.payload);
  if (!status.ok()) {
    return Annotate(status,
                    absl::StrCat("push sequence=", piece.sequence, " to ", servers_.callers[piece.server]->peer()));
  }
  for (const auto& result : response.shards()) {
    if (!result.duplicate()) staleness_.Record(result.shard(), result.version());
    piece.operation->Apply(result.shard(), result.version());
  }
  return absl::OkStatus();
}

void Pusher::OnTurnedBack(const absl::Status& status, Caller::Message* message, Piece* piece) {
  const auto again = std::make_shared<Caller::Message>(std::move(*message));
  servers_.reroutes->TurnBack(
      status, again.get(),
      [this, again, piece = std::move(*piece)](const absl::StatusOr<std::shared_ptr<const ShardMap>>& map) {
        if (!map.ok()) return EndPiece(piece, map.status());
        SendAgain(**map, std::move(*again), piece);
      });
}

void Pusher::OnUnknown(Caller::Message* message, Piece* piece) {
  const auto again = std::make_shared<Caller::Message>(std::move(*message));
  const uint32_t server = piece->server;
  servers_.sessions->Open(server, [this, again, piece = std::move(*piece)](const absl::Status& status) {
    // One that has left meanwhile (ABORTED) owns nothing any more.
    if (status.ok() || absl::IsAborted(status)) return SendAgain(*servers_.map(), std::move(*again), piece);
    if (absl::IsFailedPrecondition(status)) servers_.on_lost(status);
    EndPiece(piece, Annotate(status, again->what));
  });
}

void Pusher::SendAgain(const ShardMap& map, Caller::Message message, const Piece& piece) {
  std::vector<SplitPush> splits = Split(map, std::move(message));
  Piece next = piece;
  if (splits.size() > 1) {
    if (next.pieces == nullptr) next.pieces = std::make_shared<std::atomic<size_t>>(1);
    *next.pieces += splits.size() - 1;
    for (size_t i = 1; i < splits.size(); ++i) piece.operation->Begin();
  }
  for (SplitPush& split : splits) {
    next.server = split.server;
    Send(std::move(split.message), next);
  }
}

void Pusher::EndPiece(const Piece& piece, const absl::Status& status) {
  if (piece.pieces == nullptr || piece.pieces->fetch_sub(1) == 1) window_.Acknowledge(piece.sequence);
  EndMessage(piece.operation.get(), status);
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
  if (status.ok()) push_metric.ObserveNs(NowNs() - operation->started_ns);
  if (operation->done) operation->done(std::move(result));
  window_.Leave(absl::IsOutOfRange(status) ? absl::OkStatus() : status);
}

}  // namespace lodestone::worker
