#include "server/coordinator_client.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/nonce.h"
#include "common/base/retry.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "common/telemetry/log.h"

namespace lodestone::server {
namespace {

constexpr int64_t kCallTimeoutMsMin = 1000;
constexpr int64_t kCallTimeoutMsMax = 5000;
constexpr int64_t kLeaveTimeoutMs = 500;
constexpr int64_t kLeaseMsMin = 3;      // Less cannot be renewed in time.
constexpr int64_t kPollMs = 100;        // Between two attempts at the start.
constexpr int64_t kRetryMs = 1000;      // Between two attempts later.
constexpr int64_t kPromptMs = 1000;     // Between two heartbeats, if failovers are to be heard of soon.
constexpr int64_t kReconnectMs = 2000;  // Between two times that gRPC's own pauses are cut short.
constexpr int64_t kWaitLogMs = 10'000;  // A wait that stays the same is logged this often.

std::string PeerName() {
  char host[256] = "unknown";
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat(host, ":", getpid());
}

}  // namespace

Member::Member(Options options, std::unique_ptr<CoordinatorChannel> coordinator,
               std::function<void(absl::StatusOr<ShardMap>)> on_route)
    : options_(std::move(options)),
      coordinator_(std::move(coordinator)),
      on_route_(std::move(on_route)),
      token_(options_.token != 0 ? options_.token : DrawNonce()),
      lease_ms_(options_.lease_ms),
      thread_([this] { Run(); }) {}

Member::~Member() { Leave(); }

void Member::Leave() {
  {
    MutexLock lock(&mu_);
    if (leaving_) return;
    leaving_ = true;
    for (grpc::ClientContext* const call : calls_) call->TryCancel();
    changed_.NotifyAll();
  }
  coordinator_->Stop();
  thread_.join();
  if (incarnation_ == 0) return;
  if (options_.replicas > 1) lease_ends_ms_ = 0;  // Whoever takes over does so at once.
  const absl::Status status = Heartbeat(true);
  if (!status.ok()) LODESTONE_LOG(INFO, "member", "left without telling the coordinator: {}", status.ToString());
}

bool Member::leaving() const {
  MutexLock lock(&mu_);
  return leaving_;
}

void Member::Run() {
  absl::StatusOr<ShardMap> map = AwaitRoute();
  if (leaving()) return;
  const bool ok = map.ok();
  on_route_(std::move(map));
  if (ok) KeepLease();
}

absl::StatusOr<ShardMap> Member::AwaitRoute() {
  const int64_t start_ms = time_.NowMs();
  for (;;) {
    absl::StatusOr<ShardMap> map = TryRoute();
    if (map.ok()) {
      SetWait("");
      epoch_ = map->epoch();
      next_route_ms_ = kNever;
      return map;
    }
    if (!MayPass(map.status())) return map.status();
    if (time_.NowMs() - start_ms >= options_.join_timeout_ms) {
      return absl::DeadlineExceededError(absl::StrCat("gave up after ", options_.join_timeout_ms,
                                                      " ms (coordinator.join_timeout_ms): ", map.status().message()));
    }
    SetWait(std::string(map.status().message()));
    if (!Pause(kPollMs)) return absl::CancelledError("the ps ends");
  }
}

absl::StatusOr<ShardMap> Member::TryRoute() {
  if (incarnation_ == 0) LODESTONE_RETURN_IF_ERROR(Join());
  if (time_.NowMs() >= next_heartbeat_ms_) {
    absl::Status status = Heartbeat(false);
    if (absl::IsFailedPrecondition(status)) status = Join();
    LODESTONE_RETURN_IF_ERROR(status);
  }
  return FetchRoute();
}

absl::StatusOr<ShardMap> Member::FetchRoute() {
  v1::RouteResponse route;
  LODESTONE_RETURN_IF_ERROR(Call(kCallTimeoutMsMax, [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
    return stub->Route(context, v1::RouteRequest(), &route);
  }));
  LODESTONE_ASSIGN_OR_RETURN(ShardMap map, ShardMap::FromProto(route));
  if (map.shards() != options_.shards || options_.index >= map.servers()) {
    return absl::InvalidArgumentError(absl::StrCat("the coordinator's shard map has ", map.shards(), " shards on ",
                                                   map.servers(), " servers; this is ps ", options_.index, " with ",
                                                   options_.shards, " (cluster.shards)"));
  }
  return map;
}

int64_t Member::PauseMs() const {
  return std::max<int64_t>(1, std::min(next_heartbeat_ms_, next_route_ms_) - time_.NowMs());
}

void Member::TakeWishes() {
  MutexLock lock(&mu_);
  // However many wish for the map, the coordinator is asked no more often than this.
  if (route_wished_) next_route_ms_ = std::min(next_route_ms_, route_asked_ms_ + kPollMs);
  if (heartbeat_wished_) next_heartbeat_ms_ = 0;
  route_wished_ = false;
  heartbeat_wished_ = false;
}

void Member::KeepLease() {
  absl::Status lease, route;
  while (Pause(PauseMs())) {
    TakeWishes();
    if (time_.NowMs() >= next_heartbeat_ms_) lease = RenewLease();
    if (time_.NowMs() >= next_route_ms_) route = FollowRoute();
    if (leaving()) return;
    if (!lease.ok()) {
      SetWait(absl::StrCat(options_.replicas > 1 ? "waits for its lease to be renewed, and serves until it ends: "
                                                 : "goes on serving without a lease for now: ",
                           lease.message()));
    } else if (!route.ok()) {
      SetWait(absl::StrCat("goes on with the shard map of epoch ", epoch_.load(), " for now: ", route.message()));
    } else {
      SetWait("");
    }
  }
}

absl::Status Member::RenewLease() {
  absl::Status status = incarnation_ == 0 ? absl::OkStatus() : Heartbeat(false);
  if (absl::IsFailedPrecondition(status)) {
    LODESTONE_LOG(WARN, "member", "the lease is lost; joins again: {}", status.ToString());
  }
  if (incarnation_ == 0) status = Join();
  if (!status.ok()) next_heartbeat_ms_ = time_.NowMs() + std::min(kRetryMs, lease_ms_ / 3);
  return status;
}

absl::Status Member::FollowRoute() {
  route_asked_ms_ = time_.NowMs();
  next_route_ms_ = route_asked_ms_ + std::min(kRetryMs, lease_ms_ / 3);
  LODESTONE_ASSIGN_OR_RETURN(const ShardMap map, FetchRoute());
  next_route_ms_ = kNever;
  if (map.epoch() <= epoch_ && !joined_again_) return absl::OkStatus();
  LODESTONE_LOG(INFO, "member", "the shard map is new epoch={}", map.epoch());
  epoch_ = map.epoch();
  if (options_.on_change) options_.on_change(map);
  joined_again_ = false;
  NoteLease(lease_end_known_ms_);
  return absl::OkStatus();
}

void Member::AskRoute() {
  if (epoch_ == 0) return;  // The first is asked for all the time.
  MutexLock lock(&mu_);
  route_wished_ = true;
  changed_.NotifyAll();
}

absl::StatusOr<v1::ReportSyncResponse> Member::ReportSync(const v1::ReportSyncRequest& request) {
  MutexLock in_turn(&report_mu_);
  v1::ReportSyncRequest numbered = request;
  numbered.set_incarnation(incarnation());
  numbered.set_sequence(++reports_);
  if (numbered.incarnation() == 0) return absl::UnavailableError("this ps has not joined the coordinator at present");
  v1::ReportSyncResponse response;
  const absl::Status status =
      Call(HeartbeatTimeoutMs(), [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
        return stub->ReportSync(context, numbered, &response);
      });
  if (absl::IsFailedPrecondition(status) && epoch_ > 0) {
    MutexLock lock(&mu_);
    heartbeat_wished_ = true;
    changed_.NotifyAll();
  }
  LODESTONE_RETURN_IF_ERROR(status);
  if (response.accepted_size() != request.reports_size()) {
    return absl::InternalError(absl::StrCat("the coordinator answers ", request.reports_size(), " reports with ",
                                            response.accepted_size(), " answers"));
  }
  if (response.route_epoch() > epoch_) AskRoute();
  return response;
}

absl::Status Member::Join() {
  v1::JoinRequest request;
  request.set_role(v1::ROLE_SERVER);
  request.set_address(options_.address);
  request.set_local_socket(options_.local_socket);
  request.set_index_plus_one(options_.index + 1);
  request.set_cluster(options_.cluster);
  request.set_shards(options_.shards);
  request.set_peer(PeerName());
  request.set_token(token_);
  request.set_predecessor(options_.predecessor);
  v1::JoinResponse response;
  const int64_t sent_ms = time_.NowMs();
  LODESTONE_RETURN_IF_ERROR(Call(kCallTimeoutMsMax, [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
    return stub->Join(context, request, &response);
  }));
  lease_ms_ = std::max<int64_t>(kLeaseMsMin, response.lease_ms());
  if (epoch_ > 0) joined_again_ = true;
  NoteLease(sent_ms + lease_ms_);
  incarnation_ = response.incarnation();
  next_heartbeat_ms_ = time_.NowMs() + HeartbeatPeriodMs();
  next_route_ms_ = 0;
  LODESTONE_LOG(INFO, "member", "joined coordinator={} incarnation={} lease_ms={}", coordinator_->Last()->address,
                response.incarnation(), response.lease_ms());
  return absl::OkStatus();
}

uint64_t Member::FillHeartbeat(bool leaving, v1::HeartbeatRequest* request) const {
  request->set_incarnation(incarnation_);
  request->set_leaving(leaving);
  if (options_.progress) *request->mutable_server() = options_.progress();
  uint64_t last = told_event_;
  if (options_.events == nullptr) return last;
  for (v1::Event& event : options_.events->After(told_event_, limits::kHeartbeatEventsMax)) {
    last = event.id();
    event.clear_id();
    *request->add_events() = std::move(event);
  }
  return last;
}

absl::Status Member::Heartbeat(bool leaving) {
  v1::HeartbeatRequest request;
  const uint64_t last_event = FillHeartbeat(leaving, &request);
  v1::HeartbeatResponse response;
  if (leaving) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(kLeaveTimeoutMs));
    return FromGrpc(coordinator_->Last()->stub->Heartbeat(&context, request, &response));
  }
  const int64_t sent_ms = time_.NowMs();
  const absl::Status status =
      Call(HeartbeatTimeoutMs(), [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
        return stub->Heartbeat(context, request, &response);
      });
  if (absl::IsFailedPrecondition(status)) {
    incarnation_ = 0;
    lease_end_known_ms_ = std::min<int64_t>(lease_ends_ms_, sent_ms);
    lease_ends_ms_ = lease_end_known_ms_;
  }
  LODESTONE_RETURN_IF_ERROR(status);
  told_event_ = last_event;
  if (response.lease_ms() > 0) lease_ms_ = std::max<int64_t>(kLeaseMsMin, response.lease_ms());
  NoteLease(sent_ms + lease_ms_);
  next_heartbeat_ms_ = time_.NowMs() + HeartbeatPeriodMs();
  if (response.route_epoch() > epoch_) next_route_ms_ = 0;
  return absl::OkStatus();
}

void Member::NoteLease(int64_t ends_ms) {
  lease_end_known_ms_ = ends_ms;
  // Who has joined again may own less than before: until that is known, the lease is of no use.
  if (!joined_again_) lease_ends_ms_ = ends_ms;
}

int64_t Member::HeartbeatPeriodMs() const {
  const int64_t third_ms = lease_ms_ / 3;
  return options_.replicas > 1 ? std::min(third_ms, kPromptMs) : third_ms;
}

int64_t Member::HeartbeatTimeoutMs() const { return std::clamp(lease_ms_ / 3, kCallTimeoutMsMin, kCallTimeoutMsMax); }

bool Member::MayPass(const absl::Status& status) {
  if (!absl::IsAlreadyExists(status)) return IsRetryable(status.code()) || absl::IsCancelled(status);
  // The place may still be held by an earlier life of this ps, whose lease then ends.
  if (held_since_ms_ == 0) held_since_ms_ = time_.NowMs();
  return time_.NowMs() - held_since_ms_ < lease_ms_ + lease_ms_ / 2;
}

absl::Status Member::Call(int64_t timeout_ms,
                          const std::function<grpc::Status(v1::Coordinator::Stub*, grpc::ClientContext*)>& call) {
  const absl::StatusOr<CoordinatorChannel::ConnectionPtr> found = coordinator_->Get();
  if (!found.ok()) return Annotate(found.status(), "the coordinator cannot be found");
  const CoordinatorChannel::Connection& connection = **found;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  {
    MutexLock lock(&mu_);
    if (leaving_) return absl::CancelledError("the ps ends");
    calls_.push_back(&context);
  }
  const absl::Status status = coordinator_->Note(connection, call(connection.stub.get(), &context));
  {
    MutexLock lock(&mu_);
    calls_.erase(std::find(calls_.begin(), calls_.end(), &context));
  }
  if (absl::IsUnimplemented(status) && coordinator_->is_fixed()) {
    return absl::UnimplementedError(
        absl::StrCat("what listens at ", connection.address, " (coordinator.address) is not the ps with index 0"));
  }
  if (absl::IsUnimplemented(status)) {  // Whoever listens where the elected ps was.
    return absl::UnavailableError(absl::StrCat("what listens at ", connection.address, " serves no coordinator"));
  }
  return Annotate(status, absl::StrCat("coordinator ", connection.address));
}

bool Member::Pause(int64_t ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  const int64_t now_ms = time_.NowMs();
  // Where the coordinator is fixed, index 0 needs no connection to it.
  if ((options_.index > 0 || !coordinator_->is_fixed()) && now_ms - reconnected_ms_ >= kReconnectMs) {
    reconnected_ms_ = now_ms;
    if (const auto connection = coordinator_->Last(); connection != nullptr) Reconnect(connection->channel.get());
  }
  MutexLock lock(&mu_);
  while (!leaving_ && !route_wished_ && !heartbeat_wished_ && changed_.WaitUntil(&mu_, until)) {
  }
  return !leaving_;
}

void Member::SetWait(const std::string& what) {
  const int64_t now_ms = time_.NowMs();
  bool is_new = false;
  {
    MutexLock lock(&mu_);
    is_new = wait_ != what;
    if (is_new && (wait_.empty() || what.empty())) wait_since_ms_ = now_ms;
    wait_ = what;
  }
  if (what.empty()) {
    if (is_new && wait_logged_ms_ > 0) LODESTONE_LOG(INFO, "member", "what this ps waited for is there");
    wait_logged_ms_ = 0;
    return;
  }
  if (now_ms - wait_logged_ms_ < (is_new ? kRetryMs : kWaitLogMs)) return;
  wait_logged_ms_ = now_ms;
  if (epoch_ > 0) {
    LODESTONE_LOG(WARN, "member", "{}", what);
  } else {
    LODESTONE_LOG(INFO, "member", "{}", what);
  }
}

void Member::FillStatus(v1::StatusResponse* status) const {
  if (const auto connection = coordinator_->Last(); connection != nullptr) {
    status->set_coordinator(connection->address);
  }
  MutexLock lock(&mu_);
  if (wait_.empty()) return;
  v1::WaitStatus* const wait = status->add_waits();
  wait->set_who(absl::StrCat("ps ", options_.index));
  wait->set_what(wait_);
  wait->set_seconds(static_cast<double>(time_.NowMs() - wait_since_ms_) / 1000.0);
}

}  // namespace lodestone::server
