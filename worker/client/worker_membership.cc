#include "worker/client/worker_membership.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/base/retry.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "common/rpc/channel.h"
#include "common/rpc/coordinator_channel.h"
#include "common/telemetry/log.h"

namespace lodestone::worker {
namespace {

constexpr int64_t kPollMs = 500;  // Between two attempts at the start.
// Heartbeats come often enough to watch progress by, however long the lease.
constexpr int64_t kHeartbeatEveryMaxMs = 1'000;
// The longest pause between two requests of the shard map, however many calls fail.
constexpr int64_t kAskRoutePauseMaxMs = 200;
constexpr int64_t kReconnectMs = 50;         // A worker serves nothing: gRPC connects only while a thread waits for it.
constexpr uint32_t kAwaitHoldMs = 500;       // One question for a clock; between two it looks whether it is to stop.
constexpr int64_t kLogAwaitEveryMs = 5'000;  // What a wait for a clock is for; failures each time.
constexpr int64_t kAttemptMsMax = 5'000;     // For one attempt of a call that training waits for.
static_assert(kAwaitHoldMs <= limits::kAwaitTimeoutMaxMs);

// The coordinator as what a wait is for.
google::protobuf::RepeatedPtrField<v1::WaitTarget> Coordinator() {
  google::protobuf::RepeatedPtrField<v1::WaitTarget> targets;
  targets.Add()->set_kind(v1::WaitTarget::COORDINATOR);
  return targets;
}

void Sleep(int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace

WorkerMembership::WorkerMembership(const v1::Config& config, Events events)
    : config_(config), events_(std::move(events)) {}

absl::StatusOr<std::unique_ptr<WorkerMembership>> WorkerMembership::Join(const v1::Config& config, Events events,
                                                                         CredentialsRef credentials) {
  if (config.coordinator().address().empty() && config.coordinator().etcd().empty()) {
    return absl::InvalidArgumentError("neither coordinator.address nor coordinator.etcd is set");
  }
  std::unique_ptr<WorkerMembership> membership(new WorkerMembership(config, std::move(events)));
  auto channel = std::make_unique<CoordinatorChannel>(
      config, [message_max_bytes = config.server().message_max_bytes(), credentials = std::move(credentials)](
                  const std::string& address) { return MakeChannel(address, message_max_bytes, credentials); });
  const auto joined = std::make_shared<std::promise<absl::Status>>();
  membership->lease_ = std::make_unique<LeaseClient>(
      membership->LeaseOptions(),
      membership->LeaseDelegate([joined, raw = membership.get()](const absl::StatusOr<ShardMap>& map) {
        if (map.ok()) raw->SetRoute(*map);
        joined->set_value(map.status());
      }),
      std::move(channel));
  LODESTONE_RETURN_IF_ERROR(joined->get_future().get());
  return membership;
}

LeaseClient::Options WorkerMembership::LeaseOptions() const {
  LeaseClient::Options options;
  options.join.set_role(v1::ROLE_WORKER);
  options.join.set_any_place(config_.train().sharing() == v1::TrainConfig::RANGES);
  if (config_.worker().has_index()) options.join.set_index_plus_one(config_.worker().index() + 1);
  options.join.set_launch(config_.worker().launch());
  options.join.set_cluster(config_.cluster().name());
  options.join.set_shards(config_.cluster().shards());
  options.lease_ms = config_.coordinator().lease_ms();
  options.join_timeout_ms = config_.coordinator().join_timeout_ms();
  options.leave_timeout_ms = limits::kShutdownGraceMs;
  options.poll_ms_max = kPollMs;
  options.heartbeat_ms_max = kHeartbeatEveryMaxMs;
  options.route_request_ms_max = kAskRoutePauseMaxMs;
  options.reconnect_ms = kReconnectMs;
  options.joins_again = false;
  options.shows_life = true;
  options.without_lease = "goes on without the coordinator for now";
  return options;
}

LeaseClient::Delegate WorkerMembership::LeaseDelegate(std::function<void(absl::StatusOr<ShardMap>)> on_first_route) {
  return {.fill_heartbeat = [this](bool leaving, v1::HeartbeatRequest* request) { FillHeartbeat(leaving, request); },
          .on_heartbeat_answered =
              [this](const v1::HeartbeatResponse& response) {
                NoteStop(response.stop_training());
                pause_announced_.store(response.pause_announced(), std::memory_order_relaxed);
              },
          .check_route = [this](const ShardMap& map) { return CheckRoute(map); },
          .on_first_route = std::move(on_first_route),
          .on_route =
              [this](const ShardMap& map) {
                SetRoute(map);
                if (events_.on_route) events_.on_route(shard_map());
              },
          .on_lost = [this](const absl::Status& status) { Lose(status); }};
}

absl::Status WorkerMembership::CheckRoute(const ShardMap& map) const {
  const std::shared_ptr<const ShardMap> held = shard_map();
  if (held != nullptr) {
    if (map.shards() == held->shards() && map.servers() == held->servers()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("the cluster has ", map.shards(), " shards on ", map.servers(),
                                                      " servers now, and had ", held->shards(), " on ", held->servers(),
                                                      " when this worker joined"));
  }
  for (ShardId shard = 0; shard < map.shards(); ++shard) {
    const uint32_t owner = map.OwnerOf(shard);
    if (!map.Away(owner)) continue;
    return absl::UnavailableError(absl::StrCat("ps ", owner, " is away; it was at ", map.AddressOf(owner), " last"));
  }
  if (!config_.cluster().has_shards() || map.shards() == config_.cluster().shards()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the cluster has ", map.shards(),
                   " shards, this worker's configuration says cluster.shards: ", config_.cluster().shards()));
}

std::shared_ptr<const ShardMap> WorkerMembership::shard_map() const {
  MutexLock lock(&mu_);
  return shard_map_;
}

void WorkerMembership::SetRoute(const ShardMap& map) {
  const auto next = std::make_shared<const ShardMap>(map);
  MutexLock lock(&mu_);
  shard_map_ = next;
}

void WorkerMembership::ReportProgress(const v1::WorkerProgress& progress) {
  bool is_new_phase = false;
  {
    MutexLock lock(&mu_);
    is_new_phase = progress.phase() != progress_.phase();
    progress_ = progress;
  }
  if (is_new_phase) lease_->RequestHeartbeat();
}

void WorkerMembership::FillHeartbeat(bool leaving, v1::HeartbeatRequest* request) {
  std::vector<v1::WaitStatus> waits;
  if (events_.waits && !leaving) waits = events_.waits();
  MutexLock lock(&mu_);
  *request->mutable_progress() = progress_;
  if (clock_.has_value()) request->mutable_progress()->set_clock(*clock_);
  AddWaits(std::move(waits), request->mutable_progress());
}

void WorkerMembership::AddWaits(std::vector<v1::WaitStatus> waits, v1::WorkerProgress* progress) {
  const int64_t now_ms = time_.NowMs();
  if (awaits_.empty()) awaits_since_ms_.reset();
  if (!awaits_.empty()) {
    if (!awaits_since_ms_.has_value()) awaits_since_ms_ = now_ms;
    v1::WaitStatus* const wait = progress->add_waits();
    wait->set_what(awaits_);
    wait->set_seconds(static_cast<double>(now_ms - *awaits_since_ms_) / 1000);
    *wait->mutable_targets() = awaits_targets_;
  }
  for (v1::WaitStatus& wait : waits) {
    if (progress->waits_size() < static_cast<int>(limits::kWaitsMax)) *progress->add_waits() = std::move(wait);
  }
  if (progress->waiting_for().empty() && !progress->waits().empty()) {
    progress->set_waiting_for(progress->waits(0).what());
  }
}

void WorkerMembership::Lose(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    lost_ = status;
  }
  if (events_.on_lost) events_.on_lost(status);
}

absl::StatusOr<v1::AwaitClockResponse> WorkerMembership::AskClock(v1::AwaitClockRequest request) {
  request.set_incarnation(incarnation());
  v1::AwaitClockResponse response;
  const absl::Status status = lease_->Call(request.timeout_ms() + config_.worker().call_timeout_ms(),
                                           [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
                                             return stub->AwaitClock(context, request, &response);
                                           });
  const std::string what = absl::StrCat("clock ", request.clock(), " of ");
  MutexLock lock(&mu_);
  LODESTONE_RETURN_IF_ERROR(lost_);
  if (!status.ok()) {
    awaits_ = absl::StrCat(what, "the other workers: ", status.ToString());
    awaits_targets_ = Coordinator();
    return status;
  }
  awaits_ = response.reached() ? "" : absl::StrCat(what, absl::StrJoin(response.waiting_for(), "; "));
  awaits_targets_ = response.targets();
  return response;
}

void WorkerMembership::ReportClock(Clock clock) {
  {
    MutexLock lock(&mu_);
    clock_ = std::max(clock_.value_or(0), clock);
  }
  lease_->RequestHeartbeat();
}

void WorkerMembership::NoteStop(const std::string& why) {
  if (why.empty() || stops_early_.exchange(true)) return;
  LODESTONE_LOG(INFO, "client", "training ends early: {}", why);
}

absl::StatusOr<v1::ValidateResponse> WorkerMembership::Validate(v1::ValidateRequest request) {
  request.set_incarnation(incarnation());
  const int64_t timeout_ms = std::min<int64_t>(config_.worker().call_timeout_ms(), kAttemptMsMax);
  const SteadyTime time;
  Retry retry({config_.worker().call_timeout_ms(), config_.worker().retry_timeout_ms()}, &time,
              static_cast<uint64_t>(time.NowMs()));
  while (true) {
    v1::ValidateResponse response;
    const absl::Status status =
        lease_->Call(timeout_ms, [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
          return stub->Validate(context, request, &response);
        });
    if (status.ok()) {
      NoteStop(response.state().stopped());
      return response;
    }
    const std::optional<int64_t> pause_ms = retry.Next(status.code());
    if (request.has_claim() || !pause_ms.has_value()) return Annotate(status, "validation");
    Sleep(*pause_ms);
  }
}

absl::StatusOr<v1::LeaseRangesResponse> WorkerMembership::LeaseRanges(v1::LeaseRangesRequest request) {
  request.set_incarnation(incarnation());
  v1::LeaseRangesResponse response;
  const absl::Status status = lease_->Call(std::min<int64_t>(config_.worker().call_timeout_ms(), kAttemptMsMax),
                                           [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
                                             return stub->LeaseRanges(context, request, &response);
                                           });
  MutexLock lock(&mu_);
  LODESTONE_RETURN_IF_ERROR(lost_);
  awaits_ = status.ok() ? response.waiting_for() : absl::StrCat("a range of samples: ", status.ToString());
  awaits_targets_ = status.ok() ? response.targets() : Coordinator();
  LODESTONE_RETURN_IF_ERROR(Annotate(status, "leasing a range of samples"));
  return response;
}

absl::StatusOr<std::vector<std::string>> WorkerMembership::AwaitClock(Clock clock, const std::function<bool()>& stops) {
  lease_->RequestHeartbeat();  // Others may be waiting for what this worker has reached.
  const std::string what = absl::StrCat("clock ", clock, " of the other workers");
  const SteadyTime time;
  const RetryPolicy policy{config_.worker().call_timeout_ms(), config_.worker().retry_timeout_ms()};
  std::optional<Retry> retry;  // Of the failures since the last answer.
  std::vector<std::string> untrained;
  absl::Status ended;
  int64_t logged_ms = time.NowMs();
  for (bool reached = false; ended.ok() && !reached;) {
    v1::AwaitClockRequest request;
    request.set_clock(clock);
    request.set_timeout_ms(kAwaitHoldMs);
    const absl::StatusOr<v1::AwaitClockResponse> answer = AskClock(std::move(request));
    std::string awaits;
    if (answer.ok()) {
      retry.reset();
      reached = answer->reached();
      untrained.assign(answer->untrained().begin(), answer->untrained().end());
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
    if (!reached && ended.ok() && stops && stops()) {
      ended = absl::CancelledError("stopped while it waited for the other workers");
    } else if (!reached && ended.ok() && (!answer.ok() || time.NowMs() >= logged_ms + kLogAwaitEveryMs)) {
      LODESTONE_LOG(INFO, "client", "waiting for={}", awaits);
      logged_ms = time.NowMs();
    }
    MutexLock lock(&mu_);
    awaits_ = reached || !ended.ok() ? "" : awaits;
    awaits_targets_ = answer.ok() ? answer->targets() : Coordinator();
    if (ended.ok() && !reached) ended = lost_;
  }
  LODESTONE_RETURN_IF_ERROR(ended);
  return untrained;
}

}  // namespace lodestone::worker
