// Runs psctl's command line within a test, as main does.
#pragma once

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tools/psctl/command_line.h"
#include "tools/psctl/text/style.h"

namespace lodestone::psctl {

struct PsctlCall {
  // After the program's name.
  explicit PsctlCall(const std::vector<std::string>& arguments) {
    std::vector<const char*> argv = {"psctl"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    exit_code = CommandLine("psctl 1.2.3").Run(static_cast<int>(argv.size()), argv.data());
    SetColorMode(ColorMode::kAuto);
    errors = testing::internal::GetCapturedStderr();
    output = testing::internal::GetCapturedStdout();
  }

  int exit_code = -1;
  std::string output;
  std::string errors;
};

}  // namespace lodestone::psctl
