#include "worker/client/checkpoint_writer.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/coordinator.pb.h"
#include "tests/tools/psctl/client/fake_admin.h"

namespace lodestone::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint32_t kMessageBytesMax = 1 << 20;

class CheckpointWriterTest : public ::testing::Test {
 protected:
  // A part that holds these of two shards.
  static std::function<void(v1::CheckpointResponse*)> Tells(std::vector<uint32_t> shards) {
    return [shards = std::move(shards)](v1::CheckpointResponse* response) {
      response->set_shards_of_cluster(2);
      response->mutable_shard_ids()->Add(shards.begin(), shards.end());
    };
  }
  std::shared_ptr<const ShardMap> MapOf(const std::vector<uint32_t>& owners) const {
    v1::RouteResponse route;
    route.set_epoch(1);
    route.mutable_owners()->Add(owners.begin(), owners.end());
    route.add_servers()->set_address(zero_.address);
    route.add_servers()->set_address(one_.address);
    auto map = ShardMap::FromProto(route);
    EXPECT_TRUE(map.ok()) << map.status();
    return std::make_shared<const ShardMap>(*std::move(map));
  }
  // Checkpoint "new", without "old", by these maps, one for each attempt.
  absl::Status Write(const std::vector<std::vector<uint32_t>>& owners) const {
    size_t attempt = 0;
    return WriteCheckpoints([&] { return MapOf(owners[attempt++ % owners.size()]); }, kMessageBytesMax, {}, "new",
                            "old");
  }

  psctl::FakeAdmin zero_{0};
  psctl::FakeAdmin one_{1};
};

// Regression: what all servers had written counted as kept though a shard that moved meanwhile was in no part.
TEST_F(CheckpointWriterTest, OneThatLacksAShardIsNoneAfterSomeAttempts) {
  zero_.on_checkpoint = Tells({0});
  one_.on_checkpoint = Tells({});
  const absl::Status status = Write({{0, 1}});
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no ps had shard 1 when"));
  EXPECT_THAT(zero_.names(), ElementsAre("new, not old", "new, not new", "new, not new"));
}

TEST_F(CheckpointWriterTest, OneThatLacksAShardIsWrittenAnewByTheNewestMap) {
  zero_.on_checkpoint = Tells({0});
  one_.on_checkpoint = Tells({1});
  EXPECT_EQ(Write({{0, 0}, {0, 1}}), absl::OkStatus());
  EXPECT_THAT(zero_.names(), ElementsAre("new, not old", "new, not new"));
  EXPECT_THAT(one_.names(), ElementsAre("new, not old")) << "it owned nothing before";
}

TEST_F(CheckpointWriterTest, OneThatHasAllShardsIsWrittenOnce) {
  zero_.on_checkpoint = Tells({0, 1});
  EXPECT_EQ(Write({{0, 0}}), absl::OkStatus());
  EXPECT_THAT(zero_.names(), ElementsAre("new, not old"));
  EXPECT_THAT(one_.names(), IsEmpty());
}

TEST_F(CheckpointWriterTest, OfAPsOfAnOlderVersionNothingIsKnownOfItsShards) {
  zero_.on_checkpoint = Tells({0});
  EXPECT_EQ(Write({{0, 1}}), absl::OkStatus());
  EXPECT_THAT(one_.names(), ElementsAre("new, not old"));
}

}  // namespace
}  // namespace lodestone::worker
