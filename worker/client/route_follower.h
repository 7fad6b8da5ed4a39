// The newest shard map of a cluster, for a process that has not joined it.
//
// Asks the coordinator each second, as no heartbeat says that there is another map, and soon after AskRoute, then
// less and less often until it has come or 2 s have passed. While the coordinator is away, the map that is held counts.
//
// Thread-safe. One thread of its own makes all calls but the first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/rpc/coordinator_channel.h"
#include "common/security/credentials.h"
#include "common/wire/shard_map.h"
#include "grpcpp/client_context.h"
#include "proto/config.pb.h"

namespace lodestone::worker {

class RouteFollower {
 public:
  // Called with every map that is newer than the one before, from the thread.
  using OnRoute = std::function<void(const std::shared_ptr<const ShardMap>&)>;

  // Waits for the first map, with all owners of shards there, until coordinator.join_timeout_ms has passed. The errors
  // are the coordinator's.
  static absl::StatusOr<std::unique_ptr<RouteFollower>> Start(const v1::Config& config, OnRoute on_route,
                                                              CredentialsRef credentials);
  ~RouteFollower();
  RouteFollower(const RouteFollower&) = delete;
  RouteFollower& operator=(const RouteFollower&) = delete;

  // The newest.
  std::shared_ptr<const ShardMap> shard_map() const;
  // Lets a newer one be fetched soon.
  void AskRoute();

 private:
  RouteFollower(const v1::Config& config, OnRoute on_route, CredentialsRef credentials);

  absl::Status FetchFirst(int64_t timeout_ms);
  absl::StatusOr<ShardMap> Fetch();
  // Puts the map in place of an older one; whether it did.
  bool Take(const ShardMap& map);
  void Run();

  // Constant after construction.
  const int64_t call_timeout_ms_;
  const OnRoute on_route_;
  const SteadyTime time_;
  CoordinatorChannel coordinator_;  // Synchronises itself.

  mutable Mutex mu_;
  CondVar changed_;
  std::shared_ptr<const ShardMap> map_ ABSL_GUARDED_BY(mu_);
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mu_) = nullptr;  // In progress.
  bool asked_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;  // Last: it uses all of the above. Runs once there is a map.
};

}  // namespace lodestone::worker
