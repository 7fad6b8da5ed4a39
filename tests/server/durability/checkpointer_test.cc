#include "server/durability/checkpointer.h"

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

}  // namespace
}  // namespace lodestone::server
