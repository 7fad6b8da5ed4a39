// The steps of a shard's tables whose consistency is sync or tokens (step_collector.h): contributions go to their
// tables' collectors, and the gradients of steps that end to the tables.
//
// Not thread-safe: for the shard's executor. Ownership: belongs to the shard.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "proto/checkpoint.pb.h"
#include "proto/parameter_server.pb.h"
#include "server/shard/part_view.h"
#include "server/shard/step_collector.h"
#include "server/table/evictions.h"

namespace lodestone::server {

struct ShardContents;

// A step that was applied.
struct AppliedStep {
  TableId table = 0;
  uint64_t step = 0;
};

// INVALID_ARGUMENT: a push to a table with steps is no contribution to one.
absl::Status NoContribution(const std::string& table);

class ShardSteps {
 public:
  explicit ShardSteps(ShardContents* contents) : contents_(contents) {}

  // What a push is to the steps of its tables.
  struct Judgement {
    bool collects = false;   // It has parts of tables with steps.
    bool ahead = false;      // Of a later step than one that is collected.
    bool duplicate = false;  // All tables with sync have the contribution: nothing of the push is to be applied.
    bool late = false;       // One of them has applied the step without it.
  };
  // INVALID_ARGUMENT for a push to such a table without a contribution, and as StepCollector::Judge.
  absl::StatusOr<Judgement> Judge(std::span<const PartView> parts, const v1::Contribution* contribution) const;
  // Takes the push as the update `version`: the parts of tables with steps wait, the others are applied at once; steps
  // that end with it are applied, and returned. Where a table with sync has the contribution already, the rest of the
  // push has come with it, and only tables with sync that lack it take their parts. REQUIRES: it was judged, and is no
  // duplicate.
  std::vector<AppliedStep> Take(std::span<const PartView> parts, const v1::Contribution& contribution, uint64_t now_ms,
                                Version version, Evictions* evictions);

  // Applies the step that a table collects, as the update `version`; returns which that was. REQUIRES: its collector's
  // may_close().
  uint64_t Close(TableId table, uint64_t now_ms, Version version, Evictions* evictions);
  // The collector of a table; null if it has none.
  const StepCollector* Of(TableId table) const;
  // The tables whose step is due at `now_ms`, and when the next one will be; nullopt: when more has come.
  std::vector<TableId> Due(uint64_t now_ms) const;
  std::optional<uint64_t> NextDueMs() const;

  // Restoring (shard_restore.h).
  absl::Status Restore(const v1::TableSteps& steps);
  absl::Status RestorePending(const v1::PendingContribution& header, std::span<const uint8_t> payload);

 private:
  void Apply(TableId table, const StepGradient& gradient, uint64_t now_ms, Version version, Evictions* evictions);
  absl::StatusOr<StepCollector*> Find(TableId table) const;

  ShardContents* const contents_;
};

}  // namespace lodestone::server
