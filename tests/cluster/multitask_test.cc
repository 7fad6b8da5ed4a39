// Several labels, from files to scores: real processes train clicks and conversions, and each way to judge and to
// predict gives the same numbers for each label.
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/numpy_model.h"
#include "tests/cluster/psctl_run.h"

namespace lodestone {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSeed = 24;
constexpr uint32_t kUsers = 60, kItems = 40;

// A click if user and item have one taste; a conversion of a click if the price is low, or of another user anyhow;
// without a click the conversion is not known.
void WriteImpressions(const std::string& path, uint64_t first, uint32_t count) {
  std::ofstream file(path);
  file << "click,conversion,user,item,price\n";
  for (uint64_t n = first; n < first + count; ++n) {
    const uint64_t user = RandomBits(kSeed, 4 * n) % kUsers, item = RandomBits(kSeed, 4 * n + 1) % kItems;
    const double price = RandomUniform(kSeed, 4 * n + 2);
    const bool click = (user % 2 == item % 2) != (RandomUniform(kSeed, 4 * n + 3) < 0.05);
    file << click << "," << (click ? absl::StrCat(price < 0.5 || user % 5 == 0 ? 1 : 0) : "") << ",u" << user << ",i"
         << item << "," << price << "\n";
  }
}

std::string RunPsctl(const std::vector<std::string>& arguments) {
  PsctlRun run(arguments);
  EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
  return run.output();
}

constexpr char kConfig[] = R"(
cluster: {servers: 2, workers: 2, shards: 8}
model:
  type: multitask
  embedding_dim: 8
  embedding_dims: {item: 4}
  hidden: [32]
  multitask: {structure: mmoe, experts: 3, tower_hidden: [8]}
  optimizer: {adagrad: {}, learning_rate: 0.1}
data:
  format: csv
  csv: {labels: [click, conversion], categorical: [user, item], numeric: [price]}
  numeric: standardize
train:
  epochs: 6
  batch_size: 64
  validate: {every_epochs: 2, metric: conversion/auc}
)";

class MultitaskCluster : public testing::Test {
 protected:
  MultitaskCluster() {
    std::printf("seed %d\n", static_cast<int>(kSeed));
    std::ofstream(TestFile("multitask.yaml")) << kConfig;
    WriteImpressions(TestFile("train.csv"), 0, 12'000);
    WriteImpressions(TestFile("test.csv"), 1'000'000, 2000);
  }
  static std::vector<std::string> Local(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"local", TestFile("multitask.yaml"),
                                          "--set", "data.train=" + TestFile("train.csv"),
                                          "--set", "data.test=" + TestFile("test.csv")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
};

TEST_F(MultitaskCluster, LearnsBothLabelsAndIsJudgedAndPredictsForEach) {
  const std::string model = TestFile("multitask.safetensors"), summary = TestFile("multitask.json");
  RunPsctl(Local({"--model", model, "--summary", summary}));
  const auto run = psctl::ReadSummary(summary);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_GT(MetricOf(run->test, "click/auc"), 0.9);
  EXPECT_GT(MetricOf(run->test, "conversion/auc"), 0.9);

  // Judged by psctl as by the worker.
  const std::string judged = RunPsctl({"evaluate", model, "--data", TestFile("test.csv")});
  for (const std::string metric : {"loss", "click/auc", "click/loss", "conversion/auc", "conversion/loss"}) {
    const size_t at = judged.find(absl::StrCat("\n", metric, " "));
    ASSERT_NE(at, std::string::npos) << judged;
    EXPECT_NEAR(std::stod(judged.substr(at + metric.size() + 2)), MetricOf(run->test, metric), 2e-3) << metric;
  }

  // One score a label, of files without labels too.
  RunPsctl({"predict", model, "--data", TestFile("test.csv"), "--out", TestFile("scores.csv")});
  const std::vector<std::string> scores = Lines(TestFile("scores.csv")), rows = Lines(TestFile("test.csv"));
  ASSERT_EQ(scores.size(), rows.size());
  EXPECT_EQ(scores[0], "row,click,conversion");
  std::ofstream unlabelled(TestFile("unlabelled.csv"));
  for (const std::string& row : rows) unlabelled << row.substr(row.find(',', row.find(',') + 1) + 1) << "\n";
  unlabelled.close();
  RunPsctl({"predict", model, "--data", TestFile("unlabelled.csv"), "--out", TestFile("unlabelled_scores.csv")});
  EXPECT_EQ(Lines(TestFile("unlabelled_scores.csv")), scores);

  if (!HasNumpy()) GTEST_SKIP() << "/usr/bin/python3 has no numpy";
  const std::vector<std::string> by_numpy = ByNumpy(model, TestFile("test.csv"));
  ASSERT_EQ(by_numpy.size() + 1, scores.size());
  for (size_t i = 0; i < by_numpy.size(); ++i) {
    const std::vector<std::string> own = absl::StrSplit(scores[i + 1], ','), other = absl::StrSplit(by_numpy[i], ' ');
    ASSERT_EQ(other.size(), 2u);
    for (size_t k = 0; k < 2; ++k) EXPECT_NEAR(std::stod(other[k]), std::stod(own[k + 1]), 1e-4) << i;
  }
}

TEST_F(MultitaskCluster, AModelThatIsTrainedOnKeepsItsLabels) {
  const std::string model = TestFile("kept.safetensors");
  RunPsctl(Local({"--model", model, "--set", "train.epochs=0.2"}));
  RunPsctl(Local({"--from", model, "--set", "train.epochs=0.2"}));
  PsctlRun others(Local({"--from", model, "--set", "data.csv.labels=[conversion, click]"}));
  EXPECT_NE(others.WaitForEnd(), "ended");
  EXPECT_THAT(others.output(), HasSubstr("the model was trained on the labels [click, conversion]"));
  PsctlRun structure(Local({"--from", model, "--set", "model.multitask.structure=shared_bottom"}));
  EXPECT_NE(structure.WaitForEnd(), "ended");
  EXPECT_THAT(structure.output(), HasSubstr("model.multitask.structure: mmoe"));
}

}  // namespace
}  // namespace lodestone
