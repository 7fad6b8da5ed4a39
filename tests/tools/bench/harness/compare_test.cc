#include "tools/bench/harness/compare.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::bench {
namespace {

using testing::HasSubstr;

// A line of a result: metric and its {"median", "min", "max"}.
std::string Line(const std::string& name, const std::string& values) {
  return "{\"bench\":\"" + name.substr(0, name.find('/')) + "\",\"name\":\"" + name +
         "\",\"unit\":\"GB/s\",\"runs\":5,\"values\":{" + values + "}}\n";
}

std::string Value(const std::string& metric, double median, double min, double max) {
  return "\"" + metric + "\":{\"median\":" + std::to_string(median) + ",\"min\":" + std::to_string(min) +
         ",\"max\":" + std::to_string(max) + "}";
}

std::vector<Difference> CompareText(const std::string& before, const std::string& after) {
  return Compare(ParseReport(before, "before").value(), ParseReport(after, "after").value());
}

// The verdict on a row "dense/x" with one metric.
Verdict Judge(const std::string& metric, Spread before, Spread after) {
  const auto line = [&](const Spread& spread) {
    return Line("dense/x", Value(metric, spread.median, spread.min, spread.max));
  };
  const std::vector<Difference> differences = CompareText(line(before), line(after));
  EXPECT_EQ(differences.size(), 1);
  EXPECT_EQ(differences[0].metric, metric);
  return differences[0].verdict;
}

TEST(Compare, CallsARateThatFellOutOfItsRangeARegression) {
  EXPECT_EQ(Judge("rate", {4, 3.8, 4.2}, {3, 2.9, 3.7}), Verdict::kRegression);
}

TEST(Compare, CallsARateThatRoseOutOfItsRangeAnImprovement) {
  EXPECT_EQ(Judge("rate", {3, 2.9, 3.7}, {4, 3.8, 4.2}), Verdict::kImprovement);
}

TEST(Compare, CallsMoreCpuOrLatencyARegressionAndLessAnImprovement) {
  EXPECT_EQ(Judge("client_cpu", {1, 0.9, 1.1}, {2, 1.9, 2.1}), Verdict::kRegression);
  EXPECT_EQ(Judge("p50_us", {100, 90, 110}, {50, 40, 60}), Verdict::kImprovement);
}

TEST(Compare, CallsADifferenceWithinOverlappingRangesNoise) {
  EXPECT_EQ(Judge("rate", {4, 2.9, 4.2}, {3, 2.8, 3.2}), Verdict::kNoise);
  EXPECT_EQ(Judge("rate", {3, 2.9, 4.2}, {4, 3.8, 4.3}), Verdict::kNoise);
  EXPECT_EQ(Judge("rate", {4, 3, 5}, {3, 2, 3}), Verdict::kNoise);  // They touch.
}

TEST(Compare, CallsLessThanFivePercentTheSameEvenIfRangesDoNotOverlap) {
  EXPECT_EQ(Judge("rate", {1.00, 0.999, 1.001}, {0.96, 0.959, 0.961}), Verdict::kSame);
  EXPECT_EQ(Judge("rate", {1.00, 0.999, 1.001}, {0.94, 0.939, 0.941}), Verdict::kRegression);
}

TEST(Compare, TakesTheRatioToTheLimitWhereBothRunsHaveOne) {
  // The machine was half as fast, the ratio stayed.
  const std::vector<Difference> differences =
      CompareText(Line("dense/x", Value("rate", 4, 4, 4) + "," + Value("ratio", 0.9, 0.88, 0.92)),
                  Line("dense/x", Value("rate", 2, 2, 2) + "," + Value("ratio", 0.9, 0.88, 0.92)));
  ASSERT_EQ(differences.size(), 1);
  EXPECT_EQ(differences[0].metric, "ratio");
  EXPECT_EQ(differences[0].verdict, Verdict::kSame);
}

TEST(Compare, TakesTheRateItselfWhereOneRunHasNoRatio) {
  const std::vector<Difference> differences =
      CompareText(Line("dense/x", Value("rate", 4, 4, 4) + "," + Value("ratio", 0.9, 0.88, 0.92)),
                  Line("dense/x", Value("rate", 2, 2, 2)));
  ASSERT_EQ(differences.size(), 1);
  EXPECT_EQ(differences[0].metric, "rate");
  EXPECT_EQ(differences[0].verdict, Verdict::kRegression);
}

TEST(Compare, NamesRowsThatAreMissingOrNewAndCountsThemAsNeither) {
  const std::string value = Value("rate", 4, 4, 4);
  const std::vector<Difference> differences =
      CompareText(Line("dense/a", value) + Line("dense/b", value), Line("dense/b", value) + Line("dense/c", value));
  ASSERT_EQ(differences.size(), 3);
  EXPECT_EQ(differences[0].name, "dense/a");
  EXPECT_EQ(differences[0].verdict, Verdict::kMissing);
  EXPECT_EQ(differences[1].verdict, Verdict::kSame);
  EXPECT_EQ(differences[2].name, "dense/c");
  EXPECT_EQ(differences[2].verdict, Verdict::kNew);
  EXPECT_FALSE(HasRegression(differences));
  EXPECT_THAT(ToText(differences), HasSubstr("missing  dense/a\n"));
  EXPECT_THAT(ToText(differences), HasSubstr("new      dense/c\n"));
}

TEST(Compare, LeavesOutBenchesThatWereNotRunAgain) {
  const std::string value = Value("rate", 4, 4, 4);
  EXPECT_EQ(CompareText(Line("dense/a", value) + Line("train/a", value), Line("dense/a", value)).size(), 1);
}

TEST(ToText, TellsWhatIsWorseAndCountsTheRest) {
  const std::vector<Difference> differences =
      CompareText(Line("dense/a", Value("rate", 4, 3.9, 4.1)) + Line("dense/b", Value("rate", 4, 3, 4.1)),
                  Line("dense/a", Value("rate", 2, 1.9, 2.1)) + Line("dense/b", Value("rate", 3.5, 3, 4)));
  EXPECT_TRUE(HasRegression(differences));
  EXPECT_EQ(ToText(differences),
            "WORSE    dense/a: rate 4.00 (3.90-4.10) -> 2.00 (1.90-2.10), x 0.500\n"
            "1 worse, 0 better, 0 the same, 1 within noise, 0 missing, 0 new\n");
}

}  // namespace
}  // namespace lodestone::bench
