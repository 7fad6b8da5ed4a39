// Faults that no ps dies of: with or without a log, every acknowledged push is there once.
#include "gtest/gtest.h"
#include "tests/chaos/short_run.h"

namespace lodestone::chaos {
namespace {

RunOptions WithoutDisk(uint64_t seed, std::vector<FaultKind> kinds, uint64_t faults) {
  RunOptions options = ShortOptions(seed, std::move(kinds), faults);
  options.durable = false;
  return options;
}

TEST(Faults, LostRepliesAndCutConnectionsLoseAndDoubleNothing) {
  const Report report = RunShortly(
      "cut",
      WithoutDisk(20'261'122, {FaultKind::kCut, FaultKind::kCutInside, FaultKind::kLoseReply, FaultKind::kHole}, 24));
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.faults(), 24);
  EXPECT_GT(report.acknowledged, 100);
  EXPECT_GT(report.duplicates, 0);
}

TEST(Faults, SlowLinksAndStoppedServersLoseAndDoubleNothing) {
  const Report report =
      RunShortly("slow", WithoutDisk(20'261'123, {FaultKind::kSlow, FaultKind::kStop, FaultKind::kLoseReply}, 8));
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.faults(), 8);
}

TEST(Faults, ClientsThatDieLeaveAllOrNothingOfEachPushOnEachShard) {
  const Report report = RunShortly("clients", WithoutDisk(20'261'124, {FaultKind::kClient, FaultKind::kCutInside}, 16));
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.faults(), 16);
  EXPECT_GT(report.verdict.undecided, 0);
}

TEST(Faults, ThreeServersAndOneClient) {
  RunOptions options = WithoutDisk(20'261'125, {FaultKind::kCutInside, FaultKind::kLoseReply, FaultKind::kClient}, 9);
  options.servers = 3;
  options.clients = 1;
  EXPECT_TRUE(RunShortly("three", options).ok());
}

}  // namespace
}  // namespace lodestone::chaos
