// The suite itself: what is lost is noticed.
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/chaos/short_run.h"

namespace lodestone::chaos {
namespace {

TEST(Loss, AKilledPsWithoutADataDirIsNoticed) {
  RunOptions options = ShortOptions(20'261'126, {FaultKind::kKill}, 1);
  options.durable = false;
  const Report report = RunShortly("memory", options);
  EXPECT_FALSE(report.ok());
  // The coordinator, if it lives, lets nobody read what is left.
  EXPECT_TRUE(report.verdict.lost > 0 || absl::StrContains(report.failure, "was restarted without")) << report.failure;
  EXPECT_EQ(report.verdict.doubled, 0);
}

TEST(Loss, AKilledPsThatDoesNotLogPushesIsNoticed) {
  RunOptions options = ShortOptions(20'261'133, {FaultKind::kKill}, 1);
  options.sets = {"cluster.durability=memory"};
  const Report report = RunShortly("unlogged", options);
  EXPECT_FALSE(report.ok());
  EXPECT_GT(report.verdict.lost, 0);
}

TEST(Loss, WhatACutLogLosesIsNoticed) {
  RunOptions options = ShortOptions(20'261'134, {FaultKind::kFlip}, 1);
  // So that there are records behind the damaged one: the last of all may not have been acknowledged when the ps was
  // killed, and is sent again.
  options.calm_pushes = 1000;
  options.sets = {"server.cut_damaged_log=true", "server.log_segment_bytes=64MiB"};
  const Report report = RunShortly("cut", options);
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(report.failure, testing::HasSubstr("was flipped"));
  EXPECT_GT(report.verdict.lost, 0);
  EXPECT_EQ(report.verdict.doubled, 0);
}

}  // namespace
}  // namespace lodestone::chaos
