// Cross-field checks of a configuration; the bounds of single fields are in its protos.
#pragma once

#include <string>
#include <vector>

#include "proto/config.pb.h"

namespace lodestone {

// An error in a configuration.
struct ConfigProblem {
  std::string path;  // Of the field: "server.advertise", "data.train[1]".
  std::string what;
};

// All errors; empty if there are none. Thread-safe.
std::vector<ConfigProblem> CheckConfig(const v1::Config& config);
// Those of the section security alone.
std::vector<ConfigProblem> CheckSecurity(const v1::SecurityConfig& security);

}  // namespace lodestone
