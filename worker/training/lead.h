// How far a worker works ahead of what it knows: whether it waits for its pushes, how many batches' rows are read
// ahead, and how many pushes are not acknowledged. All of it is time that nothing waits in, and lets gradients be
// applied later than they were computed for (delay). The control keeps the mean delay that is measured close to what
// is allowed: it begins with a worker that waits for each push, where training is most easily spoilt, and goes a level
// up or down after every so many pushes; between two levels, of which one is below what is allowed and one above, it
// goes to and fro. Others' updates are part of the delay; at the lowest level they are all of it.
//
// A worker that has ceased to wait while it was alone waits again once others come, and judges by what it measures
// then: what they add while only it works ahead says too little, and one that works ahead beside others that wait,
// because of it, costs more than it brings.
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

  struct Options {
    uint32_t batches_ahead_max = 0;  // Bounds of the lead; of pushes at least 1.
    uint32_t pushes_in_flight_max = 1;
    uint32_t delay_max = 0;  // Mean updates that are allowed; 0: the worker waits for each of its pushes.
    bool may_wait = true;    // False: the lowest level is that of one push in flight.
  };
  explicit LeadControl(const Options& options);

  const Lead& lead() const { return lead_; }
  // Pushes and sums, as Update's, that belong to another order of steps: what is judged begins after them.
  void BeginAfter(uint64_t acknowledged, double delay_sum, double others_sum);

  // So many pushes have been acknowledged, and the sums of their delays and of others' updates in these. True if the
  // lead has changed.
  bool Update(uint64_t acknowledged, double delay_sum, double others_sum);

 private:
  // The lead of a level: waiting, then without, a batch more, a push more, and so on.
  Lead LeadAt(uint32_t level) const;
  // Whether there is room for a level more, by what the delay is, all of it others' updates if the worker waits.
  bool HasRoom(double delay) const;
  // Whether the delay is so high that a level less is due.
  bool IsTooHigh(double delay) const;
  // The worker waits again: for a while it does not cease to, twice as long each time.
  void Rest();

  const Options options_;
  const uint32_t level_min_;
  uint32_t level_;
  Lead lead_;
  double credit_ = 0;         // What the delay was below what is allowed, summed over decisions; negative: above.
  uint32_t rest_ = 1;         // In decisions, the next time,
  uint32_t rest_left_ = 0;    // and what is left of the last.
  bool began_alone_ = false;  // When it ceased to wait, there were no others.
  // What is judged next begins there.
  uint64_t acknowledged_ = 0;
  double delay_sum_ = 0;
  double others_sum_ = 0;
};

}  // namespace lodestone::worker
