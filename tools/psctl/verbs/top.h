// `psctl top`: a cluster, live.
#pragma once

#include <cstdint>
#include <string>

#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

struct TopOptions {
  std::string address = "127.0.0.1:7000";
  bool json = false;
  int timeout_ms = 2000;
  uint32_t count = 0;  // Frames; 0: until q or Ctrl-C.
};

// Runs it. On a terminal each frame replaces the one before, each second, and the terminal is as it was in the end; q
// or Ctrl-C leaves. Elsewhere frames follow each other as plain text, as JSON as one object a line with the events
// since the one before. Returns the exit code (exit_code.h): of the first answer, if it is an error.
int RunTop(const TopOptions& options);

extern const Verb kTopVerb;

}  // namespace lodestone::psctl
