// Owners and followers that keep what they hold on disk: what one brings back as the owner.
#include <filesystem>
#include <latch>
#include <thread>

#include "absl/strings/match.h"
#include "common/base/status.h"
#include "server/shard/shard.h"
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
  std::string DataDir(uint32_t /*index*/) const override { return root_.string(); }

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

}  // namespace
}  // namespace lodestone::server
