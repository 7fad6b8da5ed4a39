#include "worker/report/results.h"

#include <limits.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/config/config.h"
#include "common/telemetry/log.h"
#include "nlohmann/json.hpp"
#include "worker/metrics/step_stages.h"
#include "worker/report/tensorboard.h"

namespace lodestone::worker {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();  // null in JSON.

double WallSeconds() { return static_cast<double>(absl::ToUnixMicros(absl::Now())) / 1e6; }

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

// A line's first fields.
Json LineOf(const char* event) {
  Json line;
  line["event"] = event;
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  return line;
}

std::string TextOf(const Json& line) {
  return line.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

// With the digits that mean something to a reader.
double Rounded(double value) {
  return std::isfinite(value) ? std::strtod(absl::StrFormat("%.7g", value).c_str(), nullptr) : value;
}

double Quotient(double dividend, double divisor) { return divisor > 0 ? dividend / divisor : kUnknown; }

Json ObjectOf(const StageSeconds& seconds) {
  Json object;
  for (size_t i = 0; i < kStages; ++i) object[kStageNames[i]] = Rounded(seconds[i]);
  return object;
}

// Adds the metrics of a set, "test" say, to a line and to a record.
void AddMetrics(const std::string& set, const std::optional<EvaluationMetrics::Result>& result, Json* line,
                std::vector<TensorBoardScalar>* scalars) {
  if (!result) return;
  Json object;
  object["samples"] = result->samples;
  for (const NamedMetric& metric : MetricsOf(*result)) {
    object[metric.name] = Rounded(metric.value);
    scalars->push_back({absl::StrCat(set, "/", metric.name), metric.value});
  }
  (*line)[set] = std::move(object);
}

std::string RunLine(const v1::Config& config, uint32_t worker, const std::string& device) {
  Json line = LineOf("run");
  line["cluster"] = config.cluster().name();
  line["worker"] = worker;
  line["host"] = HostName();
  line["pid"] = getpid();
  line["version"] = kVersion;
  line["commit"] = kCommit[0] == '\0' ? Json() : Json(std::string(kCommit));
  line["seed"] = config.cluster().seed();
  line["device"] = device;
  line["config"] = PrintConfig(config);
  return TextOf(line);
}

const FileCalls* SystemCalls() {
  static const FileCalls* const calls = new FileCalls(FileCalls::System());
  return calls;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Results>> Results::Open(const v1::Config& config, uint32_t worker,
                                                       const std::string& device, const TimeSource* time) {
  return Open(config, worker, device, time, SystemCalls());
}

absl::StatusOr<std::unique_ptr<Results>> Results::Open(const v1::Config& config, uint32_t worker,
                                                       const std::string& device, const TimeSource* time,
                                                       const FileCalls* calls) {
  const auto open = [&]() -> absl::StatusOr<std::unique_ptr<Results>> {
    const std::string stem = absl::StrCat(config.worker().results_dir(), "/worker-", worker);
    LODESTONE_RETURN_IF_ERROR(MakeFolders(stem));
    LODESTONE_ASSIGN_OR_RETURN(ResultsFile lines, ResultsFile::Open(stem + ".jsonl", calls));
    LODESTONE_RETURN_IF_ERROR(lines.CutPartialLine());
    const double now = WallSeconds();
    const std::string name = TensorBoardFileName(static_cast<int64_t>(now), HostName(), getpid());
    LODESTONE_ASSIGN_OR_RETURN(ResultsFile events, ResultsFile::Open(absl::StrCat(stem, "/", name), calls));
    LODESTONE_RETURN_IF_ERROR(lines.Append(RunLine(config, worker, device)));
    LODESTONE_RETURN_IF_ERROR(events.Append(TensorBoardVersion(now)));
    return std::unique_ptr<Results>(
        new Results(config.worker().results_every_ms(), time, std::move(lines), std::move(events)));
  };
  auto results = open();
  if (!results.ok()) {
    return absl::Status(results.status().code(),
                        absl::StrCat("worker.results_dir cannot be used: ", results.status().message()));
  }
  LODESTONE_LOG(INFO, "results", "results are written to={} tensorboard={}", (*results)->lines_.path(),
                (*results)->events_.path());
  return results;
}

void Results::StartTraining(uint64_t samples_total) {
  samples_total_ = samples_total;
  start_ms_ = written_ms_ = newest_ms_ = time_->NowMs();
}

void Results::Step(const StepCounts& counts, const NamedMetric& metric) {
  newest_ = counts;
  newest_metric_ = metric;
  newest_ms_ = time_->NowMs();
  loss_sum_ += counts.loss_sum;
  weight_ += counts.weight;
  const bool last = samples_total_ > 0 && counts.samples >= samples_total_;  // 0: not known.
  if (newest_ms_ - written_ms_ >= every_ms_ || last) WriteTraining();
}

void Results::WriteTraining() {
  if (newest_.clock == written_.clock) return;
  const double seconds = 1e-3 * static_cast<double>(newest_ms_ - written_ms_);
  const auto samples = static_cast<double>(newest_.samples - written_.samples);
  const double rate = Quotient(samples, seconds);
  const double loss = Quotient(loss_sum_, weight_);
  const double staleness = Quotient(newest_.staleness_sum - written_.staleness_sum,
                                    static_cast<double>(newest_.acknowledged - written_.acknowledged));
  const double delay = Quotient(newest_.delay_sum - written_.delay_sum,
                                static_cast<double>(newest_.acknowledged - written_.acknowledged));
  StageSeconds stages;
  for (size_t i = 0; i < kStages; ++i) stages[i] = newest_.stages[i] - written_.stages[i];

  Json line = LineOf("training");
  line["seconds"] = Rounded(1e-3 * static_cast<double>(newest_ms_ - start_ms_));
  line["clock"] = newest_.clock;
  line["samples"] = newest_.samples;
  line["samples_total"] = samples_total_;
  line["samples_per_second"] = Rounded(rate);
  line["loss"] = Rounded(loss);
  const auto& [metric_name, metric] = newest_metric_;
  line["metric"] = metric_name.empty() ? Json() : Json{{metric_name, Rounded(metric)}};
  line["staleness_pushes"] = Rounded(staleness);
  line["delay"] = Rounded(delay);
  line["stage_seconds"] = ObjectOf(stages);

  std::vector<TensorBoardScalar> scalars = {{"loss", loss}};
  if (!metric_name.empty() && std::isfinite(metric)) scalars.push_back({metric_name, metric});
  if (std::isfinite(rate)) scalars.push_back({"samples_per_second", rate});
  if (std::isfinite(staleness)) scalars.push_back({"staleness_pushes", staleness});
  if (std::isfinite(delay)) scalars.push_back({"delay", delay});
  for (size_t i = 0; i < kStages && seconds > 0; ++i) {
    scalars.push_back({absl::StrCat("time_share/", kStageNames[i]), stages[i] / seconds});
  }
  Append(TextOf(line), TensorBoardScalars(WallSeconds(), static_cast<int64_t>(newest_.clock), scalars));
  written_ = newest_;
  written_ms_ = newest_ms_;
  loss_sum_ = 0;
  weight_ = 0;
}

void Results::Validated(const v1::Validation& validation, const EvaluationMetrics::Result& result, bool best) {
  WriteTraining();
  Json line = LineOf("validation");
  line["seconds"] = Rounded(validation.seconds());
  line["number"] = validation.number();
  line["clock"] = validation.clock();
  line["samples"] = validation.samples();
  line["duration_seconds"] = Rounded(validation.duration_seconds());
  line["best"] = best;
  std::vector<TensorBoardScalar> scalars;
  AddMetrics("validation", result, &line, &scalars);
  Append(TextOf(line), TensorBoardScalars(WallSeconds(), static_cast<int64_t>(validation.clock()), scalars));
}

void Results::Finish(const Summary& summary) {
  WriteTraining();
  Json line = LineOf("result");
  line["seconds"] = Rounded(summary.seconds);
  line["clock"] = newest_.clock;
  line["samples"] = summary.samples;
  line["samples_per_second"] = Rounded(Quotient(static_cast<double>(summary.samples), summary.seconds));
  line["staleness_pushes"] = Rounded(summary.staleness_pushes);
  for (const DelaySummary& delay : summary.delays) {
    line["delay"][delay.table] = {{"mean", Rounded(delay.mean)},
                                  {"own", Rounded(delay.own)},
                                  {"p50", delay.p50},
                                  {"p90", delay.p90},
                                  {"max", delay.max}};
  }
  line["complete"] = summary.complete();
  if (summary.interrupted) line["interrupted"] = true;
  if (!summary.stopped_early.empty()) line["stopped_early"] = summary.stopped_early;
  if (!summary.complete()) line["missing"] = WhatIsMissing(summary);
  if (!summary.loss_complaint.empty()) line["warning"] = summary.loss_complaint;
  line["stage_seconds"] = ObjectOf(summary.stage_seconds);
  std::vector<TensorBoardScalar> scalars;
  AddMetrics("train", summary.train, &line, &scalars);
  AddMetrics("test", summary.test, &line, &scalars);
  if (summary.best_reachable) line["best_reachable"][summary.best_reachable_metric] = Rounded(*summary.best_reachable);
  const std::string record =
      scalars.empty() ? "" : TensorBoardScalars(WallSeconds(), static_cast<int64_t>(newest_.clock), scalars);
  Append(TextOf(line), record);
}

void Results::Fail(const absl::Status& status) {
  WriteTraining();
  Json line = LineOf("failed");
  line["clock"] = newest_.clock;
  line["samples"] = newest_.samples;
  line["reason"] = status.ToString();
  Append(TextOf(line), "");
}

void Results::Append(const std::string& line, const std::string& record) {
  absl::Status status = lines_.Append(line);
  if (!record.empty()) status.Update(events_.Append(record));
  if (status.ok() || warned_) return;
  warned_ = true;
  LODESTONE_LOG(WARN, "results", "results are left out, training goes on: {}", std::string(status.message()));
}

}  // namespace lodestone::worker
