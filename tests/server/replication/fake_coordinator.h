// The shard map and the reports about followers, as a coordinator that does what a test says.
//
// Thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/wire/shard_map.h"
#include "gtest/gtest.h"
#include "proto/coordinator.pb.h"

namespace lodestone::server {

class FakeCoordinator {
 public:
  // What becomes of reports.
  enum class Mode {
    kTake,
    kFail,         // They never arrive.
    kTakeAndFail,  // They count, and the answer is lost.
    kRefuse,       // Of each it says that it does not count.
  };

  // The first server owns all shards, and the second one follows them.
  FakeCoordinator(uint32_t shards, uint32_t servers) {
    MutexLock lock(&mu_);
    route_.set_epoch(1);
    for (ShardId shard = 0; shard < shards; ++shard) {
      route_.add_owners(0);
      route_.add_followers(servers > 1 ? 2 : 0);
      route_.add_in_sync(false);
      route_.add_terms(0);
    }
    for (uint32_t i = 0; i < servers; ++i) route_.add_servers();
  }

  void SetServer(uint32_t index, const std::string& address, Incarnation incarnation) {
    MutexLock lock(&mu_);
    route_.mutable_servers(static_cast<int>(index))->set_address(address);
    route_.mutable_servers(static_cast<int>(index))->set_incarnation(incarnation);
  }
  // Changes the map, and raises its epoch.
  ShardMap Change(const std::function<void(v1::RouteResponse*)>& change) {
    MutexLock lock(&mu_);
    route_.set_epoch(route_.epoch() + 1);
    change(&route_);
    changed_.NotifyAll();
    return MapNow();
  }
  // Gives all shards to another owner, as their follower that was in sync, and names who follows them.
  ShardMap Promote(uint32_t owner, uint32_t follower) {
    return Change([=](v1::RouteResponse* route) {
      for (int shard = 0; shard < route->owners_size(); ++shard) {
        route->set_owners(shard, owner);
        route->set_followers(shard, follower + 1);
        route->set_in_sync(shard, false);
        route->set_terms(shard, route->epoch());
      }
    });
  }
  ShardMap map() const {
    MutexLock lock(&mu_);
    return MapNow();
  }
  v1::RouteResponse route() const {
    MutexLock lock(&mu_);
    return route_;
  }

  void SetMode(Mode mode) {
    MutexLock lock(&mu_);
    mode_ = mode;
    changed_.NotifyAll();
  }
  // While reports are held, they wait before they count.
  void Hold(bool held) {
    MutexLock lock(&mu_);
    held_ = held;
    changed_.NotifyAll();
  }
  // Is called, without a lock, for each report that is to count.
  void OnReport(std::function<void(const v1::ReportSyncRequest::Report&)> hook) {
    MutexLock lock(&mu_);
    hook_ = std::move(hook);
  }

  absl::StatusOr<v1::ReportSyncResponse> Report(uint32_t server, const v1::ReportSyncRequest& request) {
    std::function<void(const v1::ReportSyncRequest::Report&)> hook;
    {
      MutexLock lock(&mu_);
      for (const auto& report : request.reports()) ++(report.in_sync() ? joins_ : leaves_);
      changed_.NotifyAll();
      while (held_) changed_.Wait(&mu_);
      hook = hook_;
    }
    if (hook) {
      for (const auto& report : request.reports()) hook(report);
    }
    MutexLock lock(&mu_);
    changed_.NotifyAll();
    if (mode_ == Mode::kFail) return absl::UnavailableError("the test loses the report");
    v1::ReportSyncResponse response;
    response.set_route_epoch(route_.epoch());
    for (const auto& report : request.reports()) response.add_accepted(Take(server, report));
    if (mode_ == Mode::kTakeAndFail) return absl::UnavailableError("the test loses the answer");
    return response;
  }

  bool InSync(ShardId shard) const {
    MutexLock lock(&mu_);
    return route_.in_sync(static_cast<int>(shard));
  }
  bool AllInSync() const {
    MutexLock lock(&mu_);
    return std::all_of(route_.in_sync().begin(), route_.in_sync().end(), [](bool in_sync) { return in_sync; });
  }
  // Reports so far that a follower counts, and that it does not, also those that were lost.
  int joins() const {
    MutexLock lock(&mu_);
    return joins_;
  }
  int leaves() const {
    MutexLock lock(&mu_);
    return leaves_;
  }

  // Waits until `condition` holds; false, after a long time, if it never does.
  bool Await(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(100);
    while (!condition()) {
      const auto now = std::chrono::steady_clock::now();
      if (now > deadline) return false;
      MutexLock lock(&mu_);
      changed_.WaitUntil(&mu_, now + std::chrono::milliseconds(2));
    }
    return true;
  }

 private:
  bool Take(uint32_t server, const v1::ReportSyncRequest::Report& report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const int shard = static_cast<int>(report.shard());
    if (mode_ == Mode::kRefuse || route_.owners(shard) != server) return false;
    const int follower = static_cast<int>(route_.followers(shard)) - 1;
    if (report.in_sync() && (follower < 0 || route_.servers(follower).incarnation() != report.follower())) return false;
    route_.set_in_sync(shard, report.in_sync());
    return true;
  }
  ShardMap MapNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto map = ShardMap::FromProto(route_);
    EXPECT_TRUE(map.ok()) << map.status();
    return *map;
  }

  mutable Mutex mu_;
  CondVar changed_;
  v1::RouteResponse route_ ABSL_GUARDED_BY(mu_);
  Mode mode_ ABSL_GUARDED_BY(mu_) = Mode::kTake;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void(const v1::ReportSyncRequest::Report&)> hook_ ABSL_GUARDED_BY(mu_);
  int joins_ ABSL_GUARDED_BY(mu_) = 0;
  int leaves_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lodestone::server
