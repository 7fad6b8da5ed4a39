#include "server/store/order_fence.h"

#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

TEST(OrderFenceTest, AChangeIsOfThePauseThatLastsOrItIsRefused) {
  OrderFence fence;
  EXPECT_TRUE(fence.BeginChange(1).ok());
  fence.EndChange();
  EXPECT_TRUE(fence.Follow(2).ok());
  EXPECT_EQ(fence.BeginChange(1).code(), absl::StatusCode::kFailedPrecondition) << "workers train again";
  EXPECT_TRUE(fence.Follow(0).ok()) << "one that has just joined knows of none";
  EXPECT_FALSE(fence.BeginChange(1).ok());
  EXPECT_TRUE(fence.BeginChange(3).ok());
  fence.EndChange();
  EXPECT_FALSE(fence.BeginChange(1).ok()) << "of an earlier pause, though no worker has asked since";
}

TEST(OrderFenceTest, AWorkerAsksAgainWhileAnEarlierPauseChangesTheOrder) {
  OrderFence fence;
  ASSERT_TRUE(fence.BeginChange(3).ok());
  EXPECT_TRUE(fence.Follow(2).ok()) << "it is in that pause";
  EXPECT_TRUE(fence.Follow(3).ok());
  EXPECT_EQ(fence.Follow(4).code(), absl::StatusCode::kUnavailable);
  fence.EndChange();
  EXPECT_TRUE(fence.Follow(4).ok());
}

TEST(OrderFenceTest, APsThatHasJoinedKnowsWhichPausesHaveEnded) {
  OrderFence fence;
  fence.Note(5);
  EXPECT_FALSE(fence.BeginChange(3).ok());
  EXPECT_TRUE(fence.BeginChange(5).ok());
  fence.EndChange();
  fence.Note(4);
  EXPECT_FALSE(fence.BeginChange(4).ok()) << "what it was told was late";
}

}  // namespace
}  // namespace lodestone::server
