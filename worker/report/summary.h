// The result of a training run, as the JSON that --summary writes.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "worker/metrics/evaluation_metrics.h"
#include "worker/metrics/step_stages.h"

namespace lodestone::worker {

struct Summary {
  std::string model;             // "deepfm", ...
  uint64_t samples = 0;          // That this worker trained on.
  double seconds = 0;            // That its training took.
  double staleness_pushes = 0;   // Mean.
  StageSeconds stage_seconds{};  // Where the time of the steps went.
  std::optional<EvaluationMetrics::Result> train;
  std::optional<EvaluationMetrics::Result> test;
  std::string best_reachable_metric;     // "auc" or "rmse".
  std::optional<double> best_reachable;  // On the test set, by any model; generated data only.
};

// A JSON object with a final newline. Numbers that are not finite are null.
std::string SummaryJson(const Summary& summary);

}  // namespace lodestone::worker
