// What configs/monitoring asks of metrics.
#pragma once

#include <map>
#include <set>
#include <string>

namespace lodestone {

// The expressions of alerts.yml, by the alert's name, and of dashboard.json, by the panel's title and a letter.
std::map<std::string, std::string> AlertExpressions();
std::map<std::string, std::string> DashboardExpressions();

// The metrics that an expression names: lodestone_... and process_..., with _bucket and so on.
std::set<std::string> MetricsIn(const std::string& expression);

}  // namespace lodestone
