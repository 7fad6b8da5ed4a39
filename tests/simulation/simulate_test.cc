// The program: seeds one after the other, and several at a time.
#include <stdlib.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace lodestone::simulation {
namespace {

struct Outcome {
  int exit_code = -1;
  std::string output;
};

Outcome Simulate(const std::string& flags) {
  const std::string program =
      absl::StrCat(getenv("TEST_SRCDIR"), "/", getenv("TEST_WORKSPACE"), "/tests/simulation/simulate");
  Outcome outcome;
  FILE* const pipe = popen(absl::StrCat(program, " ", flags, " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  char bytes[4096];
  for (size_t n = 0; (n = fread(bytes, 1, sizeof(bytes), pipe)) > 0;) outcome.output.append(bytes, n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

// What was simulated, without how long that took, and what a sanitizer says before.
std::string TotalsOf(const std::string& output) {
  const size_t begin = output.find("5 seeds passed: "), seconds = output.find(" in ", begin);
  const size_t rest = output.find("x as fast)", begin);
  if (begin == std::string::npos || seconds == std::string::npos || rest == std::string::npos) return output;
  return output.substr(begin, seconds - begin) + output.substr(rest);
}

TEST(Simulate, SeveralSeedsAtATimeComeToWhatTheyComeToOneAfterTheOther) {
  const Outcome alone = Simulate("--seeds 5 --faults-ms 500");
  EXPECT_EQ(alone.exit_code, 0) << alone.output;
  EXPECT_TRUE(absl::StartsWith(TotalsOf(alone.output), "5 seeds passed: ")) << alone.output;
  for (const int jobs : {2, 8}) {
    const Outcome together = Simulate(absl::StrCat("--seeds 5 --faults-ms 500 --jobs ", jobs));
    EXPECT_EQ(together.exit_code, 0) << together.output;
    EXPECT_EQ(TotalsOf(together.output), TotalsOf(alone.output));
  }
}

TEST(Simulate, RefusesNoJobs) { EXPECT_NE(Simulate("--jobs 0").exit_code, 0); }

}  // namespace
}  // namespace lodestone::simulation
