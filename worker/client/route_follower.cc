#include "worker/client/route_follower.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/retry.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/route_pace.h"

namespace lodestone::worker {
namespace {

constexpr int64_t kRouteEveryMs = 1'000;
constexpr int64_t kRouteWantedMs = 2'000;  // So long a newer map is asked for after it was wanted.
constexpr int64_t kFetchPauseMaxMs = 200;  // However many calls fail.

absl::Status CheckOwners(const ShardMap& map) {
  for (ShardId shard = 0; shard < map.shards(); ++shard) {
    const uint32_t owner = map.OwnerOf(shard);
    if (!map.Away(owner)) continue;
    return absl::UnavailableError(absl::StrCat("ps ", owner, " is away; it was at ", map.AddressOf(owner), " last"));
  }
  return absl::OkStatus();
}

}  // namespace

RouteFollower::RouteFollower(const v1::Config& config, OnRoute on_route, CredentialsRef credentials)
    : call_timeout_ms_(config.worker().call_timeout_ms()),
      on_route_(std::move(on_route)),
      coordinator_(config,
                   [message_max_bytes = config.server().message_max_bytes(), credentials = std::move(credentials)](
                       const std::string& address) { return MakeChannel(address, message_max_bytes, credentials); }) {}

absl::StatusOr<std::unique_ptr<RouteFollower>> RouteFollower::Start(const v1::Config& config, OnRoute on_route,
                                                                    CredentialsRef credentials) {
  std::unique_ptr<RouteFollower> follower(new RouteFollower(config, std::move(on_route), std::move(credentials)));
  LODESTONE_RETURN_IF_ERROR(follower->FetchFirst(config.coordinator().join_timeout_ms()));
  follower->thread_ = std::thread([raw = follower.get()] { raw->Run(); });
  return follower;
}

RouteFollower::~RouteFollower() {
  coordinator_.Stop();
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    if (call_ != nullptr) call_->TryCancel();
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<const ShardMap> RouteFollower::shard_map() const {
  MutexLock lock(&mu_);
  return map_;
}

void RouteFollower::AskRoute() {
  MutexLock lock(&mu_);
  asked_ = true;
  changed_.NotifyAll();
}

absl::Status RouteFollower::FetchFirst(int64_t timeout_ms) {
  const RetryPolicy policy{call_timeout_ms_, timeout_ms};
  Retry retry(policy, &time_, static_cast<uint64_t>(time_.NowMs()));
  while (true) {
    const absl::StatusOr<ShardMap> map = Fetch();
    const absl::Status status = map.ok() ? CheckOwners(*map) : map.status();
    if (status.ok()) {
      Take(*map);
      return absl::OkStatus();
    }
    const std::optional<int64_t> pause_ms = retry.Next(status.code());
    if (!pause_ms.has_value()) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(*pause_ms));
  }
}

absl::StatusOr<ShardMap> RouteFollower::Fetch() {
  LODESTONE_ASSIGN_OR_RETURN(const CoordinatorChannel::ConnectionPtr connection, coordinator_.Get());
  v1::RouteRequest request;
  request.set_role(v1::ROLE_WORKER);
  v1::RouteResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(call_timeout_ms_));
  {
    MutexLock lock(&mu_);
    if (stopping_) return absl::CancelledError("the client ends");
    call_ = &context;
  }
  const grpc::Status status = connection->stub->Route(&context, request, &response);
  {
    MutexLock lock(&mu_);
    call_ = nullptr;
  }
  LODESTONE_RETURN_IF_ERROR(
      Annotate(coordinator_.Note(*connection, status), absl::StrCat("the coordinator at ", connection->address)));
  return ShardMap::FromProto(response);
}

bool RouteFollower::Take(const ShardMap& map) {
  MutexLock lock(&mu_);
  const bool first = map_ == nullptr;
  // How many shards and servers there are does not change while what is routed by the map lives.
  if (!first && (map.shards() != map_->shards() || map.servers() != map_->servers())) return false;
  if (!first && map.epoch() <= map_->epoch()) return false;
  map_ = std::make_shared<const ShardMap>(map);
  return true;
}

void RouteFollower::Run() {
  RoutePace pace(kFetchPauseMaxMs);
  pace.End(time_.NowMs(), /*newer=*/true);  // The first.
  int64_t wanted_until_ms = 0;  // Until then a newer map is asked for, since it was asked for and has not come.
  while (true) {
    const int64_t late_ms = time_.NowMs() + kRouteEveryMs;
    {
      MutexLock lock(&mu_);
      while (!stopping_) {
        if (std::exchange(asked_, false)) wanted_until_ms = time_.NowMs() + kRouteWantedMs;
        const int64_t next_ms = time_.NowMs() < wanted_until_ms ? std::min(pace.next_ms(), late_ms) : late_ms;
        if (time_.NowMs() >= next_ms) break;
        changed_.WaitForMs(&mu_, next_ms - time_.NowMs());
      }
      if (stopping_) return;
    }
    pace.Begin(time_.NowMs());
    const absl::StatusOr<ShardMap> map = Fetch();
    const bool newer = map.ok() && Take(*map);  // If it fails, what is held counts.
    pace.End(time_.NowMs(), newer);
    if (!newer) continue;
    wanted_until_ms = 0;
    on_route_(shard_map());
  }
}

}  // namespace lodestone::worker
