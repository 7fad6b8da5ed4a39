#include "server/coordinator/membership.h"

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/incarnation.h"
#include "common/wire/shard_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/worker_clocks.h"
#include "tests/server/coordinator/replicated_members.h"

namespace lodestone::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

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

  absl::Status Beat(Incarnation incarnation, bool leaving = false) { return Beat(&members_, incarnation, leaving); }
  static absl::Status Beat(Membership* members, Incarnation incarnation, bool leaving = false) {
    v1::HeartbeatRequest request;
    request.set_incarnation(incarnation);
    request.set_leaving(leaving);
    return members->Heartbeat(request).status();
  }

  void Progress(Incarnation incarnation, Clock clock, uint64_t samples = 0, v1::Phase phase = v1::PHASE_TRAINING) {
    v1::HeartbeatRequest request;
    request.set_incarnation(incarnation);
    request.mutable_progress()->set_phase(phase);
    request.mutable_progress()->set_clock(clock);
    request.mutable_progress()->set_samples(samples);
    EXPECT_TRUE(members_.Heartbeat(request).ok());
  }

  bool Reached(Incarnation asker, Clock clock) const {
    return LowestClocksOf(members_.members()).Reached(asker, clock);
  }

  ManualTime time_;
  Membership members_{OptionsWith(2, 3, &time_)};
};

TEST_F(MembershipTest, GivesEachProcessItsIndexAnIncarnationAndALease) {
  const auto server = members_.Join(Server(1, "a:1"));
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(server->index(), 1);
  EXPECT_EQ(server->incarnation(), 100);
  EXPECT_EQ(server->lease_ms(), kLeaseMs);
  v1::HeartbeatRequest heartbeat;
  heartbeat.set_incarnation(server->incarnation());
  const auto beat = members_.Heartbeat(heartbeat);
  ASSERT_TRUE(beat.ok()) << beat.status();
  EXPECT_EQ(beat->lease_ms(), kLeaseMs) << "as another life of the coordinator would tell it";
  const auto worker = members_.Join(Worker(0));
  ASSERT_TRUE(worker.ok());
  EXPECT_EQ(worker->index(), 0);
  EXPECT_EQ(worker->incarnation(), 101);
}

TEST_F(MembershipTest, TellsEachServerOnceOfWorkersThatHaveLeftOrDied) {
  const Incarnation server = Join(Server(0, "a:1"));
  uint64_t from = 0;
  const auto ended = [&]() -> std::vector<Incarnation> {
    v1::HeartbeatRequest request;
    request.set_incarnation(server);
    request.set_workers_ended_from(from);
    const auto response = members_.Heartbeat(request);
    EXPECT_TRUE(response.ok()) << response.status();
    from = response->workers_ended_to();
    return {response->workers_ended().begin(), response->workers_ended().end()};
  };
  const Incarnation leaves = Join(Worker(1));
  const Incarnation dies = Join(Worker(2));
  EXPECT_THAT(ended(), IsEmpty());
  ASSERT_TRUE(Beat(leaves, /*leaving=*/true).ok());
  EXPECT_THAT(ended(), ElementsAre(leaves));
  EXPECT_THAT(ended(), IsEmpty());
  time_.AdvanceMs(kLeaseMs / 2);
  ASSERT_TRUE(Beat(server).ok());
  time_.AdvanceMs(kLeaseMs / 2);
  members_.TakeExpired();
  EXPECT_THAT(ended(), ElementsAre(dies));
  from = 0;  // A ps that was started again.
  EXPECT_THAT(ended(), ElementsAre(leaves, dies));
  EXPECT_THAT(ended(), IsEmpty());
  from += 1'000'000'000;  // Another coordinator told it, whose clock was ahead.
  EXPECT_THAT(ended(), ElementsAre(leaves, dies));
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
  // Regression: a ps of another number of servers was taken, and waited for some that never came.
  request = Server(0, "a:1");
  request.set_servers(5);
  EXPECT_THAT(std::string(members_.Join(request).status().message()), HasSubstr("configured for 5 (cluster.servers)"));
  for (const char* address : {"", "nonsense", "a:0", "0.0.0.0:7000", "a:99999"}) {
    EXPECT_EQ(members_.Join(Server(0, address)).status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
  request = Server(0, "a:1");
  request.set_local_socket("/run/another-owners");
  EXPECT_THAT(std::string(members_.Join(request).status().message()), HasSubstr("a local socket is called lodestone-"));
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
  EXPECT_EQ(members_.shards().epoch(), 1);
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
  EXPECT_EQ(members_.shards().Route().status().message(), "waiting for 2 of 2 servers: index 0, 1 have not joined");
  Join(Server(0, "a:1"));
  const absl::Status waiting = members_.shards().Route().status();
  EXPECT_EQ(waiting.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(waiting.message(), "waiting for 1 of 2 servers: index 1 has not joined");
  EXPECT_EQ(members_.shards().epoch(), 0);
  const Incarnation second = Join(Server(1, "b:2"));
  const auto route = members_.shards().Route();
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_EQ(route->epoch(), 1);
  ASSERT_EQ(route->servers_size(), 2);
  EXPECT_EQ(route->servers(1).address(), "b:2");
  EXPECT_EQ(route->servers(1).incarnation(), second);
  EXPECT_EQ(std::vector<uint32_t>(route->owners().begin(), route->owners().end()), InitialOwners(8, 2));
}

TEST_F(MembershipTest, TheRouteTellsTheSocketOfEachServersLatestLife) {
  v1::JoinRequest request = Server(0, "a:1");
  request.set_local_socket("lodestone-00000000000000aa");
  Join(request);
  Join(Server(1, "b:2"));
  EXPECT_EQ(members_.shards().Route()->servers(0).local_socket(), "lodestone-00000000000000aa");
  EXPECT_EQ(members_.shards().Route()->servers(1).local_socket(), "");
  Membership next(OptionsWith(2, 3, &time_));
  ASSERT_TRUE(next.Restore(members_.SaveState()).ok());
  EXPECT_EQ(next.shards().Route()->servers(0).local_socket(), "lodestone-00000000000000aa");
  const uint64_t epoch = members_.shards().epoch();
  request.set_local_socket("lodestone-00000000000000bb");
  Join(request);
  EXPECT_EQ(members_.shards().Route()->servers(0).local_socket(), "lodestone-00000000000000bb");
  EXPECT_GT(members_.shards().epoch(), epoch);
}

TEST_F(MembershipTest, AServerThatDiedBeforeTheOthersCameIsWaitedForAgain) {
  Join(Server(0, "a:1"));
  time_.AdvanceMs(kLeaseMs);
  Join(Server(1, "b:2"));
  EXPECT_EQ(members_.shards().Route().status().message(), "waiting for 1 of 2 servers: index 0 has not joined");
  Join(Server(0, "a:3"));
  EXPECT_TRUE(members_.shards().Route().ok());
}

TEST_F(MembershipTest, AServerThatComesBackElsewhereBumpsTheEpoch) {
  const Incarnation first = Join(Server(0, "a:1"));
  Join(Server(1, "b:2"));
  EXPECT_EQ(members_.Join(Server(0, "c:3")).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Beat(first, true).ok());
  const Incarnation again = Join(Server(0, "c:3"));
  const auto route = members_.shards().Route();
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
  EXPECT_EQ(members_.shards().Route()->epoch(), 2);
}

TEST_F(MembershipTest, AServerThatLostItsPlaceToAnotherProcessNeverTakesItBack) {
  v1::JoinRequest first = Server(0, "a:1"), second = Server(0, "a:1");
  first.set_token(1);
  second.set_token(2);
  first.set_former_incarnation(Join(first));
  const Incarnation taken = Join(second);
  EXPECT_TRUE(absl::IsAlreadyExists(members_.Join(first).status())) << "by its address";
  first.set_predecessor(2);
  EXPECT_TRUE(absl::IsAlreadyExists(members_.Join(first).status())) << "by its folder";
  time_.AdvanceMs(kLeaseMs);
  EXPECT_TRUE(absl::IsAlreadyExists(members_.Join(first).status())) << "it lacks what the other got";
  second.set_former_incarnation(taken);
  EXPECT_NE(Join(second), 0) << "which only lost its lease";
}

TEST_F(MembershipTest, ABelatedJoinOfAFormerLifeIsRefused) {
  v1::JoinRequest first = Server(1, "b:2"), second = first, third = first;
  first.set_token(1);
  second.set_token(2);
  second.set_predecessor(1);
  third.set_token(3);
  third.set_predecessor(2);
  Join(Server(0, "a:1"));
  Join(first);
  const Incarnation lives = Join(third);
  EXPECT_TRUE(absl::IsAlreadyExists(members_.Join(first).status())) << "it had the place";
  EXPECT_TRUE(absl::IsAlreadyExists(members_.Join(second).status())) << "it had the folder";
  EXPECT_TRUE(Beat(lives).ok());
  Membership next(OptionsWith(2, 3, &time_));
  ASSERT_TRUE(next.Restore(members_.SaveState()).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(next.Join(second).status()));
  EXPECT_TRUE(Beat(&next, lives).ok());
  time_.AdvanceMs(kLeaseMs);
  third.set_former_incarnation(lives);
  EXPECT_TRUE(absl::IsAlreadyExists(members_.Join(second).status()));
  EXPECT_GT(Join(third), lives) << "it only lost its lease";
}

TEST_F(MembershipTest, AServerTakesOverAtOnceFromThePredecessorThatItNames) {
  v1::JoinRequest former = Server(1, "b:2");
  former.set_token(7);
  Join(Server(0, "a:1"));
  const Incarnation first = Join(former);
  v1::JoinRequest next = Server(1, "c:3");
  next.set_token(8);
  next.set_predecessor(6);
  EXPECT_EQ(members_.Join(next).status().code(), absl::StatusCode::kAlreadyExists) << "another process";
  next.set_predecessor(7);
  EXPECT_GT(Join(next), first);
  EXPECT_EQ(Beat(first).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(members_.shards().Route()->servers(1).address(), "c:3");
  EXPECT_EQ(members_.shards().Route()->epoch(), 2);
  v1::JoinRequest stranger = Server(1, "d:4");
  EXPECT_EQ(members_.Join(stranger).status().code(), absl::StatusCode::kAlreadyExists) << "0 is no predecessor";
}

TEST_F(MembershipTest, AServerTakesOverAtOnceInTheSameFolderAlsoAfterStartsThatFailed) {
  v1::JoinRequest former = Server(1, "b:2");
  former.set_token(7);
  former.mutable_data()->set_folder(70);
  former.mutable_data()->set_generation(3);
  Join(Server(0, "a:1"));
  const Incarnation first = Join(former);
  v1::JoinRequest next = Server(1, "c:3");
  next.set_token(9);
  next.set_predecessor(8);
  next.mutable_data()->set_folder(70);
  EXPECT_EQ(members_.Join(next).status().code(), absl::StatusCode::kAlreadyExists) << "it is of an older version";
  next.mutable_data()->set_generation(2);
  EXPECT_EQ(members_.Join(next).status().code(), absl::StatusCode::kAlreadyExists) << "an older copy of the folder";
  next.mutable_data()->set_generation(3);
  next.mutable_data()->set_folder(71);
  EXPECT_EQ(members_.Join(next).status().code(), absl::StatusCode::kAlreadyExists) << "another folder";
  next.mutable_data()->set_folder(70);
  EXPECT_GT(Join(next), first);
}

TEST_F(MembershipTest, TheRouteOutlivesAServerAndTellsThatItIsAway) {
  const Incarnation first = Join(Server(0, "a:1"));
  const Incarnation second = Join(Server(1, "b:2"));
  EXPECT_FALSE(members_.shards().Route()->servers(0).away());
  time_.AdvanceMs(kLeaseMs - 1);
  EXPECT_TRUE(Beat(second).ok());
  time_.AdvanceMs(1);
  const auto route = members_.shards().Route();
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_EQ(route->servers(0).address(), "a:1");
  EXPECT_TRUE(route->servers(0).away());
  EXPECT_FALSE(route->servers(1).away());
  EXPECT_TRUE(Beat(second, true).ok());
  EXPECT_TRUE(members_.shards().Route()->servers(1).away()) << "it has left";
  EXPECT_EQ(members_.shards().Route()->epoch(), 1);
  EXPECT_GT(Join(Server(0, "a:1")), first);
  EXPECT_FALSE(members_.shards().Route()->servers(0).away());
  EXPECT_EQ(members_.shards().Route()->epoch(), 2) << "it has come back";
}

// Regression: a heartbeat that had been sent before took the worker out of the training, and the others ran ahead of
// it.
TEST_F(MembershipTest, ALateHeartbeatDoesNotTakeAWorkerOutOfATrainingOfBoundedStaleness) {
  const Incarnation slow = Join(Worker(1)), fast = Join(Worker(2));
  members_.NoteClock(slow, 5);
  members_.NoteClock(fast, 9);
  Progress(slow, /*clock=*/0, /*samples=*/0, v1::PHASE_LOADING);
  const LowestClocks clocks = LowestClocksOf(members_.members(), /*training=*/true);
  EXPECT_EQ(clocks.holder, slow);
  EXPECT_EQ(clocks.lowest, 5u);
  Progress(slow, /*clock=*/5, /*samples=*/0, v1::PHASE_FINISHED);
  EXPECT_EQ(LowestClocksOf(members_.members(), /*training=*/true).lowest, 9u);
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
  EXPECT_THAT(WorkersBehind(members_.members(), w0, 4),
              ElementsAre("worker 1 (beta:2) is at clock 3, last heard of 0.4 s ago"));
  EXPECT_THAT(WorkersBehind(members_.members(), 0, 9), SizeIs(2));
}

TEST_F(MembershipTest, NamesTheWorkersThatTakeNoMoreStepsAndHaveNotTrainedAllTheirSamples) {
  const auto at = [this](Incarnation incarnation, uint64_t samples, v1::Phase phase, bool leaving = false) {
    v1::HeartbeatRequest request;
    request.set_incarnation(incarnation);
    request.set_leaving(leaving);
    request.mutable_progress()->set_phase(phase);
    request.mutable_progress()->set_samples(samples);
    request.mutable_progress()->set_samples_total(50);
    EXPECT_TRUE(members_.Heartbeat(request).ok());
  };
  const Incarnation w0 = Join(Worker(1, "alpha:1")), w1 = Join(Worker(2, "beta:2")), w2 = Join(Worker(3, "gamma:3"));
  at(w0, 20, v1::PHASE_WAITING);
  at(w1, 7, v1::PHASE_TRAINING);
  at(w2, 50, v1::PHASE_FINISHED, /*leaving=*/true);
  EXPECT_THAT(UntrainedWorkers(members_.members(), w0), IsEmpty()) << "one still trains, one has trained";
  EXPECT_THAT(UntrainedWorkers(members_.members(), w1), SizeIs(1)) << "stopped early";
  at(w1, 7, v1::PHASE_TRAINING, /*leaving=*/true);
  EXPECT_THAT(UntrainedWorkers(members_.members(), w0),
              ElementsAre("worker 1 (beta:2) trained 7 of 50 samples, last heard of 0.0 s ago"));
  // Another takes its place, and trains all.
  const Incarnation again = Join(Worker(2, "delta:4"));
  EXPECT_THAT(UntrainedWorkers(members_.members(), w0), IsEmpty());
  EXPECT_TRUE(Beat(again, true).ok());
  EXPECT_THAT(UntrainedWorkers(members_.members(), w0),
              ElementsAre("worker 1 (delta:4) trained none of its samples, last heard of 0.0 s ago"));
  at(Join(Worker(2)), 50, v1::PHASE_FINISHED, /*leaving=*/true);
  EXPECT_THAT(UntrainedWorkers(members_.members(), w0), IsEmpty());
}

// Worker 0 once evaluated what it had trained alone, because the others had not started yet.
TEST_F(MembershipTest, AWorkerThatHasNeverJoinedIsWaitedForByName) {
  const Incarnation w0 = Join(Worker(1));
  const Incarnation w1 = Join(Worker(2));
  Progress(w1, 9, 0, v1::PHASE_WAITING);
  EXPECT_TRUE(Reached(w0, 0));
  EXPECT_FALSE(Reached(w0, 1));
  EXPECT_FALSE(Reached(0, 1));
  EXPECT_THAT(WorkersBehind(members_.members(), w0, 1), ElementsAre("worker 2 has not joined"));
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
  EXPECT_EQ(members_.members().NextExpiryMs(), std::nullopt);
  Join(Worker(1, "alpha:1"));
  const int64_t joined_ms = time_.NowMs();
  time_.AdvanceMs(300);
  Join(Worker(2));
  EXPECT_EQ(members_.members().NextExpiryMs(), joined_ms + kLeaseMs);
  EXPECT_THAT(members_.TakeExpired(), IsEmpty());
  time_.AdvanceMs(700);
  EXPECT_THAT(members_.TakeExpired(), ElementsAre("worker 0 (alpha:1) was not heard of for 1.0 s"));
  EXPECT_THAT(members_.TakeExpired(), IsEmpty());
  EXPECT_EQ(members_.members().NextExpiryMs(), joined_ms + 300 + kLeaseMs);
}

TEST_F(MembershipTest, AnExpiryThatNobodyWasToldOfIsDueAtOnce) {
  Join(Worker(1));
  time_.AdvanceMs(5 * kLeaseMs);
  ASSERT_TRUE(members_.members().NextExpiryMs().has_value());
  EXPECT_LT(*members_.members().NextExpiryMs(), time_.NowMs());
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

// The state of a coordinator and its next life, which begins 5 s later.
class RestoredMembershipTest : public MembershipTest {
 protected:
  void SetUp() override {
    v1::JoinRequest ps1 = Server(1, "b:2");
    ps1.set_token(11);
    ps0_ = Join(Server(0, "a:1"));
    ps1_ = Join(ps1);
  }

  // Writes the state down, lets time pass, and takes it up again.
  void Restart() { Restart(members_.SaveState()); }
  void Restart(const v1::CoordinatorState& state) {
    time_.AdvanceMs(5000);
    Membership::Options options = OptionsWith(2, 3, &time_);
    options.first_incarnation = 1;  // The clock was set back meanwhile.
    next_.emplace(options);
    const absl::Status restored = next_->Restore(state);
    ASSERT_TRUE(restored.ok()) << restored;
  }
  void Progress(Incarnation incarnation, Clock clock, v1::Phase phase = v1::PHASE_TRAINING) {
    v1::HeartbeatRequest request;
    request.set_incarnation(incarnation);
    request.mutable_progress()->set_phase(phase);
    request.mutable_progress()->set_clock(clock);
    EXPECT_TRUE((next_.has_value() ? *next_ : members_).Heartbeat(request).ok());
  }
  bool Reached(Incarnation asker, Clock clock) const { return LowestClocksOf(next_->members()).Reached(asker, clock); }

  Incarnation ps0_ = 0, ps1_ = 0;
  std::optional<Membership> next_;
};

TEST_F(RestoredMembershipTest, EverybodyGoesOnWithoutNoticing) {
  v1::JoinRequest worker = Worker(2, "alpha:1");
  worker.set_token(7);
  const Incarnation w1 = Join(worker);
  const v1::RouteResponse route = *members_.shards().Route();
  Restart();
  EXPECT_TRUE(Beat(&*next_, ps1_).ok());
  EXPECT_TRUE(Beat(&*next_, w1).ok());
  EXPECT_EQ(next_->members().NameOf(w1), "worker 1 (alpha:1)");
  const auto again = next_->Join(worker);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->incarnation(), w1) << "the answer to its Join was lost";
  EXPECT_EQ(again->index(), 1);
  EXPECT_EQ(next_->shards().epoch(), 1);
  const auto now = next_->shards().Route();
  ASSERT_TRUE(now.ok()) << now.status();
  EXPECT_EQ(now->servers(1).address(), "b:2");
  EXPECT_EQ(now->servers(1).incarnation(), ps1_);
  EXPECT_EQ(now->epoch(), route.epoch());
  EXPECT_EQ(std::vector<uint32_t>(now->owners().begin(), now->owners().end()), InitialOwners(8, 2));
}

TEST_F(RestoredMembershipTest, IncarnationsAndTheEpochNeverGoBack) {
  const Incarnation w0 = Join(Worker(1));
  Restart();
  EXPECT_GT(next_->Join(Worker(2))->incarnation(), w0);
  EXPECT_EQ(next_->Join(Server(0, "a:9"))->index(), 0);
  EXPECT_EQ(next_->shards().epoch(), 2);
  const v1::CoordinatorState state = next_->SaveState();
  Restart(state);
  EXPECT_EQ(next_->shards().epoch(), 2);
  EXPECT_EQ(next_->SaveState().next_incarnation(), state.next_incarnation());
}

TEST_F(RestoredMembershipTest, LeasesBeginAnew) {
  const Incarnation w0 = Join(Worker(1));
  time_.AdvanceMs(kLeaseMs - 1);
  Restart();
  EXPECT_EQ(next_->members().NextExpiryMs(), time_.NowMs() + kLeaseMs);
  EXPECT_EQ(next_->Join(Worker(1)).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(next_->Join(Worker(1)).status().message()),
              HasSubstr("not heard of since the coordinator was started again 0.0 s ago"));
  time_.AdvanceMs(kLeaseMs - 1);
  EXPECT_TRUE(next_->members().CheckAlive(w0).ok());
  EXPECT_TRUE(Beat(&*next_, ps1_).ok());
  time_.AdvanceMs(1);
  EXPECT_EQ(Beat(&*next_, w0).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Beat(&*next_, ps1_).ok());
  EXPECT_TRUE(next_->Join(Worker(1)).ok());
}

TEST_F(RestoredMembershipTest, WhoHadLeftOrDiedStaysSo) {
  const Incarnation w0 = Join(Worker(1));
  const Incarnation w1 = Join(Worker(2));
  EXPECT_TRUE(Beat(w1, true).ok());
  time_.AdvanceMs(kLeaseMs);
  const Incarnation w2 = Join(Worker(3));
  Restart();
  EXPECT_EQ(Beat(&*next_, w0).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Beat(&*next_, w1).message()), HasSubstr("has left"));
  EXPECT_TRUE(Beat(&*next_, w2).ok());
  EXPECT_TRUE(next_->shards().Route()->servers(1).away());
  EXPECT_THAT(next_->TakeExpired(), IsEmpty()) << "told in the life before, or not news";
}

// Nobody may be released because the next life knows less.
TEST_F(RestoredMembershipTest, WhatAWorkerHasReachedIsUnknownUntilItIsHeardOf) {
  const Incarnation w0 = Join(Worker(1, "alpha:1"));
  const Incarnation w1 = Join(Worker(2, "beta:2"));
  EXPECT_TRUE(Beat(Join(Worker(3)), true).ok());
  Progress(w0, 5);
  Progress(w1, 9, v1::PHASE_WAITING);
  Restart();
  EXPECT_EQ(next_->Status().workers(1).progress().clock(), 9) << "for those who look";
  Progress(w0, 6);
  EXPECT_TRUE(Reached(w0, 0));
  EXPECT_FALSE(Reached(w0, 1));
  time_.AdvanceMs(400);
  EXPECT_THAT(WorkersBehind(next_->members(), w0, 1),
              ElementsAre("worker 1 (beta:2) was not heard of since the coordinator was started again 0.4 s ago"));
  EXPECT_TRUE(Beat(&*next_, w0).ok());
  Progress(w1, 9, v1::PHASE_WAITING);
  EXPECT_TRUE(Reached(w0, 100));
  Restart(next_->SaveState());
  Progress(w0, 6);
  EXPECT_FALSE(Reached(w0, 1));
  time_.AdvanceMs(kLeaseMs - 1);
  EXPECT_TRUE(Beat(&*next_, w0).ok());
  time_.AdvanceMs(1);
  EXPECT_TRUE(Reached(w0, 100)) << "worker 1 did not come back within its lease";
}

// It would begin at clock 0 otherwise, behind what others take for the lowest clock there is.
TEST_F(RestoredMembershipTest, AWorkerBeginsWhereTheOthersAreOnceTheyAreHeardOf) {
  const Incarnation w0 = Join(Worker(1, "alpha:1"));
  const Incarnation w1 = Join(Worker(2, "beta:2"));
  Progress(w0, 9000);
  EXPECT_TRUE(CheckNewestKnown(members_.members(), w1).ok());
  Restart();
  Progress(w1, 0, v1::PHASE_LOADING);
  EXPECT_TRUE(CheckNewestKnown(next_->members(), w0).ok()) << "the other one is there";
  const absl::Status unknown = CheckNewestKnown(next_->members(), w1);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(unknown.message(), HasSubstr("worker 0 (alpha:1) was not heard of since the coordinator was started"));
  Progress(w0, 9001);
  EXPECT_TRUE(CheckNewestKnown(next_->members(), w1).ok());
  EXPECT_EQ(LowestClocksOf(next_->members(), /*training=*/true).newest, 9001);
}

TEST_F(RestoredMembershipTest, WhoLeftBeforeIsNotWaitedForAndWhoNeverCameIs) {
  const Incarnation w0 = Join(Worker(1));
  EXPECT_TRUE(Beat(Join(Worker(2)), true).ok());
  Restart();
  Progress(w0, 5);
  EXPECT_THAT(WorkersBehind(next_->members(), w0, 7), ElementsAre("worker 2 has not joined"));
}

// The workers of a second run would otherwise take those of the first for such as have finished.
TEST_F(RestoredMembershipTest, ARunThatAllHaveLeftIsOverAndTheNextOnesWorkersAreWaitedFor) {
  for (uint32_t worker = 1; worker <= 3; ++worker) EXPECT_TRUE(Beat(Join(Worker(worker)), true).ok());
  Restart();
  EXPECT_THAT(next_->Status().workers(), IsEmpty());
  const Incarnation w0 = next_->Join(Worker(1))->incarnation();
  EXPECT_FALSE(Reached(w0, 1));
  EXPECT_THAT(WorkersBehind(next_->members(), w0, 1),
              ElementsAre("worker 1 has not joined", "worker 2 has not joined"));
}

TEST_F(RestoredMembershipTest, PsZeroHasEndedWithItsCoordinatorAndComesBackAnywhereAtOnce) {
  Restart();
  EXPECT_TRUE(next_->shards().Route()->servers(0).away());
  EXPECT_FALSE(next_->shards().Route()->servers(1).away());
  EXPECT_EQ(Beat(&*next_, ps0_).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(next_->Join(Server(0, "z:9")).ok());
  EXPECT_EQ(next_->shards().Route()->servers(0).address(), "z:9");
  EXPECT_FALSE(next_->shards().Route()->servers(0).away());
  EXPECT_EQ(next_->shards().epoch(), 2);
}

TEST_F(RestoredMembershipTest, AServerThatDoesNotComeBackIsAwayAfterItsLeaseAndItsSuccessorIsInTheRoute) {
  Restart();
  v1::JoinRequest elsewhere = Server(1, "z:9");
  EXPECT_EQ(next_->Join(elsewhere).status().code(), absl::StatusCode::kAlreadyExists) << "ps 1 may live";
  EXPECT_EQ(next_->shards().Route()->servers(1).address(), "b:2");
  EXPECT_FALSE(next_->shards().Route()->servers(1).away());
  time_.AdvanceMs(kLeaseMs);
  EXPECT_TRUE(next_->shards().Route()->servers(1).away());
  EXPECT_TRUE(next_->Join(elsewhere).ok());
  EXPECT_EQ(next_->shards().Route()->servers(1).address(), "z:9");
  EXPECT_FALSE(next_->shards().Route()->servers(1).away());
  Restart();
  elsewhere.set_predecessor(11);
  EXPECT_TRUE(next_->Join(elsewhere).ok()) << "it has the data folder of the one that the state tells of";
}

TEST_F(RestoredMembershipTest, WithoutAMapYetAllServersAreWaitedFor) {
  Membership young(OptionsWith(2, 3, &time_));
  ASSERT_TRUE(young.Join(Server(1, "b:2")).ok());
  Restart(young.SaveState());
  EXPECT_EQ(next_->shards().Route().status().message(), "waiting for 1 of 2 servers: index 0 has not joined");
  EXPECT_EQ(next_->shards().epoch(), 0);
  ASSERT_TRUE(next_->Join(Server(0, "a:1")).ok());
  EXPECT_EQ(next_->shards().epoch(), 1);
}

TEST_F(RestoredMembershipTest, WithAnotherNumberOfServersAllJoinAnewAndTheEpochGrows) {
  const Incarnation w0 = Join(Worker(1));
  const v1::CoordinatorState state = members_.SaveState();
  Membership three(OptionsWith(3, 2, &time_));
  ASSERT_TRUE(three.Restore(state).ok());
  EXPECT_TRUE(Beat(&three, w0).ok());
  EXPECT_EQ(three.shards().Route().status().message(), "waiting for 3 of 3 servers: index 0, 1, 2 have not joined");
  EXPECT_EQ(three.shards().epoch(), 0);
  for (uint32_t server = 0; server < 3; ++server) ASSERT_TRUE(three.Join(Server(server, "a:1")).ok());
  EXPECT_EQ(three.shards().epoch(), 2);
  const auto owners = three.shards().Route()->owners();
  EXPECT_EQ(std::vector<uint32_t>(owners.begin(), owners.end()), InitialOwners(8, 3));
}

TEST_F(RestoredMembershipTest, WorkersBeyondTheirNumberAreForgotten) {
  const Incarnation w0 = Join(Worker(1));
  const Incarnation w2 = Join(Worker(3));
  Membership fewer(OptionsWith(2, 1, &time_));
  ASSERT_TRUE(fewer.Restore(members_.SaveState()).ok());
  EXPECT_TRUE(Beat(&fewer, w0).ok());
  EXPECT_EQ(Beat(&fewer, w2).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RestoredMembershipTest, AStateThatDoesNotFitIsRefusedAndChangesNothing) {
  Join(Worker(1));
  const v1::CoordinatorState good = members_.SaveState();
  const auto refusal = [&](const std::function<void(v1::CoordinatorState*)>& spoil) {
    v1::CoordinatorState state = good;
    spoil(&state);
    Membership other(OptionsWith(2, 3, &time_));
    const absl::Status refused = other.Restore(state);
    EXPECT_EQ(other.SaveState().DebugString(), Membership(OptionsWith(2, 3, &time_)).SaveState().DebugString());
    return refused;
  };
  using State = v1::CoordinatorState;
  for (const auto& [code, spoil] : std::vector<std::pair<absl::StatusCode, std::function<void(State*)>>>{
           {absl::StatusCode::kFailedPrecondition, [](State* state) { state->set_format(2); }},
           {absl::StatusCode::kFailedPrecondition, [](State* state) { state->set_cluster("other"); }},
           {absl::StatusCode::kFailedPrecondition, [](State* state) { state->set_shards(16); }},
           {absl::StatusCode::kDataLoss, [](State* state) { state->add_owners(0); }},
           {absl::StatusCode::kDataLoss, [](State* state) { state->set_owners(3, 2); }},
           {absl::StatusCode::kDataLoss, [](State* state) { state->mutable_places(0)->clear_role(); }},
           {absl::StatusCode::kDataLoss, [](State* state) { state->mutable_places(1)->set_index(2); }},
           {absl::StatusCode::kDataLoss, [](State* state) { state->mutable_places(1)->set_index(0); }},
           {absl::StatusCode::kDataLoss, [](State* state) { state->mutable_places(2)->set_index(3); }},
           {absl::StatusCode::kDataLoss, [](State* state) { state->mutable_places(2)->set_incarnation(0); }},
           {absl::StatusCode::kDataLoss, [](State* state) { state->mutable_places(2)->set_incarnation(100); }},
           {absl::StatusCode::kDataLoss, [](State* state) { state->set_next_incarnation(102); }}}) {
    EXPECT_EQ(refusal(spoil).code(), code) << refusal(spoil);
  }
  EXPECT_TRUE(Membership(OptionsWith(2, 3, &time_)).Restore(good).ok());
}

TEST_F(RestoredMembershipTest, WhatMustSurviveChangesWithJoinsEndsAndNothingElse) {
  uint64_t changes = members_.changes();
  const auto changed = [&] { return std::exchange(changes, members_.changes()) != changes; };
  v1::JoinRequest worker = Worker(1);
  worker.set_token(7);
  const Incarnation w0 = Join(worker);
  EXPECT_TRUE(changed());
  Join(worker);
  Progress(w0, 3);
  EXPECT_TRUE(Beat(ps0_).ok());
  EXPECT_TRUE(members_.shards().Route().ok());
  EXPECT_FALSE(members_.Join(Worker(1)).ok());
  EXPECT_FALSE(changed());
  EXPECT_TRUE(Beat(w0, true).ok());
  EXPECT_TRUE(changed());
  time_.AdvanceMs(kLeaseMs);
  EXPECT_THAT(members_.TakeExpired(), SizeIs(2));
  EXPECT_TRUE(changed());
  Join(Server(0, "c:3"));
  EXPECT_TRUE(changed());
}

}  // namespace
}  // namespace lodestone::server
