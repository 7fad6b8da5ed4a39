#include "worker/report/summary.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace lodestone::worker {
namespace {

std::string Number(double value) { return std::isfinite(value) ? absl::StrFormat("%.9g", value) : "null"; }

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

std::string MetricsJson(const EvaluationMetrics::Result& result) {
  std::string json = absl::StrCat("{\"samples\": ", result.samples);
  for (const NamedMetric& metric : MetricsOf(result)) {
    absl::StrAppend(&json, ", ", Quoted(metric.name), ": ", Number(metric.value));
  }
  return json + "}";
}

// {"bias": {"pushes": 8, "mean": 1.5, "own": 1, "p50": 1, "p90": 2, "max": 3}, ...}
std::string DelaysJson(const std::vector<DelaySummary>& delays) {
  return absl::StrCat("{",
                      absl::StrJoin(delays, ", ",
                                    [](std::string* out, const DelaySummary& delay) {
                                      absl::StrAppend(out, Quoted(delay.table), ": {\"pushes\": ", delay.pushes,
                                                      ", \"mean\": ", Number(delay.mean),
                                                      ", \"own\": ", Number(delay.own), ", \"p50\": ", delay.p50,
                                                      ", \"p90\": ", delay.p90, ", \"max\": ", delay.max, "}");
                                    }),
                      "}");
}

// {"kind": "sync, steps of 4 batches", "waited_seconds": 1.5, "late": 0, "duplicates": 0}
std::string ConsistencyJson(const v1::ConsistencyProgress& observed) {
  return absl::StrCat(
      "{\"kind\": ", Quoted(observed.kind()), ", \"waited_seconds\": ", Number(observed.waited_seconds()),
      observed.has_behind_max()
          ? absl::StrCat(", \"clocks_behind\": {\"p50\": ", observed.behind_p50(), ", \"p90\": ", observed.behind_p90(),
                         ", \"max\": ", observed.behind_max(), "}")
          : absl::StrCat(", \"late\": ", observed.late(), ", \"duplicates\": ", observed.duplicates()),
      "}");
}

// {"number": 2, "worker": 0, "steps": 200, "samples": 51200, "seconds": 1.5, "best": true, "loss": 0.43, "auc": 0.78}
std::string ValidationJson(const v1::Validation& validation, bool best) {
  std::string json = absl::StrCat("{\"number\": ", validation.number(), ", \"worker\": ", validation.worker(),
                                  ", \"steps\": ", validation.clock(), ", \"samples\": ", validation.samples(),
                                  ", \"seconds\": ", Number(validation.seconds()));
  if (best) json += ", \"best\": true";
  for (const v1::ValidationMetric& metric : validation.metrics()) {
    absl::StrAppend(&json, ", ", Quoted(metric.name()), ": ", Number(metric.value()));
  }
  return json + "}";
}

std::string ValidationsJson(const v1::ValidationState& state) {
  std::string json = "[";
  const char* separator = "\n    ";
  for (const v1::Validation& validation : state.results()) {
    absl::StrAppend(&json, separator, ValidationJson(validation, validation.number() == state.best().number()));
    separator = ",\n    ";
  }
  return json + "]";
}

}  // namespace

std::string WhatIsMissing(const Summary& summary) {
  std::vector<std::string> missing;
  if (summary.samples < summary.samples_total && summary.stopped_early.empty()) {
    missing.push_back(absl::StrCat("worker ", summary.worker, " trained ", summary.samples, " of ",
                                   summary.samples_total, " samples"));
  }
  missing.insert(missing.end(), summary.untrained.begin(), summary.untrained.end());
  if (summary.changed) missing.push_back("others pushed during the evaluation, so that it is of no one version");
  return absl::StrJoin(missing, "; ");
}

std::string SummaryJson(const Summary& summary) {
  const double rate = summary.seconds > 0 ? static_cast<double>(summary.samples) / summary.seconds : 0;
  std::string json =
      absl::StrCat("{\n  \"model\": \"", summary.model, "\",\n  \"device\": ", Quoted(summary.device),
                   ",\n  \"samples\": ", summary.samples, ",\n  \"worker_samples\": ", summary.samples,
                   ",\n  \"seconds\": ", Number(summary.seconds), ",\n  \"samples_per_second\": ", Number(rate),
                   ",\n  \"staleness_pushes\": ", Number(summary.staleness_pushes));
  json += ",\n  \"stage_seconds\": {";
  for (size_t i = 0; i < kStages; ++i) {
    absl::StrAppend(&json, i == 0 ? "" : ", ", "\"", kStageNames[i], "\": ", Number(summary.stage_seconds[i]));
  }
  json += "}";
  if (!summary.delays.empty()) absl::StrAppend(&json, ",\n  \"delay\": ", DelaysJson(summary.delays));
  if (!summary.consistency.kind().empty()) {
    absl::StrAppend(&json, ",\n  \"consistency\": ", ConsistencyJson(summary.consistency));
  }
  absl::StrAppend(&json, ",\n  \"complete\": ", summary.complete() ? "true" : "false");
  if (summary.interrupted) json += ",\n  \"interrupted\": true";
  if (!summary.stopped_early.empty()) {
    absl::StrAppend(&json, ",\n  \"stopped_early\": ", Quoted(summary.stopped_early));
  }
  if (summary.validations.results_size() > 0) {
    absl::StrAppend(&json, ",\n  \"validations\": ", ValidationsJson(summary.validations));
  }
  if (!summary.validations.kept().empty()) {
    absl::StrAppend(&json, ",\n  \"best_model\": ", Quoted(summary.validations.kept()));
  }
  if (!summary.complete()) absl::StrAppend(&json, ",\n  \"missing\": ", Quoted(WhatIsMissing(summary)));
  if (!summary.loss_complaint.empty()) absl::StrAppend(&json, ",\n  \"warning\": ", Quoted(summary.loss_complaint));
  if (summary.train) absl::StrAppend(&json, ",\n  \"train\": ", MetricsJson(*summary.train));
  if (summary.test) absl::StrAppend(&json, ",\n  \"test\": ", MetricsJson(*summary.test));
  if (summary.best_reachable) {
    absl::StrAppend(&json, ",\n  \"best_reachable\": {\"", summary.best_reachable_metric,
                    "\": ", Number(*summary.best_reachable), "}");
  }
  return json + "\n}\n";
}

}  // namespace lodestone::worker
