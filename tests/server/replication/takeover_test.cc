// Streams that break, and followers that become owners.
#include <set>

#include "common/base/host_port.h"
#include "server/shard/shard.h"
#include "tests/chaos/tcp_proxy.h"
#include "tests/server/replication/replica_fixture.h"

namespace lodestone::server {
namespace {

class TakeoverTest : public ReplicaFixture {
 protected:
  // As StartInSync, with connections that can be cut: the second ps reaches the first one through `proxy_`.
  void StartInSyncThroughProxy() {
    Start();
    ASSERT_NO_FATAL_FAILURE(PushMany(1, 3));
    auto proxy = chaos::TcpProxy::Start();
    ASSERT_TRUE(proxy.ok()) << proxy.status();
    proxy_ = *std::move(proxy);
    const auto address = ParseHostPort(a().address);
    ASSERT_TRUE(address.ok()) << address.status();
    proxy_->SetTarget(address->port);
    coordinator_.SetServer(0, proxy_->address(), a().incarnation());
    b().Begin();
    ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync() && InSyncShards(a()) == kShards; }));
  }
  std::vector<uint64_t> States() {
    std::vector<uint64_t> states;
    for (ShardId shard = 0; shard < kShards; ++shard) states.push_back(b().store->shards().StateGeneration(shard));
    return states;
  }
  // The second ps owns all; the first one has not heard of it.
  ShardMap PromoteSecond() {
    const ShardMap map = coordinator_.Promote(1, 0);
    b().replication->SetMap(map);
    EXPECT_TRUE(coordinator_.Await([this] { return b().store->shards().owned().size() == kShards; }));
    return map;
  }

  std::unique_ptr<chaos::TcpProxy> proxy_;
};

TEST_F(TakeoverTest, AStreamThatWasCutGoesOnWhereItWas) {
  ASSERT_NO_FATAL_FAILURE(StartInSyncThroughProxy());
  const std::vector<uint64_t> states = States();
  for (Sequence sequence = 4; sequence < 40; sequence += 4) {
    std::vector<std::future<Pushed>> pushes;
    std::thread cut([this] { proxy_->Cut(); });
    for (Sequence s = sequence; s < sequence + 4; ++s) pushes.push_back(PushTo(&a(), s, 1));
    cut.join();
    for (std::future<Pushed>& push : pushes) {
      const Pushed pushed = push.get();
      ASSERT_TRUE(pushed.ok()) << pushed.status();
    }
  }
  ExpectSame(&a(), &b());
  EXPECT_EQ(InSyncShards(a()), kShards);
  EXPECT_EQ(coordinator_.leaves(), 0);
  EXPECT_EQ(States(), states);
  EXPECT_GT(proxy_->traffic().cut, 0);
}

TEST_F(TakeoverTest, ANewerMapThatComesBeforeTheShardsAreBackIsNotForgotten) {
  const ShardMap older = coordinator_.Change([](v1::RouteResponse* route) {
    for (int shard = 0; shard < route->followers_size(); ++shard) route->set_followers(shard, 0);
  });
  Start();
  ASSERT_NO_FATAL_FAILURE(PushMany(1, 3));
  b().replication->SetMap(coordinator_.Change([](v1::RouteResponse* route) {
    for (int shard = 0; shard < route->followers_size(); ++shard) route->set_followers(shard, 2);
  }));
  b().replication->Prepare(older);
  b().store->OwnShards({});
  b().replication->Begin();
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync(); }));
  ExpectSame(&a(), &b());
}

TEST_F(TakeoverTest, WithoutALogAnotherLifeOfAFollowerThatLacksUpdatesGetsTheWholeState) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  const std::vector<uint64_t> states = States();
  const Incarnation former = b().incarnation();
  b().SetIncarnation(former + 1);
  const ShardMap alone = coordinator_.Change([](v1::RouteResponse* route) {
    for (int shard = 0; shard < route->followers_size(); ++shard) {
      route->set_followers(shard, 0);
      route->set_in_sync(shard, false);
    }
  });
  b().replication->SetMap(alone);
  a().replication->SetMap(alone);
  ASSERT_TRUE(coordinator_.Await([this] { return StatusOf(b()).replication().shards_following() == 0; }));
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 4));
  const ShardMap map = coordinator_.Change([](v1::RouteResponse* route) {
    for (int shard = 0; shard < route->followers_size(); ++shard) route->set_followers(shard, 2);
  });
  a().replication->SetMap(map);
  b().replication->SetMap(map);
  ASSERT_TRUE(coordinator_.Await([&] {
    for (ShardId shard = 0; shard < kShards; ++shard) {
      if (b().store->shards().StateGeneration(shard) == states[shard]) return false;
    }
    return coordinator_.AllInSync() && InSyncShards(a()) == kShards;
  }));
  ASSERT_NO_FATAL_FAILURE(PushMany(5, 6));
  ExpectSame(&a(), &b());
}

TEST_F(TakeoverTest, AFollowerThatOwnsKnowsWhatWasAcknowledgedAndItsFormerOwnerBecomesItsCopy) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 6));
  const ShardMap map = PromoteSecond();
  std::future<Pushed> lost = PushTo(&a(), 7, 99);
  ASSERT_NO_FATAL_FAILURE(AwaitVersion(&a(), 0, 7));

  const Pushed retry = PushTo(&b(), 6, 6).get();
  ASSERT_TRUE(retry.ok()) << retry.status();
  for (const auto& shard : retry->shards()) {
    EXPECT_TRUE(shard.duplicate());
    EXPECT_EQ(shard.version(), 6u);
  }
  const Pushed next = PushTo(&b(), 7, 7).get();
  ASSERT_TRUE(next.ok()) << next.status();
  for (const auto& shard : next->shards()) {
    EXPECT_FALSE(shard.duplicate());
    EXPECT_EQ(shard.version(), 7u);
  }
  b().store->shards().Run(0, [&](Shard* shard) {
    EXPECT_EQ(shard->term(), map.TermOf(0));
    EXPECT_TRUE(shard->Includes(0, 6));
    EXPECT_FALSE(shard->Includes(0, 7));
    EXPECT_TRUE(shard->Includes(map.TermOf(0), 7));
  });
  EXPECT_TRUE(Waits(lost));
  a().replication->SetMap(map);
  EXPECT_TRUE(absl::IsAborted(lost.get().status()));
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync(); }));
  const Pushed both = PushTo(&b(), 8, 8).get();
  ASSERT_TRUE(both.ok()) << both.status();
  ExpectSame(&b(), &a());
  EXPECT_EQ(a().owners_changed, 1);
  EXPECT_EQ(b().owners_changed, 1);
}

// Regression, of simulation's seed 5825: a follower dropped the marks of a worker that had ended, but not its session.
// When it had become the owner, a push of that worker's that was sent again was applied a second time.
TEST_F(TakeoverTest, AFollowerThatOwnsTakesNoPushAgainOfAWorkerThatHadEnded) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  constexpr Incarnation kEnded = kWorker + 1;
  Ensure(&a(), {}, kEnded);
  const Pushed first = PushTo(&a(), 1, 5, kEnded).get();
  ASSERT_TRUE(first.ok()) << first.status();
  a().store->EndSessions({{kEnded}});
  ASSERT_TRUE(coordinator_.Await([&] { return !b().store->sessions().IsOpen(kEnded); }));
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 4));
  for (ShardId shard = 0; shard < kShards; ++shard) {  // Each drops the marks when its executor gets to it.
    EXPECT_TRUE(coordinator_.Await([&] { return a().checksum(shard) == b().checksum(shard); })) << "shard " << shard;
  }
  const float before = Row(&a(), 0);
  PromoteSecond();
  const Pushed again = PushTo(&b(), 1, 5, kEnded).get();
  EXPECT_TRUE(absl::IsFailedPrecondition(again.status())) << again.status();
  EXPECT_EQ(Row(&b(), 0), before) << "it counts once";
}

// Regression: the ps that heard of a worker's end from the other one first told its own followers nothing of it: they
// kept the worker's marks for ever.
TEST_F(TakeoverTest, EachFollowerDropsTheMarksOfAWorkerThatHasEnded) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  constexpr uint32_t kHalf = kShards / 2;
  const ShardMap map = coordinator_.Change([](v1::RouteResponse* route) {
    for (int shard = kHalf; shard < static_cast<int>(kShards); ++shard) {
      route->set_owners(shard, 1);
      route->set_followers(shard, 1);
      route->set_in_sync(shard, false);
      route->set_terms(shard, route->epoch());
    }
  });
  for (const auto& node : nodes_) node->replication->SetMap(map);
  ASSERT_TRUE(coordinator_.Await([&] { return InSyncShards(a()) == kHalf && InSyncShards(b()) == kShards - kHalf; }));
  constexpr Incarnation kEnded = kWorker + 1;
  for (const auto& node : nodes_) {
    Ensure(node.get(), {}, kEnded);
    RequestBuilder<v1::PushRequest> push(kShards);
    push.header.set_worker_incarnation(kEnded);
    push.header.set_sequence(1);
    std::vector<std::pair<Key, float>> rows;
    for (Key key = 0; key < 40; ++key) {
      if ((ShardOfKey(key, kShards) >= kHalf) == (node == nodes_[1])) rows.emplace_back(key, 1.0f);
    }
    push.AddRows(TableIdOf("rows"), kDim, rows, true);
    const Pushed pushed = Send(node.get(), push).get();
    ASSERT_TRUE(pushed.ok()) << pushed.status();
  }
  a().store->EndSessions({{kEnded}});
  ASSERT_TRUE(coordinator_.Await([&] { return !b().store->sessions().IsOpen(kEnded); }));
  b().store->EndSessions({{kEnded}});
  for (ShardId shard = 0; shard < kShards; ++shard) {
    EXPECT_TRUE(coordinator_.Await([&] { return a().checksum(shard) == b().checksum(shard); })) << "shard " << shard;
  }
}

TEST_F(TakeoverTest, OwnershipGoesBackAndForthWithoutLoss) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  Sequence sequence = 3;
  for (uint32_t round = 0; round < 6; ++round) {
    Node* const owner = nodes_[(round + 1) % 2].get();
    Node* const follower = nodes_[round % 2].get();
    const ShardMap map = coordinator_.Promote((round + 1) % 2, round % 2);
    follower->replication->SetMap(map);
    owner->replication->SetMap(map);
    ASSERT_TRUE(coordinator_.Await([&] { return owner->store->shards().owned().size() == kShards; }));
    for (int i = 0; i < 3; ++i) {
      const Pushed pushed = PushTo(owner, ++sequence, 1).get();
      ASSERT_TRUE(pushed.ok()) << pushed.status();
      for (const auto& shard : pushed->shards()) EXPECT_EQ(shard.version(), sequence);
    }
    ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync(); }));
    ExpectSame(owner, follower);
    EXPECT_EQ(follower->term(0), map.TermOf(0));
  }
}

TEST_F(TakeoverTest, AStateIsOfTheTermOfTheOwnerThatSentIt) {
  // Or what its follower had logged as the owner before would count as what came after the state.
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  const ShardMap map = PromoteSecond();
  a().replication->SetMap(map);
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync(); }));
  EXPECT_EQ(a().term(0), map.TermOf(0));
  for (Sequence s = 4; s < 8; ++s) {
    const Pushed pushed = PushTo(&b(), s, 1).get();
    ASSERT_TRUE(pushed.ok()) << pushed.status();
  }
  ExpectSame(&b(), &a());
}

TEST_F(TakeoverTest, AShardThatWasLostTellsSubscribersNothing) {
  // Its content may be half of the new owner's by then.
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  v1::SubscribeRequest request;
  request.add_tables()->set_table(TableIdOf("dense"));
  const auto subscription = a().store->deltas().MakeSubscription(request);
  ASSERT_TRUE(subscription.ok()) << subscription.status();
  a().store->shards().Disown(0);
  a().store->replayer().ClearState(0);
  std::promise<absl::Status> told;
  a().store->deltas().Collect(0, *subscription, std::nullopt,
                              [&](const absl::StatusOr<ShardChange>& change) { told.set_value(change.status()); });
  EXPECT_TRUE(absl::IsAborted(told.get_future().get()));
}

// Regression: a winner made the memory of what it was to follow, which takes seconds where dense tables are large,
// before it served what it had won.
TEST_F(TakeoverTest, AWinnerServesBeforeItMakesMemoryForWhatItIsToFollowAndANewerMapEndsThat) {
  const auto follow_first_two = [](v1::RouteResponse* route) {
    for (int shard = 2; shard < route->followers_size(); ++shard) route->set_followers(shard, 0);
  };
  coordinator_.Change(follow_first_two);
  Start();
  b().Begin();
  ASSERT_TRUE(coordinator_.Await([this] { return InSyncShards(a()) == 2; }));
  ASSERT_EQ(b().store->shards().RoleOf(2), ShardRole::kNone);

  HeldTable late(b().store.get(), AddingRows("late", kDim));  // Until then no shard can be made.
  b().replication->SetMap(coordinator_.Change([](v1::RouteResponse* route) {
    for (int shard = 0; shard < route->owners_size(); ++shard) {
      const bool won = shard < 2;
      route->set_owners(shard, won ? 1 : 0);
      route->set_followers(shard, won ? 0 : 2);
      route->set_in_sync(shard, false);
      route->set_terms(shard, route->epoch());
    }
  }));
  ASSERT_TRUE(coordinator_.Await([this] { return b().store->shards().owned().size() == 2; }));
  EXPECT_EQ(b().replication->CheckLease(), absl::OkStatus());
  b().replication->SetMap(coordinator_.Change([](v1::RouteResponse* route) { route->set_followers(3, 0); }));
  ASSERT_EQ(late.Finish(), absl::OkStatus());
  ASSERT_TRUE(coordinator_.Await([this] { return b().store->shards().RoleOf(2) != ShardRole::kNone; }));
  b().replication->Shutdown();
  EXPECT_EQ(b().store->shards().RoleOf(3), ShardRole::kNone);
  EXPECT_EQ(b().store->shards().owned().size(), 2u);
}

TEST_F(TakeoverTest, AWinnerThatLosesOtherShardsServesBeforeItMakesMemoryForWhatItIsToFollow) {
  coordinator_.Change([](v1::RouteResponse* route) {
    route->set_owners(3, 1);
    route->set_followers(2, 0);
    route->set_followers(3, 0);
  });
  Start();
  b().Begin();
  ASSERT_TRUE(coordinator_.Await([this] { return InSyncShards(a()) == 2; }));
  HeldTable late(b().store.get(), AddingRows("late", kDim));
  b().replication->SetMap(coordinator_.Change([](v1::RouteResponse* route) {
    for (int shard = 0; shard < route->owners_size(); ++shard) {
      route->set_owners(shard, shard < 2 ? 1 : 0);
      route->set_followers(shard, shard < 2 ? 0 : 2);
      route->set_in_sync(shard, false);
      if (shard != 2) route->set_terms(shard, route->epoch());
    }
  }));
  EXPECT_TRUE(coordinator_.Await(
      [this] { return b().store->shards().owned().size() == 2 && b().replication->CheckLease().ok(); }));
  EXPECT_EQ(late.Finish(), absl::OkStatus());
}

TEST_F(TakeoverTest, AShardThatAPsNeitherOwnsNorFollowsIsFreedOnceAllHaveTwoCopies) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  const auto count = [this](auto figure) {
    v1::StatusResponse status;
    b().store->FillStatus(&status);
    uint64_t sum = 0;
    for (const v1::TableStatus& table : status.tables()) sum += (table.*figure)();
    return sum;
  };
  const uint64_t bytes = count(&v1::TableStatus::bytes);
  const uint64_t blocks = count(&v1::TableStatus::blocks);
  ASSERT_GT(bytes, 0);
  const auto follow = [this](uint32_t follower) {
    const ShardMap map = coordinator_.Change([follower](v1::RouteResponse* route) {
      for (int shard = 0; shard < route->followers_size(); ++shard) {
        route->set_followers(shard, follower);
        route->set_in_sync(shard, false);
      }
    });
    a().replication->SetMap(map);
    b().replication->SetMap(map);
  };
  follow(0);
  b().replication->FreeOthers();
  ASSERT_TRUE(coordinator_.Await([this] { return b().store->shards().adopted().empty(); }));
  EXPECT_LT(count(&v1::TableStatus::bytes), bytes / 10);
  EXPECT_EQ(count(&v1::TableStatus::blocks), 0);

  follow(2);  // The second ps.
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync() && InSyncShards(a()) == kShards; }));
  ExpectSame(&a(), &b());
  EXPECT_EQ(count(&v1::TableStatus::blocks), blocks);
}

}  // namespace
}  // namespace lodestone::server
