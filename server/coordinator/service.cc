#include "server/coordinator/service.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "common/telemetry/log.h"
#include "server/coordinator/cluster_status.h"

namespace lodestone::server {
namespace {

constexpr size_t kHeldPerWorkerMax = 4;    // Calls of AwaitClock held, per place for a worker.
constexpr size_t kUnsavedPerPlaceMax = 4;  // Answers that wait for the state to be saved, per place.
constexpr size_t kWaitsShownMax = 64;      // In a status.
// Parts of a lease: between two looks at the time at most, and that are a stall if it was longer. Members renew theirs
// each third of it: what is left of one after a shorter stall is enough for what waits to be read.
constexpr int64_t kLooksPerLease = 4;
constexpr int64_t kStallsPerLease = 2;

constexpr char kJoinMethod[] = "/lodestone.v1.Coordinator/Join";
constexpr char kHeartbeatMethod[] = "/lodestone.v1.Coordinator/Heartbeat";

}  // namespace

// One call of AwaitClock. Owned by gRPC until OnDone. `request` and `response` live as long.
class CoordinatorService::HeldCall final : public grpc::ServerUnaryReactor {
 public:
  HeldCall(CoordinatorService* service, const v1::AwaitClockRequest* request, v1::AwaitClockResponse* response)
      : service_(service),
        request_(request),
        response_(response),
        since_ms_(service->time_->NowMs()),
        deadline_ms_(since_ms_ + std::min(request->timeout_ms(), limits::kAwaitTimeoutMaxMs)) {}

  const v1::AwaitClockRequest& request() const { return *request_; }
  v1::AwaitClockResponse* response() { return response_; }
  int64_t since_ms() const { return since_ms_; }
  int64_t deadline_ms() const { return deadline_ms_; }

  // Set by who removed the call from the held ones, and used by it to finish.
  void set_end(absl::Status end) { end_ = std::move(end); }
  void FinishNow() { Finish(service_->Told(end_)); }

  void OnCancel() override {
    if (service_->Forget(this)) Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the caller is gone"));
  }
  void OnDone() override {
    CoordinatorService* const service = service_;
    delete this;
    service->NoteAwaitCallGone();
  }

 private:
  CoordinatorService* const service_;
  const v1::AwaitClockRequest* const request_;
  v1::AwaitClockResponse* const response_;
  const int64_t since_ms_;
  const int64_t deadline_ms_;
  absl::Status end_;
};

CoordinatorService::CoordinatorService(const Membership::Options& options, Save save, Leads leads, Access* access)
    : time_(options.time),
      stall_time_(options.stall_time != nullptr ? options.stall_time : &steady_),
      lease_ms_(options.lease_ms),
      held_max_(kHeldPerWorkerMax * options.workers + kHeldPerWorkerMax),
      leads_(std::move(leads)),
      access_(access),
      events_(options.time),
      membership_(options),
      history_(options.time),
      looked_ms_(stall_time_->NowMs()),
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
  MutexLock lock(&mu_);
  while (await_calls_ > 0) await_call_gone_.Wait(&mu_);
}

void CoordinatorService::NoteAwaitCallGone() {
  MutexLock lock(&mu_);
  if (--await_calls_ == 0) await_call_gone_.NotifyAll();
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

absl::Status CoordinatorService::Restore(const v1::CoordinatorState& state) {
  MutexLock lock(&mu_);
  StateSaver::Version saved{membership_.changes(), membership_.shards().changes(), 0};
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
  return StateSaver::Snapshot{{membership_.changes(), shards.changes(), shards.epoch()}, membership_.SaveState()};
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
  absl::Status status;
  bool waits = false;
  CheckTime();
  {
    MutexLock lock(&mu_);
    const uint64_t epoch_before = membership_.shards().epoch();
    auto joined = membership_.Join(*request);
    status = joined.status();
    if (joined.ok()) {
      *response = *std::move(joined);
      LODESTONE_LOG(INFO, "coordinator", "{} joined index={} incarnation={} address={} peer={}", role,
                    response->index(), response->incarnation(), request->address(), request->peer());
      Settle(epoch_before);
      wake_timer_.NotifyOne();
    }
    waits = WaitsForSave(reactor, AllSaved(), &status);
  }
  if (!status.ok()) {
    LODESTONE_LOG(WARN, "coordinator", "{} was refused peer={} error={}", role, request->peer(), status.ToString());
  }
  if (!waits) reactor->Finish(Told(status));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::Heartbeat(grpc::CallbackServerContext* context,
                                                        const v1::HeartbeatRequest* request,
                                                        v1::HeartbeatResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  HandleHeartbeat(*context, *request, response,
                  [reactor](const absl::Status& status) { reactor->Finish(ToGrpc(status)); });
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
  std::vector<HeldCall*> answered;
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
      answered = TakeAnswered();
    }
    if (status.ok() && request.leaving()) {
      LODESTONE_LOG(INFO, "coordinator", "left who={}", membership_.members().NameOf(request.incarnation()));
    }
    Settle(epoch_before);
    if (status.ok() && request.leaving()) {
      waits = WaitsForSave(done, AllSaved(), &status);
    }
  }
  for (HeldCall* const call : answered) call->FinishNow();
  if (!waits) done(OrNotLeading(status));
}

grpc::ServerUnaryReactor* CoordinatorService::AwaitClock(grpc::CallbackServerContext*,
                                                         const v1::AwaitClockRequest* request,
                                                         v1::AwaitClockResponse* response) {
  auto* const call = new HeldCall(this, request, response);
  std::vector<HeldCall*> answered;
  {
    MutexLock lock(&mu_);
    ++await_calls_;
    if (shut_down_ || held_.size() >= held_max_) {
      call->set_end(shut_down_ ? absl::UnavailableError("the coordinator shuts down")
                               : absl::ResourceExhaustedError(
                                     absl::StrCat("the coordinator holds ", held_.size(), " calls, its limit")));
      answered.push_back(call);
    } else {
      held_.insert(call);
      answered = TakeAnswered();
      wake_timer_.NotifyOne();
    }
  }
  for (HeldCall* const other : answered) other->FinishNow();
  return call;
}

grpc::ServerUnaryReactor* CoordinatorService::Route(grpc::CallbackServerContext* context,
                                                    const v1::RouteRequest* request, v1::RouteResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  HandleRoute(*context, *request, response, [reactor](const absl::Status& status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
}

void CoordinatorService::HandleRoute(const grpc::ServerContextBase&, const v1::RouteRequest&,
                                     v1::RouteResponse* response, Done done) {
  absl::Status status;
  bool waits = false;
  {
    MutexLock lock(&mu_);
    auto route = membership_.shards().Route();
    status = route.status();
    if (route.ok()) *response = *std::move(route);
    waits = WaitsForSave(done, AllSaved() || saver_.IsRouteSaved(membership_.shards().changes()), &status);
  }
  if (!waits) done(OrNotLeading(status));
}

grpc::ServerUnaryReactor* CoordinatorService::ReportSync(grpc::CallbackServerContext* context,
                                                         const v1::ReportSyncRequest* request,
                                                         v1::ReportSyncResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  HandleReportSync(*context, *request, response,
                   [reactor](const absl::Status& status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
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

bool CoordinatorService::Answer(HeldCall* call, const LowestClocks& clocks, int64_t now_ms) {
  const Incarnation asker = call->request().incarnation();
  if (asker != 0) {
    if (absl::Status alive = membership_.members().CheckAlive(asker); !alive.ok()) {
      call->set_end(std::move(alive));
      return true;
    }
  }
  if (clocks.Reached(asker, call->request().clock())) {
    call->response()->set_reached(true);
    return true;
  }
  if (now_ms < call->deadline_ms()) return false;
  for (std::string& line : WorkersBehind(membership_.members(), asker, call->request().clock())) {
    call->response()->add_waiting_for(std::move(line));
  }
  return true;
}

std::vector<CoordinatorService::HeldCall*> CoordinatorService::TakeAnswered() {
  std::vector<HeldCall*> answered;
  if (held_.empty()) return answered;
  NoticeStall();
  const LowestClocks clocks = LowestClocksOf(membership_.members());
  const int64_t now_ms = time_->NowMs();
  for (HeldCall* const call : held_) {
    if (Answer(call, clocks, now_ms)) answered.push_back(call);
  }
  for (HeldCall* const call : answered) held_.erase(call);
  return answered;
}

bool CoordinatorService::Forget(HeldCall* call) {
  MutexLock lock(&mu_);
  return held_.erase(call) > 0;
}

void CoordinatorService::NoticeStall() {
  const int64_t now_ms = stall_time_->NowMs();
  const int64_t gap_ms = now_ms - std::exchange(looked_ms_, now_ms);
  if (gap_ms <= lease_ms_ / kStallsPerLease) return;
  membership_.RenewAll();
  LODESTONE_LOG(WARN, "coordinator", "this process stood still; every member gets a whole lease ms={}", gap_ms);
}

void CoordinatorService::WatchServers() {
  const MemberTable& members = membership_.members();
  if (watch_ == nullptr || watched_changes_ == members.changes()) return;
  watched_changes_ = members.changes();
  std::vector<ProcessWatch::Process> living;
  for (const MemberPlace& server : members.servers()) {
    if (members.Alive(server)) living.push_back({server.incarnation, server.address});
  }
  watch_->Watch(std::move(living));
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
  WatchServers();
}

void CoordinatorService::CheckTime() {
  std::vector<HeldCall*> answered;
  {
    MutexLock lock(&mu_);
    LogExpired();
    AddToHistory();
    answered = TakeAnswered();
  }
  for (HeldCall* const call : answered) call->FinishNow();
}

std::optional<int64_t> CoordinatorService::NextWakeMs() const {
  std::optional<int64_t> next_ms = membership_.members().NextExpiryMs();
  if (const auto history_ms = history_.NextMs(AnyWorkerWorks(membership_.members())); history_ms.has_value()) {
    next_ms = std::min(next_ms.value_or(*history_ms), *history_ms);
  }
  for (const HeldCall* const call : held_) {
    next_ms = std::min(next_ms.value_or(call->deadline_ms()), call->deadline_ms());
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
  std::vector<HeldCall*> ended;
  {
    MutexLock lock(&mu_);
    shut_down_ = true;
    ended.assign(held_.begin(), held_.end());
    held_.clear();
    wake_timer_.NotifyAll();
    saver_.Stop();
  }
  for (HeldCall* const call : ended) {
    call->set_end(absl::UnavailableError("the coordinator shuts down"));
    call->FinishNow();
  }
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
  const int64_t now_ms = time_->NowMs();
  saver_.FillStatus(status);
  size_t shown = 0;
  for (const HeldCall* const call : held_) {
    if (++shown > kWaitsShownMax) break;
    const Incarnation asker = call->request().incarnation();
    v1::WaitStatus* const wait = status->add_waits();
    wait->set_who(asker == 0 ? "an observer" : membership_.members().NameOf(asker));
    wait->set_what(
        absl::StrCat("clock ", call->request().clock(), ": ",
                     absl::StrJoin(WorkersBehind(membership_.members(), asker, call->request().clock()), "; ")));
    wait->set_seconds(static_cast<double>(now_ms - call->since_ms()) / 1000.0);
  }
}

}  // namespace lodestone::server
