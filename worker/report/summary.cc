#include "worker/report/summary.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

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

absl::Status FileError(const char* what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat(what, " ", path, ": ", std::strerror(errno)));
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

absl::Status WriteFileAtomically(const std::string& path, const std::string& text) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  std::FILE* const file = std::fopen(temporary.c_str(), "w");
  if (file == nullptr) return FileError("cannot write", temporary);
  bool ok = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  ok = std::fflush(file) == 0 && ok;
  ok = fsync(fileno(file)) == 0 && ok;
  ok = std::fclose(file) == 0 && ok;
  if (ok && std::rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const absl::Status status = FileError("cannot write", path);
  std::remove(temporary.c_str());
  return status;
}

}  // namespace lodestone::worker
