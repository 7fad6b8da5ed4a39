// The result of a training run, as the JSON that --summary writes.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/coordinator.pb.h"
#include "worker/metrics/delay_counts.h"
#include "worker/metrics/evaluation_metrics.h"
#include "worker/metrics/step_stages.h"

namespace lodestone::worker {

struct Summary {
  std::string model;           // "deepfm", ...
  uint32_t worker = 0;         // Its index.
  std::string device;          // What computed: "cpu", "cuda:0 (NVIDIA H200)".
  uint64_t samples = 0;        // That this worker trained on.
  double seconds = 0;          // That its training took.
  uint64_t samples_total = 0;  // That it was to train on.
  bool interrupted = false;    // It was asked to finish before it had.
  std::string stopped_early;   // Why validations have ended training, of this worker too; empty: they have not.
  // Other workers that had not trained all of their samples when this one evaluated, a line each.
  std::vector<std::string> untrained;
  bool changed = false;                 // Others pushed while it evaluated: the metrics are of no one version.
  double staleness_pushes = 0;          // Mean of the others' part of the delay.
  std::vector<DelaySummary> delays;     // By table.
  std::string loss_complaint;           // LossTrend::Complaint.
  v1::ConsistencyProgress consistency;  // What was observed of the order of steps; of async nothing.
  StageSeconds stage_seconds{};         // Where the time of the steps went.
  v1::ValidationState validations;      // Of all workers; empty: there were none, or this one did not ask.
  std::optional<EvaluationMetrics::Result> train;
  std::optional<EvaluationMetrics::Result> test;
  std::string best_reachable_metric;     // "auc" or "rmse".
  std::optional<double> best_reachable;  // On the test set, by any model; generated data only.

  // Whether all samples that were to be trained on have been, as far as this worker knows; those that training ended
  // early for were not to be.
  bool complete() const {
    return (samples >= samples_total || !stopped_early.empty()) && untrained.empty() && !changed;
  }
};

// What a run lacks that is not complete, as one sentence; empty if it is.
std::string WhatIsMissing(const Summary& summary);

// A JSON object with a final newline. Numbers that are not finite are null.
std::string SummaryJson(const Summary& summary);

}  // namespace lodestone::worker
