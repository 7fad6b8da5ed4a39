// The moves of shards to other owners while pushes go on: planned by an operator or the Rebalancer, carried out step by
// step.
//
// A move is a follower made, caught up, and made the owner: the server that is to own a shard follows it for that time.
// The owner goes on acknowledging until it is asked to give the shard up; when it has, the other one does: see
// ShardAssignment. Some shards of one server go to one other at a time, and change their owner together, so that moves
// need little more memory than before, and few checkpoints.
//
// With replicas, the server that is to own a shard learns it beside its followers, takes a follower's place, and is
// made the owner; the former owner follows then. A shard that is to move to a follower needs no copy. Those that a
// draining server follows get another follower in the same way, those that have two copies in one zone one of
// another zone as soon as one is there, and after Move with `level` those of servers that hold more copies than others.
//
// Not thread-safe: belongs to the Membership. Memory is bounded by the configured numbers of shards and servers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "proto/coordinator_state.pb.h"
#include "server/coordinator/move_plan.h"
#include "server/coordinator/rebalancer.h"

namespace lodestone::server {

struct ClusterOptions;
class MemberTable;
class ShardAssignment;

class ShardMoves {
 public:
  // All must outlive this.
  ShardMoves(const ClusterOptions* options, const MemberTable* members, ShardAssignment* shards);

  uint64_t changes() const { return plan_.changes(); }
  bool IsDraining(uint32_t server) const { return plan_.IsDraining(server); }

  // Admin.Move and Admin.Drain. REQUIRES: there is a shard map, and such a server. INVALID_ARGUMENT: no such shard.
  // FAILED_PRECONDITION, and nothing is planned: the server is away or drains, nobody serves the shard, or, with
  // replicas, a server is of a version that knows no learners.
  absl::StatusOr<v1::MoveResponse> Move(const v1::MoveRequest& request);
  absl::StatusOr<v1::DrainResponse> Drain(const v1::DrainRequest& request);

  // A ps has come to a place that no other has had. If the place was kept (cluster.servers_at_start), it may own shards
  // where the Rebalancer gives it some, or if it `served` some before; elsewhere an operator lets it.
  void TakePlace(uint32_t server, bool served);

  // What the Rebalancer plans, and what it is to know. REQUIRES: there is a shard map.
  void Plan(const std::vector<RebalanceMove>& moves);
  Rebalancer::Plan plan() const;

  // Carries the plan on, as far as members and followers allow. To be called after each change of these.
  void Advance();

  // Adds the moves that are still to be done, and says which servers drain and how many there are to be.
  void FillStatus(v1::ClusterStatus* status) const;

  void Save(v1::CoordinatorState* state) const { plan_.Save(state); }
  void Restore(const v1::CoordinatorState& state);

 private:
  absl::Status CheckPlans() const;
  absl::Status CheckShard(ShardId shard) const;
  absl::Status CheckServed(ShardId shard) const;
  absl::Status CheckTakes(uint32_t server) const;
  // Whether no ps has ever had the place.
  bool IsNew(uint32_t server) const;
  // Whether it drains and no ps has it: none ever had, or the last one has ended and holds nothing.
  bool IsKept(uint32_t server) const;
  // Whether the server lives, as this life of the coordinator has heard.
  bool Lives(uint32_t server) const;
  std::vector<bool> Living() const;
  // By server: it lives, or did when this life of the coordinator began, and will be heard of until its lease ends.
  // What is planned for those waits until then.
  std::vector<bool> Present() const;
  // Returns how many plans were given up.
  uint32_t Cancel(const v1::MoveRequest& request);
  bool Follows(uint32_t server, ShardId shard) const;
  bool IsInSync(uint32_t server, ShardId shard) const;
  bool Learns(uint32_t server, ShardId shard) const;
  // Whether the copies of any shard could be in more zones than they are.
  bool AnyToPart() const;
  // Forgets what is done, or cannot be done any more, and has servers follow nothing that they are not to own.
  void DropEnded();
  // Makes those that were given up their followers', and asks owners to give up what is ready.
  void HandOverReady();
  // Has servers that neither give nor get shards begin with the next.
  void Begin();
  // The same two with replicas.
  void DropEndedLearners();
  void BeginLearners();
  // The shards that are to have another follower, as one of theirs drains, is of the zone of another copy or holds more
  // copies than others, and who that is to be; nullopt: nobody is there who could. Without those that have a learner.
  struct NewFollower {
    ShardId shard = 0;
    uint32_t before = 0;
    std::optional<uint32_t> server;
  };
  std::vector<NewFollower> NewFollowers() const;
  // The best server in the place of a follower; nullopt: `before` stays. `held`: copies by server.
  std::optional<NewFollower> InPlaceOf(uint32_t before, ShardId shard, const std::vector<uint32_t>& held) const;
  // Whether a learner is still to take the place of a follower of the shard, which does not move.
  bool Relieves(uint32_t learner, ShardId shard) const;
  // Whether a shard that must go may go there. Not to a follower that lags: it may never catch up.
  bool MayOwn(uint32_t server, ShardId shard) const;
  // By shard, as index plus one: a follower in sync that may own it, if there is one.
  std::vector<uint32_t> NextOwners() const;
  // What has to be waited for before a server can learn a shard, in words; empty: nothing. `before`: the follower whose
  // place it takes; nullopt: the one of ShardAssignment::ReplacedByLearner.
  std::string WhyNotLearnt(ShardId shard, uint32_t server, std::optional<uint32_t> before) const;
  bool KnowsLearners(uint32_t server) const;
  void FillNewFollowers(v1::ClusterStatus* status) const;
  uint32_t OwnedBy(uint32_t server) const;

  const ClusterOptions& options_;
  const MemberTable& members_;
  ShardAssignment& shards_;
  MovePlan plan_;
};

}  // namespace lodestone::server
