#include "server/readiness/lost_shards_wait.h"

#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/time_source.h"
#include "common/wire/shard_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"
#include "server/store/serving_gate.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;

// Two ps with two shards each; `lost` says which shards.
ShardMap MapOf(uint64_t epoch, const std::vector<bool>& lost) {
  v1::RouteResponse route;
  route.set_epoch(epoch);
  for (uint32_t server = 0; server < 2; ++server) {
    route.add_servers()->set_address("host:1");
    route.mutable_servers(static_cast<int>(server))->set_incarnation(server + 1);
  }
  for (uint32_t shard = 0; shard < 4; ++shard) {
    route.add_owners(shard % 2);
    route.add_lost(lost[shard]);
  }
  return *ShardMap::FromProto(route);
}

class LostShardsWaitTest : public ::testing::Test {
 protected:
  std::string Reason() { return std::string(gate_.CheckReady().message()); }

  ManualTime time_;
  ServingGate gate_;
  LostShardsWait wait_{1, &time_, &gate_};
};

TEST_F(LostShardsWaitTest, APsThatHasLostNothingDoesNotWait) {
  const auto map = wait_.Await(MapOf(5, {true, false, true, false}), /*cut_short=*/false);
  ASSERT_TRUE(map.ok()) << "another ps lost them: " << map.status();
  EXPECT_EQ(map->epoch(), 5u);
}

TEST_F(LostShardsWaitTest, ItWaitsUntilANewerMapSaysThatNothingIsLost) {
  auto awaited = std::async(std::launch::async, [this] {
    return wait_.Await(MapOf(5, {false, true, false, true}), /*cut_short=*/false);
  });
  wait_.SetMap(MapOf(5, {false, false, false, false}));  // Not newer.
  wait_.SetMap(MapOf(6, {false, true, false, false}));
  wait_.SetMap(MapOf(7, {false, false, false, false}));
  const auto map = awaited.get();
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->epoch(), 7u);
  v1::StatusResponse status;
  wait_.FillStatus(&status);
  EXPECT_EQ(status.waits_size(), 0);
  EXPECT_THAT(Reason(), HasSubstr("waits for the other servers")) << "the gate says no more that shards are lost";
}

TEST_F(LostShardsWaitTest, MeanwhileGateAndStatusSayWhatToDo) {
  auto awaited = std::async(std::launch::async, [this] {
    return wait_.Await(MapOf(5, {false, true, false, true}), /*cut_short=*/false);
  });
  v1::StatusResponse status;
  while (status.waits_size() == 0) wait_.FillStatus(&status);
  EXPECT_EQ(status.waits(0).who(), "ps 1");
  EXPECT_THAT(status.waits(0).what(), HasSubstr("2 of 4 shards"));
  EXPECT_THAT(Reason(), HasSubstr("psctl accept-loss 1"));
  wait_.Stop();
  EXPECT_TRUE(absl::IsCancelled(awaited.get().status()));
}

}  // namespace
}  // namespace lodestone::server
