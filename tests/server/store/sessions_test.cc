#include "server/store/sessions.h"

#include <chrono>
#include <limits>

#include "common/base/incarnation.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kIdleMaxMs = limits::kSessionIdleMaxMs;

// Sessions on a ps whose steady clock and wall clock are moved by hand.
class SessionsTest : public ::testing::Test {
 protected:
  void Advance(int64_t ms) {
    now_ms_ += ms;
    wall_ += milliseconds(ms);
  }
  absl::Status Open(Incarnation worker) { return sessions_.Open(worker, now_ms_); }
  // What a coordinator whose clock is right gives to who joins now.
  Incarnation Joined() const { return FirstIncarnation(wall_); }

  int64_t now_ms_ = 1'000'000;
  std::chrono::system_clock::time_point wall_{std::chrono::hours(24 * 365 * 56)};
  Sessions sessions_{[this] { return wall_; }};
};

TEST_F(SessionsTest, AnIncarnationThatWasForgottenDoesNotComeBackAndNewerOnesAreWelcome) {
  const Incarnation first = Joined();
  ASSERT_TRUE(Open(first).ok());
  Advance(kIdleMaxMs);
  EXPECT_THAT(sessions_.ForgetIdle(now_ms_), ElementsAre());
  Advance(1);
  EXPECT_THAT(sessions_.ForgetIdle(now_ms_), ElementsAre(first));
  EXPECT_EQ(Open(first).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Open(first - 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Open(Joined()).ok());
}

// Each shard brings the sessions of the checkpoint that it is restored from, in any order.
TEST_F(SessionsTest, AWorkerThatHasEndedByOneCheckpointHasNoSessionByAnotherOne) {
  const Incarnation worker = Joined();
  sessions_.Restore(worker, now_ms_);
  ASSERT_TRUE(sessions_.IsOpen(worker));
  sessions_.RestoreEnded({{worker}});
  EXPECT_TRUE(sessions_.IsOver(worker));
  sessions_.Restore(worker, now_ms_);
  EXPECT_TRUE(sessions_.IsOver(worker));
}

// A session opened as 2^64 - 1 once kept all later workers out, from when it was forgotten.
TEST_F(SessionsTest, AnIncarnationOfTheFarFutureIsRefused) {
  for (const Incarnation worker : {std::numeric_limits<Incarnation>::max(), Incarnation{1} << 63,
                                   FirstIncarnation(wall_ + milliseconds(kIdleMaxMs) + microseconds(1))}) {
    const absl::Status refused = Open(worker);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << worker;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("more than 6 h ahead of this ps's clock"));
    EXPECT_EQ(sessions_.Push(worker, 1, 1, now_ms_).code(), absl::StatusCode::kFailedPrecondition);
  }
  v1::StatusResponse status;
  sessions_.FillStatus(now_ms_, &status);
  EXPECT_EQ(status.sessions_size(), 0);
}

TEST_F(SessionsTest, NoSessionThatIsLetInKeepsLaterWorkersOutOnceItIsForgotten) {
  const Incarnation newest = FirstIncarnation(wall_ + milliseconds(kIdleMaxMs));
  ASSERT_TRUE(Open(newest).ok()) << "a coordinator whose clock is ahead";
  Advance(kIdleMaxMs + 1);
  ASSERT_THAT(sessions_.ForgetIdle(now_ms_), ElementsAre(newest));
  EXPECT_TRUE(Open(Joined()).ok());
}

// A coordinator that was started once with its clock days ahead gives later incarnations ever after: all workers were
// refused.
TEST_F(SessionsTest, WorkersOfACoordinatorWhoseClockWasAheadAreLetInByAPsThatItToldAnIncarnation) {
  const Incarnation own = FirstIncarnation(wall_ + std::chrono::hours(72));
  EXPECT_TRUE(absl::IsInvalidArgument(Open(own + 1)));
  sessions_.NoteGiven(own, now_ms_);
  sessions_.NoteGiven(Joined() - 1, now_ms_);  // Another, of long ago.
  EXPECT_TRUE(Open(own + 1).ok());
  Advance(kIdleMaxMs + 1);
  ASSERT_THAT(sessions_.ForgetIdle(now_ms_), ElementsAre(own + 1));
  EXPECT_TRUE(Open(own + 2).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Open(std::numeric_limits<Incarnation>::max())));
}

TEST_F(SessionsTest, WorkersOfACoordinatorWhoseClockStaysAheadAreLetInHoweverLongThePsHasRun) {
  constexpr std::chrono::hours kAhead(72);
  sessions_.NoteGiven(FirstIncarnation(wall_ + kAhead), now_ms_);
  Advance(10 * kIdleMaxMs);
  EXPECT_TRUE(Open(FirstIncarnation(wall_ + kAhead)).ok());
  const Incarnation last = FirstIncarnation(wall_ + kAhead + milliseconds(kIdleMaxMs));
  EXPECT_TRUE(Open(last).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Open(last + 1)));
}

TEST_F(SessionsTest, AClockThatIsSetBackDoesNotEndASession) {
  const Incarnation worker = Joined();
  ASSERT_TRUE(Open(worker).ok());
  wall_ -= std::chrono::hours(24 * 365);
  EXPECT_TRUE(Open(worker).ok());
  EXPECT_TRUE(sessions_.Push(worker, 1, 1, now_ms_).ok());
}

TEST(Sessions, TakeIncarnationsOfThisMachinesClock) {
  Sessions sessions;
  EXPECT_TRUE(sessions.Open(FirstIncarnation(std::chrono::system_clock::now()), 0).ok());
  EXPECT_EQ(sessions.Open(std::numeric_limits<Incarnation>::max(), 0).code(), absl::StatusCode::kInvalidArgument);
}

// Regression: it was opened again, without the marks of its pushes, which could then be applied twice.
TEST_F(SessionsTest, ASessionThatWasForgottenIsNotTakenOverFromAnotherPs) {
  const Incarnation worker = Joined();
  ASSERT_TRUE(Open(worker).ok());
  Advance(kIdleMaxMs + 1);
  ASSERT_THAT(sessions_.ForgetIdle(now_ms_), ElementsAre(worker));
  EXPECT_FALSE(sessions_.Adopt(worker, now_ms_));
  EXPECT_TRUE(absl::IsFailedPrecondition(sessions_.Push(worker, 1, 1, now_ms_)));
  EXPECT_TRUE(sessions_.Adopt(worker + 1, now_ms_)) << "was never here";
  EXPECT_FALSE(sessions_.Adopt(worker + 1, now_ms_)) << "is known";
}

TEST_F(SessionsTest, TheSessionOfAWorkerThatHasEndedIsNotOpenedAgain) {
  const Incarnation worker = Joined();
  EXPECT_FALSE(sessions_.IsOver(worker)) << "it may come yet";
  ASSERT_TRUE(Open(worker).ok());
  EXPECT_FALSE(sessions_.IsOver(worker));
  EXPECT_TRUE(sessions_.End(worker));
  EXPECT_FALSE(sessions_.End(worker));
  EXPECT_TRUE(sessions_.IsOver(worker));
  EXPECT_TRUE(absl::IsFailedPrecondition(Open(worker)));
  EXPECT_TRUE(absl::IsFailedPrecondition(sessions_.Push(worker, 1, 1, now_ms_)));
  EXPECT_FALSE(sessions_.Adopt(worker, now_ms_));
  sessions_.Restore(worker, now_ms_);
  EXPECT_FALSE(sessions_.IsOpen(worker));
  EXPECT_THAT(sessions_.known().ended, ElementsAre(worker));
}

TEST_F(SessionsTest, AWorkerThatIsSlowToOpenItsSessionMayDoSoAfterYoungerOnesHaveEnded) {
  const Incarnation slow = Joined();
  for (Incarnation younger = slow + 1; younger < slow + 1000; ++younger) {
    ASSERT_TRUE(Open(younger).ok());
    sessions_.End(younger);
  }
  EXPECT_TRUE(Open(slow).ok());
}

// Regression: workers that crash again and again filled a ps with sessions, and nobody could join for six hours.
TEST_F(SessionsTest, SessionsThatEndMakeRoomForOthers) {
  Incarnation worker = Joined();
  for (size_t i = 0; i < 2 * limits::kSessionsMax; ++i) {
    ASSERT_TRUE(Open(++worker).ok());
    sessions_.End(worker);
  }
  EXPECT_TRUE(sessions_.known().open.empty());
  EXPECT_LE(sessions_.known().ended.size(), limits::kSessionsMax);
  EXPECT_TRUE(absl::IsFailedPrecondition(Open(Joined()))) << "long forgotten, and still not reopened";
}

// Regression: sessions of incarnations that a caller invented kept every later worker out for six hours.
TEST_F(SessionsTest, ASessionThatHasNotPushedMakesRoomForAnotherWhenThereAreTooMany) {
  const Incarnation first = Joined();
  for (size_t i = 0; i < limits::kSessionsMax; ++i) {
    ASSERT_TRUE(Open(first + i).ok());
    if (i % 2 == 0) {
      ASSERT_TRUE(sessions_.Push(first + i, 1, 1, now_ms_).ok());
    }
    Advance(1);
  }
  sessions_.Contact(first + 1, now_ms_);
  Incarnation next = first + limits::kSessionsMax;
  const uint64_t ends = sessions_.ends();
  ASSERT_TRUE(Open(next).ok());
  EXPECT_GT(sessions_.ends(), ends);
  EXPECT_FALSE(sessions_.IsOpen(first + 3)) << "nothing was heard of it for longest";
  EXPECT_TRUE(sessions_.IsOpen(first + 1));
  EXPECT_TRUE(Open(first + 3).ok()) << "it is not forgotten: it may begin";
  EXPECT_EQ(sessions_.known().open.size(), limits::kSessionsMax);
  for (size_t i = 0; i < limits::kSessionsMax; ++i) {
    ++next;
    if (Open(next).ok()) {
      ASSERT_TRUE(sessions_.Push(next, 1, 1, now_ms_).ok());
    }
  }
  EXPECT_EQ(Open(++next).code(), absl::StatusCode::kResourceExhausted) << "all have pushed";
  EXPECT_TRUE(sessions_.IsOpen(first));
}

}  // namespace
}  // namespace lodestone::server
