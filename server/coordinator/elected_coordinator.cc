#include "server/coordinator/elected_coordinator.h"

#include <chrono>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/incarnation.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "common/rpc/grpc_status.h"
#include "server/coordinator/service.h"

namespace lodestone::server {
namespace {

constexpr int64_t kGoneMsMax = 5000;  // So long it counts for the next that is elected that the last one was dead.

}  // namespace

class ElectedCoordinator::Use {
 public:
  explicit Use(const ElectedCoordinator* owner) : owner_(owner) {
    MutexLock lock(&owner_->mu_);
    service_ = owner_->service_.get();
    if (service_ != nullptr) ++owner_->uses_;
  }
  ~Use() {
    if (service_ == nullptr) return;
    MutexLock lock(&owner_->mu_);
    if (--owner_->uses_ == 0) owner_->unused_.NotifyAll();
  }
  CoordinatorService* service() const { return service_; }

 private:
  const ElectedCoordinator* const owner_;
  CoordinatorService* service_ = nullptr;
};

ElectedCoordinator::ElectedCoordinator(Options options)
    : options_(std::move(options)),
      election_(
          options_.election,
          {.on_elected = [this](int64_t term, const auto& state) { return OnElected(term, state); },
           .on_deposed = [this](int64_t, const absl::Status&) { EndService(); },
           .on_other_elected = [this](const std::string& address, int64_t lease) { OnOtherElected(address, lease); }}),
      watch_([this](std::span<ProcessWatch::Gone> gone) {
        for (const ProcessWatch::Gone& one : gone) {
          if (one.process.announced) OnGone(one.process.address, static_cast<int64_t>(one.process.life));
        }
      }) {}

ElectedCoordinator::~ElectedCoordinator() { Shutdown(); }

absl::Status ElectedCoordinator::OnElected(int64_t term, std::optional<v1::CoordinatorState> state) {
  if (!state.has_value() && options_.first_state) {
    LODESTONE_ASSIGN_OR_RETURN(state, options_.first_state());
  }
  Membership::Options membership = options_.membership;
  membership.first_incarnation = FirstIncarnation(std::chrono::system_clock::now());
  auto service = std::make_unique<CoordinatorService>(
      membership, [this, term](const v1::CoordinatorState& fresh) { return election_.Save(term, fresh); },
      [this, term] { return election_.Leads(term); }, options_.access);
  if (state.has_value()) LODESTONE_RETURN_IF_ERROR(service->Restore(*state));
  std::string gone;
  {
    MutexLock lock(&mu_);
    if (shut_down_) return absl::CancelledError("the ps ends");
    if (SteadyTime().NowMs() - gone_ms_ < kGoneMsMax) gone = gone_;
    service_ = std::move(service);
  }
  if (!gone.empty()) {
    const Use use(this);
    if (use.service() != nullptr) use.service()->NoteGoneAt(gone);
  }
  if (options_.on_change) options_.on_change(true);
  return absl::OkStatus();
}

void ElectedCoordinator::OnOtherElected(const std::string& address, int64_t lease) {
  MutexLock lock(&mu_);
  if (lease == watched_) return;
  watched_ = lease;
  watched_at_ = address;
  gone_.clear();
  WatchProcesses();
}

void ElectedCoordinator::SetPeers(std::vector<ProcessWatch::Process> peers) {
  MutexLock lock(&mu_);
  if (peers == peers_) return;
  peers_ = std::move(peers);
  WatchProcesses();
}

void ElectedCoordinator::WatchProcesses() {
  std::vector<ProcessWatch::Process> processes = peers_;
  // A ps listens before it runs for election.
  if (watched_ != 0 && gone_.empty())
    processes.push_back({static_cast<uint64_t>(watched_), watched_at_, /*announced=*/true});
  watch_.Watch(std::move(processes));
}

void ElectedCoordinator::OnGone(const std::string& address, int64_t lease) {
  {
    MutexLock lock(&mu_);
    if (lease != watched_) return;
    gone_ = address;
    gone_ms_ = SteadyTime().NowMs();
  }
  election_.NoteGone(lease);
  const Use use(this);
  if (use.service() != nullptr) use.service()->NoteGoneAt(address);
}

void ElectedCoordinator::EndService() {
  std::unique_ptr<CoordinatorService> ended;
  {
    MutexLock lock(&mu_);
    ended = std::move(service_);
    while (uses_ > 0) unused_.Wait(&mu_);
  }
  if (ended != nullptr && options_.on_change) options_.on_change(false);
}

void ElectedCoordinator::Shutdown() {
  {
    MutexLock lock(&mu_);
    if (shut_down_) return;
    shut_down_ = true;
  }
  EndService();  // What has changed is saved by its end, before the place is given up.
  election_.Stop();
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* ElectedCoordinator::PassOn(Method<Request, Response> method,
                                                     grpc::CallbackServerContext* context, const Request* request,
                                                     Response* response) {
  {
    const Use use(this);
    if (use.service() != nullptr) return (use.service()->*method)(context, request, response);
  }
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(NotElected()));
  return reactor;
}

template <typename Request, typename Response>
void ElectedCoordinator::PassOn(Handler<Request, Response> handler, const grpc::ServerContextBase& context,
                                const Request& request, Response* response, Done done) {
  {
    const Use use(this);
    if (use.service() != nullptr) return (use.service()->*handler)(context, request, response, std::move(done));
  }
  done(NotElected());
}

void ElectedCoordinator::HandleHeartbeat(const grpc::ServerContextBase& context, const v1::HeartbeatRequest& request,
                                         v1::HeartbeatResponse* response, Done done) {
  PassOn(&ControlMethods::HandleHeartbeat, context, request, response, std::move(done));
}

void ElectedCoordinator::HandleRoute(const grpc::ServerContextBase& context, const v1::RouteRequest& request,
                                     v1::RouteResponse* response, Done done) {
  PassOn(&ControlMethods::HandleRoute, context, request, response, std::move(done));
}

void ElectedCoordinator::HandleReportSync(const grpc::ServerContextBase& context, const v1::ReportSyncRequest& request,
                                          v1::ReportSyncResponse* response, Done done) {
  PassOn(&ControlMethods::HandleReportSync, context, request, response, std::move(done));
}

absl::Status ElectedCoordinator::NotElected() const {
  const std::string leader = election_.leader();
  return absl::UnavailableError(leader.empty() ? "no ps serves the coordinator at the moment"
                                               : absl::StrCat("the coordinator is served by the ps at ", leader));
}

void ElectedCoordinator::Promote(const v1::PromoteRequest& request,
                                 std::function<void(absl::StatusOr<v1::PromoteResponse>)> done) {
  const Use use(this);
  if (use.service() == nullptr) return done(NotElected());
  use.service()->Promote(request, std::move(done));
}

void ElectedCoordinator::AcceptLoss(const v1::AcceptLossRequest& request,
                                    std::function<void(absl::StatusOr<v1::AcceptLossResponse>)> done) {
  const Use use(this);
  if (use.service() == nullptr) return done(NotElected());
  use.service()->AcceptLoss(request, std::move(done));
}

void ElectedCoordinator::Move(const v1::MoveRequest& request,
                              std::function<void(absl::StatusOr<v1::MoveResponse>)> done) {
  const Use use(this);
  if (use.service() == nullptr) return done(NotElected());
  use.service()->Move(request, std::move(done));
}

void ElectedCoordinator::Drain(const v1::DrainRequest& request,
                               std::function<void(absl::StatusOr<v1::DrainResponse>)> done) {
  const Use use(this);
  if (use.service() == nullptr) return done(NotElected());
  use.service()->Drain(request, std::move(done));
}

void ElectedCoordinator::PauseTraining(const v1::PauseTrainingRequest& request,
                                       std::function<void(absl::StatusOr<v1::PauseTrainingResponse>)> done) {
  const Use use(this);
  if (use.service() == nullptr) return done(NotElected());
  use.service()->PauseTraining(request, std::move(done));
}

grpc::ServerUnaryReactor* ElectedCoordinator::Join(grpc::CallbackServerContext* context, const v1::JoinRequest* request,
                                                   v1::JoinResponse* response) {
  return PassOn(&CoordinatorService::Join, context, request, response);
}

grpc::ServerUnaryReactor* ElectedCoordinator::AwaitClock(grpc::CallbackServerContext* context,
                                                         const v1::AwaitClockRequest* request,
                                                         v1::AwaitClockResponse* response) {
  return PassOn(&CoordinatorService::AwaitClock, context, request, response);
}

grpc::ServerUnaryReactor* ElectedCoordinator::Validate(grpc::CallbackServerContext* context,
                                                       const v1::ValidateRequest* request,
                                                       v1::ValidateResponse* response) {
  return PassOn(&CoordinatorService::Validate, context, request, response);
}

grpc::ServerUnaryReactor* ElectedCoordinator::LeaseRanges(grpc::CallbackServerContext* context,
                                                          const v1::LeaseRangesRequest* request,
                                                          v1::LeaseRangesResponse* response) {
  return PassOn(&CoordinatorService::LeaseRanges, context, request, response);
}

v1::CoordinatorState ElectedCoordinator::State() const {
  const Use use(this);
  return use.service() != nullptr ? use.service()->State() : v1::CoordinatorState();
}

void ElectedCoordinator::FillStatus(v1::StatusResponse* status) const {
  {
    const Use use(this);
    if (use.service() != nullptr) use.service()->FillStatus(status);
  }
  election_.FillStatus(status);
}

std::optional<v1::EventsResponse> ElectedCoordinator::Events(uint64_t after_id) const {
  const Use use(this);
  if (use.service() == nullptr) return std::nullopt;
  return use.service()->Events(after_id);
}

std::optional<v1::HistoryResponse> ElectedCoordinator::TellHistory() const {
  const Use use(this);
  if (use.service() == nullptr) return std::nullopt;
  return use.service()->TellHistory();
}

}  // namespace lodestone::server
