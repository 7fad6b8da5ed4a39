// RunJob with the trainer, the evaluator and all between them, on a cluster that is a FakeClient.
#include "worker/training/job.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/worker/client/fake_client.h"
#include "tests/worker/data/memory_dataset.h"
#include "tests/worker/report/event_file.h"

namespace lodestone::worker {
namespace {

using testing::HasSubstr;
using v1::ModelConfig;

constexpr uint64_t kJobSeed = 99;

v1::Config MakeConfig(ModelConfig::Type type, double epochs) {
  v1::Config config;
  config.mutable_model()->set_type(type);
  config.mutable_model()->set_embedding_dim(4);
  config.mutable_train()->set_epochs(epochs);
  config.mutable_train()->set_batch_size(32);
  return config;
}

LoadedData MakeData(std::vector<MemoryDataset::Sample> samples, uint32_t numeric, uint32_t fields, uint32_t classes) {
  LoadedData data;
  data.schema.numeric_count = numeric;
  data.schema.field_count = fields;
  data.schema.train_samples = samples.size();
  for (const auto& sample : samples) data.schema.label_mean += sample.label / static_cast<double>(samples.size());
  data.schema.class_counts.resize(classes, 0);
  for (uint32_t c = 0; c < classes; ++c) data.schema.class_names.push_back(std::to_string(c));
  if (classes > 0) {
    for (const auto& sample : samples) ++data.schema.class_counts[static_cast<size_t>(sample.label)];
  }
  data.train = std::make_unique<MemoryDataset>(samples);
  data.test = std::make_unique<MemoryDataset>(std::move(samples));
  return data;
}

// A coordinator's leases of synchronous steps: one batch each, those of a step when all of the step before are done.
class StepByStep {
 public:
  explicit StepByStep(uint32_t step_batches) : step_batches_(step_batches) {}

  void NoteDone(const v1::LeaseRangesRequest& request) {
    for (const auto& held : request.held()) {
      if (held.done() > 0) done_.insert(held.incarnation());
    }
  }
  // Leases a batch, if the worker wants one that it may have now.
  void Lease(const v1::LeaseRangesRequest& request, v1::LeaseRangesResponse* response) {
    if (!request.wants_range() || next_ == request.plan().batches() || done_.size() < next_ - next_ % step_batches_) {
      return;
    }
    response->mutable_lease()->set_incarnation(next_ + 1);
    response->mutable_lease()->set_first_batch(next_);
    response->mutable_lease()->set_batches(1);
    response->mutable_lease()->set_step(next_ / step_batches_);
    ++next_;
  }
  uint64_t done() const { return done_.size(); }
  uint64_t steps() const { return done_.size() / step_batches_; }
  void ForgetDone() { done_.clear(); }

 private:
  const uint32_t step_batches_;
  uint64_t next_ = 0;
  std::set<Incarnation> done_;
};

// y = 2 x0 - x1 + 0.5, without noise.
LoadedData LineData(uint64_t n) {
  std::vector<MemoryDataset::Sample> samples;
  for (uint64_t i = 0; i < n; ++i) {
    const float a = static_cast<float>(RandomNormal(kJobSeed, 2 * i)),
                b = static_cast<float>(RandomNormal(kJobSeed, 2 * i + 1));
    samples.push_back({2 * a - b + 0.5f, {a, b}, {}, {}});
  }
  return MakeData(std::move(samples), 2, 0, 0);
}

// Two fields of ten values each; a click if both are even or both odd: no linear model does better than chance.
LoadedData ParityData(uint64_t n) {
  std::vector<MemoryDataset::Sample> samples;
  for (uint64_t i = 0; i < n; ++i) {
    const Key a = RandomBits(kJobSeed, 2 * i) % 10, b = RandomBits(kJobSeed, 2 * i + 1) % 10;
    samples.push_back({(a + b) % 2 == 0 ? 1.0f : 0.0f, {}, {a, 100 + b}, {}});
  }
  return MakeData(std::move(samples), 0, 2, 2);
}

// Three rings around the origin.
LoadedData RingData(uint64_t n) {
  std::vector<MemoryDataset::Sample> samples;
  for (uint64_t i = 0; i < n; ++i) {
    const double angle = 6.283185307 * RandomUniform(kJobSeed, i);
    const double radius = 0.3 + static_cast<double>(i % 3);
    samples.push_back({static_cast<float>(i % 3),
                       {static_cast<float>(radius * std::cos(angle)), static_cast<float>(radius * std::sin(angle))},
                       {},
                       {}});
  }
  return MakeData(std::move(samples), 2, 0, 3);
}

class JobTest : public testing::Test {
 protected:
  absl::StatusOr<Summary> Run(const v1::Config& config, const LoadedData& data) {
    return RunJob(config, &client_, data, &time_, &stop_);
  }

  FakeClient client_;
  ManualTime time_;
  std::atomic<StopRequest> stop_{StopRequest::kNone};
};

TEST_F(JobTest, LeastSquaresFindsAPlane) {
  v1::Config config = MakeConfig(ModelConfig::LINEAR, 30);
  config.mutable_model()->set_loss(ModelConfig::SQUARED);
  config.mutable_model()->mutable_optimizer()->mutable_sgd();
  config.mutable_model()->mutable_optimizer()->set_learning_rate(0.1);
  const auto summary = Run(config, LineData(1000));
  ASSERT_TRUE(summary.ok()) << summary.status();
  // 30 epochs of 32 steps at rate 0.1 shrink the error by about (1 - 0.1)^960: to float's own rounding.
  EXPECT_LT(*summary->test->rmse, 1e-5);
  EXPECT_NEAR(client_.DenseValues("numeric")[0], 2, 1e-5);
  EXPECT_NEAR(client_.DenseValues("numeric")[1], -1, 1e-5);
  EXPECT_NEAR(client_.DenseValues("bias")[0], 0.5, 1e-5);
  EXPECT_EQ(summary->model, "linear");
  EXPECT_EQ(summary->samples, 30000u);
}

TEST_F(JobTest, AFactorizationMachineFindsWhatALinearModelCannot) {
  const LoadedData data = ParityData(2000);
  auto summary = Run(MakeConfig(ModelConfig::FM, 20), data);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_LT(summary->test->loss, 0.1);
  EXPECT_GT(*summary->test->auc, 0.999);
  EXPECT_EQ(summary->test->samples, 2000u);

  FakeClient other;
  summary = RunJob(MakeConfig(ModelConfig::LINEAR, 20), &other, data, &time_, &stop_);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_GT(summary->test->loss, 0.65);
}

TEST_F(JobTest, DeepFmLearnsParity) {
  v1::Config config = MakeConfig(ModelConfig::DEEPFM, 10);
  config.mutable_model()->add_hidden(16);
  const auto summary = Run(config, ParityData(2000));
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_LT(summary->test->loss, 0.1);
}

TEST_F(JobTest, AnMlpTellsRingsApart) {
  v1::Config config = MakeConfig(ModelConfig::MLP, 30);
  config.mutable_model()->add_hidden(32);
  config.mutable_model()->add_hidden(16);
  config.mutable_model()->mutable_optimizer()->mutable_adam();
  config.mutable_model()->mutable_optimizer()->set_learning_rate(0.01);
  const auto summary = Run(config, RingData(1200));
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_GT(*summary->test->accuracy, 0.99);
  EXPECT_LT(summary->train->loss, 0.1);
}

TEST_F(JobTest, TheSameRunWithoutPrefetchEndsInTheSameBits) {
  v1::Config config = MakeConfig(ModelConfig::DEEPFM, 2);
  config.mutable_model()->add_hidden(8);
  config.mutable_model()->set_dropout(0.2);
  config.mutable_worker()->set_prefetch_batches(0);
  const LoadedData data = ParityData(500);
  FakeClient a, b;
  const auto first = RunJob(config, &a, data, &time_, &stop_);
  const auto second = RunJob(config, &b, data, &time_, &stop_);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(a.DenseValues("mlp/0/weight"), b.DenseValues("mlp/0/weight"));
  EXPECT_EQ(a.RowValues("embedding", 3), b.RowValues("embedding", 3));
  EXPECT_EQ(first->test->loss, second->test->loss);
  for (const DelaySummary& delay : first->delays) {
    EXPECT_EQ(delay.max, 0u) << delay.table << ": alone, without prefetch, with a broadcast after every push";
  }
}

TEST_F(JobTest, WithoutBroadcastsItPullsOftenEnoughToLearn) {
  v1::Config config = MakeConfig(ModelConfig::LINEAR, 30);
  config.mutable_model()->set_loss(ModelConfig::SQUARED);
  config.mutable_model()->mutable_optimizer()->mutable_sgd();
  config.mutable_model()->mutable_optimizer()->set_learning_rate(0.05);
  config.mutable_worker()->set_pushes_in_flight_max(2);  // Dense values lack at most four own pushes.
  client_.BroadcastEvery(0);
  const auto summary = Run(config, LineData(1000));
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_LT(*summary->test->rmse, 1e-3);
  EXPECT_GE(client_.dense_pulls(), client_.pushes() / 5);
  ASSERT_FALSE(summary->delays.empty());
  EXPECT_GT(summary->delays[0].mean, 0);
}

TEST_F(JobTest, ReportsItsPhasesAndCountsEverySample) {
  v1::Config config = MakeConfig(ModelConfig::LINEAR, 1.5);
  config.mutable_train()->set_evaluate_train_samples_max(100);
  const auto summary = Run(config, ParityData(1000));
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->samples, 1500u);
  EXPECT_EQ(summary->train->samples, 100u);
  EXPECT_EQ(summary->device, "cpu");
  const std::vector<v1::WorkerProgress> reports = client_.reports();
  std::vector<v1::Phase> phases;
  for (const v1::WorkerProgress& report : reports) {
    if (phases.empty() || phases.back() != report.phase()) phases.push_back(report.phase());
  }
  EXPECT_EQ(phases,
            (std::vector<v1::Phase>{v1::PHASE_TRAINING, v1::PHASE_WAITING, v1::PHASE_EVALUATING, v1::PHASE_FINISHED}));
  for (const v1::WorkerProgress& report : reports) EXPECT_EQ(report.device(), "cpu");
  EXPECT_EQ(reports.back().samples(), 1500u);
  EXPECT_EQ(reports.back().samples_total(), 1500u);
  EXPECT_EQ(reports.back().clock(), client_.pushes());
  EXPECT_EQ(reports.back().evaluated(), 1100u);
  EXPECT_EQ(reports.back().evaluated_total(), 1100u);
  EXPECT_EQ(client_.awaited().size(), 1u);
}

TEST_F(JobTest, ReportsTheMetricThatTheModelIsJudgedBy) {
  v1::Config line = MakeConfig(ModelConfig::LINEAR, 1), rings = MakeConfig(ModelConfig::MLP, 1);
  line.mutable_model()->set_loss(ModelConfig::SQUARED);
  rings.mutable_model()->add_hidden(8);
  const auto reported = [this](const v1::Config& config, const LoadedData& data) {
    FakeClient client;
    const auto summary = RunJob(config, &client, data, &time_, &stop_);
    EXPECT_TRUE(summary.ok()) << summary.status();
    const std::vector<v1::WorkerProgress> reports = client.reports();
    EXPECT_EQ(reports.front().metric_name(), "") << "before the first step";
    EXPECT_GT(reports.back().metric(), 0);
    return reports.back().metric_name();
  };
  EXPECT_EQ(reported(line, LineData(1000)), "rmse");
  EXPECT_EQ(reported(rings, RingData(1000)), "accuracy");
  EXPECT_EQ(reported(MakeConfig(ModelConfig::FM, 1), ParityData(1000)), "auc");
}

TEST_F(JobTest, TheMetricIsOfWhatTheModelSaidBeforeItLearned) {
  // No two samples share a feature, so that nothing is known of one before its step, and all of it after.
  std::vector<MemoryDataset::Sample> samples;
  for (uint64_t i = 0; i < 960; ++i) samples.push_back({static_cast<float>(i % 2), {}, {i}, {}});
  v1::Config config = MakeConfig(ModelConfig::LINEAR, 1);
  config.mutable_model()->mutable_optimizer()->mutable_adagrad();
  config.mutable_model()->mutable_optimizer()->set_learning_rate(1);
  const auto summary = Run(config, MakeData(std::move(samples), 0, 1, 2));
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->train->auc, 1.0);
  // A guess's, but for the bias. With so many pairs of ranks its standard deviation is about sqrt(1 / (6 * 960)).
  const v1::WorkerProgress last = client_.reports().back();
  EXPECT_EQ(last.metric_name(), "auc");
  EXPECT_NEAR(last.metric(), 0.5, 6 * std::sqrt(1.0 / (6 * 960)));
}

TEST_F(JobTest, OnlyWorkerZeroWaitsAndEvaluates) {
  FakeClient second(8, 1);
  LoadedData data = ParityData(500);
  data.test = nullptr;
  const auto summary = RunJob(MakeConfig(ModelConfig::LINEAR, 1), &second, data, &time_, &stop_);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_FALSE(summary->train.has_value());
  EXPECT_TRUE(second.awaited().empty());
  EXPECT_EQ(second.reports().back().phase(), v1::PHASE_FINISHED);
}

TEST_F(JobTest, AnEmptyPartitionIsNoError) {
  LoadedData data = ParityData(100);
  data.train = std::make_unique<MemoryDataset>(std::vector<MemoryDataset::Sample>());
  const auto summary = Run(MakeConfig(ModelConfig::LINEAR, 1), data);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->samples, 0u);
  EXPECT_FALSE(summary->train.has_value());
  EXPECT_EQ(summary->test->samples, 100u);
}

TEST_F(JobTest, StopsAfterTheStepUnderWay) {
  stop_ = StopRequest::kQuit;
  const auto summary = Run(MakeConfig(ModelConfig::LINEAR, 1), ParityData(100));
  EXPECT_EQ(summary.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(summary.status().message(), "stopped after 0 steps");
  EXPECT_EQ(client_.reports().back().phase(), v1::PHASE_TRAINING);
}

// Its exit code was once 0, as if it had waited to the end.
TEST_F(JobTest, AWorkerThatIsToQuitWhileAnotherEvaluatesIsStopped) {
  v1::Config config = MakeConfig(ModelConfig::LINEAR, 1);
  config.mutable_train()->set_sharing(v1::TrainConfig::RANGES);
  for (const bool ends_in_time : {false, true}) {
    stop_ = StopRequest::kNone;
    bool leased = false;
    FakeClient client(8, 1);
    client.OnLeaseRanges([&](const v1::LeaseRangesRequest& request) {
      v1::LeaseRangesResponse response;
      if (request.wants_range() && !leased) {
        leased = true;
        response.mutable_lease()->set_incarnation(100);
        response.mutable_lease()->set_batches(static_cast<uint32_t>(request.plan().batches()));
      }
      response.set_complete(leased && !response.has_lease());
      if (request.finished()) stop_ = StopRequest::kQuit;
      response.set_over(request.finished() && ends_in_time);
      return response;
    });
    const auto summary = RunJob(config, &client, ParityData(100), &time_, &stop_);
    if (ends_in_time) {
      ASSERT_TRUE(summary.ok()) << summary.status();
      EXPECT_TRUE(summary->complete()) << WhatIsMissing(*summary);
      continue;
    }
    EXPECT_EQ(summary.status().code(), absl::StatusCode::kCancelled) << summary.status();
    EXPECT_THAT(std::string(summary.status().message()), HasSubstr("waited for another worker's evaluation"));
  }
}

// It once waited until the others had trained, and was killed in that.
TEST_F(JobTest, AWorkerThatIsToQuitWhileOthersTrainIsStopped) {
  client_.OnAwaitClock({}, [this] { stop_ = StopRequest::kQuit; });
  const auto summary = Run(MakeConfig(ModelConfig::LINEAR, 1), ParityData(100));
  EXPECT_EQ(summary.status().code(), absl::StatusCode::kCancelled) << summary.status();
  EXPECT_EQ(client_.reports().back().phase(), v1::PHASE_WAITING);
}

TEST_F(JobTest, ToldToFinishItEvaluatesWhatItHasAndSaysWhatIsMissing) {
  stop_ = StopRequest::kFinish;
  const auto summary = Run(MakeConfig(ModelConfig::LINEAR, 1), ParityData(100));
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_TRUE(summary->interrupted);
  EXPECT_FALSE(summary->complete());
  EXPECT_EQ(WhatIsMissing(*summary), "worker 0 trained 0 of 100 samples");
  EXPECT_EQ(summary->test->samples, 100u);
  EXPECT_EQ(client_.reports().back().phase(), v1::PHASE_FINISHED);
}

TEST_F(JobTest, SaysWhoseSamplesWereNotTrained) {
  client_.OnAwaitClock({"worker 1 (beta:2) trained 7 of 50 samples, last heard of 9.0 s ago"});
  const auto summary = Run(MakeConfig(ModelConfig::LINEAR, 1), ParityData(100));
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_FALSE(summary->complete());
  EXPECT_EQ(WhatIsMissing(*summary), "worker 1 (beta:2) trained 7 of 50 samples, last heard of 9.0 s ago");
  EXPECT_TRUE(summary->test.has_value()) << "it says what the model is worth all the same";
}

// The metrics that were reported were once of a model that was not the final one.
TEST_F(JobTest, EvaluatesAgainIfAnotherPushesDuringTheEvaluation) {
  LoadedData data = ParityData(100);
  std::atomic<int> evaluations{0};
  class Watched final : public Dataset {
   public:
    Watched(std::unique_ptr<const Dataset> data, std::function<void()> at)
        : data_(std::move(data)), at_(std::move(at)) {}
    uint64_t size() const override { return data_->size(); }
    void Read(std::span<const uint64_t> indices, Batch* batch) const override {
      at_();
      data_->Read(indices, batch);
    }

   private:
    const std::unique_ptr<const Dataset> data_;
    const std::function<void()> at_;
  };
  data.test = std::make_unique<Watched>(std::move(data.test), [&] {
    if (++evaluations == 1) client_.PushByAnother();
  });
  const auto summary = Run(MakeConfig(ModelConfig::LINEAR, 1), data);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(evaluations, 2);
  EXPECT_EQ(client_.awaited().size(), 2u) << "it waits for who pushes";
  EXPECT_TRUE(summary->complete());

  FakeClient restless;
  LoadedData more = ParityData(100);
  more.test = std::make_unique<Watched>(std::move(more.test), [&] { restless.PushByAnother(); });
  const auto changed = RunJob(MakeConfig(ModelConfig::LINEAR, 1), &restless, more, &time_, &stop_);
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_FALSE(changed->complete());
  EXPECT_THAT(WhatIsMissing(*changed), HasSubstr("others pushed during the evaluation"));
}

TEST_F(JobTest, SaysThatTheLossHasNotFallen) {
  const LoadedData data = ParityData(2000);  // Nothing that a linear model could learn.
  const auto linear = Run(MakeConfig(ModelConfig::LINEAR, 2), data);
  ASSERT_TRUE(linear.ok()) << linear.status();
  EXPECT_THAT(linear->loss_complaint, HasSubstr("the training loss has not fallen"));
  FakeClient other;
  const auto machine = RunJob(MakeConfig(ModelConfig::FM, 20), &other, data, &time_, &stop_);
  ASSERT_TRUE(machine.ok()) << machine.status();
  EXPECT_EQ(machine->loss_complaint, "");
}

TEST_F(JobTest, SaysThatTheLossHasNotFallenWhereAnotherWorkerTrainsHalfOfTheRanges) {
  v1::Config config = MakeConfig(ModelConfig::LINEAR, 2);
  config.mutable_train()->set_sharing(v1::TrainConfig::RANGES);
  constexpr uint32_t kBatches = 5;
  uint64_t next = 0;
  FakeClient client;
  client.OnLeaseRanges([&](const v1::LeaseRangesRequest& request) {
    v1::LeaseRangesResponse response;
    const bool left = next + kBatches <= request.plan().batches();
    if (request.wants_range() && left) {
      response.mutable_lease()->set_incarnation(100 + next);
      response.mutable_lease()->set_first_batch(next);
      response.mutable_lease()->set_batches(kBatches);
      next += 2 * kBatches;  // The other worker has those between.
    }
    const bool done = std::all_of(request.held().begin(), request.held().end(),
                                  [kBatches](const auto& held) { return held.done() == kBatches; });
    response.set_complete(!left && done);
    response.set_evaluate(request.finished());
    response.set_over(request.evaluated());
    return response;
  });
  const LoadedData data = ParityData(2000);  // Nothing that a linear model could learn.
  const auto summary = RunJob(config, &client, data, &time_, &stop_);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_LT(summary->samples, 3000u);
  EXPECT_THAT(summary->loss_complaint, HasSubstr("the training loss has not fallen"));
}

TEST_F(JobTest, GoesOnWithStepsAfterAPauseInWhichAnOperatorBeganThemAndPausesForNothingElse) {
  constexpr uint32_t kBatches = 4;
  constexpr uint64_t kPauseAfter = 5;  // Ranges; the rest of the last is given back.
  v1::Config config = MakeConfig(ModelConfig::LINEAR, 2);
  config.mutable_train()->set_sharing(v1::TrainConfig::RANGES);
  uint64_t next = 0, asked_in_pause = 0, contributions_before = 1;
  std::vector<uint64_t> again;  // Batches that were given back.
  std::map<Incarnation, v1::RangeLease> leased;
  client_.OnLeaseRanges([&](const v1::LeaseRangesRequest& request) {
    v1::LeaseRangesResponse response;
    response.set_orders(asked_in_pause > 3 ? 1 : 0);
    EXPECT_LE(request.orders(), response.orders());
    bool all_done = true;
    for (const auto& held : request.held()) {
      const v1::RangeLease& lease = leased.at(held.incarnation());
      all_done = all_done && held.done() == lease.batches();
      if (!held.given_back()) continue;
      for (uint64_t b = held.done(); b < lease.batches(); ++b) again.push_back(lease.first_batch() + b);
    }
    if (request.paused()) {
      EXPECT_FALSE(request.wants_range());
      response.set_pause(++asked_in_pause <= 3);
      if (!response.pause()) {
        response.set_orders(1);
        contributions_before = client_.contributions().size();
        v1::Consistency tokens;
        tokens.mutable_tokens()->set_batch(1);
        for (const char* table : {"linear", "bias"}) client_.ChangeConsistency(table, tokens);
      }
      return response;
    }
    const bool pauses = asked_in_pause == 0 && next >= kPauseAfter * kBatches;
    response.set_pause(pauses && request.orders() == 0);
    if (request.wants_range() && !pauses && (next < request.plan().batches() || !again.empty())) {
      v1::RangeLease& lease = *response.mutable_lease();
      lease.set_incarnation(100 + leased.size());
      if (again.empty()) {
        lease.set_first_batch(next);
        lease.set_batches(static_cast<uint32_t>(std::min<uint64_t>(kBatches, request.plan().batches() - next)));
        next += lease.batches();
      } else {
        lease.set_first_batch(again.back());
        lease.set_batches(1);
        again.pop_back();
      }
      leased[lease.incarnation()] = lease;
    }
    response.set_complete(!pauses && next == request.plan().batches() && again.empty() && all_done &&
                          !response.has_lease());
    response.set_evaluate(request.finished());
    response.set_over(request.evaluated());
    return response;
  });
  const auto summary = Run(config, ParityData(1000));
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_TRUE(summary->complete()) << WhatIsMissing(*summary);
  EXPECT_EQ(summary->samples, 2000u) << "each of them once, in each epoch";
  EXPECT_EQ(asked_in_pause, 4u);
  EXPECT_THAT(client_.described_after_orders(), testing::ElementsAre(0u, 1u)) << "it says so before it asks";
  EXPECT_EQ(contributions_before, 0u);
  EXPECT_EQ(summary->consistency.kind(), "tokens, steps of 1 gradients, staleness 4");
  EXPECT_GE(client_.contributions().size(), 64 - kPauseAfter * kBatches);
  EXPECT_FALSE(summary->delays.empty()) << "those from before the pause count";
}

TEST_F(JobTest, SynchronousStepsReadTheStepThatTheyContributeToAndTheLastIsAskedForAtTheEnd) {
  constexpr uint32_t kStepBatches = 3;
  v1::Config config = MakeConfig(ModelConfig::DEEPFM, 2);
  config.mutable_model()->add_hidden(8);
  config.mutable_train()->set_sharing(v1::TrainConfig::RANGES);
  config.mutable_train()->mutable_consistency()->mutable_sync()->set_batches(kStepBatches);
  client_.SetStepBatches(kStepBatches);
  StepByStep leases(kStepBatches);
  client_.OnLeaseRanges([&](const v1::LeaseRangesRequest& request) {
    EXPECT_EQ(request.plan().step_batches(), kStepBatches);
    EXPECT_EQ(request.plan().range_batches(), 1u);
    leases.NoteDone(request);
    v1::LeaseRangesResponse response;
    response.set_steps(leases.steps());
    leases.Lease(request, &response);
    response.set_complete(leases.done() == request.plan().batches());
    response.set_evaluate(request.finished());
    response.set_over(request.evaluated());
    return response;
  });
  const auto summary = Run(config, ParityData(1000));  // 2 x 32 batches, and 2 more so that the last step is whole.
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_TRUE(summary->complete());
  EXPECT_EQ(summary->samples, 2000u);
  EXPECT_EQ(summary->consistency.kind(), "sync, steps of 3 batches");
  EXPECT_TRUE(summary->delays.empty());
  const std::vector<v1::Contribution> contributions = client_.contributions();
  ASSERT_EQ(contributions.size(), 66u);
  uint64_t samples = 0;
  for (size_t i = 0; i < contributions.size(); ++i) {
    EXPECT_EQ(contributions[i].step(), i / kStepBatches);
    EXPECT_EQ(contributions[i].batch(), i % kStepBatches);
    samples += contributions[i].samples();
  }
  EXPECT_EQ(samples, 2000u);
  uint64_t steps_before = 0;
  bool every_shard = false;
  for (const StepRead& read : client_.step_reads()) {
    every_shard = every_shard || (read.every_shard && read.steps_min == 22);
    if (read.steps_min == 0) continue;
    EXPECT_GE(read.steps_min, steps_before);
    steps_before = read.steps_min;
  }
  EXPECT_TRUE(every_shard) << "the last step is applied when every shard is asked for it";
}

// A coordinator that was started again knows of steps what workers say of them: that of the last one they said nothing.
TEST_F(JobTest, ACoordinatorThatWasStartedAgainLearnsThatTheLastStepHasEnded) {
  constexpr uint32_t kStepBatches = 4;
  constexpr uint64_t kSteps = 8;
  v1::Config config = MakeConfig(ModelConfig::LINEAR, 1);
  config.mutable_train()->set_sharing(v1::TrainConfig::RANGES);
  config.mutable_train()->mutable_consistency()->mutable_sync()->set_batches(kStepBatches);
  client_.SetStepBatches(kStepBatches);
  StepByStep leases(kStepBatches);
  uint64_t steps = 0;
  bool started_again = false;
  client_.OnLeaseRanges([&](const v1::LeaseRangesRequest& request) {
    if (request.finished() && !started_again) {
      started_again = true;
      leases.ForgetDone();
      steps = 0;
    }
    if (!started_again) leases.NoteDone(request);
    steps = std::max({steps, request.steps(), leases.steps()});
    v1::LeaseRangesResponse response;
    response.set_steps(steps);
    leases.Lease(request, &response);
    response.set_complete(steps == kSteps);
    response.set_evaluate(request.finished());
    response.set_over(request.evaluated());
    return response;
  });
  const auto summary = Run(config, ParityData(1000));
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_TRUE(started_again);
  EXPECT_EQ(steps, kSteps);
  EXPECT_TRUE(summary->complete()) << WhatIsMissing(*summary);
  const std::vector<StepRead> reads = client_.step_reads();
  EXPECT_TRUE(std::any_of(reads.begin(), reads.end(), [](const StepRead& read) {
    return read.every_shard && read.steps_min == kSteps;
  })) << "the last step is applied before it is evaluated";
}

TEST_F(JobTest, TokensAreTheStepsThatAGradientWasComputedFrom) {
  v1::Config config = MakeConfig(ModelConfig::DEEPFM, 2);
  config.mutable_model()->add_hidden(8);
  config.mutable_train()->mutable_consistency()->mutable_tokens()->set_batch(2);
  config.mutable_train()->mutable_consistency()->mutable_tokens()->set_staleness(2);
  client_.SetStepBatches(2);
  const auto summary = Run(config, ParityData(1000));
  ASSERT_TRUE(summary.ok()) << summary.status();
  const std::vector<v1::Contribution> contributions = client_.contributions();
  ASSERT_EQ(contributions.size(), 64u);
  for (size_t i = 0; i < contributions.size(); ++i) {
    EXPECT_LE(contributions[i].step(), i / 2) << "no newer than what had been applied";
    EXPECT_GE(contributions[i].step() + 2, i / 2) << "nothing is read so far ahead that it is too old";
    EXPECT_GT(contributions[i].samples(), 0u);
  }
  EXPECT_GT(contributions.back().step(), 28u);
}

TEST_F(JobTest, BoundedStalenessIsObserved) {
  v1::Config config = MakeConfig(ModelConfig::DEEPFM, 2);
  config.mutable_model()->add_hidden(8);
  config.mutable_train()->mutable_consistency()->mutable_bounded()->set_staleness(3);
  std::vector<Clock> told;
  client_.OnAskClock(
      [&](const v1::AwaitClockRequest& request) {
        v1::AwaitClockResponse response;  // The others are two clocks ahead, or where they are wanted.
        const Clock others = std::max<Clock>(request.own_clock() + 2, request.clock());
        response.set_reached(true);
        response.set_lowest(others);
        response.set_newest(others);
        return response;
      },
      [&](Clock clock) { told.push_back(clock); });
  const auto summary = Run(config, ParityData(1000));
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->consistency.kind(), "bounded, staleness 3");
  EXPECT_LE(summary->consistency.behind_max(), 3u);
  ASSERT_FALSE(told.empty());
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
  const auto json = nlohmann::json::parse(SummaryJson(*summary));
  EXPECT_EQ(json["consistency"]["kind"], "bounded, staleness 3");
  EXPECT_LE(json["consistency"]["clocks_behind"]["max"], 3);
}

TEST_F(JobTest, MeasuresTheDelayOfEachTable) {
  v1::Config config = MakeConfig(ModelConfig::DEEPFM, 2);
  config.mutable_model()->add_hidden(8);
  config.mutable_worker()->set_prefetch_batches(3);
  const auto summary = Run(config, ParityData(2000));
  ASSERT_TRUE(summary.ok()) << summary.status();
  std::vector<std::string> tables;
  for (const DelaySummary& delay : summary->delays) {
    tables.push_back(delay.table);
    EXPECT_GT(delay.pushes, 0u) << delay.table;
    EXPECT_LE(delay.p50, delay.p90) << delay.table;
    EXPECT_LE(delay.p90, delay.max) << delay.table;
    EXPECT_LE(delay.max, 4u) << delay.table << ": three batches ahead, and what a shard has of them";
  }
  EXPECT_THAT(tables, testing::Contains("embedding"));
  EXPECT_THAT(tables, testing::Contains("mlp/0/weight"));
  const v1::WorkerProgress last = client_.reports().back();
  ASSERT_EQ(static_cast<size_t>(last.delays_size()), summary->delays.size());
  EXPECT_EQ(last.delays(0).table(), tables[0]);
}

TEST_F(JobTest, EndsWhenAPushFails) {
  client_.FailPushes(absl::InvalidArgumentError("the gradient of numeric is not finite"));
  const auto summary = Run(MakeConfig(ModelConfig::LINEAR, 1), ParityData(100));
  EXPECT_EQ(summary.status().message(), "the gradient of numeric is not finite");
}

TEST_F(JobTest, EndsWhenItsLeaseIsLost) {
  client_.FailHealth(absl::FailedPreconditionError("the lease has ended"));
  const auto summary = Run(MakeConfig(ModelConfig::LINEAR, 1), ParityData(100));
  EXPECT_EQ(summary.status().message(), "the lease has ended");
  EXPECT_EQ(client_.pushes(), 0u);
}

TEST_F(JobTest, SaysWhatToDoWhenTrainingDiverges) {
  v1::Config config = MakeConfig(ModelConfig::LINEAR, 100);
  config.mutable_model()->set_loss(ModelConfig::SQUARED);
  config.mutable_model()->mutable_optimizer()->mutable_sgd();
  config.mutable_model()->mutable_optimizer()->set_learning_rate(100);
  const auto summary = Run(config, LineData(1000));
  EXPECT_EQ(summary.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(summary.status().message()), HasSubstr("lower the learning rate"));
}

TEST_F(JobTest, RefusesAModelThatDoesNotFitTheDataBeforeItMakesTables) {
  const auto summary = Run(MakeConfig(ModelConfig::DLRM, 1), ParityData(100));
  EXPECT_EQ(summary.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(client_.reports().empty());
}

TEST_F(JobTest, BestReachableIsPassedOn) {
  LoadedData data = ParityData(100);
  data.best_reachable = 0.75;
  data.best_reachable_metric = "auc";
  const auto summary = Run(MakeConfig(ModelConfig::LINEAR, 1), data);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->best_reachable, 0.75);
  EXPECT_EQ(summary->best_reachable_metric, "auc");
}

TEST_F(JobTest, ResultsTellOfEveryStepAndWhereTheTimeWent) {
  v1::Config config = MakeConfig(ModelConfig::DEEPFM, 2);
  config.mutable_model()->add_hidden(16);
  config.mutable_worker()->set_results_dir(std::string(std::getenv("TEST_TMPDIR")) + "/job_results");
  auto results = Results::Open(config, client_.index(), "cpu", &time_);
  ASSERT_TRUE(results.ok()) << results.status();
  const auto start = std::chrono::steady_clock::now();
  const auto summary = RunJob(config, &client_, ParityData(2000), &time_, &stop_, results->get());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ASSERT_TRUE(summary.ok()) << summary.status();
  (*results)->Finish(*summary);

  double sum = 0;
  for (size_t i = 0; i < kStages; ++i) {
    EXPECT_GE(summary->stage_seconds[i], 0) << kStageNames[i];
    sum += summary->stage_seconds[i];
  }
  EXPECT_GT(summary->stage_seconds[static_cast<size_t>(Stage::kCompute)], 0);
  EXPECT_LE(sum, seconds);

  std::vector<nlohmann::json> lines;
  std::istringstream text(ReadWhole(config.worker().results_dir() + "/worker-0.jsonl"));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  // The clock stands still, so all steps come at the end.
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1]["clock"], client_.pushes());
  EXPECT_EQ(lines[1]["samples"], 4000);
  EXPECT_EQ(lines[1]["samples_total"], 4000);
  EXPECT_GT(lines[1]["loss"], 0);
  EXPECT_NEAR(lines[1]["metric"]["auc"], client_.reports().back().metric(), 1e-6) << "seven digits are written";
  EXPECT_EQ(lines[1]["stage_seconds"], lines[2]["stage_seconds"]);
  EXPECT_NEAR(lines[2]["test"]["auc"], *summary->test->auc, 1e-6) << "seven digits are written";
}

TEST_F(JobTest, TheTrainMetricsAreOfTheSampleOfAllPartitionsIfThereIsOne) {
  LoadedData data = ParityData(100);
  data.train_sample = std::move(data.test);
  std::vector<MemoryDataset::Sample> own;
  for (uint64_t i = 0; i < 40; ++i) own.push_back({1.0f, {}, {i % 10, 100 + i % 10}, {}});
  data.train = std::make_unique<MemoryDataset>(std::move(own));
  const auto summary = Run(MakeConfig(ModelConfig::LINEAR, 1), data);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->train->samples, 100u);
  EXPECT_TRUE(summary->train->auc.has_value()) << "its own partition has one class only";
}

}  // namespace
}  // namespace lodestone::worker
