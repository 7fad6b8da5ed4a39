// Ps processes that die and come back: every acknowledged push is there once.
#include "gtest/gtest.h"
#include "tests/chaos/short_run.h"
#include "tests/common/telemetry/metric_text.h"

namespace lodestone::chaos {
namespace {

class Kill : public testing::TestWithParam<uint64_t> {};

TEST_P(Kill, TwentyDeathsOfAnyPsLoseAndDoubleNothing) {
  const MetricGrowth growth;
  const Report report =
      RunShortly("kill", ShortOptions(GetParam(), {FaultKind::kKill, FaultKind::kKillAgain, FaultKind::kKillAll}, 20));
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.faults(), 20);
  // Some pushes are large, and lay in shared memory, as what audits pulled did.
  EXPECT_GT(growth.Of("lodestone_worker_shared_bytes_total{direction=\"push\"}"), 0);
  EXPECT_GT(growth.Of("lodestone_worker_shared_bytes_total{direction=\"pull\"}"), 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Kill, testing::Values(20'261'127, 20'261'128));

TEST(Kill, DeathsInCheckpointsAndOrderlyEndsLoseAndDoubleNothing) {
  const Report report =
      RunShortly("checkpoint", ShortOptions(20'261'129,
                                            {FaultKind::kKillInCheckpoint, FaultKind::kCheckpoint,
                                             FaultKind::kTerminate, FaultKind::kKill, FaultKind::kClient},
                                            20));
  EXPECT_TRUE(report.ok());
}

TEST(Kill, APsComesBackAtAnotherAddress) {
  RunOptions options = ShortOptions(20'261'130, {FaultKind::kMove, FaultKind::kKill}, 5);
  options.servers = 3;
  options.sets = {"coordinator.lease_ms=3000"};  // The place is held that long for the address before.
  EXPECT_TRUE(RunShortly("move", options).ok());
}

TEST(Kill, TornTailsAreCutAndFlippedBitsRefused) {
  const Report report = RunShortly(
      "damage",
      ShortOptions(20'261'131, {FaultKind::kTear, FaultKind::kFlip, FaultKind::kFlipFile, FaultKind::kKill}, 14));
  EXPECT_TRUE(report.ok());
  EXPECT_GT(report.recoveries_ms.at(FaultKind::kFlip).size(), 0);
}

TEST(Kill, AFullDiskHoldsPushesUpAndNothingElse) {
  const Report report = RunShortly("full", ShortOptions(20'261'132, {FaultKind::kDiskFull, FaultKind::kKill}, 6));
  EXPECT_TRUE(report.ok());
}

}  // namespace
}  // namespace lodestone::chaos
