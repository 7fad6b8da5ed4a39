// An owner and its follower: how one joins, what is acknowledged when, and who is told.
#include "server/replication/replication.h"

#include <random>

#include "server/shard/shard.h"
#include "server/shard/table_state.h"
#include "tests/server/replication/replica_fixture.h"
#include "tests/server/shard/filled_shard.h"

namespace lodestone::server {
namespace {

// Pushes to tables of all kinds, the keys and numbers drawn at random.
RequestBuilder<v1::PushRequest> RandomPush(uint32_t shards, const std::vector<v1::TableSpec>& specs,
                                           Sequence sequence) {
  std::mt19937_64 random(sequence);
  RequestBuilder<v1::PushRequest> push(shards);
  push.header.set_worker_incarnation(kWorker);
  push.header.set_sequence(sequence);
  for (const v1::TableSpec& spec : specs) {
    const TableId id = TableIdOf(spec.name());
    const auto value = static_cast<float>(random() % 1000) / 500 - 1;
    if (spec.has_dense()) {
      push.AddDense(id, {23 * 9, spec.dense().block_elements()}, value);
      continue;
    }
    std::vector<std::pair<Key, float>> rows;
    for (int i = 0; i < 60; ++i) rows.emplace_back(random() % 2000, value + static_cast<float>(i) / 100);
    push.AddRows(id, spec.embedding().dim(), rows, true);
  }
  return push;
}

using OptimizerReplicationTest = ReplicaFixture;

TEST_P(OptimizerReplicationTest, AFollowerThatComesLateGetsTheStateAndWhatComesMeanwhile) {
  Start();
  const std::vector<v1::TableSpec> specs = SpecsWith(GetParam(), kDim);
  std::vector<v1::TableSpec> renamed = specs;  // The fixture has a table of that name.
  for (v1::TableSpec& spec : renamed) spec.set_name("x/" + spec.name());
  Ensure(&a(), renamed);
  Sequence sequence = 0;
  const auto push = [&] {
    const Pushed pushed = Send(&a(), RandomPush(kShards, renamed, ++sequence)).get();
    ASSERT_TRUE(pushed.ok()) << pushed.status();
    a().time.AdvanceMs(20);
    if (sequence % 7 == 0) a().store->Tick();
  };
  for (int i = 0; i < 30; ++i) ASSERT_NO_FATAL_FAILURE(push());
  b().Begin();
  while (!coordinator_.AllInSync()) ASSERT_NO_FATAL_FAILURE(push());
  for (int i = 0; i < 30; ++i) ASSERT_NO_FATAL_FAILURE(push());
  a().time.AdvanceMs(300);
  a().store->Tick();  // Rows expire while the two are compared.
  ExpectSame(&a(), &b());
  const auto verified = a().replication->Verify();
  ASSERT_TRUE(verified.ok()) << verified.status();
  ASSERT_EQ(verified->shards_size(), static_cast<int>(kShards));
  for (const auto& shard : verified->shards()) {
    EXPECT_EQ(shard.missing(), "");
    EXPECT_EQ(shard.follower(), 1u);
    EXPECT_EQ(shard.owner_checksum(), shard.follower_checksum()) << shard.shard();
  }
}

// Other settings of a table, by a later worker, are for a follower what they are for the owner: at the same place among
// each shard's updates, whether it has them from a state or as an update.
TEST_P(OptimizerReplicationTest, AFollowerHasTheSettingsThatALaterWorkerBrought) {
  Start();
  std::vector<v1::TableSpec> specs = SpecsWith(GetParam(), kDim);
  for (v1::TableSpec& spec : specs) spec.set_name("x/" + spec.name());
  Ensure(&a(), specs);
  Sequence sequence = 0;
  const auto push = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const Pushed pushed = Send(&a(), RandomPush(kShards, specs, ++sequence)).get();
      ASSERT_TRUE(pushed.ok()) << pushed.status();
    }
  };
  const auto change = [&](float factor) {
    for (v1::TableSpec& spec : specs) {
      spec.mutable_optimizer()->set_learning_rate(factor * spec.optimizer().learning_rate());
    }
    Ensure(&a(), specs);
  };
  ASSERT_NO_FATAL_FAILURE(push(10));
  change(0.5f);
  ASSERT_NO_FATAL_FAILURE(push(10));
  b().Begin();
  while (!coordinator_.AllInSync()) ASSERT_NO_FATAL_FAILURE(push(1));
  ASSERT_NO_FATAL_FAILURE(push(10));
  change(3);
  ASSERT_NO_FATAL_FAILURE(push(10));
  ExpectSame(&a(), &b());
  for (const v1::TableSpec& spec : specs) {
    EXPECT_EQ(b().store->tables().SpecOf(spec.name())->optimizer().learning_rate(), spec.optimizer().learning_rate());
  }
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerReplicationTest, ::testing::ValuesIn(AllMethods()));

class ReplicationTest : public ReplicaFixture {
 protected:
  // All copies of what the first ps owns are there and the same.
  void ExpectVerified() {
    const auto verified = a().replication->Verify();
    ASSERT_TRUE(verified.ok()) << verified.status();
    EXPECT_EQ(verified->shards_size(), static_cast<int>(kShards));
    for (const auto& shard : verified->shards()) {
      EXPECT_EQ(shard.missing(), "");
      EXPECT_EQ(shard.owner_checksum(), shard.follower_checksum()) << shard.shard();
    }
  }
};

TEST_F(ReplicationTest, ACopyThatWasTamperedWithIsFound) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  b().store->shards().Run(2, [](Shard* shard) { shard->ForgetWorker(kWorker); });
  const auto verified = a().replication->Verify();
  ASSERT_TRUE(verified.ok()) << verified.status();
  for (const auto& shard : verified->shards()) {
    EXPECT_EQ(shard.owner_checksum() == shard.follower_checksum(), shard.shard() != 2) << shard.shard();
  }
}

TEST_F(ReplicationTest, AFollowerDividesTheRateOfLateGradientsAsItsOwnerDoes) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  std::vector<v1::TableSpec> specs = SpecsWith(AllMethods().front(), kDim);
  for (v1::TableSpec& spec : specs) {
    spec.set_name("late/" + spec.name());
    spec.mutable_consistency()->mutable_async()->set_rate(v1::Consistency::Async::BY_DELAY);
  }
  Ensure(&a(), specs);
  for (Sequence sequence = 100; sequence < 120; ++sequence) {
    RequestBuilder<v1::PushRequest> push = RandomPush(kShards, specs, sequence);
    for (v1::Part& part : *push.header.mutable_parts()) part.add_read_versions(1);
    const Pushed pushed = Send(&a(), push).get();
    ASSERT_TRUE(pushed.ok()) << pushed.status();
  }
  ExpectSame(&a(), &b());
}

// Regression: with workers that train ranges, each of which is a session that ends, copies seemed to differ.
TEST_F(ReplicationTest, AWorkerWhoseEndIsKnownHereAndForgottenThereMakesNoDifference) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  // The owner hears of it as the follower of another one, and tells its own; its shards' windows of the worker go when
  // the coordinator says it.
  v1::LogRecord ended;
  ended.set_session_forgotten(kWorker);
  ended.set_session_ended(true);
  ASSERT_TRUE(a().store->replayer().ReplayFollowed(ended, Payload()).ok());
  const auto windows = [](Node* node, ShardId shard) {
    size_t count = 0;
    node->store->shards().Run(shard, [&](Shard* held) { count = held->CollectState(nullptr).windows.size(); });
    return count;
  };
  for (ShardId shard = 0; shard < kShards; ++shard) {
    ASSERT_TRUE(coordinator_.Await([&] { return windows(&b(), shard) == 0; }));
    ASSERT_EQ(windows(&a(), shard), 1u);
  }
  ExpectVerified();
}

// Regression: an owner that was killed may not know any more that a worker has ended, and its follower does.
TEST_F(ReplicationTest, AWorkerWhoseEndTheFollowerAloneKnowsMakesNoDifference) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  b().store->sessions().End(kWorker);
  for (ShardId shard = 0; shard < kShards; shard += 2) {
    b().store->shards().Run(shard, [](Shard* held) { held->ForgetWorker(kWorker); });
  }
  ExpectVerified();
}

TEST_F(ReplicationTest, WhatNobodyFollowsIsNotCompared) {
  Start();
  const auto verified = a().replication->Verify();
  ASSERT_TRUE(verified.ok()) << verified.status();
  for (const auto& shard : verified->shards()) EXPECT_NE(shard.missing(), "");
}

TEST_F(ReplicationTest, AFollowerThatHasNotCaughtUpIsNamedBesideTheOneThatIsTheSame) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  v1::RouteResponse route = coordinator_.route();
  route.set_epoch(route.epoch() + 1);
  route.add_servers();
  for (ShardId shard = 0; shard < kShards; ++shard) {
    route.add_second_followers(3);
    route.add_second_in_sync(false);
  }
  a().replication->SetMap(*ShardMap::FromProto(route));
  absl::StatusOr<v1::VerifyReplicasResponse> verified;
  ASSERT_TRUE(coordinator_.Await([&] {
    verified = a().replication->Verify();
    return !verified.ok() || verified->shards_size() == 2 * static_cast<int>(kShards);
  }));
  ASSERT_TRUE(verified.ok()) << verified.status();
  for (const auto& shard : verified->shards()) {
    if (shard.follower() == 1) {
      EXPECT_EQ(shard.missing(), "");
      EXPECT_EQ(shard.owner_checksum(), shard.follower_checksum());
    } else {
      EXPECT_EQ(shard.follower(), 2);
      EXPECT_EQ(shard.missing(), "ps 2 has not caught up with it");
    }
  }
}

TEST_F(ReplicationTest, APushIsAcknowledgedOnlyOnceTheFollowerHasIt) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  std::future<Pushed> push, again;
  {
    const Hold hold(b().store.get(), 0);
    push = PushTo(&a(), 4, 1);
    ASSERT_NO_FATAL_FAILURE(AwaitVersion(&a(), 0, 4));
    again = PushTo(&a(), 4, 1);
    a().store->shards().Run(0, [](Shard*) {});  // It has been through the executors.
    a().store->shards().Run(1, [](Shard*) {});
    EXPECT_TRUE(Waits(push));
    EXPECT_TRUE(Waits(again)) << "a duplicate tells that the first one is safe";
  }
  const Pushed pushed = push.get();
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  const Pushed repeated = again.get();
  ASSERT_TRUE(repeated.ok()) << repeated.status();
  for (const auto& shard : repeated->shards()) EXPECT_TRUE(shard.duplicate());
  ExpectSame(&a(), &b());
}

TEST_F(ReplicationTest, TheCoordinatorHearsThatAFollowerCountsOnlyWhenItHasAllThatWasAcknowledged) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PushMany(1, 3));
  std::atomic<bool> too_early{false};
  std::vector<std::atomic<Version>> acknowledged(kShards);
  for (ShardId shard = 0; shard < kShards; ++shard) acknowledged[shard] = a().store->shards().VersionOf(shard);
  coordinator_.OnReport([&](const v1::ReportSyncRequest::Report& report) {
    const ShardId shard = report.shard();
    if (!report.in_sync() || b().store->shards().RoleOf(shard) != ShardRole::kFollows) too_early = true;
    too_early = too_early || b().store->shards().VersionOf(shard) < acknowledged[shard];
  });
  b().Begin();
  Sequence sequence = 3;
  while (!coordinator_.AllInSync()) {
    const Pushed pushed = PushTo(&a(), ++sequence, 1).get();
    ASSERT_TRUE(pushed.ok()) << pushed.status();
    for (const auto& shard : pushed->shards()) acknowledged[shard.shard()] = shard.version();
  }
  EXPECT_FALSE(too_early);
  coordinator_.OnReport(nullptr);
}

TEST_F(ReplicationTest, WithoutItsFollowerAnOwnerAcknowledgesOnlyWhatTheCoordinatorHasReleased) {
  ASSERT_NO_FATAL_FAILURE(StartInSync(/*lease_ms=*/40));
  auto hold = std::make_unique<Hold>(b().store.get(), 0);
  coordinator_.SetMode(FakeCoordinator::Mode::kFail);
  std::future<Pushed> push = PushTo(&a(), 4, 1);
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.leaves() >= 3; }));
  EXPECT_TRUE(Waits(push)) << "the coordinator has not heard of it";
  coordinator_.SetMode(FakeCoordinator::Mode::kRefuse);
  const int leaves = coordinator_.leaves();
  ASSERT_TRUE(coordinator_.Await([&] { return coordinator_.leaves() >= leaves + 3; }));
  EXPECT_TRUE(Waits(push)) << "the coordinator has refused it";
  coordinator_.SetMode(FakeCoordinator::Mode::kTake);
  const Pushed pushed = push.get();
  EXPECT_TRUE(pushed.ok()) << pushed.status();
  EXPECT_FALSE(coordinator_.InSync(0));

  // It may come back.
  hold.reset();
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync(); }));
  ASSERT_NO_FATAL_FAILURE(PushMany(5, 7));
  ExpectSame(&a(), &b());
}

TEST_F(ReplicationTest, AReportWhoseAnswerWasLostIsNotForgotten) {
  Start(/*lease_ms=*/40);
  ASSERT_NO_FATAL_FAILURE(PushMany(1, 3));
  coordinator_.SetMode(FakeCoordinator::Mode::kTakeAndFail);
  b().Begin();
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync(); }));
  coordinator_.SetMode(FakeCoordinator::Mode::kFail);
  const Hold hold(b().store.get(), 0);
  std::future<Pushed> push = PushTo(&a(), 4, 1);
  const int leaves = coordinator_.leaves();
  ASSERT_TRUE(coordinator_.Await([&] { return coordinator_.leaves() >= leaves + 3; }));
  EXPECT_TRUE(coordinator_.InSync(0));
  EXPECT_TRUE(Waits(push)) << "the coordinator would make the follower the owner, which does not have it";
  coordinator_.SetMode(FakeCoordinator::Mode::kTake);
  const Pushed pushed = push.get();
  EXPECT_TRUE(pushed.ok()) << pushed.status();
  EXPECT_FALSE(coordinator_.InSync(0));
}

TEST_F(ReplicationTest, ANewerMapWithoutTheFollowerReleasesAndAnOlderOneDoesNot) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  const ShardMap older = coordinator_.map();
  // As a map that was fetched before the reports: the same epoch, and nobody in sync.
  v1::RouteResponse route = coordinator_.route();
  for (int shard = 0; shard < route.in_sync_size(); ++shard) route.set_in_sync(shard, false);
  const auto before = ShardMap::FromProto(route);
  ASSERT_TRUE(before.ok());
  const Hold hold(b().store.get(), 0);
  a().replication->SetMap(*before);
  std::future<Pushed> push = PushTo(&a(), 4, 1);
  ASSERT_NO_FATAL_FAILURE(AwaitVersion(&a(), 0, 4));
  ASSERT_EQ(InSyncShards(a()), kShards);
  EXPECT_TRUE(Waits(push));
  a().replication->SetMap(coordinator_.Change([](v1::RouteResponse* map) {
    for (int shard = 0; shard < map->in_sync_size(); ++shard) map->set_in_sync(shard, false);
  }));
  const Pushed pushed = push.get();
  EXPECT_TRUE(pushed.ok()) << pushed.status();
}

TEST_F(ReplicationTest, WhoWaitsWhenTheLeaseEndsIsToldSoAndNobodyIsServedAfterIt) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  const Hold hold(b().store.get(), 0);
  std::future<Pushed> push = PushTo(&a(), 4, 1);
  ASSERT_NO_FATAL_FAILURE(AwaitVersion(&a(), 0, 4));
  a().lease_over = true;
  EXPECT_TRUE(absl::IsUnavailable(push.get().status()));
  EXPECT_TRUE(absl::IsUnavailable(PushTo(&a(), 5, 1).get().status()));
  RequestBuilder<v1::PullRequest> pull(kShards);
  pull.AddRows(TableIdOf("rows"), kDim, {{1, 0.0f}}, false);
  std::promise<absl::Status> pulled;
  a().store->pulls().Pull(pull.header, pull.payload(), [&](auto values) { pulled.set_value(values.status()); });
  EXPECT_TRUE(absl::IsUnavailable(pulled.get_future().get()));
  EXPECT_EQ(a().store->shards().VersionOf(0), 4u);
}

TEST_F(ReplicationTest, AtShutdownWhoWaitsGetsUnavailable) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  const Hold hold(b().store.get(), 0);
  std::future<Pushed> push = PushTo(&a(), 4, 1);
  ASSERT_NO_FATAL_FAILURE(AwaitVersion(&a(), 0, 4));
  a().replication->Shutdown();
  EXPECT_TRUE(absl::IsUnavailable(push.get().status()));
  EXPECT_TRUE(absl::IsUnavailable(PushTo(&a(), 5, 1).get().status()));
}

TEST_F(ReplicationTest, WhoWaitsWhenTheShardGetsAnotherOwnerIsAborted) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  std::future<Pushed> push;
  {
    const Hold hold(b().store.get(), 0);
    push = PushTo(&a(), 4, 1);
    ASSERT_NO_FATAL_FAILURE(AwaitVersion(&a(), 0, 4));
    a().replication->SetMap(coordinator_.Promote(1, 0));
    EXPECT_TRUE(absl::IsAborted(push.get().status()));
  }
  EXPECT_TRUE(absl::IsAborted(PushTo(&a(), 5, 1).get().status()));
}

TEST_F(ReplicationTest, AnOwnerThatIsToGiveShardsUpAnswersForThemNoMoreAndReportsThatOnceItsFollowerHasAll) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  std::vector<std::atomic<uint64_t>> reported(kShards);
  coordinator_.OnReport([&](const v1::ReportSyncRequest::Report& report) {
    if (report.gives_up() > 0) reported[report.shard()] = report.gives_up();
  });
  const auto await_role = [this](ShardRole role) {
    return coordinator_.Await([&] {
      for (ShardId shard = 0; shard < kShards; ++shard) {
        if (a().store->shards().RoleOf(shard) != role) return false;
      }
      return true;
    });
  };
  std::future<Pushed> push;
  uint64_t handover = 0;
  {
    const Hold hold(b().store.get(), 0);
    push = PushTo(&a(), 4, 1);
    for (ShardId shard = 0; shard < kShards; ++shard) ASSERT_NO_FATAL_FAILURE(AwaitVersion(&a(), shard, 4));
    const ShardMap asks = coordinator_.Change([](v1::RouteResponse* route) {
      for (int shard = 0; shard < route->owners_size(); ++shard) route->add_handovers(route->epoch());
    });
    handover = asks.epoch();
    a().replication->SetMap(asks);
    ASSERT_TRUE(await_role(ShardRole::kGivesUp));
    EXPECT_TRUE(absl::IsAborted(PushTo(&a(), 5, 1).get().status()));
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.AddRows(TableIdOf("rows"), kDim, {{1, 0.0f}}, false);
    std::promise<absl::Status> pulled;
    a().store->pulls().Pull(pull.header, pull.payload(), [&](auto values) { pulled.set_value(values.status()); });
    EXPECT_TRUE(absl::IsAborted(pulled.get_future().get()));
    EXPECT_TRUE(Waits(push));
    EXPECT_EQ(reported[0], 0u) << "its follower lacks an update that is not acknowledged yet";
  }
  const Pushed pushed = push.get();
  EXPECT_TRUE(pushed.ok()) << pushed.status() << ": what it took before is the follower's too";
  for (ShardId shard = 0; shard < kShards; ++shard) {
    EXPECT_TRUE(coordinator_.Await([&] { return reported[shard] == handover; })) << shard;
  }
  EXPECT_TRUE(absl::IsAborted(PushTo(&a(), 5, 1).get().status())) << "it waits for the map that says what became of it";
  // The move has ended otherwise: it is the owner as before.
  a().replication->SetMap(coordinator_.Change([](v1::RouteResponse* route) { route->clear_handovers(); }));
  ASSERT_TRUE(await_role(ShardRole::kOwns));
  const Pushed again = PushTo(&a(), 5, 1).get();
  EXPECT_TRUE(again.ok()) << again.status();
  coordinator_.OnReport(nullptr);
  ExpectSame(&a(), &b());
}

TEST_F(ReplicationTest, TablesSessionsAndRollbacksReachAFollower) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  constexpr Incarnation kOther = kWorker + 1;
  Ensure(&a(), {AddingRows("later", 3)}, kOther);
  RequestBuilder<v1::PushRequest> push(kShards);
  push.header.set_worker_incarnation(kOther);
  push.header.set_sequence(1);
  push.AddRows(TableIdOf("later"), 3, {{1, 1.0f}, {2, 2.0f}, {77, 3.0f}}, true);
  const Pushed pushed = Send(&a(), push).get();
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  auto part = std::make_shared<TablePart>();
  part->table = TableIdOf("rows");
  const auto rolled = a().store->replayer().RollBack(1, part);
  ASSERT_TRUE(rolled.ok()) << rolled.status();
  ASSERT_EQ(b().store->shards().RoleOf(1), ShardRole::kFollows);
  EXPECT_EQ(b().store->shards().VersionOf(1), *rolled) << "it is acknowledged as a push is";
  ExpectSame(&a(), &b());
  EXPECT_EQ(b().store->tables().specs().size(), 3u);
  const auto open = b().store->sessions().known().open;
  EXPECT_TRUE(std::binary_search(open.begin(), open.end(), kOther));
}

// Regression: a follower that began while its owner made a table was told of it neither then nor later.
TEST_F(ReplicationTest, AFollowerThatBeginsWhileATableIsMadeHearsOfIt) {
  Start();
  HeldTable late(a().store.get(), AddingRows("late", kDim));
  b().Begin();
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync() && InSyncShards(a()) == kShards; }));
  EXPECT_TRUE(b().store->tables().SpecOf("late").has_value());
  ASSERT_EQ(late.Finish(), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(PushMany(1, 2));
  ExpectSame(&a(), &b());
}

// Regression: the copies of a ps that could not note in its folder that it has some, and was killed, counted as damage
// at its next start.
TEST_F(ReplicationTest, AFollowerWhoseFolderCannotNoteThatItHoldsCopiesTakesNoneBeforeItCan) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PushMany(1, 3));
  b().full = true;
  b().Begin();
  ASSERT_TRUE(coordinator_.Await([this] { return b().notes_asked >= 2; })) << "it tries again";
  EXPECT_EQ(b().states_taken, 0);
  EXPECT_EQ(InSyncShards(a()), 0u);
  b().full = false;
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync(); }));
  ExpectSame(&a(), &b());
}

TEST_F(ReplicationTest, AForgottenSessionIsForgottenByTheFollowerToo) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  constexpr Incarnation kOther = kWorker + 1;
  Ensure(&a(), {}, kOther);
  a().time.AdvanceMs(limits::kSessionIdleMaxMs - 1);
  ASSERT_TRUE(PushTo(&a(), 1, 1, kOther).get().ok());
  a().time.AdvanceMs(2);
  a().store->Tick();
  ASSERT_TRUE(PushTo(&a(), 2, 1, kOther).get().ok());
  ExpectSame(&a(), &b());
  size_t windows = 0;
  b().store->shards().Run(0, [&](Shard* shard) { windows = shard->CollectState(nullptr).windows.size(); });
  EXPECT_EQ(windows, 1u);
}

}  // namespace
}  // namespace lodestone::server
