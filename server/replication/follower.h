// The follower's side of replication: keeps copies of shards that other ps own, by what those send.
//
// One link, with a thread and a connection of its own, for each ps that is followed. What a link gets is applied in
// order and confirmed at once; a link that breaks is made again, and goes on where it was if its owner still knows, in
// memory or in its log: so does one of a ps that comes back with its folder.
//
// Thread-safe, but for StopFollowing, Follow and Stop, which one thread calls. The store must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/types.h"
#include "common/security/credentials.h"
#include "common/wire/shard_map.h"
#include "proto/admin.pb.h"
#include "server/replication/follow_call.h"

namespace lodestone::server {

class NewestUpdates;
class Store;
class UpdateLog;

class Follower {
 public:
  struct Options {
    std::string cluster;
    uint32_t shards = 1;
    uint64_t seed = 1;
    uint32_t server = 0;                         // This ps's index.
    std::function<Incarnation()> incarnation;    // As the coordinator gave it to this ps.
    std::function<void()> ask_route;             // The shard map seems to be old.
    std::function<void(ShardId)> on_state = {};  // A shard's state was taken: what is on disk of it is old. Any thread.
    // Whether the disk has a shard's state, so that it may be confirmed. Null: it need not. Any thread.
    std::function<bool(ShardId)> on_disk = {};
    CredentialsRef credentials = nullptr;      // What owners are called with.
    OpenFollowCall open = {};                  // How owners are called; empty: by gRPC.
    std::function<UpdateLog*()> updates = {};  // See Bootstrap::Sources.
  };
  // `newest` gets the updates of followed shards, and must outlive it.
  Follower(Options options, Store* store, NewestUpdates* newest);
  ~Follower();

  // Two steps, so that a ps can serve what a map gives it before it makes memory for what it is to follow by that map.
  // The first ends the links that are not those of `map`: when it returns, nothing is applied any more to shards that
  // this ps does not follow by it. The second follows all that it says, and makes the memory for that, which takes
  // long where tables are large; it returns early, shards of some owners without a link, once `superseded` does.
  void StopFollowing(const ShardMap& map);
  void Follow(const ShardMap& map, const std::function<bool()>& superseded);
  void Stop();

  // Whether it follows any shard, or should.
  bool follows() const;

  // The disk has more than before: Options::on_disk. Any thread.
  void ConfirmOnDisk();

  // Sets the fields of replication that are about followed shards, and adds the waits.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  class Link;

  // By owner.
  std::map<uint32_t, std::vector<ShardId>> WantedBy(const ShardMap& map) const;
  // Those of the shards that this ps learns.
  std::vector<ShardId> LearntOf(std::vector<ShardId> shards, const ShardMap& map) const;
  std::map<uint32_t, std::shared_ptr<Link>> links_by_owner() const;
  std::vector<std::shared_ptr<Link>> links() const;

  const Options options_;
  Store* const store_;
  NewestUpdates* const newest_;

  mutable Mutex mu_;
  std::map<uint32_t, std::shared_ptr<Link>> links_ ABSL_GUARDED_BY(mu_);  // By the owner's index.
  std::string problem_ ABSL_GUARDED_BY(mu_);  // Why a shard cannot be followed; empty: all can.
};

}  // namespace lodestone::server
