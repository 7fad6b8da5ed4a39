// A trained model by what the command line calls it: a file, a checkpoint's folder, or a running cluster.
//
// Thread safety: not thread-safe; makes a file in the temporary folder and removes it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tools/psctl/model/parameter_source.h"

namespace CLI {
class App;
}  // namespace CLI

namespace lodestone::psctl {

struct ModelOptions {
  std::string model;             // FILE.safetensors, the folder of a checkpoint, or host:port of a ps.
  int timeout_ms = 10'000;       // For a cluster to answer.
  bool follow = false;           // Whether a cluster's broadcasts are followed.
  int pull_timeout_ms = 60'000;  // For rows of a cluster, while servers are away.
};

// The argument MODEL, and --timeout.
void AddModel(CLI::App* command, ModelOptions* options);

// Opens it. Errors name the file or the address, and say what to do.
absl::StatusOr<std::unique_ptr<ParameterSource>> OpenModel(const ModelOptions& options);

}  // namespace lodestone::psctl
