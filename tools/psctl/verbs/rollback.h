// `psctl rollback`: has every ps of a cluster bring one table back to what it was.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/admin.pb.h"
#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

// The answer of one ps.
struct RollbackPart {
  uint32_t server = 0;
  std::string address;
  absl::StatusOr<v1::RollbackResponse> done;
};

// `to`: a version if it has digits only, else a checkpoint's name. INVALID_ARGUMENT if it is neither.
absl::StatusOr<v1::RollbackRequest> MakeRollbackRequest(const std::string& table, const std::string& to);

// Asks all servers of the cluster of the ps at `address`, which must be ps 0, at the same time. By server. An error if
// the servers cannot be known; those of single servers are in their parts.
absl::StatusOr<std::vector<RollbackPart>> RollBackCluster(const std::string& address,
                                                          const v1::RollbackRequest& request, int timeout_ms);

struct RollbackOptions {
  std::string address = "127.0.0.1:7000";
  std::string table;
  std::string to;
  bool json = false;
  int timeout_ms = 600'000;
};

// Runs it, with the result on standard output. Returns the exit code (exit_code.h): 1 if a ps failed, or no shard went
// back.
int RunRollback(const RollbackOptions& options);

extern const Verb kRollbackVerb;

}  // namespace lodestone::psctl
