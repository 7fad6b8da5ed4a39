// The restart of a real program: it prints the core types that OpenBLAS takes, one for each time that it is loaded.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/blas_core.h"

namespace lodestone::kernels::cpu {
namespace {

// What `command` prints, and its exit status.
std::pair<std::string, int> OutputOf(const std::string& command) {
  std::string text;
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  for (int c = 0; pipe != nullptr && (c = fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
  return {text, pipe == nullptr ? -1 : pclose(pipe)};
}

std::vector<std::string> CoresIn(const std::string& text) {
  std::vector<std::string> cores;
  for (size_t at = text.find("Core: "); at != std::string::npos; at = text.find("Core: ", at + 1)) {
    cores.push_back(text.substr(at + 6, text.find('\n', at) - at - 6));
  }
  return cores;
}

class RestartTest : public ::testing::TestWithParam<std::string> {};

TEST_P(RestartTest, EndsWithACoreTypeThatSuitsTheProcessorAndKeepsItsArguments) {
  const auto [text, status] = OutputOf("env -u OPENBLAS_CORETYPE OPENBLAS_VERBOSE=2 " + GetParam() + " --version");
  EXPECT_EQ(status, 0) << text;
  EXPECT_NE(text.find("(commit "), std::string::npos) << "its version: " << text;
  const std::vector<std::string> cores = CoresIn(text);
  ASSERT_TRUE(cores.size() == 1 || cores.size() == 2) << text;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  EXPECT_EQ(BetterCoreType(cores.back(), avx2, false), "") << text;
  EXPECT_EQ(cores.size() == 2, !BetterCoreType(cores.front(), avx2, false).empty()) << text;
#endif
}

TEST_P(RestartTest, LeavesAChoiceAlone) {
  const auto [text, status] = OutputOf("OPENBLAS_CORETYPE=Nehalem OPENBLAS_VERBOSE=2 " + GetParam() + " --version");
  EXPECT_EQ(status, 0) << text;
  EXPECT_EQ(CoresIn(text), std::vector<std::string>{"Nehalem"}) << text;
}

INSTANTIATE_TEST_SUITE_P(Programs, RestartTest, ::testing::Values("worker/worker", "tools/psctl/psctl"));

}  // namespace
}  // namespace lodestone::kernels::cpu
