// Owners and followers that keep what they hold on disk: what one brings back as the owner.
#include <filesystem>
#include <latch>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "server/checkpoint/shard_file.h"
#include "server/shard/shard.h"
#include "server/shard/table_state.h"
#include "server/wal/update_log.h"
#include "tests/server/replication/replica_fixture.h"

namespace lodestone::server {
namespace {

class ReplicaStorageTest : public ReplicaFixture {
 protected:
  ReplicaStorageTest() {
    root_ =
        std::filesystem::path(::testing::TempDir()) / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
  }
  ~ReplicaStorageTest() override {
    nodes_.clear();
    std::filesystem::remove_all(root_);
  }
  std::string DataDir(uint32_t index) const override {
    return own_folders_ ? absl::StrCat(root_.string(), "/", index) : root_.string();
  }

  // The second ps owns all, with what it has confirmed; the first one has not heard of it.
  ShardMap PromoteSecond() {
    const ShardMap map = coordinator_.Promote(1, 0);
    b().replication->SetMap(map);
    EXPECT_TRUE(coordinator_.Await([this] { return b().store->shards().owned().size() == kShards; }));
    return map;
  }
  // As far as the first ps knows, it still owns all: what is pushed to it is confirmed by nobody.
  std::vector<std::future<Pushed>> PushInVain(Sequence first, Sequence last) {
    std::vector<std::future<Pushed>> pushes;
    for (Sequence s = first; s <= last; ++s) pushes.push_back(PushTo(&a(), s, 99));
    for (ShardId shard = 0; shard < kShards; ++shard) AwaitVersion(&a(), shard, last);
    return pushes;
  }
  void PushManyTo(Node* owner, Sequence first, Sequence last) {
    for (Sequence s = first; s <= last; ++s) {
      const Pushed pushed = PushTo(owner, s, static_cast<float>(s)).get();
      ASSERT_TRUE(pushed.ok()) << pushed.status();
    }
  }
  // Ends a ps, which writes all of its log but no checkpoint; no follower counts any more.
  void End(uint32_t index) {
    nodes_[index].reset();
    const ShardMap map = NobodyInSync();
    if (nodes_[1 - index] != nullptr) nodes_[1 - index]->replication->SetMap(map);
  }
  // Starts it again, as a new life. `term`: of the shards that it owns.
  void Restart(uint32_t index, uint64_t term = 0) {
    nodes_[index] = std::make_unique<Node>(&coordinator_, index, kShards, kLong, DataDir(index));
    nodes_[index]->SetIncarnation(1000 + ++lives_);
    if (term > 0) nodes_[index]->store->shards().SetTerms(std::vector<uint64_t>(kShards, term));
    const ShardMap map = coordinator_.Change([](v1::RouteResponse*) {});
    nodes_[index]->Begin();
    nodes_[index]->replication->SetMap(map);
    nodes_[1 - index]->replication->SetMap(map);
  }
  ShardMap NobodyInSync() {
    return coordinator_.Change([](v1::RouteResponse* route) {
      for (int shard = 0; shard < route->in_sync_size(); ++shard) route->set_in_sync(shard, false);
    });
  }
  void AwaitInSync(Node* owner) {
    ASSERT_TRUE(coordinator_.Await([&] { return coordinator_.AllInSync() && InSyncShards(*owner) == kShards; }));
  }
  // The rows of a shard as they are: several records.
  static std::shared_ptr<TablePart> RowsPart(Node* node, ShardId shard) {
    auto part = std::make_shared<TablePart>();
    part->table = TableIdOf("dense");
    node->store->shards().Run(shard, [&](Shard* held) {
      const Shard::State state = held->CollectState(nullptr);
      for (const auto& dense : state.dense) {
        if (dense.table->id() != part->table) continue;
        VisitRecords(dense, [&](const v1::CheckpointRecord& message, std::span<const ByteView> payload) {
          TablePart::Record& record = part->records.emplace_back();
          record.message = message;
          for (const ByteView& view : payload) {
            record.payload.append(reinterpret_cast<const char*>(view.contiguous()), view.size());
          }
          return absl::OkStatus();
        }).IgnoreError();
      }
    });
    return part;
  }
  static size_t Windows(Node* node) {
    size_t windows = 0;
    for (ShardId shard = 0; shard < kShards; ++shard) {
      node->store->shards().Run(
          shard, [&windows](Shard* held) { windows = std::max(windows, held->CollectState(nullptr).windows.size()); });
    }
    return windows;
  }
  static void Checkpoint(Node* node) {
    const auto written = node->storage->Checkpoint("");
    ASSERT_TRUE(written.ok()) << written.status();
  }
  std::vector<uint64_t> Content(Node* node) {
    std::vector<uint64_t> content;
    for (ShardId shard = 0; shard < kShards; ++shard) content.push_back(node->checksum(shard));
    return content;
  }
  // Ends a ps, which writes all of its log but no checkpoint. Then brings its shards back from its disk, as their
  // owner.
  absl::StatusOr<std::vector<uint64_t>> EndAndRecover(uint32_t index) {
    const v1::Config config = nodes_[index]->config;
    nodes_[index].reset();
    ManualTime time;
    Store::Options options;
    options.shards = kShards;
    options.executors = 2;
    options.time = &time;
    Store store(options);
    LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<Storage> storage, Storage::Open(config, &time));
    LODESTONE_RETURN_IF_ERROR(storage->Recover(&store, {0, 1, 2, 3}));
    std::vector<uint64_t> content;
    for (ShardId shard = 0; shard < kShards; ++shard) {
      store.shards().Run(shard, [&](Shard* held) { content.push_back(ContentChecksum(held->CollectState(nullptr))); });
    }
    return content;
  }

  std::filesystem::path root_;
  bool own_folders_ = false;  // Each ps sees its own checkpoints alone.
  Incarnation lives_ = 0;
};

TEST_F(ReplicaStorageTest, AFollowerBringsBackWhatItFollowedFromItsCheckpointAndLog) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  Checkpoint(&b());
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 8));
  ExpectSame(&a(), &b());
  const auto recovered = EndAndRecover(1);
  ASSERT_TRUE(recovered.ok()) << recovered.status();
  EXPECT_EQ(*recovered, Content(&a()));
}

TEST_F(ReplicaStorageTest, AFollowerThatBecameTheOwnerBringsBackBothTerms) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  Checkpoint(&b());
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 5));
  PromoteSecond();
  PushManyTo(&b(), 6, 9);
  const std::vector<uint64_t> held = Content(&b());
  const auto recovered = EndAndRecover(1);
  ASSERT_TRUE(recovered.ok()) << recovered.status();
  EXPECT_EQ(*recovered, held);
}

TEST_F(ReplicaStorageTest, WithoutTheStateThatItWasGivenAFollowersLogIsNotEnoughAndItSaysSo) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 8));
  ExpectSame(&a(), &b());
  const auto recovered = EndAndRecover(1);
  EXPECT_TRUE(absl::IsDataLoss(recovered.status())) << recovered.status();
  EXPECT_TRUE(absl::StrContains(recovered.status().message(), "shard ")) << recovered.status();
  EXPECT_TRUE(absl::StrContains(recovered.status().message(), "missing")) << recovered.status();
}

TEST_F(ReplicaStorageTest, ACheckpointThatBuildsOnAnotherPastIsWhole) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  PromoteSecond();
  const auto lost = PushInVain(4, 6);
  Checkpoint(&a());
  PushManyTo(&b(), 4, 8);
  a().replication->SetMap(coordinator_.map());
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync(); }));
  ExpectSame(&b(), &a());
  Checkpoint(&a());
  const auto recovered = EndAndRecover(0);
  ASSERT_TRUE(recovered.ok()) << recovered.status();
  EXPECT_EQ(*recovered, Content(&b()));
}

TEST_F(ReplicaStorageTest, ACheckpointOfWhatItsFormerOwnerAppliedInVainDoesNotKeepAnOwnerFromStarting) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  Checkpoint(&b());
  PromoteSecond();
  const auto lost = PushInVain(4, 6);
  PushManyTo(&b(), 4, 5);
  Checkpoint(&a());  // Into the folder of both.
  const std::vector<uint64_t> held = Content(&b());
  const auto recovered = EndAndRecover(1);
  ASSERT_TRUE(recovered.ok()) << recovered.status();
  EXPECT_EQ(*recovered, held);
}

// Regression, of simulation's seed 7673: the owner of a shard had lost it to its follower, which ended before it knew.
// The coordinator counted on the former owner's disk, and three checkpoints without the shard had dropped its log.
TEST_F(ReplicaStorageTest, WhatAFormerOwnerHasStaysOnItsDiskUntilItHasSomethingElse) {
  own_folders_ = true;
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  Checkpoint(&a());
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 6));
  const std::vector<uint64_t> held = Content(&a());
  End(1);
  a().replication->SetMap(coordinator_.Promote(1, 0));
  ASSERT_TRUE(coordinator_.Await([this] {
    for (ShardId shard = 0; shard < kShards; ++shard) {
      if (a().store->shards().RoleOf(shard) != ShardRole::kFollowing) return false;
    }
    return true;
  }));
  for (int i = 0; i < 3; ++i) Checkpoint(&a());
  const auto recovered = EndAndRecover(0);
  ASSERT_TRUE(recovered.ok()) << recovered.status();
  EXPECT_EQ(*recovered, held);
}

TEST_F(ReplicaStorageTest, ATableGoesBackIntoTheTermBeforeButNotIntoWhatWasAppliedInVain) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  Checkpoint(&b());
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 6));
  PromoteSecond();
  const auto lost = PushInVain(7, 9);
  PushManyTo(&b(), 7, 10);
  v1::RollbackRequest request;
  request.set_table("dense");
  request.set_version(5);
  const auto of_the_term_before = b().storage->Rollback(request);
  ASSERT_TRUE(of_the_term_before.ok()) << of_the_term_before.status();
  EXPECT_EQ(of_the_term_before->shards_size(), static_cast<int>(kShards));

  a().replication->SetMap(coordinator_.map());
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync(); }));
  const ShardMap back = coordinator_.Promote(0, 1);
  b().replication->SetMap(back);
  a().replication->SetMap(back);
  ASSERT_TRUE(coordinator_.Await([this] { return a().store->shards().owned().size() == kShards; }));
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync(); }));
  PushManyTo(&a(), 11, 12);
  request.set_version(8);
  const auto in_vain = a().storage->Rollback(request);
  EXPECT_EQ(in_vain.status().code(), absl::StatusCode::kFailedPrecondition) << in_vain.status();
  EXPECT_TRUE(absl::StrContains(in_vain.status().message(), "another owner")) << in_vain.status();
}

TEST_F(ReplicaStorageTest, WhatAnOwnerLoggedInVainDoesNotComeBackWhenItHasFollowed) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  PromoteSecond();
  const auto lost = PushInVain(4, 6);
  // The state is at the version that the two parted at.
  a().replication->SetMap(coordinator_.map());
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync(); }));
  Checkpoint(&a());
  PushManyTo(&b(), 4, 5);
  ExpectSame(&b(), &a());
  const auto recovered = EndAndRecover(0);
  ASSERT_TRUE(recovered.ok()) << recovered.status();
  EXPECT_EQ(*recovered, Content(&b()));
}

TEST_F(ReplicaStorageTest, AFollowerConfirmsAnUpdateOnlyOnceItsLogHasIt) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  std::latch release(1);
  std::vector<std::thread> writers;
  for (size_t executor = 0; executor < b().store->shards().executors().size(); ++executor) {
    std::latch held(1);
    writers.emplace_back([&, executor] {
      v1::LogRecord record;
      record.set_session_opened(kWorker);
      // The thread that appends to an idle log writes, and nothing else is written until it has called back.
      b().store->log().LogOf(executor)->Append(record, {}, nullptr, [&](const absl::Status&) {
        held.count_down();
        release.wait();
      });
    });
    held.wait();
  }
  std::future<Pushed> push = PushTo(&a(), 4, 4);
  const auto same = a().replication->Verify();  // The follower has taken the update before it answers.
  EXPECT_TRUE(same.ok()) << same.status();
  EXPECT_TRUE(Waits(push)) << "it is acknowledged, and no log of the follower has it";
  release.count_down();
  for (std::thread& writer : writers) writer.join();
  EXPECT_TRUE(push.get().ok());
}

TEST_F(ReplicaStorageTest, AFollowersNewLifeInTheMapCostsNoState) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 8));
  ExpectSame(&a(), &b());
  const int states = b().states_taken;
  // The coordinator ended its lease: it counts no more, and joins again.
  b().SetIncarnation(1000);
  const ShardMap map = NobodyInSync();
  a().replication->SetMap(map);
  ASSERT_NO_FATAL_FAILURE(PushMany(9, 12));
  b().replication->SetMap(map);
  ASSERT_NO_FATAL_FAILURE(AwaitInSync(&a()));
  ASSERT_NO_FATAL_FAILURE(PushMany(13, 14));
  ExpectSame(&a(), &b());
  EXPECT_EQ(b().states_taken, states) << "its owner's log has all that it lacks";
}

TEST_F(ReplicaStorageTest, AFollowersNewLifeInTheMapCostsNoStateWhereNothingHasHappenedSinceItsState) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  const int states = b().states_taken;
  b().SetIncarnation(1000);
  const ShardMap map = NobodyInSync();
  a().replication->SetMap(map);
  b().replication->SetMap(map);
  ASSERT_NO_FATAL_FAILURE(AwaitInSync(&a()));
  EXPECT_EQ(b().states_taken, states);
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 5));
  ExpectSame(&a(), &b());
}

// Regression: the former owner of a shard got the whole shard from the next one, whose updates follow on what it has.
TEST_F(ReplicaStorageTest, AnOwnerThatHasHandedItsShardsOverFollowsFromWhereItIs) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 8));
  std::vector<std::atomic<bool>> given_up(kShards);
  coordinator_.OnReport([&](const v1::ReportSyncRequest::Report& report) {
    if (report.gives_up() > 0) given_up[report.shard()] = true;
  });
  a().replication->SetMap(coordinator_.Change([](v1::RouteResponse* route) {
    for (int shard = 0; shard < route->owners_size(); ++shard) route->add_handovers(route->epoch());
  }));
  for (ShardId shard = 0; shard < kShards; ++shard) {
    ASSERT_TRUE(coordinator_.Await([&] { return given_up[shard].load(); })) << shard;
  }
  coordinator_.OnReport(nullptr);
  coordinator_.Change([](v1::RouteResponse* route) { route->clear_handovers(); });
  ASSERT_NO_FATAL_FAILURE(PromoteSecond());
  for (Sequence s = 9; s <= 12; ++s) ASSERT_TRUE(PushTo(&b(), s, 1).get().ok());
  a().replication->SetMap(coordinator_.map());
  ASSERT_NO_FATAL_FAILURE(AwaitInSync(&b()));
  EXPECT_EQ(a().states_taken, 0);
  ASSERT_TRUE(PushTo(&b(), 13, 1).get().ok());
  ExpectSame(&b(), &a());
  // And what it has now, it brings back.
  const std::vector<uint64_t> held = Content(&b());
  const auto recovered = EndAndRecover(0);
  ASSERT_TRUE(recovered.ok()) << recovered.status();
  EXPECT_EQ(*recovered, held);
}

TEST_F(ReplicaStorageTest, AFollowerThatComesBackWithItsFolderGetsWhatItLacksFromItsOwnersLog) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  Checkpoint(&b());
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 6));
  ExpectSame(&a(), &b());
  End(1);
  Checkpoint(&a());  // Into the folder of both: it is the newest that the follower finds.
  // Pieces of one update, a table and a worker that it does not know, and one that is forgotten meanwhile.
  constexpr Incarnation kOther = kWorker + 1;
  Ensure(&a(), {AddingRows("later", 3)}, kOther);
  ASSERT_TRUE(PushTo(&a(), 1, 1, kOther).get().ok());
  const auto rolled = a().store->replayer().RollBack(1, RowsPart(&a(), 1));
  ASSERT_TRUE(rolled.ok()) << rolled.status();
  ASSERT_NO_FATAL_FAILURE(PushMany(7, 20));
  const std::vector<Incarnation> ended = {kOther};
  a().store->EndSessions(ended);
  ASSERT_NO_FATAL_FAILURE(PushMany(21, 25));
  ASSERT_TRUE(coordinator_.Await([this] { return Windows(&a()) == 1; }));
  ASSERT_NO_FATAL_FAILURE(Restart(1));
  ASSERT_NO_FATAL_FAILURE(AwaitInSync(&a()));
  EXPECT_EQ(b().states_taken, 0);
  ExpectSame(&a(), &b());
  ASSERT_NO_FATAL_FAILURE(PushMany(26, 28));
  ExpectSame(&a(), &b());
  // And what it has now, it brings back.
  const std::vector<uint64_t> held = Content(&a());
  const auto recovered = EndAndRecover(1);
  ASSERT_TRUE(recovered.ok()) << recovered.status();
  EXPECT_EQ(*recovered, held);
}

TEST_F(ReplicaStorageTest, AFollowerCatchesUpWhilePushesGoOn) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  Checkpoint(&b());
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 5));
  ExpectSame(&a(), &b());
  Sequence sequence = 5;
  for (int round = 0; round < 3; ++round) {
    End(1);
    ASSERT_NO_FATAL_FAILURE(PushMany(sequence + 1, sequence + 50));
    sequence += 50;
    ASSERT_NO_FATAL_FAILURE(Restart(1));
    while (!coordinator_.AllInSync()) {
      const Pushed pushed = PushTo(&a(), ++sequence, 1).get();
      ASSERT_TRUE(pushed.ok()) << pushed.status();
    }
    ASSERT_NO_FATAL_FAILURE(AwaitInSync(&a()));
    EXPECT_EQ(b().states_taken, 0) << "in round " << round;
    ExpectSame(&a(), &b());
  }
}

TEST_F(ReplicaStorageTest, WhereTheOwnersLogDoesNotReachBackAFollowerGetsTheState) {
  own_folders_ = true;
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  Checkpoint(&b());
  End(1);
  for (Sequence s = 4; s <= 8; ++s) {
    ASSERT_NO_FATAL_FAILURE(PushMany(s, s));
    Checkpoint(&a());
  }
  ASSERT_NO_FATAL_FAILURE(Restart(1));
  ASSERT_NO_FATAL_FAILURE(AwaitInSync(&a()));
  EXPECT_EQ(b().states_taken, static_cast<int>(kShards));
  ASSERT_NO_FATAL_FAILURE(PushMany(9, 10));
  ExpectSame(&a(), &b());
}

// Over a link that took less than its updates, a log that grew faster than it was sent was never caught up with.
TEST_F(ReplicaStorageTest, AFollowerThatLacksMoreThanTheStatesHoldGetsThem) {
  constexpr uint64_t kBigElements = 1 << 17;  // 512 KiB.
  constexpr uint32_t kBigBlockElements = 1 << 14;
  own_folders_ = true;
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  Ensure(&a(), {AddingDense("big", kBigElements, kBigBlockElements)});
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 5));
  ExpectSame(&a(), &b());
  Checkpoint(&b());
  End(1);
  for (Sequence s = 6; s * kBigElements * sizeof(float) <= 2 * limits::kFollowBytesAhead; ++s) {
    RequestBuilder<v1::PushRequest> push(kShards);
    push.header.set_worker_incarnation(kWorker);
    push.header.set_sequence(s);
    push.AddDense(TableIdOf("big"), {kBigElements, kBigBlockElements}, 1);
    const Pushed pushed = Send(&a(), push).get();
    ASSERT_TRUE(pushed.ok()) << pushed.status();
  }
  ASSERT_NO_FATAL_FAILURE(Restart(1));
  ASSERT_NO_FATAL_FAILURE(AwaitInSync(&a()));
  EXPECT_EQ(b().states_taken, static_cast<int>(kShards));
  ExpectSame(&a(), &b());
}

TEST_F(ReplicaStorageTest, AnOwnersNewLifeKnowsWhatItsFollowersHaveFromItsLog) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 6));
  ExpectSame(&a(), &b());
  const int states = b().states_taken;
  End(0);
  ASSERT_NO_FATAL_FAILURE(Restart(0, /*term=*/7));
  Ensure(&a(), {});
  ASSERT_NO_FATAL_FAILURE(PushMany(7, 9));
  b().replication->SetMap(coordinator_.map());
  ASSERT_NO_FATAL_FAILURE(AwaitInSync(&a()));
  EXPECT_EQ(b().states_taken, states);
  ASSERT_NO_FATAL_FAILURE(PushMany(10, 11));
  ExpectSame(&a(), &b());
}

TEST_F(ReplicaStorageTest, WhatAFollowersDiskHasOfALaterLineageDoesNotOutrankWhatItGetsFromItsOwner) {
  own_folders_ = true;
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  // As a ps leaves it that went back without its owner.
  for (ShardId shard = 0; shard < kShards; ++shard) {
    b().store->shards().Run(shard, [](Shard* followed) { followed->RaiseLineage(4); });
  }
  Checkpoint(&b());
  End(1);
  // It gets the states: the log does not reach back.
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 6));
  for (int i = 0; i < 3; ++i) {
    Checkpoint(&a());
    ASSERT_NO_FATAL_FAILURE(PushMany(7 + i, 7 + i));
  }
  ASSERT_NO_FATAL_FAILURE(Restart(1));
  ASSERT_NO_FATAL_FAILURE(AwaitInSync(&a()));
  EXPECT_EQ(b().states_taken, static_cast<int>(kShards));
  Checkpoint(&b());
  ASSERT_NO_FATAL_FAILURE(PushMany(10, 12));
  ExpectSame(&a(), &b());
  // And then the log.
  End(1);
  ASSERT_NO_FATAL_FAILURE(PushMany(13, 15));
  ASSERT_NO_FATAL_FAILURE(Restart(1));
  ASSERT_NO_FATAL_FAILURE(AwaitInSync(&a()));
  EXPECT_EQ(b().states_taken, 0);
  ExpectSame(&a(), &b());
  for (ShardId shard = 0; shard < kShards; ++shard) {
    EXPECT_EQ(a().store->shards().Get(shard)->lineage(), 1u) << shard;
    EXPECT_EQ(b().store->shards().Get(shard)->lineage(), 4u) << shard;
  }
  const std::vector<uint64_t> held = Content(&a());
  for (const uint32_t index : {1, 0}) {
    const auto recovered = EndAndRecover(index);
    ASSERT_TRUE(recovered.ok()) << recovered.status();
    EXPECT_EQ(*recovered, held) << "ps " << index;
  }
}

TEST_F(ReplicaStorageTest, AFollowerOfAnEarlierLineageGetsTheStatesAndTheirLineage) {
  own_folders_ = true;
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  Checkpoint(&b());
  End(1);
  // As if its owner had gone back to where both are.
  for (ShardId shard = 0; shard < kShards; ++shard) {
    a().store->shards().Run(shard, [](Shard* owned) { owned->RaiseLineage(2); });
  }
  ASSERT_NO_FATAL_FAILURE(Restart(1));
  ASSERT_NO_FATAL_FAILURE(AwaitInSync(&a()));
  EXPECT_EQ(b().states_taken, static_cast<int>(kShards));
  for (ShardId shard = 0; shard < kShards; ++shard) {
    EXPECT_EQ(b().store->shards().Get(shard)->lineage(), 2u) << shard;
  }
  Checkpoint(&b());
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 6));
  ExpectSame(&a(), &b());
  const std::vector<uint64_t> held = Content(&b());
  const auto recovered = EndAndRecover(1);
  ASSERT_TRUE(recovered.ok()) << recovered.status();
  EXPECT_EQ(*recovered, held);
}

TEST_F(ReplicaStorageTest, AFormerOwnerThatComesBackGetsWhatItLacksFromItsSuccessorsLog) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 6));
  End(0);
  PromoteSecond();
  PushManyTo(&b(), 7, 9);
  ASSERT_NO_FATAL_FAILURE(Restart(0));
  ASSERT_NO_FATAL_FAILURE(AwaitInSync(&b()));
  EXPECT_EQ(a().states_taken, 0);
  PushManyTo(&b(), 10, 11);
  ExpectSame(&b(), &a());
}

TEST_F(ReplicaStorageTest, AFormerOwnerThatLoggedInVainGetsTheStateOfItsSuccessor) {
  ASSERT_NO_FATAL_FAILURE(StartInSync());
  ASSERT_NO_FATAL_FAILURE(PushMany(4, 6));
  PromoteSecond();
  const auto lost = PushInVain(7, 8);
  End(0);
  PushManyTo(&b(), 7, 12);
  ASSERT_NO_FATAL_FAILURE(Restart(0));
  ASSERT_NO_FATAL_FAILURE(AwaitInSync(&b()));
  EXPECT_EQ(a().states_taken, static_cast<int>(kShards));
  PushManyTo(&b(), 13, 14);
  ExpectSame(&b(), &a());
}

TEST_F(ReplicaStorageTest, SegmentsThatAreHeldStayUntilTheCheckpointAfterThat) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto segments = [this] {
    size_t count = 0;
    for (const auto& file : std::filesystem::directory_iterator(a().storage->updates()->dir())) {
      count += file.is_regular_file();
    }
    return count;
  };
  std::optional<UpdateLog::Hold> hold(a().storage->updates());
  for (Sequence s = 1; s <= 5; ++s) {
    ASSERT_NO_FATAL_FAILURE(PushMany(s, s));
    Checkpoint(&a());
  }
  const size_t held = segments();
  EXPECT_GE(held, 10u) << "two logs, and a segment of each per checkpoint";
  hold.reset();
  ASSERT_NO_FATAL_FAILURE(PushMany(6, 6));
  Checkpoint(&a());
  EXPECT_LT(segments(), held);
}

}  // namespace
}  // namespace lodestone::server
