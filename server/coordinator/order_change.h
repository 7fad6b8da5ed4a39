// The change of the order of steps (sync, or not) in the middle of a run whose samples are leased: what is left of the
// run then, and how it is numbered by the new order. A batch that was trained by one order is not trained by another.
//
// By an order without steps, batches have the numbers that they have over all epochs. By one with steps they have those
// too as long as the order has not changed; otherwise they are counted from 0, in the order in which they are left.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/coordinator.pb.h"

namespace lodestone::server {

// Whether two plans are of the same samples in the same batches, though perhaps in other steps.
bool HaveSameSamples(const v1::RangePlan& a, const v1::RangePlan& b);

// The batches that RangeState.next_batch counts.
uint64_t NumberedBatches(const v1::RangeState& state);
// Those that no range has had, by the order that there is.
uint64_t BatchesToBegin(const v1::RangeState& state);
// The batches that are not trained, in order, as they are numbered over all epochs. Of ranges that are open, those that
// are not known to be done. With steps: REQUIRES that all batches of each step that was begun are done.
std::vector<v1::BatchSpan> BatchesLeft(const v1::RangeState& state);

// Goes on with the steps of `plan`, which has the same samples, where `state` ends; it is the order of `orders`, and
// the tables have `steps` steps. No range is open then.
void ChangeOrder(const v1::RangePlan& plan, uint64_t orders, uint64_t steps, v1::RangeState* state);

// Takes a range of at most so many batches off those that are left, the first ones: false if there are none before
// next_batch. REQUIRES: an order without steps.
bool TakeLeft(uint64_t batches_max, v1::RangeState* state, v1::RangeLease* range);
// Says which batches the one of a lease by steps is made of, if its number does not say it.
void FillMadeOf(const v1::RangeState& state, v1::RangeLease* lease);

}  // namespace lodestone::server
