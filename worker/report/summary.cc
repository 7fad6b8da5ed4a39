#include "worker/report/summary.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lodestone::worker {
namespace {

std::string Number(double value) { return std::isfinite(value) ? absl::StrFormat("%.9g", value) : "null"; }

std::string MetricsJson(const EvaluationMetrics::Result& result) {
  std::string json = absl::StrCat("{\"samples\": ", result.samples, ", \"loss\": ", Number(result.loss));
  if (result.accuracy) absl::StrAppend(&json, ", \"accuracy\": ", Number(*result.accuracy));
  if (result.auc) absl::StrAppend(&json, ", \"auc\": ", Number(*result.auc));
  if (result.rmse) absl::StrAppend(&json, ", \"rmse\": ", Number(*result.rmse));
  return json + "}";
}

}  // namespace

std::string SummaryJson(const Summary& summary) {
  const double rate = summary.seconds > 0 ? static_cast<double>(summary.samples) / summary.seconds : 0;
  std::string json = absl::StrCat(
      "{\n  \"model\": \"", summary.model, "\",\n  \"samples\": ", summary.samples,
      ",\n  \"worker_samples\": ", summary.samples, ",\n  \"seconds\": ", Number(summary.seconds),
      ",\n  \"samples_per_second\": ", Number(rate), ",\n  \"staleness_pushes\": ", Number(summary.staleness_pushes));
  json += ",\n  \"stage_seconds\": {";
  for (size_t i = 0; i < kStages; ++i) {
    absl::StrAppend(&json, i == 0 ? "" : ", ", "\"", kStageNames[i], "\": ", Number(summary.stage_seconds[i]));
  }
  json += "}";
  if (summary.train) absl::StrAppend(&json, ",\n  \"train\": ", MetricsJson(*summary.train));
  if (summary.test) absl::StrAppend(&json, ",\n  \"test\": ", MetricsJson(*summary.test));
  if (summary.best_reachable) {
    absl::StrAppend(&json, ",\n  \"best_reachable\": {\"", summary.best_reachable_metric,
                    "\": ", Number(*summary.best_reachable), "}");
  }
  return json + "\n}\n";
}

}  // namespace lodestone::worker
