// Progress of all workers of a cluster together, and its display while training runs.
//
// Thread safety: pure functions and plain values.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "proto/admin.pb.h"

namespace lodestone::psctl {

// The sum of the workers' progress.
struct ClusterView {
  v1::Phase phase = v1::PHASE_JOINED;  // Of the worker that is furthest behind.
  uint32_t workers_joined = 0;
  uint32_t workers_expected = 0;
  uint64_t samples = 0;
  uint64_t samples_total = 0;  // 0: not every worker knows yet.
  float loss = 0;              // Mean over the workers that train.
  float delay = 0;             // DelayOf, likewise.
  uint64_t evaluated = 0;
  uint64_t evaluated_total = 0;
  std::string waiting_for;  // What the first waiting worker says; empty if none waits.
};

// The mean delay of the table that has most: updates, own and others', between reading and application.
float DelayOf(const v1::WorkerProgress& progress);
// Whether a worker's `device` (v1::WorkerProgress) is another than the CPU; empty, it has not said.
bool OnDevice(const std::string& device);

// The view that ps 0's status gives; `workers_expected` as configured.
ClusterView ViewOf(const v1::StatusResponse& status, uint32_t workers_expected);

// Measures the speed of a count over the last seconds.
class SampleRate {
 public:
  // The count was `count` at `seconds` of some clock. Times must not decrease.
  void Observe(double seconds, uint64_t count);
  // Per second; 0 until two observations differ.
  double per_second() const;

 private:
  std::deque<std::pair<double, uint64_t>> window_;
};

// "validation 3: auc 0.7812, the best so far; at 51,200 samples, 12.3 s".
std::string ValidationLine(const v1::Validation& validation, bool best);
// "last auc 0.7801 (validation 7), best auc 0.7812 (validation 3)"; empty if there is none. Then why training ends
// early, if it does, and the checkpoint that keeps the best.
std::string ValidationsText(const v1::ValidationState& state);

// The batches of a run, also where its order of steps has changed in the middle.
uint64_t BatchesInAll(const v1::RangeState& ranges);
// "epoch 2 of 10, 43 % of 3,200 batches; 3 ranges with workers; 1 range waits for a worker; 5 given again"; empty if no
// samples are leased.
std::string RangesText(const v1::ClusterStatus& cluster);

// "starting", "loading data", "training", "waiting", "evaluating" or "finished".
std::string PhaseText(const ClusterView& view);
// Seconds until the training samples are done; nullopt if that cannot be said.
std::optional<double> SecondsLeft(const ClusterView& view, double samples_per_second);
// "training  120,000 of 800,000 samples (15 %)  41,200/s  loss 0.4312  delay 2.1  0:16 left".
std::string ProgressLine(const ClusterView& view, double samples_per_second);
// The same for a terminal of `width` columns, with a bar.
std::string ProgressBar(const ClusterView& view, double samples_per_second, size_t width);

}  // namespace lodestone::psctl
