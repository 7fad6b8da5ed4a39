#include "worker/training/parameters.h"

#include <atomic>
#include <cstdint>
#include <latch>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/client/fake_client.h"

namespace lodestone::worker {
namespace {

constexpr uint32_t kBlockElements = 4;

v1::TableSpec Spec(const char* name, uint64_t elements) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.mutable_dense()->add_dims(elements);
  spec.mutable_dense()->set_block_elements(kBlockElements);
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_optimizer()->set_learning_rate(-1);  // The server adds what is pushed.
  return spec;
}

// Two tables over eight shards, 10 elements in 3 blocks and 4 in 1.
class ParametersTest : public testing::Test {
 protected:
  void SetUp() override {
    client_.BroadcastEvery(0);
    auto tables = client_.EnsureTables({Spec("a", 10), Spec("b", 4)});
    ASSERT_TRUE(tables.ok());
    tables_ = *std::move(tables);
    parameters_ = std::make_unique<Parameters>(
        &client_, std::vector<const TableHandle*>{&tables_[0], &tables_[1]},
        Parameters::Options{.refresh_ms_max = 1000, .own_pushes_missing_max = 3, .time = &time_});
  }

  // With one pull, and subscribed.
  void Begin() {
    ASSERT_TRUE(parameters_->Start().ok());
    ASSERT_TRUE(parameters_->SetSubscribed(true).ok());
  }
  // Adds `amount` to all elements of both tables.
  void PushAll(float amount) {
    const std::vector<float> gradient(10, amount);
    const std::vector<DenseGradient> gradients = {{&tables_[0], gradient.data()}, {&tables_[1], gradient.data()}};
    ASSERT_TRUE(
        client_.Push(1, gradients, {}, {}, [](Client::PushResult result) { EXPECT_TRUE(result.status.ok()); }).ok());
  }
  void ExpectAll(float value) {
    for (int i = 0; i < 10; ++i) EXPECT_EQ(parameters_->values(0)[i], value) << "a[" << i << "]";
    for (int i = 0; i < 4; ++i) EXPECT_EQ(parameters_->values(1)[i], value) << "b[" << i << "]";
  }

  FakeClient client_;
  ManualTime time_;
  std::vector<TableHandle> tables_;
  std::unique_ptr<Parameters> parameters_;
};

TEST_F(ParametersTest, StartsFromAPullAndIsNotSubscribed) {
  PushAll(5);
  ASSERT_TRUE(parameters_->Start().ok());
  ExpectAll(5);
  EXPECT_EQ(parameters_->versions()[ShardOfBlock(tables_[0].id, 1, 8)], 1u);
  EXPECT_EQ(parameters_->pulls(), 1u);
  PushAll(1);
  client_.Broadcast();
  ASSERT_TRUE(parameters_->Refresh(0).ok());
  ExpectAll(5);
}

TEST_F(ParametersTest, WhatASubscriptionBeginsWithIsTakenAsFarAsItIsNew) {
  ASSERT_TRUE(parameters_->Start().ok());
  ASSERT_TRUE(parameters_->SetSubscribed(true).ok());
  ASSERT_TRUE(parameters_->Refresh(0).ok());
  EXPECT_EQ(parameters_->blocks_from_broadcasts(), 0u) << "it had all of that";
  ASSERT_TRUE(parameters_->SetSubscribed(false).ok());
  PushAll(5);
  client_.Broadcast();
  ASSERT_TRUE(parameters_->Refresh(0).ok());
  ExpectAll(0);
  ASSERT_TRUE(parameters_->SetSubscribed(true).ok());
  ASSERT_TRUE(parameters_->Refresh(0).ok());
  ExpectAll(5);
  EXPECT_EQ(parameters_->blocks_from_broadcasts(), 4u);
  EXPECT_EQ(parameters_->pulls(), 1u);
}

TEST_F(ParametersTest, AReadThatGoesWithAnotherCallCountsAsAPull) {
  ASSERT_TRUE(parameters_->Start().ok());
  PushAll(2);
  const uint64_t stamp = parameters_->stamp();
  const auto versions = client_.PullNow(parameters_->BeginRead(), {});
  ASSERT_TRUE(versions.ok());
  parameters_->EndRead(*versions);
  ExpectAll(2);
  for (BlockIndex b = 0; b < 3; ++b) {
    const ShardId shard = ShardOfBlock(tables_[0].id, b, 8);
    EXPECT_EQ(parameters_->versions()[shard], client_.VersionOf(shard));
  }
  EXPECT_GT(parameters_->stamp(), stamp) << "a device has to copy it";
  ASSERT_TRUE(parameters_->Refresh(3).ok());
  EXPECT_EQ(parameters_->pulls(), 1u) << "nothing else was needed";
}

TEST_F(ParametersTest, WhatASlowLinkHasJustBroughtIsNotPulledAgain) {
  ASSERT_TRUE(parameters_->Start().ok());
  std::vector<DensePull> read = parameters_->BeginRead();
  time_.AdvanceMs(3000);
  const auto versions = client_.PullNow(std::move(read), {});
  ASSERT_TRUE(versions.ok());
  parameters_->EndRead(*versions);
  ASSERT_TRUE(parameters_->Refresh(0).ok());
  time_.AdvanceMs(6000);
  ASSERT_TRUE(parameters_->Refresh(0).ok());
  EXPECT_EQ(parameters_->pulls(), 1u) << "nothing newer could have come";
  time_.AdvanceMs(1);
  ASSERT_TRUE(parameters_->Refresh(0).ok());
  EXPECT_EQ(parameters_->pulls(), 2u) << "nothing has come for twice the time that it takes";
}

TEST_F(ParametersTest, StartsFromValuesThatNobodyHasPushedTo) {
  v1::TableSpec spec = Spec("c", 6);
  spec.mutable_initializer()->mutable_constant()->set_value(2.5f);
  const auto tables = client_.EnsureTables({spec});
  ASSERT_TRUE(tables.ok());
  Parameters parameters(&client_, {&(*tables)[0]}, {.time = &time_});
  ASSERT_TRUE(parameters.Start().ok());
  for (int i = 0; i < 6; ++i) EXPECT_EQ(parameters.values(0)[i], 2.5f);
  int ranges = 0;
  parameters.ForChangedSince(0, [&ranges](size_t begin, size_t end) {
    EXPECT_EQ(begin, 0u);
    EXPECT_EQ(end, 6u);
    ++ranges;
  });
  EXPECT_EQ(ranges, 1) << "all of it is new";
}

TEST_F(ParametersTest, KeepsStillUntilRefreshThenHoldsTheBroadcast) {
  Begin();
  PushAll(1);
  PushAll(1);
  client_.Broadcast();
  ExpectAll(0);
  ASSERT_TRUE(parameters_->Refresh(0).ok());
  ExpectAll(2);
  EXPECT_EQ(parameters_->pulls(), 1u);
  EXPECT_EQ(parameters_->blocks_from_broadcasts(), 4u);
  for (BlockIndex b = 0; b < 3; ++b) {
    const ShardId shard = ShardOfBlock(tables_[0].id, b, 8);
    EXPECT_EQ(parameters_->versions()[shard], client_.VersionOf(shard));
  }
}

TEST_F(ParametersTest, TakesOverOnlyWhatChanged) {
  Begin();
  const std::vector<float> gradient(4, 3);
  const std::vector<DenseGradient> gradients = {{&tables_[1], gradient.data()}};
  ASSERT_TRUE(client_.Push(1, gradients, {}, {}, [](Client::PushResult) {}).ok());
  client_.Broadcast();
  ASSERT_TRUE(parameters_->Refresh(0).ok());
  EXPECT_EQ(parameters_->blocks_from_broadcasts(), 1u);
  EXPECT_EQ(parameters_->values(0)[0], 0);
  EXPECT_EQ(parameters_->values(1)[0], 3);
}

// A device once got a copy for each block.
TEST_F(ParametersTest, WhatHasChangedIsFewLongRanges) {
  const auto large = client_.EnsureTables({Spec("c", 200'000)});
  ASSERT_TRUE(large.ok());
  Parameters parameters(&client_, {&tables_[0], &(*large)[0], &tables_[1]}, {.time = &time_});
  ASSERT_TRUE(parameters.Start().ok());
  ASSERT_TRUE(parameters.SetSubscribed(true).ok());
  const auto changed = [&parameters](uint64_t since) {
    std::vector<std::pair<size_t, size_t>> ranges;
    parameters.ForChangedSince(since, [&](size_t begin, size_t end) { ranges.emplace_back(begin, end); });
    return ranges;
  };
  using Ranges = std::vector<std::pair<size_t, size_t>>;
  ASSERT_EQ(parameters.offset(1), 64u);
  ASSERT_EQ(parameters.offset(2), 64u + 200'000);
  ASSERT_EQ(parameters.floats(), 64u + 200'000 + 64);
  EXPECT_EQ(changed(0), (Ranges{{0, 64 + 200'000 + 4}})) << "all three tables";
  uint64_t stamp = parameters.stamp();
  EXPECT_EQ(changed(stamp), Ranges());
  const auto push = [&](const TableHandle& table) {
    const std::vector<float> gradient(table.layout.elements, 1);
    const std::vector<DenseGradient> gradients = {{&table, gradient.data()}};
    ASSERT_TRUE(client_.Push(1, gradients, {}, {}, [](Client::PushResult) {}).ok());
  };
  push(tables_[0]);
  push(tables_[1]);
  client_.Broadcast();
  ASSERT_TRUE(parameters.Refresh(0).ok());
  EXPECT_EQ(changed(stamp), (Ranges{{0, 10}, {64 + 200'000, 64 + 200'000 + 4}})) << "too far apart to be one";
  stamp = parameters.stamp();
  push((*large)[0]);
  client_.Broadcast();
  ASSERT_TRUE(parameters.Refresh(0).ok());
  EXPECT_EQ(changed(stamp), (Ranges{{64, 64 + 200'000}}));
}

TEST_F(ParametersTest, ABroadcastOlderThanAPullDoesNotUndoIt) {
  Begin();
  PushAll(1);
  client_.Broadcast();  // Staged, not taken.
  PushAll(1);
  ASSERT_TRUE(parameters_->PullAll().ok());
  ExpectAll(2);
  ASSERT_TRUE(parameters_->Refresh(0).ok());
  ExpectAll(2);
  EXPECT_EQ(parameters_->blocks_from_broadcasts(), 0u);
}

TEST_F(ParametersTest, PullsOnceTheValuesLackTooManyOwnPushes) {
  Begin();
  PushAll(1);
  ASSERT_TRUE(parameters_->Refresh(3).ok());
  ExpectAll(0);
  ASSERT_TRUE(parameters_->Refresh(4).ok());
  ExpectAll(1);
  EXPECT_EQ(parameters_->pulls(), 2u);
  PushAll(1);
  ASSERT_TRUE(parameters_->Refresh(7).ok());
  ExpectAll(1);
  client_.Broadcast();  // Confirms the values at seven pushes...
  ASSERT_TRUE(parameters_->Refresh(7).ok());
  ExpectAll(2);
  ASSERT_TRUE(parameters_->Refresh(10).ok());  // ... so that ten are not too many.
  EXPECT_EQ(parameters_->pulls(), 2u);
}

TEST_F(ParametersTest, PullsWhatNoBroadcastHasRefreshedForTooLong) {
  Begin();
  PushAll(1);
  time_.AdvanceMs(1000);
  ASSERT_TRUE(parameters_->Refresh(0).ok());
  ExpectAll(0);
  time_.AdvanceMs(1);
  ASSERT_TRUE(parameters_->Refresh(0).ok());
  ExpectAll(1);
  EXPECT_EQ(parameters_->pulls(), 2u);
}

TEST_F(ParametersTest, OneSilentShardIsEnoughToPull) {
  Begin();
  const std::vector<float> gradient(4, 3);
  const std::vector<DenseGradient> gradients = {{&tables_[1], gradient.data()}};
  time_.AdvanceMs(900);
  ASSERT_TRUE(client_.Push(1, gradients, {}, {}, [](Client::PushResult) {}).ok());
  client_.Broadcast();  // Table b's shard only.
  ASSERT_TRUE(parameters_->Refresh(0).ok());
  EXPECT_EQ(parameters_->pulls(), 1u);
  time_.AdvanceMs(200);
  ASSERT_TRUE(parameters_->Refresh(0).ok());
  EXPECT_EQ(parameters_->pulls(), 2u);
}

TEST_F(ParametersTest, SaysWhichPullFailed) {
  Begin();
  client_.FailPulls(absl::UnavailableError("server 1 at fake:1"));
  const absl::Status status = parameters_->PullAll();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "pulling dense parameters: server 1 at fake:1");
}

TEST_F(ParametersTest, BroadcastsAfterItsEndAreHarmless) {
  Begin();
  parameters_.reset();
  PushAll(1);
  client_.Broadcast();
}

TEST_F(ParametersTest, IsNeverTornWithinABlockAndNeverGoesBackUnderConcurrentBroadcasts) {
  constexpr int kPushers = 3, kPushes = 300;
  client_.BroadcastEvery(1);
  Begin();
  std::latch start(kPushers + 1);
  std::atomic<int> running{kPushers};
  std::vector<std::thread> pushers;
  for (int p = 0; p < kPushers; ++p) {
    pushers.emplace_back([&] {
      start.arrive_and_wait();
      for (int i = 0; i < kPushes; ++i) PushAll(1);
      --running;
    });
  }
  start.arrive_and_wait();
  std::vector<float> before(10, 0);
  bool done = false;
  for (uint64_t round = 0; !done; ++round) {
    done = running == 0;
    ASSERT_TRUE((round % 16 == 5 ? parameters_->PullAll() : parameters_->Refresh(0)).ok());
    for (uint32_t i = 0; i < 10; ++i) {
      const float value = parameters_->values(0)[i];
      ASSERT_GE(value, before[i]);
      ASSERT_EQ(value, parameters_->values(0)[i / kBlockElements * kBlockElements]);
      // The version claimed is one that the value has at least reached: each push adds one to both.
      ASSERT_GE(value, parameters_->versions()[ShardOfBlock(tables_[0].id, i / kBlockElements, 8)]);
      before[i] = value;
    }
  }
  for (std::thread& pusher : pushers) pusher.join();
  ExpectAll(kPushers * kPushes);
}

}  // namespace
}  // namespace lodestone::worker
