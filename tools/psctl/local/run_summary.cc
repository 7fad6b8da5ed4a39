#include "tools/psctl/local/run_summary.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "tools/psctl/local/training_progress.h"
#include "tools/psctl/text/table.h"

namespace lodestone::psctl {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSamples[] = "samples";  // Among the metrics: how many samples they were computed on.
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double NumberOr(const Json& object, const char* key, double fallback) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : fallback;
}

std::string TextOr(const Json& object, const char* key, const char* fallback) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : fallback;
}

// The numbers of the object `key`; null, which is how JSON writes NaN, included.
Metrics MetricsAt(const Json& object, const char* key) {
  Metrics metrics;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_object()) return metrics;
  for (const auto& [name, value] : found->items()) {
    if (value.is_number() || value.is_null()) metrics.emplace_back(name, value.is_null() ? kNaN : value.get<double>());
  }
  return metrics;
}

Json ToObject(const Metrics& metrics) {
  Json object = Json::object();
  for (const auto& [name, value] : metrics) {
    if (name == kSamples) {
      object[name] = static_cast<uint64_t>(value);
    } else {
      object[name] = value;
    }
  }
  return object;
}

const double* Find(const Metrics& metrics, const std::string& name) {
  const auto found =
      std::find_if(metrics.begin(), metrics.end(), [&](const auto& metric) { return metric.first == name; });
  return found == metrics.end() ? nullptr : &found->second;
}

std::string MetricsText(const Metrics& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) {
    if (name == kSamples) continue;
    absl::StrAppendFormat(&text, "%s%s %.4f", text.empty() ? "" : "   ", name, value);
  }
  if (const double* samples = Find(metrics, kSamples)) {
    absl::StrAppend(&text, "   (", WithThousands(static_cast<uint64_t>(*samples)), " samples)");
  }
  return text;
}

// "auc 0.8312: the model reaches 98.7 % of it", or for an error, which is better the lower: "rmse 0.3: … 1.02 times
// it".
std::string BestText(const RunSummary& summary) {
  std::string text;
  for (const auto& [name, best] : summary.best_reachable) {
    absl::StrAppendFormat(&text, "%s%s %.4f", text.empty() ? "" : "   ", name, best);
    const double* reached = Find(summary.test, name);
    if (reached == nullptr || best == 0) continue;
    if (name == "auc" || name == "accuracy") {
      absl::StrAppendFormat(&text, ", of which the model reached %.1f %%", 100 * *reached / best);
    } else {
      absl::StrAppendFormat(&text, ", the model's is %.3f times that", *reached / best);
    }
  }
  return text;
}

// "compute 62 %, rows 21 %, push 9 %, dense 3 %": the shares of `seconds`, the greatest first; what is less than half a
// percent is left out, and so is what belongs to no stage.
std::string StagesText(Metrics stages, double seconds) {
  std::erase_if(stages, [seconds](const auto& stage) { return !(stage.second > 0 && seconds > 0); });
  std::stable_sort(stages.begin(), stages.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [name, value] : stages) {
    const long percent = std::lround(100 * value / seconds);
    if (percent > 0) absl::StrAppend(&text, text.empty() ? "" : ", ", name, " ", percent, " %");
  }
  return text;
}

std::string RateText(uint64_t samples, double seconds, double per_second) {
  return absl::StrFormat("%s in %.1f s: %s/s", WithThousands(samples), seconds,
                         WithThousands(std::llround(per_second)));
}

std::vector<worker::DelaySummary> DelaysAt(const Json& object) {
  std::vector<worker::DelaySummary> delays;
  const auto found = object.find("delay");
  if (found == object.end() || !found->is_object()) return delays;
  for (const auto& [table, value] : found->items()) {
    if (!value.is_object()) continue;
    const auto count = [&of = value](const char* key) {
      return static_cast<uint64_t>(std::max(0.0, NumberOr(of, key, 0)));
    };
    delays.push_back({table, count("pushes"), NumberOr(value, "mean", 0), NumberOr(value, "own", 0), count("p50"),
                      count("p90"), count("max")});
  }
  return delays;
}

Json ToObject(const std::vector<worker::DelaySummary>& delays) {
  Json object = Json::object();
  for (const worker::DelaySummary& delay : delays) {
    object[delay.table] = {{"pushes", delay.pushes}, {"mean", delay.mean}, {"own", delay.own},
                           {"p50", delay.p50},       {"p90", delay.p90},   {"max", delay.max}};
  }
  return object;
}

// Adds a worker's delays to those of all.
void AddDelays(const std::vector<worker::DelaySummary>& more, std::vector<worker::DelaySummary>* all) {
  for (const worker::DelaySummary& delay : more) {
    const auto found = std::find_if(all->begin(), all->end(),
                                    [&](const worker::DelaySummary& sum) { return sum.table == delay.table; });
    if (found == all->end()) {
      all->push_back(delay);
      continue;
    }
    const double pushes = static_cast<double>(found->pushes + delay.pushes);
    const auto mean = [&](double a, double b) {
      return pushes > 0 ? (a * static_cast<double>(found->pushes) + b * static_cast<double>(delay.pushes)) / pushes : 0;
    };
    found->mean = mean(found->mean, delay.mean);
    found->own = mean(found->own, delay.own);
    found->pushes += delay.pushes;
    found->p50 = std::max(found->p50, delay.p50);
    found->p90 = std::max(found->p90, delay.p90);
    found->max = std::max(found->max, delay.max);
  }
}

// "3.1 updates between reading and application (1.9 own), p50 3, p90 4, max 9, of table embedding": of the table that
// has most.
std::string DelayText(const std::vector<worker::DelaySummary>& delays) {
  const auto greatest =
      std::max_element(delays.begin(), delays.end(),
                       [](const worker::DelaySummary& a, const worker::DelaySummary& b) { return a.mean < b.mean; });
  if (greatest == delays.end()) return "";
  return absl::StrFormat(
      "%.2f updates between a step's read and its own (%.2f the same worker's); p50 %d, p90 %d, max %d; table %s",
      greatest->mean, greatest->own, greatest->p50, greatest->p90, greatest->max, greatest->table);
}

std::vector<ValidationSummary> ValidationsAt(const Json& object) {
  std::vector<ValidationSummary> validations;
  const auto found = object.find("validations");
  if (found == object.end() || !found->is_array()) return validations;
  for (const Json& one : *found) {
    if (!one.is_object()) continue;
    const auto count = [&one](const char* key) { return static_cast<uint64_t>(std::max(0.0, NumberOr(one, key, 0))); };
    ValidationSummary validation = {count("number"),
                                    count("worker"),
                                    count("steps"),
                                    count("samples"),
                                    NumberOr(one, "seconds", 0),
                                    one.value("best", false),
                                    {}};
    for (const auto& [name, value] : one.items()) {
      const bool is_own = name == "number" || name == "worker" || name == "steps" || name == kSamples ||
                          name == "seconds" || name == "best";
      if (is_own || !(value.is_number() || value.is_null())) continue;
      validation.metrics.emplace_back(name, value.is_null() ? kNaN : value.get<double>());
    }
    validations.push_back(std::move(validation));
  }
  return validations;
}

Json ToObject(const ValidationSummary& validation) {
  Json object;
  object["number"] = validation.number;
  object["worker"] = validation.worker;
  object["steps"] = validation.steps;
  object["samples"] = validation.samples;
  object["seconds"] = validation.seconds;
  if (validation.best) object["best"] = true;
  for (const auto& [name, value] : validation.metrics) object[name] = value;
  return object;
}

// "auc 0.7812   loss 0.4312   (validation 3, at 51,200 samples, 12.3 s)".
std::string ValidationText(const ValidationSummary& validation) {
  return absl::StrFormat("%s   (validation %d, at %s samples, %.1f s)", MetricsText(validation.metrics),
                         validation.number, WithThousands(validation.samples), validation.seconds);
}

double PerSecond(uint64_t samples, double seconds) { return seconds > 0 ? samples / seconds : 0; }

std::string WorkerText(const WorkerSummary& worker) {
  const std::string stages = StagesText(worker.stage_seconds, worker.seconds);
  double delay = 0;
  for (const worker::DelaySummary& table : worker.delays) delay = std::max(delay, table.mean);
  return absl::StrFormat("%s   delay %.2f%s%s",
                         RateText(worker.samples, worker.seconds, PerSecond(worker.samples, worker.seconds)), delay,
                         stages.empty() ? "" : "   ", stages);
}

// "cuda:0 (NVIDIA H200), cuda:1 (NVIDIA H200)": what the workers computed on, each once; empty if that was the CPU.
std::string DevicesText(const std::vector<WorkerSummary>& workers) {
  std::vector<std::string> devices;
  for (const WorkerSummary& worker : workers) {
    if (!worker.device.empty() && !absl::c_linear_search(devices, worker.device)) devices.push_back(worker.device);
  }
  return absl::c_any_of(devices, OnDevice) ? absl::StrJoin(devices, ", ") : "";
}

}  // namespace

absl::StatusOr<RunSummary> ReadSummary(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": there is no summary"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::DataLossError(absl::StrCat(path, ": is no JSON object"));
  RunSummary summary;
  summary.config = TextOr(json, "config", "");
  summary.model = TextOr(json, "model", "");
  summary.device = TextOr(json, "device", "");
  const double samples = NumberOr(json, "samples", -1);
  summary.seconds = NumberOr(json, "seconds", -1);
  if (!(samples >= 0) || !(summary.seconds >= 0)) {
    return absl::DataLossError(absl::StrCat(path, ": lacks samples or seconds"));
  }
  summary.samples = static_cast<uint64_t>(samples);
  summary.samples_per_second = NumberOr(json, "samples_per_second", 0);
  summary.staleness_pushes = NumberOr(json, "staleness_pushes", 0);
  summary.delays = DelaysAt(json);
  const auto flag = [&json](const char* key, bool fallback) {
    const auto found = json.find(key);
    return found != json.end() && found->is_boolean() ? found->get<bool>() : fallback;
  };
  summary.complete = flag("complete", true);
  summary.interrupted = flag("interrupted", false);
  summary.missing = TextOr(json, "missing", "");
  summary.warning = TextOr(json, "warning", "");
  summary.stopped_early = TextOr(json, "stopped_early", "");
  summary.best_model = TextOr(json, "best_model", "");
  summary.validations = ValidationsAt(json);
  summary.servers = static_cast<uint32_t>(NumberOr(json, "servers", 0));
  summary.workers = static_cast<uint32_t>(NumberOr(json, "workers", 0));
  summary.train = MetricsAt(json, "train");
  summary.test = MetricsAt(json, "test");
  summary.best_reachable = MetricsAt(json, "best_reachable");
  summary.stage_seconds = MetricsAt(json, "stage_seconds");
  if (const auto workers = json.find("per_worker"); workers != json.end() && workers->is_array()) {
    for (const Json& worker : *workers) {
      if (!worker.is_object()) continue;
      summary.per_worker.push_back({static_cast<uint64_t>(std::max(0.0, NumberOr(worker, "samples", 0))),
                                    NumberOr(worker, "seconds", 0), NumberOr(worker, "staleness_pushes", 0),
                                    DelaysAt(worker), MetricsAt(worker, "stage_seconds"),
                                    TextOr(worker, "device", "")});
    }
  }
  summary.results = TextOr(json, "results", "");
  return summary;
}

RunSummary Combine(const std::vector<RunSummary>& workers) {
  RunSummary all = workers.front();
  all.samples = 0;
  all.workers = workers.size();
  all.stage_seconds.clear();
  all.per_worker.clear();
  all.delays.clear();
  double staleness = 0;
  for (const RunSummary& worker : workers) {
    all.samples += worker.samples;
    all.seconds = std::max(all.seconds, worker.seconds);
    staleness += worker.staleness_pushes * worker.samples;
    all.per_worker.push_back(
        {worker.samples, worker.seconds, worker.staleness_pushes, worker.delays, worker.stage_seconds, worker.device});
    AddDelays(worker.delays, &all.delays);
    all.complete &= worker.complete;
    all.interrupted |= worker.interrupted;
    if (all.test.empty() && all.train.empty()) {  // Any worker may have evaluated.
      all.test = worker.test;
      all.train = worker.train;
      all.best_reachable = worker.best_reachable;
    }
    if (all.missing.empty()) all.missing = worker.missing;
    if (all.warning.empty()) all.warning = worker.warning;
    if (all.stopped_early.empty()) all.stopped_early = worker.stopped_early;
    if (worker.validations.size() > all.validations.size()) {  // It asked later.
      all.validations = worker.validations;
      all.best_model = worker.best_model;
    }
    for (const auto& [stage, seconds] : worker.stage_seconds) {
      const auto found = std::find_if(all.stage_seconds.begin(), all.stage_seconds.end(),
                                      [&stage = stage](const auto& sum) { return sum.first == stage; });
      if (found == all.stage_seconds.end()) {
        all.stage_seconds.emplace_back(stage, seconds);
      } else {
        found->second += seconds;
      }
    }
  }
  all.staleness_pushes = all.samples == 0 ? 0 : staleness / all.samples;
  all.samples_per_second = PerSecond(all.samples, all.seconds);
  return all;
}

std::string ToJson(const RunSummary& summary) {
  Json json;
  json["config"] = summary.config;
  json["model"] = summary.model;
  json["samples"] = summary.samples;
  json["seconds"] = summary.seconds;
  json["samples_per_second"] = summary.samples_per_second;
  json["staleness_pushes"] = summary.staleness_pushes;
  if (!summary.delays.empty()) json["delay"] = ToObject(summary.delays);
  json["complete"] = summary.complete;
  if (summary.interrupted) json["interrupted"] = true;
  if (!summary.stopped_early.empty()) json["stopped_early"] = summary.stopped_early;
  if (!summary.best_model.empty()) json["best_model"] = summary.best_model;
  for (const ValidationSummary& validation : summary.validations) json["validations"].push_back(ToObject(validation));
  if (!summary.missing.empty()) json["missing"] = summary.missing;
  if (!summary.warning.empty()) json["warning"] = summary.warning;
  json["servers"] = summary.servers;
  json["workers"] = summary.workers;
  if (!summary.train.empty()) json["train"] = ToObject(summary.train);
  if (!summary.test.empty()) json["test"] = ToObject(summary.test);
  if (!summary.best_reachable.empty()) json["best_reachable"] = ToObject(summary.best_reachable);
  if (!summary.stage_seconds.empty()) json["stage_seconds"] = ToObject(summary.stage_seconds);
  for (const WorkerSummary& worker : summary.per_worker) {
    Json object;
    if (!worker.device.empty()) object["device"] = worker.device;
    object["samples"] = worker.samples;
    object["seconds"] = worker.seconds;
    object["samples_per_second"] = PerSecond(worker.samples, worker.seconds);
    object["staleness_pushes"] = worker.staleness_pushes;
    if (!worker.delays.empty()) object["delay"] = ToObject(worker.delays);
    if (!worker.stage_seconds.empty()) object["stage_seconds"] = ToObject(worker.stage_seconds);
    json["per_worker"].push_back(std::move(object));
  }
  if (!summary.results.empty()) json["results"] = summary.results;
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

std::string ToTable(const RunSummary& summary) {
  std::string text;
  const auto row = [&text](const char* name, const std::string& value) {
    if (!value.empty()) absl::StrAppendFormat(&text, "  %-15s %s\n", name, value);
  };
  row("model", summary.model);
  row("cluster",
      absl::StrCat(summary.servers, " ps, ", summary.workers, summary.workers == 1 ? " worker" : " workers"));
  row("device", DevicesText(summary.per_worker));
  row("samples", RateText(summary.samples, summary.seconds, summary.samples_per_second));
  row("delay", DelayText(summary.delays));
  if (summary.per_worker.size() > 1) {
    for (size_t i = 0; i < summary.per_worker.size(); ++i) {
      row(absl::StrCat("worker ", i).c_str(), WorkerText(summary.per_worker[i]));
    }
  }
  double seconds = 0;  // Of all workers.
  for (const WorkerSummary& worker : summary.per_worker) seconds += worker.seconds;
  row("time went to", StagesText(summary.stage_seconds, seconds));
  row("train", MetricsText(summary.train));
  row("test", MetricsText(summary.test));
  row("best reachable", BestText(summary));
  if (!summary.validations.empty()) row("last validated", ValidationText(summary.validations.back()));
  for (const ValidationSummary& validation : summary.validations) {
    if (validation.best) row("best validated", ValidationText(validation));
  }
  if (!summary.stopped_early.empty()) row("stopped early", summary.stopped_early);
  row("best model", summary.best_model);
  row("incomplete", summary.missing);
  row("warning", summary.warning);
  const std::string& results = summary.results;
  row("results", results.empty() ? "" : absl::StrCat(results, " (tensorboard --logdir ", results, ")"));
  return text;
}

}  // namespace lodestone::psctl
