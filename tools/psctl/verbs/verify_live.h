// `psctl verify --live`: compares every shard with its followers' copies, while the cluster runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/admin.pb.h"
#include "tools/psctl/text/table.h"

namespace lodestone::psctl {

// The answer of one ps for the shards that it owns.
struct LiveReplicas {
  uint32_t server = 0;
  std::string address;
  absl::StatusOr<v1::VerifyReplicasResponse> compared;
};

struct VerifyLiveOptions {
  std::string address = "127.0.0.1:7000";
  bool json = false;
  int timeout_ms = 600'000;
};

// Asks all servers of the cluster of the ps at `options.address`, side by side.
absl::StatusOr<std::vector<LiveReplicas>> CompareReplicas(const VerifyLiveOptions& options);

// How many shards are alike, differ, or have nothing to be compared with.
struct LiveCount {
  size_t equal = 0;
  size_t different = 0;
  size_t missing = 0;
  size_t failed = 0;  // Servers that did not answer.
};
LiveCount Count(const std::vector<LiveReplicas>& replicas);

std::string ToText(const std::vector<LiveReplicas>& replicas, const Painter& paint = Painter());
std::string ToJson(const std::vector<LiveReplicas>& replicas);

// Runs it, with the report on standard output. Returns the exit code (exit_code.h): 0 if every shard has a follower
// that is alike.
int RunVerifyLive(const VerifyLiveOptions& options);

}  // namespace lodestone::psctl
