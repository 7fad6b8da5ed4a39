// psctl replay: rebuilds what a ps held from a checkpoint and its log, offline.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

struct ReplayOptions {
  std::string log_dir;
  std::string from;  // A checkpoint's folder, or the folder of all; empty: from nothing.
  uint64_t until = std::numeric_limits<uint64_t>::max();
  std::string into;  // Where to write what was rebuilt, as a checkpoint: DIR/NAME; empty: nowhere.
  bool cut_damaged = false;
  bool json = false;
};

// Returns the exit code (exit_code.h).
int RunReplay(const ReplayOptions& options);

extern const Verb kReplayVerb;

}  // namespace lodestone::psctl
