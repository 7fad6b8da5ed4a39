#include "common/shard_map.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone {
namespace {

double LargestOverMean(const std::vector<uint64_t>& load) {
  const double mean = static_cast<double>(std::accumulate(load.begin(), load.end(), uint64_t{0})) / load.size();
  return static_cast<double>(*std::max_element(load.begin(), load.end())) / mean;
}

TEST(ShardMap, SmallConsecutiveKeysSpreadEvenlyOverShardsAndServers) {
  constexpr uint32_t kShards = 64;
  for (const uint32_t servers : {2u, 3u, 4u, 7u}) {
    const std::vector<uint32_t> owners = InitialOwners(kShards, servers);
    for (const uint64_t stride : {1, 2, 64, 1024}) {
      std::vector<uint64_t> by_shard(kShards);
      std::vector<uint64_t> per_owned(servers);
      for (uint64_t i = 0; i < 1'000'000; ++i) {
        const ShardId shard = ShardOfKey(i * stride, kShards);
        ASSERT_LT(shard, kShards);
        ++by_shard[shard];
        ++per_owned[owners[shard]];
      }
      EXPECT_LE(LargestOverMean(by_shard), 1.1) << "stride " << stride;
      EXPECT_LE(LargestOverMean(per_owned), 1.1) << "stride " << stride << ", servers " << servers;
    }
  }
}

TEST(ShardMap, DenseTablesSpreadEvenlyByBytes) {
  constexpr uint32_t kShards = 64;
  for (const uint64_t elements : {uint64_t{784} * 512, uint64_t{1} << 20, uint64_t{10'000'001}, uint64_t{1} << 28}) {
    const TableId table = TableIdOf("mlp/0/weight");
    const BlockLayout layout{elements, DefaultBlockElements(elements, kShards)};
    for (const uint32_t servers : {1u, 2u, 4u}) {
      const std::vector<uint32_t> owners = InitialOwners(kShards, servers);
      std::vector<uint64_t> bytes(servers);
      for (BlockIndex block = 0; block < layout.block_count(); ++block) {
        bytes[owners[ShardOfBlock(table, block, kShards)]] += layout.ElementsOf(block) * sizeof(float);
      }
      EXPECT_LE(LargestOverMean(bytes), 1.1) << elements << " elements, " << servers << " servers";
    }
  }
}

TEST(ShardMap, AModelOfManySmallTablesSpreadsEvenlyByBytes) {
  constexpr uint32_t kShards = 64;
  constexpr uint32_t kServers = 2;
  const std::vector<uint32_t> owners = InitialOwners(kShards, kServers);
  std::vector<uint64_t> bytes(kServers);
  for (int layer = 0; layer < 50; ++layer) {
    const TableId table = TableIdOf("layer/" + std::to_string(layer) + "/weight");
    const BlockLayout layout{256 * 256, DefaultBlockElements(256 * 256, kShards)};
    for (BlockIndex block = 0; block < layout.block_count(); ++block) {
      bytes[owners[ShardOfBlock(table, block, kShards)]] += layout.ElementsOf(block);
    }
  }
  EXPECT_LE(LargestOverMean(bytes), 1.1);
}

TEST(ShardMap, BlockElementsStayWithinTheirBounds) {
  EXPECT_EQ(DefaultBlockElements(1, 64), 4096u);
  EXPECT_EQ(DefaultBlockElements(uint64_t{1} << 40, 64), 65536u);
  EXPECT_EQ(DefaultBlockElements(64 * 10'000, 64), 10'240u);
}

TEST(ShardMap, TheLastBlockMayBeShorter) {
  const BlockLayout layout{1001, 100};
  EXPECT_EQ(layout.block_count(), 11u);
  EXPECT_EQ(layout.ElementsOf(9), 100u);
  EXPECT_EQ(layout.ElementsOf(10), 1u);
}

TEST(ShardMap, AMapWhoseOwnerDoesNotExistIsRefused) {
  v1::RouteResponse route;
  EXPECT_FALSE(ShardMap::FromProto(route).ok());
  route.add_servers()->set_address("a:1");
  route.add_owners(0);
  route.add_owners(1);
  EXPECT_EQ(ShardMap::FromProto(route).status().code(), absl::StatusCode::kInvalidArgument);
  route.set_owners(1, 0);
  const auto map = ShardMap::FromProto(route);
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->ShardsOf(0), (std::vector<ShardId>{0, 1}));
}

// These numbers decide where stored data lives: they may never change.
TEST(ShardMap, PlacementIsWhatItAlwaysWas) {
  EXPECT_EQ(ShardOfKey(0, 64), 56u);
  EXPECT_EQ(ShardOfKey(1, 64), 36u);
  EXPECT_EQ(TableIdOf("embedding"), 2449270439u);
}

}  // namespace
}  // namespace lodestone
