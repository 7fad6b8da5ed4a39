#include "tools/psctl/verbs/kept_model.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tools/psctl/verbs/export.h"
#include "tools/psctl/verbs/import.h"

namespace lodestone::psctl {
namespace {

constexpr char kStartName[] = "start";  // Of the checkpoint that a run starts from.

}  // namespace

KeptModel::KeptModel(std::string out, std::string from, const v1::Config& config)
    : out_(std::move(out)), from_(std::move(from)), config_(config), data_dir_(config.server().data_dir()) {}

std::string KeptModel::CheckpointDir() const {
  if (!config_.checkpoint().dir().empty()) return config_.checkpoint().dir();
  return data_dir_ + "/checkpoints";
}

absl::Status KeptModel::Prepare(const std::string& folder) {
  const bool keeps = !out_.empty() || !data_dir_.empty() || !config_.checkpoint().dir().empty();
  if (config_.train().validate().keep_best() && !keeps) {
    return absl::FailedPreconditionError(
        "train.validate.keep_best has nowhere to keep the best model: add --model FILE.safetensors, or set "
        "server.data_dir");
  }
  if (out_.empty() && from_.empty()) return absl::OkStatus();
  if (data_dir_.empty()) {
    data_dir_ = folder + "/data";
    sets_ = {"server.data_dir=" + data_dir_, "checkpoint.every_ms=0"};
    // Nothing is to outlive the run but the model, so that no push need be logged.
    if (config_.cluster().replicas() == 1) sets_.emplace_back("cluster.durability=memory");
  }
  sets_.emplace_back("checkpoint.at_exit=true");
  return from_.empty() ? absl::OkStatus() : Start();
}

absl::Status KeptModel::Start() {
  std::error_code error;
  if (!config_.server().data_dir().empty() && std::filesystem::exists(data_dir_, error) &&
      !std::filesystem::is_empty(data_dir_, error)) {
    return absl::FailedPreconditionError(
        absl::StrCat("a run in ", data_dir_, " goes on with what is there; to start from ", from_,
                     " instead, set another server.data_dir, and without --from it goes on"));
  }
  ImportOptions import;
  import.file = from_;
  import.into = absl::StrCat(CheckpointDir(), "/", kStartName);
  LODESTONE_RETURN_IF_ERROR(ImportCheckpoint(import, config_).status());
  sets_.push_back(absl::StrCat("checkpoint.load=", kStartName));
  return absl::OkStatus();
}

absl::Status KeptModel::Keep(const std::string& best) {
  best_ = best;
  if (out_.empty()) return absl::OkStatus();
  ExportOptions options;
  options.path = Source();
  options.out = out_;
  return ExportCheckpoint(options);
}

std::string KeptModel::Source() const {
  return best_.empty() ? CheckpointDir() : absl::StrCat(CheckpointDir(), "/", best_);
}

std::string KeptModel::Report() const {
  const std::string which = best_.empty() ? "the model is " : absl::StrCat("the best model, of ", best_, ", is ");
  if (absl::EndsWith(out_, ".npz")) return absl::StrCat(which, out_, ", for NumPy");
  if (!out_.empty()) return absl::StrCat(which, out_, " (psctl predict ", out_, " --data FILE --out FILE)");
  if (!best_.empty()) {
    return absl::StrCat("the best model is the checkpoint ", Source(), " (psctl export ", Source(),
                        " --out FILE.safetensors)");
  }
  if (!config_.server().data_dir().empty()) {
    return absl::StrCat("the model is in ", data_dir_, ", where the next run goes on (psctl export ", Source(),
                        " --out FILE.safetensors)");
  }
  return "the model is not kept; --model FILE.safetensors keeps it";
}

}  // namespace lodestone::psctl
