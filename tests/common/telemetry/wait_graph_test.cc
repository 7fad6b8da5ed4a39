#include "common/telemetry/wait_graph.h"

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using v1::WaitTarget;

// Three workers that train and two servers, all of which live.
class WaitGraphTest : public testing::Test {
 protected:
  WaitGraphTest() {
    for (uint32_t i = 0; i < 3; ++i) {
      v1::MemberStatus* const worker = cluster_.add_workers();
      worker->set_index(i);
      worker->set_alive(true);
      worker->set_samples_per_second(100);
      worker->mutable_progress()->set_phase(v1::PHASE_TRAINING);
      worker->mutable_progress()->set_clock(40);
    }
    for (uint32_t i = 0; i < 2; ++i) {
      v1::MemberStatus* const server = cluster_.add_servers();
      server->set_index(i);
      server->set_alive(true);
    }
  }

  static void AddTarget(WaitTarget::Kind kind, uint32_t index, uint64_t clock, std::vector<uint32_t> shards,
                        v1::WaitStatus* wait) {
    WaitTarget* const target = wait->add_targets();
    target->set_kind(kind);
    target->set_index(index);
    target->set_clock(clock);
    target->mutable_shards()->Add(shards.begin(), shards.end());
  }
  v1::WaitStatus* WorkerWaits(uint32_t worker, double seconds) {
    v1::WaitStatus* const wait = cluster_.mutable_workers(worker)->mutable_progress()->add_waits();
    wait->set_seconds(seconds);
    return wait;
  }
  void WaitsForClock(uint32_t worker, uint64_t clock, std::initializer_list<uint32_t> of, double seconds = 3) {
    v1::WaitStatus* const wait = WorkerWaits(worker, seconds);
    for (const uint32_t other : of) AddTarget(WaitTarget::WORKER, other, clock, {}, wait);
  }
  void Pushes(uint32_t worker, uint64_t sequence, uint32_t server, std::vector<uint32_t> shards, double seconds = 2) {
    v1::WaitStatus* const wait = WorkerWaits(worker, seconds);
    wait->set_call("push");
    wait->set_sequence(sequence);
    wait->set_what(absl::StrCat("push sequence=", sequence));
    AddTarget(WaitTarget::SERVER, server, 0, std::move(shards), wait);
  }
  v1::WaitStatus* ServerWaits(uint32_t server, WaitTarget::Kind kind, const std::string& what, double seconds) {
    v1::WaitStatus* const wait = cluster_.mutable_servers(server)->mutable_server()->add_waits();
    wait->set_what(what);
    wait->set_seconds(seconds);
    if (kind != WaitTarget::UNKNOWN) wait->add_targets()->set_kind(kind);
    return wait;
  }
  std::vector<v1::WaitChain> Chains() const { return WaitGraph(&cluster_, 0).Chains(); }
  std::vector<std::string> Texts() const {
    std::vector<std::string> texts;
    for (const v1::WaitChain& chain : Chains()) texts.push_back(chain.text());
    return texts;
  }

  v1::ClusterStatus cluster_;
};

TEST_F(WaitGraphTest, NothingWaits) { EXPECT_THAT(Chains(), IsEmpty()); }

TEST_F(WaitGraphTest, AChainLeadsOverWorkersAndServersToTheDisk) {
  WaitsForClock(2, 41, {0});
  Pushes(0, 1093, 1, {17});
  ServerWaits(1, WaitTarget::DISK, "a write to the log in /data is under way", 1.5);
  const std::vector<v1::WaitChain> chains = Chains();
  ASSERT_THAT(chains, SizeIs(1)) << "what lies on the way is told once";
  EXPECT_EQ(chains[0].text(),
            "worker 2 waits for clock 41 of worker 0, whose push 1093 waits for shard 17 on ps 1, which waits for its "
            "disk: a write to the log in /data is under way, since 1.5 s");
  EXPECT_EQ(chains[0].root(), v1::WaitChain::ROOT_THING);
  ASSERT_EQ(chains[0].links_size(), 3);
  EXPECT_EQ(chains[0].links(0).waiter().kind(), WaitTarget::WORKER);
  EXPECT_EQ(chains[0].links(0).waiter().index(), 2u);
  EXPECT_EQ(chains[0].links(1).sequence(), 1093u);
  EXPECT_EQ(chains[0].links(2).waiter().kind(), WaitTarget::SERVER);
  EXPECT_EQ(chains[0].links(2).targets(0).kind(), WaitTarget::DISK);
}

TEST_F(WaitGraphTest, AFollowersDiskHoldsUpTheShardThatItFollows) {
  Pushes(0, 7, 0, {3, 17, 40});
  v1::WaitStatus* const confirms = ServerWaits(0, WaitTarget::UNKNOWN, "ps 1 to confirm updates", 2);
  confirms->add_shards(17);
  AddTarget(WaitTarget::SERVER, 1, 0, {17}, confirms);
  ServerWaits(1, WaitTarget::DISK, "a write", 2);
  EXPECT_THAT(Texts(),
              ElementsAre("worker 0's push 7 waits for shard 17 on ps 0, which waits for shard 17 on ps 1, which "
                          "waits for its disk: a write, since 2.0 s"));
}

TEST_F(WaitGraphTest, AWaitOfOtherShardsIsNotWhatAPushMeets) {
  Pushes(0, 7, 0, {3, 4, 5});
  v1::WaitStatus* const confirms = ServerWaits(0, WaitTarget::UNKNOWN, "ps 1 to confirm updates", 2);
  confirms->add_shards(17);
  AddTarget(WaitTarget::SERVER, 1, 0, {17}, confirms);
  const std::vector<std::string> texts = Texts();
  ASSERT_THAT(texts, SizeIs(2));
  EXPECT_EQ(texts[0],
            "worker 0's push 7 waits for shards 3, 4 and 1 more on ps 0, of which no wait is known (the message or its "
            "answer may be on its way): push sequence=7");
  EXPECT_EQ(texts[1], "ps 0 waits for shard 17 on ps 1, of which no wait is known: ps 1 to confirm updates");
  EXPECT_EQ(Chains()[0].root(), v1::WaitChain::ROOT_UNKNOWN);
}

TEST_F(WaitGraphTest, ACycleIsSaidAsSuchOnce) {
  WaitsForClock(0, 5, {1});
  WaitsForClock(1, 5, {2});
  WaitsForClock(2, 5, {0});
  const std::vector<v1::WaitChain> chains = Chains();
  ASSERT_THAT(chains, SizeIs(1));
  EXPECT_EQ(chains[0].text(),
            "worker 0 waits for clock 5 of worker 1, which waits for clock 5 of worker 2, which waits for clock 5 of "
            "worker 0: they wait for one another, a cycle");
  EXPECT_EQ(chains[0].root(), v1::WaitChain::ROOT_CYCLE);
}

// Workers of synchronous steps wait by turns, and what is known of one may be of the step before.
TEST_F(WaitGraphTest, WaitsTooShortToHaveBeenAtTheSameTimeAreNoCycle) {
  WaitsForClock(0, 5, {1}, /*seconds=*/60);
  WaitsForClock(1, 4, {0}, /*seconds=*/1.5);
  const std::vector<v1::WaitChain> chains = Chains();
  ASSERT_THAT(chains, SizeIs(1));
  EXPECT_EQ(
      chains[0].text(),
      "worker 0 waits for clock 5 of worker 1, which waits for clock 4 of worker 0: by turns, or for one another; "
      "not all of these waits are long enough to tell");
  EXPECT_EQ(chains[0].root(), v1::WaitChain::ROOT_UNKNOWN);
}

TEST_F(WaitGraphTest, AWaitBesideACycleDoesNotMakeItUncertain) {
  WaitsForClock(2, 5, {0}, /*seconds=*/1);
  WaitsForClock(0, 5, {1});
  WaitsForClock(1, 5, {0});
  const std::vector<v1::WaitChain> chains = Chains();
  ASSERT_THAT(chains, SizeIs(1));
  EXPECT_EQ(chains[0].root(), v1::WaitChain::ROOT_CYCLE);
}

TEST_F(WaitGraphTest, OneThatIsNotHeardOfIsTheRootWhateverItSaidLast) {
  WaitsForClock(2, 41, {0, 1});
  Pushes(1, 9, 0, {1});
  cluster_.mutable_workers(1)->set_last_contact_seconds(4.25);
  EXPECT_THAT(Texts(),
              ElementsAre("worker 2 waits for clock 41 of worker 1 (and of 1 more), which is silent, last heard of "
                          "4.2 s ago",
                          "worker 1's push 9 waits for shard 1 on ps 0, of which no wait is known (the message or its "
                          "answer may be on its way): push sequence=9"));
  EXPECT_EQ(Chains()[0].root(), v1::WaitChain::ROOT_SILENT);
}

TEST_F(WaitGraphTest, TheDeadTheGoneAndThoseThatNeverCameAreNamed) {
  WaitsForClock(0, 41, {1});
  WaitsForClock(2, 41, {7});
  cluster_.mutable_workers(1)->set_alive(false);
  cluster_.mutable_workers(1)->set_last_contact_seconds(12);
  EXPECT_THAT(Texts(), ElementsAre("worker 0 waits for clock 41 of worker 1, which is dead, last heard of 12.0 s ago",
                                   "worker 2 waits for clock 41 of worker 7, which has not joined"));
  cluster_.mutable_workers(1)->set_left(true);
  EXPECT_THAT(Texts()[0], HasSubstr("worker 1, which has left"));
}

TEST_F(WaitGraphTest, AServerThatDoesNotAnswerIsARoot) {
  Pushes(0, 7, 1, {17});
  cluster_.mutable_servers(1)->set_last_contact_seconds(2.5);
  WaitGraph graph(&cluster_, 0);
  graph.NoteAsked(1, /*answered=*/false);
  ASSERT_THAT(graph.Chains(), SizeIs(1));
  EXPECT_EQ(graph.Chains()[0].text(),
            "worker 0's push 7 waits for shard 17 on ps 1, which does not answer, last heard of 2.5 s ago");
  cluster_.mutable_servers(1)->set_last_contact_seconds(30);
  EXPECT_THAT(Texts()[0], HasSubstr("ps 1, which is silent, last heard of 30.0 s ago"));
  graph.NoteAsked(1, /*answered=*/true);
  EXPECT_THAT(graph.Chains()[0].text(), HasSubstr("ps 1, of which no wait is known")) << "it has just answered";
}

TEST_F(WaitGraphTest, AWorkerThatTrainsIsARootWithWhatItsTimeGoesBy) {
  WaitsForClock(2, 41, {0});
  for (const auto& [stage, seconds] : {std::pair("input", 0.05), std::pair("compute", 0.45)}) {
    v1::StageTime* const time = cluster_.mutable_workers(0)->add_stages();
    time->set_stage(stage);
    time->set_seconds(seconds);
  }
  EXPECT_THAT(Texts(),
              ElementsAre("worker 2 waits for clock 41 of worker 0, which trains at 100 samples/s and is at clock "
                          "40 (input 10 %, compute 90 %)"));
  EXPECT_EQ(Chains()[0].root(), v1::WaitChain::ROOT_TRAINS);
  cluster_.mutable_workers(0)->mutable_progress()->set_phase(v1::PHASE_LOADING);
  EXPECT_THAT(Texts()[0], HasSubstr("worker 0, which reads its data"));
}

TEST_F(WaitGraphTest, ChainsThatDifferInTheirBeginningAreOne) {
  for (const uint32_t worker : {0u, 1u, 2u}) Pushes(worker, 100 + worker, 1, {17}, 5 - worker);
  ServerWaits(1, WaitTarget::MEMORY, "room for calls", 4);
  const std::vector<v1::WaitChain> chains = Chains();
  ASSERT_THAT(chains, SizeIs(1));
  EXPECT_THAT(chains[0].text(),
              HasSubstr("worker 0's push 100 waits for shard 17 on ps 1, which waits for its memory"));
  EXPECT_THAT(chains[0].likewise(), ElementsAre("worker 1", "worker 2"));
}

TEST_F(WaitGraphTest, TheLongestWaitComesFirstAndWhatIsOfTheBackgroundIsLeftOut) {
  WaitsForClock(1, 41, {0}, 1);
  ServerWaits(0, WaitTarget::OPERATOR, "3 shards are lost", 60);
  ServerWaits(1, WaitTarget::UNKNOWN, "3 shards to have two copies", 90)->set_background(true);
  const std::vector<std::string> texts = Texts();
  ASSERT_THAT(texts, SizeIs(2));
  EXPECT_EQ(texts[0], "ps 0 waits for an operator: 3 shards are lost, since 60.0 s");
}

TEST_F(WaitGraphTest, WhatTheCoordinatorSaysOfAWorkersWaitIsNewer) {
  WaitsForClock(2, 41, {0}, 1);
  v1::WaitStatus wait;
  wait.mutable_waiter()->set_kind(WaitTarget::WORKER);
  wait.mutable_waiter()->set_index(2);
  wait.set_seconds(9);
  AddTarget(WaitTarget::WORKER, 0, 41, {}, &wait);
  WaitGraph graph(&cluster_, 0);
  graph.Add(wait);
  v1::WaitStatus of_nobody = wait;
  of_nobody.clear_waiter();
  graph.Add(of_nobody);
  ASSERT_THAT(graph.Chains(), SizeIs(1));
  EXPECT_EQ(graph.Chains()[0].links(0).seconds(), 9);
}

TEST_F(WaitGraphTest, TheCoordinatorIsThePsThatServesIt) {
  v1::WaitStatus* const wait = WorkerWaits(1, 2);
  wait->set_what("a range of samples: UNAVAILABLE");
  wait->add_targets()->set_kind(WaitTarget::COORDINATOR);
  ServerWaits(0, WaitTarget::DISK, "the state cannot be saved", 3);
  EXPECT_THAT(Texts(),
              ElementsAre("worker 1 waits for the coordinator on ps 0, which waits for its disk: the state cannot be "
                          "saved, since 3.0 s"));
  const std::vector<v1::WaitChain> unknown = WaitGraph(&cluster_, std::nullopt).Chains();
  ASSERT_THAT(unknown, SizeIs(2));
  EXPECT_THAT(unknown[1].text(), HasSubstr("worker 1 waits for a range of samples: UNAVAILABLE"));
}

// Batches of three a step: worker 2 has batch 1 of step 40, and worker 0 has both others.
class StepWaitGraphTest : public WaitGraphTest {
 protected:
  StepWaitGraphTest() {
    for (int i = 0; i < 3; ++i) cluster_.mutable_workers(i)->set_incarnation(100 + i);
    v1::RangeState& ranges = *cluster_.mutable_ranges();
    ranges.mutable_plan()->set_step_batches(3);
    for (const auto& [batch, worker] : {std::pair(0, 0), std::pair(1, 2), std::pair(2, 0)}) {
      v1::RangeLease& lease = *ranges.add_open();
      lease.set_first_batch(9 + batch);
      lease.set_step(40);
      lease.set_holder(100 + worker);
    }
    v1::WaitStatus* const pull = WorkerWaits(1, 3);
    pull->set_call("pull");
    AddTarget(WaitTarget::SERVER, 0, 0, {3, 17}, pull);
  }
  // What ps 0 waits for in the name of pulls of shard 17.
  void LacksBatches(std::initializer_list<uint32_t> batches, uint64_t step = 40) {
    v1::WaitStatus* const wait = ServerWaits(0, WaitTarget::CONTRIBUTION, "41 steps of table `t`", 3);
    wait->add_shards(17);
    wait->mutable_targets(0)->set_step(step);
    wait->mutable_targets(0)->mutable_batches()->Add(batches.begin(), batches.end());
  }
};

TEST_F(StepWaitGraphTest, AStepsBatchIsThatOfTheWorkerThatHasLeasedIt) {
  LacksBatches({1});
  Pushes(2, 1093, 1, {17});
  ServerWaits(1, WaitTarget::DISK, "a write", 1.5);
  const std::vector<v1::WaitChain> chains = Chains();
  ASSERT_THAT(chains, SizeIs(1));
  EXPECT_EQ(chains[0].text(),
            "worker 1's pull waits for shard 17 on ps 0, which waits for batch 1 of step 40 of worker 2, whose push "
            "1093 waits for shard 17 on ps 1, which waits for its disk: a write, since 1.5 s");
  EXPECT_EQ(chains[0].root(), v1::WaitChain::ROOT_THING);
  ASSERT_EQ(chains[0].links_size(), 4);
  EXPECT_EQ(chains[0].links(1).targets(0).kind(), WaitTarget::WORKER);
  EXPECT_EQ(chains[0].links(1).targets(0).index(), 2u);
  EXPECT_THAT(chains[0].links(1).targets(0).batches(), ElementsAre(1u));
}

TEST_F(StepWaitGraphTest, OfSeveralWorkersWithBatchesTheSilentOneIsFollowed) {
  LacksBatches({0, 1, 2});
  cluster_.mutable_workers(0)->set_last_contact_seconds(4.25);
  EXPECT_THAT(Texts(),
              ElementsAre("worker 1's pull waits for shard 17 on ps 0, which waits for batches 0 and 2 of step "
                          "40 of worker 0 (and of 1 more), which is silent, last heard of 4.2 s ago"));
}

TEST_F(StepWaitGraphTest, ABatchThatNoWorkerHasIsTheRoot) {
  LacksBatches({1}, /*step=*/41);
  EXPECT_THAT(Texts(), ElementsAre("worker 1's pull waits for shard 17 on ps 0, which waits for batch 1 of step 41, "
                                   "which no worker has leased: 41 steps of table `t`, since 3.0 s"));
  EXPECT_EQ(Chains()[0].root(), v1::WaitChain::ROOT_THING);
}

TEST_F(WaitGraphTest, AWorkerOfAFormerVersionSaysInWordsWhatItWaitsFor) {
  cluster_.mutable_workers(1)->mutable_progress()->set_waiting_for("push sequence=3 to ps 1");
  EXPECT_THAT(Texts(), ElementsAre("worker 1 waits for push sequence=3 to ps 1"));
}

TEST_F(WaitGraphTest, ThereAreNoMoreChainsThanTheLimit) {
  for (uint32_t i = 0; i < 2 * limits::kWaitChainsMax; ++i) {
    WorkerWaits(0, i)->set_what(absl::StrCat("thing ", i));
  }
  EXPECT_THAT(Chains(), SizeIs(limits::kWaitChainsMax));
}

TEST_F(WaitGraphTest, WorkersAtLessThanHalfTheOthersRateAreSlow) {
  cluster_.mutable_workers(1)->set_samples_per_second(30);
  const std::vector<v1::SlowMember> slow = SlowMembersOf(cluster_);
  ASSERT_THAT(slow, SizeIs(1));
  EXPECT_EQ(slow[0].role(), v1::ROLE_WORKER);
  EXPECT_EQ(slow[0].text(), "worker 1 trains at 30 samples/s, 0.30 of the others' median");
  cluster_.mutable_workers(1)->mutable_progress()->set_phase(v1::PHASE_WAITING);
  EXPECT_THAT(SlowMembersOf(cluster_), IsEmpty()) << "it is done";
}

TEST_F(WaitGraphTest, AServerWherePushesTakeLongIsSlowAndSaysInWhichStage) {
  for (int server = 0; server < 2; ++server) {
    cluster_.mutable_servers(server)->mutable_server()->set_pushes_per_second(100);
    for (const auto& [stage, seconds] : {std::pair("apply", 0.1), std::pair("commit", server == 0 ? 0.1 : 9.9)}) {
      v1::StageTime* const time = cluster_.mutable_servers(server)->add_stages();
      time->set_stage(stage);
      time->set_seconds(seconds);
    }
  }
  const std::vector<v1::SlowMember> slow = SlowMembersOf(cluster_);
  ASSERT_THAT(slow, SizeIs(1));
  EXPECT_EQ(slow[0].text(), "a push takes 100.0 ms on ps 1, 50.0 x the others' median: apply 1 %, commit 99 %");
}

TEST_F(WaitGraphTest, AStatusOfTheCoordinatorHasTheChains) {
  v1::StatusResponse status;
  ExplainWaits(&status);
  EXPECT_FALSE(status.has_cluster());
  *status.mutable_cluster() = cluster_;
  v1::WaitStatus* const wait = status.add_waits();
  wait->mutable_waiter()->set_kind(WaitTarget::WORKER);
  wait->mutable_waiter()->set_index(2);
  AddTarget(WaitTarget::WORKER, 0, 41, {}, wait);
  ExplainWaits(&status);
  ASSERT_EQ(status.cluster().why_size(), 1);
  EXPECT_THAT(status.cluster().why(0).text(), HasSubstr("worker 2 waits for clock 41 of worker 0, which trains"));
}

}  // namespace
}  // namespace lodestone
