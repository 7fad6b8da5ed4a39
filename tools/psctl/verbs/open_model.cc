#include "tools/psctl/verbs/open_model.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "CLI/App.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/status.h"
#include "tools/psctl/model/model_cluster.h"
#include "tools/psctl/model/model_file.h"
#include "tools/psctl/verbs/export.h"
#include "tools/psctl/verbs/flags.h"

namespace lodestone::psctl {
namespace {

// The model of a checkpoint's folder, which becomes a file for the while that takes.
absl::StatusOr<std::unique_ptr<ModelFile>> OpenCheckpoint(const std::string& path) {
  std::error_code error;
  std::string name = (std::filesystem::temp_directory_path(error) / "lodestone-XXXXXX.safetensors").string();
  constexpr int kSuffix = 12;
  const int fd = mkstemps(name.data(), kSuffix);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("making a file ", name));
  close(fd);
  ExportOptions options;
  options.path = path;
  options.out = name;
  const auto open = [&]() -> absl::StatusOr<std::unique_ptr<ModelFile>> {
    LODESTONE_RETURN_IF_ERROR(ExportCheckpoint(options));
    return ModelFile::Open(name, path);
  };
  absl::StatusOr<std::unique_ptr<ModelFile>> model = open();
  unlink(name.c_str());  // What is mapped stays.
  return model;
}

}  // namespace

void AddModel(CLI::App* command, ModelOptions* options) {
  command
      ->add_option(
          "MODEL", options->model,
          "FILE.safetensors of psctl local --model or psctl export, a checkpoint's folder, or host:port of any "
          "ps of a running cluster")
      ->required()
      ->type_name("FILE|HOST:PORT");
  AddTimeout(command, &options->timeout_ms, "How long to wait for a cluster to answer");
}

absl::StatusOr<std::unique_ptr<ParameterSource>> OpenModel(const ModelOptions& options) {
  std::error_code error;
  if (!std::filesystem::exists(options.model, error) && ParseHostPort(options.model).ok()) {
    return ModelCluster::Open(
        options.model,
        {.follow = options.follow, .timeout_ms = options.timeout_ms, .pull_timeout_ms = options.pull_timeout_ms});
  }
  if (std::filesystem::is_directory(options.model, error)) return OpenCheckpoint(options.model);
  return ModelFile::Open(options.model, options.model);
}

}  // namespace lodestone::psctl
