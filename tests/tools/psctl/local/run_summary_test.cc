#include "tools/psctl/local/run_summary.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::psctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;
using testing::SizeIs;

std::string Written(const std::string& text) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/summary.json";
  std::ofstream(path) << text;
  return path;
}

RunSummary Example() {
  RunSummary summary;
  summary.config = "configs/local.yaml";
  summary.model = "deepfm";
  summary.samples = 2000;
  summary.seconds = 4;
  summary.samples_per_second = 500;
  summary.staleness_pushes = 1.5;
  summary.delays = {{"bias", 100, 1, 0.25, 1, 2, 4}, {"embedding", 100, 2.5, 2, 2, 3, 7}};
  summary.servers = 2;
  summary.workers = 2;
  summary.train = {{"loss", 0.25}};
  summary.test = {{"loss", 0.5}, {"auc", 0.75}};
  summary.best_reachable = {{"auc", 0.8}};
  return summary;
}

TEST(ReadSummary, ReadsWhatAWorkerWrites) {
  const absl::StatusOr<RunSummary> summary = ReadSummary(Written(
      R"({"model": "mf", "device": "cpu", "samples": 10, "seconds": 0.5, "samples_per_second": 20, "staleness_pushes": 1.25,
                  "train": {"loss": 1.5}, "test": {"loss": 2.5, "rmse": null}, "best_reachable": {"rmse": 0.3}})"));
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->model, "mf");
  EXPECT_EQ(summary->device, "cpu");
  EXPECT_EQ(summary->samples, 10u);
  EXPECT_EQ(summary->seconds, 0.5);
  EXPECT_EQ(summary->staleness_pushes, 1.25);
  EXPECT_THAT(summary->train, ElementsAre(Pair("loss", 1.5)));
  ASSERT_EQ(summary->test.size(), 2u);
  EXPECT_EQ(summary->test[1].first, "rmse");
  EXPECT_TRUE(std::isnan(summary->test[1].second));
  EXPECT_THAT(summary->best_reachable, ElementsAre(Pair("rmse", 0.3)));
}

TEST(ReadSummary, NamesTheFileThatIsMissingOrBroken) {
  EXPECT_THAT(std::string(ReadSummary("/nowhere/summary.json").status().message()), HasSubstr("/nowhere/summary.json"));
  EXPECT_THAT(std::string(ReadSummary(Written("{\"samples\": ")).status().message()), HasSubstr("no JSON object"));
  EXPECT_THAT(std::string(ReadSummary(Written("[1]")).status().message()), HasSubstr("no JSON object"));
  EXPECT_THAT(std::string(ReadSummary(Written(R"({"samples": "many", "seconds": 1})")).status().message()),
              HasSubstr("lacks samples or seconds"));
}

TEST(Combine, AddsSamplesAndTakesTheSlowestWorkersTime) {
  RunSummary first = Example();
  RunSummary second = Example();
  second.samples = 6000;
  second.seconds = 8;
  second.staleness_pushes = 3.5;
  second.test.clear();
  const RunSummary all = Combine({first, second});
  EXPECT_EQ(all.samples, 8000u);
  EXPECT_EQ(all.seconds, 8);
  EXPECT_EQ(all.samples_per_second, 1000);
  EXPECT_EQ(all.staleness_pushes, 3.0) << "(1.5 * 2000 + 3.5 * 6000) / 8000";
  EXPECT_EQ(all.workers, 2u);
  EXPECT_EQ(all.test, first.test);
}

TEST(Combine, WeighsDelaysByPushesAndKeepsTheGreatestQuantiles) {
  RunSummary first = Example(), second = Example();
  second.delays = {{"bias", 300, 3, 0.25, 2, 9, 10}};
  const RunSummary all = Combine({first, second});
  ASSERT_THAT(all.delays, SizeIs(2));
  EXPECT_EQ(all.delays[0].pushes, 400u);
  EXPECT_EQ(all.delays[0].mean, 2.5) << "(1 * 100 + 3 * 300) / 400";
  EXPECT_EQ(all.delays[0].own, 0.25);
  EXPECT_EQ(all.delays[0].p50, 2u);
  EXPECT_EQ(all.delays[0].p90, 9u);
  EXPECT_EQ(all.delays[0].max, 10u);
  EXPECT_EQ(all.delays[1].mean, 2.5);
}

TEST(Combine, IsCompleteIfAllWorkersAre) {
  RunSummary first = Example(), second = Example();
  EXPECT_TRUE(Combine({first, second}).complete);
  second.complete = false;
  second.missing = "worker 0 trained 3 of 7 samples";
  second.warning = "the training loss has not fallen";
  const RunSummary all = Combine({first, second});
  EXPECT_FALSE(all.complete);
  EXPECT_EQ(all.missing, second.missing);
  EXPECT_EQ(all.warning, second.warning);
}

TEST(Combine, OfNoWorkAtAllIsFinite) {
  RunSummary idle = Example();
  idle.samples = 0;
  idle.seconds = 0;
  const RunSummary all = Combine({idle, idle});
  EXPECT_EQ(all.samples_per_second, 0);
  EXPECT_EQ(all.staleness_pushes, 0);
}

TEST(Combine, KeepsWhatEachWorkerDidAndAddsUpWhereTheTimeWent) {
  RunSummary first = Example();
  first.stage_seconds = {{"pull", 0.5}, {"compute", 3}};
  RunSummary second = Example();
  second.samples = 6000;
  second.seconds = 8;
  second.stage_seconds = {{"pull", 2.5}, {"compute", 5}, {"push", 0.25}};
  const RunSummary all = Combine({first, second});
  EXPECT_THAT(all.stage_seconds, ElementsAre(Pair("pull", 3), Pair("compute", 8), Pair("push", 0.25)));
  ASSERT_THAT(all.per_worker, SizeIs(2));
  EXPECT_EQ(all.per_worker[1].samples, 6000u);
  EXPECT_EQ(all.per_worker[1].seconds, 8);
  EXPECT_EQ(all.per_worker[0].stage_seconds, first.stage_seconds);
}

TEST(ToJson, ReadsBackToTheSame) {
  RunSummary summary = Combine({Example(), Example()});
  summary.servers = 2;
  summary.samples = 2000;
  summary.stage_seconds = {{"compute", 3.5}};
  summary.per_worker[1].stage_seconds = {{"compute", 1.5}};
  summary.per_worker[1].device = "cuda:0 (NVIDIA H200)";
  summary.results = "runs/1";
  summary.complete = false;
  summary.interrupted = true;
  summary.missing = "worker 1 trained 7 of 50 samples";
  summary.warning = "the training loss has not fallen";
  summary.stopped_early = "auc has not improved";
  summary.best_model = "best-1-7";
  summary.validations = {{1, 0, 20, 640, 1.5, true, {{"loss", 0.5}, {"auc", 0.75}}}, {2, 1, 40, 1280, 3, false, {}}};
  const absl::StatusOr<RunSummary> again = ReadSummary(Written(ToJson(summary)));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->results, "runs/1");
  EXPECT_FALSE(again->complete);
  EXPECT_TRUE(again->interrupted);
  EXPECT_EQ(again->missing, summary.missing);
  EXPECT_EQ(again->warning, summary.warning);
  EXPECT_EQ(again->stopped_early, summary.stopped_early);
  EXPECT_EQ(again->best_model, summary.best_model);
  ASSERT_THAT(again->validations, SizeIs(2));
  EXPECT_TRUE(again->validations[0].best);
  EXPECT_EQ(again->validations[0].metrics, summary.validations[0].metrics);
  EXPECT_EQ(again->validations[1].number, 2u);
  EXPECT_EQ(again->validations[1].worker, 1u);
  EXPECT_EQ(again->validations[1].steps, 40u);
  EXPECT_EQ(again->validations[1].samples, 1280u);
  EXPECT_EQ(again->validations[1].seconds, 3);
  ASSERT_THAT(again->delays, SizeIs(2));
  EXPECT_EQ(again->delays[1].table, "embedding");
  EXPECT_EQ(again->delays[1].mean, 2.5);
  EXPECT_EQ(again->delays[1].own, 2);
  EXPECT_EQ(again->delays[1].p90, 3u);
  EXPECT_EQ(again->delays[1].max, 7u);
  ASSERT_THAT(again->per_worker[0].delays, SizeIs(2));
  EXPECT_EQ(again->stage_seconds, summary.stage_seconds);
  ASSERT_THAT(again->per_worker, SizeIs(2));
  EXPECT_EQ(again->per_worker[0].device, "");
  EXPECT_EQ(again->per_worker[1].device, "cuda:0 (NVIDIA H200)");
  EXPECT_EQ(again->per_worker[1].samples, 2000u);
  EXPECT_EQ(again->per_worker[1].seconds, 4);
  EXPECT_EQ(again->per_worker[1].staleness_pushes, 1.5);
  EXPECT_EQ(again->per_worker[1].stage_seconds, summary.per_worker[1].stage_seconds);
  EXPECT_EQ(again->config, "configs/local.yaml");
  EXPECT_EQ(again->model, "deepfm");
  EXPECT_EQ(again->samples, 2000u);
  EXPECT_EQ(again->servers, 2u);
  EXPECT_EQ(again->workers, 2u);
  EXPECT_EQ(again->test, Example().test);
  EXPECT_EQ(again->best_reachable, Example().best_reachable);
}

TEST(ToJson, WritesWhatIsNotFiniteAsNullAndNoEmptyGroup) {
  RunSummary summary = Example();
  summary.test = {{"loss", std::numeric_limits<double>::infinity()}};
  summary.best_reachable.clear();
  summary.config = "a \"b\" \\ \xff.yaml";
  const std::string json = ToJson(summary);
  EXPECT_THAT(json, HasSubstr("\"loss\": null"));
  EXPECT_THAT(json, Not(HasSubstr("best_reachable")));
  EXPECT_THAT(json, HasSubstr(R"(a \"b\" \\)"));
}

TEST(ToTable, TellsTheShareOfTheBestReachable) {
  const std::string table = ToTable(Example());
  EXPECT_THAT(table, HasSubstr("auc 0.8000, of which the model reached 93.8 %"));
  EXPECT_THAT(table, HasSubstr("2 ps, 2 workers"));
  EXPECT_THAT(table, HasSubstr("2,000 in 4.0 s: 500/s"));
}

TEST(ToTable, TellsEachWorkersRateWhereTheTimeWentAndWhereTheResultsAre) {
  RunSummary first = Example();
  first.stage_seconds = {{"input", 0.4}, {"pull", 0.001}, {"compute", 3}, {"push", std::nan("")}};
  RunSummary second = first;
  second.samples = 6000;
  RunSummary all = Combine({first, second});
  all.results = "runs/1";
  const std::string table = ToTable(all);
  EXPECT_THAT(table, HasSubstr("worker 0        2,000 in 4.0 s: 500/s   delay 2.50   compute 75 %, input 10 %\n"));
  EXPECT_THAT(table, HasSubstr("worker 1        6,000 in 4.0 s: 1,500/s   delay 2.50   compute 75 %, input 10 %\n"));
  EXPECT_THAT(table, HasSubstr("time went to    compute 75 %, input 10 %\n"));
  EXPECT_THAT(table, HasSubstr("results         runs/1 (tensorboard --logdir runs/1)\n"));
}

TEST(ToTable, NamesTheDevicesThatComputedIfAnyIsNotTheCpu) {
  RunSummary first = Example(), second = Example(), third = Example();
  first.device = second.device = third.device = "cpu";
  EXPECT_THAT(ToTable(Combine({first, second})), Not(HasSubstr("device")));
  second.device = "cuda:1 (NVIDIA H200)";
  third.device = "cuda:1 (NVIDIA H200)";
  EXPECT_THAT(ToTable(Combine({first, second, third})), HasSubstr("device          cpu, cuda:1 (NVIDIA H200)\n"));
  EXPECT_THAT(ToTable(Combine({second})), HasSubstr("device          cuda:1 (NVIDIA H200)\n"));
}

TEST(ToTable, TellsTheDelayOfTheTableThatHasMostAndWhatIsWrong) {
  RunSummary summary = Example();
  EXPECT_THAT(ToTable(summary),
              HasSubstr("delay           2.50 updates between a step's read and its own (2.00 the same "
                        "worker's); p50 2, p90 3, max 7; table embedding\n"));
  EXPECT_THAT(ToTable(summary), Not(HasSubstr("incomplete")));
  summary.missing = "worker 1 trained 7 of 50 samples";
  summary.warning = "the training loss has not fallen";
  EXPECT_THAT(ToTable(summary), HasSubstr("incomplete      worker 1 trained 7 of 50 samples\n"));
  EXPECT_THAT(ToTable(summary), HasSubstr("warning         the training loss has not fallen\n"));
}

TEST(ToTable, OfOneWorkerHasNoRowForIt) {
  EXPECT_THAT(ToTable(Combine({Example()})), Not(HasSubstr("worker 0")));
  EXPECT_THAT(ToTable(Combine({Example()})), Not(HasSubstr("time went to"))) << "nobody has told";
}

TEST(ToTable, TellsAnErrorsMultipleOfTheBestReachable) {
  RunSummary summary = Example();
  summary.test = {{"rmse", 0.33}};
  summary.best_reachable = {{"rmse", 0.3}};
  EXPECT_THAT(ToTable(summary), HasSubstr("rmse 0.3000, the model's is 1.100 times that"));
}

TEST(ToTable, TellsTheLastAndTheBestValidationAndWhyTrainingEndedEarly) {
  RunSummary summary = Example();
  summary.stopped_early = "auc has not improved in 1 validation";
  summary.best_model = "best-1-7";
  summary.validations = {{1, 0, 20, 640, 1.5, true, {{"auc", 0.75}}}, {2, 1, 40, 1280, 3, false, {{"auc", 0.7}}}};
  const std::string table = ToTable(summary);
  EXPECT_THAT(table, HasSubstr("best validated  auc 0.7500   (validation 1, at 640 samples, 1.5 s)"));
  EXPECT_THAT(table, HasSubstr("last validated  auc 0.7000   (validation 2, at 1,280 samples, 3.0 s)"));
  EXPECT_THAT(table, HasSubstr("stopped early   auc has not improved in 1 validation"));
  EXPECT_THAT(table, HasSubstr("best model      best-1-7"));
}

TEST(Combine, TakesTheValidationsOfTheWorkerThatKnowsMost) {
  RunSummary first = Example(), second = Example();
  first.validations.resize(1);
  second.validations.resize(2);
  second.stopped_early = "auc has not improved";
  second.best_model = "best-2-7";
  const RunSummary all = Combine({first, second});
  EXPECT_THAT(all.validations, SizeIs(2));
  EXPECT_EQ(all.stopped_early, "auc has not improved");
  EXPECT_EQ(all.best_model, "best-2-7");
}

}  // namespace
}  // namespace lodestone::psctl
