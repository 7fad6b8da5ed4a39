#include "server/shard/step_collector.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace lodestone::server {
namespace {

constexpr size_t kMissingShown = 8;

using Pending = std::vector<std::shared_ptr<const StepContribution>>;

void AddTo(const float* gradient, size_t n, double weight, double* sum) {
  for (size_t i = 0; i < n; ++i) sum[i] += weight * gradient[i];
}

void Divide(const double* sum, size_t n, double by, float* average) {
  for (size_t i = 0; i < n; ++i) average[i] = static_cast<float>(sum[i] / by);
}

}  // namespace

uint64_t StepContribution::bytes() const {
  return sizeof(*this) + blocks.size() * sizeof(BlockIndex) + keys.size() * sizeof(Key) +
         gradients.size() * sizeof(float) + room_bytes;
}

absl::Status StepCollector::Check(const v1::Consistency& rule) {
  if (rule.has_sync() && rule.sync().batches() == 0) {
    return absl::InvalidArgumentError(
        "consistency.sync.batches is 0: the worker is to fill in the batches of a step, cluster.workers for one from "
        "each worker");
  }
  if (rule.has_tokens() && rule.tokens().batch() == 0) {
    return absl::InvalidArgumentError(
        "consistency.tokens.batch is 0: the worker is to fill in the gradients of a step, cluster.workers for as many "
        "as there are workers");
  }
  if (rule.has_sync() && rule.sync().quorum() > rule.sync().batches()) {
    return absl::InvalidArgumentError(absl::StrCat("consistency.sync.quorum is ", rule.sync().quorum(),
                                                   ", more than the ", rule.sync().batches(), " batches of a step"));
  }
  return absl::OkStatus();
}

StepCollector::StepCollector(Table* table, const v1::Consistency& rule) : table_(table), rule_(rule) {}

StepCollector::~StepCollector() {
  for (const auto& contribution : pending_) Forget(*contribution);
}

uint32_t StepCollector::quorum() const {
  const bool some = is_sync() && rule_.sync().quorum() > 0;
  return some ? rule_.sync().quorum() : batches();
}

absl::StatusOr<StepCollector::Verdict> StepCollector::Judge(const v1::Contribution& contribution) const {
  if (contribution.samples() == 0 || contribution.samples() > limits::kContributionSamplesMax) {
    return absl::InvalidArgumentError(absl::StrCat("table `", table_->name(), "`: a contribution of ",
                                                   contribution.samples(), " samples; 1 to ",
                                                   limits::kContributionSamplesMax, " make sense"));
  }
  if (!is_sync()) return Verdict::kNew;
  const uint64_t step = contribution.step();
  const uint32_t batch = contribution.batch();
  if (batch >= batches()) {
    return absl::InvalidArgumentError(absl::StrCat("table `", table_->name(), "`: a contribution of batch ", batch,
                                                   ", and its steps have batches 0 to ", batches() - 1));
  }
  if (step >= steps_ + limits::kStepsAheadMax) {
    return absl::OutOfRangeError(absl::StrCat(
        "table `", table_->name(), "`: a contribution to step ", step, ", and step ", steps_, " is collected, ",
        Progress(), "; at most ", limits::kStepsAheadMax - 1, " more may be begun: pull with steps_min ", step,
        " before the batch is computed, and if the shard "
        "has lost its steps, begin again with the step that PullResponse.steps says"));
  }
  if (const auto partial = partial_.find(step); partial != partial_.end()) {
    return partial->second[batch] ? Verdict::kDuplicate : Verdict::kLate;
  }
  if (step < steps_) {
    const bool forgotten = steps_ - step > limits::kPartialStepsMax;
    return !needs_all() && forgotten ? Verdict::kLate : Verdict::kDuplicate;
  }
  const bool here = std::any_of(pending_.begin(), pending_.end(),
                                [&](const auto& other) { return other->step == step && other->batch == batch; });
  if (here) return Verdict::kDuplicate;
  return step == steps_ ? Verdict::kNew : Verdict::kAhead;
}

void StepCollector::Take(std::shared_ptr<const StepContribution> contribution, Verdict verdict) {
  LODESTONE_CHECK(verdict != Verdict::kDuplicate);
  if (verdict != Verdict::kLate) return Add(std::move(contribution));
  table_->counters().contributions_late.fetch_add(1, std::memory_order_relaxed);
  const auto partial = partial_.find(contribution->step);
  if (partial == partial_.end()) return;  // Too late to be known from one that was part of its step.
  partial->second.set(contribution->batch);
  if (!needs_all() && rule_.sync().late() == v1::Consistency::Sync::CARRY) Add(std::move(contribution));
}

void StepCollector::Add(std::shared_ptr<const StepContribution> contribution) {
  table_->counters().AddBytes(contribution->bytes());
  table_->counters().contribution_bytes.fetch_add(contribution->bytes(), std::memory_order_relaxed);
  table_->counters().contributions_pending.fetch_add(1, std::memory_order_relaxed);
  pending_.push_back(std::move(contribution));
  Count();
}

void StepCollector::Forget(const StepContribution& contribution) {
  table_->counters().AddBytes(-contribution.bytes());
  table_->counters().contribution_bytes.fetch_sub(contribution.bytes(), std::memory_order_relaxed);
  table_->counters().contributions_pending.fetch_sub(1, std::memory_order_relaxed);
}

void StepCollector::Count() {
  in_step_ = 0;
  ahead_ = 0;
  for (const auto& contribution : pending_) {
    in_step_ += !is_sync() || contribution->step == steps_;
    ahead_ += is_sync() && contribution->step > steps_;
  }
}

bool StepCollector::Closes() const {
  if (in_step_ == 0) return false;
  if (!is_sync()) return in_step_ >= batches();
  if (needs_all()) return complete() && ahead_ > 0;
  return complete() || (in_step_ >= quorum() && rule_.sync().grace_ms() == 0);
}

std::optional<uint64_t> StepCollector::due_ms() const {
  if (!is_sync() || needs_all() || !may_close()) return std::nullopt;
  if (Closes()) return closed_ms_;
  uint32_t left = quorum();
  uint64_t reached_ms = closed_ms_;
  for (const auto& contribution : pending_) {
    if (contribution->step != steps_) continue;
    reached_ms = std::max(reached_ms, contribution->now_ms);
    if (--left == 0) break;
  }
  return reached_ms + rule_.sync().grace_ms();
}

Pending StepCollector::TakeStep() {
  Pending step;
  Pending rest;
  for (auto& contribution : pending_) {
    const bool is_in = is_sync() ? contribution->step <= steps_ : step.size() < batches();
    (is_in ? step : rest).push_back(std::move(contribution));
  }
  pending_ = std::move(rest);
  if (!is_sync()) return step;
  std::sort(step.begin(), step.end(),
            [](const auto& a, const auto& b) { return std::pair(a->step, a->batch) < std::pair(b->step, b->batch); });
  return step;
}

uint64_t StepCollector::WeightOf(const StepContribution& contribution) const {
  if (is_sync()) return contribution.samples;
  const uint64_t age = steps_ - std::min(steps_, contribution.step);
  table_->counters().token_ages.Add(age);
  if (age <= rule_.tokens().staleness()) return contribution.samples;
  table_->counters().contributions_too_old.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

StepGradient StepCollector::Close(uint64_t now_ms) {
  LODESTONE_CHECK(Closes() || may_close() || may_end());
  const bool partial = is_sync() && !complete();
  Pending step = TakeStep();
  if (partial) {
    Batches& batches = partial_[steps_];
    for (const auto& contribution : step) {
      if (contribution->step == steps_) batches.set(contribution->batch);
    }
  }
  for (const auto& contribution : step) Forget(*contribution);
  double samples = 0;
  Pending weighing;
  for (auto& contribution : step) {
    if (const uint64_t weight = WeightOf(*contribution); weight > 0) {
      samples += static_cast<double>(weight);
      weighing.push_back(std::move(contribution));
    }
  }
  StepGradient gradient;
  if (!weighing.empty()) {
    gradient = table_->is_dense() ? AverageBlocks(weighing, samples) : AverageRows(weighing, samples);
    gradient.any = true;
  }
  gradient.step = steps_;
  closed_ms_ = now_ms;
  SetSteps(steps_ + 1);
  return gradient;
}

void StepCollector::SetSteps(uint64_t steps) {
  steps_ = steps;
  while (!partial_.empty() && partial_.begin()->first + limits::kPartialStepsMax < steps_) {
    partial_.erase(partial_.begin());
  }
  Count();
  std::atomic<uint64_t>& most = table_->counters().steps;
  uint64_t known = most.load(std::memory_order_relaxed);
  while (known < steps_ && !most.compare_exchange_weak(known, steps_, std::memory_order_relaxed)) {
  }
}

StepGradient StepCollector::AverageBlocks(const Pending& step, double samples) const {
  struct Share {
    const float* gradient = nullptr;
    double weight = 0;
  };
  std::map<BlockIndex, std::vector<Share>> shares;
  for (const auto& contribution : step) {
    const float* at = contribution->gradients.data();
    for (const BlockIndex block : contribution->blocks) {
      shares[block].push_back({at, static_cast<double>(contribution->samples)});
      at += table_->layout().ElementsOf(block);
    }
  }
  StepGradient gradient;
  size_t values = 0;
  for (const auto& [block, of_block] : shares) values += table_->layout().ElementsOf(block);
  gradient.gradients.reserve(values);
  std::vector<double> sum;
  for (const auto& [block, of_block] : shares) {
    const size_t n = table_->layout().ElementsOf(block);
    sum.assign(n, 0);
    for (const Share& share : of_block) AddTo(share.gradient, n, share.weight, sum.data());
    gradient.blocks.push_back(block);
    gradient.gradients.resize(gradient.gradients.size() + n);
    Divide(sum.data(), n, samples, gradient.gradients.data() + gradient.gradients.size() - n);
  }
  return gradient;
}

StepGradient StepCollector::AverageRows(const Pending& step, double samples) const {
  const size_t dim = table_->dim();
  StepGradient gradient;
  absl::flat_hash_map<Key, size_t> row_of;
  std::vector<double> sums;
  for (const auto& contribution : step) {
    for (size_t i = 0; i < contribution->keys.size(); ++i) {
      const auto [row, is_first] = row_of.try_emplace(contribution->keys[i], gradient.keys.size());
      if (is_first) {
        gradient.keys.push_back(contribution->keys[i]);
        gradient.takes_new.push_back(0);
        sums.resize(sums.size() + dim, 0);
      }
      gradient.takes_new[row->second] |= contribution->takes_new;
      AddTo(&contribution->gradients[i * dim], dim, static_cast<double>(contribution->samples),
            &sums[row->second * dim]);
    }
  }
  gradient.gradients.resize(sums.size());
  Divide(sums.data(), sums.size(), samples, gradient.gradients.data());
  return gradient;
}

void StepCollector::EndBegunSteps(uint64_t now_ms) {
  if (pending_.empty()) return;
  const Pending dropped = std::move(pending_);
  pending_.clear();
  uint64_t next = steps_;
  for (const auto& contribution : dropped) {
    Forget(*contribution);
    if (!is_sync()) continue;
    next = std::max(next, contribution->step + 1);
    partial_[contribution->step].set(contribution->batch);
  }
  for (uint64_t step = steps_; step < next; ++step) partial_[step];
  closed_ms_ = now_ms;
  SetSteps(next);
}

bool StepCollector::Continues(const v1::Consistency& rule) const {
  if (!SameKind(rule)) return false;
  return is_sync() ? rule.sync().batches() == batches() : rule.tokens().batch() == batches();
}

void StepCollector::SetRule(const v1::Consistency& rule) {
  LODESTONE_CHECK(Continues(rule));
  rule_ = rule;
  Count();
}

void StepCollector::Reset() {
  for (const auto& contribution : pending_) Forget(*contribution);
  pending_.clear();
  partial_.clear();
  closed_ms_ = 0;
  SetSteps(0);
}

v1::TableSteps StepCollector::ToProto() const {
  v1::TableSteps proto;
  proto.set_table(table_->id());
  proto.set_steps(steps_);
  proto.set_closed_ms(closed_ms_);
  for (const auto& [step, batches] : partial_) {
    v1::TableSteps::PartialStep& partial = *proto.add_partial();
    partial.set_step(step);
    for (uint32_t batch = 0; batch < batches.size(); ++batch) {
      if (batches[batch]) partial.add_batches(batch);
    }
  }
  return proto;
}

absl::Status StepCollector::Restore(const v1::TableSteps& steps) {
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("the steps of table `", table_->name(), "`: ", what));
  };
  if (steps_ > 0 || !pending_.empty() || !partial_.empty()) return error("are there twice");
  for (const v1::TableSteps::PartialStep& partial : steps.partial()) {
    if (partial.step() >= steps.steps()) return error(absl::StrCat("step ", partial.step(), " has not been applied"));
    Batches& batches = partial_[partial.step()];
    for (const uint32_t batch : partial.batches()) {
      if (batch >= batches.size()) return error(absl::StrCat("there is no batch ", batch));
      batches.set(batch);
    }
  }
  closed_ms_ = steps.closed_ms();
  SetSteps(steps.steps());
  return absl::OkStatus();
}

void StepCollector::RestorePending(std::shared_ptr<const StepContribution> contribution) {
  Add(std::move(contribution));
}

std::vector<uint32_t> StepCollector::Missing() const {
  if (!is_sync()) return {};
  std::vector<bool> here(batches(), false);
  for (const auto& contribution : pending_) {
    if (contribution->step == steps_ && contribution->batch < here.size()) here[contribution->batch] = true;
  }
  std::vector<uint32_t> missing;
  for (uint32_t batch = 0; batch < here.size(); ++batch) {
    if (!here[batch]) missing.push_back(batch);
  }
  return missing;
}

std::string StepCollector::Progress() const {
  const std::vector<uint32_t> missing = Missing();
  std::string text = absl::StrCat(in_step_, " of ", quorum(), " contributions");
  for (size_t i = 0; i < std::min(missing.size(), kMissingShown); ++i) {
    absl::StrAppend(&text, i == 0 ? ", without batch " : ", ", missing[i]);
  }
  if (missing.size() > kMissingShown) absl::StrAppend(&text, " and ", missing.size() - kMissingShown, " more");
  return text;
}

}  // namespace lodestone::server
