// `psctl set`: has every ps of a cluster change settings of tables while they are trained, or prints what they are.
// Where steps begin or end by that (sync, tokens), it has training pause meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/admin.pb.h"
#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

struct SetOptions {
  std::string address = "127.0.0.1:7000";
  std::string table;                     // Several: with commas between them.
  bool all_tables = false;               // Instead; `table` may be the first assignment then.
  std::vector<std::string> assignments;  // "optimizer.learning_rate=0.01".
  std::vector<std::string> released;     // Paths.
  bool json = false;
  int timeout_ms = 60'000;
};

// The request that the options stand for, but for the table. INVALID_ARGUMENT: a field or value is wrong, with the
// nearest name.
absl::StatusOr<v1::SetTableRequest> MakeSetRequest(const SetOptions& options);

// Runs it, with the result on standard output. Returns the exit code (exit_code.h): 1 if a ps failed.
int RunSet(const SetOptions& options);

extern const Verb kSetVerb;

}  // namespace lodestone::psctl
