#include "worker/client/pusher.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/telemetry/metrics.h"
#include "common/wire/part.h"
#include "proto/parameter_server.pb.h"
#include "worker/client/payload_metrics.h"
#include "worker/client/push_pairing.h"
#include "worker/client/push_split.h"
#include "worker/client/request_router.h"
#include "worker/client/rerouter.h"
#include "worker/client/server_sessions.h"

namespace lodestone::worker {
namespace {

HistogramMetric push_metric("lodestone_worker_push_duration_seconds",
                            "From the sending of a push until every server has acknowledged it.");

// The shards that `request` touches, in order of first appearance.
std::vector<ShardId> ShardsOf(const v1::PushRequest& request) {
  std::vector<ShardId> shards;
  std::vector<bool> seen;  // By shard.
  for (const v1::Part& part : request.parts()) {
    ForEachShard(part, [&](ShardId shard, uint32_t) {
      if (shard >= seen.size()) seen.resize(shard + 1);
      if (!seen[shard]) shards.push_back(shard);
      seen[shard] = true;
    });
  }
  return shards;
}

// What became of a push on one shard.
struct Outcome {
  ShardId shard = 0;
  Version version = 0;
  bool duplicate = false;
  bool late = false;
};

// The outcomes of `request` on the shards that it touches, each once. INTERNAL if `response` is not one to it.
absl::StatusOr<std::vector<Outcome>> OutcomesOf(const v1::PushResponse& response, const v1::PushRequest& request) {
  const std::vector<ShardId> shards = ShardsOf(request);
  const bool brief = response.versions_size() > 0;
  const auto count = static_cast<size_t>(brief ? response.versions_size() : response.shards_size());
  if (count != shards.size()) {
    return absl::InternalError(absl::StrCat("the answer has ", count, " shards, the push had ", shards.size()));
  }
  std::vector<Outcome> outcomes(count);
  for (int i = 0; i < static_cast<int>(count); ++i) {
    Outcome& outcome = outcomes[i];
    outcome.shard = shards[i];
    if (brief) {
      outcome.version = response.versions(i);
      continue;
    }
    const v1::PushResponse::ShardResult& result = response.shards(i);
    if (result.shard() != outcome.shard) {
      return absl::InternalError(
          absl::StrCat("the answer names shard ", result.shard(), " in the place of shard ", outcome.shard));
    }
    outcome.version = result.version();
    outcome.duplicate = result.duplicate();
    outcome.late = result.late();
  }
  for (const auto& [places, is] :
       {std::pair{&response.duplicates(), &Outcome::duplicate}, {&response.late(), &Outcome::late}}) {
    for (const uint32_t place : *places) {
      if (place >= count) {
        return absl::InternalError(absl::StrCat("the answer names the shard in place ", place, " of ", count));
      }
      outcomes[place].*is = true;
    }
  }
  return outcomes;
}

// Says at which versions the values were read that the gradients were computed from, for the tables that want to know.
class ReadVersionsWriter {
 public:
  explicit ReadVersionsWriter(const ReadVersions& read) : read_(read) {}

  // `push`: what is sent of `message`. REQUIRES: messages of one push, in the order in which they are sent.
  void Write(const ShardMessage& message, v1::PushRequest* push) {
    size_t begin = 0;
    for (v1::Part& proto : *push->mutable_parts()) {
      const auto run = std::span(message.parts).subspan(begin, RunLength(message.parts, begin));
      begin += run.size();
      if (!read_.told && !DividesRateByDelay(*run.front().table)) continue;
      for (const ShardMessage::Part& part : run) {
        const ShardVersions& versions = part.dense ? read_.dense : read_.rows;
        const Version read = part.shard < versions.size() ? versions[part.shard] : 0;
        proto.add_read_versions(read > 0 ? read + sent_[part.shard] : 0);
      }
    }
    for (const ShardId shard : ShardsOf(*push)) ++sent_[shard];
  }

 private:
  const ReadVersions& read_;
  absl::flat_hash_map<ShardId, uint32_t> sent_;  // Messages so far.
};

v1::PushRequest* MutablePush(v1::Call* call) {
  return call->has_push_pull() ? call->mutable_push_pull()->mutable_push() : call->mutable_push();
}

}  // namespace

// The state of one push, which is done when none of its messages is in flight.
struct Pusher::Operation {
  // A table, and the shards of it that the push touches, ascending.
  struct Touched {
    const TableHandle* table = nullptr;
    bool dense = false;
    std::vector<ShardId> shards;
  };

  // Constant.
  int64_t started_ns = 0;
  ReadVersions read_versions;
  std::vector<Touched> tables;
  std::function<void(PushResult)> done;

  Mutex mu;
  size_t messages ABSL_GUARDED_BY(mu) = 1;  // In flight, and one more while messages are being sent.
  absl::Status status ABSL_GUARDED_BY(mu);
  std::vector<DelayMeter::Applied> applied ABSL_GUARDED_BY(mu);  // By shard, each once.
  bool duplicate ABSL_GUARDED_BY(mu) = true;                     // So far, on all shards.
  bool late ABSL_GUARDED_BY(mu) = false;                         // On any.

  void Begin() {
    MutexLock lock(&mu);
    ++messages;
  }

  void Apply(std::span<const Outcome> outcomes) {
    MutexLock lock(&mu);
    for (const Outcome& outcome : outcomes) {
      duplicate = duplicate && outcome.duplicate;
      late = late || outcome.late;
      const auto at = std::lower_bound(applied.begin(), applied.end(), outcome.shard,
                                       [](const DelayMeter::Applied& a, ShardId s) { return a.shard < s; });
      if (at != applied.end() && at->shard == outcome.shard) {
        at->version = std::max(at->version, outcome.version);
        ++at->messages;
      } else {
        applied.insert(at, {outcome.shard, outcome.version});
      }
    }
  }

  // Notes which shards of which tables the messages touch. Before they are sent.
  void Touch(std::span<const ShardMessage> messages) {
    if (read_versions.dense.empty() && read_versions.rows.empty()) return;
    absl::flat_hash_map<const TableHandle*, size_t> index;  // Into `tables`.
    for (const ShardMessage& message : messages) {
      for (const ShardMessage::Part& part : message.parts) {
        const auto [at, fresh] = index.try_emplace(part.table, tables.size());
        if (fresh) tables.push_back({part.table, part.dense, {}});
        tables[at->second].shards.push_back(part.shard);
      }
    }
    for (Touched& table : tables) {
      std::sort(table.shards.begin(), table.shards.end());
      table.shards.erase(std::unique(table.shards.begin(), table.shards.end()), table.shards.end());
    }
  }

  // Ends a message, if it is not the last.
  bool EndUnlessLast() {
    MutexLock lock(&mu);
    if (messages == 1) return false;
    --messages;
    return true;
  }

  // Ends a message; true for the last one.
  bool End(const absl::Status& message_status) {
    MutexLock lock(&mu);
    if (status.ok()) status = message_status;
    return --messages == 0;
  }
};

// The owner of a push's borrowed gradients: lives as long as a slice refers to them, and the push is not done before.
// It may be destroyed anywhere within gRPC, so the timer's thread runs what follows. When the client has forgotten it,
// what `done` owns is gone as well.
class Pusher::Release {
 public:
  Release(Pusher* pusher, std::shared_ptr<Operation> operation) : pusher_(pusher), operation_(std::move(operation)) {
    operation_->Begin();
    MutexLock lock(&pusher_->mu_);
    ++pusher_->borrowed_;
  }
  ~Release() {
    // Mostly the answers come later than this.
    if (operation_->EndUnlessLast()) {
      operation_.reset();
      Forget(pusher_);
      return;
    }
    pusher_->servers_.timer->After(0, [pusher = pusher_, operation = std::move(operation_)]() mutable {
      pusher->EndMessage(operation.get(), absl::OkStatus());
      operation.reset();
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

ServerSessions* Pusher::SessionsOf(const InFlight& in_flight) const {
  return in_flight.range != nullptr ? in_flight.range.get() : servers_.sessions;
}

absl::Status Pusher::Push(const StepOrigin& step, std::span<const DenseGradient> dense,
                          std::span<const RowGradients> rows, const ReadVersions& read_versions,
                          std::function<void(PushResult)> done, const std::shared_ptr<PullValues>& pull) {
  const std::shared_ptr<const ShardMap> map = servers_.map();
  const bool of_range = step.range.incarnation != 0;
  MessageLimits limits = servers_.limits;
  limits.every_shard = step.contribution.has_value();
  limits.whole_shards = of_range || limits.every_shard;
  const RequestRouter router(*map, limits);
  LODESTONE_ASSIGN_OR_RETURN(const Routing routing, router.RoutePush(dense, rows));
  std::vector<PullRider> riders;  // By message; fewer: none.
  if (pull != nullptr) LODESTONE_RETURN_IF_ERROR(PairWithPush(router, routing.messages, rows, pull, &riders));
  LODESTONE_RETURN_IF_ERROR(window_.Enter(window_timeout_ms_));

  auto operation = std::make_shared<Operation>();
  operation->started_ns = NowNs();
  operation->read_versions = read_versions;
  operation->done = std::move(done);
  operation->Touch(routing.messages);
  std::shared_ptr<void> release;
  if (std::any_of(dense.begin(), dense.end(), [](const DenseGradient& gradient) { return gradient.borrowed; })) {
    release = std::make_shared<Release>(this, operation);
  }
  const auto by_delay = [](const auto& gradients) { return DividesRateByDelay(*gradients.table); };
  const bool says_versions = read_versions.told || absl::c_any_of(dense, by_delay) || absl::c_any_of(rows, by_delay);
  ReadVersionsWriter writer(read_versions);
  absl::Status status;
  for (const size_t m : ServersInTurn(routing.messages)) {
    const ShardMessage& message = routing.messages[m];
    const absl::StatusOr<Sequence> sequence = window_.NextSequence(message.ValueBytes(), window_timeout_ms_);
    if (!sequence.ok()) {
      status = sequence.status();
      break;
    }
    operation->Begin();
    PullRider rider;
    if (m < riders.size()) rider = std::move(riders[m]);
    const bool pulls = rider.values != nullptr;
    ServerChannel::Request request{.payload = MakePushPayload(message, dense, rows, release, pulls ? &rider : nullptr),
                                   .what = absl::StrCat("push sequence=", *sequence, " clock=", step.clock),
                                   .epoch = map->epoch()};
    if (pulls) {
      v1::PullRequest& pulled = *request.call.mutable_push_pull()->mutable_pull();
      pulled.set_worker_incarnation(servers_.incarnation);
      pulled.set_brief(true);
      AddParts(rider.message, pulled.mutable_parts());
    }
    v1::PushRequest& push = *MutablePush(&request.call);
    push.set_worker_incarnation(of_range ? step.range.incarnation : servers_.incarnation);
    push.set_sequence(of_range ? step.sequence : *sequence);
    push.set_clock(step.clock);
    push.set_brief(true);
    if (step.contribution.has_value()) *push.mutable_contribution() = *step.contribution;
    AddParts(message, push.mutable_parts());
    if (says_versions) writer.Write(message, &push);
    for (int i = 0; i < push.parts_size(); ++i) {
      push_bytes_metric.Add(request.payload.parts[i].key_bytes + request.payload.parts[i].value_bytes);
    }
    Send(std::move(request), {.server = message.server,
                              .sequence = *sequence,
                              .range = step.range.sessions,
                              .rider = std::move(rider),
                              .operation = operation});
  }
  release.reset();
  EndMessage(operation.get(), status);
  return absl::OkStatus();
}

void Pusher::Send(ServerChannel::Request request, InFlight in_flight) {
  in_flight.known = SessionsOf(in_flight)->IsOpen(in_flight.server);
  ServerChannel* const channel = servers_.channels[in_flight.server].get();
  channel->Call(std::move(request),
                [this, in_flight = std::move(in_flight)](const absl::StatusOr<Connection::Answer>& answer,
                                                         ServerChannel::Request* request) mutable {
                  OnAnswer(answer, request, &in_flight);
                });
}

void Pusher::OnAnswer(const absl::StatusOr<Connection::Answer>& answer, ServerChannel::Request* request,
                      InFlight* in_flight) {
  const absl::Status& status = answer.status();
  if (status.ok()) return End(*in_flight, TakeAnswer(*answer, request->call, *in_flight));
  in_flight->rider = {};  // What is sent again is the push alone.
  if (absl::IsAborted(status)) return OnTurnedBack(status, request, in_flight);
  if (IsUnknownThere(status) && !in_flight->known) return OnUnknown(request, in_flight);
  if (absl::IsFailedPrecondition(status)) servers_.on_lost(status);
  End(*in_flight, status);
}

absl::Status Pusher::TakeAnswer(const Connection::Answer& answer, const v1::Call& call, const InFlight& in_flight) {
  const PullRider& rider = in_flight.rider;
  const bool both = rider.values != nullptr;
  const v1::Answer& header = answer.header;
  const v1::PushResponse& response = both ? header.push_pull().push() : header.push();
  absl::StatusOr<std::vector<Outcome>> outcomes =
      (both ? header.has_push_pull() : header.has_push())
          ? OutcomesOf(response, both ? call.push_pull().push() : call.push())
          : absl::InternalError("the answer is not one to a push");
  absl::Status status = outcomes.status();
  if (status.ok() && both) status = rider.values->Take(header.push_pull().pull(), answer.payload, rider.message);
  if (!status.ok()) {
    return Annotate(status, absl::StrCat("push sequence=", in_flight.sequence, " to ",
                                         servers_.channels[in_flight.server]->peer()));
  }
  for (const Outcome& outcome : *outcomes) {
    if (!outcome.duplicate) delays_.Record(outcome.shard, outcome.version);
  }
  in_flight.operation->Apply(*outcomes);
  NoteRevision(in_flight.server, response.settings_revision());
  return absl::OkStatus();
}

void Pusher::NoteRevision(uint32_t server, uint64_t revision) {
  std::atomic<uint64_t>& noted = revisions_[server];
  if (noted.load(std::memory_order_relaxed) == revision) return;
  if (noted.exchange(revision, std::memory_order_relaxed) != revision) {
    settings_changes_.fetch_add(1, std::memory_order_relaxed);
  }
}

void Pusher::OnTurnedBack(const absl::Status& status, ServerChannel::Request* request, InFlight* in_flight) {
  const auto again = std::make_shared<ServerChannel::Request>(std::move(*request));
  servers_.rerouter->TurnBack(
      status, again.get(),
      [this, again, in_flight = std::move(*in_flight)](const absl::StatusOr<std::shared_ptr<const ShardMap>>& map) {
        if (!map.ok()) return End(in_flight, map.status());
        SendAgain(**map, std::move(*again), in_flight);
      });
}

void Pusher::OnUnknown(ServerChannel::Request* request, InFlight* in_flight) {
  const auto again = std::make_shared<ServerChannel::Request>(std::move(*request));
  const uint32_t server = in_flight->server;
  SessionsOf(*in_flight)->Open(server, [this, again, in_flight = std::move(*in_flight)](const absl::Status& status) {
    // A server that has left meanwhile (ABORTED) owns nothing any more.
    if (status.ok() || absl::IsAborted(status)) return SendAgain(*servers_.map(), std::move(*again), in_flight);
    if (absl::IsFailedPrecondition(status)) servers_.on_lost(status);
    End(in_flight, Annotate(status, again->what));
  });
}

void Pusher::SendAgain(const ShardMap& map, ServerChannel::Request request, const InFlight& in_flight) {
  std::vector<PushSplit> splits = SplitPush(map, std::move(request));
  InFlight next = in_flight;
  if (splits.size() > 1) {
    if (next.pieces == nullptr) next.pieces = std::make_shared<std::atomic<size_t>>(1);
    *next.pieces += splits.size() - 1;
    for (size_t i = 1; i < splits.size(); ++i) in_flight.operation->Begin();
  }
  for (PushSplit& split : splits) {
    next.server = split.server;
    Send(std::move(split.request), next);
  }
}

void Pusher::End(const InFlight& in_flight, const absl::Status& status) {
  if (in_flight.pieces == nullptr || in_flight.pieces->fetch_sub(1) == 1) window_.Acknowledge(in_flight.sequence);
  EndMessage(in_flight.operation.get(), status);
}

void Pusher::EndMessage(Operation* operation, const absl::Status& message_status) {
  if (!operation->End(message_status)) return;
  PushResult result;
  {
    MutexLock lock(&operation->mu);
    result.status = operation->status;
    result.duplicate = operation->duplicate && !operation->applied.empty();
    result.late = operation->late;
    for (const DelayMeter::Applied& applied : operation->applied) {
      result.applied.emplace_back(applied.shard, applied.version);
    }
    for (const Operation::Touched& touched : operation->tables) {
      const ShardVersions& read = touched.dense ? operation->read_versions.dense : operation->read_versions.rows;
      const std::optional<Delay> delay = delays_.Measure(touched.shards, operation->applied, read);
      if (delay.has_value()) result.delays.push_back({touched.table, *delay});
    }
  }
  const absl::Status status = result.status;
  if (status.ok()) push_metric.ObserveNs(NowNs() - operation->started_ns);
  if (operation->done) operation->done(std::move(result));
  window_.Leave(absl::IsOutOfRange(status) ? absl::OkStatus() : status);
}

}  // namespace lodestone::worker
