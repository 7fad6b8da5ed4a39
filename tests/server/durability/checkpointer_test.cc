#include "server/durability/checkpointer.h"

#include <latch>

#include "tests/server/durability/storage_fixture.h"

namespace lodestone::server {
namespace {

using CheckpointerTest = StorageFixture;

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
