// `psctl status`: all that one ps knows.
#pragma once

#include <string>

#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

struct StatusOptions {
  std::string address = "127.0.0.1:7000";
  bool json = false;
  int timeout_ms = 2000;
};

// Runs it, with the result on standard output. Returns the exit code (exit_code.h).
int RunStatus(const StatusOptions& options);

extern const Verb kStatusVerb;

}  // namespace lodestone::psctl
