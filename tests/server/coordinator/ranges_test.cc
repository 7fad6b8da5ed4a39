#include "server/coordinator/ranges.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/base/time_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/membership.h"
#include "tests/server/coordinator/replicated_members.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;

v1::RangePlan Plan(uint64_t batches = 20, uint64_t epoch_batches = 10, uint32_t range_batches = 4) {
  v1::RangePlan plan;
  plan.set_description("200 samples");
  plan.set_batches(batches);
  plan.set_epoch_batches(epoch_batches);
  plan.set_range_batches(range_batches);
  return plan;
}

class RangesTest : public ::testing::Test {
 protected:
  Membership::Options Options() {
    Membership::Options options;
    options.cluster = "test";
    options.workers = 1;
    options.shards = 8;
    options.lease_ms = kLeaseMs;
    options.first_incarnation = 100;
    options.time = &time_;
    return options;
  }

  absl::StatusOr<v1::JoinResponse> Join(std::optional<uint32_t> index = std::nullopt, bool any_place = true) {
    v1::JoinRequest request;
    request.set_role(v1::ROLE_WORKER);
    request.set_cluster("test");
    request.set_any_place(any_place);
    request.set_launch(launch_);
    if (index.has_value()) request.set_index_plus_one(*index + 1);
    return members_->Join(request);
  }
  Incarnation Worker() {
    const auto joined = Join();
    EXPECT_TRUE(joined.ok()) << joined.status();
    return joined.ok() ? joined->incarnation() : 0;
  }
  void Die() {
    time_.AdvanceMs(kLeaseMs + 1);
    members_->TakeExpired();
  }
  void Beat(Incarnation worker, bool leaving = false) {
    v1::HeartbeatRequest request;
    request.set_incarnation(worker);
    request.set_leaving(leaving);
    EXPECT_TRUE(members_->Heartbeat(request).ok());
  }

  static v1::LeaseRangesRequest Request(Incarnation worker, const v1::RangePlan& plan = Plan()) {
    v1::LeaseRangesRequest request;
    request.set_incarnation(worker);
    *request.mutable_plan() = plan;
    request.set_wants_range(true);
    return request;
  }
  static void Hold(const v1::RangeLease& range, uint32_t done, v1::LeaseRangesRequest* request, bool back = false) {
    auto* const held = request->add_held();
    held->set_incarnation(range.incarnation());
    held->set_done(done);
    held->set_given_back(back);
  }
  v1::LeaseRangesResponse Lease(const v1::LeaseRangesRequest& request) {
    const auto response = members_->LeaseRanges(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.value_or(v1::LeaseRangesResponse());
  }
  v1::LeaseRangesResponse Finish(Incarnation worker, bool evaluated = false) {
    v1::LeaseRangesRequest request = Request(worker);
    request.set_wants_range(false);
    request.set_finished(true);
    request.set_evaluated(evaluated);
    return Lease(request);
  }
  // Leases and trains all that is left.
  void TrainAll(Incarnation worker) {
    v1::LeaseRangesRequest request = Request(worker);
    while (true) {
      const v1::LeaseRangesResponse response = Lease(request);
      if (!response.has_lease()) return;
      request = Request(worker);
      Hold(response.lease(), response.lease().batches(), &request);
    }
  }

  void RestartCoordinator() {
    const v1::CoordinatorState state = members_->SaveState();
    members_.emplace(Options());
    const absl::Status restored = members_->Restore(state);
    ASSERT_TRUE(restored.ok()) << restored;
  }

  ManualTime time_;
  std::optional<Membership> members_{std::in_place, Options()};
  std::string launch_;  // Of the workers that join.
};

TEST_F(RangesTest, RangesFollowEachOtherAndEndWithTheirEpoch) {
  const Incarnation worker = Worker();
  std::vector<std::pair<uint64_t, uint32_t>> ranges;
  std::set<Incarnation> incarnations;
  v1::LeaseRangesRequest request = Request(worker, Plan(14, 10, 4));
  for (v1::LeaseRangesResponse response = Lease(request); response.has_lease(); response = Lease(request)) {
    ranges.emplace_back(response.lease().first_batch(), response.lease().batches());
    EXPECT_TRUE(incarnations.insert(response.lease().incarnation()).second);
    EXPECT_GT(response.lease().incarnation(), worker);
    request.clear_held();
    Hold(response.lease(), response.lease().batches(), &request);
  }
  const std::vector<std::pair<uint64_t, uint32_t>> wanted = {{0, 4}, {4, 4}, {8, 2}, {10, 2}, {12, 1}, {13, 1}};
  EXPECT_EQ(ranges, wanted) << "and get shorter towards the end";
  EXPECT_TRUE(Lease(request).complete());
}

TEST_F(RangesTest, AnAnswerThatWasLostIsGivenAgain) {
  const Incarnation worker = Worker();
  const v1::RangeLease first = Lease(Request(worker)).lease();
  EXPECT_EQ(Lease(Request(worker)).lease().incarnation(), first.incarnation());
  v1::LeaseRangesRequest request = Request(worker);
  Hold(first, 1, &request);
  const v1::RangeLease second = Lease(request).lease();
  EXPECT_EQ(second.first_batch(), first.batches());
  EXPECT_EQ(members_->ranges().state().leased_again(), 0u);
}

TEST_F(RangesTest, ADeadWorkersRangeGoesToTheNextThatAsksFromWhereItWas) {
  const Incarnation dead = Worker();
  const v1::RangeLease range = Lease(Request(dead)).lease();
  v1::LeaseRangesRequest progress = Request(dead);
  Hold(range, 3, &progress);
  progress.set_wants_range(false);
  Lease(progress);
  Die();
  const Incarnation worker = Worker();
  const v1::RangeLease again = Lease(Request(worker)).lease();
  EXPECT_EQ(again.incarnation(), range.incarnation()) << "under the identity that its pushes had";
  EXPECT_EQ(again.done(), 3u);
  EXPECT_EQ(members_->ranges().state().leased_again(), 1u);
  EXPECT_FALSE(members_->LeaseRanges(progress).ok()) << "the dead one is not heard any more";
}

TEST_F(RangesTest, WhatAWorkerGivesBackIsFreeAtOnce) {
  const Incarnation leaving = Worker(), other = Worker();
  const v1::RangeLease range = Lease(Request(leaving)).lease();
  v1::LeaseRangesRequest back = Request(leaving);
  back.set_wants_range(false);
  back.set_finished(true);
  Hold(range, 2, &back, /*back=*/true);
  Lease(back);
  const v1::RangeLease again = Lease(Request(other)).lease();
  EXPECT_EQ(again.incarnation(), range.incarnation());
  EXPECT_EQ(again.done(), 2u);
}

TEST_F(RangesTest, ARangeThatIsDoneEndsForAllServers) {
  v1::JoinRequest join;
  join.set_role(v1::ROLE_SERVER);
  join.set_cluster("test");
  join.set_shards(8);
  join.set_address("127.0.0.1:7000");
  const auto server = members_->Join(join);
  ASSERT_TRUE(server.ok()) << server.status();
  const Incarnation worker = Worker();
  const v1::RangeLease range = Lease(Request(worker)).lease();
  v1::HeartbeatRequest beat;
  beat.set_incarnation(server->incarnation());
  auto told = members_->Heartbeat(beat);
  ASSERT_TRUE(told.ok());
  EXPECT_THAT(told->ranges_open(), ::testing::UnorderedElementsAre(range.incarnation(), worker))
      << "so that their sessions stay";
  EXPECT_THAT(told->workers_ended(), ::testing::IsEmpty());
  v1::LeaseRangesRequest done = Request(worker);
  Hold(range, range.batches(), &done);
  Lease(done);
  told = members_->Heartbeat(beat);
  ASSERT_TRUE(told.ok());
  EXPECT_THAT(told->workers_ended(), ::testing::ElementsAre(range.incarnation()));
  EXPECT_THAT(told->ranges_open(), ::testing::Not(::testing::Contains(range.incarnation())));
  EXPECT_THAT(told->ranges_open(), ::testing::Contains(worker));
  // Regression: a ps that the worker had nothing to do with for hours forgot it, and refused it once a shard came
  // there.
  v1::HeartbeatRequest leaves;
  leaves.set_incarnation(worker);
  leaves.set_leaving(true);
  ASSERT_TRUE(members_->Heartbeat(leaves).ok());
  told = members_->Heartbeat(beat);
  ASSERT_TRUE(told.ok());
  EXPECT_THAT(told->ranges_open(), ::testing::Not(::testing::Contains(worker)));
}

TEST_F(RangesTest, AWorkerWithAnotherPlanIsRefusedWhileOthersTrainAndBeginsAnotherRunAfterThem) {
  const Incarnation first = Worker(), second = Worker();
  Lease(Request(first));
  v1::RangePlan other = Plan();
  other.set_description("300 samples");
  const auto refused = members_->LeaseRanges(Request(second, other));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("200 samples, and this worker wants 300 samples"));
  Beat(first, /*leaving=*/true);
  EXPECT_EQ(Lease(Request(second, other)).lease().first_batch(), 0u);
}

TEST_F(RangesTest, ARunThatWasBrokenOffGoesOnWithTheNextWorkers) {
  const Incarnation first = Worker();
  const v1::RangeLease range = Lease(Request(first)).lease();
  v1::LeaseRangesRequest done = Request(first);
  Hold(range, range.batches(), &done);
  done.set_wants_range(false);
  Lease(done);
  Beat(first, /*leaving=*/true);
  RestartCoordinator();
  EXPECT_EQ(Lease(Request(Worker())).lease().first_batch(), range.batches());
}

TEST_F(RangesTest, ARunThatIsOverGivesWayToAnother) {
  const Incarnation first = Worker();
  TrainAll(first);
  EXPECT_TRUE(Finish(first).evaluate());
  EXPECT_TRUE(Finish(first, /*evaluated=*/true).over());
  const Incarnation late = Worker();
  EXPECT_TRUE(Lease(Request(late)).over()) << "one that comes while the others are still there";
  Beat(first, /*leaving=*/true);
  Beat(late, /*leaving=*/true);
  EXPECT_EQ(Lease(Request(Worker())).lease().first_batch(), 0u);
}

// Regression: a worker of `psctl local` that came when the others had ended a short run trained all of it once more.
TEST_F(RangesTest, AWorkerThatIsLateForTheRunThatItWasStartedForFindsItOver) {
  launch_ = "job-1";
  const Incarnation first = Worker();
  TrainAll(first);
  EXPECT_TRUE(Finish(first).evaluate());
  EXPECT_TRUE(Finish(first, /*evaluated=*/true).over());
  Beat(first, /*leaving=*/true);
  RestartCoordinator();  // Regression: it did not remember for which run the last worker was started.
  const Incarnation late = Worker();
  const v1::LeaseRangesResponse told = Lease(Request(late));
  EXPECT_TRUE(told.over());
  EXPECT_FALSE(told.has_lease());
  Beat(late, /*leaving=*/true);
  launch_ = "job-2";
  EXPECT_EQ(Lease(Request(Worker())).lease().first_batch(), 0u);
}

TEST_F(RangesTest, ARunThatValidationsHaveEndedIsOverToo) {
  const Incarnation worker = Worker();
  const v1::RangeLease range = Lease(Request(worker)).lease();
  for (const uint64_t number : {1, 2}) {
    v1::ValidateRequest validate;
    validate.set_incarnation(worker);
    validate.set_claim(number);
    ASSERT_TRUE(members_->Validate(validate).ok());
    validate.set_patience(1);
    validate.mutable_result()->set_number(number);
    validate.mutable_result()->mutable_judged_by()->set_value(0.5);
    ASSERT_TRUE(members_->Validate(validate).ok());
  }
  ASSERT_FALSE(members_->validations().stopped().empty());
  v1::LeaseRangesRequest back = Request(worker);
  back.set_wants_range(false);
  back.set_finished(true);
  Hold(range, 0, &back, /*back=*/true);
  EXPECT_TRUE(Lease(back).evaluate());
  EXPECT_TRUE(Finish(worker, /*evaluated=*/true).over());
  EXPECT_TRUE(members_->ranges().state().over());
  EXPECT_EQ(members_->ranges().state().open_size(), 0);
}

TEST_F(RangesTest, TheLiveWorkerWithTheLowestIndexEvaluatesOnceNoneTrains) {
  const Incarnation w0 = Worker(), w1 = Worker(), w2 = Worker();
  for (const Incarnation worker : {w0, w1, w2}) {
    v1::LeaseRangesRequest ask = Request(worker);
    ask.set_wants_range(false);
    Lease(ask);
  }
  TrainAll(w1);
  EXPECT_FALSE(Finish(w1).evaluate()) << "others may still train";
  Finish(w2);
  EXPECT_TRUE(Finish(w0).evaluate());
  EXPECT_FALSE(Finish(w1).evaluate());
  time_.AdvanceMs(kLeaseMs / 2);
  Finish(w1);
  Finish(w2);
  time_.AdvanceMs(kLeaseMs / 2 + 1);
  EXPECT_TRUE(Finish(w1).evaluate()) << "the first has died meanwhile";
  EXPECT_TRUE(Finish(w1, /*evaluated=*/true).over());
  EXPECT_TRUE(Finish(w2).over());
}

TEST_F(RangesTest, WorkersBeyondTheirNumberGetPlacesAndKeepThemWithTheCoordinatorsNextLife) {
  EXPECT_EQ(Join()->index(), 0u);
  EXPECT_EQ(Join(std::nullopt, /*any_place=*/false).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Join(5, /*any_place=*/false).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Join()->index(), 1u);
  const auto fifth = Join(5);
  ASSERT_TRUE(fifth.ok()) << fifth.status();
  EXPECT_EQ(fifth->index(), 5u);
  RestartCoordinator();
  Beat(fifth->incarnation());
  EXPECT_EQ(Join()->index(), 2u);
}

TEST_F(RangesTest, WorkersThatLeaseRangesHaveALeaseOfTheirOwnAndServersKeepTheirs) {
  Membership::Options options = Options();
  options.workers = 2;
  options.worker_lease_ms = kLeaseMs / 4;
  members_.emplace(options);
  v1::JoinRequest join;
  join.set_role(v1::ROLE_SERVER);
  join.set_cluster("test");
  join.set_shards(8);
  join.set_address("host:1");
  const auto server = members_->Join(join);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(server->lease_ms(), kLeaseMs);
  const auto partition = Join(std::nullopt, /*any_place=*/false);
  ASSERT_TRUE(partition.ok()) << partition.status();
  EXPECT_EQ(partition->lease_ms(), kLeaseMs) << "nobody else would train its part";
  const Incarnation dies = Worker(), lives = Worker();
  const v1::RangeLease range = Lease(Request(dies)).lease();
  ASSERT_GT(range.incarnation(), 0u);
  time_.AdvanceMs(kLeaseMs / 8);
  Beat(lives);
  time_.AdvanceMs(kLeaseMs / 8);
  members_->TakeExpired();
  EXPECT_EQ(Lease(Request(lives)).lease().incarnation(), range.incarnation()) << "it is given again";
  v1::HeartbeatRequest beat;
  beat.set_incarnation(server->incarnation());
  EXPECT_TRUE(members_->Heartbeat(beat).ok());
  beat.set_incarnation(lives);
  const auto answer = members_->Heartbeat(beat);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->lease_ms(), kLeaseMs / 4);
}

TEST_F(RangesTest, AnAskerIsToldWhichWorkersItWaitsFor) {
  const Incarnation w0 = Worker(), w1 = Worker();
  Lease(Request(w1));
  TrainAll(w0);
  const v1::LeaseRangesResponse response = Lease(Request(w0));
  ASSERT_FALSE(response.waiting_for().empty());
  ASSERT_EQ(response.targets_size(), 1);
  EXPECT_EQ(response.targets(0).kind(), v1::WaitTarget::WORKER);
  EXPECT_EQ(response.targets(0).index(), 1u);
}

TEST_F(RangesTest, WhatAWorkerHadWhoseProcessIsGoneIsGivenAgainAtOnce) {
  const Incarnation dies = Worker(), lives = Worker();
  const v1::RangeLease range = Lease(Request(dies)).lease();
  ASSERT_GT(range.incarnation(), 0u);
  const v1::RangeLease other = Lease(Request(lives)).lease();
  EXPECT_NE(other.incarnation(), range.incarnation());
  time_.AdvanceMs(300);
  EXPECT_TRUE(members_->NoteGone(dies, 200));
  EXPECT_THAT(members_->TakeExpired(), testing::ElementsAre(HasSubstr("its process has ended")));
  v1::LeaseRangesRequest request = Request(lives);
  Hold(other, 0, &request);
  EXPECT_EQ(Lease(request).lease().incarnation(), range.incarnation());
  v1::HeartbeatRequest beat;
  beat.set_incarnation(dies);
  EXPECT_EQ(members_->Heartbeat(beat).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RangesTest, AWorkerThatWasHeardOfAfterItsConnectionEndedKeepsItsRange) {
  const Incarnation lives = Worker(), other = Worker();
  const v1::RangeLease range = Lease(Request(lives)).lease();
  time_.AdvanceMs(300);
  Beat(lives);
  time_.AdvanceMs(100);
  EXPECT_FALSE(members_->NoteGone(lives, 101)) << "a connection that is broken is no dead worker";
  members_->TakeExpired();
  EXPECT_NE(Lease(Request(other)).lease().incarnation(), range.incarnation());
  Beat(lives);
}

TEST_F(RangesTest, WhereAWorkerCanBeWatchedOutlivesTheCoordinator) {
  v1::JoinRequest request;
  request.set_role(v1::ROLE_WORKER);
  request.set_cluster("test");
  request.set_any_place(true);
  request.set_watched_at("10.0.0.7:4711");
  ASSERT_TRUE(members_->Join(request).ok());
  const v1::CoordinatorState state = members_->SaveState();
  members_.emplace(Options());
  ASSERT_TRUE(members_->Restore(state).ok());
  EXPECT_EQ(members_->members().workers()[0].watched_at, "10.0.0.7:4711");
}

TEST_F(RangesTest, BadRequestsAreRefused) {
  const Incarnation worker = Worker();
  EXPECT_EQ(members_->LeaseRanges(Request(worker, Plan(0))).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(members_->LeaseRanges(Request(worker, Plan(5000, 5000, 1025))).status().code(),
            absl::StatusCode::kInvalidArgument)
      << "marks of older steps would be forgotten";
  v1::LeaseRangesRequest many = Request(worker);
  for (int i = 0; i <= Ranges::kRangesHeldMax; ++i) many.add_held()->set_incarnation(1000 + i);
  EXPECT_EQ(members_->LeaseRanges(many).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(members_->LeaseRanges(Request(12345)).status().code(), absl::StatusCode::kFailedPrecondition);
}

// Workers that take ranges, train a random part, report it or not, die or leave, while the coordinator is started again
// now and then. What the shards have applied is the set of (range, step).
TEST_F(RangesTest, EveryBatchIsTrainedOnceHoweverWorkersComeAndGo) {
  constexpr uint64_t kSeed = 20261123, kRuns = 200;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  for (uint64_t run = 0; run < kRuns; ++run) {
    SCOPED_TRACE(run);
    members_.emplace(Options());
    uint64_t drawn = 0;
    const auto draw = [&](uint64_t n) { return RandomBits(StreamSeed(kSeed, run), drawn++) % n; };
    struct Live {
      Incarnation incarnation;
      std::map<Incarnation, std::pair<v1::RangeLease, uint32_t>>
          held;  // And steps that were applied from its first on.
    };
    std::vector<Live> workers;
    std::set<std::pair<Incarnation, uint32_t>> applied;
    std::map<uint64_t, int> trained;  // By batch.
    const v1::RangePlan plan = Plan(1 + draw(60), 1 + draw(30), 1 + static_cast<uint32_t>(draw(8)));
    bool complete = false;
    for (int step = 0; step < 20'000 && !complete; ++step) {
      const uint64_t what = draw(100);
      if (what < 3) {
        RestartCoordinator();
      } else if (what < 6 && !workers.empty()) {  // Dies; the others go on.
        workers.erase(workers.begin() + static_cast<ptrdiff_t>(draw(workers.size())));
        for (const uint32_t part : {1, 2, 3}) {
          time_.AdvanceMs(kLeaseMs / 2);
          for (const Live& worker : workers) Beat(worker.incarnation);
          (void)part;
        }
        members_->TakeExpired();
      } else if (what < 12 && workers.size() < 4) {
        workers.push_back({Worker(), {}});
      } else if (!workers.empty()) {
        Live& worker = workers[draw(workers.size())];
        for (auto& [incarnation, held] : worker.held) {
          auto& [lease, done] = held;
          for (uint64_t more = draw(4); more > 0 && done < lease.batches(); --more, ++done) {
            if (applied.emplace(incarnation, done).second) ++trained[lease.first_batch() + done];
          }
        }
        v1::LeaseRangesRequest request = Request(worker.incarnation, plan);
        request.set_wants_range(worker.held.size() < 2);
        for (const auto& [incarnation, held] : worker.held) Hold(held.first, held.second, &request);
        const v1::LeaseRangesResponse response = Lease(request);
        std::erase_if(worker.held, [](const auto& held) { return held.second.second == held.second.first.batches(); });
        const bool arrives = draw(10) > 0;
        if (response.has_lease() && arrives) {
          worker.held.emplace(response.lease().incarnation(), std::pair(response.lease(), response.lease().done()));
        }
        complete = response.complete();
      }
    }
    ASSERT_TRUE(complete);
    for (uint64_t batch = 0; batch < plan.batches(); ++batch) ASSERT_EQ(trained[batch], 1) << "batch " << batch;
    ASSERT_EQ(trained.size(), plan.batches());
  }
}

}  // namespace
}  // namespace lodestone::server
