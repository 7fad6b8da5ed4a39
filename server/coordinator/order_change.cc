#include "server/coordinator/order_change.h"

#include <algorithm>

#include "absl/strings/string_view.h"

namespace lodestone::server {
namespace {

template <typename Spans>
uint64_t Sum(const Spans& spans) {
  uint64_t sum = 0;
  for (const v1::BatchSpan& span : spans) sum += span.batches();
  return sum;
}

void Add(uint64_t first, uint64_t batches, std::vector<v1::BatchSpan>* spans) {
  if (batches == 0) return;
  if (!spans->empty() && spans->back().first_batch() + spans->back().batches() == first) {
    spans->back().set_batches(spans->back().batches() + batches);
    return;
  }
  spans->emplace_back().set_first_batch(first);
  spans->back().set_batches(batches);
}

// A plan's description without what it says of steps, at its end.
absl::string_view SamplesInWords(const v1::RangePlan& plan) {
  const absl::string_view words = plan.description();
  return plan.step_batches() > 0 ? words.substr(0, words.rfind(", synchronous steps of ")) : words;
}

// Of all epochs, whatever the steps.
uint64_t EpochsBatches(const v1::RangePlan& plan) {
  return plan.step_batches() > 0 ? plan.epochs_batches() : plan.batches();
}

// The batches that an order with steps began with.
std::vector<v1::BatchSpan> FirstLeft(const v1::RangeState& state) {
  if (state.left_size() > 0) return {state.left().begin(), state.left().end()};
  std::vector<v1::BatchSpan> all;
  Add(0, EpochsBatches(state.plan()), &all);
  return all;
}

}  // namespace

bool HaveSameSamples(const v1::RangePlan& a, const v1::RangePlan& b) {
  return a.run() == b.run() && SamplesInWords(a) == SamplesInWords(b) && a.epoch_batches() == b.epoch_batches() &&
         a.samples() == b.samples() && EpochsBatches(a) == EpochsBatches(b) && EpochsBatches(a) > 0;
}

uint64_t NumberedBatches(const v1::RangeState& state) {
  return state.order_batches() > 0 ? state.order_batches() : state.plan().batches();
}

uint64_t BatchesToBegin(const v1::RangeState& state) {
  const uint64_t before = state.plan().step_batches() > 0 ? 0 : Sum(state.left());
  return before + NumberedBatches(state) - state.next_batch();
}

std::vector<v1::BatchSpan> BatchesLeft(const v1::RangeState& state) {
  std::vector<v1::BatchSpan> left;
  if (state.plan().step_batches() > 0) {
    uint64_t done = state.next_batch();
    for (const v1::BatchSpan& span : FirstLeft(state)) {
      const uint64_t of_span = std::min(done, span.batches());
      done -= of_span;
      Add(span.first_batch() + of_span, span.batches() - of_span, &left);
    }
    return left;
  }
  std::vector<v1::BatchSpan> begun(state.left().begin(), state.left().end());
  for (const v1::RangeLease& range : state.open()) {
    v1::BatchSpan& span = begun.emplace_back();
    span.set_first_batch(range.first_batch() + range.done());
    span.set_batches(range.batches() - range.done());
  }
  std::sort(begun.begin(), begun.end(),
            [](const v1::BatchSpan& a, const v1::BatchSpan& b) { return a.first_batch() < b.first_batch(); });
  for (const v1::BatchSpan& span : begun) Add(span.first_batch(), span.batches(), &left);
  Add(state.next_batch(), state.plan().batches() - state.next_batch(), &left);
  return left;
}

void ChangeOrder(const v1::RangePlan& plan, uint64_t orders, uint64_t steps, v1::RangeState* state) {
  std::vector<v1::BatchSpan> left = BatchesLeft(*state);
  uint64_t closed = state->batches_closed();
  if (state->plan().step_batches() == 0) {
    for (const v1::RangeLease& range : state->open()) closed += range.done();
  }
  const uint64_t batches = Sum(left);
  v1::RangeState changed;
  *changed.mutable_plan() = plan;
  changed.mutable_plan()->DiscardUnknownFields();
  changed.set_plan_orders(orders);
  changed.set_leased_again(state->leased_again());
  changed.set_batches_closed(closed);
  changed.set_closed_before(closed);
  if (batches == 0) {
    changed.set_next_batch(plan.batches());
    changed.set_closed_before(closed - std::min(closed, plan.batches()));
  } else if (const uint64_t of_step = plan.step_batches(); of_step > 0) {
    changed.set_first_step(steps);
    changed.set_order_batches((batches + of_step - 1) / of_step * of_step);
  } else if (left.back().first_batch() + left.back().batches() == plan.batches()) {
    changed.set_next_batch(left.back().first_batch());
    left.pop_back();
  } else {
    changed.set_next_batch(plan.batches());
  }
  changed.mutable_left()->Assign(left.begin(), left.end());
  changed.set_batches_total(closed + BatchesToBegin(changed));
  *state = std::move(changed);
}

bool TakeLeft(uint64_t batches_max, v1::RangeState* state, v1::RangeLease* range) {
  if (state->left().empty()) return false;
  v1::BatchSpan& first = *state->mutable_left(0);
  const uint64_t epoch_batches = state->plan().epoch_batches();
  const uint64_t batches =
      std::min({batches_max, first.batches(), epoch_batches - first.first_batch() % epoch_batches});
  range->set_first_batch(first.first_batch());
  range->set_batches(static_cast<uint32_t>(batches));
  first.set_first_batch(first.first_batch() + batches);
  first.set_batches(first.batches() - batches);
  if (first.batches() == 0) state->mutable_left()->DeleteSubrange(0, 1);
  return true;
}

void FillMadeOf(const v1::RangeState& state, v1::RangeLease* lease) {
  if (state.left().empty()) return;
  const uint64_t whole = Sum(state.left()) / state.plan().step_batches() * state.plan().step_batches();
  const bool is_whole = lease->first_batch() < whole;
  lease->set_is_part(!is_whole);
  uint64_t skipped = is_whole ? lease->first_batch() : whole;
  for (const v1::BatchSpan& span : state.left()) {
    const uint64_t of_span = std::min(skipped, span.batches());
    skipped -= of_span;
    for (uint64_t i = of_span; i < span.batches(); ++i) {
      lease->add_made_of(span.first_batch() + i);
      if (is_whole) return;
    }
  }
}

}  // namespace lodestone::server
