#include "server/coordinator/step_leases.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/base/time_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/membership.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kStepLeaseMs = 1000;

v1::RangePlan StepPlan(uint64_t steps = 3, uint32_t step_batches = 4) {
  v1::RangePlan plan;
  plan.set_description("synchronous");
  plan.set_epoch_batches(step_batches);
  plan.set_batches(steps * step_batches);
  plan.set_range_batches(1);
  plan.set_step_batches(step_batches);
  return plan;
}

class StepLeasesTest : public ::testing::Test {
 protected:
  // A worker of the test, and the batches that it has.
  struct Holder {
    Incarnation incarnation = 0;
    std::vector<v1::RangeLease> has;
    uint64_t steps = 0;
  };

  StepLeasesTest() { members_.emplace(Options()); }

  Membership::Options Options() {
    Membership::Options options;
    options.cluster = "test";
    options.workers = 1;
    options.shards = 8;
    options.lease_ms = kStepLeaseMs;
    options.first_incarnation = 100;
    options.time = &time_;
    return options;
  }
  Holder Joined() {
    v1::JoinRequest request;
    request.set_role(v1::ROLE_WORKER);
    request.set_cluster("test");
    request.set_any_place(true);
    const auto joined = members_->Join(request);
    EXPECT_TRUE(joined.ok()) << joined.status();
    return {joined.ok() ? joined->incarnation() : 0, {}};
  }
  v1::LeaseRangesResponse Send(const v1::LeaseRangesRequest& request) {
    const auto response = members_->LeaseRanges(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.value_or(v1::LeaseRangesResponse());
  }
  v1::LeaseRangesRequest RequestOf(const Holder& worker) {
    v1::LeaseRangesRequest request;
    request.set_incarnation(worker.incarnation);
    *request.mutable_plan() = plan_;
    request.set_wants_range(true);
    request.set_steps(worker.steps);
    for (const v1::RangeLease& lease : worker.has) request.add_held()->set_incarnation(lease.incarnation());
    return request;
  }
  // Asks for a batch; -1: there was none.
  int64_t Ask(Holder* worker) {
    const v1::LeaseRangesResponse response = Send(RequestOf(*worker));
    if (!response.has_lease()) return -1;
    worker->has.push_back(response.lease());
    return static_cast<int64_t>(response.lease().first_batch());
  }
  // All shards have the first batch of the worker's.
  v1::LeaseRangesResponse Done(Holder* worker, bool wants = false) {
    v1::LeaseRangesRequest request = RequestOf(*worker);
    request.mutable_held(0)->set_done(1);
    request.set_wants_range(wants);
    worker->has.erase(worker->has.begin());
    return Send(request);
  }
  v1::RangeState State() { return members_->ranges().state(); }

  ManualTime time_;
  v1::RangePlan plan_ = StepPlan();
  std::optional<Membership> members_;
};

TEST_F(StepLeasesTest, ABatchAheadIsOnlyGivenWhileThereAreMoreThanIdleWorkers) {
  Holder a = Joined(), b = Joined();
  EXPECT_EQ(Ask(&a), 0);
  EXPECT_EQ(Ask(&b), 1);
  EXPECT_EQ(Ask(&a), 2) << "both are busy, and two are left";
  EXPECT_EQ(Ask(&b), 3);
  Holder c = Joined();
  EXPECT_EQ(Ask(&c), -1) << "the step is out";
  Done(&a), Done(&b);
  EXPECT_EQ(Ask(&c), -1) << "two are not done yet";
  Done(&a), Done(&b);
  EXPECT_EQ(Ask(&c), 4);
  EXPECT_EQ(Ask(&c), 5) << "one is left for each of the idle";
  EXPECT_EQ(Ask(&c), -1) << "two are left, for the two that are idle";
  EXPECT_EQ(Ask(&a), 6);
  EXPECT_EQ(Ask(&b), 7);
}

TEST_F(StepLeasesTest, ALeaseSaysTheStepOfTheTablesWhichARunMayFindBegun) {
  Holder a = Joined();
  a.steps = 40;
  EXPECT_EQ(Ask(&a), 0);
  EXPECT_EQ(a.has[0].step(), 40u);
  EXPECT_EQ(State().first_step(), 40u);
  for (int i = 1; i < 4; ++i) EXPECT_EQ(Ask(&a), i);
  for (int i = 0; i < 4; ++i) Done(&a);
  EXPECT_EQ(Ask(&a), 4);
  EXPECT_EQ(a.has[0].step(), 41u);
}

TEST_F(StepLeasesTest, TheBatchesOfAWorkerWhoseProcessIsGoneAreGivenAgainAtOnce) {
  Holder a = Joined(), b = Joined();
  EXPECT_EQ(Ask(&a), 0);
  for (int64_t batch = 1; batch < 4; ++batch) EXPECT_EQ(Ask(&b), batch);
  EXPECT_EQ(Ask(&b), -1);
  time_.AdvanceMs(kStepLeaseMs / 4);
  EXPECT_TRUE(members_->NoteGone(a.incarnation, kStepLeaseMs / 8));
  members_->TakeExpired();
  EXPECT_EQ(Ask(&b), 0);
}

TEST_F(StepLeasesTest, AnAskerThatWaitsIsToldWhichBatchesOfTheStepEachWorkerHas) {
  Holder a = Joined(), b = Joined(), c = Joined();
  a.steps = 40;
  EXPECT_EQ(Ask(&a), 0);
  EXPECT_EQ(Ask(&b), 1);
  EXPECT_EQ(Ask(&c), 2);
  EXPECT_EQ(Ask(&a), 3);
  Done(&b), Done(&c);
  const v1::LeaseRangesResponse waits = Send(RequestOf(c));
  ASSERT_EQ(waits.targets_size(), 1) << waits.waiting_for();
  EXPECT_EQ(waits.targets(0).kind(), v1::WaitTarget::WORKER);
  EXPECT_EQ(waits.targets(0).index(), 0u);
  EXPECT_EQ(waits.targets(0).step(), 40u);
  EXPECT_THAT(waits.targets(0).batches(), ::testing::ElementsAre(0u, 3u));
}

TEST_F(StepLeasesTest, TheNextStepBeginsWhenEveryBatchIsDoneByAnyWorker) {
  Holder a = Joined(), b = Joined();
  EXPECT_EQ(Ask(&a), 0);
  EXPECT_EQ(Ask(&b), 1);
  EXPECT_EQ(Ask(&b), 2);
  time_.AdvanceMs(kStepLeaseMs / 2);
  EXPECT_EQ(Done(&a, /*wants=*/true).lease().first_batch(), 3u) << "told and given in one call";
  a.has.push_back(State().open(2));
  time_.AdvanceMs(kStepLeaseMs / 2 + 1);  // b is dead.
  members_->TakeExpired();
  EXPECT_EQ(Ask(&a), 1);
  EXPECT_EQ(Ask(&a), 2);
  EXPECT_EQ(State().leased_again(), 2u);
  EXPECT_EQ(Ask(&a), -1);
  for (int i = 0; i < 3; ++i) Done(&a);
  EXPECT_EQ(Ask(&a), 4);
}

TEST_F(StepLeasesTest, WhatAWorkerGivesBackIsGivenToAnother) {
  Holder a = Joined(), b = Joined();
  EXPECT_EQ(Ask(&a), 0);
  EXPECT_EQ(Ask(&b), 1);
  v1::LeaseRangesRequest request = RequestOf(a);
  request.set_wants_range(false);
  request.set_finished(true);
  request.mutable_held(0)->set_given_back(true);
  Send(request);
  EXPECT_EQ(Ask(&b), 0);
}

TEST_F(StepLeasesTest, AnAnswerThatWasLostIsGivenAgain) {
  Holder a = Joined();
  EXPECT_EQ(Ask(&a), 0);
  a.has.clear();
  EXPECT_EQ(Ask(&a), 0);
}

TEST_F(StepLeasesTest, AQuorumBeginsTheNextStepWhileTheRestIsOut) {
  plan_.set_step_quorum(3);
  Holder a = Joined(), b = Joined();
  EXPECT_EQ(Ask(&a), 0);
  EXPECT_EQ(Ask(&b), 1);
  EXPECT_EQ(Ask(&b), 2);
  Done(&b), Done(&b);
  EXPECT_EQ(Ask(&b), 3);
  EXPECT_EQ(Ask(&b), -1) << "two are out";
  Done(&b);
  EXPECT_EQ(Ask(&b), 4) << "only that of a is";
  Done(&a);
  EXPECT_EQ(State().batches_closed(), 4u);
}

TEST_F(StepLeasesTest, ABackupGoesToAnIdleWorkerOnceABatchTakesLongerThanOthers) {
  plan_.set_step_backup(1);
  Holder a = Joined(), b = Joined(), c = Joined();
  EXPECT_EQ(Ask(&a), 0);
  EXPECT_EQ(Ask(&b), 1);
  EXPECT_EQ(Ask(&c), 2);
  EXPECT_EQ(Ask(&b), 3);
  time_.AdvanceMs(100);
  Done(&b), Done(&b);
  EXPECT_EQ(Ask(&b), -1) << "the others are not late yet";
  time_.AdvanceMs(51);
  EXPECT_EQ(Ask(&b), 0) << "the first that is";
  b.has.clear();
  EXPECT_EQ(Ask(&b), 0) << "the answer was lost";
  Holder d = Joined();
  EXPECT_EQ(Ask(&d), -1) << "one backup at a time";
  Done(&b);
  EXPECT_EQ(Ask(&d), 2) << "c is late too";
  Done(&d);
  EXPECT_EQ(Ask(&b), 4) << "the step does not wait for a and c";
  Done(&a);
  EXPECT_EQ(State().batches_closed(), 4u) << "counted once";
}

TEST_F(StepLeasesTest, ACoordinatorThatWasStartedAgainSkipsTheStepsThatTheTablesHave) {
  Holder a = Joined();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Ask(&a), i);
  const v1::CoordinatorState state = members_->SaveState();
  for (int i = 0; i < 4; ++i) Done(&a);
  for (int i = 4; i < 8; ++i) EXPECT_EQ(Ask(&a), i);
  for (int i = 0; i < 3; ++i) Done(&a);
  members_.emplace(Options());
  ASSERT_TRUE(members_->Restore(state).ok());
  a.steps = 1;
  EXPECT_EQ(Ask(&a), 4) << "of the step that is collected, all are given again";
  EXPECT_EQ(State().batches_closed(), 4u);
  a.steps = 3;
  a.has.clear();
  const v1::LeaseRangesResponse response = Send(RequestOf(a));
  EXPECT_TRUE(response.complete());
  EXPECT_EQ(response.batches_done(), 12u);
  EXPECT_EQ(response.steps(), 3u);
}

TEST_F(StepLeasesTest, NoLeaseIsSaved) {
  Holder a = Joined();
  EXPECT_EQ(Ask(&a), 0);
  const uint64_t changes = members_->changes();
  EXPECT_EQ(Ask(&a), 1);
  Done(&a);
  EXPECT_EQ(members_->changes(), changes);
}

// Once it was taken for broken off: workers had no step any more to say that the last one had ended.
TEST_F(StepLeasesTest, ThatAllStepsAreDoneIsKnownToACoordinatorThatIsStartedAgainBeforeTheEvaluation) {
  plan_ = StepPlan(/*steps=*/1);
  Holder a = Joined();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Ask(&a), i);
  const uint64_t changes = members_->changes();
  for (int i = 0; i < 3; ++i) Done(&a);
  EXPECT_EQ(members_->changes(), changes);
  EXPECT_TRUE(Done(&a).complete());
  EXPECT_GT(members_->changes(), changes) << "it is saved before the answer goes out";
  const v1::CoordinatorState state = members_->SaveState();
  members_.emplace(Options());
  ASSERT_TRUE(members_->Restore(state).ok());
  v1::LeaseRangesRequest request = RequestOf(a);
  request.set_wants_range(false);
  request.set_finished(true);
  const v1::LeaseRangesResponse response = Send(request);
  EXPECT_TRUE(response.complete());
  EXPECT_TRUE(response.evaluate());
  EXPECT_EQ(response.steps(), 1u);
  request.set_evaluated(true);
  EXPECT_TRUE(Send(request).over());
  EXPECT_TRUE(State().over());
}

TEST_F(StepLeasesTest, APlanWithoutWholeStepsIsRefused) {
  plan_.set_batches(11);
  Holder a = Joined();
  EXPECT_THAT(members_->LeaseRanges(RequestOf(a)).status().message(), HasSubstr("it needs whole steps"));
}

// Workers that come, go and die, and answers that are lost: every batch is done before the next step begins, and the
// run ends.
TEST_F(StepLeasesTest, EveryBatchIsDoneBeforeTheNextStepWhateverBecomesOfWorkers) {
  constexpr uint64_t kSeed = 20261124;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  uint64_t drawn = 0;
  const auto draw = [&](uint64_t n) { return RandomBits(kSeed, drawn++) % n; };
  plan_ = StepPlan(/*steps=*/200, /*step_batches=*/5);
  plan_.set_step_backup(1);
  std::vector<Holder> workers = {Joined()};
  std::map<uint64_t, int> done;  // By batch.
  while (true) {
    for (const Holder& worker : workers) {
      v1::HeartbeatRequest beat;
      beat.set_incarnation(worker.incarnation);
      ASSERT_TRUE(members_->Heartbeat(beat).ok());
    }
    time_.AdvanceMs(static_cast<int64_t>(draw(20)));
    if (draw(20) == 0 && workers.size() < 6) workers.push_back(Joined());
    if (draw(40) == 0 && workers.size() > 1) {
      workers.erase(workers.begin() + static_cast<int64_t>(draw(workers.size())));
      for (Holder& worker : workers) {
        v1::HeartbeatRequest beat;
        beat.set_incarnation(worker.incarnation);
        time_.AdvanceMs(static_cast<int64_t>(kStepLeaseMs / workers.size() / 2));
        ASSERT_TRUE(members_->Heartbeat(beat).ok());
      }
      time_.AdvanceMs(static_cast<int64_t>(kStepLeaseMs / 2 - 1));
      members_->TakeExpired();
    }
    Holder& worker = workers[draw(workers.size())];
    if (!worker.has.empty() && draw(2) == 0) {
      const uint64_t batch = worker.has.front().first_batch();
      EXPECT_EQ(worker.has.front().step(), batch / 5);
      ++done[batch];
      if (Done(&worker).complete()) break;
      continue;
    }
    const int64_t batch = Ask(&worker);
    if (batch < 0) continue;
    if (draw(10) == 0) worker.has.pop_back();  // The answer is lost.
    for (uint64_t before = 0; before < static_cast<uint64_t>(batch) / 5 * 5; ++before) {
      ASSERT_TRUE(done.contains(before)) << "batch " << batch << " was given before " << before << " was done";
    }
  }
  EXPECT_EQ(done.size(), 1000u);
}

}  // namespace
}  // namespace lodestone::server
