// The scrape configuration, the alerts and the dashboard agree with each other and are what Prometheus takes. (That
// their metrics exist, tests/cluster/prometheus_test.cc asks a cluster.)
#include "tests/configs/monitoring.h"

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/configs/deployment.h"

namespace lodestone {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::IsEmpty;
using testing::Not;

constexpr char kMonitoringFolder[] = "configs/monitoring/";

void ExpectPromtoolTakes(const std::string& arguments) {
  if (!HasProgram("promtool")) GTEST_SKIP() << "promtool is not here; Debian has it in the package prometheus";
  int exit_code = 0;
  const std::string said = RunShell("promtool " + arguments, &exit_code);
  EXPECT_EQ(exit_code, 0) << said;
}

json Dashboard() { return json::parse(ReadProjectFile(std::string(kMonitoringFolder) + "dashboard.json")); }

TEST(Monitoring, PromtoolTakesTheConfiguration) {
  ExpectPromtoolTakes(absl::StrCat("check config ", kMonitoringFolder, "prometheus.yml"));
}

TEST(Monitoring, PromtoolTakesTheAlerts) {
  ExpectPromtoolTakes(absl::StrCat("check rules --lint=all --lint-fatal ", kMonitoringFolder, "alerts.yml"));
}

TEST(Monitoring, TheAlertsFireWhenTheyShouldAndNotOtherwise) {
  ExpectPromtoolTakes(absl::StrCat("test rules ", kMonitoringFolder, "alerts_test.yml"));
}

TEST(Monitoring, EveryAlertHasAnExampleThatSetsItOffAndSaysHowSevereItIs) {
  std::set<std::string> set_off;
  for (const YAML::Node& test : LoadDocuments(std::string(kMonitoringFolder) + "alerts_test.yml").at(0)["tests"]) {
    for (const YAML::Node& each : test["alert_rule_test"]) {
      if (each["exp_alerts"].size() > 0) set_off.insert(each["alertname"].as<std::string>());
    }
  }
  EXPECT_GT(set_off.size(), 10u);
  for (const auto& [alert, expression] : AlertExpressions()) {
    EXPECT_THAT(set_off, Contains(alert));
    EXPECT_TRUE(absl::StrContains(expression, "up{") || !MetricsIn(expression).empty()) << alert;
  }
  for (const YAML::Node& group : LoadDocuments(std::string(kMonitoringFolder) + "alerts.yml").at(0)["groups"]) {
    for (const YAML::Node& rule : group["rules"]) {
      EXPECT_THAT((std::set<std::string>{"critical", "warning"}),
                  Contains(rule["labels"]["severity"].as<std::string>()));
      EXPECT_THAT(rule["annotations"]["summary"].as<std::string>(), Not(IsEmpty()));
      EXPECT_THAT(rule["annotations"]["description"].as<std::string>(), Not(IsEmpty()));
    }
  }
}

TEST(Monitoring, TheJobsHaveTheNamesThatTheAlertsGiveThem) {
  std::set<std::string> jobs;
  for (const YAML::Node& job :
       LoadDocuments(std::string(kMonitoringFolder) + "prometheus.yml").at(0)["scrape_configs"]) {
    jobs.insert(job["job_name"].as<std::string>());
  }
  EXPECT_EQ(jobs, (std::set<std::string>{"lodestone-ps", "lodestone-worker"}));
  bool named = false;
  for (const auto& [alert, expression] : AlertExpressions()) {
    const size_t at = expression.find("job=\"");
    if (at == std::string::npos) continue;
    named = true;
    EXPECT_THAT(jobs, Contains(expression.substr(at + 5, expression.find('"', at + 5) - at - 5))) << alert;
  }
  EXPECT_TRUE(named);
}

TEST(Dashboard, HasPanelsThatGrafanaCanPlace) {
  const json dashboard = Dashboard();
  EXPECT_TRUE(dashboard.at("id").is_null()) << "the one that imports it gives it one";
  std::set<int> ids;
  std::set<std::pair<int, int>> taken;
  int bottom = 0;
  for (const json& panel : dashboard.at("panels")) {
    const std::string title = panel.at("title");
    EXPECT_TRUE(ids.insert(panel.at("id").get<int>()).second) << title;
    const json& place = panel.at("gridPos");
    const int x = place.at("x"), y = place.at("y"), w = place.at("w"), h = place.at("h");
    EXPECT_LE(x + w, 24) << title;
    for (int column = x; column < x + w; ++column) {
      for (int line = y; line < y + h; ++line) EXPECT_TRUE(taken.emplace(column, line).second) << title;
    }
    bottom = std::max(bottom, y + h);
  }
  EXPECT_EQ(taken.size(), static_cast<size_t>(bottom * 24)) << "there is a hole";
}

TEST(Dashboard, TakesItsDataFromTheVariable) {
  const json dashboard = Dashboard();
  std::set<std::string> variables;
  for (const json& variable : dashboard.at("templating").at("list")) variables.insert(variable.at("name"));
  EXPECT_EQ(variables, (std::set<std::string>{"datasource", "job", "instance"}));
  for (const json& panel : dashboard.at("panels")) {
    if (panel.at("type") == "row") continue;
    EXPECT_EQ(panel.at("datasource").at("uid"), "${datasource}") << panel.at("title");
    for (const json& target : panel.at("targets")) EXPECT_EQ(target.at("datasource").at("uid"), "${datasource}");
  }
}

TEST(Dashboard, ShowsWhatThereIsToSee) {
  const json dashboard = Dashboard();
  std::set<std::string> rows;
  for (const json& panel : dashboard.at("panels")) {
    if (panel.at("type") == "row") rows.insert(panel.at("title"));
  }
  EXPECT_EQ(rows, (std::set<std::string>{"Cluster", "Throughput", "Latency", "Workers", "Memory and tables",
                                         "Log and checkpoints", "Replication", "Processes"}));
}

TEST(Dashboard, PromtoolTakesItsExpressions) {
  // As rules; what Grafana would put into them stands there already.
  std::string rules = "groups:\n- name: dashboard\n  rules:\n";
  int number = 0;
  for (const auto& [panel, expression] : DashboardExpressions()) {
    EXPECT_FALSE(MetricsIn(expression).empty()) << panel;
    absl::StrAppend(&rules, "  - record: panel", ++number, "\n    expr: '",
                    absl::StrReplaceAll(expression, {{"$__rate_interval", "5m"}, {"$job", ".*"}, {"$instance", ".*"}}),
                    "'\n");
  }
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/dashboard_rules.yml";
  std::ofstream(path) << rules;
  EXPECT_GT(number, 40);
  ExpectPromtoolTakes("check rules " + path);
}

}  // namespace
}  // namespace lodestone
