#include "tools/bench/harness/row.h"

#include <cstdlib>
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/bench/harness/table.h"

namespace lodestone::bench {
namespace {

using testing::HasSubstr;

Row Example() {
  return {.bench = "dense",
          .name = "dense/push/1MiB/depth8/clients1",
          .unit = "GB/s",
          .cpu_unit = "s/GB",
          .runs = 5,
          .values = {{kRate, {3.5, 3.25, 4}}, {kClientCpu, {0.25, 0.2, 0.3}}, {kRatio, {0.875, 0.75, 1}}}};
}

Row Short() {
  return {.bench = "train",
          .name = "train/x",
          .unit = "samples/s",
          .cpu_unit = "",
          .runs = 5,
          .values = {{kRate, {12345, 12000, 13000}}}};
}

TEST(Row, ComesBackFromItsJsonAsItWas) {
  const std::map<std::string, std::string> machine = {{"CPU", "fast \"one\""}};
  const absl::StatusOr<Report> report =
      ParseReport(ToJson(machine) + "\n" + ToJson(Example()) + "\n\n" + ToJson(Short()) + "\n", "x");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->machine.at("CPU"), "fast \"one\"");
  ASSERT_EQ(report->rows.size(), 2);
  const Row& row = report->rows[0];
  EXPECT_EQ(row.bench, "dense");
  EXPECT_EQ(row.name, Example().name);
  EXPECT_EQ(row.unit, "GB/s");
  EXPECT_EQ(row.cpu_unit, "s/GB");
  EXPECT_EQ(row.runs, 5);
  ASSERT_EQ(row.values.size(), 3);
  EXPECT_EQ(row.Find(kRate)->median, 3.5);
  EXPECT_EQ(row.Find(kRate)->min, 3.25);
  EXPECT_EQ(row.Find(kRate)->max, 4);
  EXPECT_EQ(row.Find(kP50), nullptr);
  EXPECT_EQ(report->rows[1].cpu_unit, "");
}

TEST(ParseReport, NamesTheLineThatIsNoRow) {
  const std::string good = ToJson(Example()) + "\n";
  EXPECT_THAT(ParseReport(good + "{\"bench\": 3}\n", "old.json").status().message(), HasSubstr("old.json:2:"));
  EXPECT_THAT(ParseReport(good + good + "nonsense\n", "old.json").status().message(), HasSubstr("old.json:3:"));
  EXPECT_THAT(ParseReport("", "old.json").status().message(), HasSubstr("no rows"));
}

TEST(ReadReport, NamesTheFileThatIsNotThere) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/none.json";
  EXPECT_TRUE(absl::IsNotFound(ReadReport(path).status()));
  EXPECT_THAT(ReadReport(path).status().message(), HasSubstr(path));
}

TEST(ToTable, AlignsColumnsAndLeavesOutThoseThatNobodyFills) {
  const std::string table = ToTable({Example(), Short()});
  EXPECT_EQ(table,
            "                                      unit                 rate  client             x limit  CPU unit\n"
            "dense/push/1MiB/depth8/clients1       GB/s     3.50 (3.25-4.00)   0.250  0.875 (0.750-1.00)      s/GB\n"
            "train/x                          samples/s  12345 (12000-13000)                                      \n");
  EXPECT_EQ(ToTable({}), "");
}

TEST(ToMarkdown, HasATableForEachBenchAndNamesTheMachine) {
  const std::string text = ToMarkdown({{{"CPU", "fast"}, {"cores", "2"}}, {Example(), Short()}});
  EXPECT_EQ(text,
            "Measured on: CPU fast; cores 2.\n"
            "\n"
            "| dense | unit | rate | client | x limit | CPU unit |\n"
            "|---|---:|---:|---:|---:|---:|\n"
            "| dense/push/1MiB/depth8/clients1 | GB/s | 3.50 (3.25-4.00) | 0.250 | 0.875 (0.750-1.00) | s/GB |\n"
            "\n"
            "| train | unit | rate |\n"
            "|---|---:|---:|\n"
            "| train/x | samples/s | 12345 (12000-13000) |\n");
}

TEST(Metrics, HaveKeysOfTheirOwn) {
  for (const Metric& a : Metrics()) {
    for (const Metric& b : Metrics()) {
      if (&a != &b) {
        EXPECT_STRNE(a.key, b.key);
        EXPECT_STRNE(a.title, b.title);
      }
    }
  }
}

}  // namespace
}  // namespace lodestone::bench
