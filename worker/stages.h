// The stages of a training step, and how long a worker has spent in each.
//
// Thread safety: plain values.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>

namespace lodestone {

// What a step does, one after the other. The rest of its time is bookkeeping.
enum class Stage {
  kRows,     // waits for the batch and its rows, which are read and pulled ahead
  kDense,    // takes over what broadcasts brought, and pulls dense values if they brought too little
  kCompute,  // computes loss and gradients
  kPush,     // waits for a place among the pushes in flight, and hands the gradients to the connections
};
inline constexpr size_t kStages = 4;
// Their names in files and metrics, in order.
inline constexpr std::array<const char*, kStages> kStageNames = {"rows", "dense", "compute", "push"};

// Seconds by stage.
using StageSeconds = std::array<double, kStages>;

// Measures the stages of one step after the other.
class StageTimer {
 public:
  // `seconds`, to which it adds, must outlive it.
  explicit StageTimer(StageSeconds* seconds) : seconds_(seconds), last_(Clock::now()) {}

  // The first stage of a step begins now.
  void Start() { last_ = Clock::now(); }
  // A stage ends now, and the next one begins. Returns its seconds.
  double End(Stage stage) {
    const Clock::time_point now = Clock::now();
    const double passed = std::chrono::duration<double>(now - last_).count();
    (*seconds_)[static_cast<size_t>(stage)] += passed;
    last_ = now;
    return passed;
  }

 private:
  using Clock = std::chrono::steady_clock;
  StageSeconds* const seconds_;
  Clock::time_point last_;
};

}  // namespace lodestone
