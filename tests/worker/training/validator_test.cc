// Validation while RunJob trains, on a cluster that is a FakeClient.
#include "worker/training/validator.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/worker/client/fake_client.h"
#include "tests/worker/data/memory_dataset.h"
#include "tests/worker/report/event_file.h"
#include "worker/training/job.h"

namespace lodestone::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

constexpr uint64_t kClicksSeed = 17;
constexpr uint64_t kClicks = 640;
constexpr uint32_t kClicksBatch = 32;  // 20 steps an epoch.

std::vector<MemoryDataset::Sample> Clicks(uint64_t n) {
  std::vector<MemoryDataset::Sample> samples;
  for (uint64_t i = 0; i < n; ++i) {
    const Key a = RandomBits(kClicksSeed, 2 * i) % 10, b = RandomBits(kClicksSeed, 2 * i + 1) % 10;
    samples.push_back({(a + b) % 3 == 0 ? 1.0f : 0.0f, {}, {a, 100 + b}, {}});
  }
  return samples;
}

class ValidatorTest : public testing::Test {
 protected:
  ValidatorTest() {
    config_.mutable_model()->set_type(v1::ModelConfig::FM);
    config_.mutable_model()->set_embedding_dim(4);
    config_.mutable_train()->set_epochs(10);
    config_.mutable_train()->set_batch_size(kClicksBatch);
    config_.mutable_train()->mutable_validate();
    data_.schema.field_count = 2;
    data_.schema.train_samples = kClicks;
    data_.schema.class_names = {"0", "1"};
    data_.schema.class_counts = {kClicks - kClicks / 3, kClicks / 3};
    data_.train = std::make_unique<MemoryDataset>(Clicks(kClicks));
    data_.test = std::make_unique<MemoryDataset>(Clicks(kClicks));
    client_.OnValidate([this](const v1::ValidateRequest& request) { return Answer(request); });
  }

  // As a coordinator would, with the results' order deciding which is the best.
  absl::StatusOr<v1::ValidateResponse> Answer(const v1::ValidateRequest& request) {
    v1::ValidateResponse response;
    if (request.has_claim()) {
      response.set_claimed(request.claim() > state_.claimed());
      response.set_cluster_samples(1000 * (request.claim() - 1));
      if (response.claimed()) state_.set_claimed(request.claim());
    } else if (request.has_result()) {
      *state_.add_results() = request.result();
      response.set_best(request.result().number() <= best_to_);
      if (request.result().number() == stop_at_) state_.set_stopped("auc has not improved");
    } else if (request.has_kept()) {
      state_.set_kept_before(state_.kept());
      state_.set_kept(request.kept().checkpoint());
    }
    *response.mutable_state() = state_;
    return response;
  }

  absl::StatusOr<Summary> Run() { return RunJob(config_, &client_, data_, &time_, &stop_); }
  std::vector<uint64_t> Clocks() const {
    std::vector<uint64_t> clocks;
    for (const v1::Validation& result : state_.results()) clocks.push_back(result.clock());
    return clocks;
  }

  v1::Config config_;
  LoadedData data_;
  FakeClient client_;
  ManualTime time_;
  std::atomic<StopRequest> stop_{StopRequest::kNone};
  v1::ValidationState state_;
  uint64_t best_to_ = 100;
  uint64_t stop_at_ = 0;
};

TEST_F(ValidatorTest, ComesAtEachMarkOfSteps) {
  config_.mutable_train()->set_epochs(2);
  config_.mutable_train()->mutable_validate()->set_every_steps(15);
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_THAT(Clocks(), ElementsAre(15, 30));
  EXPECT_TRUE(summary->complete());
  EXPECT_EQ(summary->validations.results_size(), 2);
  EXPECT_EQ(state_.results(1).samples(), 1000u) << "of all workers, as the coordinator has heard";
}

TEST_F(ValidatorTest, ComesAtEachEpochUnlessSaidOtherwise) {
  config_.mutable_train()->set_epochs(3);
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(Clocks(), ElementsAre(20, 40, 60));
}

TEST_F(ValidatorTest, ComesAtPartsOfAnEpoch) {
  config_.mutable_train()->set_epochs(1);
  config_.mutable_train()->mutable_validate()->set_every_epochs(0.25);
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(Clocks(), ElementsAre(5, 10, 15, 20));
}

// Every second range is another worker's, and an epoch is over when all have trained it.
TEST_F(ValidatorTest, WhereRangesAreLeasedAnEpochIsThatOfAllWorkers) {
  constexpr uint32_t kBatches = 5;
  config_.mutable_train()->set_epochs(3);
  config_.mutable_train()->set_sharing(v1::TrainConfig::RANGES);
  config_.mutable_cluster()->set_workers(2);
  uint64_t next = 0;
  client_.OnLeaseRanges([&](const v1::LeaseRangesRequest& request) {
    v1::LeaseRangesResponse response;
    const bool left = next < request.plan().batches();
    if (request.wants_range() && left) {
      response.mutable_lease()->set_incarnation(100 + next);
      response.mutable_lease()->set_first_batch(next);
      response.mutable_lease()->set_batches(kBatches);
      next += 2 * kBatches;
    }
    response.set_complete(!left && std::all_of(request.held().begin(), request.held().end(),
                                               [kBatches](const auto& held) { return held.done() == kBatches; }));
    response.set_evaluate(request.finished());
    response.set_over(request.evaluated());
    return response;
  });
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->samples, 3 * kClicks / 2);
  EXPECT_THAT(Clocks(), ElementsAre(11, 21)) << "the third ends with the other worker's last batch";
}

TEST_F(ValidatorTest, ComesAtEachMarkOfTime) {
  config_.mutable_train()->set_epochs(1);
  config_.mutable_train()->mutable_validate()->set_every_seconds(10);
  client_.OnValidate([this](const v1::ValidateRequest& request) { return Answer(request); });
  time_.AdvanceMs(50'000);  // Before the first step, which does not count.
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(Clocks(), ElementsAre()) << "no time passes";
  ValidationSchedule schedule(config_.train().validate(), 100);
  EXPECT_EQ(schedule.Passed(1, 9.9, 32), 0u);
  EXPECT_EQ(schedule.Passed(1, 35, 32), 3u);
}

TEST_F(ValidatorTest, FindsWhatTheEvaluationOfTheSameValuesFinds) {
  config_.mutable_train()->set_epochs(2);
  config_.mutable_train()->mutable_validate()->set_every_epochs(2);  // At the very end.
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  ASSERT_EQ(state_.results_size(), 1);
  const v1::Validation& result = state_.results(0);
  EXPECT_EQ(result.validated(), kClicks);
  EXPECT_EQ(result.judged_by().name(), "auc");
  EXPECT_EQ(result.judged_by().value(), *summary->test->auc);
  EXPECT_EQ(result.samples(), 2 * kClicks) << "the coordinator has heard of none yet";
  ASSERT_GT(result.metrics_size(), 0);
  EXPECT_EQ(result.metrics(0).name(), "loss");
  EXPECT_DOUBLE_EQ(result.metrics(0).value(), summary->test->loss);
  for (ShardId shard = 0; shard < 8; ++shard) {
    EXPECT_EQ(result.versions(static_cast<int>(shard)), client_.VersionOf(shard)) << "shard " << shard;
  }
}

TEST_F(ValidatorTest, ReadsAllValuesInOnePull) {
  config_.mutable_train()->set_epochs(1);
  config_.mutable_train()->set_evaluate_train_samples_max(0);
  FakeClient without;
  v1::Config plain = config_;
  plain.mutable_train()->clear_validate();
  ASSERT_TRUE(RunJob(plain, &without, data_, &time_, &stop_).ok());
  ASSERT_TRUE(Run().ok());
  ASSERT_EQ(state_.results_size(), 1);
  EXPECT_EQ(client_.row_pulls(), without.row_pulls() + 1);
}

TEST_F(ValidatorTest, ReadsNoMoreSamplesThanItMayAndTheSameEachTime) {
  config_.mutable_train()->set_epochs(2);
  config_.mutable_train()->mutable_validate()->set_samples_max(100);
  ASSERT_TRUE(Run().ok());
  ASSERT_EQ(state_.results_size(), 2);
  EXPECT_EQ(state_.results(0).validated(), 80u) << "each eighth of 640";
  EXPECT_EQ(state_.results(1).validated(), 80u);
}

TEST_F(ValidatorTest, WhatAnotherWorkerHasClaimedIsNotDoneAgain) {
  config_.mutable_train()->set_epochs(4);
  state_.set_claimed(3);  // By one that is ahead.
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(Clocks(), ElementsAre(80));
  size_t claims = 0;
  for (const v1::ValidateRequest& request : client_.validations()) claims += request.has_claim();
  EXPECT_EQ(claims, 2u) << "after the answer to the first it knows which are gone";
}

TEST_F(ValidatorTest, TrainingEndsEarlyAndWellWhenTheCoordinatorSaysSo) {
  stop_at_ = 3;
  config_.mutable_train()->mutable_validate()->set_patience(2);
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_THAT(Clocks(), ElementsAre(20, 40, 60));
  EXPECT_EQ(client_.pushes(), 60u) << "no further step";
  EXPECT_EQ(summary->samples, 3 * kClicks);
  EXPECT_EQ(summary->samples_total, 10 * kClicks);
  EXPECT_EQ(summary->stopped_early, "auc has not improved");
  EXPECT_FALSE(summary->interrupted);
  EXPECT_TRUE(summary->complete());
  EXPECT_TRUE(summary->test.has_value()) << "it evaluates";
  EXPECT_TRUE(client_.reports().back().stopped_early()) << "so that no other worker waits for the rest";
  for (const v1::ValidateRequest& request : client_.validations()) {
    if (request.has_result()) {
      EXPECT_EQ(request.patience(), 2u);
    }
  }
}

TEST_F(ValidatorTest, AWorkerThatDoesNotValidateEndsEarlyToo) {
  config_.mutable_train()->clear_validate();
  client_.StopEarly();
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(client_.pushes(), 0u);
  EXPECT_TRUE(summary->complete());
  EXPECT_NE(summary->stopped_early, "");
}

TEST_F(ValidatorTest, WithoutTheCoordinatorTrainingGoesOn) {
  client_.OnValidate([](const v1::ValidateRequest&) { return absl::UnavailableError("away"); });
  config_.mutable_train()->set_epochs(2);
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_TRUE(summary->complete());
  EXPECT_EQ(client_.pushes(), 40u);
}

TEST_F(ValidatorTest, TheBestIsKeptUnderANameAndTheOneBeforeTheLastIsRemoved) {
  best_to_ = 3;
  config_.mutable_train()->set_epochs(4);
  config_.mutable_train()->mutable_validate()->set_keep_best(true);
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_THAT(client_.checkpoints(),
              ElementsAre(Pair("best-1-1", ""), Pair("best-2-1", ""), Pair("best-3-1", "best-1-1")));
  EXPECT_EQ(summary->validations.kept(), "best-3-1");
}

TEST_F(ValidatorTest, KeepsNothingUnlessAsked) {
  config_.mutable_train()->set_epochs(2);
  ASSERT_TRUE(Run().ok());
  EXPECT_TRUE(client_.checkpoints().empty());
}

TEST_F(ValidatorTest, NeedsHeldOutSamples) {
  data_.test = nullptr;
  const auto summary = Run();
  EXPECT_EQ(summary.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(summary.status().message()), HasSubstr("data.test_share"));
}

TEST_F(ValidatorTest, AMetricThatTheSamplesCannotHaveIsRefusedBeforeTheTraining) {
  config_.mutable_train()->mutable_validate()->set_metric("gauc");
  const auto summary = Run();
  EXPECT_EQ(summary.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(summary.status().message()), HasSubstr("data.csv.group"));
  EXPECT_EQ(state_.claimed(), 0u);
}

TEST_F(ValidatorTest, ResultsHaveALineAndScalarsForEach) {
  config_.mutable_train()->set_epochs(2);
  config_.mutable_worker()->set_results_dir(std::string(std::getenv("TEST_TMPDIR")) + "/validator_results");
  auto results = Results::Open(config_, client_.index(), "cpu", &time_);
  ASSERT_TRUE(results.ok()) << results.status();
  ASSERT_TRUE(RunJob(config_, &client_, data_, &time_, &stop_, results->get()).ok());
  std::vector<nlohmann::json> lines;
  std::istringstream text(ReadWhole(config_.worker().results_dir() + "/worker-0.jsonl"));
  for (std::string line; std::getline(text, line);) {
    nlohmann::json json = nlohmann::json::parse(line);
    if (json["event"] == "validation") lines.push_back(std::move(json));
  }
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1]["number"], 2);
  EXPECT_EQ(lines[1]["clock"], 40);
  EXPECT_EQ(lines[1]["best"], true);
  EXPECT_NEAR(lines[1]["validation"]["auc"], state_.results(1).judged_by().value(), 1e-6) << "seven digits";
}

}  // namespace
}  // namespace lodestone::worker
