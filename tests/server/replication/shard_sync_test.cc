#include "server/replication/shard_sync.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/replication/shard_follower.h"

namespace lodestone::server {
namespace {

using State = ShardSync::State;
using Attached = ShardSync::Attached;
using Outcome = ShardSync::Outcome;

constexpr Incarnation kFirstLife = 200, kOtherLife = 300;
constexpr Version kVersion = 7;
constexpr uint64_t kEpoch = 3;
constexpr int64_t kNowMs = 5000;

// A shard at kVersion whose follower has the state, and no more.
ShardSync Attach() {
  ShardSync sync;
  sync.SetAppended(kVersion);
  EXPECT_EQ(sync.Attach(kFirstLife, 0, std::nullopt), Attached::kNeedsState);
  sync.StateSent();
  return sync;
}
// It is in each state with kVersion confirmed, or nothing in kAlone.
ShardSync In(State state) {
  ShardSync sync = Attach();
  if (state == State::kAlone) return sync;
  sync.Confirm(kVersion);
  if (state == State::kJoining) return sync;
  EXPECT_TRUE(sync.TakeReport().has_value());
  EXPECT_EQ(sync.OnReport({.in_sync = true, .follower = kFirstLife}, true, kEpoch), Outcome::kNothing);
  if (state == State::kLeaving) sync.Leave();
  return sync;
}

// Of a report, as if one were under way.
Outcome Answer(ShardSync* sync, bool in_sync, bool accepted) {
  sync->TakeReport();
  return sync->OnReport({.in_sync = in_sync, .follower = kFirstLife}, accepted, kEpoch);
}

struct Transition {
  const char* event;
  std::function<void(ShardSync*)> happens;
  // From kAlone, kJoining, kInSync, kLeaving; nullopt: it cannot happen then.
  std::optional<State> to[4];
};

constexpr State kA = State::kAlone, kJ = State::kJoining, kI = State::kInSync, kL = State::kLeaving;

const std::vector<Transition>& Transitions() {
  static const auto* const transitions = new std::vector<Transition>{
      {"an update", [](ShardSync* s) { s->SetAppended(kVersion + 1); }, {kA, kJ, kI, kL}},
      {"it confirms", [](ShardSync* s) { s->Confirm(kVersion); }, {kJ, kJ, kI, kL}},
      {"its stream ends", [](ShardSync* s) { s->Detach(1); }, {kA, kL, kI, kL}},
      {"it is to leave", [](ShardSync* s) { s->Leave(); }, {std::nullopt, kL, kL, kL}},
      {"another one comes", [](ShardSync* s) { s->Attach(kOtherLife, kVersion, std::nullopt); }, {kA, kJ, kI, kL}},
      {"it comes again",
       [](ShardSync* s) {
         s->Detach(1);
         s->Attach(kFirstLife, kVersion, std::nullopt);
       },
       {kA, kL, kI, kL}},
      {"the coordinator takes that it counts", [](ShardSync* s) { Answer(s, true, true); }, {kA, kI, kI, kL}},
      {"the coordinator does not take that", [](ShardSync* s) { Answer(s, true, false); }, {kA, kJ, kI, kL}},
      {"the coordinator takes that it does not count", [](ShardSync* s) { Answer(s, false, true); }, {kA, kJ, kI, kA}},
      {"the coordinator does not take that it does not",
       [](ShardSync* s) { Answer(s, false, false); },
       {kA, kJ, kI, kL}},
      {"an answer to nothing", [](ShardSync* s) { s->OnReport({}, true, kEpoch); }, {kA, kJ, kI, kL}},
      {"it is given up", [](ShardSync* s) { s->GiveUp(kEpoch + 1, kNowMs); }, {kA, kJ, kI, kL}},
      {"a newer map without it while it is reported as given up",
       [](ShardSync* s) {
         s->GiveUp(kEpoch + 1, kNowMs);
         s->TakeReport();
         s->OnMapWithoutFollower(kEpoch + 2);
       },
       {kA, kJ, kA, kL}},
      {"the report fails",
       [](ShardSync* s) {
         s->TakeReport();
         s->OnReportFailed();
       },
       {kA, kJ, kI, kL}},
      {"a newer map without it", [](ShardSync* s) { s->OnMapWithoutFollower(kEpoch + 1); }, {kA, kJ, kA, kA}},
      {"a map of before without it", [](ShardSync* s) { s->OnMapWithoutFollower(kEpoch); }, {kA, kJ, kI, kL}},
      {"a newer map while a report is under way",
       [](ShardSync* s) {
         s->TakeReport();
         s->OnMapWithoutFollower(kEpoch + 1);
       },
       {kA, kJ, kA, kL}},
  };
  return *transitions;
}

TEST(ShardSyncTest, GoesFromStateToStateByTheTable) {
  for (const Transition& transition : Transitions()) {
    for (const State from : {kA, kJ, kI, kL}) {
      const std::optional<State> to = transition.to[static_cast<size_t>(from)];
      if (!to.has_value()) continue;
      ShardSync sync = In(from);
      ASSERT_EQ(sync.state(), from);
      transition.happens(&sync);
      EXPECT_EQ(sync.state(), *to) << transition.event << " in state " << static_cast<int>(from);
    }
  }
}

TEST(ShardSyncTest, HoldsUpWhatIsNotConfirmedInAllStatesButAlone) {
  EXPECT_FALSE(In(State::kAlone).HoldsUp(kVersion));
  for (const State state : {kJ, kI, kL}) {
    EXPECT_FALSE(In(state).HoldsUp(kVersion));
    EXPECT_TRUE(In(state).HoldsUp(kVersion + 1));
  }
}

TEST(ShardSyncTest, KeepsUpdatesAsLongAsAStreamOrAFollowerNeedsThem) {
  EXPECT_FALSE(ShardSync().KeepsUpdates());
  ShardSync sync = Attach();
  EXPECT_TRUE(sync.KeepsUpdates());
  sync.Detach(1);
  EXPECT_FALSE(sync.KeepsUpdates());
  for (const State state : {kJ, kI, kL}) {
    sync = In(state);
    sync.Detach(1);
    EXPECT_TRUE(sync.KeepsUpdates());
  }
}

TEST(ShardSyncTest, ReportsThatAFollowerCountsOnceItHasConfirmedAllOfBefore) {
  ShardSync sync = Attach();
  sync.Confirm(kVersion - 2);
  EXPECT_EQ(sync.state(), State::kJoining);
  EXPECT_FALSE(sync.TakeReport().has_value()) << "what was acknowledged before is not confirmed";
  sync.SetAppended(kVersion + 1);
  sync.Confirm(kVersion);
  EXPECT_TRUE(sync.ReadyToJoin()) << "the update since waits for it anyway";
  const auto report = sync.TakeReport();
  ASSERT_TRUE(report.has_value());
  EXPECT_TRUE(report->in_sync);
  EXPECT_EQ(report->follower, kFirstLife);
  EXPECT_FALSE(sync.TakeReport().has_value()) << "one is under way";
}

TEST(ShardSyncTest, ReportsALeavingFollowerUntilThatIsTaken) {
  ShardSync sync = In(State::kLeaving);
  for (int i = 0; i < 3; ++i) {
    const auto report = sync.TakeReport();
    ASSERT_TRUE(report.has_value());
    EXPECT_FALSE(report->in_sync);
    EXPECT_EQ(report->follower, kFirstLife);
    if (i == 0) sync.OnReportFailed();
    if (i == 1) {
      EXPECT_EQ(sync.OnReport({}, false, kEpoch), Outcome::kNothing);
    }
    if (i == 2) {
      EXPECT_EQ(sync.OnReport({}, true, kEpoch), Outcome::kReleased);
    }
  }
  EXPECT_FALSE(sync.TakeReport().has_value());
}

// Regression: a follower that came back before the coordinator had heard that it does not count, and had all, never
// counted again without a further update; with cluster.in_sync_min 2 pushes wait for it, so that none came.
TEST(ShardSyncTest, AFollowerThatComesBackWithAllBeforeItIsLeftAloneJoinsAgain) {
  ShardSync sync = In(State::kJoining);
  sync.Detach(1);
  ASSERT_EQ(sync.Attach(kFirstLife, kVersion, std::nullopt), Attached::kResumes);
  EXPECT_EQ(Answer(&sync, false, true), Outcome::kReleased);
  EXPECT_EQ(sync.state(), State::kJoining);
  EXPECT_TRUE(sync.ReadyToJoin());
}

TEST(ShardSyncTest, KnowsWhetherTheNextOwnerHasAllOfWhatIsGivenUp) {
  ShardSync sync = In(State::kInSync);
  EXPECT_FALSE(sync.NextOwnerHasAll()) << "it is not given up";
  sync.SetAppended(kVersion + 1);
  sync.GiveUp(kEpoch + 1, kNowMs);
  EXPECT_FALSE(sync.NextOwnerHasAll());
  sync.Confirm(kVersion + 1);
  EXPECT_TRUE(sync.NextOwnerHasAll());
  const auto report = sync.TakeReport();
  ASSERT_TRUE(report.has_value());
  sync.OnReport(*report, true, kEpoch);
  EXPECT_TRUE(sync.NextOwnerHasAll());
  sync.GiveUp(0, kNowMs);
  EXPECT_FALSE(sync.NextOwnerHasAll()) << "it was taken back";
}

TEST(ShardSyncTest, AFollowerThatTheCoordinatorMayKnowOutlivesItsStream) {
  ShardSync sync = In(State::kJoining);
  ASSERT_TRUE(sync.TakeReport().has_value());
  sync.Detach(1);
  EXPECT_EQ(sync.state(), State::kJoining);
  EXPECT_EQ(sync.OnReport({.in_sync = true, .follower = kFirstLife}, true, kEpoch), Outcome::kNothing);
  EXPECT_EQ(sync.state(), State::kInSync);
}

TEST(ShardSyncTest, AnAnswerThatComesWhenTheFollowerIsLeavingIsRememberedForMaps) {
  ShardSync sync = In(State::kJoining);
  ASSERT_TRUE(sync.TakeReport().has_value());
  sync.Leave();
  EXPECT_EQ(sync.OnReport({.in_sync = true, .follower = kFirstLife}, true, kEpoch), Outcome::kNothing);
  EXPECT_EQ(sync.state(), State::kLeaving);
  EXPECT_TRUE(sync.OnMapWithoutFollower(kEpoch + 1));
  EXPECT_EQ(sync.state(), State::kAlone);
}

TEST(ShardSyncTest, AFollowerThatWasLateAndHasAllBeforeItIsLeftAloneCountsAgain) {
  ShardSync sync = In(State::kInSync);
  sync.SetAppended(kVersion + 1);
  sync.Leave(/*late=*/true);
  sync.Confirm(kVersion + 1);  // It says so once.
  EXPECT_EQ(Answer(&sync, false, true), Outcome::kReleased);
  EXPECT_EQ(sync.state(), State::kJoining);
  EXPECT_TRUE(sync.ReadyToJoin());
}

TEST(ShardSyncTest, AFollowerThatIsStillLateOrGoneOrReplacedWaitsForItsNextWord) {
  ShardSync behind = In(State::kInSync);
  behind.SetAppended(kVersion + 1);
  behind.Leave(/*late=*/true);
  EXPECT_EQ(Answer(&behind, false, true), Outcome::kReleased);
  EXPECT_EQ(behind.state(), State::kAlone);
  ShardSync gone = In(State::kInSync);
  gone.Leave(/*late=*/true);
  gone.Detach(1);
  EXPECT_EQ(Answer(&gone, false, true), Outcome::kReleased);
  EXPECT_EQ(gone.state(), State::kAlone);
  ShardSync replaced = In(State::kInSync);
  replaced.Leave();
  EXPECT_EQ(Answer(&replaced, false, true), Outcome::kReleased);
  EXPECT_EQ(replaced.state(), State::kAlone);
}

TEST(ShardSyncTest, SaysWhenTheCoordinatorKnowsAnother) {
  ShardSync sync = In(State::kJoining);
  ASSERT_TRUE(sync.TakeReport().has_value());
  EXPECT_EQ(sync.OnReport({.in_sync = true, .follower = kFirstLife}, false, kEpoch), Outcome::kRejected);
}

TEST(ShardSyncTest, AShardIsReportedAsGivenUpOnceItsFollowerCountsAndHasAllUntilThatIsTaken) {
  constexpr uint64_t kHandover = kEpoch + 1;
  for (const State state : {kA, kJ, kL}) {
    ShardSync sync = In(state);
    sync.GiveUp(kHandover, kNowMs);
    const auto report = sync.TakeReport();
    EXPECT_EQ(report.has_value() ? report->gives_up : 0, 0u) << "in state " << static_cast<int>(state);
  }
  ShardSync sync = In(kI);
  sync.SetAppended(kVersion + 1);
  sync.GiveUp(kHandover, kNowMs);
  EXPECT_FALSE(sync.TakeReport().has_value()) << "the follower lacks the last update";
  sync.Confirm(kVersion + 1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(sync.ReadyToGiveUp());
    const auto report = sync.TakeReport();
    ASSERT_TRUE(report.has_value());
    EXPECT_TRUE(report->in_sync);
    EXPECT_EQ(report->follower, kFirstLife);
    EXPECT_EQ(report->gives_up, kHandover);
    EXPECT_FALSE(sync.TakeReport().has_value()) << "one is under way";
    if (i == 0) sync.OnReportFailed();
    if (i > 0) {
      EXPECT_EQ(sync.OnReport(*report, /*accepted=*/i == 2, kHandover), Outcome::kNothing);
    }
    EXPECT_EQ(sync.state(), kI);
  }
  EXPECT_FALSE(sync.TakeReport().has_value());
}

TEST(ShardSyncTest, AShardThatIsTakenBackOrAskedForAnewIsNotReportedByItsFormerNumber) {
  ShardSync sync = In(kI);
  sync.GiveUp(4, kNowMs);
  const auto former = sync.TakeReport();
  ASSERT_TRUE(former.has_value());
  sync.GiveUp(0, kNowMs);
  sync.GiveUp(6, kNowMs);
  EXPECT_EQ(sync.OnReport(*former, /*accepted=*/true, 6), Outcome::kNothing);
  const auto report = sync.TakeReport();
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->gives_up, 6u);
  EXPECT_EQ(sync.OnReport(*report, /*accepted=*/false, 6), Outcome::kNothing);
  sync.GiveUp(0, kNowMs);
  EXPECT_FALSE(sync.TakeReport().has_value());
}

// Regression: the answer to a report that a shard is given up came after the map without its follower, and then the
// follower never counted again.
TEST(ShardSyncTest, AFollowerMayCountAnewAfterAMapWithoutItCameBeforeTheAnswerToAReport) {
  ShardSync sync = In(kI);
  sync.GiveUp(kEpoch + 1, kNowMs);
  const auto report = sync.TakeReport();
  ASSERT_TRUE(report.has_value());
  EXPECT_TRUE(sync.OnMapWithoutFollower(kEpoch + 2));
  EXPECT_EQ(sync.OnReport(*report, /*accepted=*/false, kEpoch + 2), Outcome::kNothing);
  sync.GiveUp(0, kNowMs);
  sync.Confirm(kVersion);
  EXPECT_EQ(sync.state(), kJ);
  EXPECT_TRUE(sync.TakeReport().has_value());
}

// Regression: an update that no push waits for, as a row's expiry, was waited for without bound.
TEST(ShardSyncTest, AFollowerThatDoesNotConfirmWhatIsGivenUpIsLate) {
  constexpr int64_t kPatience = 100;
  ShardSync sync = In(kI);
  sync.SetAppended(kVersion + 1);
  sync.GiveUp(kEpoch + 1, kNowMs);
  sync.GiveUp(kEpoch + 1, kNowMs + 50);  // A later map says the same.
  EXPECT_EQ(sync.WhyLate(kNowMs + kPatience, std::nullopt, kPatience), nullptr);
  EXPECT_NE(sync.WhyLate(kNowMs + kPatience + 1, std::nullopt, kPatience), nullptr);
  sync.Confirm(kVersion + 1);
  EXPECT_EQ(sync.WhyLate(kNowMs + kPatience + 1, std::nullopt, kPatience), nullptr);
}

TEST(ShardSyncTest, ResumesOnlyWithWhatFollowsItsOwnPast) {
  const struct {
    const char* what;
    Incarnation follower;
    Version position;
    std::optional<Version> oldest_kept;
    Attached expected;
  } cases[] = {
      {"it has all", kFirstLife, kVersion + 2, std::nullopt, Attached::kResumes},
      {"it lacks what is kept", kFirstLife, kVersion, kVersion + 1, Attached::kResumes},
      {"it lacks what is no longer kept", kFirstLife, kVersion, kVersion + 2, Attached::kCountsStill},
      {"nothing is kept", kFirstLife, kVersion + 1, std::nullopt, Attached::kCountsStill},
      {"it has less than it confirmed", kFirstLife, kVersion - 1, kVersion + 1, Attached::kCountsStill},
      {"it has what never was", kFirstLife, kVersion + 3, kVersion + 1, Attached::kCountsStill},
      {"it is another", kOtherLife, kVersion, kVersion + 1, Attached::kCountsStill},
  };
  for (const auto& one : cases) {
    for (const State state : {kI, kL}) {
      ShardSync sync = In(state);
      sync.SetAppended(kVersion + 2);
      sync.Detach(1);
      EXPECT_EQ(sync.Attach(one.follower, one.position, one.oldest_kept), one.expected) << one.what;
      EXPECT_EQ(sync.attached(), one.expected == Attached::kResumes) << one.what;
      EXPECT_FALSE(sync.sending_state());
    }
  }
  ShardSync sync = In(State::kLeaving);
  ASSERT_EQ(Answer(&sync, false, true), Outcome::kReleased);
  EXPECT_EQ(sync.Attach(kOtherLife, kVersion, std::nullopt), Attached::kNeedsState);
  EXPECT_TRUE(sync.sending_state());
  EXPECT_EQ(sync.follower(), kOtherLife);
  EXPECT_EQ(sync.confirmed(), 0u);
}

TEST(ShardSyncTest, IsPatientOnlyForSoLong) {
  constexpr int64_t kPatience = 100;
  for (const State state : {kA, kJ, kI, kL}) {
    const bool impatient = state == kJ || state == kI;
    ShardSync sync = In(state);
    EXPECT_EQ(sync.WhyLate(1000, std::nullopt, kPatience), nullptr);
    EXPECT_EQ(sync.WhyLate(1000, 900, kPatience), nullptr);
    EXPECT_EQ(sync.WhyLate(1001, 900, kPatience) != nullptr, impatient);
    sync = In(state);
    if (state == kJ) {
      ASSERT_TRUE(sync.TakeReport().has_value());
    }
    sync.Detach(900);
    EXPECT_EQ(sync.WhyLate(1000, std::nullopt, kPatience), nullptr);
    EXPECT_EQ(sync.WhyLate(1001, std::nullopt, kPatience) != nullptr, impatient);
  }
}

TEST(ShardFollower, OneThatGoesOnConfirmingIsNotSilentAndNoPushWaitsForLongBehindOthers) {
  UnconfirmedBytes bytes;
  ShardFollower follower(/*server=*/1, &bytes);
  EXPECT_EQ(follower.silent_since_ms(30), std::nullopt);
  follower.sync().SetAppended(9);
  follower.Await(9, 100, nullptr);
  EXPECT_EQ(follower.silent_since_ms(30), 100);
  SettledAcks settled;
  follower.Confirm(5, 120, &settled);
  EXPECT_EQ(follower.silent_since_ms(30), 120);
  follower.Confirm(5, 125, &settled);
  EXPECT_EQ(follower.silent_since_ms(30), 120) << "nothing new";
  follower.Confirm(6, 200, &settled);
  EXPECT_EQ(follower.silent_since_ms(30), 130);
}

}  // namespace
}  // namespace lodestone::server
