#include "tools/bench/harness/compare.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lodestone::bench {

const char kCompareRule[] =
    "For every row of both runs the rate, the CPU time and the median latency are compared: as ratios to the limit "
    "that\n"
    "was measured beside them where both runs have one (so that a slower machine or a busy neighbour cancels out), "
    "plainly\n"
    "otherwise. A metric is worse or better if its medians differ by 5 % or more and the ranges (least to largest of "
    "all\n"
    "runs) do not overlap; if the medians differ but the ranges overlap, that is noise. Rows that only one run has "
    "are\n"
    "named and count as neither.";

namespace {

// What is compared: the first of each list that both rows have.
const std::vector<std::vector<const char*>>& Aspects() {
  static const auto& aspects = *new std::vector<std::vector<const char*>>{
      {kRatio, kRate}, {kCpuRatio, kClientCpu}, {kServerCpuRatio, kServerCpu}, {kP50Ratio, kP50}, {kCopies}};
  return aspects;
}

Better BetterOf(const std::string& key) {
  for (const Metric& metric : Metrics()) {
    if (metric.key == key) return metric.better;
  }
  return Better::kNeither;
}

Verdict Judge(Better better, const Spread& before, const Spread& after) {
  const double ratio = after.median / before.median;
  if (!(std::abs(ratio - 1) >= kNoiseShare)) return Verdict::kSame;
  if (after.min <= before.max && before.min <= after.max) return Verdict::kNoise;
  return (ratio > 1) == (better == Better::kHigher) ? Verdict::kImprovement : Verdict::kRegression;
}

void CompareRows(const Row& before, const Row& after, std::vector<Difference>* differences) {
  for (const auto& aspect : Aspects()) {
    const auto metric = std::find_if(aspect.begin(), aspect.end(), [&](const char* key) {
      return before.Find(key) != nullptr && after.Find(key) != nullptr;
    });
    if (metric == aspect.end()) continue;
    const Spread& old_values = *before.Find(*metric);
    const Spread& new_values = *after.Find(*metric);
    differences->push_back({before.name, *metric, Judge(BetterOf(*metric), old_values, new_values), old_values,
                            new_values, new_values.median / old_values.median});
  }
}

const char* TextOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kSame:
      return "same";
    case Verdict::kNoise:
      return "noise";
    case Verdict::kImprovement:
      return "better";
    case Verdict::kRegression:
      return "WORSE";
    case Verdict::kMissing:
      return "missing";
    case Verdict::kNew:
      return "new";
  }
  return "";
}

std::string TextOf(const Spread& spread) {
  return absl::StrCat(NumberText(spread.median), " (", NumberText(spread.min), "-", NumberText(spread.max), ")");
}

}  // namespace

std::vector<Difference> Compare(const Report& before, const Report& after) {
  std::map<std::string, const Row*> new_rows;
  std::set<std::string> benches;
  for (const Row& row : after.rows) {
    new_rows[row.name] = &row;
    benches.insert(row.bench);
  }
  std::vector<Difference> differences;
  for (const Row& row : before.rows) {
    const auto found = new_rows.find(row.name);
    if (found != new_rows.end()) {
      CompareRows(row, *found->second, &differences);
      new_rows.erase(found);
    } else if (benches.count(row.bench) > 0) {
      differences.push_back({.name = row.name, .metric = "", .verdict = Verdict::kMissing, .before = {}, .after = {}});
    }
  }
  for (const Row& row : after.rows) {
    if (new_rows.count(row.name) == 0) continue;
    differences.push_back({.name = row.name, .metric = "", .verdict = Verdict::kNew, .before = {}, .after = {}});
  }
  return differences;
}

bool HasRegression(const std::vector<Difference>& differences) {
  return std::any_of(differences.begin(), differences.end(),
                     [](const Difference& difference) { return difference.verdict == Verdict::kRegression; });
}

std::string ToText(const std::vector<Difference>& differences) {
  std::map<Verdict, int> counts;
  std::string text;
  for (const Difference& difference : differences) {
    ++counts[difference.verdict];
    if (difference.verdict == Verdict::kSame || difference.verdict == Verdict::kNoise) continue;
    absl::StrAppend(&text, absl::StrFormat("%-8s %s", TextOf(difference.verdict), difference.name));
    if (!difference.metric.empty()) {
      absl::StrAppend(&text, ": ", difference.metric, " ", TextOf(difference.before), " -> ", TextOf(difference.after),
                      ", x ", NumberText(difference.ratio));
    }
    text.append("\n");
  }
  return absl::StrCat(text, counts[Verdict::kRegression], " worse, ", counts[Verdict::kImprovement], " better, ",
                      counts[Verdict::kSame], " the same, ", counts[Verdict::kNoise], " within noise, ",
                      counts[Verdict::kMissing], " missing, ", counts[Verdict::kNew], " new\n");
}

}  // namespace lodestone::bench
