#include "worker/client/puller.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/telemetry/metrics.h"
#include "proto/parameter_server.pb.h"
#include "worker/client/pull_values.h"
#include "worker/client/request_router.h"
#include "worker/client/rerouter.h"
#include "worker/client/server_sessions.h"

namespace lodestone::worker {
namespace {

HistogramMetric pull_metric("lodestone_worker_pull_duration_seconds",
                            "From the sending of a pull until all of its values are there.");

// The messages of one pull that are in flight to each server at a time. Enough to keep a connection busy; more would
// only wait, with their deadlines running.
constexpr size_t kMessagesPerServerMax = 8;

// The pull's name in errors: by its first tables.
std::string NameOf(const PullValues& values) {
  constexpr size_t kTablesMax = 3;
  std::string name = "pull of ";
  size_t tables = 0;
  const auto add = [&](const TableHandle* table) {
    if (tables++ < kTablesMax) absl::StrAppend(&name, tables > 1 ? "," : "", table->spec.name());
  };
  for (const DensePull& pull : values.dense()) add(pull.table);
  for (const RowPull& pull : values.rows()) add(pull.table);
  if (tables > kTablesMax) absl::StrAppend(&name, " and ", tables - kTablesMax, " more");
  return name;
}

}  // namespace

// One message, or a piece of one whose shards have got other owners. Owned by the call that sends it.
struct Puller::Sending {
  ShardMessage message;
  uint64_t epoch = 0;      // Of the map that routed it.
  bool known = false;      // Whether the server knew this worker when it was sent.
  int64_t started_ms = 0;  // As ServerChannel::Request's.
  uint32_t turned_back = 0;
};

// The state of one pull, which is done when none of its messages is in flight and none is left to be sent.
struct Puller::Operation {
  // Constant.
  Operation(std::vector<DensePull> dense, std::vector<RowPull> rows, uint32_t shards)
      : values(std::move(dense), std::move(rows), shards) {}
  std::string name;
  int64_t started_ns = 0;
  v1::PullRequest header;  // Of all its messages, also of those that are sent again; without parts.
  size_t under_way_max = 0;
  std::function<void(absl::Status, ShardVersions, uint64_t)> done;

  PullValues values;  // Synchronises itself.

  Mutex mu;
  std::deque<Sending> messages ABSL_GUARDED_BY(mu);  // In the order in which they are sent. They stay where they are.
  size_t next ABSL_GUARDED_BY(mu) = 0;               // Index into messages.
  size_t under_way ABSL_GUARDED_BY(mu) = 0;
  bool finished ABSL_GUARDED_BY(mu) = false;
  absl::Status status ABSL_GUARDED_BY(mu);

  // The message to send now; null if there is none.
  Sending* Next() {
    MutexLock lock(&mu);
    if (!status.ok() || next == messages.size() || under_way >= under_way_max) return nullptr;
    ++under_way;
    return &messages[next++];
  }

  void End(const absl::Status& message_status) {
    MutexLock lock(&mu);
    if (status.ok()) status = message_status;
    --under_way;
  }

  // Once true, when all is over.
  bool Finish() {
    MutexLock lock(&mu);
    if (finished || under_way > 0 || (status.ok() && next < messages.size())) return false;
    finished = true;
    return true;
  }
};

void Puller::PullSteps(const StepRead& read, std::vector<DensePull> dense, std::vector<RowPull> rows,
                       std::function<void(absl::Status, ShardVersions, uint64_t)> done) {
  const std::shared_ptr<const ShardMap> map = servers_.map();
  auto operation = std::make_shared<Operation>(std::move(dense), std::move(rows), map->shards());
  operation->name = NameOf(operation->values);
  operation->started_ns = NowNs();
  operation->done = std::move(done);
  operation->header.set_worker_incarnation(servers_.incarnation);
  operation->header.set_brief(true);
  if (read.steps_min > 0) operation->header.set_steps_min(read.steps_min);
  MessageLimits limits = servers_.limits;
  limits.every_shard = read.every_shard;
  absl::StatusOr<std::vector<ShardMessage>> messages = operation->values.Route({*map, limits});
  if (!messages.ok()) {
    operation->done(messages.status(), {}, 0);
    return;
  }
  operation->under_way_max =
      std::max<size_t>(1, std::min(messages->size(), kMessagesPerServerMax * servers_.channels.size()));
  {
    MutexLock lock(&operation->mu);
    for (size_t index : ServersInTurn(*messages)) {
      operation->messages.push_back({std::move((*messages)[index]), map->epoch()});
    }
  }
  for (size_t i = 0; i < operation->under_way_max; ++i) SendNext(operation);
}

void Puller::SendNext(const std::shared_ptr<Operation>& operation) {
  if (Sending* sending = operation->Next(); sending != nullptr) return Send(sending, operation);
  if (!operation->Finish()) return;
  absl::Status status;
  {
    MutexLock lock(&operation->mu);
    status = operation->status;
  }
  if (status.ok()) pull_metric.ObserveNs(NowNs() - operation->started_ns);
  operation->done(std::move(status), operation->values.versions(), operation->values.steps());
}

void Puller::Send(Sending* sending, const std::shared_ptr<Operation>& operation) {
  const ShardMessage& message = sending->message;
  sending->known = servers_.sessions->IsOpen(message.server);
  ServerChannel::Request request{.payload = operation->values.MakePayload(message),
                                 .what = operation->name,
                                 .epoch = sending->epoch,
                                 .started_ms = sending->started_ms,
                                 .turned_back = sending->turned_back};
  v1::PullRequest& pull = *request.call.mutable_pull();
  pull = operation->header;
  AddParts(message, pull.mutable_parts());
  servers_.channels[message.server]->Call(
      std::move(request),
      [this, sending, operation](const absl::StatusOr<Connection::Answer>& answer, ServerChannel::Request* request) {
        OnAnswer(answer, request, sending, operation);
      });
}

void Puller::OnAnswer(const absl::StatusOr<Connection::Answer>& answer, ServerChannel::Request* request,
                      Sending* sending, const std::shared_ptr<Operation>& operation) {
  const absl::Status& status = answer.status();
  const uint32_t server = sending->message.server;
  if (status.ok()) {
    const absl::Status taken = answer->header.has_pull()
                                   ? operation->values.Take(answer->header.pull(), answer->payload, sending->message)
                                   : absl::InternalError("the answer is not one to a pull");
    return End(Annotate(taken, absl::StrCat("pull from ", servers_.channels[server]->peer())), operation);
  }
  sending->started_ms = request->started_ms;
  if (absl::IsAborted(status)) return OnTurnedBack(status, request, sending, operation);
  if (IsUnknownThere(status) && !sending->known) {
    return servers_.sessions->Open(server, [this, sending, operation](const absl::Status& opened) {
      // A server that has left meanwhile (ABORTED) owns nothing any more.
      if (opened.ok() || absl::IsAborted(opened)) return SendAgain(*servers_.map(), sending, operation);
      if (absl::IsFailedPrecondition(opened)) servers_.on_lost(opened);
      End(Annotate(opened, "pull"), operation);
    });
  }
  if (absl::IsFailedPrecondition(status)) servers_.on_lost(status);
  End(status, operation);
}

void Puller::OnTurnedBack(const absl::Status& status, ServerChannel::Request* request, Sending* sending,
                          const std::shared_ptr<Operation>& operation) {
  const auto again = std::make_shared<ServerChannel::Request>(std::move(*request));
  servers_.rerouter->TurnBack(
      status, again.get(),
      [this, again, sending, operation](const absl::StatusOr<std::shared_ptr<const ShardMap>>& map) {
        if (!map.ok()) return End(map.status(), operation);
        sending->turned_back = again->turned_back;
        SendAgain(**map, sending, operation);
      });
}

void Puller::SendAgain(const ShardMap& map, Sending* sending, const std::shared_ptr<Operation>& operation) {
  std::vector<Sending> pieces;
  for (const ShardMessage::Part& part : sending->message.parts) {
    const uint32_t owner = map.OwnerOf(part.shard);
    auto piece =
        std::find_if(pieces.begin(), pieces.end(), [&](const Sending& of) { return of.message.server == owner; });
    if (piece == pieces.end()) {
      Sending fresh = {{owner, {}}, map.epoch(), false, sending->started_ms, sending->turned_back};
      piece = pieces.insert(pieces.end(), std::move(fresh));
    }
    piece->message.parts.push_back(part);
  }
  {
    MutexLock lock(&operation->mu);
    for (size_t i = 1; i < pieces.size(); ++i) operation->messages.push_back(std::move(pieces[i]));
    *sending = std::move(pieces[0]);
  }
  Send(sending, operation);
  // There may be room for the others.
  for (size_t i = 1; i < pieces.size(); ++i) SendNext(operation);
}

void Puller::End(const absl::Status& status, const std::shared_ptr<Operation>& operation) {
  operation->End(status);
  SendNext(operation);
}

}  // namespace lodestone::worker
