// How many samples are read at a time where a run evaluates and validates, on a cluster that is a FakeClient.
#include "worker/training/evaluator.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/time_source.h"
#include "gtest/gtest.h"
#include "tests/worker/client/fake_client.h"
#include "worker/training/job.h"

namespace lodestone::worker {
namespace {

// Samples of classes 0 and 1 in turns that have so many numbers, and so many features, of eight keys.
class WideDataset final : public Dataset {
 public:
  WideDataset(uint64_t size, size_t numbers, size_t features) : size_(size), numbers_(numbers), features_(features) {}
  uint64_t size() const override { return size_; }
  void Read(std::span<const uint64_t> indices, Batch* batch) const override {
    if (indices.size() > most_read_) most_read_ = indices.size();  // Two threads never read at once.
    *batch = Batch();
    batch->size = indices.size();
    batch->offsets.push_back(0);
    for (const uint64_t i : indices) {
      batch->labels.push_back(static_cast<float>(i % 2));
      batch->numeric.resize(batch->numeric.size() + numbers_, static_cast<float>(i % 2) / 1024);
      for (size_t f = 0; f < features_; ++f) batch->keys.push_back(f % 8);
      batch->offsets.push_back(static_cast<uint32_t>(batch->keys.size()));
    }
    batch->values.resize(batch->keys.size(), 1.0f / 1024);
  }
  size_t most_read() const { return most_read_; }

 private:
  const uint64_t size_;
  const size_t numbers_, features_;
  mutable std::atomic<size_t> most_read_{0};
};

// The most samples that a run of a linear model, which validates and evaluates `samples` such ones, reads of them at
// a time.
size_t MostRead(uint64_t samples, size_t numbers, size_t features) {
  v1::Config config;
  config.mutable_model()->set_type(v1::ModelConfig::LINEAR);
  config.mutable_train()->set_epochs(1);
  config.mutable_train()->set_batch_size(1);
  config.mutable_train()->mutable_validate();
  LoadedData data;
  data.schema.numeric_count = static_cast<uint32_t>(numbers);
  data.schema.sparse = features > 0;
  data.schema.class_names = {"0", "1"};
  data.schema.class_counts = {1, 1};
  data.schema.train_samples = 2;
  data.train = std::make_unique<WideDataset>(2, numbers, features);
  auto test = std::make_unique<WideDataset>(samples, numbers, features);
  const WideDataset& watched = *test;
  data.test = std::move(test);
  FakeClient client;
  client.OnValidate([](const v1::ValidateRequest& request) {
    v1::ValidateResponse response;
    response.set_claimed(request.has_claim());
    return response;
  });
  const ManualTime time;
  const std::atomic<StopRequest> stop{StopRequest::kNone};
  const auto summary = RunJob(config, &client, data, &time, &stop);
  EXPECT_TRUE(summary.ok()) << summary.status();
  if (!summary.ok()) return 0;
  EXPECT_EQ(summary->test->samples, samples);
  const std::vector<v1::ValidateRequest> told = client.validations();
  EXPECT_TRUE(std::any_of(told.begin(), told.end(), [samples](const v1::ValidateRequest& request) {
    return request.has_result() && request.result().validated() == samples;
  }));
  return watched.most_read();
}

// A batch once had 2048 samples whatever their width, and a validation of wide ones was aborted.
TEST(Evaluator, ABatchHasFewSamplesOfManyNumbers) {
  EXPECT_EQ(MostRead(/*samples=*/18, /*numbers=*/1 << 20, /*features=*/0), 16u);
}

TEST(Evaluator, ABatchHasFewSamplesOfManyKeys) {
  EXPECT_EQ(MostRead(/*samples=*/40, /*numbers=*/0, /*features=*/1 << 16), 16u);
}

TEST(Evaluator, ABatchOfOtherSamplesHas2048OfThem) {
  EXPECT_EQ(MostRead(/*samples=*/4000, /*numbers=*/0, /*features=*/4), 2048u);
}

TEST(Evaluator, FieldsSayHowManyKeysASampleHas) {
  const WideDataset none(0, 0, 0);
  Schema schema;
  for (const auto& [fields, samples] : {std::pair(512u, 2048u), {513u, 2045u}, {1u << 16, 16u}, {1u << 21, 1u}}) {
    schema.field_count = fields;
    EXPECT_EQ(EvaluationBatchSize(schema, none), samples) << fields;
  }
}

}  // namespace
}  // namespace lodestone::worker
