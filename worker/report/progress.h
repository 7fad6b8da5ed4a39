// The progress of this worker, reported to the coordinator and the log a few times a second, however short the steps.
//
// Not thread-safe: for the thread that trains and evaluates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/time_source.h"
#include "proto/coordinator.pb.h"
#include "worker/client/client.h"
#include "worker/metrics/delay_counts.h"
#include "worker/metrics/evaluation_metrics.h"
#include "worker/metrics/progressive_metric.h"
#include "worker/metrics/step_stages.h"

namespace lodestone::worker {

class Progress {
 public:
  // `kind`: of the model's predictions; `label`: of several labels the one that they are of. `device`: what computes,
  // kernels::Backend::name(). The others must outlive it.
  Progress(Client* client, const TimeSource* time, EvaluationMetrics::Kind kind, const std::string& device,
           const std::string& label = "")
      : client_(client), time_(time), metric_(kind, label) {
    progress_.set_device(device);
  }

  // A new phase; reported at once.
  void Enter(v1::Phase phase);
  // What the worker waits for, beside what its calls do; empty: nothing. Reported at once.
  void WaitsFor(const std::string& what);
  // The training phase begins.
  void StartTraining(uint64_t samples_total);

  // Before Step: what the model said of the step's samples before it learned from them, their labels, and their weights
  // (null: each counts 1).
  void Predicted(size_t n, const float* predictions, const float* labels, const float* weights) {
    metric_.Add(n, predictions, labels, weights);
  }

  // After a step. Whether that was reported: then the next report wants new Delays.
  bool Step(const StepCounts& counts);
  // By table, of all pushes so far; the next report has them.
  void Delays(const std::vector<DelaySummary>& delays);
  // What was observed of the order of steps so far; the next report has it. Of async: nothing.
  void Consistency(const v1::ConsistencyProgress& observed);
  // Of the latest samples, as it was reported last.
  const NamedMetric& metric() const { return metric_.value(); }

  // Training has ended early, as the coordinator said; the next report says so.
  void StoppedEarly() { progress_.set_stopped_early(true); }

  // The evaluation's progress.
  void Evaluated(uint64_t samples, uint64_t samples_total);

 private:
  // True every now and then.
  bool Due();
  void Report();

  Client* const client_;
  const TimeSource* const time_;
  v1::WorkerProgress progress_;
  int64_t reported_ms_ = 0;
  int64_t logged_ms_ = 0;
  // Since the last report.
  double weight_ = 0;
  double loss_sum_ = 0;
  uint64_t acknowledged_before_ = 0;
  double staleness_before_ = 0;
  ProgressiveMetric metric_;
};

}  // namespace lodestone::worker
