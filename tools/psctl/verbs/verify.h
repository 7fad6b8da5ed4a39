// `psctl verify`: reads checkpoints to their last byte, and restores every shard of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/psctl/text/table.h"
#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

// The result for one checkpoint.
struct VerifiedCheckpoint {
  std::string name;
  bool periodic = false;  // One ps's alone: it need not hold all shards.
  uint64_t created_ms = 0;
  std::vector<uint32_t> servers;  // Those with a manifest.
  uint32_t servers_total = 0;     // Of the cluster that wrote it.
  std::vector<uint32_t> shards;   // Those that are whole.
  uint32_t shards_total = 0;
  std::vector<uint32_t> shards_missing;
  uint64_t bytes = 0;               // Of its files, and of those that it needs of others.
  std::vector<std::string> needs;   // The checkpoints that those are in.
  std::vector<std::string> damage;  // A line for each file that is not as it was written.

  // "whole", "damaged", or "incomplete" if it should hold shards that it does not.
  const char* state() const;
};

struct VerifyReport {
  std::vector<VerifiedCheckpoint> checkpoints;  // By name.
  std::vector<uint32_t> shards_missing;         // That no checkpoint holds whole, if all were looked at.

  bool ok() const;
};

// Looks at a checkpoint, or at all in a folder of them. An error if there is none.
absl::StatusOr<VerifyReport> VerifyCheckpoints(const std::string& path);

std::string ToText(const VerifyReport& report, const Painter& paint = Painter());
std::string ToJson(const VerifyReport& report);

struct VerifyOptions {
  std::string path;  // Empty: none was given, which is an error.
  bool json = false;
  bool live = false;  // Not this, but verify_live.h.
};

// Runs it, with the report on standard output. Returns the exit code (exit_code.h): 1 if anything is not whole.
int RunVerify(const VerifyOptions& options);

extern const Verb kVerifyVerb;

}  // namespace lodestone::psctl
