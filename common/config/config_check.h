// What the schema cannot say about a configuration: how its fields fit together.
#pragma once

#include <string>
#include <vector>

#include "proto/config.pb.h"

namespace lodestone {

// One thing that is wrong with a configuration.
struct ConfigProblem {
  std::string path;  // Of the field: "server.advertise", "data.train[1]".
  std::string what;
};

// All that is wrong; empty if nothing is. Thread-safe.
std::vector<ConfigProblem> CheckConfig(const v1::Config& config);
// What of it is about security alone.
std::vector<ConfigProblem> CheckSecurity(const v1::SecurityConfig& security);

}  // namespace lodestone
