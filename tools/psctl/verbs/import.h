// `psctl import`: a checkpoint made of tensors, as export.h names them, for a cluster to start from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

struct ImportOptions {
  std::string file;               // FILE.safetensors.
  std::string into;               // DIR/NAME of the checkpoint.
  std::string config_path;        // The cluster's: name, number of shards, seed.
  std::vector<std::string> sets;  // "a.b=VALUE"
  // A checkpoint whose tables it is to have. Empty: those that psctl export noted in the file.
  std::string like;
  bool json = false;  // Print the result as JSON.
};

struct ImportResult {
  std::string path;
  uint64_t bytes = 0;
  std::vector<std::string> tables;   // With values from the file.
  std::vector<std::string> initial;  // Without: as they are made.
  std::vector<std::string> unused;   // Tensors of optimizers' state: the optimizers start from scratch.
};

// Writes the checkpoint. Errors name the file, and the tensor or table.
absl::StatusOr<ImportResult> ImportCheckpoint(const ImportOptions& options, const v1::Config& config);

// Runs it, with the result on standard output. Returns the exit code (exit_code.h).
int RunImport(const ImportOptions& options);

extern const Verb kImportVerb;

}  // namespace lodestone::psctl
