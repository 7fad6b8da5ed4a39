// The collector of a table's steps on one shard, where the table's consistency is sync or tokens: it keeps
// contributions until their step is applied, decides when that is, and makes one gradient of them.
//
// A pure function of what it is given, in order: the same contributions, closings and rollbacks make the same state and
// bits on the owner, on a follower and in a replay. The time is given, too.
//
//   sync    a step has contributions of all batches, or of a quorum of them. Each (step, batch) counts once. Their
//   average,
//           weighted by samples, is taken in the order of (step, batch), so that it does not depend on who came when.
//   tokens  a step has the next `batch` contributions, in order of arrival (GBA: Su et al., NeurIPS 2022). Those whose
//           token is more than `staleness` behind weigh nothing, in the sum and in what it is divided by.
//
// The average sum(samples_i * g_i) / sum(samples_i) is computed in double precision and rounded to float once. Each
// product is exact (samples have at most 29 bits, a float 24), so only the n - 1 additions, the division and the last
// rounding err: by (n + 1) * 2^-53 of sum(samples_i * |g_i|) / sum(samples_i) and half a unit of the result's last
// place. A block or key that a contribution lacks counts as zeros there; one that it has twice, as their sum. The
// average of one contribution is that contribution.
//
// Not thread-safe: for the shard's executor. Ownership: belongs to the shard; the table outlives it.
#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/limits.h"
#include "common/base/types.h"
#include "proto/checkpoint.pb.h"
#include "proto/parameter_server.pb.h"
#include "proto/table.pb.h"
#include "server/table/table.h"

namespace lodestone::server {

// A batch's gradients of one table on one shard. Immutable once it is taken.
struct StepContribution {
  uint64_t step = 0;  // Sync; tokens: the token.
  uint32_t batch = 0;
  uint64_t samples = 0;
  uint64_t now_ms = 0;      // When it came, by the shard's clock.
  bool takes_new = true;    // Whether its new keys may get a row.
  uint64_t room_bytes = 0;  // That its new rows will take at most, as it was judged when it came.
  std::vector<BlockIndex> blocks;
  std::vector<Key> keys;
  std::vector<float> gradients;  // By block or key, in order.

  // What it takes in memory.
  uint64_t bytes() const;
};

// The gradient of a step.
struct StepGradient {
  uint64_t step = 0;
  bool any = false;                // Whether anything weighed; otherwise the step changes nothing.
  std::vector<BlockIndex> blocks;  // Ascending.
  std::vector<Key> keys;           // Distinct, in order of their first appearance.
  std::vector<uint8_t> takes_new;  // By key: whether it may get a row.
  std::vector<float> gradients;    // By block or key.
};

class StepCollector {
 public:
  // Whether a table of this kind has steps.
  static bool Collects(const v1::Consistency& rule) { return rule.has_sync() || rule.has_tokens(); }
  // INVALID_ARGUMENT, saying what to do, for a rule that leaves something open or contradicts itself.
  static absl::Status Check(const v1::Consistency& rule);

  // REQUIRES: Collects(rule).
  StepCollector(Table* table, const v1::Consistency& rule);
  ~StepCollector();
  StepCollector(const StepCollector&) = delete;
  StepCollector& operator=(const StepCollector&) = delete;

  // What a contribution is to the table.
  enum class Verdict {
    kNew,
    kAhead,      // New, of a step after the one that is collected.
    kDuplicate,  // It is here, or was part of its step: nothing is to be done.
    kLate,       // Its step was applied without it.
  };
  // INVALID_ARGUMENT for a batch that no step has, or no samples; OUT_OF_RANGE for a step too far ahead.
  absl::StatusOr<Verdict> Judge(const v1::Contribution& contribution) const;
  // Keeps a contribution, or counts it, as its verdict says. REQUIRES: Judge said so, and not kDuplicate.
  void Take(std::shared_ptr<const StepContribution> contribution, Verdict verdict);

  // Whether the step that is collected is to be applied with the contribution that was taken last: nothing more is
  // waited for. Where all batches are needed, that is not before one of a later step is here (complete()).
  bool Closes() const;
  // Whether it has all batches, so that it may be applied as soon as someone asks for the next one.
  bool complete() const { return in_step_ > 0 && in_step_ == batches(); }
  // When it is to be applied though batches are missing; nullopt: not before more have come.
  std::optional<uint64_t> due_ms() const;
  // Whether it has what it needs at least, so that an update of its own can apply it.
  bool may_close() const { return in_step_ > 0 && in_step_ >= quorum(); }
  // Contributions wait, if only of later steps: Close may apply what the step has, without a quorum, and the steps
  // after it, when the table ceases to have steps.
  bool may_end() const { return !pending_.empty(); }
  // Ends the step that is collected, and returns its gradient. REQUIRES: Closes(), may_close() or may_end().
  StepGradient Close(uint64_t now_ms);

  // The table went back to earlier values: contributions that wait are dropped. The steps that they were of count as
  // applied, so that nobody waits for them: what comes of those steps later is late. Tokens: no step ends.
  void EndBegunSteps(uint64_t now_ms);
  // Other numbers, but of batches, of the same kind of consistency. REQUIRES: Continues(rule).
  void SetRule(const v1::Consistency& rule);
  bool SameKind(const v1::Consistency& rule) const { return rule.kind_case() == rule_.kind_case(); }
  // Whether it could go on with `rule` as it is.
  bool Continues(const v1::Consistency& rule) const;
  // As it was made.
  void Reset();

  // A checkpoint's records: v1::TableSteps, and what waits, in order.
  v1::TableSteps ToProto() const;
  const std::vector<std::shared_ptr<const StepContribution>>& pending() const { return pending_; }
  absl::Status Restore(const v1::TableSteps& steps);
  void RestorePending(std::shared_ptr<const StepContribution> contribution);

  bool is_sync() const { return rule_.has_sync(); }
  // Steps that have been applied; the one that is collected has this number.
  uint64_t steps() const { return steps_; }
  // Sync: the batches that the step that is collected lacks, ascending. Tokens: none, as any batches will do.
  std::vector<uint32_t> Missing() const;
  // "3 of 4 contributions, without batch 2".
  std::string Progress() const;

 private:
  using Batches = std::bitset<1024>;  // Of a step: Consistency.Sync.batches is no greater.

  uint32_t batches() const { return is_sync() ? rule_.sync().batches() : rule_.tokens().batch(); }
  uint32_t quorum() const;
  bool needs_all() const { return quorum() == batches(); }
  void Add(std::shared_ptr<const StepContribution> contribution);
  void Count();
  // Takes the contributions of the step off those that wait, in the order in which they are added up.
  std::vector<std::shared_ptr<const StepContribution>> TakeStep();
  void Forget(const StepContribution& contribution);
  StepGradient AverageBlocks(const std::vector<std::shared_ptr<const StepContribution>>& step, double samples) const;
  StepGradient AverageRows(const std::vector<std::shared_ptr<const StepContribution>>& step, double samples) const;
  uint64_t WeightOf(const StepContribution& contribution) const;
  // Its number of steps is told to the table's figures.
  void SetSteps(uint64_t steps);

  Table* const table_;
  v1::Consistency rule_;
  uint64_t steps_ = 0;
  uint64_t closed_ms_ = 0;                                        // When the last one was applied.
  std::vector<std::shared_ptr<const StepContribution>> pending_;  // In order of arrival.
  uint32_t in_step_ = 0;  // Of them: sync: those of the step that is collected; tokens: all.
  uint64_t ahead_ = 0;    // Of them: those of later steps.
  // Of the newest steps that were applied without all batches: the batches that came, in time or late.
  std::map<uint64_t, Batches> partial_;
};

}  // namespace lodestone::server
