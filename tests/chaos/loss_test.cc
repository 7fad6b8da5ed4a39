// The suite itself: what is lost is noticed.
#include "gtest/gtest.h"
#include "tests/chaos/short_run.h"

namespace lodestone::chaos {
namespace {

TEST(Loss, AKilledPsWithoutADataDirIsNoticed) {
  RunOptions options = ShortOptions(20'261'126, {FaultKind::kKill}, 1);
  options.durable = false;
  const Report report = RunShortly("memory", options);
  EXPECT_FALSE(report.ok());
  EXPECT_FALSE(report.failure.empty());
  EXPECT_GT(report.verdict.lost, 0);
  EXPECT_EQ(report.verdict.doubled, 0);
}

}  // namespace
}  // namespace lodestone::chaos
