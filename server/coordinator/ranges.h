// The ranges of a run's samples, as workers lease them: which batches are done, which worker has which range, and what
// the next one to ask gets. A range that was begun keeps its incarnation until it is done, whatever becomes of the
// workers that have it, so that the shards know which of its steps they have applied.
//
// With RangePlan.step_batches the batches are those of synchronous steps, and leased one by one (step_leases.h). Who
// has which of them is not saved with each lease: it does no harm to lease one again, and workers say how many steps
// the tables have.
//
// While training pauses (training_pause.h) only what was begun is leased; then a run may go on in the middle by another
// order of steps (order_change.h).
//
// Not thread-safe: part of Membership. Memory is bounded: each live worker has at most kRangesHeldMax ranges, and those
// of the dead are leased before others are begun.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/member_table.h"
#include "server/coordinator/order_change.h"
#include "server/coordinator/step_leases.h"

namespace lodestone::server {

class TrainingPause;

class Ranges {
 public:
  // Ranges that a worker may have at a time: one that it trains on, the next, and those before whose last steps are not
  // acknowledged.
  static constexpr int kRangesHeldMax = 4;

  // `members` gives and ends incarnations, and `time` says how long batches take. All must outlive this.
  Ranges(MemberTable* members, TrainingPause* pause, const TimeSource* time)
      : members_(members), pause_(pause), time_(time), steps_(members, &state_) {}

  // Takes over how far the sender has come, and gives it a range if it wants one and there is one: one that no live
  // worker has, or else the next. `ends_early`: validations have ended the run, which then needs no further batch.
  // INVALID_ARGUMENT: a plan without batches, or more ranges than allowed.
  // FAILED_PRECONDITION: live workers train by another plan. REQUIRES: the sender is a worker that lives.
  absl::StatusOr<v1::LeaseRangesResponse> Lease(const v1::LeaseRangesRequest& request, bool ends_early = false);

  // What was begun and has to be ended before the order of steps may change, one line each.
  std::vector<std::string> Unfinished() const;

  // No worker lives that takes part, and one joins: a run that is over gives way to another one.
  void BeginRunIfOver();

  const v1::RangeState& state() const { return state_; }
  bool has_run() const { return state_.has_plan(); }
  // Grows with every change of the state.
  uint64_t changes() const { return changes_; }
  // Goes on from an earlier state, after the pause has.
  void Restore(const v1::RangeState& state);

 private:
  // The answer for one that does not follow the order that there is by now.
  v1::LeaseRangesResponse AnswerBehind(const v1::LeaseRangesRequest& request) const;
  // Whether the sender is to pause, or to stay so, unless it gets a range.
  bool Pauses(const v1::LeaseRangesRequest& request) const;
  // Adopts the sender's plan unless it is the run's already.
  absl::Status Follow(const v1::LeaseRangesRequest& request);
  // `steps`: LeaseRangesRequest.steps.
  void Begin(const v1::RangePlan& plan, uint64_t steps);
  // The steps that the sender knows of.
  void NoteSteps(const v1::LeaseRangesRequest& request);
  // What the model is worth has been found out.
  void NoteEvaluated(bool ends_early);
  // No range is trained any further.
  void EndOpen();
  void TakeProgress(const v1::LeaseRangesRequest& request);
  // Null: there is none for it now.
  const v1::RangeLease* Choose(const v1::LeaseRangesRequest& request);
  v1::RangeLease* BeginRange(Incarnation asker);
  // While training pauses: there is something that the sender has to go on with, or to come back for.
  bool MustEnd(const v1::LeaseRangesRequest& request) const;
  // No live worker has it, and how far it was pushed is not known for sure: one that had it has died.
  bool IsAbandoned(const v1::RangeLease& range) const {
    return !Lives(range.holder()) && (range.holder() != 0 || range.unsure());
  }
  bool HasSteps() const { return state_.plan().step_batches() > 0; }
  bool Complete() const { return BatchesToBegin(state_) == 0 && state_.open().empty(); }
  bool Lives(Incarnation worker) const { return worker != 0 && members_->CheckAlive(worker).ok(); }
  // Whether the asker is to evaluate: nothing is trained any more, and no live worker of the run has a lower index.
  bool IsEvaluator(Incarnation asker) const;
  // Live workers of the run that take further ranges.
  std::vector<Incarnation> Takers() const;
  std::string WaitedFor(const v1::LeaseRangesRequest& request) const;
  // The workers that WaitedFor names.
  void AddTargets(const v1::LeaseRangesRequest& request, v1::LeaseRangesResponse* response) const;
  // Names those of the first step of `batches` in `target`.
  void AddBatches(std::vector<uint64_t> batches, v1::WaitTarget* target) const;

  MemberTable* const members_;
  TrainingPause* const pause_;
  const TimeSource* const time_;
  v1::RangeState state_;
  StepLeases steps_;  // Works on state_.
  uint64_t changes_ = 0;
  // The worker that was told to evaluate, and has not yet; 0: none.
  Incarnation evaluator_ = 0;
  // The steps of a run that goes on from an earlier life of the coordinator: how far they had come is not known before
  // a worker that has paused has asked all shards, because not every step is saved.
  bool steps_unsure_ = false;
  // The workers that have asked since this life of the coordinator began, and whether each takes no further range.
  absl::flat_hash_map<Incarnation, bool> finished_;
  // The run was broken off, and what it came to was evaluated: it is over for those that took part.
  bool broken_off_ = false;
};

}  // namespace lodestone::server
