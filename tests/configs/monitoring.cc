#include "tests/configs/monitoring.h"

#include <regex>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/configs/deployment.h"

namespace lodestone {

std::map<std::string, std::string> AlertExpressions() {
  std::map<std::string, std::string> expressions;
  for (const YAML::Node& group : LoadDocuments("configs/monitoring/alerts.yml").at(0)["groups"]) {
    for (const YAML::Node& rule : group["rules"]) {
      const std::string name = rule["alert"].as<std::string>();
      EXPECT_TRUE(expressions.emplace(name, rule["expr"].as<std::string>()).second) << name << " is there twice";
    }
  }
  return expressions;
}

std::map<std::string, std::string> DashboardExpressions() {
  std::map<std::string, std::string> expressions;
  const auto dashboard = nlohmann::json::parse(ReadProjectFile("configs/monitoring/dashboard.json"));
  for (const auto& panel : dashboard.at("panels")) {
    if (!panel.contains("targets")) continue;
    for (const auto& target : panel.at("targets")) {
      const std::string name = panel.at("title").get<std::string>() + " " + target.at("refId").get<std::string>();
      EXPECT_TRUE(expressions.emplace(name, target.at("expr").get<std::string>()).second) << name << " is there twice";
    }
  }
  for (const auto& annotation : dashboard.at("annotations").at("list")) {
    expressions[annotation.at("name").get<std::string>()] = annotation.at("expr").get<std::string>();
  }
  return expressions;
}

std::set<std::string> MetricsIn(const std::string& expression) {
  const std::string without_strings = std::regex_replace(expression, std::regex("\"[^\"]*\""), "\"\"");
  const std::regex metric("\\b(lodestone|process)_[a-z0-9_]+");
  std::set<std::string> metrics;
  for (std::sregex_iterator at(without_strings.begin(), without_strings.end(), metric), end; at != end; ++at) {
    metrics.insert(at->str());
  }
  return metrics;
}

}  // namespace lodestone
