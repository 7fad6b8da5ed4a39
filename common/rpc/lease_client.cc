#include "common/rpc/lease_client.h"

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

namespace lodestone {
namespace {

constexpr int64_t kCallTimeoutMsMin = 1000;
constexpr int64_t kCallTimeoutMsMax = 5000;
constexpr int64_t kLeaseMsMin = 3;  // Less cannot be renewed in time.
constexpr int64_t kRetryMs = 1000;  // Between two attempts once there is a map.
// The same where the coordinator is elected, so that the next may be there at once.
constexpr int64_t kFirstRetryMs = 100;
constexpr int64_t kRouteRetryMs = 250;
constexpr int64_t kRouteWantedMs = 2000;             // So long a newer map is asked for after one was requested.
constexpr int64_t kLifeMsMax = 1000;                 // So long a Join waits for a life socket,
constexpr std::chrono::milliseconds kLifeSlice(20);  // and looks whether the process ends.
constexpr int64_t kReconnectSliceMs = 100;  // While the coordinator cannot be reached, requests are seen this often.

std::string PeerName() {
  char host[256] = "";
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  return absl::StrCat(host[0] == '\0' ? "unknown" : host, " pid ", getpid());
}

v1::JoinRequest Completed(v1::JoinRequest join) {
  if (join.peer().empty()) join.set_peer(PeerName());
  if (join.token() == 0) join.set_token(DrawNonce());  // The same in every Join: an answer may get lost.
  return join;
}

void SetTimeout(grpc::ClientContext* context, int64_t timeout_ms) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(std::max<int64_t>(1, timeout_ms)));
}

}  // namespace

LeaseClient::LeaseClient(Options options, Delegate delegate, std::unique_ptr<CoordinatorChannel> coordinator)
    : options_(std::move(options)),
      delegate_(std::move(delegate)),
      coordinator_(std::move(coordinator)),
      join_(Completed(options_.join)),
      lease_ms_(options_.lease_ms),
      route_pace_(options_.route_request_ms_max),
      thread_([this] { Run(); }) {}

LeaseClient::~LeaseClient() { Leave(); }

void LeaseClient::Leave() {
  {
    MutexLock lock(&mu_);
    if (leaving_) return;
    leaving_ = true;
    for (grpc::ClientContext* const call : calls_) call->TryCancel();
    changed_.NotifyAll();
  }
  coordinator_->Stop();
  thread_.join();
  if (incarnation_ == 0 || is_lost_) return;
  lease_ends_ms_ = 0;  // The process that takes over does so at once.
  const absl::Status status = LastHeartbeat();
  if (status.ok()) return;
  if (options_.joins_again) {  // What it owns is looked after by then.
    LODESTONE_LOG(INFO, "lease", "leaves without an answer of the coordinator: {}", status.ToString());
  } else {
    LODESTONE_LOG(WARN, "lease", "leaves without an answer of the coordinator: {}", status.ToString());
  }
}

bool LeaseClient::leaving() const {
  MutexLock lock(&mu_);
  return leaving_;
}

void LeaseClient::Run() {
  absl::StatusOr<ShardMap> map = AwaitRoute();
  if (leaving()) return;
  const bool ok = map.ok();
  delegate_.on_first_route(std::move(map));
  if (ok) KeepLease();
}

absl::StatusOr<ShardMap> LeaseClient::AwaitRoute() {
  const int64_t deadline_ms = time_.NowMs() + options_.join_timeout_ms;
  Backoff backoff(static_cast<uint64_t>(getpid()));
  absl::Status last;
  for (;;) {
    absl::StatusOr<ShardMap> map = TryRoute(deadline_ms - time_.NowMs());
    if (map.ok()) {
      wait_.Set("", epoch_ > 0);
      epoch_ = map->epoch();
      next_route_ms_ = kNever;
      return map;
    }
    if (!MayPass(map.status())) return map.status();
    // The last attempt may be cut short, which means nothing.
    if (last.ok() || !absl::IsDeadlineExceeded(map.status())) last = map.status();
    const int64_t now_ms = time_.NowMs();
    if (now_ms >= deadline_ms) {
      return absl::DeadlineExceededError(absl::StrCat("gave up after ", options_.join_timeout_ms,
                                                      " ms (coordinator.join_timeout_ms): ", last.message()));
    }
    wait_.Set(std::string(map.status().message()), epoch_ > 0);
    int64_t pause_ms = std::min({backoff.NextMs(), options_.poll_ms_max, deadline_ms - now_ms});
    if (incarnation_ != 0) {
      pause_ms = std::min(pause_ms, std::max(limits::kRetryBackoffMinMs, next_heartbeat_ms_ - now_ms));
    }
    if (!Pause(pause_ms)) return absl::CancelledError("the process ends");
  }
}

absl::StatusOr<ShardMap> LeaseClient::TryRoute(int64_t left_ms) {
  const int64_t timeout_ms = std::min(kCallTimeoutMsMax, left_ms);
  if (incarnation_ == 0) LODESTONE_RETURN_IF_ERROR(Join(timeout_ms));
  if (time_.NowMs() >= next_heartbeat_ms_) {
    absl::Status status = Heartbeat();
    if (absl::IsFailedPrecondition(status) && options_.joins_again) status = Join(timeout_ms);
    LODESTONE_RETURN_IF_ERROR(status);
  }
  return FetchRoute(std::min(call_timeout_ms(), left_ms));
}

absl::StatusOr<ShardMap> LeaseClient::FetchRoute(int64_t timeout_ms) {
  v1::RouteRequest request;
  request.set_role(join_.role());
  request.set_incarnation(incarnation_);
  v1::RouteResponse route;
  LODESTONE_RETURN_IF_ERROR(Call(timeout_ms, [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
    return stub->Route(context, request, &route);
  }));
  LODESTONE_ASSIGN_OR_RETURN(ShardMap map, ShardMap::FromProto(route));
  // An older one is of no use, whatever it says.
  if (map.epoch() > epoch_ || joined_again_) LODESTONE_RETURN_IF_ERROR(delegate_.check_route(map));
  return map;
}

int64_t LeaseClient::PauseMs() const {
  return std::max<int64_t>(1, std::min(next_heartbeat_ms_, next_route_ms_) - time_.NowMs());
}

void LeaseClient::HandleRequests() {
  MutexLock lock(&mu_);
  if (route_requested_) {
    route_requested_ms_ = time_.NowMs();
    // There is no hurry to ask a coordinator that did not answer.
    if (!route_failed_) next_route_ms_ = std::min(next_route_ms_, route_pace_.next_ms());
  }
  if (heartbeat_requested_) next_heartbeat_ms_ = 0;
  route_requested_ = false;
  heartbeat_requested_ = false;
}

void LeaseClient::KeepLease() {
  absl::Status lease, route;
  while (Pause(PauseMs())) {
    HandleRequests();
    if (time_.NowMs() >= next_heartbeat_ms_) lease = RenewLease();
    if (IsLost(lease)) return;
    if (time_.NowMs() >= next_route_ms_) route = FollowRoute();
    if (IsLost(route) || leaving()) return;
    if (!lease.ok()) {
      wait_.Set(absl::StrCat(displaced_ ? "another process has its place, and it serves nothing any more; end it"
                                        : options_.without_lease,
                             ": ", lease.message()),
                epoch_ > 0);
    } else if (!route.ok()) {
      wait_.Set(absl::StrCat("goes on with the shard map of epoch ", epoch_.load(), " for now: ", route.message()),
                epoch_ > 0);
    } else {
      wait_.Set("", epoch_ > 0);
    }
  }
}

bool LeaseClient::IsLost(const absl::Status& status) {
  if (options_.joins_again || !absl::IsFailedPrecondition(status)) return false;
  is_lost_ = true;
  delegate_.on_lost(status);
  return true;
}

absl::Status LeaseClient::RenewLease() {
  absl::Status status = incarnation_ == 0 ? absl::OkStatus() : Heartbeat();
  if (absl::IsFailedPrecondition(status)) {
    if (!options_.joins_again) return Annotate(status, "the lease is lost");
    LODESTONE_LOG(WARN, "lease", "the lease is lost; joins again: {}", status.ToString());
  }
  if (incarnation_ == 0) status = Join(kCallTimeoutMsMax);
  if (absl::IsAlreadyExists(status) && !displaced_.exchange(true)) {
    LODESTONE_LOG(ERROR, "lease", "another process has the place of this one, which is to be ended: {}",
                  status.ToString());
  }
  if (status.ok()) {
    retry_ms_ = 0;
  } else {
    next_heartbeat_ms_ = time_.NowMs() + NextRetryMs();
  }
  return status;
}

int64_t LeaseClient::RouteRetryMs() const {
  return std::min(coordinator_->is_fixed() ? kRetryMs : kRouteRetryMs, lease_ms_ / 3);
}

int64_t LeaseClient::NextRetryMs() {
  const int64_t longest_ms = std::min(kRetryMs, lease_ms_ / 3);
  if (coordinator_->is_fixed()) return longest_ms;
  retry_ms_ = std::clamp(2 * retry_ms_, kFirstRetryMs, kRetryMs);
  return std::min(retry_ms_, longest_ms);
}

absl::Status LeaseClient::FollowRoute() {
  const int64_t fetched_ms = time_.NowMs();
  route_pace_.Begin(fetched_ms);
  next_route_ms_ = fetched_ms + RouteRetryMs();
  route_failed_ = true;
  absl::StatusOr<ShardMap> fetched = FetchRoute(call_timeout_ms());
  if (absl::IsUnavailable(fetched.status()) && !coordinator_->is_fixed()) {
    // There may be another coordinator by now, which has to hear of this process.
    next_heartbeat_ms_ = std::min(next_heartbeat_ms_, time_.NowMs());
  }
  LODESTONE_ASSIGN_OR_RETURN(const ShardMap map, std::move(fetched));
  route_failed_ = false;
  next_route_ms_ = kNever;
  route_pace_.End(time_.NowMs(), map.epoch() > epoch_);
  if (map.epoch() <= epoch_ && !joined_again_) {
    // A caller that cannot reach a ps asks again only after its own pauses, which grow.
    if (fetched_ms - route_requested_ms_ < kRouteWantedMs) next_route_ms_ = route_pace_.next_ms();
    return absl::OkStatus();
  }
  route_requested_ms_ = kLongAgo;
  LODESTONE_LOG(INFO, "lease", "the shard map is new epoch={}", map.epoch());
  epoch_ = map.epoch();
  delegate_.on_route(map);
  joined_again_ = false;
  NoteLease(lease_end_known_ms_);
  return absl::OkStatus();
}

void LeaseClient::RequestRoute() {
  if (epoch_ == 0) return;  // The first is fetched anyway.
  MutexLock lock(&mu_);
  route_requested_ = true;
  changed_.NotifyAll();
}

void LeaseClient::RequestHeartbeat() {
  if (epoch_ == 0) return;
  MutexLock lock(&mu_);
  heartbeat_requested_ = true;
  changed_.NotifyAll();
}

void LeaseClient::ShowLife() {
  if (!options_.shows_life || life_ != nullptr) return;
  const absl::StatusOr<CoordinatorChannel::ConnectionPtr> connection = coordinator_->Get();
  if (!connection.ok()) return;  // Nor can it be joined.
  if (!coming_life_.valid()) {
    std::promise<LifeOr> promise;
    coming_life_ = promise.get_future();
    std::thread([promise = std::move(promise), address = (*connection)->address]() mutable {
      promise.set_value(LifeSocket::Towards(address));
    }).detach();  // A name may take long to be looked up.
  }
  const int64_t until_ms = time_.NowMs() + kLifeMsMax;
  while (coming_life_.wait_for(kLifeSlice) != std::future_status::ready) {
    if (leaving() || time_.NowMs() >= until_ms) return;
  }
  LifeOr life = coming_life_.get();
  if (life.ok()) {
    life_ = *std::move(life);
  } else {
    LODESTONE_LOG(INFO, "lease", "the coordinator will notice this process's death by its lease only: {}",
                  life.status().ToString());
  }
}

absl::Status LeaseClient::Join(int64_t timeout_ms) {
  v1::JoinRequest request = join_;
  // A coordinator that has lost its state learns by it that there was a map.
  if (epoch_ > 0 && request.has_data()) request.mutable_data()->set_served(true);
  if (delegate_.fill_join) delegate_.fill_join(&request);
  ShowLife();
  if (life_ != nullptr) request.set_watched_at(life_->address());
  if (request.role() == v1::ROLE_SERVER) request.set_former_incarnation(former_incarnation_);
  v1::JoinResponse response;
  const int64_t sent_ms = time_.NowMs();
  LODESTONE_RETURN_IF_ERROR(Call(timeout_ms, [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
    return stub->Join(context, request, &response);
  }));
  if (delegate_.on_joined) delegate_.on_joined(response);
  lease_ms_ = std::max<int64_t>(kLeaseMsMin, response.lease_ms());
  if (epoch_ > 0) joined_again_ = true;
  NoteLease(sent_ms + lease_ms_);
  index_ = response.index();
  incarnation_ = response.incarnation();
  former_incarnation_ = response.incarnation();
  next_heartbeat_ms_ = time_.NowMs() + HeartbeatPeriodMs();
  next_route_ms_ = 0;
  LODESTONE_LOG(INFO, "lease", "joined coordinator={} index={} incarnation={} lease_ms={}", coordinator_address(),
                response.index(), response.incarnation(), response.lease_ms());
  return absl::OkStatus();
}

absl::Status LeaseClient::Heartbeat() {
  v1::HeartbeatRequest request;
  request.set_incarnation(incarnation_);
  delegate_.fill_heartbeat(/*leaving=*/false, &request);
  v1::HeartbeatResponse response;
  const int64_t sent_ms = time_.NowMs();
  const absl::Status status = Call(call_timeout_ms(), [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
    return stub->Heartbeat(context, request, &response);
  });
  if (absl::IsFailedPrecondition(status)) {
    is_lost_ = !options_.joins_again;
    if (options_.joins_again) incarnation_ = 0;
    lease_end_known_ms_ = std::min<int64_t>(lease_ends_ms_, sent_ms);
    lease_ends_ms_ = lease_end_known_ms_;
  }
  LODESTONE_RETURN_IF_ERROR(status);
  delegate_.on_heartbeat_answered(response);
  if (response.lease_ms() > 0) lease_ms_ = std::max<int64_t>(kLeaseMsMin, response.lease_ms());
  NoteLease(sent_ms + lease_ms_);
  next_heartbeat_ms_ = time_.NowMs() + HeartbeatPeriodMs();
  if (response.route_epoch() > epoch_) next_route_ms_ = 0;
  return absl::OkStatus();
}

absl::Status LeaseClient::LastHeartbeat() {
  v1::HeartbeatRequest request;
  request.set_incarnation(incarnation_);
  request.set_leaving(true);
  delegate_.fill_heartbeat(/*leaving=*/true, &request);
  v1::HeartbeatResponse response;
  grpc::ClientContext context;
  SetTimeout(&context, options_.leave_timeout_ms);
  LODESTONE_ASSIGN_OR_RETURN(const CoordinatorChannel::ConnectionPtr connection, coordinator_->Get());
  return FromGrpc(connection->stub->Heartbeat(&context, request, &response));
}

void LeaseClient::NoteLease(int64_t ends_ms) {
  lease_end_known_ms_ = ends_ms;
  // A process that has joined again may own less than before: until that is known, the lease is of no use.
  if (!joined_again_) lease_ends_ms_ = ends_ms;
}

int64_t LeaseClient::HeartbeatPeriodMs() const { return std::min(lease_ms_ / 3, options_.heartbeat_ms_max); }

int64_t LeaseClient::call_timeout_ms() const { return std::clamp(lease_ms_ / 3, kCallTimeoutMsMin, kCallTimeoutMsMax); }

bool LeaseClient::MayPass(const absl::Status& status) {
  if (!absl::IsAlreadyExists(status)) return IsRetryable(status.code()) || absl::IsCancelled(status);
  // The place may still be held by an earlier life of this process, whose lease then ends.
  if (held_since_ms_ == 0) held_since_ms_ = time_.NowMs();
  return time_.NowMs() - held_since_ms_ < 2 * lease_ms_;
}

absl::Status LeaseClient::Call(int64_t timeout_ms, const CoordinatorCall& call) {
  const absl::StatusOr<CoordinatorChannel::ConnectionPtr> found = coordinator_->Get();
  if (!found.ok()) return Annotate(found.status(), "the coordinator cannot be found");
  const CoordinatorChannel::Connection& connection = **found;
  grpc::ClientContext context;
  SetTimeout(&context, timeout_ms);
  {
    MutexLock lock(&mu_);
    if (leaving_) return absl::CancelledError("the process ends");
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
  if (absl::IsUnimplemented(status)) {  // Another process listens where the elected ps was.
    return absl::UnavailableError(absl::StrCat("what listens at ", connection.address, " serves no coordinator"));
  }
  return Annotate(status, absl::StrCat("coordinator ", connection.address));
}

CoordinatorChannel::ConnectionPtr LeaseClient::TryToReconnect() {
  const int64_t now_ms = time_.NowMs();
  if (options_.reconnect_ms == 0 || now_ms - reconnected_ms_ < options_.reconnect_ms) return nullptr;
  reconnected_ms_ = now_ms;
  CoordinatorChannel::ConnectionPtr connection = coordinator_->Last();
  return connection != nullptr && Reconnect(connection->channel.get()) ? connection : nullptr;
}

bool LeaseClient::Pause(int64_t ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  for (;;) {
    const CoordinatorChannel::ConnectionPtr unreachable = TryToReconnect();
    const auto now = std::chrono::steady_clock::now();
    {
      MutexLock lock(&mu_);
      while (!leaving_ && !route_requested_ && !heartbeat_requested_ && unreachable == nullptr &&
             changed_.WaitUntil(&mu_, until)) {
      }
      if (leaving_) return false;
      if (route_requested_ || heartbeat_requested_ || unreachable == nullptr || now >= until) return true;
    }
    const auto left_ms = std::chrono::duration_cast<std::chrono::milliseconds>(until - now).count();
    const std::chrono::milliseconds slice(std::clamp<int64_t>(left_ms, 1, kReconnectSliceMs));
    if (unreachable->channel->WaitForConnected(std::chrono::system_clock::now() + slice)) return true;
  }
}

std::string LeaseClient::coordinator_address() const {
  const CoordinatorChannel::ConnectionPtr connection = coordinator_->Last();
  return connection == nullptr ? "" : connection->address;
}

}  // namespace lodestone
