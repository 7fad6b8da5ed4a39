// What becomes of a run whose device has no memory for a batch, on the emulated runtime. The worker was once aborted.
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/time_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda.h"
#include "tests/worker/client/fake_client.h"
#include "tests/worker/data/memory_dataset.h"
#include "worker/training/job.h"

namespace lodestone::worker {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSamples = 64;

// Samples with a number each, or with two categories, at whose `number`-th read, from 1, the device runs out of memory;
// 0: at none.
class ScarceDataset final : public Dataset {
 public:
  ScarceDataset(bool categories, uint64_t number) : data_(Samples(categories)), number_(number) {}
  uint64_t size() const override { return data_.size(); }
  void Read(std::span<const uint64_t> indices, Batch* batch) const override {
    if (++reads_ == number_) emulated::FailFrom(1, cudaErrorMemoryAllocation);
    data_.Read(indices, batch);
  }

 private:
  static std::vector<MemoryDataset::Sample> Samples(bool categories) {
    std::vector<MemoryDataset::Sample> samples;
    for (uint64_t i = 0; i < kSamples; ++i) {
      MemoryDataset::Sample sample{static_cast<float>(i % 2), {}, {}, {}};
      if (categories) {
        sample.keys = {i % 4, 10 + i % 3};
      } else {
        sample.numeric = {static_cast<float>(i % 3)};
      }
      samples.push_back(std::move(sample));
    }
    return samples;
  }

  const MemoryDataset data_;
  const uint64_t number_;
  mutable std::atomic<uint64_t> reads_{0};
};

// The end of a run on a device that runs out of memory at this read of the training or the test samples.
absl::Status EndOfRun(bool categories, bool validates, uint64_t train_read, uint64_t test_read) {
  const auto backend = kernels::CreateCuda({});
  if (!backend.ok()) return backend.status();
  v1::Config config;
  config.mutable_model()->set_type(v1::ModelConfig::LINEAR);
  config.mutable_train()->set_epochs(1);
  config.mutable_train()->set_batch_size(16);
  if (validates) config.mutable_train()->mutable_validate();
  FakeClient client;
  client.OnValidate([](const v1::ValidateRequest& request) {
    v1::ValidateResponse response;
    response.set_claimed(request.has_claim());
    return response;
  });
  LoadedData data;
  (categories ? data.schema.field_count : data.schema.numeric_count) = categories ? 2 : 1;
  data.schema.class_names = {"0", "1"};
  data.schema.class_counts = {kSamples / 2, kSamples / 2};
  data.schema.train_samples = kSamples;
  data.train = std::make_unique<ScarceDataset>(categories, train_read);
  data.test = std::make_unique<ScarceDataset>(categories, test_read);
  const ManualTime time;
  const std::atomic<StopRequest> stop{StopRequest::kNone};
  absl::Status status = RunJob(config, &client, data, &time, &stop, /*results=*/nullptr, backend->get()).status();
  emulated::FailFrom(0, cudaSuccess);
  return status;
}

TEST(DeviceMemory, ATrainingWithoutItForABatchEndsInAStatus) {
  const absl::Status status = EndOfRun(/*categories=*/false, /*validates=*/false, /*train_read=*/1, /*test_read=*/0);
  EXPECT_THAT(std::string(status.message()), HasSubstr("out of memory")) << status;
}

TEST(DeviceMemory, AnEvaluationWithoutItForABatchEndsInAStatus) {
  const absl::Status status = EndOfRun(/*categories=*/false, /*validates=*/false, /*train_read=*/0, /*test_read=*/1);
  EXPECT_THAT(std::string(status.message()), HasSubstr("out of memory")) << status;
}

// With categories there is none for the rows either; the first read is for the keys of all samples then.
TEST(DeviceMemory, AValidationWithoutItForABatchEndsInAStatus) {
  for (const bool categories : {false, true}) {
    const absl::Status status = EndOfRun(categories, /*validates=*/true, /*train_read=*/0, categories ? 2 : 1);
    EXPECT_THAT(std::string(status.message()), HasSubstr("out of memory")) << status;
  }
}

}  // namespace
}  // namespace lodestone::worker
