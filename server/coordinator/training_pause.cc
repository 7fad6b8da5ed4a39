#include "server/coordinator/training_pause.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"

namespace lodestone::server {
namespace {

// Of a worker that leases ranges: it has not come to its first step, or has taken its last.
bool IsOutside(v1::Phase phase) { return phase != v1::PHASE_TRAINING; }

// After so many calls in a row in which a worker neither follows the order nor pauses, it is taken not to know of that.
constexpr uint32_t kBehindMax = 20;

}  // namespace

absl::StatusOr<v1::PauseTrainingResponse> TrainingPause::Pause(const v1::PauseTrainingRequest& request,
                                                               std::vector<std::string> unfinished) {
  if (request.token() == 0) return absl::InvalidArgumentError("a pause of training needs a token that is not 0");
  Expire();
  const bool is_over = request.end() || request.token() == ended_token_;
  if (request.token() != state_.pause_token() && (is_over || announced())) {
    return absl::FailedPreconditionError(
        is_over ? absl::StrCat("the pause of training has ended before: its caller was not heard of for ",
                               kEndsAfterMs / 1000, " s, or it was none")
                : std::string("another caller changes the order of steps now (psctl set); try again when it is "
                              "done"));
  }
  v1::PauseTrainingResponse response;
  response.set_ends_after_ms(kEndsAfterMs);
  if (request.end()) {
    End();
    return response;
  }
  LODESTONE_RETURN_IF_ERROR(CheckAllLease());
  if (!announced()) {
    state_.set_pause_token(request.token());
    ended_token_ = request.token();
    for (auto& [incarnation, worker] : workers_) worker.heard = false;
    ++changes_;
    LODESTONE_LOG(INFO, "coordinator", "training is to pause, for another order of steps");
  }
  ends_ms_ = time_->NowMs() + kEndsAfterMs;
  std::vector<std::string> waits = Training();
  for (std::string& range : unfinished) waits.push_back(std::move(range));
  response.set_at_rest(waits.empty());
  // Saved before it is told: from now on the order may be another one.
  if (waits.empty() && !was_at_rest()) {
    state_.set_orders(state_.orders() + 1);
    ++changes_;
  }
  if (waits.empty()) response.set_orders(orders());
  response.mutable_waiting_for()->Assign(waits.begin(), waits.end());
  return response;
}

absl::Status TrainingPause::CheckAllLease() const {
  for (const MemberPlace& worker : members_->workers()) {
    if (worker.any_place || !members_->Alive(worker) || worker.progress.phase() >= v1::PHASE_WAITING) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(members_->Describe(worker), " leases no samples from the coordinator (train.sharing: ranges), ",
                     "and does not pause: end it, and start it again when the order of steps has changed"));
  }
  return absl::OkStatus();
}

bool TrainingPause::Trains(const MemberPlace& worker) const {
  if (!members_->Alive(worker)) return false;
  const auto known = workers_.find(worker.incarnation);
  if (known != workers_.end()) return !known->second.rests;
  return worker.silent || !IsOutside(worker.progress.phase());
}

std::vector<std::string> TrainingPause::Training() const {
  std::vector<std::string> lines;
  for (const MemberPlace& worker : members_->workers()) {
    if (Trains(worker)) lines.push_back(absl::StrCat(members_->Describe(worker), " ends its steps"));
  }
  return lines;
}

bool TrainingPause::begun() const {
  if (!announced()) return false;
  for (const MemberPlace& worker : members_->workers()) {
    if (!Trains(worker)) continue;
    const auto known = workers_.find(worker.incarnation);
    if (known == workers_.end() || !known->second.heard) return false;
  }
  return true;
}

void TrainingPause::Heard(const v1::LeaseRangesRequest& request) {
  Expire();
  absl::erase_if(workers_, [this](const auto& worker) { return !members_->CheckAlive(worker.first).ok(); });
  Worker& worker = workers_[request.incarnation()];
  worker.heard = true;
  worker.rests = request.paused() || request.finished();
  worker.behind = request.orders() == orders() || worker.rests ? 0 : worker.behind + 1;
}

absl::Status TrainingPause::CheckFollows(Incarnation incarnation) const {
  const auto known = workers_.find(incarnation);
  if (known == workers_.end() || known->second.behind < kBehindMax) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(members_->NameOf(incarnation), " does not follow the changes of the order of steps, of which there ",
                   "have been ", orders(), " (psctl set): it is of an older version; start it again with this one"));
}

void TrainingPause::Expire() {
  if (!announced() || time_->NowMs() < ends_ms_) return;
  LODESTONE_LOG(WARN, "coordinator", "training goes on: the operator that had it pause was not heard of for {} s",
                kEndsAfterMs / 1000);
  End();
}

void TrainingPause::End() {
  if (was_at_rest()) state_.set_orders(state_.orders() + 1);
  state_.clear_pause_token();
  ++changes_;
  LODESTONE_LOG(INFO, "coordinator", "training goes on orders={}", state_.orders());
}

void TrainingPause::Restore(const v1::OrderState& state) {
  state_ = state;
  ends_ms_ = time_->NowMs() + kEndsAfterMs;
}

}  // namespace lodestone::server
