#include "worker/client/coordinator_client.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/base/nonce.h"
#include "common/base/retry.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "common/rpc/channel.h"
#include "common/telemetry/log.h"

namespace lodestone::worker {
namespace {

constexpr int64_t kJoinLogEveryMs = 1'000;
constexpr int64_t kPauseMaxMs = 500;  // Between two attempts, if what they wait for does not end the pause by itself.
constexpr int64_t kHeartbeatLogEveryMs = 3'000;
constexpr int64_t kHeartbeatTimeoutMinMs = 1'000;
constexpr int64_t kHeartbeatTimeoutMaxMs = 5'000;
constexpr int64_t kReconnectSliceMs = 100;  // The end of the process is noticed this often.
// Heartbeats come often enough to watch progress by, however long the lease.
constexpr int64_t kHeartbeatEveryMaxMs = 1'000;
// The shard map is asked for this often at most, however many calls fail.
constexpr std::chrono::milliseconds kAskRouteEvery(200);
constexpr uint32_t kAwaitHoldMs = 5'000;
static_assert(kAwaitHoldMs <= limits::kAwaitTimeoutMaxMs);

int64_t NowMs() { return SteadyTime().NowMs(); }

void SetTimeout(grpc::ClientContext* context, int64_t timeout_ms) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(std::max<int64_t>(timeout_ms, 1)));
}

void Sleep(int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

std::string HostAndPid() {
  char host[256] = "";
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  return absl::StrCat(host[0] == '\0' ? "unknown" : host, " pid ", getpid());
}

}  // namespace

WorkerMembership::WorkerMembership(const v1::Config& config, Events events, CredentialsRef credentials)
    : config_(config),
      events_(std::move(events)),
      coordinator_name_(config.coordinator().etcd().empty()
                            ? absl::StrCat("coordinator at ", config.coordinator().address())
                            : "coordinator"),
      coordinator_(config,
                   [message_max_bytes = config.server().message_max_bytes(), credentials = std::move(credentials)](
                       const std::string& address) { return MakeChannel(address, message_max_bytes, credentials); }) {}

absl::StatusOr<std::unique_ptr<WorkerMembership>> WorkerMembership::Join(const v1::Config& config, Events events,
                                                                         CredentialsRef credentials) {
  if (config.coordinator().address().empty() && config.coordinator().etcd().empty()) {
    return absl::InvalidArgumentError("neither coordinator.address nor coordinator.etcd is set");
  }
  const int64_t deadline_ms = NowMs() + config.coordinator().join_timeout_ms();
  std::unique_ptr<WorkerMembership> membership(new WorkerMembership(config, std::move(events), std::move(credentials)));
  LODESTONE_RETURN_IF_ERROR(membership->JoinUntil(deadline_ms));
  membership->thread_ = std::thread([raw = membership.get()] { raw->SendHeartbeats(); });
  LODESTONE_RETURN_IF_ERROR(membership->FetchRouteUntil(deadline_ms));
  return membership;
}

absl::Status WorkerMembership::Call(grpc::ClientContext* context, const CoordinatorCall& call) {
  const absl::StatusOr<CoordinatorChannel::ConnectionPtr> found = coordinator_.Get();
  if (!found.ok()) return Annotate(found.status(), "the coordinator cannot be found");
  const CoordinatorChannel::Connection& connection = **found;
  const absl::Status status = coordinator_.Note(connection, call(connection.stub.get(), context));
  if (coordinator_.is_fixed()) return status;
  if (absl::IsUnimplemented(status)) {  // Whoever listens where the elected ps was.
    return absl::UnavailableError(absl::StrCat("what listens at ", connection.address, " serves no coordinator"));
  }
  return Annotate(status, connection.address);
}

absl::Status WorkerMembership::TryUntil(int64_t deadline_ms, const std::string& what,
                                        const std::function<absl::Status(int64_t timeout_ms)>& attempt,
                                        const std::function<bool(const absl::Status&)>& may_pass) {
  Backoff backoff(static_cast<uint64_t>(getpid()));
  int64_t logged_ms = 0;
  absl::Status last;
  for (;;) {
    const int64_t left_ms = deadline_ms - NowMs();
    const absl::Status status = attempt(std::min<int64_t>(config_.worker().call_timeout_ms(), left_ms));
    if (status.ok()) return status;
    if (!may_pass(status)) return Annotate(status, what);
    // The last attempt may be cut short, which tells nothing.
    if (last.ok() || !absl::IsDeadlineExceeded(status)) last = status;
    const CoordinatorChannel::ConnectionPtr connection = coordinator_.Last();
    const bool unreachable = connection != nullptr && Reconnect(connection->channel.get());
    int64_t pause_ms = unreachable ? backoff.NextMs() : std::min(backoff.NextMs(), kPauseMaxMs);
    pause_ms = std::min(pause_ms, deadline_ms - NowMs());
    if (pause_ms <= 0) {
      return absl::DeadlineExceededError(
          absl::StrCat(what, ": gave up after coordinator.join_timeout_ms; last: ", last.ToString()));
    }
    if (logged_ms == 0 || NowMs() - logged_ms >= kJoinLogEveryMs) {
      logged_ms = NowMs();
      LODESTONE_LOG(INFO, "client", "waiting for={} reason={}", what, status.ToString());
    }
    const std::chrono::milliseconds pause(pause_ms);
    if (unreachable) {
      // The pause ends when there is somebody to ask.
      connection->channel->WaitForConnected(std::chrono::system_clock::now() + pause);
    } else {
      std::this_thread::sleep_for(pause);
    }
  }
}

absl::Status WorkerMembership::JoinUntil(int64_t deadline_ms) {
  v1::JoinRequest request;
  request.set_role(v1::ROLE_WORKER);
  if (config_.worker().has_index()) request.set_index_plus_one(config_.worker().index() + 1);
  request.set_cluster(config_.cluster().name());
  request.set_shards(config_.cluster().shards());
  request.set_peer(HostAndPid());
  request.set_token(DrawNonce());  // The same in every attempt: an answer may get lost.
  // A worker that was killed and started again finds its own index taken until its former lease ends.
  int64_t held_since_ms = 0;
  return TryUntil(
      deadline_ms, absl::StrCat("join at ", coordinator_name_),
      [&](int64_t timeout_ms) {
        grpc::ClientContext context;
        SetTimeout(&context, timeout_ms);
        return Call(&context, [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
          return stub->Join(context, request, &joined_);
        });
      },
      [&](const absl::Status& status) {
        if (!absl::IsAlreadyExists(status)) return IsRetryable(status.code());
        if (held_since_ms == 0) held_since_ms = NowMs();
        return NowMs() - held_since_ms < 2 * int64_t{config_.coordinator().lease_ms()};
      });
}

absl::Status WorkerMembership::FetchRouteUntil(int64_t deadline_ms) {
  v1::RouteResponse route;
  LODESTONE_RETURN_IF_ERROR(TryUntil(
      deadline_ms, absl::StrCat("shard map of ", coordinator_name_),
      [&](int64_t timeout_ms) {
        grpc::ClientContext context;
        SetTimeout(&context, timeout_ms);
        LODESTONE_RETURN_IF_ERROR(Call(&context, [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
          return stub->Route(context, v1::RouteRequest(), &route);
        }));
        for (const uint32_t server : route.owners()) {
          if (server >= route.servers_size() || !route.servers(server).away()) continue;
          return absl::UnavailableError(
              absl::StrCat("ps ", server, " is away; it was at ", route.servers(server).address(), " last"));
        }
        return absl::OkStatus();
      },
      [](const absl::Status& status) { return IsRetryable(status.code()); }));
  LODESTONE_ASSIGN_OR_RETURN(ShardMap map, ShardMap::FromProto(route));
  if (map.shards() != config_.cluster().shards()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the cluster has ", map.shards(),
                     " shards, this worker's configuration says cluster.shards: ", config_.cluster().shards()));
  }
  MutexLock lock(&mu_);
  shard_map_ = std::make_shared<const ShardMap>(std::move(map));
  return absl::OkStatus();
}

std::shared_ptr<const ShardMap> WorkerMembership::shard_map() const {
  MutexLock lock(&mu_);
  return shard_map_;
}

absl::Status WorkerMembership::FollowRoute(uint64_t epoch) {
  const std::shared_ptr<const ShardMap> held = shard_map();
  if (held == nullptr || epoch <= held->epoch()) return absl::OkStatus();
  v1::RouteResponse route;
  LODESTONE_RETURN_IF_ERROR(CallFromThread([&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
    return stub->Route(context, v1::RouteRequest(), &route);
  }));
  LODESTONE_ASSIGN_OR_RETURN(ShardMap map, ShardMap::FromProto(route));
  if (map.epoch() <= held->epoch()) return absl::OkStatus();
  if (map.shards() != held->shards() || map.servers() != held->servers()) {
    return absl::FailedPreconditionError(absl::StrCat("the cluster has ", map.shards(), " shards on ", map.servers(),
                                                      " servers now, and had ", held->shards(), " on ", held->servers(),
                                                      " when this worker joined"));
  }
  const auto next = std::make_shared<const ShardMap>(std::move(map));
  {
    MutexLock lock(&mu_);
    shard_map_ = next;
  }
  LODESTONE_LOG(INFO, "client", "the shard map is new epoch={}", next->epoch());
  if (events_.on_route) events_.on_route(next);
  return absl::OkStatus();
}

WorkerMembership::~WorkerMembership() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    if (under_way_ != nullptr) under_way_->TryCancel();
    changed_.NotifyAll();
  }
  thread_.join();
  absl::Status lost;
  {
    MutexLock lock(&mu_);
    lost = lost_;
  }
  if (!lost.ok()) return;
  Leave();
}

void WorkerMembership::AskRoute() {
  MutexLock lock(&mu_);
  if (ask_route_) return;
  ask_route_ = true;
  changed_.NotifyAll();
}

void WorkerMembership::ReportProgress(const v1::WorkerProgress& progress) {
  MutexLock lock(&mu_);
  if (progress.phase() != progress_.phase()) {
    report_now_ = true;
    changed_.NotifyAll();
  }
  progress_ = progress;
}

void WorkerMembership::SendHeartbeats() {
  uint32_t lease_ms = joined_.lease_ms();
  int64_t away_since_ms = 0, logged_ms = 0;  // 0: it answers.
  for (;;) {
    const int64_t every_ms = std::clamp<int64_t>(lease_ms / 3, 1, kHeartbeatEveryMaxMs);
    if (!PauseUntil(std::chrono::steady_clock::now() + std::chrono::milliseconds(every_ms), away_since_ms > 0)) return;
    const absl::StatusOr<v1::HeartbeatResponse> beat = SendHeartbeat();
    absl::Status status = beat.status();
    if (status.ok()) {
      if (away_since_ms > 0) LODESTONE_LOG(INFO, "client", "the {} answers again", coordinator_name_);
      away_since_ms = logged_ms = 0;
      if (beat->lease_ms() > 0) lease_ms = beat->lease_ms();
      status = Annotate(FollowRoute(beat->route_epoch()), "shard map");
    } else if (away_since_ms == 0) {
      away_since_ms = NowMs();
    }
    if (absl::IsFailedPrecondition(status)) {
      return Lose(beat.ok() ? status
                            : Annotate(status, absl::StrCat("the lease at the ", coordinator_name_, " is lost")));
    }
    if (status.ok() || (logged_ms > 0 && NowMs() - logged_ms < kHeartbeatLogEveryMs)) continue;
    MutexLock lock(&mu_);
    if (stopping_) return;
    logged_ms = NowMs();
    LODESTONE_LOG(WARN, "client", "goes on meanwhile, waiting for={} seconds={:.1f} reason={}", coordinator_name_,
                  away_since_ms == 0 ? 0.0 : static_cast<double>(logged_ms - away_since_ms) / 1000, status.ToString());
  }
}

bool WorkerMembership::PauseUntil(std::chrono::steady_clock::time_point due, bool away) {
  const auto ask_from = std::chrono::steady_clock::now() + kAskRouteEvery;
  for (;;) {
    const auto now = std::chrono::steady_clock::now();
    {
      MutexLock lock(&mu_);
      // While the coordinator is away there is no hurry to tell it anything.
      while (!stopping_ && !away && !report_now_ &&
             changed_.WaitUntil(&mu_, ask_route_ ? std::min(due, ask_from) : due)) {
      }
      if (stopping_) return false;
      if (!away || now >= due) {
        report_now_ = ask_route_ = false;  // The answer to a heartbeat tells whether there is a newer map.
        return true;
      }
    }
    const CoordinatorChannel::ConnectionPtr connection = coordinator_.Last();  // Join has made one.
    Reconnect(connection->channel.get());
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(due - now);
    const std::chrono::milliseconds slice(std::clamp<int64_t>(left.count(), 1, kReconnectSliceMs));
    if (connection->channel->WaitForConnected(std::chrono::system_clock::now() + slice)) away = false;
  }
}

absl::Status WorkerMembership::CallFromThread(const CoordinatorCall& call) {
  grpc::ClientContext context;
  SetTimeout(&context, std::clamp<int64_t>(joined_.lease_ms() / 3, kHeartbeatTimeoutMinMs, kHeartbeatTimeoutMaxMs));
  {
    MutexLock lock(&mu_);
    if (stopping_) return absl::CancelledError("the client is closing");
    under_way_ = &context;
  }
  const absl::Status status = Call(&context, call);
  MutexLock lock(&mu_);
  under_way_ = nullptr;
  return status;
}

v1::HeartbeatRequest WorkerMembership::NextHeartbeat(bool leaving) {
  v1::HeartbeatRequest request;
  request.set_incarnation(joined_.incarnation());
  request.set_leaving(leaving);
  std::string waiting_for = events_.waiting_for && !leaving ? events_.waiting_for() : "";
  MutexLock lock(&mu_);
  *request.mutable_progress() = progress_;
  if (request.progress().waiting_for().empty()) {
    request.mutable_progress()->set_waiting_for(awaits_.empty() ? std::move(waiting_for) : awaits_);
  }
  return request;
}

absl::StatusOr<v1::HeartbeatResponse> WorkerMembership::SendHeartbeat() {
  const v1::HeartbeatRequest request = NextHeartbeat(/*leaving=*/false);
  v1::HeartbeatResponse response;
  LODESTONE_RETURN_IF_ERROR(CallFromThread([&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
    return stub->Heartbeat(context, request, &response);
  }));
  return response;
}

void WorkerMembership::Leave() {
  grpc::ClientContext context;
  SetTimeout(&context, limits::kShutdownGraceMs);
  v1::HeartbeatResponse response;
  const v1::HeartbeatRequest request = NextHeartbeat(/*leaving=*/true);
  const absl::Status status = Call(&context, [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
    return stub->Heartbeat(context, request, &response);
  });
  if (status.ok()) return;
  LODESTONE_LOG(WARN, "client", "could not tell that this worker leaves reason={}", status.ToString());
}

void WorkerMembership::Lose(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    lost_ = status;
  }
  if (events_.on_lost) events_.on_lost(status);
}

absl::StatusOr<v1::AwaitClockResponse> WorkerMembership::AskForClock(Clock clock) {
  v1::AwaitClockRequest request;
  request.set_incarnation(joined_.incarnation());
  request.set_clock(clock);
  request.set_timeout_ms(kAwaitHoldMs);
  grpc::ClientContext context;
  SetTimeout(&context, kAwaitHoldMs + config_.worker().call_timeout_ms());
  v1::AwaitClockResponse response;
  LODESTONE_RETURN_IF_ERROR(Call(&context, [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
    return stub->AwaitClock(context, request, &response);
  }));
  return response;
}

absl::Status WorkerMembership::AwaitClock(Clock clock) {
  {
    MutexLock lock(&mu_);  // Others may be waiting for what this worker has reached.
    report_now_ = true;
    changed_.NotifyAll();
  }
  const std::string what = absl::StrCat("clock ", clock, " of the other workers, by the ", coordinator_name_);
  const SteadyTime time;
  const RetryPolicy policy{config_.worker().call_timeout_ms(), config_.worker().retry_timeout_ms()};
  std::optional<Retry> retry;  // Of the failures since the last answer.
  absl::Status ended;
  for (bool reached = false; ended.ok() && !reached;) {
    const absl::StatusOr<v1::AwaitClockResponse> answer = AskForClock(clock);
    std::string awaits;
    if (answer.ok()) {
      retry.reset();
      reached = answer->reached();
      if (!reached) {
        awaits = absl::StrCat("clock ", clock, " of ", absl::StrJoin(answer->waiting_for(), "; "));
        Sleep(limits::kRetryBackoffMinMs);  // Should the coordinator not have held the call.
      }
    } else {
      if (!retry.has_value()) retry.emplace(policy, &time, static_cast<uint64_t>(time.NowMs()));
      const std::optional<int64_t> pause_ms = retry->Next(answer.status().code());
      if (!pause_ms.has_value()) ended = Annotate(answer.status(), what);
      awaits = absl::StrCat(what, ": ", answer.status().ToString());
      if (pause_ms.has_value()) Sleep(*pause_ms);
    }
    if (!reached && ended.ok()) LODESTONE_LOG(INFO, "client", "waiting for={}", awaits);
    MutexLock lock(&mu_);
    awaits_ = reached || !ended.ok() ? "" : awaits;
    if (ended.ok() && !reached) ended = lost_;
  }
  return ended;
}

}  // namespace lodestone::worker
