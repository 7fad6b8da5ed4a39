// `psctl check`: is this configuration right, and what are its defaults?
#pragma once

#include <string>
#include <vector>

namespace lodestone::psctl {

struct CheckOptions {
  std::string path;
  std::vector<std::string> sets;  // "a.b=VALUE"
  bool json = false;
};

// Runs it, with the effective configuration on standard output. Returns the exit code (outcome.h).
int RunCheck(const CheckOptions& options);

}  // namespace lodestone::psctl
