#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/cluster_status.h"
#include "server/coordinator/membership.h"
#include "server/monitoring/event_log.h"
#include "tests/server/coordinator/replicated_members.h"

namespace lodestone::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr uint32_t kShownShards = 8;

// Two servers, each of which follows the other's shards, and two workers.
class MembershipStatusTest : public ::testing::Test {
 protected:
  Membership::Options Options() const {
    Membership::Options options;
    options.cluster = "test";
    options.servers = 2;
    options.workers = 2;
    options.shards = kShownShards;
    options.replicas = 2;
    options.lease_ms = kLeaseMs;
    options.first_incarnation = 100;
    options.time = &time_;
    return options;
  }
  Incarnation JoinServer(uint32_t index, uint64_t token = 0) {
    v1::JoinRequest request;
    request.set_role(v1::ROLE_SERVER);
    request.set_address(absl::StrCat("host:", 1 + index));
    request.set_index_plus_one(index + 1);
    request.set_cluster("test");
    request.set_shards(kShownShards);
    request.set_peer("host:4711");
    request.set_token(token);
    return Joined(request);
  }
  Incarnation JoinWorker(uint32_t index) {
    v1::JoinRequest request;
    request.set_role(v1::ROLE_WORKER);
    request.set_index_plus_one(index + 1);
    request.set_cluster("test");
    request.set_peer("host:815");
    return Joined(request);
  }
  Incarnation Joined(const v1::JoinRequest& request) {
    const auto joined = members_.Join(request);
    EXPECT_TRUE(joined.ok()) << joined.status();
    return joined.ok() ? joined->incarnation() : 0;
  }
  // All are there, and nothing of that is news.
  void JoinAll() {
    for (uint32_t i = 0; i < 2; ++i) servers_[i] = JoinServer(i, 50 + i);
    for (uint32_t i = 0; i < 2; ++i) workers_[i] = JoinWorker(i);
    Take();
  }
  absl::Status Beat(Incarnation incarnation, const v1::HeartbeatRequest& what = {}) {
    v1::HeartbeatRequest request = what;
    request.set_incarnation(incarnation);
    return members_.Heartbeat(request).status();
  }
  absl::Status Leave(Incarnation incarnation) {
    v1::HeartbeatRequest request;
    request.set_leaving(true);
    return Beat(incarnation, request);
  }
  // A heartbeat of a ps that has noted these events in turn, at these times.
  static v1::HeartbeatRequest Telling(const std::vector<uint64_t>& times_ms, const std::string& who = "ps 1") {
    v1::HeartbeatRequest request;
    for (const uint64_t time_ms : times_ms) {
      v1::Event* const event = request.add_events();
      event->set_time_ms(time_ms);
      event->set_kind("checkpointed");
      event->set_who(who);
      event->set_text(absl::StrCat("at ", time_ms));
    }
    return request;
  }
  // "joined ps 1: at host:2" of each event since the last call.
  std::vector<std::string> Take() {
    std::vector<std::string> lines;
    for (const v1::Event& event : members_.TakeEvents()) {
      EXPECT_EQ(event.id(), 0);
      EXPECT_GT(event.time_ms(), 0);
      lines.push_back(absl::StrCat(event.kind(), " ", event.who(), ": ", event.text()));
    }
    return lines;
  }
  // Lets the leases of all but `living` end.
  void LetExpire(const std::vector<Incarnation>& living) {
    time_.AdvanceMs(kLeaseMs - 1);
    for (const Incarnation life : living) EXPECT_TRUE(Beat(life).ok());
    time_.AdvanceMs(1);
    members_.TakeExpired();
  }
  void SyncAll() {
    const v1::CoordinatorState state = members_.SaveState();
    for (ShardId shard = 0; shard < kShownShards; ++shard) {
      v1::ReportSyncRequest request;
      request.set_incarnation(servers_[state.owners(shard)]);
      request.add_reports()->set_shard(shard);
      request.mutable_reports(0)->set_follower(servers_[state.followers(shard) - 1]);
      request.mutable_reports(0)->set_in_sync(true);
      ASSERT_TRUE(members_.ReportSync(request).ok());
    }
  }

  ManualTime time_;
  Membership members_{Options()};
  Incarnation servers_[2] = {};
  Incarnation workers_[2] = {};
};

TEST_F(MembershipStatusTest, TellsWhoJoinedLeftAndDied) {
  const Incarnation server = JoinServer(1);
  const Incarnation worker = JoinWorker(0);
  JoinWorker(1);
  EXPECT_THAT(Take(),
              ElementsAre("joined ps 1: host:2, host:4711", "joined worker 0: host:815", "joined worker 1: host:815"));
  EXPECT_THAT(Take(), IsEmpty()) << "each is told once";
  ASSERT_TRUE(Leave(worker).ok());
  EXPECT_THAT(Take(), ElementsAre("left worker 0: shut down"));
  LetExpire({server});
  EXPECT_THAT(Take(), ElementsAre("died worker 1: last heard of 1.0 s ago"));
  time_.AdvanceMs(10 * kLeaseMs);
  members_.TakeExpired();
  members_.TakeExpired();
  EXPECT_THAT(Take(), ElementsAre("died ps 1: last heard of 10.0 s ago"));
}

TEST_F(MembershipStatusTest, AJoinWhoseAnswerWasLostIsNoNews) {
  JoinServer(0, 77);
  EXPECT_THAT(Take(), SizeIs(1));
  JoinServer(0, 77);
  EXPECT_THAT(Take(), IsEmpty());
}

TEST_F(MembershipStatusTest, AServerThatIsStartedAgainBeforeItsLeaseEndsHasDied) {
  JoinServer(0, 77);
  Take();
  JoinServer(0, 78);
  EXPECT_THAT(Take(), ElementsAre("died ps 0: another process has taken its place", "joined ps 0: host:1, host:4711"));
}

TEST_F(MembershipStatusTest, OneThatHadLostItsLeaseJoinsAgain) {
  JoinServer(0, 77);
  Take();
  LetExpire({});
  JoinServer(0, 77);
  EXPECT_THAT(Take(), ElementsAre("died ps 0: last heard of 1.0 s ago", "joined ps 0: again, host:1, host:4711"));
}

TEST_F(MembershipStatusTest, ShardsThatMoveAreToldAsRangesAfterWhyTheyDo) {
  JoinAll();
  SyncAll();
  LetExpire({servers_[0], workers_[0], workers_[1]});
  EXPECT_THAT(Take(), ElementsAre("died ps 1: last heard of 1.0 s ago", "moved ps 1: shards 1, 3, 5, 7 to ps 0"));
  servers_[1] = JoinServer(1, 99);
  Take();
  SyncAll();
  ASSERT_TRUE(Leave(servers_[0]).ok());
  EXPECT_THAT(Take(), ElementsAre("left ps 0: shut down", "moved ps 0: shards 0-7 to ps 1"));
}

TEST_F(MembershipStatusTest, WhatNobodyElseHasDoesNotMove) {
  JoinAll();
  LetExpire({servers_[0], workers_[0], workers_[1]});
  EXPECT_THAT(Take(), ElementsAre("died ps 1: last heard of 1.0 s ago"));
}

TEST_F(MembershipStatusTest, ThatPsZeroEndedWithTheCoordinatorIsKnownToItsNextLife) {
  JoinAll();
  SyncAll();
  Membership next(Options());
  ASSERT_TRUE(next.Restore(members_.SaveState()).ok());
  std::vector<v1::Event> events = next.TakeEvents();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].kind(), "died");
  EXPECT_EQ(events[0].who(), "ps 0");
  v1::HeartbeatRequest request;
  request.set_incarnation(servers_[1]);
  ASSERT_TRUE(next.Heartbeat(request).ok());
  events = next.TakeEvents();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].kind(), "moved");
  EXPECT_EQ(events[0].text(), "shards 0, 2, 4, 6 to ps 1");
}

TEST_F(MembershipStatusTest, PassesOnWhatServersTellAndWithTheirTimes) {
  JoinAll();
  ASSERT_TRUE(Beat(servers_[1], Telling({5, 9})).ok());
  const std::vector<v1::Event> events = members_.TakeEvents();
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].time_ms(), 5);
  EXPECT_EQ(events[1].time_ms(), 9);
  EXPECT_EQ(events[1].kind(), "checkpointed");
  EXPECT_EQ(events[1].who(), "ps 1");
  EXPECT_EQ(events[1].text(), "at 9");
}

TEST_F(MembershipStatusTest, WhatIsSentAgainBecauseTheAnswerWasLostIsTakenOnce) {
  JoinAll();
  ASSERT_TRUE(Beat(servers_[1], Telling({5, 9})).ok());
  ASSERT_TRUE(Beat(servers_[1], Telling({5, 9})).ok());
  ASSERT_TRUE(Beat(servers_[1], Telling({5, 9, 12})).ok());
  ASSERT_TRUE(Beat(servers_[1], Telling({5, 9})).ok()) << "one that was under way for long";
  ASSERT_TRUE(Beat(servers_[1], Telling({13})).ok());
  EXPECT_THAT(Take(), ElementsAre("checkpointed ps 1: at 5", "checkpointed ps 1: at 9", "checkpointed ps 1: at 12",
                                  "checkpointed ps 1: at 13"));
  ASSERT_TRUE(Beat(servers_[0], Telling({5}, "ps 0")).ok());
  EXPECT_THAT(Take(), ElementsAre("checkpointed ps 0: at 5")) << "each ps has its own times";
}

TEST_F(MembershipStatusTest, WhatWasTakenIsKnownAfterTheLeaseWasLostAndNotOfAnotherLife) {
  JoinAll();
  ASSERT_TRUE(Beat(servers_[1], Telling({50})).ok());
  LetExpire({servers_[0], workers_[0], workers_[1]});
  EXPECT_FALSE(Beat(servers_[1], Telling({50, 51})).ok());
  servers_[1] = JoinServer(1, 51);
  Take();
  ASSERT_TRUE(Beat(servers_[1], Telling({50, 51})).ok());
  EXPECT_THAT(Take(), ElementsAre("checkpointed ps 1: at 51"));
  servers_[1] = JoinServer(1, 4711);
  Take();
  ASSERT_TRUE(Beat(servers_[1], Telling({7})).ok()) << "on a machine whose clock is behind";
  EXPECT_THAT(Take(), ElementsAre("checkpointed ps 1: at 7"));
}

TEST_F(MembershipStatusTest, TheLastHeartbeatTellsTooAndThenThatItLeaves) {
  JoinAll();
  v1::HeartbeatRequest request = Telling({5});
  request.set_leaving(true);
  ASSERT_TRUE(Beat(servers_[1], request).ok());
  EXPECT_THAT(Take(), ElementsAre("checkpointed ps 1: at 5", "left ps 1: shut down"));
}

TEST_F(MembershipStatusTest, OnlyServersTellAndNoMoreThanFitsIntoAHeartbeat) {
  JoinAll();
  ASSERT_TRUE(Beat(workers_[0], Telling({5})).ok());
  EXPECT_THAT(Take(), IsEmpty());
  std::vector<uint64_t> times;
  for (uint64_t i = 1; i <= 10 * limits::kHeartbeatEventsMax; ++i) times.push_back(i);
  ASSERT_TRUE(Beat(servers_[1], Telling(times)).ok());
  EXPECT_THAT(Take(), SizeIs(limits::kHeartbeatEventsMax));
}

TEST_F(MembershipStatusTest, AWorkerThatAPsKnowsByItsIncarnationIsNamed) {
  JoinAll();
  ASSERT_TRUE(Beat(servers_[1], Telling({5}, NameOfIncarnation(workers_[1]))).ok());
  ASSERT_TRUE(Beat(servers_[1], Telling({6}, NameOfIncarnation(4711))).ok());
  EXPECT_THAT(Take(), ElementsAre("checkpointed worker 1: at 5", "checkpointed incarnation 4711: at 6"));
}

TEST_F(MembershipStatusTest, TheStatusShowsWhatServersSayOfThemselvesAndWhatTheyHold) {
  JoinAll();
  v1::HeartbeatRequest request;
  request.mutable_server()->set_resident_bytes(1 << 20);
  request.mutable_server()->set_pushes_per_second(12.5);
  request.mutable_server()->set_rows(77);
  request.mutable_server()->set_http(std::string(100'000, 'x'));
  ASSERT_TRUE(Beat(servers_[1], request).ok());
  ASSERT_TRUE(Beat(servers_[1]).ok()) << "one that says nothing of it";
  const v1::ClusterStatus status = members_.Status();
  ASSERT_EQ(status.servers_size(), 2);
  EXPECT_EQ(status.servers(1).server().resident_bytes(), 1 << 20);
  EXPECT_EQ(status.servers(1).server().pushes_per_second(), 12.5);
  EXPECT_EQ(status.servers(1).server().rows(), 77);
  EXPECT_THAT(status.servers(1).server().http(), AllOf(StartsWith("xxx"), SizeIs(1024)));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(status.servers(i).shards_owned(), 4);
    EXPECT_EQ(status.servers(i).shards_following(), 4);
  }
  EXPECT_FALSE(status.workers(0).has_server());
  SyncAll();
  LetExpire({servers_[1]});
  EXPECT_EQ(members_.Status().servers(0).shards_owned(), 0);
  EXPECT_EQ(members_.Status().servers(1).shards_owned(), 8);
}

TEST_F(MembershipStatusTest, WhatAServerSaysOfItsShardsIsMadeSafeToKeep) {
  JoinAll();
  v1::HeartbeatRequest request;
  for (size_t shard = 0; shard < 2 * limits::kShardLoadsMax; ++shard) {
    v1::ShardLoad* const load = request.mutable_server()->add_shards();
    load->set_shard(static_cast<uint32_t>(shard));
    load->set_pushes_per_second(NAN);
    load->set_push_bytes_per_second(-INFINITY);
    load->set_pull_bytes_per_second(3);
  }
  for (size_t i = 0; i < 2 * limits::kHotKeysMax; ++i) {
    request.mutable_server()->add_hot_keys()->set_table(std::string(100'000, 'x'));
  }
  ASSERT_TRUE(Beat(servers_[1], request).ok());
  const v1::ClusterStatus status = members_.Status();
  const v1::ServerProgress& kept = status.servers(1).server();
  ASSERT_THAT(kept.shards(), SizeIs(limits::kShardLoadsMax));
  EXPECT_EQ(kept.shards(0).pushes_per_second(), 0);
  EXPECT_EQ(kept.shards(0).push_bytes_per_second(), 0);
  EXPECT_EQ(kept.shards(0).pull_bytes_per_second(), 3);
  ASSERT_THAT(kept.hot_keys(), SizeIs(limits::kHotKeysMax));
  EXPECT_THAT(kept.hot_keys(0).table(), SizeIs(1024));
}

TEST_F(MembershipStatusTest, BeforeThereIsAMapNobodyHoldsAnything) {
  JoinServer(0);
  EXPECT_EQ(members_.Status().servers(0).shards_owned(), 0);
  EXPECT_EQ(members_.Status().servers(0).shards_following(), 0);
}

TEST_F(MembershipStatusTest, AMomentSumsWhoLivesAndAveragesWhoTrains) {
  EXPECT_FALSE(AnyWorkerWorks(members_.members()));
  JoinAll();
  EXPECT_TRUE(AnyWorkerWorks(members_.members()));
  EXPECT_FALSE(MomentOf(members_.members()).trains);
  EXPECT_EQ(MomentOf(members_.members()).point.workers(), 2);
  const auto progress = [this](int worker, v1::Phase phase, uint64_t samples, float loss) {
    v1::HeartbeatRequest request;
    request.mutable_progress()->set_phase(phase);
    request.mutable_progress()->set_clock(samples / 10);
    request.mutable_progress()->set_samples(samples);
    request.mutable_progress()->set_loss(loss);
    request.mutable_progress()->set_staleness_pushes(4 * loss);
    ASSERT_TRUE(Beat(workers_[worker], request).ok());
  };
  const auto pushes = [this](int server, double per_second) {
    v1::HeartbeatRequest request;
    request.mutable_server()->set_pushes_per_second(per_second);
    ASSERT_TRUE(Beat(servers_[server], request).ok());
  };
  progress(0, v1::PHASE_TRAINING, 100, 0.5f);
  progress(1, v1::PHASE_LOADING, 0, 9);
  time_.AdvanceMs(500);
  progress(0, v1::PHASE_TRAINING, 200, 0.5f);
  pushes(0, 10);
  pushes(1, 2.5);
  Moment now = MomentOf(members_.members());
  EXPECT_TRUE(now.trains);
  EXPECT_EQ(now.point.loss(), 0.5f) << "of the one that trains";
  EXPECT_EQ(now.point.staleness_pushes(), 2.0f);
  EXPECT_EQ(now.point.samples_per_second(), 200);
  EXPECT_EQ(now.point.samples(), 200);
  EXPECT_EQ(now.point.pushes_per_second(), 12.5);
  EXPECT_EQ(now.point.workers(), 2);
  progress(1, v1::PHASE_TRAINING, 100, 1.0f);
  EXPECT_EQ(MomentOf(members_.members()).point.loss(), 0.75f);
  progress(0, v1::PHASE_FINISHED, 300, 0.5f);
  now = MomentOf(members_.members());
  EXPECT_EQ(now.point.workers(), 1);
  EXPECT_EQ(now.point.loss(), 1.0f);
  EXPECT_EQ(now.point.samples(), 400) << "what the finished have done counts";
  LetExpire({servers_[0]});
  EXPECT_FALSE(AnyWorkerWorks(members_.members()));
  now = MomentOf(members_.members());
  EXPECT_EQ(now.point.workers(), 0);
  EXPECT_EQ(now.point.samples_per_second(), 0);
  EXPECT_EQ(now.point.pushes_per_second(), 10) << "what a dead ps said last does not count";
  EXPECT_FALSE(now.trains);
}

TEST_F(MembershipStatusTest, AMomentsMetricIsTheMeanOfThoseWhoTrainAndTellIt) {
  JoinAll();
  const auto tell = [this](int worker, const std::string& name, float metric, v1::Phase phase = v1::PHASE_TRAINING) {
    v1::HeartbeatRequest request;
    v1::WorkerProgress* const progress = request.mutable_progress();
    progress->set_phase(phase);
    progress->set_clock(10);
    progress->set_loss(0.5f);
    progress->set_metric_name(name);
    progress->set_metric(metric);
    EXPECT_TRUE(Beat(workers_[worker], request).ok());
    return MomentOf(members_.members()).point;
  };
  v1::HistoryPoint point = tell(0, "", 0);
  EXPECT_EQ(point.metric_name(), "") << "as a worker of an older version";
  EXPECT_EQ(point.loss(), 0.5f);
  point = tell(1, "auc", 0.75f);
  EXPECT_EQ(point.metric_name(), "auc");
  EXPECT_EQ(point.metric(), 0.75) << "who tells none does not count";
  EXPECT_EQ(tell(0, "auc", 0.5f).metric(), 0.625);
  EXPECT_EQ(members_.Status().workers(0).progress().metric_name(), "auc");
  EXPECT_EQ(members_.Status().workers(0).progress().metric(), 0.5f);
  EXPECT_EQ(tell(0, "auc", 0.5f, v1::PHASE_EVALUATING).metric(), 0.75);
  EXPECT_EQ(tell(0, "rmse", 3).metric_name(), "rmse") << "the first one's";
  EXPECT_EQ(MomentOf(members_.members()).point.metric(), 3);
  EXPECT_EQ(tell(1, "auc", 0.5f, v1::PHASE_FINISHED).metric(), 3);
  EXPECT_EQ(tell(0, "auc", 0.5f, v1::PHASE_FINISHED).metric_name(), "");
}

TEST_F(MembershipStatusTest, SaysWhatAWorkerComputesOnAndCutsAnyTextThatIsTooLong) {
  JoinAll();
  const auto told = [this](const std::string& device) {
    v1::HeartbeatRequest request;
    request.mutable_progress()->set_device(device);
    EXPECT_TRUE(Beat(workers_[0], request).ok());
    return members_.Status().workers(0).progress().device();
  };
  EXPECT_EQ(told("cuda:0 (NVIDIA RTX 6000 Ada Generation)"), "cuda:0 (NVIDIA RTX 6000 Ada Generation)");
  EXPECT_EQ(told(std::string(100'000, 'x')), std::string(64, 'x'));
  EXPECT_EQ(told(""), "") << "a worker of an older version";
}

TEST_F(MembershipStatusTest, AMetricThatIsNoNumberOrHasNoNameIsNone) {
  JoinAll();
  const auto tell = [this](int worker, const std::string& name, float metric) {
    v1::HeartbeatRequest request;
    request.mutable_progress()->set_phase(v1::PHASE_TRAINING);
    request.mutable_progress()->set_clock(10);
    request.mutable_progress()->set_metric_name(name);
    request.mutable_progress()->set_metric(metric);
    ASSERT_TRUE(Beat(workers_[worker], request).ok());
  };
  tell(1, "auc", 0.75f);
  for (const float metric : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    tell(0, "auc", metric);
    EXPECT_EQ(members_.Status().workers(0).progress().metric_name(), "");
    EXPECT_EQ(members_.Status().workers(0).progress().metric(), 0);
    EXPECT_EQ(MomentOf(members_.members()).point.metric(), 0.75);
  }
  tell(0, "", 0.5f);
  EXPECT_EQ(members_.Status().workers(0).progress().metric(), 0);
  tell(0, std::string(100'000, 'x'), 0.5f);
  EXPECT_THAT(members_.Status().workers(0).progress().metric_name(), SizeIs(::testing::Le(100)));
  tell(0, std::string(60, 'x') + "/auc", 0.5f);
  EXPECT_EQ(members_.Status().workers(0).progress().metric_name(), std::string(60, 'x') + "/auc");
  tell(0, std::string(200, 'x') + "/auc", 0.5f);
  EXPECT_EQ(members_.Status().workers(0).progress().metric_name(), std::string(92, 'x') + "/auc") << "the label is cut";
  tell(0, std::string(200, 'x') + "/" + std::string(200, 'y'), 0.5f);
  EXPECT_THAT(members_.Status().workers(0).progress().metric_name(), SizeIs(96));
}

TEST_F(MembershipStatusTest, WhatWorkersSaidInAnotherLifeIsNoPartOfThisOnesHistory) {
  JoinAll();
  v1::HeartbeatRequest request;
  request.mutable_progress()->set_phase(v1::PHASE_TRAINING);
  request.mutable_progress()->set_clock(10);
  request.mutable_progress()->set_samples(100);
  request.mutable_progress()->set_loss(9);
  for (const Incarnation worker : workers_) ASSERT_TRUE(Beat(worker, request).ok());
  Membership next(Options());
  ASSERT_TRUE(next.Restore(members_.SaveState()).ok());
  EXPECT_FALSE(AnyWorkerWorks(next.members())) << "nobody has been heard of";
  EXPECT_FALSE(MomentOf(next.members()).trains);
  request.set_incarnation(workers_[1]);
  request.mutable_progress()->set_loss(0.5f);
  ASSERT_TRUE(next.Heartbeat(request).ok());
  EXPECT_TRUE(AnyWorkerWorks(next.members()));
  EXPECT_EQ(MomentOf(next.members()).point.loss(), 0.5f);
  EXPECT_EQ(MomentOf(next.members()).point.workers(), 1);
  request.set_incarnation(workers_[0]);
  request.mutable_progress()->set_loss(1.5f);
  ASSERT_TRUE(next.Heartbeat(request).ok());
  EXPECT_EQ(MomentOf(next.members()).point.loss(), 1);
  EXPECT_EQ(MomentOf(next.members()).point.samples(), 200);
}

TEST_F(MembershipStatusTest, WaitsAndStagesThatAreReportedAreBounded) {
  JoinAll();
  v1::HeartbeatRequest request;
  for (size_t i = 0; i < 2 * limits::kWaitsMax; ++i) {
    v1::WaitStatus* const wait = request.mutable_progress()->add_waits();
    wait->set_what(std::string(100'000, 'x'));
    wait->set_seconds(std::nan(""));
    wait->mutable_waiter()->set_index(7);
    for (int shard = 0; shard < 1000; ++shard) wait->add_shards(shard);
    for (int target = 0; target < 1000; ++target) wait->add_targets()->add_shards(target);
    v1::StageTime* const stage = request.mutable_progress()->add_stages();
    stage->set_stage(std::string(1000, 's'));
    stage->set_seconds(INFINITY);
  }
  *request.mutable_server()->mutable_waits() = request.progress().waits();
  ASSERT_TRUE(Beat(workers_[0], request).ok());
  ASSERT_TRUE(Beat(servers_[0], request).ok());
  const v1::ClusterStatus status = members_.Status();
  for (const auto& waits : {status.workers(0).progress().waits(), status.servers(0).server().waits()}) {
    ASSERT_THAT(waits, SizeIs(limits::kWaitsMax));
    EXPECT_THAT(waits[0].what(), SizeIs(::testing::Le(1024)));
    EXPECT_EQ(waits[0].seconds(), 0);
    EXPECT_FALSE(waits[0].has_waiter()) << "a process speaks for itself";
    EXPECT_THAT(waits[0].shards(), SizeIs(limits::kWaitShardsMax));
    EXPECT_THAT(waits[0].targets(), SizeIs(::testing::Le(16)));
  }
  ASSERT_THAT(status.workers(0).progress().stages(), SizeIs(::testing::Le(8)));
  EXPECT_EQ(status.workers(0).progress().stages(0).seconds(), 0);
}

TEST_F(MembershipStatusTest, WhatTheTimeWentByIsOfTheLastSeconds) {
  JoinAll();
  v1::HeartbeatRequest request;
  request.mutable_progress()->add_stages()->set_stage("pull");
  request.mutable_progress()->add_stages()->set_stage("compute");
  const auto beat = [&](double pull, double compute) {
    request.mutable_progress()->mutable_stages(0)->set_seconds(pull);
    request.mutable_progress()->mutable_stages(1)->set_seconds(compute);
    for (const Incarnation life : {workers_[0], workers_[1], servers_[0], servers_[1]}) {
      ASSERT_TRUE(Beat(life, request).ok());
    }
  };
  ASSERT_NO_FATAL_FAILURE(beat(1000, 0));
  EXPECT_THAT(members_.Status().workers(0).stages(), IsEmpty()) << "of one report nothing can be said";
  for (int i = 1; i <= 20; ++i) {
    time_.AdvanceMs(500);
    ASSERT_NO_FATAL_FAILURE(beat(1000, 0.4 * i));
  }
  const v1::ClusterStatus status = members_.Status();
  ASSERT_THAT(status.workers(0).stages(), SizeIs(2));
  EXPECT_EQ(status.workers(0).stages(0).seconds(), 0) << "that was long ago";
  EXPECT_EQ(status.workers(0).stages(1).stage(), "compute");
  EXPECT_NEAR(status.workers(0).stages(1).seconds(), 0.8, 1e-9);
}

}  // namespace
}  // namespace lodestone::server
