// The shipped configurations on data of the same kind with another shape: other numbers of classes and columns, other
// labels, half-star ratings, files sorted by label, many features, few positives. The data is planted, so what a model
// can reach is known: each test states its bound relative to that.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "gtest/gtest.h"
#include "tests/cluster/psctl_run.h"

namespace lodestone {
namespace {

constexpr uint64_t kSeed = 7;

// A stream of random numbers.
class Random {
 public:
  explicit Random(uint64_t stream) : seed_(StreamSeed(kSeed, stream)) {}
  double Uniform() { return RandomUniform(seed_, next_++); }
  double Normal() { return RandomNormal(seed_, next_++); }
  uint64_t Below(uint64_t end) { return std::min<uint64_t>(end - 1, Uniform() * end); }

 private:
  const uint64_t seed_;
  uint64_t next_ = 0;
};

// A line of a data file and what it is sorted by.
struct Line {
  double label = 0;
  double score = 0;  // The teacher's.
  std::string text;
};

// Writes all but the last `test_count` lines to a training file, sorted by label, and the rest to a test file. Returns
// the flags of psctl that name them.
std::vector<std::string> WriteFiles(const std::string& name, const std::string& header, const std::vector<Line>& lines,
                                    size_t test_count) {
  std::vector<Line> train(lines.begin(), lines.end() - test_count);
  std::stable_sort(train.begin(), train.end(), [](const Line& a, const Line& b) { return a.label < b.label; });
  std::ofstream train_file(TestFile(name + ".train")), test_file(TestFile(name + ".test"));
  train_file << header;
  test_file << header;
  for (const Line& line : train) train_file << line.text << "\n";
  for (size_t i = lines.size() - test_count; i < lines.size(); ++i) test_file << lines[i].text << "\n";
  return {"--set", "data.train=" + TestFile(name + ".train"), "--set", "data.test=" + TestFile(name + ".test")};
}

// Area under the curve of the teacher's scores over the last `test_count` lines, whose labels are 0 and 1; scores
// differ.
double TeacherAuc(const std::vector<Line>& lines, size_t test_count) {
  std::vector<Line> test(lines.end() - test_count, lines.end());
  std::sort(test.begin(), test.end(), [](const Line& a, const Line& b) { return a.score < b.score; });
  double negatives = 0, pairs_in_order = 0;
  for (const Line& line : test) {
    if (line.label == 0) ++negatives;
    if (line.label == 1) pairs_in_order += negatives;
  }
  return pairs_in_order / (negatives * (test.size() - negatives));
}

// Clicks in libsvm format: each line has `per_line` of `features` features; the first `telling` of them, of which every
// line has about half its share, have weights, the others are noise.
std::vector<Line> SparseClicks(size_t count, uint64_t features, uint64_t telling, size_t per_line, double bias) {
  Random random(1);
  std::vector<double> weights(telling);
  for (double& weight : weights) weight = 1.5 * random.Normal();
  std::vector<Line> lines(count);
  for (Line& line : lines) {
    std::set<uint64_t> present;
    while (present.size() < per_line / 2) present.insert(random.Below(telling));
    while (present.size() < per_line) present.insert(telling + random.Below(features - telling));
    line.score = bias + 1e-9 * random.Uniform();
    for (const uint64_t feature : present) line.score += feature < telling ? weights[feature] : 0;
    line.label = random.Uniform() < 1 / (1 + std::exp(-line.score)) ? 1 : 0;
    line.text = absl::StrCat(line.label);
    for (const uint64_t feature : present) absl::StrAppend(&line.text, " ", feature + 1, ":1");
  }
  return lines;
}

TEST(OtherData, AHundredThousandFeaturesMostOfThemNoise) {
  constexpr size_t kTest = 4000;
  const std::vector<Line> lines = SparseClicks(24'000, 100'000, 40, 10, 0);
  const psctl::RunSummary summary = TrainLocally("a9a", WriteFiles("many_features", "", lines, kTest));
  EXPECT_GE(MetricOf(summary.test, "auc"), 0.95 * TeacherAuc(lines, kTest));
}

TEST(OtherData, OneInFiveHundredIsPositive) {
  constexpr size_t kTest = 40'000;
  const std::vector<Line> lines = SparseClicks(120'000, 100, 40, 10, -10);
  const double positives =
      std::accumulate(lines.begin(), lines.end(), 0.0, [](double sum, const Line& line) { return sum + line.label; });
  EXPECT_LT(positives / lines.size(), 0.01);
  const psctl::RunSummary summary = TrainLocally("a9a", WriteFiles("few_positives", "", lines, kTest));
  EXPECT_GE(MetricOf(summary.test, "auc"), 0.95 * TeacherAuc(lines, kTest));
}

TEST(OtherData, FiveClassesWithOddLabelsSortedByThem) {
  constexpr int kClasses = 5, kFeatures = 30;
  constexpr int kLabels[kClasses] = {-2, 3, 7, 12, 40};
  Random random(2);
  std::vector<std::vector<double>> weights(kClasses, std::vector<double>(kFeatures));
  for (std::vector<double>& of_class : weights) {
    for (double& weight : of_class) weight = random.Normal();
  }
  std::vector<Line> lines(12'000);
  for (Line& line : lines) {
    std::set<uint64_t> present;
    while (present.size() < 8) present.insert(random.Below(kFeatures));
    int best = 0;
    double best_score = -1e9;
    for (int c = 0; c < kClasses; ++c) {
      double score = 0;
      for (const uint64_t feature : present) score += weights[c][feature];
      if (score > best_score) best = c, best_score = score;
    }
    line.label = kLabels[best];
    line.text = absl::StrCat(line.label);
    for (const uint64_t feature : present) absl::StrAppend(&line.text, " ", feature, ":1");
  }
  const psctl::RunSummary summary = TrainLocally("a9a", WriteFiles("five_classes", "", lines, 2000));
  // The classes are the largest of five linear functions, so a linear model can tell all of them.
  EXPECT_GE(MetricOf(summary.test, "accuracy"), 0.95);
}

TEST(OtherData, ATableWithAHeaderSevenClassesAndColumnsOfVeryDifferentUnits) {
  constexpr int kClasses = 7, kColumns = 11;
  Random random(3);
  std::vector<std::vector<double>> centres(kClasses, std::vector<double>(kColumns));
  for (std::vector<double>& centre : centres) {
    for (double& x : centre) x = 3 * random.Normal();
  }
  std::string header = "species";
  for (int c = 0; c < kColumns; ++c) absl::StrAppend(&header, ";x", c);
  std::vector<Line> lines(6'000);
  for (Line& line : lines) {
    const int label = random.Below(kClasses);
    line.label = label;
    line.text = absl::StrCat("class ", std::string(1, 'a' + label));
    for (int c = 0; c < kColumns; ++c) {
      absl::StrAppend(&line.text, ";", std::pow(10.0, c - 5) * (centres[label][c] + random.Normal()));
    }
  }
  std::vector<std::string> arguments = WriteFiles("seven_classes", header + "\n", lines, 2000);
  arguments.insert(arguments.end(), {"--set", "data.csv.label=species"});
  const psctl::RunSummary summary = TrainLocally("optdigits", arguments);
  // Clouds of deviation 1 around centres some 14 apart: next to no overlap.
  EXPECT_GE(MetricOf(summary.test, "accuracy"), 0.98);
}

TEST(OtherData, HalfStarRatingsFromATsv) {
  constexpr int kUsers = 300, kItems = 200, kRank = 3;
  constexpr double kNoise = 0.3;
  Random random(4);
  std::vector<double> vectors((kUsers + kItems) * kRank);
  for (double& x : vectors) x = 0.7 * random.Normal();
  std::vector<Line> lines(40'000);
  for (Line& line : lines) {
    const uint64_t user = random.Below(kUsers), item = random.Below(kItems);
    double rating = 3.2 + kNoise * random.Normal();
    for (int r = 0; r < kRank; ++r) rating += vectors[user * kRank + r] * vectors[(kUsers + item) * kRank + r];
    line.label = std::clamp(std::round(2 * rating) / 2, 0.5, 5.0);
    line.text = absl::StrCat("u", user, "\t", 1000 + item, "\t", line.label, "\t", 978300760);
  }
  const psctl::RunSummary summary = TrainLocally("ratings", WriteFiles("half_stars", "", lines, 8000));
  // Rounding to halves adds the deviation of a uniform distribution of width 1/2 to the noise; clamping takes some
  // away.
  const double best = std::sqrt(kNoise * kNoise + 0.25 / 12);
  EXPECT_LE(MetricOf(summary.test, "rmse"), 1.15 * best);
}

}  // namespace
}  // namespace lodestone
