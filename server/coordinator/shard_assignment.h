// The assignment of shards to servers: owners, followers, and the terms of ownership. It is the shard map, as soon as
// all servers have joined that the cluster begins with.
//
// With replicas, each shard has a follower, or two, on other servers than its owner. An owner reports which followers
// are in sync. When a life of a server ends, each shard that it owned goes to a follower that is in sync, and to no
// other server; the remaining ones stay with it until it comes back.
//
// Why nothing acknowledged is lost: as long as a follower counts as in sync, its owner acknowledges only what it has,
// so that it can become the owner at any time, whichever of two it is. The owner stops waiting for it only after it was
// answered, and that is saved, that it does not count any more. A follower that is not known to live may be dead, and
// its next life may lack what the owner has: while that is open, so is who owns the shard.
//
// Where both end together, the one that comes back serves the shard, if it has all that was acknowledged (EqualCopies).
// An owner that may lack the end of what it had, as its machine went down, waits for another server that has it whole.
//
// A shard whose owner comes back without what it held (another data folder, another copy of its own, or none) is lost:
// nobody serves it until a life with the former folder joins (unless it kept nothing and had no tables), or an operator
// accepts the loss or promotes another copy. So it is with all shards that may have been another server's when a
// coordinator that has lost its state, or knows of it only what checkpoints keep, meets servers that have served
// before.
//
// Without replicas, a shard has a follower only while it moves (ShardMoves), and the owner's end changes nothing: it is
// waited for. When the follower is in sync, the owner is asked to give the shard up: it answers for it no more, and
// reports that. Only on that report the follower owns it, so that two never answer for one shard. With replicas a shard
// gets a learner for that, beside its followers: its owner reports that one as in sync when it acknowledges nothing
// that any of them lacks, and from then on it is a follower in the place of another. No copy is given up before there
// is another, but the former owner's counts again only when its new owner has reported it.
//
// Not thread-safe. Memory is bounded by the configured number of shards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "proto/coordinator.pb.h"
#include "proto/coordinator_state.pb.h"
#include "server/coordinator/cluster_options.h"
#include "server/coordinator/equal_copies.h"
#include "server/coordinator/event_queue.h"
#include "server/coordinator/followers.h"
#include "server/coordinator/learners.h"
#include "server/coordinator/lost_shards.h"
#include "server/coordinator/member_table.h"

namespace lodestone::server {

class ShardAssignment {
 public:
  // All must outlive this. Shards that get another owner are noted in `events`.
  ShardAssignment(const ClusterOptions* options, const MemberTable* members, EventQueue* events);
  ShardAssignment(const ShardAssignment&) = delete;
  ShardAssignment& operator=(const ShardAssignment&) = delete;

  // Whether there is a shard map: from when all servers that the cluster begins with have joined and live.
  bool mapped() const { return mapped_; }
  // The map's epoch; 0 while there is none.
  uint64_t epoch() const { return mapped_ ? epoch_ : 0; }
  // A number that grows with every change of what Save gives.
  uint64_t changes() const { return changes_ + equal_.changes(); }
  // By shard; the first followers, as index plus one, 0 for none, and whether these are in sync.
  const std::vector<uint32_t>& owners() const { return owners_; }
  const std::vector<uint32_t>& followers() const { return followers_.firsts(); }
  const std::vector<bool>& in_sync() const { return followers_.in_sync(); }
  // All followers.
  const Followers& copies() const { return followers_; }
  const std::vector<bool>& undecided() const { return undecided_; }
  const LostShards& lost() const { return lost_; }
  const std::vector<uint64_t>& terms() const { return terms_; }
  // The epochs at which owners were asked to give shards up; 0: they were not.
  const std::vector<uint64_t>& handovers() const { return handovers_; }
  bool HasHandovers() const;
  // As followers().
  const std::vector<uint32_t>& learners() const { return learners_.servers(); }
  bool HasLearners() const { return learners_.any(); }
  const EqualCopies& equal() const { return equal_; }
  // Whether the coordinator has lost its state, but for what checkpoints keep of it, which is not the owners.
  bool owners_unknown() const { return owners_unknown_; }
  // Whether the first map was made without knowledge of one before: the cluster is new, or its coordinator's state is
  // lost.
  bool dealt_anew() const { return dealt_anew_; }
  bool HasTerms() const;
  // Whether nobody serves the shard: it is lost, or its owner is away.
  bool IsUnserved(ShardId shard) const;
  uint32_t unserved() const;
  // The shards with a follower that lives and is not in sync: those that wait for a copy.
  uint32_t ToSync() const;

  // How a life of a server begins.
  struct Start {
    bool new_process = false;              // With an empty memory, not one that has lost its lease.
    bool continues = false;                // MemberTable::Continues.
    std::optional<v1::ServerData> former;  // What the life before kept its data in; nullopt: unknown.
  };
  // A server has joined.
  void ServerJoined(const MemberPlace& server, const Start& start);
  // A present life of `server` (null: of any) is told a map, or is just about to be.
  void NoteTold(const MemberPlace* server);
  // A life of `server` ends: its shards go to followers that are in sync, and it is in sync with no owner.
  void TakeOut(const MemberPlace& server);
  // A server that was restored lives: the shards that waited for it, or for one with an equal copy, become its own.
  void PromoteUndecided(const MemberPlace& server);
  // Finds live followers for each shard that lacks one: servers that own and follow the fewest.
  void AssignFollowers();
  // What `owner` reports of a shard's follower. Returns whether it was accepted. REQUIRES: there is such a shard.
  bool Report(const MemberPlace& owner, const v1::ReportSyncRequest::Report& report);

  // Whether any shard has a follower.
  bool HasFollowers() const { return followers_.any(); }
  // Whether each shard has all the copies that it is to have, in sync, and is served. Others are of no use.
  bool IsComplete() const;

  // For a move, the server that is to follow a shard; nullopt: none any more. REQUIRES: without replicas, and a map.
  void SetMoveFollower(ShardId shard, std::optional<uint32_t> server);
  // With replicas, the server that is to learn a shard, nullopt: none any more; and the follower whose place it is to
  // take, nullopt: any. REQUIRES: the first neither owns nor follows it, and the second follows it.
  void SetLearner(ShardId shard, std::optional<uint32_t> server, std::optional<uint32_t> replaced = std::nullopt);
  // The follower whose place a learner of the shard takes, or would take: that one, or else one that drains, one that
  // is not in sync, one of a zone that has another copy, the first. REQUIRES: the shard has a follower.
  uint32_t ReplacedByLearner(ShardId shard) const;
  // Makes a server that follows the shard its first follower, which is the one that AskToGiveUp means.
  void PutFirst(uint32_t server, ShardId shard);
  // Whether `server` is of the zone of a copy of the shard, but for its own, and that of `except`.
  bool SharesZone(uint32_t server, ShardId shard, std::optional<uint32_t> except = std::nullopt) const;
  // Servers that are to follow nothing where others can.
  void SetDraining(const std::vector<bool>& draining) { draining_ = draining; }
  bool IsDraining(uint32_t server) const { return !draining_.empty() && draining_[server]; }
  // Asks their owners to give shards up to their first followers, or not to. REQUIRES: these are in sync.
  void AskToGiveUp(const std::vector<ShardId>& shards);
  void AskToKeep(ShardId shard);
  // Makes the followers of the shards that their owners have given up their owners. Returns these shards.
  std::vector<ShardId> HandOver();

  // What an operator decides of shards that nobody serves; returns how many. Promote: those of which `server` holds a
  // copy are its own. FAILED_PRECONDITION: it is away, or holds none. AcceptLoss: those that `server` has lost are
  // served from what it has. FAILED_PRECONDITION: it has lost none.
  absl::StatusOr<uint32_t> PromoteCopies(const MemberPlace& server);
  absl::StatusOr<uint32_t> AcceptLoss(const MemberPlace& server);

  // UNAVAILABLE, naming the missing, until there is a map. The map says of each server where it is or was last, and
  // whether it is away. UNAVAILABLE too while it is open who is to own a shard, naming the follower that was in sync
  // and has not been heard of by this life of the coordinator.
  absl::StatusOr<v1::RouteResponse> Route() const;

  // The failovers since the last call, one line each.
  std::vector<std::string> TakeFailovers() { return std::exchange(failovers_, {}); }

  // Adds what must survive the coordinator to `state`.
  void Save(v1::CoordinatorState* state) const;
  // Goes on from a state that CheckState accepts. With another number of servers than then, all must join before there
  // is a map again. What this changes of the state (a cluster that has followers now, or none any more) counts as
  // changes().
  void Restore(const v1::CoordinatorState& state);

 private:
  // What TakeOut does with a shard that the server owns.
  enum class Fate { kMoves, kStays, kWaits };
  Fate Decide(ShardId shard);
  // The shard is its first follower's from the next epoch on.
  void Promote(ShardId shard);
  // Of two followers in sync, puts one first that has been heard of, if there is one.
  void PreferHeard(ShardId shard);
  // The first follower, whose life has ended, is not in sync any more.
  void EndInSync(ShardId shard);
  // Report, of the shard's second follower, and of its learner.
  bool ReportSecond(ShardId shard, const v1::ReportSyncRequest::Report& report);
  bool ReportLearner(ShardId shard, const MemberPlace& learner, const v1::ReportSyncRequest::Report& report);
  // The same as TakeOut without replicas: nothing of what the server owns or follows changes hands.
  void EndMovesOf(const MemberPlace& server);
  // Returns whether it was asked to be given up.
  bool EndHandover(ShardId shard);
  // Which shards are lost, or found again, now that `server` has joined with an empty memory.
  void FindLost(const MemberPlace& server, const Start& start);
  // The same once all first servers have joined a coordinator that knows nothing of a life of the cluster.
  void FindAllLost();
  void NoteLost(const MemberPlace& server, const std::vector<ShardId>& shards, const std::string& why);
  // Leaves followers of the zone of another copy out of the first map, in which none is in sync.
  void PartZones();
  // What the join of `server` means for equal copies: it may bring one back, or need one.
  void JudgeEqual(const MemberPlace& server, const Start& start);
  // Makes a server that begins the follower of the shards of which it has equal copies, so that it brings them back:
  // what it neither owns nor follows, its next checkpoint would leave out, while its copy may be all that there is.
  void FollowEqual(const MemberPlace& server);
  // Makes the server with an equal copy the owner if it is there: it `begins` just now (null: none does), or follows
  // the shard. REQUIRES: the owner's life has ended, or the shard is lost.
  bool PromoteEqual(ShardId shard, const MemberPlace* begins);
  // `moved`: the shards of ps `from` that ps `to` owns now.
  void NoteMoved(uint32_t from, uint32_t to, const std::vector<ShardId>& moved);
  void NewEpoch();
  void RestoreFollowers(const v1::CoordinatorState& state);

  const ClusterOptions& options_;
  const MemberTable& members_;
  EventQueue* const events_;
  uint64_t changes_ = 0;
  uint64_t epoch_ = 0;
  bool mapped_ = false;
  bool owners_unknown_ = false;  // The map that was lost with the coordinator's state may have had others.
  bool dealt_anew_ = false;
  // By shard.
  std::vector<uint32_t> owners_;
  std::vector<uint64_t> terms_;  // The epoch at which it got another owner.
  Followers followers_;
  std::vector<bool>
      undecided_;  // Its first follower is in sync and silent, and the owner's life in which it was has ended.
  std::vector<uint64_t> handovers_;
  std::vector<bool> given_up_;  // Its owner has reported it: until HandOver.
  Learners learners_;
  LostShards lost_;
  EqualCopies equal_;
  std::vector<bool> draining_;          // By server; empty: none.
  std::vector<std::string> failovers_;  // TakeFailovers.
};

}  // namespace lodestone::server
