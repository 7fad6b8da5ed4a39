// `psctl checkpoint`: has every ps of a cluster write a checkpoint of one name.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/admin.pb.h"
#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

// How one ps took it.
struct CheckpointPart {
  uint32_t server = 0;
  std::string address;
  absl::StatusOr<v1::CheckpointResponse> written;
};

// "manual-20261121-041530", of a time in UTC.
std::string ManualCheckpointName(absl::Time now);

// Asks all servers of the cluster of the ps at `address`, which must be ps 0, at the same time. By server. An error if
// the servers cannot be known; those of single servers are in their parts. A server whose part is in `before`, of the
// same name, replaces it.
absl::StatusOr<std::vector<CheckpointPart>> CheckpointCluster(const std::string& address, const std::string& name,
                                                              int timeout_ms,
                                                              const std::vector<CheckpointPart>& before = {});

// What the checkpoint lacks; OK: all servers wrote their part, and together they have all shards, as far as they tell.
// ALREADY_EXISTS: some had one of that name, so that the parts that were written now are of another moment, and the
// checkpoint is not to be loaded. ABORTED: shards moved meanwhile, and are in no part.
absl::Status JudgeCheckpoint(const std::string& name, const std::vector<CheckpointPart>& parts);

struct CheckpointOptions {
  std::string address = "127.0.0.1:7000";
  std::string name;  // Empty: ManualCheckpointName.
  bool json = false;
  int timeout_ms = 600'000;
};

// Runs it, with the result on standard output. If shards moved and are in no part, the parts are replaced, twice at
// most. Returns the exit code (exit_code.h): 1 if a ps failed, or the checkpoint is not complete.
int RunCheckpoint(CheckpointOptions options);

extern const Verb kCheckpointVerb;

}  // namespace lodestone::psctl
