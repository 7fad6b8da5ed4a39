#include "server/durability/checkpointer.h"

#include <filesystem>
#include <fstream>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/wire/shard_map.h"
#include "gmock/gmock.h"
#include "server/checkpoint/manifest.h"
#include "tests/server/durability/file_size_limit.h"
#include "tests/server/durability/storage_fixture.h"

namespace lodestone::server {
namespace {

class CheckpointerTest : public StorageFixture {
 protected:
  std::vector<FoundManifest> Manifests() {
    const auto found = FindManifests(absl::StrCat(config_.server().data_dir(), "/checkpoints"));
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? *found : std::vector<FoundManifest>();
  }
  // The newest of `count`.
  v1::ServerManifest NewestOf(size_t count) {
    const std::vector<FoundManifest> manifests = Manifests();
    EXPECT_EQ(manifests.size(), count);
    if (manifests.empty() || !manifests.back().manifest.ok()) {
      ADD_FAILURE() << "there is none that can be read";
      return {};
    }
    return *manifests.back().manifest;
  }
  // As if what it has of the shard had come from another ps.
  static void TakeState(const Ps& ps, ShardId shard) {
    ps.store->shards().Run(shard, [&](Shard*) {
      ps.store->shards().BeginState(shard);
      ps.store->shards().SetRole(shard, ShardRole::kOwns);
    });
  }
};

// The end of a ps may come while its shards are being brought back: the first checkpoint of a life looked for the stop
// only if its writer was there before.
TEST_F(CheckpointerTest, AStopBeforeItIsOpenStopsTheFirstCheckpointToo) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  const auto dir = DataDir::Open(MakeConfig("b"));
  ASSERT_TRUE(dir.ok()) << dir.status();
  Checkpointer checkpointer(MakeConfig("b"), dir->get(), &time_, nullptr);
  checkpointer.Stop();
  ASSERT_EQ(checkpointer.Open(ps.store.get()), absl::OkStatus());
  EXPECT_EQ(checkpointer.Write("").status().code(), absl::StatusCode::kCancelled);
}

TEST_F(CheckpointerTest, KnowsWhetherAShardChangedSinceTheNewestCheckpoint) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  Checkpointer& checkpointer = ps.storage->checkpointer();
  PushMany(ps, 1, 2);
  EXPECT_TRUE(checkpointer.Changed());
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  EXPECT_FALSE(checkpointer.Changed());
  PushMany(ps, 3, 3);
  EXPECT_TRUE(checkpointer.Changed());
  ASSERT_TRUE(ps.storage->Checkpoint("mine").ok());
  EXPECT_TRUE(checkpointer.Changed()) << "a named one may be deleted by hand";
}

// Regression: for each shard that came from another ps, a ps wrote all that it held, which is what a move and a
// follower's copy had to wait for.
TEST_F(CheckpointerTest, AShardThatCameFromAnotherPsIsWrittenByItselfAndIsThereAfterAKill) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 2);
  Checkpointer& checkpointer = ps.storage->checkpointer();
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  ASSERT_EQ(checkpointer.WriteArrived(), absl::OkStatus());
  EXPECT_EQ(Manifests().size(), 1u) << "nothing has come";
  PushMany(ps, 3, 4);
  constexpr ShardId kCame = 1;
  TakeState(ps, kCame);
  EXPECT_FALSE(checkpointer.HoldsStateOf(kCame));
  int told = 0;
  checkpointer.SetListener([&told] { ++told; });
  ASSERT_EQ(checkpointer.WriteArrived(), absl::OkStatus());
  EXPECT_TRUE(checkpointer.HoldsStateOf(kCame));
  EXPECT_EQ(told, 1) << "replication confirms what is on the disk";
  const v1::ServerManifest arrived = NewestOf(2);
  EXPECT_TRUE(arrived.arrived());
  ASSERT_EQ(arrived.contents_size(), 1);
  EXPECT_EQ(arrived.contents(0).shard(), kCame);
  EXPECT_TRUE(checkpointer.Changed()) << "the others have changed";

  PushMany(ps, 5, 6);
  config_ = Killed();
  const Ps again = StartWell(config_);
  EXPECT_EQ(Content(again), Content(ps));
  // The log is let go by periodic ones alone, of all shards.
  for (Sequence sequence = 7; sequence < 9; ++sequence) {
    PushMany(again, sequence, sequence);
    TakeState(again, kCame);
    ASSERT_EQ(again.storage->checkpointer().WriteArrived(), absl::OkStatus());
  }
  const Ps last = StartWell(Killed());
  EXPECT_EQ(Content(last), Content(again));
}

TEST_F(CheckpointerTest, AfterManyOfWhatHasArrivedOneOfAllTakesTheirPlace) {
  config_.mutable_checkpoint()->set_keep(1);
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 2);
  const auto arrive = [&ps](ShardId shard) {
    TakeState(ps, shard);
    ASSERT_EQ(ps.storage->checkpointer().WriteArrived(), absl::OkStatus());
  };
  for (uint32_t i = 0; i < limits::kCheckpointsArrivedMax; ++i) arrive(i % kShards);
  EXPECT_EQ(Manifests().size(), kShards) << "the newest of each";
  arrive(0);
  const v1::ServerManifest of_all = NewestOf(1);
  EXPECT_FALSE(of_all.arrived());
  EXPECT_EQ(of_all.contents_size(), static_cast<int>(kShards));
}

// Regression: once there were many, each waited for one of all, for which a disk may not have the room.
TEST_F(CheckpointerTest, AfterManyOfWhatHasArrivedTheyGoOnWhereThereIsNoRoomForOneOfAll) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 1);
  RequestBuilder<v1::PushRequest> push(kShards);
  push.header.set_worker_incarnation(kWorker);
  push.header.set_sequence(2);
  std::vector<std::pair<Key, float>> rows;
  constexpr ShardId kLarge = 3, kSmall = 4;
  for (Key key = 1000; rows.size() < 200'000; ++key) {
    if (ShardOfKey(key, kShards) == kLarge) rows.emplace_back(key, 1.0f);
  }
  push.AddRows(TableIdOf("rows"), kDim, rows, true);
  ASSERT_TRUE(Push(ps, push).ok());
  for (uint32_t i = 0; i < limits::kCheckpointsArrivedMax; ++i) {
    TakeState(ps, kSmall);
    ASSERT_EQ(ps.storage->checkpointer().WriteArrived(), absl::OkStatus());
  }
  const FileSizeLimit limit(1 << 20);
  for (int i = 0; i < 2; ++i) {
    TakeState(ps, kSmall);
    EXPECT_EQ(ps.storage->checkpointer().WriteArrived(), absl::OkStatus());
    EXPECT_TRUE(ps.storage->checkpointer().HoldsStateOf(kSmall));
  }
  EXPECT_THAT(StatusOf(ps).checkpoint_error(), ::testing::HasSubstr("ps-0.shard-00003"));
}

TEST_F(CheckpointerTest, WithoutALogAShardThatCameFromAnotherPsIsWrittenToo) {
  config_.mutable_cluster()->set_durability(v1::ClusterConfig::MEMORY);
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 2);
  TakeState(ps, 1);
  ASSERT_EQ(ps.storage->checkpointer().WriteArrived(), absl::OkStatus());
  EXPECT_EQ(NewestOf(1).contents_size(), 1);
}

// Regression: however fast a log grew, it was cut each ten minutes alone: a hundred megabytes a second fill a disk
// soon.
TEST_F(CheckpointerTest, ALogIsLongOnceItHasGrownBySoMuchSinceAPeriodicCheckpoint) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  v1::Config config = MakeConfig("b");
  config.mutable_checkpoint()->set_every_log_bytes(100'000);
  const auto dir = DataDir::Open(config);
  ASSERT_TRUE(dir.ok()) << dir.status();
  Checkpointer checkpointer(config, dir->get(), &time_, nullptr);  // Of no thread.
  ASSERT_EQ(checkpointer.Open(ps.store.get()), absl::OkStatus());
  Sequence sequence = 0;
  for (; StatusOf(ps).log_bytes() < 90'000; ++sequence) {
    EXPECT_FALSE(checkpointer.LogIsLong());
    PushMany(ps, sequence + 1, sequence + 1);
  }
  for (; StatusOf(ps).log_bytes() < 120'000; ++sequence) PushMany(ps, sequence + 1, sequence + 1);
  EXPECT_TRUE(checkpointer.LogIsLong());
  ASSERT_TRUE(checkpointer.Write("named").ok());
  EXPECT_TRUE(checkpointer.LogIsLong()) << "a named one cuts no log";
  ASSERT_TRUE(checkpointer.Write("").ok());
  EXPECT_FALSE(checkpointer.LogIsLong());
}

TEST_F(CheckpointerTest, ALogThatGrowsIsCutByItself) {
  config_.mutable_checkpoint()->set_every_log_bytes(10'000);
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  const auto number = [&] {
    const std::string path = StatusOf(ps).checkpoint();
    return NumberOfPeriodic(0, absl::string_view(path).substr(path.rfind('/') + 1)).value_or(0);
  };
  for (Sequence sequence = 1; number() < 3; ++sequence) PushMany(ps, sequence, sequence);
  // Those of the first two let the log go.
  EXPECT_LT(StatusOf(ps).log_bytes(), ps.store->log().written_bytes());
}

TEST_F(CheckpointerTest, ALogOfLivesBeforeCountsWhereNoCheckpointHasCutIt) {
  config_.mutable_checkpoint()->set_at_exit(false);
  uint64_t logged = 0;
  {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    for (Sequence sequence = 1; logged < 60'000; ++sequence) {
      PushMany(ps, sequence, sequence);
      logged = StatusOf(ps).log_bytes();
    }
  }
  config_.mutable_checkpoint()->set_every_log_bytes(logged / 2);
  const Ps ps = StartWell(config_);
  while (StatusOf(ps).checkpoint().empty()) std::this_thread::yield();  // By itself, though nothing is pushed.
}

TEST_F(CheckpointerTest, WhatHasArrivedAndFailsIsToldUntilItIsWrittenAndHidesNoOtherFailure) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 2);
  Checkpointer& checkpointer = ps.storage->checkpointer();
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  TakeState(ps, 1);
  const std::filesystem::path folder = std::filesystem::path(config_.server().data_dir()) / "checkpoints";
  const std::filesystem::path aside = root_ / "aside";
  std::filesystem::rename(folder, aside);
  std::ofstream(folder) << "no folder";
  EXPECT_FALSE(checkpointer.WriteArrived().ok());
  EXPECT_FALSE(ps.storage->Checkpoint("").ok());
  EXPECT_THAT(StatusOf(ps).checkpoint_error(), testing::Not(testing::IsEmpty()));
  std::filesystem::remove(folder);
  std::filesystem::rename(aside, folder);
  ASSERT_EQ(checkpointer.WriteArrived(), absl::OkStatus());
  EXPECT_THAT(StatusOf(ps).checkpoint_error(), testing::Not(testing::IsEmpty())) << "the periodic one still fails";
  PushMany(ps, 3, 3);
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  EXPECT_THAT(StatusOf(ps).checkpoint_error(), testing::IsEmpty());
}

TEST(LogBytesBetweenCheckpoints, AreTwiceTheTablesWithinBounds) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  EXPECT_EQ(LogBytesBetweenCheckpoints(0, 1000 * kGiB), 4 * kGiB);
  EXPECT_EQ(LogBytesBetweenCheckpoints(20 * kGiB, 1000 * kGiB), 40 * kGiB);
  EXPECT_EQ(LogBytesBetweenCheckpoints(200 * kGiB, 1000 * kGiB), 100 * kGiB);
  EXPECT_EQ(LogBytesBetweenCheckpoints(0, 20 * kGiB), 2 * kGiB);
  EXPECT_EQ(LogBytesBetweenCheckpoints(0, 0), 4 * kGiB) << "of a volume that does not tell its size";
}

// Regression: a shard that left while a checkpoint was written was left out, and nothing told of it.
TEST_F(CheckpointerTest, TellsWhichShardsAreInItAndLeavesOutOneThatMovesMeanwhile) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 2);
  const v1::Config config = MakeConfig("b");
  const auto dir = DataDir::Open(config);
  ASSERT_TRUE(dir.ok()) << dir.status();
  Checkpointer checkpointer(config, dir->get(), &time_, nullptr);  // Of no thread.
  bool moves = false;
  checkpointer.KeepMarks([&](ShardId shard, Version) {
    if (moves && shard == 0) ps.store->shards().SetRole(1, ShardRole::kFollowing);
    return uint64_t{0};
  });
  ASSERT_EQ(checkpointer.Open(ps.store.get()), absl::OkStatus());
  const auto all = checkpointer.Write("all");
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_THAT(all->shard_ids(), testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(all->shards_of_cluster(), kShards);
  moves = true;
  const auto some = checkpointer.Write("some");
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_THAT(some->shard_ids(), testing::ElementsAre(0, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(some->shards_of_cluster(), kShards);
}

// Regression: a checkpoint described the tables that were published, so that one whose making took longer than two
// checkpoints was in none of them, and the log that had it was dropped.
TEST_F(CheckpointerTest, ATableWhoseMakingTakesLongerThanTwoCheckpointsIsThereAfterAKill) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 2);
  HeldTable late(ps.store.get(), AddingRows("late", kDim));
  for (Sequence sequence = 3; sequence < 6; ++sequence) {
    PushMany(ps, sequence, sequence);
    ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  }
  ASSERT_EQ(late.Finish(), absl::OkStatus());
  RequestBuilder<v1::PushRequest> push(kShards);
  push.header.set_worker_incarnation(kWorker);
  push.header.set_sequence(6);
  push.AddRows(TableIdOf("late"), kDim, {{1, 1.0f}, {2, 1.0f}, {3, 1.0f}}, true);
  absl::Status pushed;
  std::latch done(1);
  ps.store->pushes().Push(push.header, push.payload(), [&](const absl::StatusOr<v1::PushResponse>& response) {
    pushed = response.status();
    done.count_down();
  });
  done.wait();
  ASSERT_EQ(pushed, absl::OkStatus());

  const Ps again = StartWell(Killed());
  EXPECT_EQ(Content(again), Content(ps));
}

}  // namespace
}  // namespace lodestone::server
