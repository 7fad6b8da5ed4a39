// Cross-field checks of a configuration; the bounds of single fields are in its protos.
#pragma once

#include <vector>

#include "common/config/config_problem.h"
#include "proto/config.pb.h"

namespace lodestone {

// All errors; empty if there are none. Thread-safe.
std::vector<ConfigProblem> CheckConfig(const v1::Config& config);
// What is missing before anything can be trained.
std::vector<ConfigProblem> CheckTraining(const v1::Config& config);
// Those of the section security alone.
std::vector<ConfigProblem> CheckSecurity(const v1::SecurityConfig& security);
std::vector<ConfigProblem> CheckEtcdTls(const v1::EtcdTlsConfig& etcd_tls);

}  // namespace lodestone
