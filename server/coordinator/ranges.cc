#include "server/coordinator/ranges.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "server/coordinator/training_pause.h"

namespace lodestone::server {
namespace {

constexpr size_t kPlanBytesMax = 4096;
constexpr uint32_t kStepBatchesMax = 1024;  // As Consistency.Sync.batches.
// Towards the end of the run ranges get shorter, so that workers end together: of what is left, each taker's share
// divided by this is the most that a range has.
constexpr uint64_t kPartsPerTaker = 2;

bool SamePlan(const v1::RangePlan& a, const v1::RangePlan& b) {
  return a.run() == b.run() && a.description() == b.description() && a.epoch_batches() == b.epoch_batches() &&
         a.batches() == b.batches() && a.step_batches() == b.step_batches() && a.step_quorum() == b.step_quorum();
}

std::string InWords(const v1::RangePlan& plan) {
  return absl::StrCat(plan.run().empty() ? "" : absl::StrCat("run `", plan.run(), "`, "), plan.description());
}

absl::Status CheckRequest(const v1::LeaseRangesRequest& request) {
  const v1::RangePlan& plan = request.plan();
  if (plan.batches() == 0 || plan.epoch_batches() == 0 || plan.range_batches() == 0) {
    return absl::InvalidArgumentError("a plan of ranges needs batches, epoch_batches and range_batches");
  }
  if (plan.range_batches() > limits::kSequenceWindow) {
    return absl::InvalidArgumentError(absl::StrCat("ranges of ", plan.range_batches(),
                                                   " batches; a shard knows the newest ", limits::kSequenceWindow,
                                                   " steps of each (train.range_batches)"));
  }
  if (plan.step_batches() > 0 && (plan.batches() % plan.step_batches() != 0 || plan.range_batches() != 1)) {
    return absl::InvalidArgumentError(absl::StrCat("a plan of synchronous steps of ", plan.step_batches(),
                                                   " batches has ", plan.batches(), " batches in ranges of ",
                                                   plan.range_batches(), "; it needs whole steps, and ranges of 1"));
  }
  if (plan.step_batches() > kStepBatchesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a plan of synchronous steps of ", plan.step_batches(),
                                                   " batches; at most ", kStepBatchesMax, " are allowed"));
  }
  const uint64_t epochs_batches = plan.epochs_batches();
  if (epochs_batches > plan.batches() ||
      (epochs_batches > 0 && plan.step_batches() > 0 && plan.batches() - epochs_batches >= plan.step_batches())) {
    return absl::InvalidArgumentError(
        absl::StrCat("a plan of ", epochs_batches, " batches in ", plan.batches(), " of whole synchronous steps"));
  }
  if (plan.ByteSizeLong() > kPlanBytesMax) return absl::InvalidArgumentError("a plan of ranges is too long");
  if (request.held_size() > Ranges::kRangesHeldMax) {
    return absl::InvalidArgumentError(absl::StrCat("a worker has ", request.held_size(), " ranges; at most ",
                                                   Ranges::kRangesHeldMax, " are allowed"));
  }
  return absl::OkStatus();
}

// Whether the tables count their steps from 0 again though the order is what it was: it was another one in between, and
// no worker followed that. `done`: the steps that were done by the tables' former count; `orders`: by how much
// LeaseRangesRequest.orders has grown since. The last one may not be applied yet where nothing was set in a pause;
// where that was so twice, right after the first step, it is wrong: nothing tells the two apart then.
bool CountAnew(uint64_t done, uint64_t orders, const v1::LeaseRangesRequest& request) {
  constexpr uint64_t kOnePause = 2;
  return request.steps() + 1 < done || (request.steps() < done && done == 1 && orders > kOnePause);
}

bool Has(const v1::LeaseRangesRequest& request, Incarnation range) {
  return std::any_of(request.held().begin(), request.held().end(),
                     [range](const auto& held) { return held.incarnation() == range; });
}

}  // namespace

absl::StatusOr<v1::LeaseRangesResponse> Ranges::Lease(const v1::LeaseRangesRequest& request, bool ends_early) {
  LODESTONE_RETURN_IF_ERROR(CheckRequest(request));
  pause_->Heard(request);
  // One that has taken its last step needs no order.
  const bool follows = request.orders() == pause_->orders();
  if (!follows && !request.finished()) {
    LODESTONE_RETURN_IF_ERROR(pause_->CheckFollows(request.incarnation()));
    return AnswerBehind(request);
  }
  v1::LeaseRangesResponse response;
  response.set_orders(pause_->orders());
  response.set_pause_announced(pause_->announced());
  if (follows) LODESTONE_RETURN_IF_ERROR(Follow(request));
  absl::erase_if(finished_, [this](const auto& worker) { return !Lives(worker.first); });
  finished_[request.incarnation()] = request.finished();
  if (!request.finished()) broken_off_ = false;
  const bool was_complete = Complete();
  if (follows) TakeProgress(request);
  if (follows && HasSteps()) NoteSteps(request);
  // That a step is done is not saved; but of the last one nobody would say so again.
  if (HasSteps() && !was_complete && Complete()) ++changes_;
  const bool may_take = request.wants_range() && !request.finished() && request.held_size() < kRangesHeldMax;
  if (const v1::RangeLease* const lease = may_take ? Choose(request) : nullptr; lease != nullptr) {
    *response.mutable_lease() = *lease;
    if (HasSteps()) FillMadeOf(state_, response.mutable_lease());
  }
  response.set_pause(!response.has_lease() && Pauses(request));
  if (response.pause()) response.set_waiting_for("the end of a pause, in which the order of steps changes (psctl set)");
  response.set_complete(Complete());
  response.set_evaluate(IsEvaluator(request.incarnation()));
  if (response.evaluate()) evaluator_ = request.evaluated() ? 0 : request.incarnation();
  if (request.evaluated() && response.evaluate()) NoteEvaluated(ends_early);
  response.set_over(state_.over() || broken_off_);
  const bool only_reports = !request.wants_range() && !request.finished();
  if (!response.has_lease() && !response.over() && !only_reports && !response.pause())
    response.set_waiting_for(WaitedFor(request));
  uint64_t done = state_.batches_closed();
  for (const v1::RangeLease& range : state_.open()) done += range.done();
  response.set_batches_done(done);
  if (HasSteps()) response.set_steps(steps_.steps());
  if (!response.waiting_for().empty()) AddTargets(request, &response);
  return response;
}

v1::LeaseRangesResponse Ranges::AnswerBehind(const v1::LeaseRangesRequest& request) const {
  v1::LeaseRangesResponse response;
  response.set_orders(pause_->orders());
  response.set_pause_announced(pause_->announced());
  response.set_pause(request.paused() && Pauses(request));
  // Of a run that is its own nothing is left, by whatever order.
  response.set_complete(has_run() && HaveSameSamples(state_.plan(), request.plan()) && Complete());
  response.set_waiting_for("the new order of steps (psctl set), which it has to ask the servers for");
  return response;
}

bool Ranges::Pauses(const v1::LeaseRangesRequest& request) const {
  return (request.paused() ? pause_->announced() : pause_->begun()) && !MustEnd(request);
}

absl::Status Ranges::Follow(const v1::LeaseRangesRequest& request) {
  const v1::RangePlan& plan = request.plan();
  const Incarnation asker = request.incarnation();
  const bool changed = state_.has_plan() && state_.plan_orders() != pause_->orders();
  if (changed) ++changes_;
  const bool counts_anew =
      changed && HasSteps() && CountAnew(steps_.steps(), pause_->orders() - state_.plan_orders(), request);
  if (state_.has_plan() && SamePlan(state_.plan(), plan) && !counts_anew) {
    state_.set_plan_orders(pause_->orders());
    state_.mutable_plan()->set_step_backup(plan.step_backup());
    return absl::OkStatus();
  }
  if (changed && !state_.over() && HaveSameSamples(state_.plan(), plan)) {
    v1::RangeState next = state_;
    ChangeOrder(plan, pause_->orders(), request.steps(), &next);
    EndOpen();
    state_ = std::move(next);
    steps_.Reset();
    steps_unsure_ = false;
    return absl::OkStatus();
  }
  absl::flat_hash_set<Incarnation> others;
  for (const auto& [worker, finished] : finished_) others.insert(worker);
  for (const v1::RangeLease& range : state_.open()) others.insert(range.holder());
  for (const Incarnation worker : others) {
    if (worker == asker || !Lives(worker) || state_.over()) continue;
    return absl::FailedPreconditionError(absl::StrCat(members_->NameOf(worker), " trains on ", InWords(state_.plan()),
                                                      ", and this worker wants ", InWords(plan),
                                                      ": all workers of a run need the same data and train settings"));
  }
  Begin(plan, request.steps());
  return absl::OkStatus();
}

void Ranges::NoteSteps(const v1::LeaseRangesRequest& request) {
  if (steps_.NoteSteps(request.steps()) > 0) {
    state_.set_batches_closed(state_.closed_before() + state_.next_batch() - static_cast<uint64_t>(state_.open_size()));
  }
  if (!steps_unsure_ || !request.paused()) return;
  // It has asked all shards. A step is applied there when the next one is read for, on those that hold something of it:
  // the next one may be begun, and no other.
  steps_unsure_ = false;
  steps_.MustEnd(request.steps() + 2);
}

void Ranges::NoteEvaluated(bool ends_early) {
  broken_off_ = !Complete() && !ends_early;
  if (broken_off_ || state_.over()) return;
  EndOpen();
  state_.set_over(true);
  ++changes_;
}

void Ranges::EndOpen() {
  for (const v1::RangeLease& range : state_.open()) {
    if (!HasSteps()) members_->EndIncarnation(range.incarnation());
  }
  state_.clear_open();
}

void Ranges::Restore(const v1::RangeState& state) {
  state_ = state;
  // A pause that was complete was saved as such; and no worker has leased anything since the last one, if none has
  // followed the order that came of it.
  const bool rested = pause_->was_at_rest() || state_.plan_orders() != pause_->orders();
  steps_unsure_ = HasSteps() && !state_.over() && !Complete() && !rested;
}

void Ranges::Begin(const v1::RangePlan& plan, uint64_t steps) {
  EndOpen();
  state_.Clear();
  steps_.Reset();
  steps_unsure_ = false;
  *state_.mutable_plan() = plan;
  state_.mutable_plan()->DiscardUnknownFields();
  state_.set_plan_orders(pause_->orders());
  if (HasSteps()) state_.set_first_step(steps);
  finished_.clear();
  broken_off_ = false;
  ++changes_;
}

void Ranges::BeginRunIfOver() {
  finished_.clear();
  broken_off_ = false;
  if (!state_.over()) return;
  state_.Clear();
  steps_.Reset();
  steps_unsure_ = false;
  ++changes_;
}

void Ranges::TakeProgress(const v1::LeaseRangesRequest& request) {
  for (const auto& held : request.held()) {
    const auto at = std::find_if(state_.mutable_open()->begin(), state_.mutable_open()->end(),
                                 [&](const auto& range) { return range.incarnation() == held.incarnation(); });
    if (at == state_.mutable_open()->end()) continue;  // It is done, and was reported before.
    const uint32_t done = std::min(held.done(), at->batches());
    const bool gives_back = held.given_back() && at->holder() == request.incarnation();
    if (!HasSteps() && (done > at->done() || gives_back)) ++changes_;
    at->set_done(std::max(done, at->done()));
    if (held.given_back() && HasSteps()) steps_.GiveBack(*at, request.incarnation());
    if (gives_back) at->set_holder(0);
    if (at->done() < at->batches()) continue;
    if (HasSteps()) {
      steps_.NoteDone(*at, time_->NowMs());
    } else {
      members_->EndIncarnation(at->incarnation());
    }
    state_.set_batches_closed(state_.batches_closed() + at->batches());
    state_.mutable_open()->erase(at);
  }
}

const v1::RangeLease* Ranges::Choose(const v1::LeaseRangesRequest& request) {
  if (HasSteps()) {
    absl::flat_hash_set<Incarnation> undone;
    for (const auto& held : request.held()) {
      if (held.done() == 0 && !held.given_back()) undone.insert(held.incarnation());
    }
    return steps_.Choose(request.incarnation(), undone, Takers(), !pause_->begun(), time_->NowMs());
  }
  const bool only_abandoned = pause_->begun();
  v1::RangeLease* free = nullptr;
  for (v1::RangeLease& range : *state_.mutable_open()) {
    if (range.holder() == request.incarnation()) {
      if (Has(request, range.incarnation())) continue;
      return &range;  // The answer that gave it was lost.
    }
    if (Lives(range.holder()) || (only_abandoned && !IsAbandoned(range))) continue;
    if (free == nullptr || range.first_batch() < free->first_batch()) free = &range;
  }
  if (free == nullptr) return BeginRange(request.incarnation());
  if (IsAbandoned(*free)) free->set_unsure(true);
  free->set_holder(request.incarnation());
  state_.set_leased_again(state_.leased_again() + 1);
  ++changes_;
  return free;
}

v1::RangeLease* Ranges::BeginRange(Incarnation asker) {
  const v1::RangePlan& plan = state_.plan();
  const uint64_t left = BatchesToBegin(state_);
  if (left == 0 || pause_->begun()) return nullptr;
  const uint64_t fair = std::max<uint64_t>(1, left / (kPartsPerTaker * std::max<size_t>(1, Takers().size())));
  const uint64_t batches_max = std::min(fair, static_cast<uint64_t>(plan.range_batches()));
  v1::RangeLease* const range = state_.add_open();
  range->set_incarnation(members_->DrawIncarnation());
  range->set_holder(asker);
  if (!TakeLeft(batches_max, &state_, range)) {
    const uint64_t first = state_.next_batch();
    const uint64_t epoch_left = plan.epoch_batches() - first % plan.epoch_batches();
    range->set_first_batch(first);
    range->set_batches(static_cast<uint32_t>(std::min({plan.batches() - first, epoch_left, batches_max})));
    state_.set_next_batch(first + range->batches());
  }
  ++changes_;
  return range;
}

bool Ranges::MustEnd(const v1::LeaseRangesRequest& request) const {
  if (HasSteps()) {
    const bool may_ask = request.orders() == pause_->orders();  // All shards, as it pauses.
    return request.paused() && (steps_unsure_ ? !may_ask : steps_.HasBegun());
  }
  return std::any_of(state_.open().begin(), state_.open().end(), [&](const v1::RangeLease& range) {
    return request.paused() ? IsAbandoned(range) : range.holder() == request.incarnation() && range.unsure();
  });
}

std::vector<std::string> Ranges::Unfinished() const {
  std::vector<std::string> lines;
  if (state_.over() || !has_run()) return lines;
  if (Lives(evaluator_)) lines.push_back(absl::StrCat(members_->NameOf(evaluator_), " evaluates"));
  if (steps_unsure_) lines.push_back("a worker is to ask all shards how far the steps have come");
  for (const v1::RangeLease& range : state_.open()) {
    if (!HasSteps() && range.holder() == 0 && !range.unsure()) continue;
    lines.push_back(absl::StrCat("batches ", range.first_batch() + range.done(), " to ",
                                 range.first_batch() + range.batches() - 1, " are to be ended: ",
                                 Lives(range.holder())
                                     ? absl::StrCat(members_->NameOf(range.holder()), " has them")
                                     : std::string("their worker has died, and another one is to take them")));
  }
  if (lines.empty() && HasSteps() && steps_.HasBegun()) lines.push_back("a step is begun, and lacks batches");
  const auto& workers = members_->workers();
  const bool alone = std::none_of(workers.begin(), workers.end(),
                                  [this](const MemberPlace& worker) { return Lives(worker.incarnation); });
  if (alone && !lines.empty()) lines.push_back("no worker is there that could: start one");
  return lines;
}

std::vector<Incarnation> Ranges::Takers() const {
  std::vector<Incarnation> takers;
  for (const auto& [worker, finished] : finished_) {
    if (!finished && Lives(worker)) takers.push_back(worker);
  }
  return takers;
}

bool Ranges::IsEvaluator(Incarnation asker) const {
  const MemberPlace* const own = std::as_const(*members_).Find(asker);
  for (const auto& [worker, finished] : finished_) {
    if (!Lives(worker)) continue;
    if (!finished) return false;
    if (std::as_const(*members_).Find(worker)->index < own->index) return false;
  }
  // A worker that has a range may not have asked since the coordinator was started again.
  return std::none_of(state_.open().begin(), state_.open().end(),
                      [this](const v1::RangeLease& range) { return Lives(range.holder()); });
}

void Ranges::AddTargets(const v1::LeaseRangesRequest& request, v1::LeaseRangesResponse* response) const {
  constexpr int kTargetsMax = 8;
  std::map<Incarnation, std::vector<uint64_t>> awaited;  // With the batches of a step that each is to contribute.
  for (const v1::RangeLease& range : state_.open()) awaited[range.holder()].push_back(range.first_batch());
  if (state_.open().empty()) {
    for (const auto& [worker, finished] : finished_) awaited[worker];
  }
  for (auto& [worker, batches] : awaited) {
    const MemberPlace* const place = std::as_const(*members_).Find(worker);
    if (worker == request.incarnation() || place == nullptr || response->targets_size() >= kTargetsMax) continue;
    v1::WaitTarget* const target = response->add_targets();
    target->set_kind(v1::WaitTarget::WORKER);
    target->set_index(place->index);
    if (HasSteps()) AddBatches(std::move(batches), target);
  }
}

void Ranges::AddBatches(std::vector<uint64_t> batches, v1::WaitTarget* target) const {
  const uint64_t of_step = state_.plan().step_batches();
  std::sort(batches.begin(), batches.end());
  for (const uint64_t batch : batches) {
    const bool is_first = target->batches().empty();
    if (is_first) target->set_step(state_.first_step() + batch / of_step);
    if (batch / of_step != batches[0] / of_step || target->batches_size() >= limits::kWaitBatchesMax) break;
    target->add_batches(static_cast<uint32_t>(batch % of_step));
  }
}

std::string Ranges::WaitedFor(const v1::LeaseRangesRequest& request) const {
  constexpr size_t kLinesMax = 8;
  std::vector<std::string> lines;
  for (const v1::RangeLease& range : state_.open()) {
    if (range.holder() == request.incarnation() || lines.size() >= kLinesMax) continue;
    lines.push_back(absl::StrCat(
        "batches ", range.first_batch() + range.done(), " to ", range.first_batch() + range.batches() - 1, ", which ",
        Lives(range.holder()) ? absl::StrCat(members_->NameOf(range.holder()), " has") : "no worker has"));
  }
  if (!lines.empty()) return absl::StrJoin(lines, "; ");
  for (const auto& [worker, finished] : finished_) {
    if (worker == request.incarnation() || !Lives(worker)) continue;
    lines.push_back(absl::StrCat(members_->NameOf(worker), finished ? ", which evaluates" : ", which trains"));
  }
  return absl::StrJoin(lines, "; ");
}

}  // namespace lodestone::server
