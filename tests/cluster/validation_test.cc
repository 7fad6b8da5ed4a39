// Validation while training, with real processes.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/psctl_run.h"

namespace lodestone {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSeed = 23;

// Clicks of users, whose labels are hard to tell: a model soon learns them by heart.
std::string WriteClicks(const std::string& name, size_t lines, uint64_t stream) {
  const uint64_t seed = StreamSeed(kSeed, stream);
  std::ofstream file(TestFile(name));
  file << "user,item,hour,click\n";
  for (size_t i = 0; i < lines; ++i) {
    const uint64_t user = RandomBits(seed, 3 * i) % 40, item = RandomBits(seed, 3 * i + 1) % 200;
    const double hour = RandomNormal(seed, i);
    const double score = (user % 3 == 0 ? 1.0 : -0.5) + (item % 4 == 0 ? 0.8 : 0) + 0.3 * hour;
    const bool click = RandomUniform(seed, 9'000'000 + i) < 1 / (1 + std::exp(-score));
    file << "u" << user << ",i" << item << "," << hour << "," << (click ? 1 : 0) << "\n";
  }
  return TestFile(name);
}

std::string ConfigFile(uint32_t workers) {
  const std::string path = TestFile(absl::StrCat("validate-", workers, ".yaml"));
  std::ofstream(path) << "cluster: {servers: 2, workers: " << workers << ", shards: 8}\n"
                      << R"(model: {type: fm, embedding_dim: 8, optimizer: {adagrad: {}, learning_rate: 0.3}}
data: {format: csv, csv: {label: click, numeric: [hour], categorical: [user, item], group: user}}
train: {epochs: 1000, batch_size: 32, validate: {every_epochs: 0.5, patience: 3}}
)";
  return path;
}

struct Outcome {
  psctl::RunSummary summary;
  std::string output;
};

// Runs psctl local, which must end with exit code 0.
Outcome Train(uint32_t workers, std::vector<std::string> arguments) {
  const std::string summary = TestFile("validation.json");
  arguments.insert(arguments.begin(), {"local", ConfigFile(workers), "--summary", summary});
  PsctlRun run(arguments);
  EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
  const absl::StatusOr<psctl::RunSummary> read = psctl::ReadSummary(summary);
  EXPECT_TRUE(read.ok()) << read.status();
  return {read.value_or(psctl::RunSummary()), run.output()};
}

TEST(Validation, ARunWhoseMetricGetsNoBetterEndsEarlyAndWell) {
  const std::string train = WriteClicks("early.csv", 2000, 1);
  const Outcome run = Train(2, {"--set", "data.train=" + train, "--set", "data.test_share=0.25"});
  EXPECT_THAT(run.summary.stopped_early, HasSubstr("auc has not improved in 3 validations: the best was "));
  EXPECT_TRUE(run.summary.complete) << run.summary.missing;
  EXPECT_FALSE(run.summary.interrupted);
  EXPECT_LT(run.summary.samples, 1000 * 1500u);
  ASSERT_GE(run.summary.validations.size(), 4u);
  EXPECT_EQ(run.summary.per_worker.size(), 2u);
  const double held_out = MetricOf(run.summary.test, "samples");
  EXPECT_NEAR(held_out, 500, 100) << "the quarter that was held out";
  EXPECT_NEAR(MetricOf(run.summary.train, "samples"), 2000 - held_out, 0) << "of both partitions";
  EXPECT_GT(MetricOf(run.summary.test, "gauc"), 0);
  EXPECT_NE(MetricOf(run.summary.test, "gauc"), MetricOf(run.summary.test, "auc"));
  EXPECT_THAT(run.output, HasSubstr("psctl: validation 1: auc "));
  EXPECT_THAT(run.output, HasSubstr("psctl: training ends early: auc has not improved in 3 validations"));
  EXPECT_THAT(run.output, HasSubstr("stopped early   auc has not improved"));
}

// The metric of psctl evaluate on a file.
double Evaluated(const std::string& model, const std::string& data, const std::string& metric) {
  PsctlRun run({"evaluate", model, "--data", data});
  EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(run.output(), '\n'))) {
    const std::pair<std::string, std::string> named = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    if (named.first == metric) return std::stod(named.second);
  }
  ADD_FAILURE() << "no " << metric << " in " << run.output();
  return 0;
}

// With one worker nothing is pushed between a validation and the checkpoint of what it has read.
TEST(Validation, TheBestModelIsKeptJustAsItWasValidated) {
  const std::string train = WriteClicks("best.csv", 1500, 2), test = WriteClicks("best-test.csv", 500, 3);
  const std::string model = TestFile("best.safetensors");
  const Outcome run = Train(1, {"--set", "data.train=" + train, "--set", "data.test=" + test, "--set",
                                "train.validate.keep_best=true", "--model", model});
  EXPECT_THAT(run.summary.best_model, HasSubstr("best-"));
  const psctl::ValidationSummary* best = nullptr;
  for (const psctl::ValidationSummary& validation : run.summary.validations) {
    if (validation.best) best = &validation;
  }
  ASSERT_NE(best, nullptr);
  EXPECT_LT(best->number, run.summary.validations.back().number) << "the last one is not the best";
  for (const char* metric : {"auc", "gauc", "loss", "normalized_entropy", "calibration"}) {
    // The same values in another program: sums in another order.
    EXPECT_NEAR(Evaluated(model, test, metric), MetricOf(best->metrics, metric), 1e-5) << metric;
  }
  EXPECT_GT(MetricOf(best->metrics, "auc"), MetricOf(run.summary.test, "auc"));
  EXPECT_THAT(run.output, HasSubstr("the best model, of " + run.summary.best_model));
}

TEST(Validation, ABestModelThatHasNowhereToBeKeptIsRefusedBeforeTheRun) {
  PsctlRun run({"local", ConfigFile(1), "--set", "data.train=" + WriteClicks("nowhere.csv", 100, 4), "--set",
                "data.test_share=0.5", "--set", "train.validate.keep_best=true"});
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code"));
  EXPECT_THAT(run.output(), HasSubstr("add --model FILE.safetensors"));
}

TEST(Validation, WithoutHeldOutSamplesTheRunFailsWithWhatToDo) {
  PsctlRun run({"local", ConfigFile(1), "--set", "data.train=" + WriteClicks("none.csv", 100, 5)});
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 1"));
  EXPECT_THAT(run.output(), HasSubstr("train.validate needs held-out samples"));
}

}  // namespace
}  // namespace lodestone
