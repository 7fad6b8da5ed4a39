#include "common/base/version.h"

#include "gtest/gtest.h"

namespace lodestone {
namespace {

TEST(Version, TellsTheCommitWhereTheBuildKnowsIt) {
  const std::string commit = kCommit;
  EXPECT_EQ(VersionText(), std::string(kVersion) + (commit.empty() ? " (commit unknown)" : " (" + commit + ")"));
}

// Or every commit would link all programs and tests anew.
TEST(Version, OnlyReleaseBuildsKnowTheCommit) { EXPECT_STREQ(kCommit, ""); }

}  // namespace
}  // namespace lodestone
