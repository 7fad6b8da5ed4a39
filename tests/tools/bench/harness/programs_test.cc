#include "tools/bench/harness/programs.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::bench {
namespace {

using testing::HasSubstr;

constexpr char kResult[] = R"({"context": {"num_cpus": 2}, "benchmarks": [
  {"name": "PlainAdam/16", "run_name": "PlainAdam/16", "run_type": "iteration", "items_per_second": 8e8,
   "family_index": 1},
  {"name": "Update/adam/16", "run_name": "Update/adam/16", "run_type": "iteration", "items_per_second": 4e8,
   "family_index": 0},
  {"name": "PlainAdam/16", "run_name": "PlainAdam/16", "run_type": "iteration", "items_per_second": 2e8,
   "family_index": 1},
  {"name": "Update/adam/16", "run_name": "Update/adam/16", "run_type": "iteration", "items_per_second": 2e8,
   "family_index": 0},
  {"name": "Update/adam/16_mean", "run_name": "Update/adam/16", "run_type": "aggregate", "items_per_second": 3e8},
  {"name": "Find", "run_name": "Find", "run_type": "iteration", "real_time": 0.5, "time_unit": "us",
   "family_index": 2}]})";

TEST(RowsOfBenchmark, TakesRepetitionsForRunsAndPlainLoopsForLimits) {
  const auto rows = RowsOfBenchmark("optimizer", kResult);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 3);
  const Row& adam = (*rows)[0];
  EXPECT_EQ(adam.bench, "optimizer");
  EXPECT_EQ(adam.name, "optimizer/Update/adam/16");
  EXPECT_EQ(adam.runs, 2);
  EXPECT_DOUBLE_EQ(adam.Find(kRate)->median, 300);
  EXPECT_DOUBLE_EQ(adam.Find(kLimitRate)->median, 500);
  EXPECT_DOUBLE_EQ(adam.Find(kRatio)->min, 0.5);
  EXPECT_DOUBLE_EQ(adam.Find(kRatio)->max, 1);
  EXPECT_EQ((*rows)[1].Find(kRatio), nullptr);
  EXPECT_DOUBLE_EQ((*rows)[2].Find(kRate)->median, 2);  // 500 ns each.
}

TEST(RowsOfBenchmark, TakesThePlainLoopThatTookTurnsForTheLimit) {
  const auto rows = RowsOfBenchmark("optimizer", R"({"benchmarks": [
      {"run_name": "Table/sgd/64/manual_time", "items_per_second": 3e8, "plain_per_second": 4e8, "family_index": 0},
      {"run_name": "PlainSgd/64/manual_time", "items_per_second": 9e8, "family_index": 1}]})");
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_DOUBLE_EQ((*rows)[0].Find(kLimitRate)->median, 400);
  EXPECT_DOUBLE_EQ((*rows)[0].Find(kRatio)->median, 0.75);
  EXPECT_EQ((*rows)[1].Find(kRatio), nullptr);
}

TEST(RowsOfBenchmark, TellsABenchmarksOwnError) {
  const auto rows = RowsOfBenchmark("index", R"({"benchmarks": [{"name": "Find/8", "run_name": "Find/8",
      "run_type": "iteration", "error_occurred": true, "error_message": "no memory"}]})");
  EXPECT_EQ(rows.status().message(), "Find/8: no memory");
}

TEST(RowsOfBenchmark, RefusesWhatIsNoResult) {
  EXPECT_THAT(RowsOfBenchmark("index", "{").status().message(), HasSubstr("index_benchmark"));
  EXPECT_THAT(RowsOfBenchmark("index", "{}").status().message(), HasSubstr("benchmarks"));
}

}  // namespace
}  // namespace lodestone::bench
