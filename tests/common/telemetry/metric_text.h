// Parses the metrics that a process exposes to Prometheus.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/telemetry/metrics.h"
#include "gtest/gtest.h"

namespace lodestone {

// The series of such a text and their values: `lodestone_ps_payload_bytes_total{direction="push",codec="f32"}`.
class MetricText {
 public:
  explicit MetricText(const std::string& text) {
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      const size_t space = line.rfind(' ');
      if (line.empty() || line[0] == '#' || space == absl::string_view::npos) continue;
      const std::string series(line.substr(0, space));
      double value = 0;
      EXPECT_TRUE(absl::SimpleAtod(line.substr(space + 1), &value)) << line;
      EXPECT_TRUE(values_.emplace(series, value).second) << series << " is there twice";
    }
  }
  // Of this process's variables.
  static MetricText Now() {
    MetricFamilies families;
    families.AddVariables();
    return MetricText(families.Text());
  }

  bool Has(const std::string& series) const { return values_.count(series) > 0; }
  // The test fails if it is not there.
  double Of(const std::string& series) const {
    const auto found = values_.find(series);
    EXPECT_NE(found, values_.end()) << "there is no " << series;
    return found == values_.end() ? 0 : found->second;
  }
  // Names, without labels.
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& [series, value] : values_) names.insert(series.substr(0, series.find('{')));
    return names;
  }

 private:
  std::map<std::string, double> values_;
};

// How much a series of this process's variables has grown since this was made.
class MetricGrowth {
 public:
  double Of(const std::string& series) const { return MetricText::Now().Of(series) - before_.Of(series); }

 private:
  const MetricText before_ = MetricText::Now();
};

}  // namespace lodestone
