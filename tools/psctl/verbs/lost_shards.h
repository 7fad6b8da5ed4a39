// `psctl promote` and `psctl accept-loss`: what an operator decides of shards that no ps serves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

struct LostShardsOptions {
  std::string address = "127.0.0.1:7000";
  std::vector<uint32_t> servers;
  bool json = false;
  int timeout_ms = 10'000;
};

// Ask the coordinator for each server in turn, and print what it answers. Return the exit code (exit_code.h): 1 if one
// was refused.
int RunPromote(const LostShardsOptions& options);
int RunAcceptLoss(const LostShardsOptions& options);

extern const Verb kPromoteVerb;
extern const Verb kAcceptLossVerb;

}  // namespace lodestone::psctl
