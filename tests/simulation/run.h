// One simulated life of a cluster: all that happens in it is drawn from its seed.
#pragma once

#include <cstdint>
#include <string>

namespace lodestone::simulation {

struct RunOptions {
  uint64_t seed = 1;
  int64_t faults_ms = 12'000;  // How long faults go on, in simulated time; then all is left alone until it has healed.
  bool trace = false;          // To standard output.
  std::string folder;          // For the files; in memory best. Made, and removed.
};

struct RunResult {
  std::string failure;  // Empty: all was as promised.
  uint64_t hash = 0;    // Of the trace.
  std::string shape;
  double simulated_seconds = 0;
  uint64_t events = 0;
  uint64_t faults = 0;
  uint64_t times_back = 0;  // To checkpoints.
  uint64_t pushes = 0;
  uint64_t acknowledged = 0;
  uint64_t resent = 0;
};

RunResult Run(const RunOptions& options);

}  // namespace lodestone::simulation
