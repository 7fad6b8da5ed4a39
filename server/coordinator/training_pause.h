// The pause of all workers between two steps, in which an operator changes the order of steps (Admin.PauseTraining). It
// is announced first, and begins once every worker that trains has asked since, and so hears of it within a step: those
// that hear first train on meanwhile. Ranges that a dead worker had begun are ended before it is complete, by workers
// that have paused already if need be: what of them was pushed is known by the order that they were begun in.
//
// A worker that goes on asks the servers what the order is now: it must have done so as often as the order has changed
// (`orders`), or it gets no range.
//
// Not thread-safe: part of Membership.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/coordinator_state.pb.h"
#include "server/coordinator/member_table.h"

namespace lodestone::server {

class TrainingPause {
 public:
  // A pause ends by itself so long after its operator was last heard of.
  static constexpr uint32_t kEndsAfterMs = 10'000;

  // Both must outlive this.
  TrainingPause(const MemberTable* members, const TimeSource* time) : members_(members), time_(time) {}

  // Admin.PauseTraining. `unfinished`: the ranges that have to be ended first, one line each.
  absl::StatusOr<v1::PauseTrainingResponse> Pause(const v1::PauseTrainingRequest& request,
                                                  std::vector<std::string> unfinished);
  // A worker that lives has asked for ranges.
  void Heard(const v1::LeaseRangesRequest& request);
  // FAILED_PRECONDITION: it is of a version that knows of no changes of the order, and there have been some.
  absl::Status CheckFollows(Incarnation worker) const;
  // Ends a pause whose operator is gone.
  void Expire();

  // The pause is announced or begun: workers are to ask for ranges at once, and those that have paused are to stay so.
  bool announced() const { return state_.pause_token() != 0; }
  // The pause has begun: workers get no range but those that have to be ended.
  bool begun() const;
  // The changes of the order, twice: it may be another one as soon as a pause was complete, which makes the number odd,
  // and at its end, when it is even again.
  uint64_t orders() const { return state_.orders(); }
  // The pause has been complete.
  bool was_at_rest() const { return state_.orders() % 2 == 1; }

  const v1::OrderState& state() const { return state_; }
  // Goes on from an earlier state.
  void Restore(const v1::OrderState& state);
  // Grows with every change of the state.
  uint64_t changes() const { return changes_; }

 private:
  struct Worker {
    bool heard = false;   // Since the pause was announced.
    bool rests = false;   // It takes no step, as it said last.
    uint32_t behind = 0;  // Calls in a row in which it did not follow the order.
  };

  // FAILED_PRECONDITION: a worker that lives takes its samples otherwise, and does not pause.
  absl::Status CheckAllLease() const;
  // The workers that train, one line each.
  std::vector<std::string> Training() const;
  bool Trains(const MemberPlace& worker) const;
  void End();

  const MemberTable* const members_;
  const TimeSource* const time_;
  v1::OrderState state_;
  uint64_t changes_ = 0;
  int64_t ends_ms_ = 0;
  uint64_t ended_token_ = 0;  // Of the last pause; it begins no other.
  absl::flat_hash_map<Incarnation, Worker> workers_;
};

}  // namespace lodestone::server
