#include "server/coordinator/service.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "common/base/hash.h"
#include "common/base/host_port.h"
#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "common/telemetry/log.h"
#include "server/coordinator/cluster_status.h"
#include "server/coordinator/watched_address.h"

namespace lodestone::server {
namespace {

constexpr size_t kHeldPerWorkerMax = 4;    // Calls of AwaitClock held, per place for a worker,
constexpr size_t kHeldBeyondMax = 40;      // and for workers beyond cluster.workers.
constexpr size_t kRefusedMax = 1000;       // Processes that were refused, remembered.
constexpr size_t kUnsavedPerPlaceMax = 4;  // Answers that wait for the state to be saved, per place.
// Parts of a lease: between two looks at the time at most, and that are a stall if it was longer. Members renew theirs
// each third of it: what is left of one after a shorter stall is enough for what waits to be read.
constexpr int64_t kLooksPerLease = 4;
constexpr int64_t kStallsPerLease = 2;

constexpr char kJoinMethod[] = "/lodestone.v1.Coordinator/Join";
constexpr char kHeartbeatMethod[] = "/lodestone.v1.Coordinator/Heartbeat";

// Leaves the ends after the number `ended_to` for a later answer: another life of the coordinator would take those
// ranges for open, and the ps would refuse what is pushed of them.
void TellEndedTo(uint64_t ended_to, v1::HeartbeatResponse* response) {
  if (response->workers_ended_to() <= ended_to) return;
  const uint64_t later = std::min<uint64_t>(response->workers_ended_to() - ended_to, response->workers_ended_size());
  response->mutable_workers_ended()->Truncate(response->workers_ended_size() - static_cast<int>(later));
  response->set_workers_ended_to(response->workers_ended_to() - later);
}

}  // namespace

CoordinatorService::CoordinatorService(const Membership::Options& options, Save save, Leads leads, Access* access)
    : time_(options.time),
      stall_time_(options.stall_time != nullptr ? options.stall_time : &steady_),
      lease_ms_(std::min(options.lease_ms, options.worker_lease_ms)),
      leads_(std::move(leads)),
      access_(access),
      events_(options.time),
      membership_(options),
      history_(options.time),
      looked_ms_(stall_time_->NowMs()),
      clock_calls_(options.time, kHeldPerWorkerMax * options.workers + kHeldBeyondMax,
                   [this](const absl::Status& status) { return Told(status); }),
      saver_({.time = options.time,
              .waiting_max = kUnsavedPerPlaceMax * (size_t{options.servers} + options.workers),
              .save = std::move(save),
              .changed_since = [this](uint64_t changes) { return ChangedSince(changes); },
              .finish = [this](grpc::ServerUnaryReactor* call,
                               const absl::Status& status) { call->Finish(Told(status)); }}),
      timer_([this] { RunTimer(); }) {
  if (!options.watches_processes) return;
  auto watch = std::make_unique<ProcessWatch>([this](std::span<ProcessWatch::Gone> gone) { NoteGone(gone); });
  MutexLock lock(&mu_);
  watch_ = std::move(watch);
}

CoordinatorService::~CoordinatorService() {
  Shutdown();
  std::unique_ptr<ProcessWatch> watch;
  {
    MutexLock lock(&mu_);
    watch = std::move(watch_);
  }
  watch.reset();
  timer_.join();
}

absl::Status CoordinatorService::OrNotLeading(const absl::Status& status) const {
  return MayLead() ? status : absl::UnavailableError("this ps does not serve the coordinator any more");
}

grpc::Status CoordinatorService::Told(const absl::Status& status) const { return ToGrpc(OrNotLeading(status)); }

template <typename Request, typename Response>
void CoordinatorService::Decide(absl::StatusOr<Response> (Membership::*decide)(const Request&), const Request& request,
                                Decided<Response> done) {
  absl::StatusOr<Response> response;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    LogExpired();
    const uint64_t epoch_before = membership_.shards().epoch();
    response = (membership_.*decide)(request);
    status = response.status();
    Settle(epoch_before);
    const auto tell = [this, response, done](const absl::Status& saved) {
      const absl::Status told = OrNotLeading(saved);
      done(told.ok() ? response : absl::StatusOr<Response>(told));
    };
    if (status.ok() && !AllSaved() && saver_.Hold(tell, &status)) return;
  }
  status = OrNotLeading(status);
  done(status.ok() ? std::move(response) : absl::StatusOr<Response>(status));
}

void CoordinatorService::Promote(const v1::PromoteRequest& request, Decided<v1::PromoteResponse> done) {
  Decide(&Membership::Promote, request, std::move(done));
}

void CoordinatorService::AcceptLoss(const v1::AcceptLossRequest& request, Decided<v1::AcceptLossResponse> done) {
  Decide(&Membership::AcceptLoss, request, std::move(done));
}

void CoordinatorService::Move(const v1::MoveRequest& request, Decided<v1::MoveResponse> done) {
  Decide(&Membership::Move, request, std::move(done));
}

void CoordinatorService::Drain(const v1::DrainRequest& request, Decided<v1::DrainResponse> done) {
  Decide(&Membership::Drain, request, std::move(done));
}

void CoordinatorService::PauseTraining(const v1::PauseTrainingRequest& request,
                                       Decided<v1::PauseTrainingResponse> done) {
  Decide(&Membership::PauseTraining, request, std::move(done));
}

absl::Status CoordinatorService::Restore(const v1::CoordinatorState& state) {
  MutexLock lock(&mu_);
  StateSaver::Version saved{membership_.changes(), membership_.shards().changes(), 0, membership_.members().ended_to()};
  LODESTONE_RETURN_IF_ERROR(membership_.Restore(state));
  saved.epoch = membership_.shards().mapped() ? state.epoch() : 0;
  saver_.SetSaved(saved);
  Settle(saved.epoch);
  wake_timer_.NotifyOne();
  LODESTONE_LOG(INFO, "coordinator", "goes on from the state of its last life epoch={} members={}", state.epoch(),
                state.places_size());
  return absl::OkStatus();
}

bool CoordinatorService::IsServer(Incarnation incarnation) const {
  MutexLock lock(&mu_);
  const MemberPlace* const place = membership_.members().Find(incarnation);
  return place != nullptr && place->role == v1::ROLE_SERVER;
}

absl::StatusOr<std::shared_ptr<Caller>> CoordinatorService::AdminOf(const grpc::ServerContextBase& context,
                                                                    const char* method, const char* what) const {
  LODESTONE_ASSIGN_OR_RETURN(std::shared_ptr<Caller> caller, access_->Identify(CallOf(context)));
  LODESTONE_RETURN_IF_ERROR(caller->CheckRole(v1::Identity::ADMIN, method, what));
  return caller;
}

std::optional<StateSaver::Snapshot> CoordinatorService::ChangedSince(uint64_t changes) const {
  MutexLock lock(&mu_);
  if (membership_.changes() == changes) return std::nullopt;
  const ShardAssignment& shards = membership_.shards();
  return StateSaver::Snapshot{
      {membership_.changes(), shards.changes(), shards.epoch(), membership_.members().ended_to()},
      membership_.SaveState()};
}

v1::CoordinatorState CoordinatorService::State() const {
  MutexLock lock(&mu_);
  return membership_.SaveState();
}

grpc::ServerUnaryReactor* CoordinatorService::Join(grpc::CallbackServerContext* context, const v1::JoinRequest* request,
                                                   v1::JoinResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  if (access_ != nullptr && request->role() != v1::ROLE_WORKER) {
    const auto admin = AdminOf(*context, kJoinMethod, "Join as a server");
    if (!admin.ok()) {
      reactor->Finish(ToGrpc(admin.status()));
      return reactor;
    }
    (*admin)->NoteAdmitted(kJoinMethod);
  }
  const std::string role = request->role() == v1::ROLE_SERVER ? "ps" : "worker";
  v1::JoinRequest join = *request;
  join.set_watched_at(WatchedAddress(join, context->peer()));
  absl::Status status;
  bool waits = false, refused_before = false;
  CheckTime();
  {
    MutexLock lock(&mu_);
    const uint64_t epoch_before = membership_.shards().epoch();
    auto joined = membership_.Join(join);
    status = joined.status();
    if (!status.ok()) refused_before = NoteRefused(*request);
    if (joined.ok()) {
      *response = *std::move(joined);
      LODESTONE_LOG(INFO, "coordinator", "{} joined index={} incarnation={} address={} peer={}", role,
                    response->index(), response->incarnation(), request->address(), request->peer());
      Settle(epoch_before);
      wake_timer_.NotifyOne();
    }
    waits = WaitsForSave(reactor, AllSaved(), &status);
  }
  if (!status.ok() && !refused_before) {
    LODESTONE_LOG(WARN, "coordinator", "{} was refused peer={} error={}", role, request->peer(), status.ToString());
  }
  if (!waits) reactor->Finish(Told(status));
  return reactor;
}

void CoordinatorService::HandleHeartbeat(const grpc::ServerContextBase& context, const v1::HeartbeatRequest& request,
                                         v1::HeartbeatResponse* response, Done done) {
  if (access_ != nullptr && (request.has_server() || IsServer(request.incarnation()))) {
    const auto admin = AdminOf(context, kHeartbeatMethod, "Heartbeat of a server");
    if (!admin.ok()) {
      return done(admin.status());
    }
  }
  absl::Status status;
  bool waits = false;
  ClockCalls::Answered answered;
  {
    MutexLock lock(&mu_);
    const uint64_t epoch_before = membership_.shards().epoch();
    const bool worked = AnyWorkerWorks(membership_.members());
    NoticeStall();
    auto beat = membership_.Heartbeat(request);
    status = beat.status();
    if (!worked && AnyWorkerWorks(membership_.members())) wake_timer_.NotifyOne();  // The history begins.
    if (beat.ok()) {
      *response = *beat;
      response->set_route_epoch(saver_.EpochToTell(beat->route_epoch()));
      TellEndedTo(saver_.EndedToTell(beat->workers_ended_to()), response);
      answered = clock_calls_.TakeAnswered(membership_.members());
    }
    if (status.ok() && request.leaving()) {
      LODESTONE_LOG(INFO, "coordinator", "left who={}", membership_.members().NameOf(request.incarnation()));
    }
    Settle(epoch_before);
    if (status.ok() && request.leaving()) {
      waits = WaitsForSave(done, AllSaved(), &status);
    }
  }
  clock_calls_.Finish(answered);
  if (!waits) done(OrNotLeading(status));
}

grpc::ServerUnaryReactor* CoordinatorService::AwaitClock(grpc::CallbackServerContext*,
                                                         const v1::AwaitClockRequest* request,
                                                         v1::AwaitClockResponse* response) {
  grpc::ServerUnaryReactor* const call = clock_calls_.Hold(request, response);
  ClockCalls::Answered answered;
  {
    MutexLock lock(&mu_);
    NoticeStall();
    if (request->has_own_clock()) membership_.NoteClock(request->incarnation(), request->own_clock());
    answered = clock_calls_.TakeAnswered(membership_.members());
    wake_timer_.NotifyOne();
  }
  clock_calls_.Finish(answered);
  return call;
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* CoordinatorService::AnswerSaved(
    grpc::CallbackServerContext* context, absl::StatusOr<Response> (Membership::*method)(const Request&),
    const Request& request, Response* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  absl::Status status;
  bool waits = false;
  {
    MutexLock lock(&mu_);
    LogExpired();
    const uint64_t epoch_before = membership_.shards().epoch();
    const bool was_stopped = !membership_.validations().stopped().empty();
    absl::StatusOr<Response> answer = (membership_.*method)(request);
    status = answer.status();
    if (answer.ok()) *response = *std::move(answer);
    if (!was_stopped && !membership_.validations().stopped().empty()) {
      LODESTONE_LOG(INFO, "coordinator", "training ends early: {}", membership_.validations().stopped());
    }
    Settle(epoch_before);
    waits = WaitsForSave(reactor, AllSaved(), &status);
  }
  if (!waits) reactor->Finish(Told(status));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::Validate(grpc::CallbackServerContext* context,
                                                       const v1::ValidateRequest* request,
                                                       v1::ValidateResponse* response) {
  return AnswerSaved(context, &Membership::Validate, *request, response);
}

grpc::ServerUnaryReactor* CoordinatorService::LeaseRanges(grpc::CallbackServerContext* context,
                                                          const v1::LeaseRangesRequest* request,
                                                          v1::LeaseRangesResponse* response) {
  return AnswerSaved(context, &Membership::LeaseRanges, *request, response);
}

void CoordinatorService::HandleRoute(const grpc::ServerContextBase&, const v1::RouteRequest& request,
                                     v1::RouteResponse* response, Done done) {
  absl::Status status;
  bool waits = false;
  {
    MutexLock lock(&mu_);
    auto route = membership_.Route(request);
    status = route.status();
    if (route.ok()) *response = *std::move(route);
    waits = WaitsForSave(done, AllSaved() || saver_.IsRouteSaved(membership_.shards().changes()), &status);
  }
  if (!waits) done(OrNotLeading(status));
}

void CoordinatorService::HandleReportSync(const grpc::ServerContextBase&, const v1::ReportSyncRequest& request,
                                          v1::ReportSyncResponse* response, Done done) {
  absl::Status status;
  bool waits = false;
  {
    MutexLock lock(&mu_);
    LogExpired();
    const uint64_t epoch_before = membership_.shards().epoch();
    auto told = membership_.ReportSync(request);
    status = told.status();
    if (told.ok()) *response = *std::move(told);
    Settle(epoch_before);
    waits = WaitsForSave(done, AllSaved(), &status);
  }
  if (!waits) done(OrNotLeading(status));
}

void CoordinatorService::NoticeStall() {
  const int64_t now_ms = stall_time_->NowMs();
  const int64_t gap_ms = now_ms - std::exchange(looked_ms_, now_ms);
  if (gap_ms <= lease_ms_ / kStallsPerLease) return;
  membership_.RenewAll();
  LODESTONE_LOG(WARN, "coordinator", "this process stood still; every member gets a whole lease ms={}", gap_ms);
}

bool CoordinatorService::NoteRefused(const v1::JoinRequest& request) {
  if (refused_.size() >= kRefusedMax) refused_.clear();
  return !refused_.insert(StableHash(request.peer(), request.token())).second;
}

void CoordinatorService::WatchProcesses() {
  const MemberTable& members = membership_.members();
  if (watch_ == nullptr || watched_changes_ == members.changes()) return;
  watched_changes_ = members.changes();
  std::vector<ProcessWatch::Process> living;
  for (const MemberPlace& server : members.servers()) {
    if (members.Alive(server)) living.push_back({server.incarnation, server.address});
  }
  for (const MemberPlace& worker : members.workers()) {
    if (!members.Alive(worker) || worker.watched_at.empty()) continue;
    // One of this machine that is silent since the coordinator was started again may have ended with it. An elected one
    // may have been on another machine.
    const absl::StatusOr<HostPort> where = ParseHostPort(worker.watched_at);
    const bool certain = leads_ == nullptr && worker.silent && where.ok() && IsLoopback(where->host);
    living.push_back({worker.incarnation, worker.watched_at, /*announced=*/false, certain});
  }
  if (living == watched_) return;  // Ranges of samples that are leased change the members, too.
  watch_->Watch(living);
  watched_ = std::move(living);
}

void CoordinatorService::NoteGone(std::span<ProcessWatch::Gone> gone) {
  {
    MutexLock lock(&mu_);
    for (ProcessWatch::Gone& one : gone) {
      one.doubted = !MayLead() || !membership_.NoteGone(one.process.life, one.ended_ms);
    }
  }
  CheckTime();
}

void CoordinatorService::NoteGoneAt(const std::string& address) {
  {
    MutexLock lock(&mu_);
    if (MayLead()) membership_.NoteGoneAt(address);
  }
  CheckTime();
}

void CoordinatorService::LogExpired() {
  NoticeStall();
  const uint64_t epoch_before = membership_.shards().epoch();
  for (const std::string& line : membership_.TakeExpired()) {
    LODESTONE_LOG(WARN, "coordinator", "a lease has ended: {}", line);
  }
  Settle(epoch_before);
}

void CoordinatorService::Settle(uint64_t epoch_before) {
  for (const std::string& line : membership_.TakeFailovers()) LODESTONE_LOG(WARN, "coordinator", "{}", line);
  for (const v1::Event& event : membership_.TakeEvents()) events_.Take(event);
  if (epoch_before != membership_.shards().epoch()) {
    LODESTONE_LOG(INFO, "coordinator", "the shard map is new epoch={}", membership_.shards().epoch());
  }
  saver_.SaveSoon(membership_.changes());
  WatchProcesses();
}

void CoordinatorService::CheckTime() {
  ClockCalls::Answered answered;
  {
    MutexLock lock(&mu_);
    LogExpired();
    AddToHistory();
    answered = clock_calls_.TakeAnswered(membership_.members());
  }
  clock_calls_.Finish(answered);
}

std::optional<int64_t> CoordinatorService::NextWakeMs() const {
  std::optional<int64_t> next_ms = membership_.members().NextExpiryMs();
  if (const auto history_ms = history_.NextMs(AnyWorkerWorks(membership_.members())); history_ms.has_value()) {
    next_ms = std::min(next_ms.value_or(*history_ms), *history_ms);
  }
  if (const auto end_ms = clock_calls_.NextEndMs(); end_ms.has_value()) {
    next_ms = std::min(next_ms.value_or(*end_ms), *end_ms);
  }
  return next_ms;
}

void CoordinatorService::RunTimer() {
  MutexLock lock(&mu_);
  while (!shut_down_) {
    NoticeStall();
    const std::optional<int64_t> next_ms = NextWakeMs();
    if (!MayLead()) {
      wake_timer_.Wait(&mu_);
      continue;
    }
    int64_t pause_ms = std::max<int64_t>(1, lease_ms_ / kLooksPerLease);
    if (next_ms.has_value()) pause_ms = std::min(pause_ms, *next_ms - time_->NowMs());
    if (pause_ms > 0) {
      wake_timer_.WaitUntil(&mu_, std::chrono::steady_clock::now() + std::chrono::milliseconds(pause_ms));
      continue;
    }
    mu_.Unlock();
    CheckTime();
    mu_.Lock();
  }
}

void CoordinatorService::Shutdown() {
  {
    MutexLock lock(&mu_);
    shut_down_ = true;
    wake_timer_.NotifyAll();
    saver_.Stop();
  }
  clock_calls_.Shutdown();
}

void CoordinatorService::AddToHistory() {
  const std::optional<int64_t> next_ms = history_.NextMs(AnyWorkerWorks(membership_.members()));
  if (next_ms.has_value() && time_->NowMs() >= *next_ms) history_.Add(MomentOf(membership_.members()));
}

v1::HistoryResponse CoordinatorService::TellHistory() const {
  MutexLock lock(&mu_);
  return history_.Tell();
}

void CoordinatorService::FillStatus(v1::StatusResponse* status) const {
  MutexLock lock(&mu_);
  *status->mutable_cluster() = membership_.Status();
  saver_.FillStatus(status);
  clock_calls_.FillStatus(membership_.members(), status);
}

}  // namespace lodestone::server
