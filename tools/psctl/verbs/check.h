// `psctl check`: validation of a configuration, printed with all defaults.
#pragma once

#include <string>
#include <vector>

#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

struct CheckOptions {
  std::string path;
  std::vector<std::string> sets;  // "a.b=VALUE"
  bool json = false;
};

// Runs it, with the effective configuration on standard output. Returns the exit code (exit_code.h).
int RunCheck(const CheckOptions& options);

extern const Verb kCheckVerb;

}  // namespace lodestone::psctl
