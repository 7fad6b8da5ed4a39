// What a ps observes of pushes, pulls, executors, logs and checkpoints.
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/common/telemetry/metric_text.h"
#include "tests/server/durability/storage_fixture.h"

namespace lodestone::server {
namespace {

// Sums are of whole nanoseconds, told in seconds: as exact as numbers of that size are.
constexpr double kHalfNs = 0.5e-9;

std::string PushTotal(const std::string& of) { return absl::StrCat("lodestone_ps_push_duration_seconds_", of); }
std::string PullTotal(const std::string& of) { return absl::StrCat("lodestone_ps_pull_duration_seconds_", of); }
std::string PushStage(const std::string& of, const std::string& stage) {
  return absl::StrCat("lodestone_ps_push_stage_duration_seconds_", of, "{stage=\"", stage, "\"}");
}
std::string PullStage(const std::string& of, const std::string& stage) {
  return absl::StrCat("lodestone_ps_pull_stage_duration_seconds_", of, "{stage=\"", stage, "\"}");
}

class LatencyTest : public StoreTest {
 protected:
  void SetUp() override {
    Make();
    const auto tables = Ensure({AddingDense("dense", 1000, 64), AddingRows("rows", 2)});
    ASSERT_TRUE(tables.ok()) << tables.status();
    dense_ = tables->tables(0).id();
    rows_ = tables->tables(1).id();
  }
  RequestBuilder<v1::PushRequest> DensePush(Sequence sequence, float value = 1) {
    auto push = NewPush(sequence);
    push.AddDense(dense_, {1000, 64}, value);
    return push;
  }

  TableId dense_ = 0;
  TableId rows_ = 0;
};

TEST_F(LatencyTest, APushIsObservedOnceThoughSeveralExecutorsHaveAShareOfIt) {
  const MetricGrowth growth;
  for (Sequence sequence = 1; sequence <= 10; ++sequence) ASSERT_TRUE(Push(DensePush(sequence)).ok());
  ASSERT_TRUE(Push(DensePush(10)).ok());                // A duplicate is acknowledged too,
  ASSERT_FALSE(Push(DensePush(11, 0.0f / 0.0f)).ok());  // what is refused is not.
  EXPECT_EQ(growth.Of(PushTotal("count")), 11);
  EXPECT_EQ(growth.Of(PushStage("count", "queue")), 11);
  EXPECT_EQ(growth.Of(PushStage("count", "apply")), 11);
  EXPECT_EQ(growth.Of(PushStage("count", "commit")), 0) << "there is neither log nor follower";
  EXPECT_GT(growth.Of(PushStage("sum", "apply")), 0);
  EXPECT_NEAR(growth.Of(PushTotal("sum")), growth.Of(PushStage("sum", "queue")) + growth.Of(PushStage("sum", "apply")),
              kHalfNs);
}

TEST_F(LatencyTest, PullsOfRowsHaveStagesAndPullsOfBlocksHaveNot) {
  ASSERT_TRUE(Push(DensePush(1)).ok());
  const MetricGrowth growth;
  PullBlocks(dense_, {1000, 64});
  EXPECT_EQ(growth.Of(PullTotal("count")), 1);
  EXPECT_EQ(growth.Of(PullStage("count", "read")), 0);
  PullRows(rows_, 2, {1, 2, 3});
  EXPECT_EQ(growth.Of(PullTotal("count")), 4);
  EXPECT_EQ(growth.Of(PullStage("count", "queue")), 3);
  EXPECT_EQ(growth.Of(PullStage("count", "read")), 3);
  EXPECT_LT(growth.Of(PullStage("sum", "queue")) + growth.Of(PullStage("sum", "read")), growth.Of(PullTotal("sum")));
}

TEST_F(LatencyTest, WhatWaitsForAnExecutorIsSeenToWait) {
  const MetricGrowth growth;
  std::latch inside(1), go_on(1);
  std::thread holder([&] {
    store_->shards().Run(0, [&](Shard*) {
      inside.count_down();
      go_on.wait();
    });
  });
  inside.wait();
  std::thread pusher([&] { EXPECT_TRUE(Push(DensePush(1)).ok()); });
  // The other executor's share may have gone before.
  const Executor& held = store_->shards().executors()[store_->shards().ExecutorOf(0)];
  while (held.queue_length() == 0) std::this_thread::yield();
  const int64_t from_ns = NowNs();
  while (NowNs() < from_ns + 1'000'000) {
  }
  const double waited = static_cast<double>(NowNs() - from_ns) / 1e9;
  go_on.count_down();
  holder.join();
  pusher.join();
  EXPECT_GE(growth.Of(PushStage("sum", "queue")), waited);
  EXPECT_GE(growth.Of("lodestone_ps_executor_wait_duration_seconds_sum"), waited);
  // Two shares of the push, and what holds the executor.
  EXPECT_EQ(growth.Of("lodestone_ps_executor_wait_duration_seconds_count"), 3);
}

using StorageLatencyTest = StorageFixture;
INSTANTIATE_TEST_SUITE_P(Durabilities, StorageLatencyTest, ::testing::Values("PROCESS", "MACHINE"));

TEST_P(StorageLatencyTest, TheLogHasAStageAndItsCommitsAreObserved) {
  v1::ClusterConfig::Durability durability;
  ASSERT_TRUE(v1::ClusterConfig::Durability_Parse(GetParam(), &durability));
  config_.mutable_cluster()->set_durability(durability);
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  const MetricGrowth growth;
  const uint64_t commits = StatusOf(ps).log_commits();
  PushMany(ps, 1, 20);
  EXPECT_EQ(growth.Of(PushTotal("count")), 20);
  EXPECT_EQ(growth.Of(PushStage("count", "commit")), 20);
  EXPECT_GT(growth.Of(PushStage("sum", "commit")), 0);
  EXPECT_NEAR(growth.Of(PushTotal("sum")),
              growth.Of(PushStage("sum", "queue")) + growth.Of(PushStage("sum", "apply")) +
                  growth.Of(PushStage("sum", "commit")),
              kHalfNs);
  EXPECT_EQ(growth.Of("lodestone_ps_log_commit_duration_seconds_count"),
            static_cast<double>(StatusOf(ps).log_commits() - commits));
  EXPECT_GT(growth.Of("lodestone_ps_log_commit_duration_seconds_sum"), 0);
}

TEST_P(StorageLatencyTest, CheckpointsAreObserved) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 1);
  const MetricGrowth growth;
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  EXPECT_EQ(growth.Of("lodestone_ps_checkpoint_duration_seconds_count"), 1);
}

}  // namespace
}  // namespace lodestone::server
