#include "tests/chaos/judgement.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::chaos {
namespace {

using testing::HasSubstr;

Operation Add(uint64_t client, int64_t value, int64_t start_ns, int64_t end_ns) {
  return {.client = client, .value = value, .start_ns = start_ns, .end_ns = end_ns};
}

// A read of a shard whose version is the time.
Operation Read(uint64_t client, int64_t value, int64_t start_ns, int64_t end_ns) {
  return {.client = client,
          .call = Operation::Call::kRead,
          .value = value,
          .twin = value,
          .version = static_cast<Version>(start_ns),
          .start_ns = start_ns,
          .end_ns = end_ns};
}

FaultMark Kill(int64_t start_ns, int64_t end_ns) { return {"kill", true, start_ns, end_ns}; }

TEST(Judgement, OfAnOrderlyHistoryFindsNothing) {
  const Judgement judgement = Judge({.operations = {Add(1, 5, 0, 1), Read(1, 5, 2, 3), Read(2, 5, 2, 3)}});
  EXPECT_TRUE(judgement.ok());
  EXPECT_EQ(judgement.rows_linearizable, 1);
  EXPECT_EQ(judgement.operations, 3);
}

TEST(Judgement, EachRowIsACounterOfItsOwn) {
  Operation other = Add(1, 7, 0, 1);
  other.row = 9;
  const Judgement judgement = Judge({.operations = {Add(1, 5, 0, 1), other, Read(2, 5, 2, 3)}});
  EXPECT_TRUE(judgement.ok());
  EXPECT_EQ(judgement.rows, 2);
}

// Add, shown before its answer; the ps dies; it is not shown; the client sends it again; it is shown.
TEST(Judgement, WhatWasShownBeforeItsAnswerMayBeTakenBackByAKill) {
  History history{.operations = {Add(1, 5, 0, 100), Read(2, 5, 10, 20), Read(2, 0, 60, 70), Read(2, 5, 110, 120)},
                  .faults = {Kill(30, 50)}};
  const Judgement excused = Judge(history);
  EXPECT_TRUE(excused.ok()) << testing::PrintToString(excused.findings);
  EXPECT_EQ(excused.rows_taken_back, 1);
  history.faults[0].kills = false;
  EXPECT_EQ(Judge(history).rows_illegal, 1);
}

TEST(Judgement, WhatWasAnsweredIsTakenBackByNothing) {
  const Judgement judgement =
      Judge({.operations = {Add(1, 5, 0, 25), Read(2, 5, 10, 20), Read(2, 0, 60, 70)}, .faults = {Kill(30, 50)}});
  EXPECT_EQ(judgement.rows_illegal, 1);
  EXPECT_THAT(judgement.findings[0], HasSubstr("nor does any set of pushes"));
}

TEST(Judgement, AKillExcusesNoReadThatCameAfterIt) {
  const Judgement judgement =
      Judge({.operations = {Add(1, 5, 0, 100), Read(2, 5, 55, 60), Read(2, 0, 61, 70)}, .faults = {Kill(30, 50)}});
  EXPECT_EQ(judgement.rows_illegal, 1);
}

TEST(Judgement, NoReadShowsAPushTwiceOrOneThatNobodyMade) {
  const std::vector<FaultMark> kills = {Kill(30, 50)};
  EXPECT_EQ(Judge({.operations = {Add(1, 5, 0, 100), Read(2, 10, 10, 20)}, .faults = kills}).rows_illegal, 1);
  EXPECT_EQ(Judge({.operations = {Add(1, 5, 0, 100), Read(2, 3, 10, 20)}, .faults = kills}).rows_illegal, 1);
}

TEST(Judgement, AReadOfHalfAPushIsFound) {
  Operation half = Read(2, 5, 2, 3);
  half.twin = 0;
  const Judgement judgement = Judge({.operations = {Add(1, 5, 0, 1), half}});
  EXPECT_EQ(judgement.twins_apart, 1);
  EXPECT_FALSE(judgement.ok());
}

TEST(Judgement, AClientReadsWhatItHasWritten) {
  const History history{.operations = {Add(1, 5, 0, 1), Read(1, 0, 2, 3)}, .faults = {Kill(0, 3)}};
  EXPECT_EQ(Judge(history).own_adds_missing, 1);
}

TEST(Judgement, VersionsRiseUnlessAKillTakesThemBack) {
  Operation late = Read(2, 0, 60, 70);
  late.version = 3;
  History history{.operations = {Read(1, 0, 10, 20), late}};
  EXPECT_EQ(Judge(history).versions_fallen, 1);
  history.faults = {Kill(30, 50)};
  EXPECT_EQ(Judge(history).versions_fallen, 0);
  EXPECT_EQ(Judge(history).versions_taken_back, 1);
  history.operations[1].start_ns = 15;  // They overlap: either may have been first.
  history.faults.clear();
  EXPECT_TRUE(Judge(history).ok());
}

}  // namespace
}  // namespace lodestone::chaos
