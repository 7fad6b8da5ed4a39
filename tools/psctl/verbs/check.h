// `psctl check`: validation of a configuration, printed with all defaults; with --data a look at its data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

struct CheckOptions {
  std::string path;
  std::vector<std::string> sets;  // "a.b=VALUE"
  bool json = false;
  bool data = false;            // Looks at the first rows of the data instead (data_check.h),
  uint64_t rows_max = 100'000;  // at most so many.
};

// Runs it, with the effective configuration on standard output. Returns the exit code (exit_code.h).
int RunCheck(const CheckOptions& options);

extern const Verb kCheckVerb;

}  // namespace lodestone::psctl
