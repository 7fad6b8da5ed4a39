// A simulated life of a ps: the real Store, Storage (logs, checkpoints, recovery) and Replication, and around them,
// told again, what ServerProcess, CoordinatorClient, LeaseClient and ExchangeStream do: it joins, gets the map, brings
// its shards back, renews its lease, follows the map, and answers calls.
//
// Used by one thread; runs on fibers of its process.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/simulation.h"
#include "common/wire/message.h"
#include "common/wire/shard_map.h"
#include "proto/config.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/parameter_server.pb.h"
#include "server/durability/storage.h"
#include "server/replication/replication.h"
#include "server/store/store.h"
#include "tests/simulation/coordinator.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/follow_wire.h"
#include "tests/simulation/network.h"

namespace lodestone::simulation {

// The coordinator's calls.
enum class Method { kJoin, kHeartbeat, kRoute, kReportSync };

// How processes reach each other.
struct Directory {
  // Calls the coordinator, wherever it is, and waits.
  std::function<absl::StatusOr<std::string>(Method method, std::string request, int64_t timeout_ms)> coordinator;
  // Who listens for followers, or for clients, at the address of a ps.
  std::function<Listener(const std::string& address)> find;
  std::function<Listener(const std::string& address)> find_exchange;
};

// host:port of a ps, and its index by that.
std::string AddressOf(uint32_t index);
uint32_t IndexOf(const std::string& address);

class Ps {
 public:
  // Begins on `process`, in the folder of `config`. The others must outlive it.
  Ps(const v1::Config& config, const ProcessRef& process, Network* network, Disk* disk, const Directory* directory);
  // Ends it as the death of its process does. REQUIRES: the process is dead; called on a fiber of the world.
  ~Ps();

  const ProcessRef& process() const { return process_; }
  Incarnation incarnation() const { return incarnation_; }
  bool has_begun() const { return serves_; }
  // Not any more once it leaves.
  bool serves() const { return serves_ && !leaving_; }
  // The coordinator is asked for the map, or answers.
  bool fetches_route() const { return fetches_route_; }
  // Why it could not begin; OK: it has, or is about to.
  const absl::Status& failure() const { return failure_; }
  server::Store* store() { return &store_; }
  // Ends it as SIGTERM does, but for its process. REQUIRES: serves(); called on a fiber of its process, once.
  void Leave();
  // Writes a named checkpoint of what it owns.
  absl::Status WriteCheckpoint(const std::string& name) { return storage_->Checkpoint(name).status(); }

  // A client's connection, and a follower's.
  void TakeExchange(const LineRef& line);
  void TakeFollower(const LineRef& line);

 private:
  absl::Status CheckPlace() const;
  void RunMember();
  absl::Status Join();
  absl::Status Heartbeat();
  absl::Status FetchRoute();
  void Begin(const ShardMap& map);
  void RunTicks();
  server::Replication::Dependencies DependenciesOf();
  absl::StatusOr<v1::ReportSyncResponse> ReportSync(const v1::ReportSyncRequest& request);
  void TakeCall(const std::weak_ptr<Line>& line, const std::string& message);
  void Pause(int64_t ms);
  bool Goes() const { return process_->alive && !leaving_; }
  int64_t HeartbeatMs() const { return std::min<int64_t>(lease_ms_ / 3, 1000); }
  int64_t CallMs() const { return std::clamp<int64_t>(lease_ms_ / 3, 250, 5000); }

  const v1::Config config_;
  const ProcessRef process_;
  Network* const network_;
  Kernel* const kernel_;
  const Directory* const directory_;
  const KernelTime time_;
  const FileCalls calls_;
  server::Store store_;
  std::unique_ptr<server::Storage> storage_;
  v1::ServerData data_;                               // Of its folder when it began.
  std::unique_ptr<server::Replication> replication_;  // Null with one replica.

  absl::Status failure_;
  bool serves_ = false;
  bool leaving_ = false, drained_ = false, left_ = false;
  Incarnation incarnation_ = 0, former_incarnation_ = 0;
  int64_t lease_ms_ = 0, lease_ends_ms_ = 0, lease_known_ms_ = 0;
  uint64_t epoch_ = 0, told_epoch_ = 0;
  bool joined_again_ = false, displaced_ = false;
  bool ask_route_ = false, ask_heartbeat_ = false, fetches_route_ = false;
  bool wants_copies_ = false;
  uint64_t workers_ended_to_ = 0, reports_ = 0;
  Mutex report_mu_;
  size_t followers_ = 0;  // Streams that have not ended.

  Thread member_, begin_, ticks_;
};

}  // namespace lodestone::simulation
