// The coordinator's own moves of shards (coordinator.rebalance: auto): when the rule (rebalance_rule.h) is applied.
//
// Moves begin when the part of one ps, the greatest when that began, has been too far above the least one for
// `sustained_ms` without a break, in one measure; and go on, some at a time, each time by loads that were measured
// after those before, until none is useful, or some were given up. Nothing is judged while a move is planned, by an
// operator or by itself, while a ps that may own shards is away, or while some owner has not measured a shard since it
// has it. A shard that has moved, for any reason, or that it has planned to move, rests for `shard_rest_ms`: so a shard
// moves at most that often by itself, however its load changes. For as long nothing is judged after a measure has
// fallen below its minimum: what a pause of training would move, its end would move back.
//
// Nothing of it is saved: its moves are plans like an operator's, which the coordinator keeps, but a coordinator that
// was started again has measured no loads, and knows no shard that rests.
//
// Not thread-safe: belongs to the Membership. Memory is bounded by the configured number of shards.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "server/coordinator/rebalance_rule.h"

namespace lodestone::server {

struct ClusterOptions;
class EventQueue;
class MemberTable;
class ShardAssignment;

class Rebalancer {
 public:
  // All must outlive this. Moves are noted in `events`, with the reason.
  Rebalancer(const ClusterOptions* options, const MemberTable* members, const ShardAssignment* shards,
             EventQueue* events);

  // What is known of the plan of moves.
  struct Plan {
    bool any = false;            // Shards are to move, or to have other followers.
    std::vector<bool> draining;  // By server: it is to own none.
    std::vector<bool> living;    // By server.
    std::string why_not;         // Nothing can be planned; empty: it can.
  };
  // The moves that are to be planned now; mostly none. To be called after each heartbeat of a server.
  std::vector<RebalanceMove> Judge(const Plan& plan);

  void FillStatus(v1::ClusterStatus* status) const;

 private:
  static constexpr int64_t kJudgeEveryMs = 500;
  static constexpr size_t kMovesAtOnce = 8;

  // Notes which shards have moved since the last call.
  void NoteMoved(int64_t now_ms);
  // What keeps it from judging, in words; empty: nothing. Moves that have begun go on after it, but for the first.
  std::string AwayIn(const Plan& plan) const;
  std::string PlannedIn(const Plan& plan) const;
  // Of a measure that counted until recently. Notes which count.
  std::string PauseIn(const ServerParts& parts, int64_t now_ms);
  // Whether moves may begin: notes since when one ps has been too far above another; what it waits for otherwise, in
  // words.
  bool Sustained(const ServerParts& parts, const ServerParts::Difference& widest, int64_t now_ms);
  // What all owners report; nullopt, and what is missing in `missing`: some have not measured all.
  std::optional<std::vector<MeasuredShard>> Measured(int64_t now_ms, std::string* missing) const;
  // By what the owners report.
  std::vector<RebalanceMove> JudgeMeasured(const ServerParts& parts, int64_t now_ms);
  void NoteEvents(const std::vector<RebalanceMove>& moves, const std::string& reason);

  const ClusterOptions& options_;
  const MemberTable& members_;
  const ShardAssignment& shards_;
  EventQueue* const events_;

  std::optional<int64_t> judged_ms_;
  // A difference that is too great, as it is now, and when it began to be.
  struct Since {
    int64_t ms = 0;
    ServerParts::Difference difference;
  };
  std::optional<Since> since_;
  bool moves_ = false;                                                     // Goes on until no move is useful.
  std::vector<RebalanceMove> planned_;                                     // The last moves of its own.
  std::array<std::optional<int64_t>, ServerParts::kMeasures> counted_ms_;  // By measure: when it counted last.
  std::vector<uint32_t> owners_;                                           // At the last call.
  std::vector<std::optional<int64_t>> rested_;  // By shard: since when it rests; nullopt: it has not moved.
  std::string does_;                            // In words.
};

}  // namespace lodestone::server
