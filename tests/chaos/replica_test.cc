// Clusters whose shards have followers: ps that die with their disks, sleep or are cut off cost no acknowledged push.
#include "gtest/gtest.h"
#include "tests/chaos/short_run.h"

namespace lodestone::chaos {
namespace {

RunOptions WithFollowers(uint64_t seed, std::vector<FaultKind> kinds, uint64_t faults) {
  RunOptions options = ShortOptions(seed, std::move(kinds), faults);
  options.replicas = true;
  options.servers = 3;
  options.lease_ms = 3000;  // Clients must keep theirs on a machine that is busy with other tests.
  options.audit_every = 5;
  return options;
}

TEST(Replica, PsThatStayDeadWithoutTheirDisksLoseAndDoubleNothing) {
  const Report report =
      RunShortly("lose", WithFollowers(20'261'141, {FaultKind::kLose, FaultKind::kKill, FaultKind::kKillAll}, 11));
  EXPECT_TRUE(report.ok());
  EXPECT_GT(report.recoveries_ms.at(FaultKind::kLose).size(), 0);
  EXPECT_GT(report.replicas_same, 0);
}

TEST(Replica, TwoPsTakeTurns) {
  RunOptions options = WithFollowers(20'261'142, {FaultKind::kLose, FaultKind::kKillInBootstrap, FaultKind::kKill}, 8);
  options.servers = 2;
  EXPECT_TRUE(RunShortly("two", options).ok());
}

TEST(Replica, DeathsInBootstrapsAndCheckpointsLoseAndDoubleNothing) {
  EXPECT_TRUE(
      RunShortly("bootstrap", WithFollowers(20'261'143,
                                            {FaultKind::kKillInBootstrap, FaultKind::kKillAgain,
                                             FaultKind::kKillInCheckpoint, FaultKind::kTerminate, FaultKind::kClient},
                                            10))
          .ok());
}

TEST(Replica, APsThatSleepsForLongerThanItsLeaseAcknowledgesNothingThatIsLost) {
  const Report report = RunShortly("zombie", WithFollowers(20'261'144, {FaultKind::kZombie, FaultKind::kStop}, 8));
  EXPECT_TRUE(report.ok());
  EXPECT_GT(report.recoveries_ms.at(FaultKind::kZombie).size(), 0);
}

TEST(Replica, PartitionsBetweenAnyTwoProcessesLoseAndDoubleNothing) {
  const RunOptions options = WithFollowers(
      20'261'145,
      {FaultKind::kPartition, FaultKind::kSlowBetween, FaultKind::kCutBetween, FaultKind::kCutInside, FaultKind::kHole},
      9);
  EXPECT_TRUE(RunShortly("partition", options).ok());
}

}  // namespace
}  // namespace lodestone::chaos
