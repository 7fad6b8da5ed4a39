// A ps's part in replication: what it owns and follows, as the shard map says, and how that changes.
//
// Thread-safe. One thread of its own follows the map. The store must outlive it; it must outlive the gRPC server.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/simulation.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "common/security/credentials.h"
#include "common/wire/shard_map.h"
#include "proto/admin.pb.h"
#include "proto/config.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/replication.grpc.pb.h"
#include "server/auth/access.h"
#include "server/replication/follower.h"
#include "server/replication/newest_updates.h"
#include "server/replication/replicator.h"

namespace lodestone::server {

class Store;

class Replication {
 public:
  // The rest of the ps, as far as it is used here.
  struct Dependencies {
    std::function<absl::StatusOr<v1::ReportSyncResponse>(const v1::ReportSyncRequest&)> report;
    std::function<void()> ask_route;
    std::function<Incarnation()> incarnation;
    std::function<int64_t()> lease_ends_ms;   // On SteadyTime's clock. Cheap.
    std::function<void()> on_owners_changed;  // This ps owns other shards than before.
    std::function<void(ShardId)> on_state;    // A shard's state was taken from another ps.
    std::function<bool(ShardId)> on_disk;     // The disk has what was taken of it; null: it need not.
    // Has the disk know that its logs may hold updates of shards that another ps owns, before they do. Null: it need
    // not.
    std::function<absl::Status()> note_shared;
    std::function<absl::Status()> check_place;  // Without replicas: whether this ps may serve. Null: it may.
    CredentialsRef credentials;                 // What owners are called with.
    OpenFollowCall open;                        // How owners are called; empty: by gRPC.
    Access* access = nullptr;                   // Checks the callers of followers; null: any may follow.
    std::function<UpdateLog*()> updates;        // The log of this ps, once it is open; empty, or null: it keeps none.
  };
  // Whether shards may have followers: always, or while they move.
  static bool IsWanted(const v1::Config& config) { return config.cluster().servers() > 1; }
  // Registers with the store; call before the store serves.
  Replication(const v1::Config& config, Dependencies dependencies, Store* store);
  ~Replication();

  // The shards that this ps is to bring back and own, before it does.
  void Prepare(const ShardMap& map);
  // The shards of others of which a copy on the disk of this ps is to be brought back by `map`. Those that nobody
  // serves, since their owner is away or has lost them: that copy may be the newest that there is. And, with a log,
  // those that this ps follows: it goes on from there.
  std::vector<ShardId> CopiesToBringBack(const ShardMap& map, bool has_log) const;
  // The shards of others that are whole here, and hold something.
  std::vector<v1::ShardCopy> Copies() const;
  // It has, and serves them: from now on the newest map that SetMap was given is followed.
  void Begin();
  // A newer map than those before.
  void SetMap(const ShardMap& map);

  // Every shard has all its copies by the coordinator: frees those of shards that this ps neither owns nor follows.
  void FreeOthers();

  // UNAVAILABLE, with replicas, once the lease of this ps has ended; ABORTED while shards are taken from it: others may
  // answer for it.
  absl::Status CheckLease() const;

  v1::Replication::Service* service() { return service_.get(); }
  // Replication.Follow over another wire than gRPC.
  std::shared_ptr<FollowStream> Follow(FollowStream::Wire* wire) { return replicator_.Open(wire); }
  absl::StatusOr<v1::VerifyReplicasResponse> Verify() { return replicator_.Verify(); }

  // The mark of the update that made a shard's version; 0: it is not known, or that is not its newest.
  uint64_t MarkAt(ShardId shard, Version version) const {
    return replicator_.engaged() ? newest_.MarkAt(shard, version) : 0;
  }

  // The disk has more than before: Dependencies::on_disk.
  void ConfirmOnDisk() { follower_.ConfirmOnDisk(); }

  // Acknowledges and follows nothing any more.
  void Shutdown();

  void FillStatus(v1::StatusResponse* status) const;

 private:
  class Service;

  void Run();
  // Notes it, if by the map this ps's folder comes to hold what another one owns, or the other way round: otherwise
  // that would count as damage at the next start. False if it could not.
  bool NoteShared(const ShardMap& map);
  // Owns what the map says: gives the shards of others up, and serves those that it has won.
  void Apply(const ShardMap& map);
  bool Superseded() const;  // A newer map has come.
  // Gives up the shards of this ps that the map asks for, and takes back those that it asks for no more. Returns
  // whether there were any of these.
  bool GiveUp(const ShardMap& map);
  void FreeOthers(const ShardMap& map);

  const uint32_t server_;
  const uint32_t shards_;
  const bool replicated_;  // Shards always have followers.
  const Dependencies dependencies_;
  Store* const store_;
  const SteadyTime time_;
  std::atomic<bool> losing_{false};  // A map that was not followed yet gives shards of this ps to others.

  // Synchronise themselves. The second asks CheckLease from the start, and so stands below what that needs.
  NewestUpdates newest_;
  Replicator replicator_;
  Follower follower_;
  std::unique_ptr<v1::Replication::Service> service_;

  mutable Mutex mu_;
  CondVar changed_;
  std::optional<ShardMap> map_ ABSL_GUARDED_BY(mu_);  // To be followed.
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;           // Of the newest map.
  bool free_others_ ABSL_GUARDED_BY(mu_) = false;     // Asked for, and not done.
  bool begun_ ABSL_GUARDED_BY(mu_) = false;
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace lodestone::server
