#include "server/coordinator/training_pause.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
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

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kPausedLeaseMs = 1000;
constexpr uint64_t kPausedBatches = 40, kPausedEpochBatches = 20;

v1::RangePlan PausedPlan(uint32_t step_batches) {
  v1::RangePlan plan;
  plan.set_description("800 samples");
  plan.set_epoch_batches(kPausedEpochBatches);
  plan.set_samples(800);
  plan.set_batches(kPausedBatches);
  plan.set_range_batches(6);
  if (step_batches == 0) return plan;
  plan.set_epochs_batches(kPausedBatches);
  plan.set_batches((kPausedBatches + step_batches - 1) / step_batches * step_batches);
  plan.set_range_batches(1);
  plan.set_step_batches(step_batches);
  return plan;
}

// A worker as the coordinator knows it.
struct Trainee {
  Incarnation incarnation = 0;
  uint32_t step_batches = 0;  // Of the order that it follows; 0: none.
  uint64_t orders = 0;
  uint64_t steps = 0;                // That it knows the tables to have.
  uint64_t generation = 0;           // Of the steps that its order counts.
  std::vector<v1::RangeLease> held;  // With what it has done.
  bool paused = false;
  bool finished = false;
};

class TrainingPauseTest : public ::testing::Test {
 protected:
  TrainingPauseTest() { members_.emplace(Options()); }

  Membership::Options Options() {
    Membership::Options options;
    options.cluster = "test";
    options.workers = 2;
    options.shards = 8;
    options.lease_ms = kPausedLeaseMs;
    options.first_incarnation = 100;
    options.time = &time_;
    return options;
  }
  Trainee Joined(uint32_t step_batches = 0, bool any_place = true) {
    v1::JoinRequest request;
    request.set_role(v1::ROLE_WORKER);
    request.set_cluster("test");
    request.set_any_place(any_place);
    const auto joined = members_->Join(request);
    EXPECT_TRUE(joined.ok()) << joined.status();
    Trainee worker;
    worker.incarnation = joined.ok() ? joined->incarnation() : 0;
    worker.step_batches = step_batches;
    return worker;
  }
  v1::HeartbeatResponse Beat(const Trainee& worker, v1::Phase phase = v1::PHASE_TRAINING) {
    v1::HeartbeatRequest request;
    request.set_incarnation(worker.incarnation);
    request.mutable_progress()->set_phase(phase);
    const auto response = members_->Heartbeat(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.value_or(v1::HeartbeatResponse());
  }
  // Asks for a range as the worker is; takes over what comes of it, as RangeFeed does.
  v1::LeaseRangesResponse Ask(Trainee* worker) {
    v1::LeaseRangesRequest request;
    request.set_incarnation(worker->incarnation);
    *request.mutable_plan() = PausedPlan(worker->step_batches);
    request.set_orders(worker->orders);
    request.set_paused(worker->paused);
    request.set_steps(worker->steps);
    request.set_finished(worker->finished);
    bool undone = false;
    for (const v1::RangeLease& lease : worker->held) {
      auto* const held = request.add_held();
      held->set_incarnation(lease.incarnation());
      held->set_done(lease.done());
      held->set_given_back(worker->paused || worker->finished);
      undone |= lease.done() < lease.batches();
    }
    request.set_wants_range(!worker->paused && !worker->finished && !undone);
    const auto response = members_->LeaseRanges(request);
    EXPECT_TRUE(response.ok()) << response.status();
    if (!response.ok()) return {};
    std::erase_if(worker->held, [&](const v1::RangeLease& lease) {
      return worker->paused || worker->finished || lease.done() == lease.batches();
    });
    if (response->has_lease()) worker->held.push_back(response->lease());
    return *response;
  }
  absl::StatusOr<v1::PauseTrainingResponse> Pause(uint64_t token = 7, bool end = false) {
    v1::PauseTrainingRequest request;
    request.set_token(token);
    request.set_end(end);
    return members_->PauseTraining(request);
  }
  void RestartCoordinator() {
    const v1::CoordinatorState state = members_->SaveState();
    members_.emplace(Options());
    const absl::Status restored = members_->Restore(state);
    ASSERT_TRUE(restored.ok()) << restored;
  }

  ManualTime time_;
  std::optional<Membership> members_;
};

TEST_F(TrainingPauseTest, BeginsWhenAllHaveAskedAndIsCompleteWhenAllHaveGivenBackWhatTheyHave) {
  Trainee a = Joined(), b = Joined();
  Ask(&a), Ask(&b);
  Beat(a), Beat(b);
  EXPECT_FALSE(Beat(a).pause_announced());
  auto pause = Pause();
  ASSERT_TRUE(pause.ok()) << pause.status();
  EXPECT_FALSE(pause->at_rest());
  EXPECT_THAT(pause->waiting_for(), testing::Contains(HasSubstr("worker 0")));
  EXPECT_TRUE(Beat(a).pause_announced());
  const v1::LeaseRangesResponse first = Ask(&a);
  EXPECT_TRUE(first.pause_announced());
  EXPECT_FALSE(first.pause()) << "worker 1 has not heard of it, and trains on";
  EXPECT_TRUE(Ask(&b).pause());
  EXPECT_TRUE(Ask(&a).pause());
  b.held[0].set_done(2);
  b.paused = a.paused = true;
  EXPECT_TRUE(Ask(&b).pause());
  pause = Pause();
  EXPECT_FALSE(pause->at_rest());
  EXPECT_EQ(pause->orders(), 0u);
  EXPECT_TRUE(Ask(&a).pause());
  pause = Pause();
  EXPECT_TRUE(pause->at_rest()) << pause->DebugString();
  EXPECT_EQ(pause->orders(), 1u) << "of which tables are set";
  EXPECT_THAT(pause->waiting_for(), IsEmpty());
  EXPECT_EQ(Pause(8).status().code(), absl::StatusCode::kFailedPrecondition) << "another caller";
  ASSERT_TRUE(Pause(7, /*end=*/true).ok());
  EXPECT_EQ(Pause(7, /*end=*/true).status().code(), absl::StatusCode::kFailedPrecondition) << "it has ended";
  const v1::LeaseRangesResponse resumed = Ask(&a);
  EXPECT_FALSE(resumed.pause());
  EXPECT_EQ(resumed.orders(), 2u);
  a.paused = false;
  EXPECT_FALSE(Ask(&a).has_lease()) << "it has not asked the servers";
  a.orders = 2;
  EXPECT_TRUE(Ask(&a).has_lease());
}

TEST_F(TrainingPauseTest, ARunGoesOnByStepsWithWhatIsLeftWhoseLastIsMadeOfParts) {
  Trainee a = Joined();
  Ask(&a);
  ASSERT_EQ(a.held.size(), 1u);
  a.held[0].set_done(3);  // Of batches 0 to 5.
  ASSERT_TRUE(Pause().ok());
  Ask(&a);
  a.paused = true;
  Ask(&a);
  ASSERT_TRUE(Pause()->at_rest());
  ASSERT_TRUE(Pause(7, /*end=*/true).ok());
  a.paused = false;
  a.orders = 2;
  a.step_batches = 3;
  // 37 batches are left: 12 steps, and one that is made of a single batch.
  for (uint64_t i = 0; i < 39; ++i) {
    const v1::LeaseRangesResponse leased = Ask(&a);
    ASSERT_TRUE(leased.has_lease()) << i;
    EXPECT_EQ(leased.lease().first_batch(), i);
    EXPECT_EQ(leased.lease().step(), i / 3);
    EXPECT_EQ(leased.lease().is_part(), i >= 36);
    EXPECT_THAT(leased.lease().made_of(), ElementsAre(3 + std::min<uint64_t>(i, 36)));
    EXPECT_EQ(leased.batches_done(), 3 + i);
    a.held.back().set_done(1);
  }
  EXPECT_TRUE(Ask(&a).complete());
  EXPECT_EQ(members_->ranges().state().batches_total(), 42u);
}

TEST_F(TrainingPauseTest, WhereNothingIsLeftWorkersEndInsteadOfGoingOnByAnotherOrder) {
  Trainee a = Joined(4);
  for (uint64_t i = 0; i < kPausedBatches; ++i) {
    ASSERT_TRUE(Ask(&a).has_lease());
    a.held.back().set_done(1);
  }
  ASSERT_TRUE(Pause().ok());
  a.paused = true;
  EXPECT_TRUE(Ask(&a).complete());
  EXPECT_TRUE(Pause()->at_rest());
  const v1::LeaseRangesResponse behind = Ask(&a);
  EXPECT_EQ(behind.orders(), 1u);
  EXPECT_TRUE(behind.complete());
}

TEST_F(TrainingPauseTest, AWorkerOfAVersionThatKnowsOfNoChangesEndsWithAnError) {
  Trainee a = Joined();
  Ask(&a);
  ASSERT_TRUE(Pause().ok());
  a.paused = true;
  Ask(&a);
  ASSERT_TRUE(Pause()->at_rest());
  ASSERT_TRUE(Pause(7, /*end=*/true).ok());
  Trainee old = Joined();
  v1::LeaseRangesRequest request;
  request.set_incarnation(old.incarnation);
  *request.mutable_plan() = PausedPlan(0);
  request.set_wants_range(true);
  absl::Status status;
  for (int i = 0; i < 30 && status.ok(); ++i) status = members_->LeaseRanges(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("it is of an older version"));
}

TEST_F(TrainingPauseTest, AWorkerThatLeasesNothingIsNamedAndNobodyPauses) {
  Trainee a = Joined();
  Ask(&a);
  Trainee alone = Joined(0, /*any_place=*/false);
  Beat(alone);
  EXPECT_THAT(Pause().status().message(), HasSubstr("train.sharing: ranges"));
  EXPECT_FALSE(Beat(a).pause_announced());
  Beat(alone, v1::PHASE_FINISHED);
  EXPECT_TRUE(Pause().ok());
}

TEST_F(TrainingPauseTest, OneWhoseOperatorIsGoneEndsByItselfAndOneOutlivesTheCoordinator) {
  Trainee a = Joined();
  Ask(&a);
  ASSERT_TRUE(Pause().ok());
  EXPECT_TRUE(Ask(&a).pause());
  RestartCoordinator();
  EXPECT_FALSE(Pause()->at_rest()) << "it is not known what the worker does";
  a.held[0].set_done(1);
  EXPECT_TRUE(Ask(&a).pause()) << "it had its range from no other, and may give the rest back";
  a.paused = true;
  EXPECT_TRUE(Ask(&a).pause());
  EXPECT_TRUE(Pause()->at_rest());
  for (uint32_t ms = 0; ms <= TrainingPause::kEndsAfterMs; ms += 500) {
    time_.AdvanceMs(500);
    Beat(a, v1::PHASE_WAITING);
  }
  EXPECT_FALSE(Ask(&a).pause());
  EXPECT_THAT(Pause(7, /*end=*/true).status().message(), HasSubstr("has ended before"));
}

TEST_F(TrainingPauseTest, WhatADeadWorkerHadBegunIsEndedByOneThatComesBackForIt) {
  Trainee a = Joined(), b = Joined();
  Ask(&a), Ask(&b);
  ASSERT_TRUE(Pause().ok());
  Ask(&a), Ask(&b), Ask(&a);
  a.paused = true;
  EXPECT_TRUE(Ask(&a).pause());
  time_.AdvanceMs(kPausedLeaseMs / 2);
  Beat(a);
  time_.AdvanceMs(kPausedLeaseMs / 2 + 1);
  members_->TakeExpired();  // Of worker 1, which has batches 6 to 11.
  const auto waits = Pause();
  EXPECT_FALSE(waits->at_rest());
  EXPECT_THAT(waits->waiting_for(), ElementsAre(HasSubstr("batches 6 to 11 are to be ended")));
  EXPECT_FALSE(Ask(&a).pause()) << "it is to come back";
  a.paused = false;
  const v1::LeaseRangesResponse taken = Ask(&a);
  ASSERT_TRUE(taken.has_lease());
  EXPECT_EQ(taken.lease().first_batch(), 6u);
  RestartCoordinator();
  EXPECT_FALSE(Pause()->at_rest());
  EXPECT_FALSE(Ask(&a).pause()) << "how much of it was pushed is not known after a restart, either: it is to end it";
  a.held.back().set_done(6);
  EXPECT_TRUE(Ask(&a).pause()) << "what it gave back itself has time";
  a.paused = true;
  Ask(&a);
  EXPECT_TRUE(Pause()->at_rest());
}

// A worker that was only stopped may go on, and push its batch once more, to a ps that has not heard that it died: two
// ps, and a worker that died in the middle of a step.
class PauseAfterADeathTest : public TrainingPauseTest {
 protected:
  void SetUp() override {
    members_.emplace(WithServers());
    for (Incarnation& server : servers_) {
      const auto joined = members_->Join(ServerJoin(static_cast<uint32_t>(&server - servers_), WithServers().shards));
      ASSERT_TRUE(joined.ok()) << joined.status();
      server = joined->incarnation();
    }
    a_ = Joined(3);
    Trainee b = Joined(3);
    Ask(&a_), Ask(&b);
    BeatServer(0), BeatServer(1);
    time_.AdvanceMs(kPausedLeaseMs / 2);
    Beat(a_), BeatServer(0), BeatServer(1);
    time_.AdvanceMs(kPausedLeaseMs / 2 + 1);
    members_->TakeExpired();  // Of worker 1, which has batch 1.
  }
  Membership::Options WithServers() {
    Membership::Options options = Options();
    options.servers = 2;
    options.ends_with_server_0 = false;
    return options;
  }
  void BeatServer(uint32_t server) {
    v1::HeartbeatRequest request;
    request.set_incarnation(servers_[server]);
    request.set_workers_ended_from(heard_[server]);
    const auto answer = members_->Heartbeat(request);
    ASSERT_TRUE(answer.ok()) << answer.status();
    heard_[server] = answer->workers_ended_to();
  }

  Incarnation servers_[2] = {};
  uint64_t heard_[2] = {};
  Trainee a_;
};

TEST_F(PauseAfterADeathTest, IsCompleteOnceAllServersHaveHeardOfIt) {
  for (int batch = 0; batch < 2; ++batch) {
    a_.held.back().set_done(1);
    ASSERT_TRUE(Ask(&a_).has_lease());
  }
  a_.held.back().set_done(1);
  a_.steps = 1;
  ASSERT_TRUE(Pause().ok());
  a_.paused = true;
  Ask(&a_);
  EXPECT_THAT(Pause()->waiting_for(), ElementsAre(HasSubstr("ps 0"), HasSubstr("ps 1")));
  BeatServer(0), BeatServer(1);  // They are told,
  BeatServer(1);                 // and this one says so.
  EXPECT_THAT(Pause()->waiting_for(), ElementsAre("ps 0 (host:1) is to hear of a worker's death"));
  EXPECT_FALSE(Pause()->at_rest());
  BeatServer(0);
  EXPECT_TRUE(Pause()->at_rest()) << Pause()->DebugString();
}

TEST_F(PauseAfterADeathTest, AnotherCoordinatorTellsOfItToo) {
  const v1::CoordinatorState state = members_->SaveState();
  members_.emplace(WithServers());
  ASSERT_TRUE(members_->Restore(state).ok());
  const auto waits = [&] {
    const auto pause = Pause();
    return std::count_if(pause->waiting_for().begin(), pause->waiting_for().end(),
                         [](const std::string& line) { return line.ends_with("is to hear of a worker's death"); });
  };
  EXPECT_EQ(waits(), 2);
  heard_[0] = UINT64_MAX;  // The number of a coordinator whose clock was ahead counts for nothing.
  BeatServer(0), BeatServer(1);
  EXPECT_EQ(waits(), 2);
  BeatServer(0), BeatServer(1);
  EXPECT_EQ(waits(), 0);
}

TEST_F(TrainingPauseTest, StepsThatHaveNotGoneOnSinceAPauseNeedNoWorkerThatCountsThemAfterARestart) {
  Trainee a = Joined(3);
  for (int batch = 0; batch < 3; ++batch) {
    ASSERT_TRUE(Ask(&a).has_lease());
    a.held.back().set_done(1);
  }
  a.steps = 1;
  ASSERT_TRUE(Pause().ok());
  a.paused = true;
  Ask(&a);
  ASSERT_TRUE(Pause()->at_rest());
  ASSERT_TRUE(Pause(7, /*end=*/true).ok());
  RestartCoordinator();
  // The order is half another one, for which the worker waits without leasing anything.
  Beat(a, v1::PHASE_WAITING);
  const auto again = Pause(8);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_THAT(again->waiting_for(), IsEmpty());
  ASSERT_TRUE(Pause(8, /*end=*/true).ok());
  a.paused = false;
  a.orders = 4;
  EXPECT_EQ(Ask(&a).lease().first_batch(), 3u);
  RestartCoordinator();
  Beat(a);
  EXPECT_THAT(Pause(9)->waiting_for(), testing::Contains(HasSubstr("how far the steps have come")));
}

TEST_F(TrainingPauseTest, WhereNobodyIsThereToEndWhatWasBegunItSaysSo) {
  Trainee a = Joined();
  Ask(&a);
  time_.AdvanceMs(kPausedLeaseMs + 1);
  members_->TakeExpired();
  EXPECT_THAT(Pause()->waiting_for(), ElementsAre(HasSubstr("batches 0 to 5 are to be ended: their worker has died"),
                                                  "no worker is there that could: start one"));
  Trainee b = Joined();
  Ask(&b);
  EXPECT_THAT(Pause()->waiting_for(), testing::Not(testing::Contains(HasSubstr("no worker is there"))));
}

// Workers that train, die and join, a coordinator that is started again, and operators that change the order of steps
// at random: every batch of the run is applied once. What the servers know of what was applied is simulated: batches of
// ranges by range and number, those of steps by step and number.
class RandomOrdersTest : public TrainingPauseTest {
 protected:
  uint64_t Draw(uint64_t n) { return RandomBits(seed_, drawn_++) % n; }

  // Trains the next batch of what it has.
  void Train(Trainee* worker) {
    set_last_ = false;
    for (v1::RangeLease& lease : worker->held) {
      if (lease.done() == lease.batches()) continue;
      if (worker->step_batches == 0) {
        if (applied_.insert({0, lease.incarnation(), lease.done()}).second)
          ++trained_[lease.first_batch() + lease.done()];
      } else if (applied_.insert({worker->generation + 1, lease.step(), lease.first_batch() % worker->step_batches})
                     .second) {
        const bool is_rest = lease.is_part();
        if (lease.made_of().empty()) {
          CountUnmapped(lease.first_batch(), worker->step_batches);
        } else {
          for (const uint64_t number : lease.made_of()) trained_[number] += is_rest ? 1.0 / worker->step_batches : 1;
        }
      }
      worker->steps = std::max(worker->steps, lease.step());
      lease.set_done(lease.done() + 1);
      return;
    }
  }
  // The steps that all shards say to have applied: of the last that is complete they may not know.
  uint64_t AppliedSteps(const Trainee& worker) {
    if (worker.step_batches == 0) return 0;
    const auto is_complete = [&](uint64_t step) {
      for (uint32_t batch = 0; batch < worker.step_batches; ++batch) {
        if (!applied_.contains({worker.generation + 1, step, batch})) return false;
      }
      return true;
    };
    uint64_t steps = 0;
    while (is_complete(steps)) ++steps;
    return set_last_ ? steps : steps - std::min<uint64_t>(steps, Draw(2));
  }
  // As StepBatches::Read.
  void CountUnmapped(uint64_t number, uint32_t step_batches) {
    const uint64_t whole = kPausedBatches / step_batches * step_batches;
    if (number < whole) {
      trained_[number] += 1;
    } else {
      for (uint64_t b = whole; b < kPausedBatches; ++b) trained_[b] += 1.0 / step_batches;
    }
  }
  // Whether the run is over for the worker.
  bool Act(Trainee* worker) {
    const bool has_batch = std::any_of(worker->held.begin(), worker->held.end(),
                                       [](const auto& lease) { return lease.done() < lease.batches(); });
    if (has_batch && !worker->paused && Draw(3) > 0) {
      Train(worker);
      return false;
    }
    const v1::LeaseRangesResponse response = Ask(worker);
    if (worker->finished) return response.over() || response.complete();
    if (worker->paused && !response.pause()) {
      worker->paused = false;
      worker->orders = response.orders();
      Follow(worker);
    } else if (!worker->paused && (response.pause() || response.orders() != worker->orders)) {
      // Of a step it ends what it has.
      while (worker->step_batches > 0 && std::any_of(worker->held.begin(), worker->held.end(),
                                                     [](const auto& lease) { return lease.done() == 0; })) {
        Train(worker);
      }
      worker->paused = true;
      worker->steps = AppliedSteps(*worker);
    }
    worker->finished = response.complete();
    return false;
  }
  void Follow(Trainee* worker) {
    worker->step_batches = order_;
    worker->generation = generation_;
    worker->steps = AppliedSteps(*worker);
  }
  void Operate() {
    const auto pause = Pause(token_);
    if (!pause.ok()) {
      ++token_;
      return;
    }
    if (!pause->at_rest() || Draw(4) > 0) return;
    // One that sets nothing, after one that set nothing, could not be told from two that set the order to and fro
    // (CountAnew in ranges.cc) where one step was done.
    if (Draw(5) > 0 || !set_) {
      const auto before = std::exchange(order_, static_cast<uint32_t>(Draw(4)));
      if (order_ != before) ++generation_;  // The tables' steps begin at 0 again.
      set_last_ = set_ = true;
      ++changes_;
    }
    if (!set_last_) set_ = false;
    EXPECT_TRUE(Pause(token_++, /*end=*/true).ok());
    operating_ = false;
  }
  void Run() {
    std::vector<Trainee> workers;
    order_ = static_cast<uint32_t>(Draw(4));
    for (int turn = 0; turn < 20'000; ++turn) {
      time_.AdvanceMs(1);
      if (workers.empty() || (workers.size() < 4 && Draw(60) == 0)) {
        workers.push_back(Joined());
        Follow(&workers.back());
        if (members_->ranges().state().over()) return;
      }
      const size_t w = Draw(workers.size());
      if (Act(&workers[w])) return;
      if (Draw(80) == 0) {  // It dies, and the others learn of that.
        workers.erase(workers.begin() + static_cast<int64_t>(w));
        for (int part = 0; part < 3; ++part) {
          time_.AdvanceMs(kPausedLeaseMs / 2);
          for (const Trainee& worker : workers) Beat(worker, worker.paused ? v1::PHASE_WAITING : v1::PHASE_TRAINING);
          members_->TakeExpired();
        }
      }
      for (const Trainee& worker : workers) Beat(worker, worker.paused ? v1::PHASE_WAITING : v1::PHASE_TRAINING);
      operating_ |= Draw(40) == 0;
      if (operating_) Operate();
      if (members_->changes() != saved_changes_) Save();
      if (Draw(200) == 0) Restart();
    }
    ADD_FAILURE() << "the run does not end: " << members_->ranges().state().ShortDebugString() << " "
                  << Pause(token_)->ShortDebugString();
    for (Trainee& worker : workers) {
      std::printf("%s\n", Ask(&worker).ShortDebugString().c_str());
      std::printf("worker %llu steps of %u orders %llu paused %d finished %d holds %zu\n",
                  static_cast<unsigned long long>(worker.incarnation), worker.step_batches,
                  static_cast<unsigned long long>(worker.orders), worker.paused, worker.finished, worker.held.size());
    }
  }

  // The coordinator's state as it is on the disk: what it does not count as a change is lost.
  void Save() {
    saved_ = members_->SaveState();
    saved_changes_ = members_->changes();
  }
  void Restart() {
    members_.emplace(Options());
    ASSERT_TRUE(members_->Restore(saved_).ok());
    saved_changes_ = members_->changes();
  }

  v1::CoordinatorState saved_;
  uint64_t saved_changes_ = 0;
  uint64_t generation_ = 0;
  bool set_ = true;        // The last operator that had workers pause has set something.
  bool set_last_ = false;  // An operator has set something since a batch was trained, which applies what is complete.
  uint64_t seed_ = 0, drawn_ = 0;
  uint32_t order_ = 0;  // Batches of a step, as the servers have it.
  uint64_t token_ = 1;
  bool operating_ = false;
  uint64_t changes_ = 0;
  std::set<std::tuple<uint64_t, uint64_t, uint64_t>> applied_;
  std::map<uint64_t, double> trained_;  // By batch.
};

TEST_F(RandomOrdersTest, EveryBatchIsTrainedOnceWhateverTheOrdersAndWhicheverWorkersDie) {
  constexpr uint64_t kSeeds = 1000;
  uint64_t changes = 0;
  for (seed_ = 1; seed_ <= kSeeds; ++seed_) {
    SCOPED_TRACE(testing::Message() << "seed " << seed_);
    drawn_ = 0;
    members_.emplace(Options());
    applied_.clear();
    trained_.clear();
    operating_ = false;
    generation_ = 0;
    set_last_ = false;
    Save();
    Run();
    EXPECT_EQ(trained_.size(), kPausedBatches);
    for (const auto& [batch, times] : trained_) EXPECT_NEAR(times, 1, 1e-9) << "batch " << batch;
    if (HasFailure()) return;
    changes += changes_;
    changes_ = 0;
  }
  std::printf("%llu changes of the order in %llu runs\n", static_cast<unsigned long long>(changes),
              static_cast<unsigned long long>(kSeeds));
  EXPECT_GT(changes, kSeeds);
}

}  // namespace
}  // namespace lodestone::server
