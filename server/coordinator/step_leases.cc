#include "server/coordinator/step_leases.h"

#include <algorithm>

#include "server/coordinator/member_table.h"
#include "server/coordinator/order_change.h"

namespace lodestone::server {
namespace {

// Of the time that a batch takes: what a new one counts for in the mean, and after how many of them it is late.
constexpr double kNewest = 0.2;
constexpr double kLateAfter = 1.5;

}  // namespace

uint64_t StepLeases::NoteSteps(uint64_t steps) {
  if (steps <= state_->first_step()) return 0;
  const uint64_t of_run = steps - state_->first_step();
  const uint64_t batches = NumberedBatches(*state_), step_batches = state_->plan().step_batches();
  const uint64_t before = of_run >= batches / step_batches ? batches : of_run * step_batches;
  uint64_t ended = 0;
  auto* const open = state_->mutable_open();
  for (auto at = open->begin(); at != open->end();) {
    if (at->first_batch() >= before) {
      ++at;
      continue;
    }
    out_.erase(at->first_batch());
    at = open->erase(at);
    ++ended;
  }
  if (before > state_->next_batch()) {
    ended += before - state_->next_batch();
    state_->set_next_batch(before);
    // They were leased in an earlier life of the coordinator. A worker knows of a step that it begins; the one after
    // that may be begun by another.
    must_end_ = std::max(must_end_, steps + 2);
  }
  return ended;
}

void StepLeases::GiveBack(const v1::RangeLease& lease, Incarnation worker) {
  const auto at = out_.find(lease.first_batch());
  if (at != out_.end() && at->second.backup == worker) at->second.backup = 0;
}

void StepLeases::NoteDone(const v1::RangeLease& lease, int64_t now_ms) {
  const auto at = out_.find(lease.first_batch());
  if (at == out_.end()) return;
  if (at->second.backup == 0) {  // One that was late is not what is usual.
    const auto took_ms = static_cast<double>(now_ms - at->second.since_ms);
    usual_ms_ = usual_ms_ == 0 ? took_ms : usual_ms_ + kNewest * (took_ms - usual_ms_);
  }
  out_.erase(at);
}

const v1::RangeLease* StepLeases::Choose(Incarnation asker, const absl::flat_hash_set<Incarnation>& held,
                                         const std::vector<Incarnation>& takers, bool may_begin, int64_t now_ms) {
  v1::RangeLease* free = nullptr;
  absl::flat_hash_set<Incarnation> busy;
  for (v1::RangeLease& lease : *state_->mutable_open()) {
    const Out& out = out_[lease.first_batch()];
    const bool has = lease.holder() == asker || out.backup == asker;
    if (has && !held.contains(lease.incarnation())) return &lease;  // The answer that gave it was lost.
    if (Lives(lease.holder())) {
      busy.insert(lease.holder());
    } else if (Lives(out.backup)) {
      busy.insert(out.backup);
    } else if (free == nullptr || lease.first_batch() < free->first_batch()) {
      free = &lease;
    }
  }
  if (free != nullptr) {
    free->set_holder(asker);
    out_[free->first_batch()] = {now_ms, 0};
    state_->set_leased_again(state_->leased_again() + 1);
    return free;
  }
  if (NextIsDue(may_begin)) {
    const auto idle = static_cast<uint64_t>(
        std::count_if(takers.begin(), takers.end(), [&](Incarnation worker) { return !busy.contains(worker); }));
    if (!held.empty() && LeftOfStep() <= idle) return nullptr;
    v1::RangeLease* const lease = state_->add_open();
    const uint64_t batch = state_->next_batch();
    lease->set_incarnation(batch + 1);
    lease->set_first_batch(batch);
    lease->set_batches(1);
    lease->set_holder(asker);
    lease->set_step(state_->first_step() + StepOf(batch));
    out_[batch] = {now_ms, 0};
    state_->set_next_batch(batch + 1);
    return lease;
  }
  return held.empty() ? Late(asker, now_ms) : nullptr;
}

bool StepLeases::Lives(Incarnation worker) const { return worker != 0 && members_->CheckAlive(worker).ok(); }

bool StepLeases::HasBegun() const {
  if (state_->next_batch() % state_->plan().step_batches() != 0 || MustEndNext()) return true;
  return std::any_of(state_->open().begin(), state_->open().end(), [this](const v1::RangeLease& lease) {
    const auto out = out_.find(lease.first_batch());
    return !Lives(lease.holder()) && (out == out_.end() || !Lives(out->second.backup));
  });
}

bool StepLeases::MustEndNext() const {
  const uint64_t next = state_->next_batch();
  return next < NumberedBatches(*state_) && state_->first_step() + StepOf(next) < must_end_;
}

bool StepLeases::NextIsDue(bool may_begin) const {
  const uint64_t next = state_->next_batch();
  if (next >= NumberedBatches(*state_)) return false;
  const uint64_t step_batches = state_->plan().step_batches();
  if (next % step_batches != 0) return true;
  if (!may_begin && !MustEndNext()) return false;
  // Its step begins once the one before is collected.
  const uint64_t out = static_cast<uint64_t>(state_->open_size());
  const uint64_t quorum = state_->plan().step_quorum();
  const uint64_t may_be_out = quorum == 0 || quorum >= step_batches ? 0 : step_batches - quorum;
  if (out <= may_be_out) return true;
  // Those of older steps do not hold it up.
  const uint64_t of_last = static_cast<uint64_t>(
      std::count_if(state_->open().begin(), state_->open().end(),
                    [&](const v1::RangeLease& lease) { return lease.first_batch() + step_batches >= next; }));
  return of_last <= may_be_out;
}

uint64_t StepLeases::LeftOfStep() const {
  const uint64_t step_batches = state_->plan().step_batches();
  return step_batches - state_->next_batch() % step_batches;
}

v1::RangeLease* StepLeases::Late(Incarnation asker, int64_t now_ms) {
  uint32_t backups = 0;
  for (const auto& [batch, out] : out_) backups += Lives(out.backup) ? 1 : 0;
  if (backups >= state_->plan().step_backup() || usual_ms_ == 0) return nullptr;
  v1::RangeLease* late = nullptr;
  for (v1::RangeLease& lease : *state_->mutable_open()) {
    const Out& out = out_[lease.first_batch()];
    if (lease.holder() == asker || Lives(out.backup)) continue;
    if (static_cast<double>(now_ms - out.since_ms) < kLateAfter * usual_ms_) continue;
    if (late == nullptr || lease.first_batch() < late->first_batch()) late = &lease;
  }
  if (late != nullptr) out_[late->first_batch()].backup = asker;
  return late;
}

uint64_t StepLeases::steps() const {
  uint64_t done = state_->next_batch();
  for (const v1::RangeLease& lease : state_->open()) done = std::min(done, lease.first_batch());
  return state_->first_step() + StepOf(done);
}

void StepLeases::Reset() {
  out_.clear();
  must_end_ = 0;
  usual_ms_ = 0;
}

}  // namespace lodestone::server
