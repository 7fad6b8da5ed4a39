#include "tools/bench/harness/programs.h"

#include <cctype>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tools/bench/harness/stats.h"

namespace lodestone::bench {
namespace {

using Json = nlohmann::ordered_json;

// A counter: the rate of the plain loop that took turns with it.
constexpr char kPlain[] = "plain_per_second";

// "Update/adam/1048576" has "PlainAdam/1048576" for its limit, if there is such a benchmark.
std::string LimitOf(const std::string& benchmark) {
  const size_t first = benchmark.find('/');
  if (first == std::string::npos || first + 1 >= benchmark.size()) return "";
  std::string limit = benchmark.substr(first + 1);
  limit[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(limit[0])));
  return "Plain" + limit;
}

double SecondsIn(const std::string& time_unit) {
  return time_unit == "s" ? 1 : time_unit == "ms" ? 1e-3 : time_unit == "us" ? 1e-6 : 1e-9;
}

}  // namespace

absl::StatusOr<std::vector<Row>> RowsOfBenchmark(const std::string& bench, const std::string& json) {
  std::set<std::tuple<int, int, std::string>> names;  // In the program's order, though repetitions were shuffled.
  // Million items per second of the repetitions; what the plain loop did in turns with it, where a benchmark tells.
  std::map<std::string, std::vector<double>> rates, in_turns;
  try {
    const Json result = Json::parse(json);
    for (const Json& run : result.at("benchmarks")) {
      if (run.value("run_type", "iteration") != "iteration") continue;
      if (run.contains("error_occurred") && run.at("error_occurred").get<bool>()) {
        return absl::InternalError(
            absl::StrCat(run.at("name").get<std::string>(), ": ", run.value("error_message", "failed")));
      }
      const std::string name = run.at("run_name");
      names.emplace(run.value("family_index", 0), run.value("per_family_instance_index", 0), name);
      const double items =
          run.contains("items_per_second")
              ? run.at("items_per_second").get<double>()
              : 1 / (run.at("real_time").get<double>() * SecondsIn(run.at("time_unit").get<std::string>()));
      rates[name].push_back(1e-6 * items);
      if (run.contains(kPlain)) in_turns[name].push_back(1e-6 * run.at(kPlain).get<double>());
    }
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the result of ", bench, "_benchmark: ", error.what()));
  }
  std::vector<Row> rows;
  for (const auto& [family, instance, name] : names) {
    const std::vector<double>& ours = rates[name];
    Row row{bench, absl::StrCat(bench, "/", name), "M/s", "", static_cast<int>(ours.size()), {}};
    row.values[kRate] = SpreadOf(ours);
    const std::vector<double>& limit = in_turns.count(name) > 0 ? in_turns[name] : rates[LimitOf(name)];
    if (limit.size() == ours.size()) {
      std::vector<double> ratios;
      for (size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / limit[i]);
      row.values[kLimitRate] = SpreadOf(limit);
      row.values[kRatio] = SpreadOf(std::move(ratios));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace lodestone::bench
