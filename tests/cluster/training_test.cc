// What the configurations must reach, with real processes: 2 ps and 2 workers, asynchronously, with broadcasts on.
#include <cstdlib>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cluster/psctl_run.h"

namespace lodestone {
namespace {

// Tests on the public data sets of which LODESTONE_DATA names the folder.
class RealData : public testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("LODESTONE_DATA");
    if (folder == nullptr || *folder == '\0') GTEST_SKIP() << "LODESTONE_DATA does not name the folder of data sets";
    folder_ = folder;
  }
  // Trains `config` on the files `train` and `test` of the data folder.
  psctl::RunSummary Train(const std::string& config, const std::string& train, const std::string& test,
                          const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"--set", "data.train=" + folder_ + "/" + train, "--set",
                                          "data.test=" + folder_ + "/" + test};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return TrainLocally(config, arguments);
  }
  std::string folder_;
};

// 1 ps and 1 worker, or 4 ps and 3 workers: the result must not depend on it.
const std::vector<std::vector<std::string>> kOtherClusters = {
    {"--set", "cluster.servers=1", "--set", "cluster.workers=1"},
    {"--set", "cluster.servers=4", "--set", "cluster.workers=3"}};

TEST_F(RealData, A9aReachesTheAccuracyAndAucOfAdagrad) {
  const psctl::RunSummary summary = Train("a9a", "a9a/a9a", "a9a/a9a.t");
  EXPECT_GE(MetricOf(summary.test, "accuracy"), 0.846);
  EXPECT_GE(MetricOf(summary.test, "auc"), 0.900);
}

TEST_F(RealData, A9aReachesTheSameOnOtherClusters) {
  for (const std::vector<std::string>& cluster : kOtherClusters) {
    const psctl::RunSummary summary = Train("a9a", "a9a/a9a", "a9a/a9a.t", cluster);
    EXPECT_GE(MetricOf(summary.test, "accuracy"), 0.846);
    EXPECT_GE(MetricOf(summary.test, "auc"), 0.900);
  }
}

TEST_F(RealData, AgaricusIsAlmostSeparated) {
  const psctl::RunSummary summary = Train("agaricus", "agaricus/agaricus.txt.train", "agaricus/agaricus.txt.test");
  EXPECT_GE(MetricOf(summary.test, "accuracy"), 0.995);
}

TEST_F(RealData, CriteoLinearReachesTheLossOfLogisticRegression) {
  const psctl::RunSummary summary =
      Train("criteo_linear", "criteo/criteo_first8k_train.tsv", "criteo/criteo_first8k_test.tsv");
  EXPECT_LE(MetricOf(summary.test, "loss"), 0.490);
}

TEST_F(RealData, CriteoDeepfmDoesNotOverfitFewRows) {
  const psctl::RunSummary summary =
      Train("criteo_deepfm", "criteo/criteo_first8k_train.tsv", "criteo/criteo_first8k_test.tsv");
  EXPECT_LE(MetricOf(summary.test, "loss"), 0.500);
}

TEST_F(RealData, CriteoWideAndDeepLearnsAsMuch) {
  const psctl::RunSummary summary =
      Train("criteo_widedeep", "criteo/criteo_first8k_train.tsv", "criteo/criteo_first8k_test.tsv");
  EXPECT_LE(MetricOf(summary.test, "loss"), 0.500);
}

TEST_F(RealData, CriteoDcnLearnsAsMuchStackedAndParallel) {
  for (const char* const structure : {"parallel", "stacked"}) {
    const psctl::RunSummary summary =
        Train("criteo_dcn", "criteo/criteo_first8k_train.tsv", "criteo/criteo_first8k_test.tsv",
              {"--set", std::string("model.cross.structure=") + structure});
    EXPECT_LE(MetricOf(summary.test, "loss"), 0.500) << structure;
  }
}

TEST_F(RealData, MnistReachesTheAccuracyOfAnMlpInFiveEpochs) {
  const psctl::RunSummary summary =
      Train("mnist", "mnist/train-images-idx3-ubyte.gz", "mnist/t10k-images-idx3-ubyte.gz");
  EXPECT_EQ(summary.samples, 5u * 60'000u);
  EXPECT_GE(MetricOf(summary.test, "accuracy"), 0.975);
}

TEST_F(RealData, OptdigitsReachesTheAccuracyOfAnMlp) {
  const psctl::RunSummary summary = Train("optdigits", "optdigits/optdigits.tra", "optdigits/optdigits.tes");
  EXPECT_GE(MetricOf(summary.test, "accuracy"), 0.945);
}

TEST(GeneratedData, RatingsReachThePlantedNoise) {
  const psctl::RunSummary summary = TrainLocally("ratings", {});
  EXPECT_LE(MetricOf(summary.test, "rmse"), 1.05 * MetricOf(summary.best_reachable, "rmse"));
}

TEST(GeneratedData, DeepfmOnClicksReachesAlmostTheTeachersAuc) {
  const psctl::RunSummary summary = TrainLocally("local", {});
  EXPECT_GE(MetricOf(summary.test, "auc"), 0.97 * MetricOf(summary.best_reachable, "auc"));
}

TEST(GeneratedData, DlrmOnClicksReachesAlmostTheTeachersAuc) {
  const psctl::RunSummary summary = TrainLocally("dlrm", {});
  EXPECT_GE(MetricOf(summary.test, "auc"), 0.96 * MetricOf(summary.best_reachable, "auc"));
}

}  // namespace
}  // namespace lodestone
