#include "worker/report/summary.h"

#include <cmath>
#include <string>

#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

TEST(Summary, HoldsWhatIsKnownAndNothingElse) {
  Summary summary;
  summary.model = "deepfm";
  summary.device = "cuda:1 (NVIDIA H200)";
  summary.samples = 1000;
  summary.seconds = 4;
  summary.staleness_pushes = 1.5;
  summary.stage_seconds = {1, 0.5, 2, 0.25};
  EXPECT_EQ(
      SummaryJson(summary),
      "{\n  \"model\": \"deepfm\",\n  \"device\": \"cuda:1 (NVIDIA H200)\",\n  \"samples\": 1000,\n"
      "  \"worker_samples\": 1000,\n  \"seconds\": 4,\n"
      "  \"samples_per_second\": 250,\n  \"staleness_pushes\": 1.5,\n"
      "  \"stage_seconds\": {\"input\": 1, \"pull\": 0.5, \"compute\": 2, \"push\": 0.25},\n  \"complete\": true\n}\n");
  summary.train = EvaluationMetrics::Result{10, 0.5, 0.75, 0.8125, std::nullopt};
  summary.test = EvaluationMetrics::Result{20, 0.25, std::nullopt, std::nullopt, 1.25};
  summary.best_reachable = 0.9;
  summary.best_reachable_metric = "auc";
  EXPECT_EQ(
      SummaryJson(summary),
      "{\n  \"model\": \"deepfm\",\n  \"device\": \"cuda:1 (NVIDIA H200)\",\n  \"samples\": 1000,\n"
      "  \"worker_samples\": 1000,\n  \"seconds\": 4,\n"
      "  \"samples_per_second\": 250,\n  \"staleness_pushes\": 1.5,\n"
      "  \"stage_seconds\": {\"input\": 1, \"pull\": 0.5, \"compute\": 2, \"push\": 0.25},\n  \"complete\": true,\n"
      "  \"train\": {\"samples\": 10, \"loss\": 0.5, \"accuracy\": 0.75, \"auc\": 0.8125},\n"
      "  \"test\": {\"samples\": 20, \"loss\": 0.25, \"rmse\": 1.25},\n"
      "  \"best_reachable\": {\"auc\": 0.9}\n}\n");
}

TEST(Summary, SaysWhatIsMissingOfARunThatIsNotComplete) {
  Summary summary;
  summary.samples = summary.samples_total = 10;
  EXPECT_TRUE(summary.complete());
  EXPECT_EQ(WhatIsMissing(summary), "");
  summary.samples = 3;
  summary.interrupted = true;
  summary.untrained = {"worker 1 (b:2) trained 7 of 50 samples, last heard of 9.0 s ago"};
  EXPECT_FALSE(summary.complete());
  EXPECT_EQ(WhatIsMissing(summary),
            "worker 0 trained 3 of 10 samples; worker 1 (b:2) trained 7 of 50 samples, last heard of 9.0 s ago");
  const std::string json = SummaryJson(summary);
  EXPECT_NE(json.find("\"complete\": false,\n  \"interrupted\": true,\n  \"missing\": \"worker 0 trained 3"),
            std::string::npos)
      << json;
}

TEST(Summary, HasTheDelayOfEachTableAndTheWarning) {
  Summary summary;
  summary.delays = {{"bias", 8, 1.5, 1, 1, 2, 3}};
  summary.loss_complaint = "the training \"loss\" has not fallen";
  const std::string json = SummaryJson(summary);
  EXPECT_NE(json.find("\"delay\": {\"bias\": {\"pushes\": 8, \"mean\": 1.5, \"own\": 1, \"p50\": 1, \"p90\": 2, "
                      "\"max\": 3}}"),
            std::string::npos)
      << json;
  EXPECT_NE(json.find("\"warning\": \"the training \\\"loss\\\" has not fallen\""), std::string::npos) << json;
}

TEST(Summary, StaysJsonWhenALossIsNotANumber) {
  Summary summary;
  summary.test = EvaluationMetrics::Result{1, std::nan(""), std::nullopt, std::nullopt, std::nullopt};
  EXPECT_NE(SummaryJson(summary).find("\"loss\": null"), std::string::npos);
}

TEST(Summary, ARunThatEndedEarlyIsCompleteAndSaysWhy) {
  Summary summary;
  summary.samples = 3;
  summary.samples_total = 10;
  summary.stopped_early = "auc has not improved in 2 validations";
  v1::Validation& validation = *summary.validations.add_results();
  validation.set_number(1);
  validation.set_clock(20);
  validation.set_samples(640);
  validation.set_seconds(1.5);
  v1::ValidationMetric& metric = *validation.add_metrics();
  metric.set_name("auc");
  metric.set_value(0.75);
  *summary.validations.mutable_best() = validation;
  summary.validations.set_kept("best-1-7");
  EXPECT_TRUE(summary.complete());
  EXPECT_EQ(WhatIsMissing(summary), "");
  const std::string json = SummaryJson(summary);
  for (const char* part :
       {"\"complete\": true", "\"stopped_early\": \"auc has not improved in 2 validations\"",
        "\"validations\": [\n    {\"number\": 1, \"worker\": 0, \"steps\": 20, \"samples\": 640, \"seconds\": 1.5, "
        "\"best\": true, \"auc\": 0.75}]",
        "\"best_model\": \"best-1-7\""}) {
    EXPECT_NE(json.find(part), std::string::npos) << part << " in " << json;
  }
  summary.untrained = {"worker 1 died"};
  EXPECT_FALSE(summary.complete()) << "another lacks samples that it was to train";
}

}  // namespace
}  // namespace lodestone::worker
