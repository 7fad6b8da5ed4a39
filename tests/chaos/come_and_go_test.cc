// Workers and servers that join, leave, move and die in one run: every acknowledged push is there once, and every
// sample is trained once in each epoch.
#include "gtest/gtest.h"
#include "tests/chaos/short_run.h"

namespace lodestone::chaos {
namespace {

void ExpectMovesAndTraining(const Report& report) {
  EXPECT_TRUE(report.ok());
  EXPECT_TRUE(report.recoveries_ms.contains(FaultKind::kReshard));
  EXPECT_TRUE(report.recoveries_ms.contains(FaultKind::kDrain));
  EXPECT_GT(report.turnover.runs, 0);
  EXPECT_GT(report.turnover.killed + report.turnover.left, 0);
  EXPECT_GT(report.turnover.orders, 0);
}

TEST(ComeAndGo, WithOneCopyOfEachShard) {
  RunOptions options = ShortOptions(20'261'151,
                                    {FaultKind::kReshard, FaultKind::kDrain, FaultKind::kKill, FaultKind::kMove,
                                     FaultKind::kStop, FaultKind::kLoseReply, FaultKind::kClient},
                                    14);
  options.servers = 3;
  options.workers = 4;
  options.audit_every = 7;
  options.sets = {"coordinator.lease_ms=3000", "coordinator.worker_lease_ms=3000"};
  ExpectMovesAndTraining(RunShortly("one", options));
}

TEST(ComeAndGo, WithTwoCopiesOfEachShard) {
  RunOptions options =
      ShortOptions(20'261'152, {FaultKind::kReshard, FaultKind::kDrain, FaultKind::kLose, FaultKind::kKill}, 14);
  options.replicas = true;
  options.servers = 4;
  options.lease_ms = 3000;  // Clients must keep theirs on a machine that is busy with other tests.
  options.workers = 4;
  options.audit_every = 7;
  ExpectMovesAndTraining(RunShortly("two", options));
}

}  // namespace
}  // namespace lodestone::chaos
