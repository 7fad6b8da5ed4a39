// Several labels trained by RunJob, on a cluster that is a FakeClient.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/telemetry/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda.h"
#include "tests/worker/client/fake_client.h"
#include "tests/worker/data/memory_dataset.h"
#include "worker/training/job.h"

namespace lodestone::worker {
namespace {

using testing::Contains;
using testing::HasSubstr;
using v1::MultitaskConfig;

constexpr uint64_t kRelatedSeed = 23;
constexpr uint64_t kRelated = 3000;
constexpr uint32_t kRelatedValues = 12;

// Two fields of a dozen values each with a hidden taste. A click follows from both tastes; a conversion from the same,
// and from a number; it is known of clicked samples only, which are about a half.
std::vector<MemoryDataset::Sample> RelatedSamples(uint64_t first, uint64_t n) {
  const auto taste = [](Key key) { return RandomUniform(kRelatedSeed, key) < 0.5; };
  std::vector<MemoryDataset::Sample> samples;
  for (uint64_t i = first; i < first + n; ++i) {
    const Key a = RandomBits(kRelatedSeed, 1000 + 3 * i) % kRelatedValues;
    const Key b = 100 + RandomBits(kRelatedSeed, 1001 + 3 * i) % kRelatedValues;
    const float number = 2 * static_cast<float>(RandomUniform(kRelatedSeed, 1002 + 3 * i)) - 1;
    const bool click = taste(a) == taste(b), conversion = click && (taste(a) == (number > 0));
    samples.push_back({.label = 0,
                       .numeric = {number},
                       .keys = {a, b},
                       .values = {},
                       .labels = {click ? 1.0f : 0.0f, click ? (conversion ? 1.0f : 0.0f) : std::nanf("")}});
  }
  return samples;
}

// A hundred of them that all lack the label of this index, and those after it.
std::vector<MemoryDataset::Sample> WithoutLabelsFrom(size_t first) {
  std::vector<MemoryDataset::Sample> samples = RelatedSamples(kRelated, 100);
  for (MemoryDataset::Sample& sample : samples) {
    std::fill(sample.labels.begin() + static_cast<ptrdiff_t>(first), sample.labels.end(), std::nanf(""));
  }
  return samples;
}

class MultitaskTrainingTest : public testing::TestWithParam<MultitaskConfig::Structure> {
 protected:
  MultitaskTrainingTest() {
    std::printf("seed %llu\n", static_cast<unsigned long long>(kRelatedSeed));
    v1::ModelConfig& model = *config_.mutable_model();
    model.set_type(v1::ModelConfig::MULTITASK);
    model.set_embedding_dim(4);
    model.add_hidden(24);
    model.mutable_multitask()->set_structure(GetParam());
    model.mutable_multitask()->add_tower_hidden(8);
    model.mutable_optimizer()->mutable_adam();
    model.mutable_optimizer()->set_learning_rate(0.01f);
    config_.mutable_train()->set_epochs(12);
    config_.mutable_train()->set_batch_size(32);
    data_.schema.field_count = 2;
    data_.schema.numeric_count = 1;
    data_.schema.train_samples = kRelated;
    data_.schema.labels = {{"click", kRelated, kRelated / 2, kRelated, kRelated / 2},
                           {"conversion", kRelated / 2, kRelated / 4, kRelated / 2, kRelated / 4}};
    data_.train = std::make_unique<MemoryDataset>(RelatedSamples(0, kRelated));
    data_.test = std::make_unique<MemoryDataset>(RelatedSamples(kRelated, 1000));
    client_.OnValidate([this](const v1::ValidateRequest& request) -> absl::StatusOr<v1::ValidateResponse> {
      v1::ValidateResponse response;
      response.set_claimed(request.has_claim());
      if (request.has_result()) results_.push_back(request.result());
      return response;
    });
  }

  absl::StatusOr<Summary> Run() { return RunJob(config_, &client_, data_, &time_, &stop_); }
  std::vector<std::string> WarningsOfAValidatedRun() {
    config_.mutable_train()->set_epochs(1);
    config_.mutable_train()->mutable_validate();
    std::mutex mu;
    std::vector<std::string> warnings;
    SetLogSink([&](LogLevel level, const std::string&, const std::string& text) {
      const std::lock_guard<std::mutex> lock(mu);
      if (level == LogLevel::WARN) warnings.push_back(text);
    });
    const auto summary = Run();
    SetLogSink(nullptr);
    EXPECT_TRUE(summary.ok()) << summary.status();
    return warnings;
  }
  static double Of(const EvaluationMetrics::Result& result, const std::string& name) {
    for (const NamedMetric& metric : MetricsOf(result)) {
      if (metric.name == name) return metric.value;
    }
    return std::nan("");
  }

  v1::Config config_;
  LoadedData data_;
  FakeClient client_;
  ManualTime time_;
  std::atomic<StopRequest> stop_{StopRequest::kNone};
  std::vector<v1::Validation> results_;
};

TEST_P(MultitaskTrainingTest, LearnsRelatedLabelsOfWhichOneIsMostlyMissing) {
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->model, "multitask");
  EXPECT_GT(Of(*summary->test, "click/auc"), 0.99);
  EXPECT_GT(Of(*summary->test, "conversion/auc"), 0.95);
  EXPECT_NEAR(summary->test->loss, Of(*summary->test, "click/loss") + 0.5 * Of(*summary->test, "conversion/loss"),
              0.1 * Of(*summary->test, "conversion/loss"))
      << "about a half of the samples have a conversion";
  EXPECT_EQ(summary->test->samples, 1000u);
}

// A device's outputs come to the host's memory for the metrics.
TEST_P(MultitaskTrainingTest, LearnsOnADeviceToo) {
  const auto cuda = kernels::CreateCuda({});
  if (!cuda.ok()) GTEST_SKIP() << "cuda: " << cuda.status().message();
  config_.mutable_train()->mutable_validate();
  const auto summary = RunJob(config_, &client_, data_, &time_, &stop_, /*results=*/nullptr, cuda->get());
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_GT(Of(*summary->test, "click/auc"), 0.99);
  EXPECT_GT(Of(*summary->test, "conversion/auc"), 0.95);
  ASSERT_FALSE(results_.empty());
  EXPECT_NEAR(results_.back().judged_by().value(), summary->test->loss, 1e-5) << "the last validation is of the end";
}

TEST_P(MultitaskTrainingTest, ValidationsAreJudgedByTheLoss) {
  config_.mutable_train()->set_epochs(1);
  config_.mutable_train()->mutable_validate();
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_EQ(results_[0].judged_by().name(), "loss");
  EXPECT_TRUE(results_[0].lower_is_better());
}

TEST_P(MultitaskTrainingTest, ValidationsAreJudgedByTheMetricThatIsNamed) {
  config_.mutable_train()->set_epochs(1);
  config_.mutable_train()->mutable_validate()->set_metric("conversion/auc");
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_EQ(results_[0].judged_by().name(), "conversion/auc");
  EXPECT_FALSE(results_[0].lower_is_better());
}

TEST_P(MultitaskTrainingTest, HeldOutSamplesThatAllLackALabelAreWarnedOf) {
  data_.test = std::make_unique<MemoryDataset>(WithoutLabelsFrom(1));
  EXPECT_THAT(WarningsOfAValidatedRun(), Contains(HasSubstr("label=conversion samples=100")));
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_TRUE(std::isfinite(results_[0].judged_by().value()));
}

TEST_P(MultitaskTrainingTest, HeldOutSamplesWithoutAnyLabelHaveALossThatIsNoNumber) {
  data_.test = std::make_unique<MemoryDataset>(WithoutLabelsFrom(0));
  const std::vector<std::string> warnings = WarningsOfAValidatedRun();
  EXPECT_THAT(warnings, Contains(HasSubstr("label=click samples=100")));
  EXPECT_THAT(warnings, Contains(HasSubstr("label=conversion samples=100")));
  ASSERT_EQ(results_.size(), 1u);
  EXPECT_EQ(results_[0].judged_by().name(), "loss");
  EXPECT_TRUE(std::isnan(results_[0].judged_by().value())) << "0 would stay the best result";
}

TEST_P(MultitaskTrainingTest, AMetricThatThereIsNotIsRefused) {
  config_.mutable_train()->mutable_validate()->set_metric("auc");
  EXPECT_THAT(std::string(Run().status().message()),
              HasSubstr("the model has no metric \"auc\" to be judged by; take one of loss, click/loss,"));
}

INSTANTIATE_TEST_SUITE_P(Structures, MultitaskTrainingTest,
                         testing::Values(MultitaskConfig::SHARED_BOTTOM, MultitaskConfig::MMOE),
                         [](const auto& test) { return MultitaskConfig::Structure_Name(test.param); });

}  // namespace
}  // namespace lodestone::worker
