#include "worker/training/batch_pipeline.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/client/fake_client.h"
#include "tests/worker/data/memory_dataset.h"

namespace lodestone::worker {
namespace {

constexpr uint64_t kPipelineSamples = 40;

class BatchPipelineTest : public testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override {
    v1::TableSpec spec;
    spec.set_name("embedding");
    spec.mutable_embedding()->set_dim(2);
    spec.mutable_initializer()->mutable_normal()->set_stddev(1);
    auto tables = client_.EnsureTables({spec});
    ASSERT_TRUE(tables.ok());
    tables_ = *std::move(tables);
    std::vector<MemoryDataset::Sample> samples;
    for (uint64_t i = 0; i < kPipelineSamples; ++i) samples.push_back({static_cast<float>(i), {}, {i, i % 3, i}, {}});
    data_ = std::make_unique<MemoryDataset>(std::move(samples));
  }

  // Batches of five, in order.
  std::unique_ptr<BatchPipeline> Start(uint32_t held_max = 1, uint32_t read_ahead = 1) {
    const auto next = [this](BatchPipeline::Assignment* batch) {
      ++prepared_;
      if (at_ == kPipelineSamples) return false;
      batch->indices.resize(5);
      std::iota(batch->indices.begin(), batch->indices.end(), at_);
      at_ += 5;
      return true;
    };
    return std::make_unique<BatchPipeline>(
        &client_, data_.get(), std::vector<const TableHandle*>{&tables_[0]}, next,
        BatchPipeline::Options{.ahead = GetParam(), .held_max = held_max, .read_ahead = read_ahead});
  }

  FakeClient client_;
  std::vector<TableHandle> tables_;
  std::unique_ptr<MemoryDataset> data_;
  uint64_t at_ = 0;
  std::atomic<uint64_t> prepared_{0};  // Batches that were begun, and the end.
};

TEST_P(BatchPipelineTest, BringsEveryBatchInOrderWithTheRowsOfItsKeys) {
  auto pipeline = Start();
  for (uint64_t n = 0; n < kPipelineSamples / 5; ++n) {
    auto item = pipeline->Next();
    ASSERT_TRUE(item.ok());
    ASSERT_NE(*item, nullptr);
    const KeyedBatch& keyed = (*item)->keyed;
    ASSERT_EQ(keyed.batch.labels[0], static_cast<float>(5 * n));
    for (size_t k = 0; k < keyed.KeysOf(0).size(); ++k) {
      const std::vector<float> row = client_.RowValues("embedding", keyed.KeysOf(0)[k]);
      EXPECT_EQ((*item)->rows[0][2 * k], row[0]);
      EXPECT_EQ((*item)->rows[0][2 * k + 1], row[1]);
    }
    pipeline->Release();
  }
  EXPECT_EQ(*pipeline->Next(), nullptr);
  EXPECT_EQ(*pipeline->Next(), nullptr);
}

TEST_P(BatchPipelineTest, ABatchThatIsHeldStaysWhileTheNextIsTaken) {
  auto pipeline = Start(/*held_max=*/2);
  auto before = pipeline->Next();
  ASSERT_TRUE(before.ok());
  for (uint64_t n = 1; n < kPipelineSamples / 5; ++n) {
    const auto item = pipeline->Next();
    ASSERT_TRUE(item.ok());
    ASSERT_NE(*item, nullptr);
    EXPECT_EQ((*before)->keyed.batch.labels[0], static_cast<float>(5 * (n - 1)));
    EXPECT_EQ((*before)->rows[0][0], client_.RowValues("embedding", (*before)->keyed.KeysOf(0)[0])[0]);
    EXPECT_EQ((*item)->keyed.batch.labels[0], static_cast<float>(5 * n));
    pipeline->Release();
    before = item;
  }
  EXPECT_EQ(*pipeline->Next(), nullptr);
  pipeline->Release();
}

TEST_P(BatchPipelineTest, WorksSoFarAheadOfWhatIsHeldAndNoFurther) {
  constexpr uint64_t kBatches = kPipelineSamples / 5;
  const auto await = [&](uint64_t batches) {
    batches = std::min(batches, kBatches + 1);
    while (prepared_ < batches) std::this_thread::yield();
    EXPECT_EQ(prepared_, batches);
  };
  auto pipeline = Start(/*held_max=*/2);
  await(GetParam() + 2);  // The next, those ahead, and one more that is read and not pulled.
  for (uint64_t n = 0; n < kBatches; ++n) {
    ASSERT_TRUE(pipeline->Next().ok());
    await(n + 2 + GetParam());
    if (n == 0) continue;
    pipeline->Release();
    await(n + 2 + GetParam());
  }
  while (GetParam() > 0 && !pipeline->Ready()) std::this_thread::yield();
  EXPECT_EQ(*pipeline->Next(), nullptr);
}

// Rows that were read ahead lack the pushes of the batches in between.
TEST_P(BatchPipelineTest, WithNothingAheadRowsAreReadWhenTheBatchBeforeIsGivenBack) {
  auto pipeline = Start();
  pipeline->SetAhead(0);
  for (uint64_t n = 0; n < kPipelineSamples / 5; ++n) {
    ASSERT_TRUE(pipeline->Next().ok());
    if (n > GetParam()) {  // What was ahead has been used up.
      EXPECT_EQ(client_.row_pulls(), n + 1);
      while (prepared_ < n + 2) std::this_thread::yield();
      EXPECT_EQ(client_.row_pulls(), n + 1) << "the next is read, but not pulled";
    }
    pipeline->Release();
  }
  EXPECT_EQ(*pipeline->Next(), nullptr);
}

TEST_P(BatchPipelineTest, TheNextBatchsRowsCanBeReadWithAnotherCall) {
  auto pipeline = Start(/*held_max=*/1, /*read_ahead=*/2);
  pipeline->SetAhead(0);
  uint64_t taken = 0;
  for (uint64_t n = 0; n < kPipelineSamples / 5; ++n) {
    const auto item = pipeline->Next();
    ASSERT_TRUE(item.ok()) << item.status();
    EXPECT_EQ((*item)->keyed.batch.labels[0], static_cast<float>(5 * n));
    EXPECT_EQ((*item)->rows[0][0], client_.RowValues("embedding", (*item)->keyed.KeysOf(0)[0])[0]);
    while (prepared_ < std::min(n + 3, kPipelineSamples / 5 + 1)) std::this_thread::yield();
    if (n > GetParam() && n + 1 < kPipelineSamples / 5) {  // What was ahead has been used up.
      auto read = pipeline->TakeNextRead();
      ASSERT_TRUE(read.has_value());
      EXPECT_FALSE(pipeline->TakeNextRead().has_value()) << "once";
      client_.Pull({}, read->pulls, read->done);
      ++taken;
    }
    const uint64_t pulls = client_.row_pulls();
    pipeline->Release();
    if (taken > 0) {
      EXPECT_EQ(client_.row_pulls(), pulls) << "it has them";
    }
  }
  EXPECT_EQ(*pipeline->Next(), nullptr);
  EXPECT_FALSE(pipeline->TakeNextRead().has_value()) << "there is none";
}

TEST_P(BatchPipelineTest, ReportsAFailedPull) {
  client_.FailPulls(absl::UnavailableError("gone"));
  auto pipeline = Start();
  EXPECT_EQ(pipeline->Next().status().message(), "pulling a batch's rows: gone");
}

TEST_P(BatchPipelineTest, EndsEarlyWithBatchesUnderWay) {
  auto pipeline = Start();
  ASSERT_TRUE(pipeline->Next().ok());
  pipeline.reset();
  auto unread = Start();
  unread.reset();
}

INSTANTIATE_TEST_SUITE_P(Ahead, BatchPipelineTest, testing::Values(0u, 1u, 3u, 20u));

}  // namespace
}  // namespace lodestone::worker
