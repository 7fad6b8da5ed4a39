// Every acknowledged push judged by its own digit, and counters judged by what all clients saw of them.
#include <utility>

#include "gtest/gtest.h"
#include "tests/chaos/short_run.h"

namespace lodestone::chaos {
namespace {

constexpr uint64_t kPushes = 20'000;

RunOptions EndlessFaults(uint64_t seed, std::vector<FaultKind> kinds) {
  RunOptions options = ShortOptions(seed, std::move(kinds), /*faults=*/0);
  options.clients = 2;
  return options;
}

RunOptions WithFollowers(RunOptions options) {
  options.servers = 3;
  options.replicas = true;
  // Clients must keep theirs on a machine that is busy with other tests.
#ifdef LODESTONE_SANITIZER
  options.lease_ms = 10'000;
#else
  options.lease_ms = 3'000;
#endif
  return options;
}

// Each of them there once.
RunOptions Digits(RunOptions options) {
  options.digits_only = true;
  options.pushes = kPushes;
  options.gap_pushes = kPushes / 20;
  return options;
}

RunOptions Histories(RunOptions options) {
  options.recorders = 6;
  options.histories = 3;
  options.gap_pushes = 300;
  return options;
}

TEST(Proof, EachOfTwentyThousandPushesIsThereOnceAfterKillsAndStops) {
  const Report report =
      RunShortly("digits", Digits(EndlessFaults(20'261'151, {FaultKind::kKill, FaultKind::kKillAll, FaultKind::kStop,
                                                             FaultKind::kKillInCheckpoint, FaultKind::kLoseReply})));
  EXPECT_TRUE(report.ok());
  EXPECT_GE(report.verdict.judged, kPushes);
}

TEST(Proof, EachOfTwentyThousandPushesIsThereOnceAfterFailovers) {
  const Report report = RunShortly(
      "digits-replica", Digits(WithFollowers(EndlessFaults(20'261'152, {FaultKind::kLose, FaultKind::kZombie,
                                                                        FaultKind::kKill, FaultKind::kLoseReply}))));
  EXPECT_TRUE(report.ok());
  EXPECT_GE(report.verdict.judged, kPushes);
}

TEST(Proof, CountersAreLinearizableUnderKillsStopsAndLostReplies) {
  const Report report = RunShortly(
      "histories", Histories(EndlessFaults(20'261'153, {FaultKind::kKill, FaultKind::kKillAll, FaultKind::kStop,
                                                        FaultKind::kCutInside, FaultKind::kLoseReply})));
  EXPECT_TRUE(report.ok());
  EXPECT_GE(report.judgement.histories, 3);
  EXPECT_GT(report.judgement.unanswered, 0);
  EXPECT_LE(report.judgement.open_max, 8);
  EXPECT_LT(report.judgement.seconds_max, 10);
}

TEST(Proof, CountersAreLinearizableUnderFailoversAndPartitions) {
  const Report report =
      RunShortly("histories-replica",
                 Histories(WithFollowers(EndlessFaults(
                     20'261'154, {FaultKind::kLose, FaultKind::kZombie, FaultKind::kPartition, FaultKind::kKill}))));
  EXPECT_TRUE(report.ok());
  EXPECT_GE(report.judgement.histories, 3);
  EXPECT_LT(report.judgement.seconds_max, 10);
}

// No read is excused by a kill then: neither what it showed, nor the version.
TEST(Proof, WithDurableReadsKillsTakeNothingBackThatWasRead) {
  RunOptions options = Histories(
      EndlessFaults(20'261'155, {FaultKind::kKill, FaultKind::kKillAll, FaultKind::kStop, FaultKind::kLoseReply}));
  options.sets = {"cluster.reads=durable"};
  const Report report = RunShortly("durable-reads", std::move(options));
  EXPECT_TRUE(report.ok());
  EXPECT_GE(report.judgement.histories, 3);
  EXPECT_EQ(report.judgement.rows_taken_back, 0);
  EXPECT_EQ(report.judgement.versions_taken_back, 0);
}

TEST(Proof, WithDurableReadsFailoversTakeNothingBackThatWasRead) {
  RunOptions options = Histories(WithFollowers(
      EndlessFaults(20'261'156, {FaultKind::kLose, FaultKind::kZombie, FaultKind::kPartition, FaultKind::kKill})));
  options.sets = {"cluster.reads=durable"};
  const Report report = RunShortly("durable-reads-replica", std::move(options));
  EXPECT_TRUE(report.ok());
  EXPECT_GE(report.judgement.histories, 3);
  EXPECT_EQ(report.judgement.rows_taken_back, 0);
  EXPECT_EQ(report.judgement.versions_taken_back, 0);
}

}  // namespace
}  // namespace lodestone::chaos
