#include "server/table/dense_table.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/wire/byte_runs.h"
#include "tests/server/optimizer/methods.h"

namespace lodestone::server {
namespace {

v1::TableSpec AddingSpec(uint64_t elements, uint32_t block_elements) {
  v1::TableSpec spec;
  spec.set_name("dense");
  spec.mutable_dense()->add_dims(elements);
  spec.mutable_dense()->set_block_elements(block_elements);
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_optimizer()->set_learning_rate(-1);
  return spec;
}

std::unique_ptr<Table> MakeTable(const v1::TableSpec& spec, uint32_t shards) {
  auto table = Table::Create(spec, 1, shards);
  EXPECT_TRUE(table.ok()) << table.status();
  return *std::move(table);
}

ByteView BytesOf(const std::vector<float>& floats) {
  return ByteView(reinterpret_cast<const uint8_t*>(floats.data()), floats.size() * sizeof(float));
}

TEST(DenseTable, HoldsEachBlockOnItsShardWithTheShorterLastOne) {
  constexpr uint32_t kShards = 3;
  const auto table = MakeTable(AddingSpec(1001, 100), kShards);
  std::vector<int> seen(11, 0);
  for (ShardId shard = 0; shard < kShards; ++shard) {
    DenseTable part(table.get(), shard);
    uint64_t bytes = 0;
    for (const auto& block : part.Collect(nullptr)) {
      ++seen[block.block];
      EXPECT_EQ(ShardOfBlock(table->id(), block.block, kShards), shard);
      EXPECT_EQ(block.values->size_bytes(), (block.block == 10 ? 1u : 100u) * sizeof(float));
      bytes += block.values->size_bytes();
    }
    EXPECT_GE(DenseTable::BytesNeeded(*table, shard), bytes);
  }
  EXPECT_EQ(seen, std::vector<int>(11, 1));
  EXPECT_EQ(table->counters().blocks.load(), 11u);
}

TEST(DenseTable, ATableOfOneBlockIsOnOneShardOnly) {
  const auto table = MakeTable(AddingSpec(5, 0), 64);
  size_t blocks = 0;
  for (ShardId shard = 0; shard < 64; ++shard) blocks += DenseTable(table.get(), shard).Collect(nullptr).size();
  EXPECT_EQ(blocks, 1u);
}

TEST(DenseTable, UpdatesInPlaceWhenNobodyElseHoldsTheBlockAndCopiesOtherwise) {
  const auto table = MakeTable(AddingSpec(64, 64), 1);
  DenseTable part(table.get(), 0);
  const std::vector<float> ones(64, 1.0f);
  const ByteView gradient = BytesOf(ones);
  const uint8_t* place = part.Read(0).values->bytes();
  part.Apply(0, gradient, 1);
  EXPECT_EQ(part.Read(0).values->bytes(), place);
  const DenseTable::BlockValue held = part.Read(0);
  part.Apply(0, gradient, 2);
  EXPECT_NE(part.Read(0).values->bytes(), place);
  EXPECT_EQ(held.values->floats()[63], 1.0f);
  EXPECT_EQ(held.version, 1u);
  EXPECT_EQ(part.Read(0).values->floats()[63], 2.0f);
  EXPECT_EQ(part.Read(0).version, 2u);
}

TEST(DenseTable, ASnapshotsOptimizerStateStaysAsItWas) {
  v1::TableSpec spec = AddingSpec(8, 8);
  spec.mutable_optimizer()->mutable_momentum();
  const auto table = MakeTable(spec, 1);
  DenseTable part(table.get(), 0);
  const std::vector<float> ones(8, 1.0f);
  part.Apply(0, BytesOf(ones), 1);
  const auto before = part.Collect(nullptr);
  part.Apply(0, BytesOf(ones), 2);
  const auto after = part.Collect(nullptr);
  EXPECT_EQ(before[0].state->floats()[0], 1.0f);
  EXPECT_EQ(after[0].state->floats()[0], 1.9f);
  EXPECT_EQ(before[0].updates, 1u);
  EXPECT_EQ(after[0].updates, 2u);
}

TEST(DenseTable, CollectsWhatChangedAfterAVersion) {
  const auto table = MakeTable(AddingSpec(40, 10), 1);
  DenseTable part(table.get(), 0);
  const std::vector<float> ones(10, 1.0f);
  part.Apply(2, BytesOf(ones), 1);
  part.Apply(3, BytesOf(ones), 2);
  const Version one = 1;
  const auto changed = part.Collect(&one);
  ASSERT_EQ(changed.size(), 1u);
  EXPECT_EQ(changed[0].block, 3u);
}

// Every element of a block is the number of pushes applied to it, so a torn read shows at once.
TEST(DenseTable, AReaderDuringUpdatesNeverSeesAMixtureAndTheVersionTellsWhatItSees) {
  constexpr size_t kElements = 4096;
  constexpr int kPushes = 3000;
  const auto table = MakeTable(AddingSpec(kElements, kElements), 1);
  DenseTable part(table.get(), 0);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> reads{0};
  std::atomic<uint64_t> torn{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < 2; ++r) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        const DenseTable::BlockValue value = part.Read(0);
        for (size_t i = 0; i < kElements; ++i) {
          if (value.values->floats()[i] != static_cast<float>(value.version)) torn.fetch_add(1);
        }
        reads.fetch_add(1);
      }
    });
  }
  const std::vector<float> ones(kElements, 1.0f);
  for (Version version = 1; version <= kPushes || reads.load() < 100; ++version) {
    part.Apply(0, BytesOf(ones), version);
  }
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(torn.load(), 0u);
  EXPECT_GE(reads.load(), 100u);
}

TEST(DenseTable, ClipsABlocksNorm) {
  v1::TableSpec spec = AddingSpec(4, 4);
  spec.mutable_optimizer()->mutable_clip()->set_block_norm(1);
  const auto table = MakeTable(spec, 1);
  DenseTable part(table.get(), 0);
  const std::vector<float> gradient = {3, 0, 4, 0};
  part.Apply(0, BytesOf(gradient), 1);
  EXPECT_FLOAT_EQ(part.Read(0).values->floats()[0], 0.6f);
  EXPECT_FLOAT_EQ(part.Read(0).values->floats()[2], 0.8f);
}

// A table with one block of 67 values under one of all optimizers.
class DenseTableWithEveryOptimizer : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr size_t kElements = 67;

  static std::unique_ptr<Table> Make() {
    v1::TableSpec spec = AddingSpec(kElements, 0);
    *spec.mutable_optimizer() = OptimizerConfig(GetParam());
    spec.mutable_optimizer()->mutable_clip()->set_block_norm(2);
    spec.mutable_optimizer()->set_weight_decay(0.1f);
    spec.mutable_initializer()->mutable_uniform();
    return MakeTable(spec, 1);
  }
  static std::vector<uint32_t> Bits(const BufferRef& buffer) {
    if (!buffer) return {};
    const auto* bits = reinterpret_cast<const uint32_t*>(buffer->bytes());
    return {bits, bits + buffer->size_bytes() / sizeof(uint32_t)};
  }
};

INSTANTIATE_TEST_SUITE_P(Methods, DenseTableWithEveryOptimizer, testing::ValuesIn(AllMethods()),
                         [](const auto& info) { return info.param.substr(0, info.param.find(' ')); });

TEST_P(DenseTableWithEveryOptimizer, AppliesTheSameBitsInWhateverRunsTheGradientLies) {
  const auto table = Make();
  for (const bool held : {false, true}) {  // In place, and into fresh buffers.
    for (size_t run_bytes = 1; run_bytes <= kElements * sizeof(float); ++run_bytes) {
      DenseTable whole(table.get(), 0);
      DenseTable cut(table.get(), 0);
      for (Version version = 1; version <= 3; ++version) {
        const std::vector<float> gradient = RandomFloats(kElements, version);
        const auto holds = held ? cut.Collect(nullptr) : std::vector<DenseTable::BlockState>();
        whole.Apply(0, BytesOf(gradient), version);
        cut.Apply(0, ByteRuns(gradient.data(), kElements * sizeof(float), run_bytes).view(), version);
      }
      const auto expected = whole.Collect(nullptr);
      const auto blocks = cut.Collect(nullptr);
      ASSERT_EQ(Bits(blocks[0].values), Bits(expected[0].values)) << run_bytes;
      ASSERT_EQ(Bits(blocks[0].state), Bits(expected[0].state)) << run_bytes;
    }
  }
}

}  // namespace
}  // namespace lodestone::server
