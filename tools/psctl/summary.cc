#include "tools/psctl/summary.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "tools/psctl/cluster_view.h"

namespace lodestone {
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
  const double samples = NumberOr(json, "samples", -1);
  summary.seconds = NumberOr(json, "seconds", -1);
  if (!(samples >= 0) || !(summary.seconds >= 0)) {
    return absl::DataLossError(absl::StrCat(path, ": lacks samples or seconds"));
  }
  summary.samples = static_cast<uint64_t>(samples);
  summary.samples_per_second = NumberOr(json, "samples_per_second", 0);
  summary.staleness_pushes = NumberOr(json, "staleness_pushes", 0);
  summary.servers = static_cast<uint32_t>(NumberOr(json, "servers", 0));
  summary.workers = static_cast<uint32_t>(NumberOr(json, "workers", 0));
  summary.train = MetricsAt(json, "train");
  summary.test = MetricsAt(json, "test");
  summary.best_reachable = MetricsAt(json, "best_reachable");
  return summary;
}

RunSummary Combine(const std::vector<RunSummary>& workers) {
  RunSummary all = workers.front();
  all.samples = 0;
  all.workers = workers.size();
  double staleness = 0;
  for (const RunSummary& worker : workers) {
    all.samples += worker.samples;
    all.seconds = std::max(all.seconds, worker.seconds);
    staleness += worker.staleness_pushes * worker.samples;
  }
  all.staleness_pushes = all.samples == 0 ? 0 : staleness / all.samples;
  all.samples_per_second = all.seconds > 0 ? all.samples / all.seconds : 0;
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
  json["servers"] = summary.servers;
  json["workers"] = summary.workers;
  if (!summary.train.empty()) json["train"] = ToObject(summary.train);
  if (!summary.test.empty()) json["test"] = ToObject(summary.test);
  if (!summary.best_reachable.empty()) json["best_reachable"] = ToObject(summary.best_reachable);
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
  row("samples", absl::StrFormat("%s in %.1f s: %s/s", WithThousands(summary.samples), summary.seconds,
                                 WithThousands(std::llround(summary.samples_per_second))));
  row("staleness", absl::StrFormat("%.2f pushes by others between a step's read and its push, on average",
                                   summary.staleness_pushes));
  row("train", MetricsText(summary.train));
  row("test", MetricsText(summary.test));
  row("best reachable", BestText(summary));
  return text;
}

}  // namespace lodestone
