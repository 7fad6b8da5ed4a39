#include "common/wire/shard_map.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
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

class FollowersTest : public ::testing::Test {
 protected:
  FollowersTest() {
    for (const char* address : {"a:1", "b:2", "c:3"}) route_.add_servers()->set_address(address);
    route_.mutable_servers(1)->set_incarnation(77);
    route_.mutable_servers(1)->set_local_socket("lodestone-0123456789abcdef");
    route_.mutable_servers(2)->set_away(true);
    for (const uint32_t owner : {0, 1, 0, 0}) route_.add_owners(owner);
  }

  v1::RouteResponse route_;
};

TEST_F(FollowersTest, AreNobodyInAMapThatSaysNothingOfThem) {
  const auto map = ShardMap::FromProto(route_);
  ASSERT_TRUE(map.ok()) << map.status();
  for (ShardId shard = 0; shard < 4; ++shard) {
    EXPECT_EQ(map->FollowerOf(shard), std::nullopt);
    EXPECT_FALSE(map->InSync(shard));
    EXPECT_EQ(map->TermOf(shard), 0);
  }
  EXPECT_TRUE(map->FollowedBy(0).empty());
}

TEST_F(FollowersTest, AShardMayHaveALearnerBesideItsFollower) {
  for (const uint32_t follower : {2, 3, 0, 2}) route_.add_followers(follower);
  for (const uint32_t learner : {3, 0, 0, 0}) route_.add_learners(learner);
  const auto map = ShardMap::FromProto(route_);
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->LearnerOf(0), 2);
  EXPECT_EQ(map->LearnerOf(1), std::nullopt);
  EXPECT_TRUE(map->IsFollowedBy(0, 1));
  EXPECT_TRUE(map->IsFollowedBy(0, 2));
  EXPECT_FALSE(map->IsFollowedBy(0, 0));
  EXPECT_EQ(map->FollowedBy(2), (std::vector<ShardId>{0, 1}));
  for (const uint32_t wrong : {1u, 2u, 4u}) {  // Its owner, its follower, and none of the map.
    route_.set_learners(0, wrong);
    EXPECT_FALSE(ShardMap::FromProto(route_).ok()) << wrong;
  }
  route_.mutable_learners()->RemoveLast();
  EXPECT_FALSE(ShardMap::FromProto(route_).ok()) << "of three shards of four";
}

TEST_F(FollowersTest, AShardMayHaveASecondOne) {
  for (const uint32_t follower : {2, 3, 0, 2}) route_.add_followers(follower);
  for (const bool in_sync : {true, false, false, true}) route_.add_in_sync(in_sync);
  for (const uint32_t second : {3, 0, 0, 3}) route_.add_second_followers(second);
  for (const bool in_sync : {false, false, false, true}) route_.add_second_in_sync(in_sync);
  const auto map = ShardMap::FromProto(route_);
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->FollowersOf(0), (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(map->FollowersOf(1), (std::vector<uint32_t>{2}));
  EXPECT_TRUE(map->FollowersOf(2).empty());
  EXPECT_TRUE(map->InSync(0, 1));
  EXPECT_FALSE(map->InSync(0, 2));
  EXPECT_TRUE(map->InSync(3, 2));
  EXPECT_FALSE(map->InSync(3, 0)) << "its owner";
  EXPECT_TRUE(map->IsFollowedBy(3, 2));
  EXPECT_EQ(map->FollowedBy(2), (std::vector<ShardId>{0, 1, 3}));
  using Route = v1::RouteResponse;
  for (const auto& spoil : std::vector<std::function<void(Route*)>>{
           [](Route* route) { route->add_second_followers(1); },
           [](Route* route) { route->mutable_second_in_sync()->RemoveLast(); },
           [](Route* route) { route->set_second_followers(0, 1); },   // The owner.
           [](Route* route) { route->set_second_followers(0, 2); },   // The first one.
           [](Route* route) { route->set_second_followers(0, 4); },   // None of the map.
           [](Route* route) { route->set_second_in_sync(2, true); },  // Nobody.
           [](Route* route) {
             for (const uint32_t learner : {3, 0, 0, 0}) route->add_learners(learner);  // The second one.
           },
       }) {
    v1::RouteResponse route = route_;
    spoil(&route);
    EXPECT_EQ(ShardMap::FromProto(route).status().code(), absl::StatusCode::kInvalidArgument) << route.DebugString();
  }
}

TEST_F(FollowersTest, AreToldWithWhetherTheyAreInSyncTheTermsAndTheServers) {
  for (const uint32_t follower : {2, 3, 0, 2}) route_.add_followers(follower);
  for (const bool in_sync : {true, false, false, false}) route_.add_in_sync(in_sync);
  for (const uint64_t term : {0, 5, 0, 9}) route_.add_terms(term);
  const auto map = ShardMap::FromProto(route_);
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->FollowerOf(0), 1);
  EXPECT_EQ(map->FollowerOf(1), 2);
  EXPECT_EQ(map->FollowerOf(2), std::nullopt);
  EXPECT_TRUE(map->InSync(0));
  EXPECT_FALSE(map->InSync(3));
  EXPECT_EQ(map->TermOf(1), 5);
  EXPECT_EQ(map->FollowedBy(1), (std::vector<ShardId>{0, 3}));
  EXPECT_TRUE(map->FollowedBy(0).empty());
  EXPECT_EQ(map->ShardsOf(0), (std::vector<ShardId>{0, 2, 3}));
  EXPECT_EQ(map->IncarnationOf(1), 77);
  EXPECT_EQ(map->LocalSocketOf(1), "lodestone-0123456789abcdef");
  EXPECT_EQ(map->LocalSocketOf(2), "");
  EXPECT_FALSE(map->Away(1));
  EXPECT_TRUE(map->Away(2));
}

TEST_F(FollowersTest, ThatCannotBeAreRefused) {
  for (const uint32_t follower : {2, 3, 0, 2}) route_.add_followers(follower);
  for (const bool in_sync : {true, false, false, false}) route_.add_in_sync(in_sync);
  for (const uint64_t term : {0, 5, 0, 9}) route_.add_terms(term);
  using Route = v1::RouteResponse;
  for (const auto& spoil : std::vector<std::function<void(Route*)>>{
           [](Route* route) { route->add_followers(1); }, [](Route* route) { route->mutable_in_sync()->RemoveLast(); },
           [](Route* route) { route->add_terms(1); }, [](Route* route) { route->set_followers(0, 4); },
           [](Route* route) { route->set_followers(1, 2); },   // The owner.
           [](Route* route) { route->set_in_sync(2, true); },  // Nobody.
           [](Route* route) { route->clear_followers(); },     // Nobody, either.
       }) {
    v1::RouteResponse route = route_;
    spoil(&route);
    EXPECT_EQ(ShardMap::FromProto(route).status().code(), absl::StatusCode::kInvalidArgument) << route.DebugString();
  }
  EXPECT_TRUE(ShardMap::FromProto(route_).ok());
}

TEST(ShardMap, TheFirstFollowersOfOneOwnersShardsAreAllOthersInTurn) {
  for (const uint32_t servers : {2u, 3u, 4u, 7u}) {
    for (const uint32_t shards : {1u, 5u, 64u, 1024u}) {
      const std::vector<uint32_t> owners = InitialOwners(shards, servers);
      const std::vector<uint32_t> followers = InitialFollowers(shards, servers);
      for (ShardId shard = 0; servers > 2 && shard < shards; ++shard) {
        const uint32_t second = InitialFollowers(shards, servers, 1)[shard];
        ASSERT_NE(second, followers[shard]);
        ASSERT_NE(second - 1, InitialOwners(shards, servers)[shard]);
        ASSERT_LE(second, servers);
      }
      ASSERT_EQ(followers.size(), shards);
      std::vector<uint32_t> followed(servers);
      std::vector<std::vector<uint32_t>> of(servers, std::vector<uint32_t>(servers));
      for (ShardId shard = 0; shard < shards; ++shard) {
        ASSERT_GE(followers[shard], 1);
        ASSERT_LE(followers[shard], servers);
        ASSERT_NE(followers[shard] - 1, owners[shard]);
        ++followed[followers[shard] - 1];
        ++of[owners[shard]][followers[shard] - 1];
      }
      EXPECT_LE(*std::max_element(followed.begin(), followed.end()), shards / servers + 1);
      for (uint32_t owner = 0; owner < servers; ++owner) {
        of[owner].erase(of[owner].begin() + owner);
        const auto [least, most] = std::minmax_element(of[owner].begin(), of[owner].end());
        EXPECT_LE(*most - *least, 1) << servers << " servers, " << shards << " shards";
      }
    }
  }
}

// These numbers decide where stored data lives: they may never change.
TEST(ShardMap, PlacementIsWhatItAlwaysWas) {
  EXPECT_EQ(ShardOfKey(0, 64), 56u);
  EXPECT_EQ(ShardOfKey(1, 64), 36u);
  EXPECT_EQ(TableIdOf("embedding"), 2449270439u);
}

}  // namespace
}  // namespace lodestone
