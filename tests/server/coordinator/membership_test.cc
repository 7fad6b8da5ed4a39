#include "server/coordinator/membership.h"

#include <chrono>
#include <string>
#include <vector>

#include "common/shard_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/incarnation.h"

namespace lodestone {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kLeaseMs = 1000;

class MembershipTest : public ::testing::Test {
 protected:
  static Membership::Options OptionsWith(uint32_t servers, uint32_t workers, const TimeSource* time) {
    Membership::Options options;
    options.cluster = "test";
    options.servers = servers;
    options.workers = workers;
    options.shards = 8;
    options.lease_ms = kLeaseMs;
    options.first_incarnation = 100;
    options.time = time;
    return options;
  }

  static v1::JoinRequest Server(uint32_t index, const std::string& address) {
    v1::JoinRequest request;
    request.set_role(v1::ROLE_SERVER);
    request.set_address(address);
    request.set_index_plus_one(index + 1);
    request.set_cluster("test");
    request.set_shards(8);
    request.set_peer("host:1");
    return request;
  }

  static v1::JoinRequest Worker(uint32_t index_plus_one, const std::string& peer = "host:2") {
    v1::JoinRequest request;
    request.set_role(v1::ROLE_WORKER);
    request.set_index_plus_one(index_plus_one);
    request.set_cluster("test");
    request.set_peer(peer);
    return request;
  }

  // The incarnation of a process that must be let in.
  Incarnation Join(const v1::JoinRequest& request) {
    const auto joined = members_.Join(request);
    EXPECT_TRUE(joined.ok()) << joined.status();
    return joined.ok() ? joined->incarnation() : 0;
  }

  absl::Status Beat(Incarnation incarnation, bool leaving = false) {
    v1::HeartbeatRequest request;
    request.set_incarnation(incarnation);
    request.set_leaving(leaving);
    return members_.Heartbeat(request).status();
  }

  void Progress(Incarnation incarnation, Clock clock, uint64_t samples = 0, v1::Phase phase = v1::PHASE_TRAINING) {
    v1::HeartbeatRequest request;
    request.set_incarnation(incarnation);
    request.mutable_progress()->set_phase(phase);
    request.mutable_progress()->set_clock(clock);
    request.mutable_progress()->set_samples(samples);
    EXPECT_TRUE(members_.Heartbeat(request).ok());
  }

  bool Reached(Incarnation asker, Clock clock) const { return members_.Lowest().Reached(asker, clock); }

  ManualTime time_;
  Membership members_{OptionsWith(2, 3, &time_)};
};

TEST_F(MembershipTest, GivesEachProcessItsIndexAnIncarnationAndALease) {
  const auto server = members_.Join(Server(1, "a:1"));
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(server->index(), 1);
  EXPECT_EQ(server->incarnation(), 100);
  EXPECT_EQ(server->lease_ms(), kLeaseMs);
  const auto worker = members_.Join(Worker(0));
  ASSERT_TRUE(worker.ok());
  EXPECT_EQ(worker->index(), 0);
  EXPECT_EQ(worker->incarnation(), 101);
}

TEST_F(MembershipTest, IncarnationsGrowOverARestartOfTheCoordinator) {
  const auto before = std::chrono::system_clock::now();
  const Incarnation first = FirstIncarnation(before);
  EXPECT_GT(first, 0);
  EXPECT_GT(FirstIncarnation(before + std::chrono::microseconds(2)), first + 1);
}

TEST_F(MembershipTest, RefusesProcessesThatDoNotFit) {
  v1::JoinRequest request = Worker(1);
  request.set_role(v1::ROLE_UNSPECIFIED);
  EXPECT_EQ(members_.Join(request).status().code(), absl::StatusCode::kInvalidArgument);
  request = Worker(1);
  request.set_role(static_cast<v1::Role>(77));
  EXPECT_EQ(members_.Join(request).status().code(), absl::StatusCode::kInvalidArgument);
  request = Worker(1);
  request.set_cluster("other");
  EXPECT_THAT(std::string(members_.Join(request).status().message()), HasSubstr("cluster `other`"));
  request = Worker(4);
  EXPECT_THAT(std::string(members_.Join(request).status().message()), HasSubstr("no worker 3"));
  request = Worker(1);
  request.set_peer(std::string(100'000, 'x'));
  EXPECT_EQ(members_.Join(request).status().code(), absl::StatusCode::kInvalidArgument);
  request = Server(0, "a:1");
  request.set_shards(16);
  EXPECT_THAT(std::string(members_.Join(request).status().message()), HasSubstr("has 16 (cluster.shards)"));
  for (const char* address : {"", "nonsense", "a:0", "0.0.0.0:7000", "a:99999"}) {
    EXPECT_EQ(members_.Join(Server(0, address)).status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
  EXPECT_THAT(members_.Status().servers(), IsEmpty());
  EXPECT_THAT(members_.Status().workers(), IsEmpty());
}

TEST_F(MembershipTest, AnIndexWhoseHolderLivesIsRefusedNamingTheHolder) {
  Join(Worker(2, "alpha:77"));
  time_.AdvanceMs(kLeaseMs - 1);
  const absl::Status refused = members_.Join(Worker(2)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("worker 1 (alpha:77)"));
}

// A worker whose answer got lost once took a second place, and the first was waited for until its lease ended.
TEST_F(MembershipTest, AJoinThatIsSentAgainIsAnsweredAsTheFirstWas) {
  v1::JoinRequest request = Worker(0);
  request.set_token(0xfeed'0000'0000'0001);
  const Incarnation first = Join(request);
  time_.AdvanceMs(kLeaseMs - 1);
  const auto again = members_.Join(request);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->index(), 0);
  EXPECT_EQ(again->incarnation(), first);
  EXPECT_EQ(again->lease_ms(), kLeaseMs);
  EXPECT_THAT(members_.Status().workers(), SizeIs(1));
  time_.AdvanceMs(kLeaseMs - 1);
  EXPECT_TRUE(Beat(first).ok()) << "it was heard of";
}

TEST_F(MembershipTest, AJoinForAnIndexThatIsSentAgainIsNotRefusedForItself) {
  v1::JoinRequest request = Worker(2);
  request.set_token(7);
  const Incarnation first = Join(request);
  EXPECT_EQ(Join(request), first);
  request.set_token(8);
  EXPECT_EQ(members_.Join(request).status().code(), absl::StatusCode::kAlreadyExists) << "another process";
  request.set_token(7);
  request.set_index_plus_one(1);
  EXPECT_NE(Join(request), first) << "it asks for something else";
}

TEST_F(MembershipTest, TokensTellProcessesApartAndNoneIsNoToken) {
  v1::JoinRequest request = Worker(0);
  std::vector<Incarnation> incarnations;
  for (const uint64_t token : {5, 6, 0}) {
    request.set_token(token);
    incarnations.push_back(Join(request));
  }
  EXPECT_THAT(incarnations, ElementsAre(100, 101, 102));
  EXPECT_EQ(members_.Join(request).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(MembershipTest, AServersJoinThatIsSentAgainChangesNothing) {
  v1::JoinRequest request = Server(0, "a:1");
  request.set_token(7);
  const Incarnation first = Join(request);
  Join(Server(1, "b:2"));
  EXPECT_EQ(Join(request), first);
  EXPECT_EQ(members_.epoch(), 1);
  v1::JoinRequest worker = Worker(0);
  worker.set_token(7);
  EXPECT_NE(Join(worker), first) << "a token of the other role";
}

TEST_F(MembershipTest, WhoseLeaseHasEndedOrWhoHasLeftJoinsAnew) {
  v1::JoinRequest request = Worker(1);
  request.set_token(7);
  const Incarnation first = Join(request);
  time_.AdvanceMs(kLeaseMs);
  const Incarnation second = Join(request);
  EXPECT_GT(second, first);
  EXPECT_TRUE(Beat(second, true).ok());
  EXPECT_GT(Join(request), second);
}

TEST_F(MembershipTest, AnIndexIsFreeOnceItsHoldersLeaseHasEnded) {
  const Incarnation first = Join(Worker(2));
  time_.AdvanceMs(kLeaseMs);
  const Incarnation second = Join(Worker(2));
  EXPECT_GT(second, first);
  EXPECT_EQ(Beat(first).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Beat(second).ok());
}

TEST_F(MembershipTest, HeartbeatsKeepTheLease) {
  const Incarnation worker = Join(Worker(0));
  for (int i = 0; i < 5; ++i) {
    time_.AdvanceMs(kLeaseMs - 1);
    EXPECT_TRUE(Beat(worker).ok());
  }
}

TEST_F(MembershipTest, ALeaseThatHasEndedDoesNotComeBack) {
  const Incarnation worker = Join(Worker(0, "alpha:77"));
  time_.AdvanceMs(kLeaseMs);
  EXPECT_THAT(std::string(Beat(worker).message()), HasSubstr("the lease of worker 0 (alpha:77) has ended"));
  EXPECT_EQ(Beat(worker).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Beat(12345).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(MembershipTest, WhoLeavesIsNotKnownAsAliveAnyMore) {
  const Incarnation worker = Join(Worker(1));
  EXPECT_TRUE(Beat(worker, true).ok());
  EXPECT_THAT(std::string(Beat(worker).message()), HasSubstr("has left"));
  EXPECT_TRUE(members_.Status().workers(0).left());
  EXPECT_FALSE(members_.Status().workers(0).alive());
  Join(Worker(1));
}

TEST_F(MembershipTest, WithoutAWishTheLowestFreeIndexIsGivenAndThoseThatLeftInOrderLast) {
  const Incarnation w0 = Join(Worker(0));
  const Incarnation w1 = Join(Worker(0));
  EXPECT_EQ(members_.Status().workers(1).index(), 1);
  EXPECT_TRUE(Beat(w0, true).ok());
  EXPECT_EQ(members_.Join(Worker(0))->index(), 2);
  EXPECT_EQ(members_.Join(Worker(0))->index(), 0);
  const absl::Status full = members_.Join(Worker(0)).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("cluster.workers"));
  time_.AdvanceMs(kLeaseMs);
  EXPECT_EQ(Beat(w1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(members_.Join(Worker(0))->index(), 0);
}

TEST_F(MembershipTest, ThereIsNoRouteUntilAllServersHaveJoined) {
  EXPECT_EQ(members_.Route().status().message(), "waiting for 2 of 2 servers: index 0, 1 have not joined");
  Join(Server(0, "a:1"));
  const absl::Status waiting = members_.Route().status();
  EXPECT_EQ(waiting.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(waiting.message(), "waiting for 1 of 2 servers: index 1 has not joined");
  EXPECT_EQ(members_.epoch(), 0);
  const Incarnation second = Join(Server(1, "b:2"));
  const auto route = members_.Route();
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_EQ(route->epoch(), 1);
  ASSERT_EQ(route->servers_size(), 2);
  EXPECT_EQ(route->servers(1).address(), "b:2");
  EXPECT_EQ(route->servers(1).incarnation(), second);
  EXPECT_EQ(std::vector<uint32_t>(route->owners().begin(), route->owners().end()), InitialOwners(8, 2));
}

TEST_F(MembershipTest, AServerThatDiedBeforeTheOthersCameIsWaitedForAgain) {
  Join(Server(0, "a:1"));
  time_.AdvanceMs(kLeaseMs);
  Join(Server(1, "b:2"));
  EXPECT_EQ(members_.Route().status().message(), "waiting for 1 of 2 servers: index 0 has not joined");
  Join(Server(0, "a:3"));
  EXPECT_TRUE(members_.Route().ok());
}

TEST_F(MembershipTest, AServerThatComesBackElsewhereBumpsTheEpoch) {
  const Incarnation first = Join(Server(0, "a:1"));
  Join(Server(1, "b:2"));
  EXPECT_EQ(members_.Join(Server(0, "c:3")).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Beat(first, true).ok());
  const Incarnation again = Join(Server(0, "c:3"));
  const auto route = members_.Route();
  ASSERT_TRUE(route.ok());
  EXPECT_EQ(route->epoch(), 2);
  EXPECT_EQ(route->servers(0).address(), "c:3");
  EXPECT_EQ(route->servers(0).incarnation(), again);
  v1::HeartbeatRequest beat;
  beat.set_incarnation(again);
  EXPECT_EQ(members_.Heartbeat(beat)->route_epoch(), 2);
}

TEST_F(MembershipTest, AServerThatComesBackAtItsOwnAddressNeedNotWaitForItsOldLease) {
  const Incarnation first = Join(Server(0, "a:1"));
  Join(Server(1, "b:2"));
  const Incarnation second = Join(Server(0, "a:1"));
  EXPECT_GT(second, first);
  EXPECT_EQ(Beat(first).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(members_.Route()->epoch(), 2);
}

TEST_F(MembershipTest, TheRouteOutlivesAServer) {
  Join(Server(0, "a:1"));
  Join(Server(1, "b:2"));
  time_.AdvanceMs(10 * kLeaseMs);
  EXPECT_TRUE(members_.Route().ok());
}

TEST_F(MembershipTest, AClockIsReachedWhenNoOtherLiveWorkerIsBehindIt) {
  const Incarnation w0 = Join(Worker(1, "alpha:1"));
  const Incarnation w1 = Join(Worker(2, "beta:2"));
  EXPECT_TRUE(Beat(Join(Worker(3)), true).ok());  // The third has come and gone.
  EXPECT_TRUE(Reached(w0, 0));
  EXPECT_FALSE(Reached(w0, 1));
  Progress(w0, 5);
  Progress(w1, 3);
  EXPECT_TRUE(Reached(w0, 3));
  EXPECT_FALSE(Reached(w0, 4));
  EXPECT_TRUE(Reached(w1, 5)) << "it does not wait for itself";
  EXPECT_FALSE(Reached(w1, 6));
  EXPECT_FALSE(Reached(0, 4)) << "an observer waits for all";
  EXPECT_TRUE(Reached(0, 3));
  time_.AdvanceMs(400);
  EXPECT_THAT(members_.Behind(w0, 4), ElementsAre("worker 1 (beta:2) is at clock 3, last heard of 0.4 s ago"));
  EXPECT_THAT(members_.Behind(0, 9), SizeIs(2));
}

// Worker 0 once evaluated what it had trained alone, because the others had not started yet.
TEST_F(MembershipTest, AWorkerThatHasNeverJoinedIsWaitedForByName) {
  const Incarnation w0 = Join(Worker(1));
  const Incarnation w1 = Join(Worker(2));
  Progress(w1, 9, 0, v1::PHASE_WAITING);
  EXPECT_TRUE(Reached(w0, 0));
  EXPECT_FALSE(Reached(w0, 1));
  EXPECT_FALSE(Reached(0, 1));
  EXPECT_THAT(members_.Behind(w0, 1), ElementsAre("worker 2 has not joined"));
  const Incarnation w2 = Join(Worker(3));
  EXPECT_FALSE(Reached(w0, 1));
  Progress(w2, 0, 0, v1::PHASE_FINISHED);
  EXPECT_TRUE(Reached(w0, 1));
}

TEST_F(MembershipTest, WorkersThatWaitFinishedLeftOrDiedAreBehindNothing) {
  const Incarnation w0 = Join(Worker(1));
  const Incarnation w1 = Join(Worker(2));
  EXPECT_TRUE(Beat(Join(Worker(3)), true).ok());  // The third has come and gone.
  Progress(w1, 1);
  EXPECT_FALSE(Reached(w0, 2));
  Progress(w1, 1, 0, v1::PHASE_WAITING);
  EXPECT_TRUE(Reached(w0, 2));
  Progress(w1, 1, 0, v1::PHASE_FINISHED);
  EXPECT_TRUE(Reached(w0, 2));
  Progress(w1, 1);
  EXPECT_FALSE(Reached(w0, 2));
  EXPECT_TRUE(Beat(w1, true).ok());
  EXPECT_TRUE(Reached(w0, 2));
  const Incarnation w2 = Join(Worker(3));
  EXPECT_FALSE(Reached(w0, 2));
  time_.AdvanceMs(kLeaseMs / 2);
  EXPECT_TRUE(Beat(w0).ok());
  time_.AdvanceMs(kLeaseMs / 2);
  EXPECT_TRUE(Reached(w0, 2)) << "worker 2 is dead";
  EXPECT_FALSE(Beat(w2).ok());
}

TEST_F(MembershipTest, TellsOnceWhoseLeaseHasEndedAndWhenTheNextOneWill) {
  EXPECT_EQ(members_.NextExpiryMs(), std::nullopt);
  Join(Worker(1, "alpha:1"));
  const int64_t joined_ms = time_.NowMs();
  time_.AdvanceMs(300);
  Join(Worker(2));
  EXPECT_EQ(members_.NextExpiryMs(), joined_ms + kLeaseMs);
  EXPECT_THAT(members_.TakeExpired(), IsEmpty());
  time_.AdvanceMs(700);
  EXPECT_THAT(members_.TakeExpired(), ElementsAre("worker 0 (alpha:1) was not heard of for 1.0 s"));
  EXPECT_THAT(members_.TakeExpired(), IsEmpty());
  EXPECT_EQ(members_.NextExpiryMs(), joined_ms + 300 + kLeaseMs);
}

TEST_F(MembershipTest, AnExpiryThatNobodyWasToldOfIsDueAtOnce) {
  Join(Worker(1));
  time_.AdvanceMs(5 * kLeaseMs);
  ASSERT_TRUE(members_.NextExpiryMs().has_value());
  EXPECT_LT(*members_.NextExpiryMs(), time_.NowMs());
}

TEST_F(MembershipTest, TheStatusShowsProgressAndTheRateOfTheLastSeconds) {
  Join(Server(1, "b:2"));
  const Incarnation worker = Join(Worker(1, "alpha:1"));
  uint64_t samples = 0;
  for (int i = 0; i < 40; ++i) {  // 1000 samples a second, then 4000 for the last 8 seconds.
    samples += i < 24 ? 500 : 2000;
    time_.AdvanceMs(500);
    Progress(worker, i, samples);
  }
  time_.AdvanceMs(250);
  const v1::ClusterStatus status = members_.Status();
  EXPECT_EQ(status.name(), "test");
  EXPECT_EQ(status.servers_expected(), 2);
  EXPECT_EQ(status.route_epoch(), 0);
  ASSERT_EQ(status.servers_size(), 1);
  EXPECT_EQ(status.servers(0).peer(), "b:2");
  EXPECT_FALSE(status.servers(0).alive());
  ASSERT_EQ(status.workers_size(), 1);
  const v1::MemberStatus& member = status.workers(0);
  EXPECT_EQ(member.peer(), "alpha:1");
  EXPECT_TRUE(member.alive());
  EXPECT_EQ(member.progress().clock(), 39);
  EXPECT_EQ(member.progress().samples(), samples);
  EXPECT_DOUBLE_EQ(member.last_contact_seconds(), 0.25);
  EXPECT_DOUBLE_EQ(member.samples_per_second(), 4000);
  time_.AdvanceMs(kLeaseMs);
  EXPECT_EQ(members_.Status().workers(0).samples_per_second(), 0) << "the dead do nothing";
}

TEST_F(MembershipTest, HeartbeatsInQuickSuccessionStillGiveARate) {
  const Incarnation worker = Join(Worker(1));
  for (int i = 0; i < 10'000; ++i) {
    time_.AdvanceMs(1);
    Progress(worker, i, 7 * i);
  }
  EXPECT_DOUBLE_EQ(members_.Status().workers(0).samples_per_second(), 7000);
}

TEST_F(MembershipTest, LongTextsInProgressAreCutAtACharacter) {
  const Incarnation worker = Join(Worker(1));
  v1::HeartbeatRequest beat;
  beat.set_incarnation(worker);
  std::string text = "x";
  while (text.size() < 100'000) text += "\xe2\x82\xac";  // The euro sign.
  beat.mutable_progress()->set_waiting_for(text);
  ASSERT_TRUE(members_.Heartbeat(beat).ok());
  const std::string kept = members_.Status().workers(0).progress().waiting_for();
  EXPECT_EQ(kept.size() % 3, 1);
  EXPECT_LE(kept.size(), 1024);
  EXPECT_GT(kept.size(), 1000);
}

}  // namespace
}  // namespace lodestone
