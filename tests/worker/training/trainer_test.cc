// Training on every backend that is here, through RunJob, on a cluster that is a FakeClient.
#include "worker/training/trainer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/time_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu_backend.h"
#include "kernels/cuda.h"
#include "tests/worker/client/fake_client.h"
#include "tests/worker/data/memory_dataset.h"
#include "worker/training/job.h"

namespace lodestone::worker {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSeed = 20261122;
constexpr uint64_t kSamples = 640, kBatch = 32, kSteps = kSamples / kBatch;
constexpr Key kValues = 10;  // Of each field.

// Two fields of ten values each; a click if both are even or both odd.
std::vector<MemoryDataset::Sample> ParitySamples() {
  std::vector<MemoryDataset::Sample> samples;
  for (uint64_t i = 0; i < kSamples; ++i) {
    const Key a = RandomBits(kSeed, 2 * i) % kValues, b = RandomBits(kSeed, 2 * i + 1) % kValues;
    samples.push_back({(a + b) % 2 == 0 ? 1.0f : 0.0f, {}, {a, 100 + b}, {}});
  }
  return samples;
}

// Calls `at` when the batch of that number is read.
class WatchedDataset final : public Dataset {
 public:
  WatchedDataset(uint64_t number, std::function<void()> at)
      : data_(ParitySamples()), number_(number), at_(std::move(at)) {}
  uint64_t size() const override { return data_.size(); }
  void Read(std::span<const uint64_t> indices, Batch* batch) const override {
    if (++read_ == number_) at_();
    data_.Read(indices, batch);
  }

 private:
  const MemoryDataset data_;
  const uint64_t number_;
  const std::function<void()> at_;
  mutable std::atomic<uint64_t> read_{0};
};

class TrainerTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
    config_.mutable_cluster()->set_workers(1);
    config_.mutable_model()->set_type(v1::ModelConfig::DEEPFM);
    config_.mutable_model()->set_embedding_dim(4);
    config_.mutable_model()->add_hidden(8);
    config_.mutable_model()->mutable_optimizer()->mutable_sgd();
    config_.mutable_model()->mutable_optimizer()->set_learning_rate(0.5);
    config_.mutable_train()->set_batch_size(kBatch);
    config_.mutable_train()->set_epochs(1);
    config_.mutable_worker()->set_prefetch_batches(2);
    config_.mutable_worker()->set_deterministic(true);
    data_.schema.field_count = 2;
    data_.schema.class_names = {"0", "1"};
    data_.schema.class_counts = {kSamples / 2, kSamples / 2};
    data_.schema.train_samples = kSamples;
    data_.train = std::make_unique<MemoryDataset>(ParitySamples());
    data_.test = std::make_unique<MemoryDataset>(ParitySamples());
    if (std::string(GetParam()) == "Cpu") return;
    auto cuda = kernels::CreateCuda({});
    if (!cuda.ok()) GTEST_SKIP() << "cuda: " << cuda.status().message();
    cuda_ = *std::move(cuda);
  }

  kernels::Backend* backend() { return cuda_ == nullptr ? kernels::Cpu() : cuda_.get(); }
  absl::StatusOr<Summary> Run(FakeClient* client, kernels::Backend* backend) {
    return RunJob(config_, client, data_, &time_, &stop_, /*results=*/nullptr, backend);
  }
  // All values that a training left.
  static std::vector<float> ValuesOf(const FakeClient& client) {
    std::vector<float> values;
    for (const char* table : {"bias", "mlp/0/weight", "mlp/0/bias", "mlp/1/weight"}) {
      for (const float value : client.DenseValues(table)) values.push_back(value);
    }
    for (Key key = 0; key < kValues; ++key) {
      for (const Key of_field : {key, 100 + key}) {
        for (const float value : client.RowValues("embedding", of_field)) values.push_back(value);
      }
    }
    return values;
  }

  v1::Config config_;
  LoadedData data_;
  std::unique_ptr<kernels::Backend> cuda_;
  FakeClient client_;
  ManualTime time_;
  std::atomic<StopRequest> stop_{StopRequest::kNone};
};

TEST_P(TrainerTest, PushesEveryStepOnceInOrderTheLastToo) {
  config_.mutable_train()->set_epochs(20);
  config_.mutable_model()->clear_optimizer();
  const auto summary = Run(&client_, backend());
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->samples, 20 * kSamples);
  std::vector<Clock> clocks;
  for (Clock clock = 1; clock <= 20 * kSteps; ++clock) clocks.push_back(clock);
  EXPECT_EQ(client_.clocks(), clocks);
  EXPECT_GT(*summary->test->auc, 0.99);
}

TEST_P(TrainerTest, WithNothingAheadEachStepSeesTheOneBefore) {
  config_.mutable_worker()->set_prefetch_batches(0);
  ASSERT_TRUE(Run(&client_, backend()).ok());
  FakeClient on_cpu;
  ASSERT_TRUE(Run(&on_cpu, kernels::Cpu()).ok());
  const std::vector<float> values = ValuesOf(client_), expected = ValuesOf(on_cpu);
  ASSERT_EQ(values.size(), expected.size());
  // Each step adds a rounding error of some 2^-24 for each of about 100 terms below 1.
  constexpr float kTolerance = kSteps * 100 * 0x1p-24f;
  for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], kTolerance) << i;
}

TEST_P(TrainerTest, ClipNormBoundsWhatAStepMovesAllTablesTogetherAndLeavesSmallerGradientsAlone) {
  const auto train = [&](float clip_norm, uint64_t samples) {
    FakeClient client;
    config_.mutable_train()->set_clip_norm(clip_norm);
    config_.mutable_train()->set_epochs(static_cast<double>(samples) / kSamples);
    EXPECT_TRUE(RunJob(config_, &client, data_, &time_, &stop_, /*results=*/nullptr, backend()).ok());
    return ValuesOf(client);
  };
  const std::vector<float> start = train(0, 0), free = train(0, kBatch), loose = train(1e6f, kBatch),
                           tight = train(0.01f, kBatch);
  EXPECT_EQ(loose, free);
  double moved = 0, along = 0, free_moved = 0;
  for (size_t i = 0; i < start.size(); ++i) {
    const double step = static_cast<double>(tight[i]) - start[i], free_step = static_cast<double>(free[i]) - start[i];
    moved += step * step;
    free_moved += free_step * free_step;
    along += step * free_step;
  }
  // The rate is 0.5. A step is the difference of two values below 4, each rounded once.
  const double rounding = std::sqrt(static_cast<double>(start.size())) * 4 * 0x1p-23;
  EXPECT_NEAR(std::sqrt(moved), 0.5 * 0.01, rounding);
  EXPECT_GT(std::sqrt(free_moved), 0.5 * 0.02) << "clipping would do nothing";
  EXPECT_NEAR(along, std::sqrt(moved * free_moved), 4 * rounding) << "the direction is another";
}

TEST_P(TrainerTest, WithNoDelayAllowedEachStepSeesTheOneBeforeWhateverMayBeAhead) {
  config_.mutable_train()->set_delay_max(0);
  client_.BroadcastEvery(3);  // What they do not bring is pulled.
  const auto summary = Run(&client_, backend());
  ASSERT_TRUE(summary.ok()) << summary.status();
  for (const DelaySummary& delay : summary->delays) EXPECT_EQ(delay.max, 0u) << delay.table;
  FakeClient on_cpu;
  config_.mutable_train()->clear_delay_max();
  config_.mutable_worker()->set_prefetch_batches(0);
  ASSERT_TRUE(Run(&on_cpu, kernels::Cpu()).ok());
  const std::vector<float> values = ValuesOf(client_), expected = ValuesOf(on_cpu);
  constexpr float kTolerance = kSteps * 100 * 0x1p-24f;  // As above.
  for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], kTolerance) << i;
}

TEST_P(TrainerTest, WhileItWaitsAPushReadsWhatTheNextStepNeedsAndNothingIsSubscribedTo) {
  config_.mutable_train()->set_delay_max(0);
  bool subscribed = false;
  data_.train = std::make_unique<WatchedDataset>(kSteps / 2, [&] { subscribed = client_.subscriptions() > 0; });
  ASSERT_TRUE(Run(&client_, backend()).ok());
  EXPECT_FALSE(subscribed);
  EXPECT_EQ(client_.pushes(), kSteps);
  EXPECT_EQ(client_.push_pulls(), kSteps) << "no step pulls for itself";
}

TEST_P(TrainerTest, WhileItWaitsWhatAGuardRefusesIsLeftOut) {
  config_.mutable_train()->set_delay_max(0);
  client_.FailPushes(absl::OutOfRangeError("guarded"));
  const auto summary = Run(&client_, backend());
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->samples, kSamples);
  EXPECT_EQ(client_.pushes(), 0u);
}

TEST_P(TrainerTest, WhileItWaitsAPullThatFailsEndsTheTraining) {
  config_.mutable_train()->set_delay_max(0);
  data_.train = std::make_unique<WatchedDataset>(
      kSteps / 2, [this] { client_.FailPulls(absl::UnavailableError("server 1 at fake:1")); });
  const auto summary = Run(&client_, backend());
  EXPECT_TRUE(absl::IsUnavailable(summary.status())) << summary.status();
}

TEST_P(TrainerTest, EndsTheWaitWhereNobodyElsePushesAndSubscribes) {
  config_.mutable_train()->set_epochs(10);
  bool subscribed = false;
  data_.train = std::make_unique<WatchedDataset>(9 * kSteps, [&] { subscribed = client_.subscriptions() > 0; });
  const auto summary = Run(&client_, backend());
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_TRUE(subscribed);
  EXPECT_LT(client_.push_pulls(), client_.pushes());
  FakeClient on_cpu;
  config_.mutable_train()->set_delay_max(0);
  data_.train = std::make_unique<MemoryDataset>(ParitySamples());
  ASSERT_TRUE(Run(&on_cpu, kernels::Cpu()).ok());
  EXPECT_EQ(on_cpu.push_pulls(), on_cpu.pushes());
  // All steps are the same but for values that are a step or two older.
  EXPECT_GT(*summary->test->auc, 0.9);
}

TEST_P(TrainerTest, KeepsItsDelayBelowWhatIsAllowed) {
  config_.mutable_train()->set_epochs(20);
  config_.mutable_train()->set_delay_max(1);
  config_.mutable_worker()->set_prefetch_batches(8);
  const auto summary = Run(&client_, backend());
  ASSERT_TRUE(summary.ok()) << summary.status();
  for (const DelaySummary& delay : summary->delays) EXPECT_LE(delay.mean, 2) << delay.table;
  config_.mutable_train()->set_delay_max(100);
  FakeClient other;
  const auto later = Run(&other, backend());
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_GT(later->delays.back().mean, summary->delays.back().mean);
  // Where the machine is busy, updates may come so late that little delay allows as many.
  EXPECT_GE(other.pushes_in_flight_max().back(), client_.pushes_in_flight_max().back());
}

TEST_P(TrainerTest, WithBatchesAheadGradientsGoToTheRowsOfTheirOwnStep) {
  // So small that it hardly matters which values a step has read: some 20 gradients below 1 times their own effect.
  constexpr float kRate = 0x1p-16f, kTolerance = 20 * kRate * 20 * kRate;
  config_.mutable_model()->mutable_optimizer()->set_learning_rate(kRate);
  ASSERT_TRUE(Run(&client_, backend()).ok());
  FakeClient on_cpu;
  config_.mutable_worker()->set_prefetch_batches(0);
  ASSERT_TRUE(Run(&on_cpu, kernels::Cpu()).ok());
  config_.mutable_train()->set_epochs(0.05);
  FakeClient untrained;
  ASSERT_TRUE(Run(&untrained, kernels::Cpu()).ok());
  const std::vector<float> values = ValuesOf(client_), expected = ValuesOf(on_cpu), before = ValuesOf(untrained);
  ASSERT_EQ(values.size(), expected.size());
  float changed = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(values[i], expected[i], kTolerance) << i;
    changed = std::max(changed, std::abs(values[i] - before[i]));
  }
  EXPECT_GT(changed, 10 * kTolerance) << "nothing was seen";
}

TEST_P(TrainerTest, GradientsDoNotWaitForTheNextBatch) {
  data_.train = std::make_unique<WatchedDataset>(kSteps / 2, [this] {
    while (client_.pushes() < kSteps / 2 - 1) std::this_thread::yield();
  });
  const auto summary = Run(&client_, backend());
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(client_.pushes(), kSteps);
}

TEST_P(TrainerTest, StoppedItHasPushedAllStepsThatItTook) {
  data_.train = std::make_unique<WatchedDataset>(kSteps / 2, [this] { stop_ = StopRequest::kQuit; });
  const auto summary = Run(&client_, backend());
  EXPECT_TRUE(absl::IsCancelled(summary.status())) << summary.status();
  EXPECT_THAT(std::string(summary.status().message()),
              HasSubstr(absl::StrCat("stopped after ", client_.pushes(), " steps")));
  EXPECT_LT(client_.pushes(), kSteps);
}

TEST_P(TrainerTest, EndsWithTheErrorOfAPush) {
  data_.train = std::make_unique<WatchedDataset>(
      kSteps / 2, [this] { client_.FailPushes(absl::FailedPreconditionError("the table is gone")); });
  const auto summary = Run(&client_, backend());
  EXPECT_THAT(std::string(summary.status().message()), HasSubstr("the table is gone"));
}

TEST_P(TrainerTest, WithoutAnEpochNoRangeIsLeasedAndTheModelIsEvaluated) {
  FakeClient client;
  config_.mutable_train()->set_sharing(v1::TrainConfig::RANGES);
  config_.mutable_train()->set_epochs(0);
  bool asked = false;
  client.OnLeaseRanges([&](const v1::LeaseRangesRequest&) {
    asked = true;
    return absl::InvalidArgumentError("a plan without batches");
  });
  const auto summary = Run(&client, backend());
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_FALSE(asked);
  EXPECT_TRUE(summary->test.has_value());
}

// One worker that leases its samples trains the same model, bit for bit, as one that has them as its partition; each
// push has a range's identity.
TEST_P(TrainerTest, LeasedRangesTrainTheSameModelAsAPartition) {
  FakeClient partition, leased;
  ASSERT_TRUE(Run(&partition, backend()).ok());
  config_.mutable_train()->set_sharing(v1::TrainConfig::RANGES);
  config_.mutable_train()->set_range_batches(6);
  uint64_t next = 0, done = 0;
  leased.OnLeaseRanges([&](const v1::LeaseRangesRequest& request) {
    v1::LeaseRangesResponse response;
    for (const auto& held : request.held()) done += held.done() == 5 ? 5 : 0;
    if (request.wants_range() && next < kSteps) {
      response.mutable_lease()->set_incarnation(100 + next);
      response.mutable_lease()->set_first_batch(next);
      response.mutable_lease()->set_batches(5);
      next += 5;
    }
    response.set_complete(done == kSteps);
    response.set_evaluate(request.finished());
    response.set_over(request.evaluated());
    return response;
  });
  const auto summary = Run(&leased, backend());
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_TRUE(summary->complete());
  EXPECT_EQ(summary->samples, kSamples);
  EXPECT_TRUE(summary->test.has_value());
  EXPECT_EQ(ValuesOf(leased), ValuesOf(partition));
  std::vector<std::pair<Incarnation, Sequence>> steps;
  for (uint64_t step = 0; step < kSteps; ++step) steps.emplace_back(100 + step / 5 * 5, step % 5 + 1);
  EXPECT_EQ(leased.range_steps(), steps);
  EXPECT_TRUE(partition.range_steps().empty());
}

INSTANTIATE_TEST_SUITE_P(Backends, TrainerTest, testing::Values("Cpu", "Cuda"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace lodestone::worker
