// What a worker observes of its steps, on a cluster that is a FakeClient.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/time_source.h"
#include "gtest/gtest.h"
#include "tests/common/telemetry/metric_text.h"
#include "tests/worker/client/fake_client.h"
#include "tests/worker/data/memory_dataset.h"
#include "worker/training/batch_pipeline.h"
#include "worker/training/job.h"

namespace lodestone::worker {
namespace {

constexpr uint64_t kMeasuredSamples = 640;
constexpr uint32_t kMeasuredBatch = 32;

std::string Stage(const std::string& of, const std::string& stage) {
  return absl::StrCat("lodestone_worker_step_stage_duration_seconds_", of, "{stage=\"", stage, "\"}");
}

std::vector<MemoryDataset::Sample> Samples() {
  std::vector<MemoryDataset::Sample> samples;
  for (uint64_t i = 0; i < kMeasuredSamples; ++i) samples.push_back({static_cast<float>(i % 2), {1}, {i % 7}, {}});
  return samples;
}

class StepMetricsTest : public ::testing::Test {
 protected:
  StepMetricsTest() {
    config_.mutable_model()->set_type(v1::ModelConfig::LINEAR);
    config_.mutable_train()->set_batch_size(kMeasuredBatch);
    data_.schema.numeric_count = 1;
    data_.schema.field_count = 1;
    data_.schema.train_samples = kMeasuredSamples;
    data_.schema.label_mean = 0.5;
    data_.schema.class_names = {"0", "1"};
    data_.schema.class_counts = {kMeasuredSamples / 2, kMeasuredSamples / 2};
    data_.train = std::make_unique<MemoryDataset>(Samples());
  }
  absl::StatusOr<Summary> Run() { return RunJob(config_, &client_, data_, &time_, &stop_); }

  static constexpr double kSteps = kMeasuredSamples / kMeasuredBatch;
  v1::Config config_;
  LoadedData data_;
  FakeClient client_;
  const ManualTime time_;
  const std::atomic<StopRequest> stop_{StopRequest::kNone};
};

TEST_F(StepMetricsTest, EachStepIsObservedOnceByStage) {
  const MetricGrowth growth;
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(growth.Of("lodestone_worker_step_duration_seconds_count"), kSteps);
  EXPECT_EQ(growth.Of("lodestone_worker_staleness_pushes_count"), kSteps);
  EXPECT_EQ(growth.Of("lodestone_worker_delay_updates_count"), kSteps);
  double sum = 0;
  for (const char* stage : {"input", "pull", "compute", "push"}) {
    EXPECT_EQ(growth.Of(Stage("count", stage)), kSteps) << stage;
    sum += growth.Of(Stage("sum", stage));
  }
  EXPECT_GT(growth.Of(Stage("sum", "compute")), 0);
  EXPECT_LE(sum, growth.Of("lodestone_worker_step_duration_seconds_sum") + 1e-9);  // But for rounding.
}

TEST_F(StepMetricsTest, RefusedPushesCountApart) {
  client_.FailPushes(absl::OutOfRangeError("poison"));
  const MetricGrowth growth;
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(growth.Of("lodestone_worker_pushes_refused_total"), kSteps);
  EXPECT_EQ(growth.Of("lodestone_worker_staleness_pushes_count"), 0);
}

TEST_F(StepMetricsTest, AConsumerThatWaitsForABatchLearnsHowLongForItsSamplesAndForItsRows) {
  v1::TableSpec spec;
  spec.set_name("embedding");
  spec.mutable_embedding()->set_dim(2);
  spec.mutable_initializer()->mutable_normal()->set_stddev(1);
  const auto tables = client_.EnsureTables({spec});
  ASSERT_TRUE(tables.ok()) << tables.status();
  const MemoryDataset data(Samples());
  // Nothing is read ahead, so the consumer is there first, sooner or later.
  BatchPipeline pipeline(&client_, &data, {&tables->front()},
                         [](BatchPipeline::Assignment* batch) {
                           batch->indices.assign(1, 0);
                           return true;
                         },
                         {.ahead = 0});
  do {
    ASSERT_TRUE(pipeline.Next().ok());
    pipeline.Release();
  } while (pipeline.waits().input_ns == 0);
  EXPECT_GT(pipeline.waits().rows_ns, 0) << "it was there before their pull began";
}

}  // namespace
}  // namespace lodestone::worker
