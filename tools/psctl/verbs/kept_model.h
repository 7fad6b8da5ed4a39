// The model of a run of psctl local: what it starts from, and the file that it is written to at the end.
//
// Not thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/config.pb.h"

namespace lodestone::psctl {

class KeptModel {
 public:
  // `out`: FILE.safetensors or FILE.npz to be written; `from`: FILE.safetensors to start from. Either may be empty.
  // `config` is the run's.
  KeptModel(std::string out, std::string from, const v1::Config& config);

  // Checks both, and makes the checkpoint to start from; `folder` is for what lives as long as the run.
  // FAILED_PRECONDITION if server.data_dir, in which a run goes on, is not empty and another model is to start in it;
  // and if the best model is to be kept, and nothing is.
  absl::Status Prepare(const std::string& folder);
  // What the servers' configuration says beside the run's: "a.b=VALUE" each. After Prepare.
  const std::vector<std::string>& sets() const { return sets_; }
  // Writes the file, if one is wanted, once the servers have ended: of the checkpoint `best`
  // (train.validate.keep_best), or, if that is empty, of what the servers had at their end.
  absl::Status Keep(const std::string& best);
  // What Keep wrote the file from, or could not: a checkpoint, or the folder of them.
  std::string Source() const;
  // Whether that is in the folder that Prepare was given.
  bool IsInRunFolder() const { return config_.server().data_dir().empty() && config_.checkpoint().dir().empty(); }
  // What to say at the end of a run: where the model is, or how to keep it.
  std::string Report() const;

 private:
  absl::Status Start();
  std::string CheckpointDir() const;

  const std::string out_;
  const std::string from_;
  const v1::Config& config_;
  std::string data_dir_;
  std::vector<std::string> sets_;
  std::string best_;  // The checkpoint that the file is written from, if it is that of the best model.
};

}  // namespace lodestone::psctl
