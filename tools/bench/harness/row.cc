#include "tools/bench/harness/row.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace lodestone::bench {
namespace {

using Json = nlohmann::ordered_json;

// Throws nlohmann's exceptions if `object` is not a row.
Row ToRow(const Json& object) {
  Row row{.bench = object.at("bench"),
          .name = object.at("name"),
          .unit = object.at("unit"),
          .cpu_unit = object.value("cpu_unit", ""),
          .runs = object.at("runs"),
          .values = {}};
  for (const auto& [metric, spread] : object.at("values").items()) {
    row.values[metric] = {spread.at("median"), spread.at("min"), spread.at("max")};
  }
  return row;
}

}  // namespace

const std::vector<Metric>& Metrics() {
  static const auto& metrics = *new std::vector<Metric>{
      {kRate, "rate", Better::kHigher, "work done per second, in the row's unit"},
      {kMessages, "k msg/s", Better::kHigher, "thousands of operations per second"},
      {kP50, "p50 us", Better::kLower, "median time of one operation"},
      {kP99, "p99 us", Better::kLower, "99 % of operations took no longer (runs of at least 100)"},
      {kP999, "p99.9 us", Better::kLower, "99.9 % of operations took no longer (runs of at least 1000)"},
      {kClientCpu, "client", Better::kLower, "CPU seconds of all client processes per GB, million keys or so"},
      {kServerCpu, "server", Better::kLower, "the same of the server process"},
      {kCopies, "copies", Better::kLower, "bytes that the client copied per byte of payload moved"},
      {kServerCopies, "ps copies", Better::kLower, "the same of the server"},
      {kLimitRate, "limit", Better::kNeither, "rate of the limit: the same bytes over raw sockets, in the same run"},
      {kLimitP50, "limit p50", Better::kNeither, "the limit's median time of one operation"},
      {kLimitP99, "limit p99", Better::kNeither, "99 % of the limit's operations took no longer"},
      {kLimitCpu, "limit CPU", Better::kNeither, "the limit's CPU time, client and server together"},
      {kRatio, "x limit", Better::kHigher, "rate / limit, run by run"},
      {kCpuRatio, "x CPU", Better::kLower, "CPU time of client and server / the limit's, run by run"},
      {kP50Ratio, "x p50", Better::kLower, "median time of one operation / the limit's, run by run"},
      {kP99Ratio, "x p99", Better::kLower, "what 99 % of operations did not exceed / the limit's, run by run"},
      {kServerCpuRatio, "x server", Better::kLower, "CPU time of the server / the limit's server's, run by run"},
      {kMemory, "extra MB", Better::kLower, "resident memory of the server at most, beyond that before the first run"},
      {kMemoryRatio, "x memory", Better::kLower, "that / the size of the blocks that were updated meanwhile"},
  };
  return metrics;
}

const Spread* Row::Find(const std::string& metric) const {
  const auto found = values.find(metric);
  return found == values.end() ? nullptr : &found->second;
}

std::string ToJson(const Row& row) {
  Json object;
  object["bench"] = row.bench;
  object["name"] = row.name;
  object["unit"] = row.unit;
  if (!row.cpu_unit.empty()) object["cpu_unit"] = row.cpu_unit;
  object["runs"] = row.runs;
  Json& values = object["values"] = Json::object();
  for (const Metric& metric : Metrics()) {
    const Spread* spread = row.Find(metric.key);
    if (spread == nullptr) continue;
    values[metric.key] = {{"median", spread->median}, {"min", spread->min}, {"max", spread->max}};
  }
  return object.dump();
}

std::string ToJson(const std::map<std::string, std::string>& machine) {
  Json object;
  object["machine"] = machine;
  return object.dump();
}

absl::StatusOr<Report> ParseReport(const std::string& text, const std::string& name) {
  Report report;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.empty()) continue;
    try {
      const Json object = Json::parse(line);
      if (object.contains("machine")) {
        report.machine = object.at("machine").get<std::map<std::string, std::string>>();
      } else {
        report.rows.push_back(ToRow(object));
      }
    } catch (const Json::exception& error) {
      return absl::InvalidArgumentError(absl::StrCat(name, ":", number, ": not a benchmark's row: ", error.what()));
    }
  }
  if (report.rows.empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": holds no rows"));
  return report;
}

absl::StatusOr<Report> ReadReport(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::ostringstream text;
  text << file.rdbuf();
  return ParseReport(text.str(), path);
}

}  // namespace lodestone::bench
