// How far a worker works ahead of what it knows: batches whose rows are read ahead, and pushes that are not
// acknowledged. Both are time that nothing waits in, and both let gradients be applied later than they were computed
// for (delay). The control keeps the mean delay that is measured at what is allowed: it begins with little, where
// training is most easily spoilt, and goes a level up or down after every so many pushes. Others' updates are part of
// the delay; at the lowest level they are most of what remains.
//
// Not thread-safe.
#pragma once

#include <cstdint>

namespace lodestone::worker {

struct Lead {
  uint32_t batches_ahead = 0;
  uint32_t pushes_in_flight = 1;
  // A step begins when all pushes before it are acknowledged, and sees them.
  bool waits = false;

  friend bool operator==(const Lead&, const Lead&) = default;
};

class LeadControl {
 public:
  // Pushes between two decisions.
  static constexpr uint64_t kPushesPerDecision = 32;

  // `batches_ahead_max` and `pushes_in_flight_max` (at least 1) bound the lead. `delay_max`: mean updates that are
  // allowed; 0: the worker waits for each of its pushes.
  LeadControl(uint32_t batches_ahead_max, uint32_t pushes_in_flight_max, uint32_t delay_max);

  const Lead& lead() const { return lead_; }

  // So many pushes have been acknowledged, and the sum of their delays. True if the lead has changed.
  bool Update(uint64_t acknowledged, double delay_sum);

 private:
  // The lead of a level: a batch more, then a push more, and so on.
  Lead LeadAt(uint32_t level) const;

  const uint32_t batches_ahead_max_;
  const uint32_t pushes_in_flight_max_;
  const double delay_max_;
  uint32_t level_ = 0;
  Lead lead_;
  // What is judged next begins there.
  uint64_t acknowledged_ = 0;
  double delay_sum_ = 0;
};

}  // namespace lodestone::worker
