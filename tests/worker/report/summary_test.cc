#include "worker/report/summary.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Summary, HoldsWhatIsKnownAndNothingElse) {
  Summary summary;
  summary.model = "deepfm";
  summary.samples = 1000;
  summary.seconds = 4;
  summary.staleness_pushes = 1.5;
  summary.stage_seconds = {1, 0.5, 2, 0.25};
  EXPECT_EQ(SummaryJson(summary),
            "{\n  \"model\": \"deepfm\",\n  \"samples\": 1000,\n  \"worker_samples\": 1000,\n  \"seconds\": 4,\n"
            "  \"samples_per_second\": 250,\n  \"staleness_pushes\": 1.5,\n"
            "  \"stage_seconds\": {\"input\": 1, \"pull\": 0.5, \"compute\": 2, \"push\": 0.25}\n}\n");
  summary.train = EvaluationMetrics::Result{10, 0.5, 0.75, 0.8125, std::nullopt};
  summary.test = EvaluationMetrics::Result{20, 0.25, std::nullopt, std::nullopt, 1.25};
  summary.best_reachable = 0.9;
  summary.best_reachable_metric = "auc";
  EXPECT_EQ(SummaryJson(summary),
            "{\n  \"model\": \"deepfm\",\n  \"samples\": 1000,\n  \"worker_samples\": 1000,\n  \"seconds\": 4,\n"
            "  \"samples_per_second\": 250,\n  \"staleness_pushes\": 1.5,\n"
            "  \"stage_seconds\": {\"input\": 1, \"pull\": 0.5, \"compute\": 2, \"push\": 0.25},\n"
            "  \"train\": {\"samples\": 10, \"loss\": 0.5, \"accuracy\": 0.75, \"auc\": 0.8125},\n"
            "  \"test\": {\"samples\": 20, \"loss\": 0.25, \"rmse\": 1.25},\n"
            "  \"best_reachable\": {\"auc\": 0.9}\n}\n");
}

TEST(Summary, StaysJsonWhenALossIsNotANumber) {
  Summary summary;
  summary.test = EvaluationMetrics::Result{1, std::nan(""), std::nullopt, std::nullopt, std::nullopt};
  EXPECT_NE(SummaryJson(summary).find("\"loss\": null"), std::string::npos);
}

TEST(WriteFileAtomically, ReplacesTheFileAndLeavesNoOther) {
  const std::string folder = std::string(std::getenv("TEST_TMPDIR")) + "/summary";
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  const std::string path = folder + "/result.json";
  ASSERT_TRUE(WriteFileAtomically(path, "one").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "two").ok());
  EXPECT_EQ(ReadFile(path), "two");
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_EQ(rmdir(folder.c_str()), 0) << "the folder is not empty";
}

TEST(WriteFileAtomically, NamesThePathThatItCannotWrite) {
  const absl::Status status = WriteFileAtomically("/nowhere/at/all.json", "x");
  EXPECT_NE(status.message().find("/nowhere/at/all.json"), std::string::npos);
  EXPECT_NE(status.message().find("No such file"), std::string::npos);
}

}  // namespace
}  // namespace lodestone::worker
