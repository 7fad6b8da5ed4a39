// Defects that a build of `--config=planted` has, one at a time, by the name in the environment variable
// LODESTONE_PLANTED_DEFECT: each must be found by the tests that claim to find its kind (tools/planted tries). Any
// other build has none, and pays nothing.
#pragma once

#include <cstdint>

namespace lodestone {

enum class Defect : uint8_t {
  kDuplicateFilterOff,       // A push that was applied is applied again.
  kStaleOwnerAnswers,        // A ps answers pulls of shards that were given to another one.
  kMarkNotLogged,            // The log does not say which push an update was.
  kLaggingFollowerPromoted,  // A follower becomes the owner though it lacks acknowledged pushes.
  kTornRecordAccepted,       // Records are taken whatever their checksums say.
  kLeaseCheckSkipped,        // A ps serves on though its lease has ended by its own clock.
  kBroadcastSkipsVersion,    // A delta lacks the first version after the one that its subscriber holds.
  kAckBeforeLog,             // A push is acknowledged before the log has it.
  kWindowForgottenTooSoon,   // A shard remembers a worker's last few pushes only.
  kRollbackKeepsRows,        // A rollback leaves the rows of an embedding table as they are.
  kLearnerNotAwaited,        // A push is acknowledged before a learner that counts has it.
  kLineageKept,              // What goes back to a checkpoint does not rank above what was written before.
  kLineageStays,             // A shard's lineage does not move with it to another ps.
};

#ifdef LODESTONE_PLANTED
// Whether this process has the defect. Thread-safe.
bool Planted(Defect defect);
#else
constexpr bool Planted(Defect) { return false; }
#endif

}  // namespace lodestone
