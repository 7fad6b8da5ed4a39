// The batches of synchronous steps (Consistency.Sync), as workers lease them one by one: those of a step in the order
// of their numbers, and none of the next step before the step is collected, which is when every batch of it has been
// acknowledged by all shards (or a quorum of them has, and the rest is out). So a worker that reads for a step may wait
// for the one before it: all of that is with the shards.
//
// A worker that has a batch to compute gets another one ahead only while there are more left than workers without any.
// Batches of workers that have died or left are leased again before others; with RangePlan.step_backup so are those
// that are out for longer than the others took, to an idle worker beside the first. Since a shard takes each (step,
// batch) once, whichever worker brings it, a batch that is leased twice costs time and nothing else: what this class
// knows need not be saved.
//
// Not thread-safe: part of Ranges, whose state it works on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/base/types.h"
#include "proto/coordinator.pb.h"

namespace lodestone::server {

class MemberTable;

class StepLeases {
 public:
  // Both must outlive this. `state`'s open leases are the batches that are out.
  StepLeases(const MemberTable* members, v1::RangeState* state) : members_(members), state_(state) {}

  // All shards of all tables have applied so many steps: their batches are done. Returns how many of those out that
  // ends.
  uint64_t NoteSteps(uint64_t steps);
  // A worker gives the batch of this lease back, if it is the second one that has it.
  void GiveBack(const v1::RangeLease& lease, Incarnation worker);
  // A batch of this lease is done, at `now_ms`.
  void NoteDone(const v1::RangeLease& lease, int64_t now_ms);
  // The batch for `asker`, which has those of `held`; null: there is none for it now. `takers`: live workers that take
  // batches; `may_begin`: not only batches of a step that was begun.
  const v1::RangeLease* Choose(Incarnation asker, const absl::flat_hash_set<Incarnation>& held,
                               const std::vector<Incarnation>& takers, bool may_begin, int64_t now_ms);
  // A step was begun, or has to be ended (MustEnd), and has batches that no worker has.
  bool HasBegun() const;
  // Steps of the tables below `steps` may be begun, whatever is known here: they are leased, and so ended, in a pause
  // too.
  void MustEnd(uint64_t steps) { must_end_ = steps; }
  // The steps of the tables of which all batches are done.
  uint64_t steps() const;
  // Another run begins.
  void Reset();

 private:
  // What is known of a batch that is out.
  struct Out {
    int64_t since_ms = 0;
    Incarnation backup = 0;  // The second worker that has it; 0: none.
  };

  bool Lives(Incarnation worker) const;
  // The next batch that was never leased is of a step that has to be ended.
  bool MustEndNext() const;
  uint64_t StepOf(uint64_t batch) const { return batch / state_->plan().step_batches(); }
  // The first batch that was never leased may be: it is of the step that is collected, or that step has its quorum and
  // `may_begin`.
  bool NextIsDue(bool may_begin) const;
  // Batches that were never leased of the step of the next one.
  uint64_t LeftOfStep() const;
  // A batch that is out for long enough for a second worker.
  v1::RangeLease* Late(Incarnation asker, int64_t now_ms);

  const MemberTable* const members_;
  v1::RangeState* const state_;
  absl::flat_hash_map<uint64_t, Out> out_;  // By first_batch.
  uint64_t must_end_ = 0;
  double usual_ms_ = 0;  // From lease to end, of the latest batches; 0: none has ended.
};

}  // namespace lodestone::server
