// Retrieval by two towers, from files to vectors: real processes train, and what they have learned finds users' items.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
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

constexpr uint64_t kSeed = 22;
constexpr uint32_t kUsers = 400, kItems = 300, kTastes = 6;
constexpr size_t kRecallK = 10;

// A choice of a user: mostly an item of the user's taste, and of those, as of all, the popular ones more often. Item i
// is of taste i % kTastes.
uint32_t Choice(uint32_t user, uint64_t number) {
  const double share = RandomUniform(kSeed, 3 * number);
  auto item = static_cast<uint32_t>(kItems * share * share);  // The low ones more often.
  if (RandomUniform(kSeed, 3 * number + 1) < 0.9)
    item = std::min(kItems - kTastes, item) / kTastes * kTastes + user % kTastes;
  return item;
}

struct Choices {
  std::vector<std::pair<uint32_t, uint32_t>> pairs;  // User, item.
  std::map<uint32_t, uint32_t> counts;               // By item.
};

// Writes choices to a file without labels, and gives them.
Choices Write(const std::string& path, uint64_t first, uint32_t count) {
  Choices choices;
  std::ofstream file(path);
  file << "user,item,shelf\n";
  for (uint64_t n = first; n < first + count; ++n) {
    const auto user = static_cast<uint32_t>(RandomBits(kSeed, 3 * n + 2) % kUsers);
    const uint32_t item = Choice(user, n);
    file << "u" << user << ",i" << item << ",s" << item / 50 << "\n";
    choices.pairs.emplace_back(user, item);
    ++choices.counts[item];
  }
  return choices;
}

std::string RunPsctl(const std::vector<std::string>& arguments) {
  PsctlRun run(arguments);
  EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
  return run.output();
}

// The vectors in a file of psctl predict --tower, by name.
std::map<std::string, std::vector<double>> Vectors(const std::string& path) {
  std::map<std::string, std::vector<double>> vectors;
  const std::vector<std::string> lines = Lines(path);
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> fields = absl::StrSplit(lines[i], ',');
    std::vector<double>& vector = vectors[fields[0]];
    for (size_t f = 1; f < fields.size(); ++f) vector.push_back(std::stod(fields[f]));
  }
  return vectors;
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The share of the pairs whose item is among the kRecallK of all items that score(user, item) ranks highest. Others
// with the same score rank `ties` above it.
enum class Ties { kAbove, kBelow };
template <typename Score>
double Recall(const Choices& choices, Ties ties, const Score& score) {
  size_t found = 0;
  for (const auto& [user, item] : choices.pairs) {
    const double own = score(user, item);
    size_t before = 0;
    for (uint32_t other = 0; other < kItems; ++other) {
      const double one = score(user, other);
      before += other != item && (one > own || (ties == Ties::kAbove && one == own));
    }
    found += before < kRecallK;
  }
  return static_cast<double>(found) / static_cast<double>(choices.pairs.size());
}

constexpr char kConfig[] = R"(
cluster: {servers: 2, workers: 2, shards: 8}
model:
  type: twotower
  embedding_dim: 12
  embedding_dims: {shelf: 4}
  two_tower: {user: [user], item: [item, shelf], dim: 12, temperature: 0.2}
  optimizer: {adagrad: {}, learning_rate: 0.1}
data:
  format: csv
  csv: {label: "", categorical: [user, item, shelf]}
train: {epochs: 8, batch_size: 128}
)";

TEST(TwoTower, FindsUsersItemsBetterThanPopularityAndItsVectorsMakeItsScores) {
  std::ofstream(TestFile("towers.yaml")) << kConfig;
  const Choices train = Write(TestFile("train.csv"), 0, 20'000);
  const Choices test = Write(TestFile("test.csv"), 1'000'000, 1500);
  const std::string model = TestFile("towers.safetensors"), summary = TestFile("towers.json");
  RunPsctl({"local", TestFile("towers.yaml"), "--model", model, "--summary", summary, "--set",
            "data.train=" + TestFile("train.csv"), "--set", "data.test=" + TestFile("test.csv"), "--set",
            "cluster.seed=7"});
  const auto run = psctl::ReadSummary(summary);
  ASSERT_TRUE(run.ok()) << run.status();

  // Judged by psctl as by the worker, among the items of a batch.
  const std::string judged = RunPsctl({"evaluate", model, "--data", TestFile("test.csv")});
  for (const char* metric : {"recall_at_1", "recall_at_10", "mrr", "loss"}) {
    const size_t at = judged.find(absl::StrCat(metric, " "));
    ASSERT_NE(at, std::string::npos) << judged;
    EXPECT_NEAR(std::stod(judged.substr(at + std::string(metric).size())), MetricOf(run->test, metric), 2e-3) << metric;
  }

  // Of a catalogue without users, and of users without items.
  std::ofstream items(TestFile("items.csv")), users(TestFile("users.csv"));
  items << "shelf,item\n";
  for (uint32_t i = 0; i < kItems; ++i) items << "s" << i / 50 << ",i" << i << "\n";
  users << "user\n";
  for (uint32_t u = 0; u < kUsers; ++u) users << "u" << u << "\n";
  items.close();
  users.close();
  RunPsctl({"predict", model, "--data", TestFile("items.csv"), "--tower", "item", "--id", "item", "--out",
            TestFile("item_vectors.csv")});
  RunPsctl({"predict", model, "--data", TestFile("users.csv"), "--tower", "user", "--id", "user", "--out",
            TestFile("user_vectors.csv")});
  auto item_vectors = Vectors(TestFile("item_vectors.csv")), user_vectors = Vectors(TestFile("user_vectors.csv"));
  ASSERT_EQ(item_vectors.size(), kItems);
  ASSERT_EQ(user_vectors.size(), kUsers);
  std::vector<std::vector<double>> of_item, of_user;
  for (uint32_t i = 0; i < kItems; ++i) of_item.push_back(item_vectors.at(absl::StrCat("i", i)));
  for (uint32_t u = 0; u < kUsers; ++u) of_user.push_back(user_vectors.at(absl::StrCat("u", u)));
  EXPECT_EQ(of_item[0].size(), 12u);

  RunPsctl({"predict", model, "--data", TestFile("test.csv"), "--out", TestFile("scores.csv")});
  const std::vector<std::string> scores = Lines(TestFile("scores.csv"));
  ASSERT_EQ(scores.size(), test.pairs.size() + 1);
  EXPECT_EQ(scores[0], "row,value");
  for (size_t i = 0; i < test.pairs.size(); ++i) {
    const auto [user, item] = test.pairs[i];
    EXPECT_NEAR(std::stod(scores[i + 1].substr(scores[i + 1].find(',') + 1)), Dot(of_user[user], of_item[item]), 1e-4);
  }

  const double popularity = Recall(test, Ties::kBelow, [&](uint32_t, uint32_t item) {
    return train.counts.count(item) ? train.counts.at(item) : 0;
  });
  const double towers =
      Recall(test, Ties::kAbove, [&](uint32_t user, uint32_t item) { return Dot(of_user[user], of_item[item]); });
  std::printf("seed %d, recall at 10 of all items: popularity %.3f, towers %.3f\n", static_cast<int>(kSeed), popularity,
              towers);
  EXPECT_GT(towers, 1.5 * popularity);

  if (!HasNumpy()) GTEST_SKIP() << "/usr/bin/python3 has no numpy";
  const std::vector<std::string> by_numpy = ByNumpy(model, TestFile("test.csv"));
  ASSERT_EQ(by_numpy.size(), test.pairs.size());
  for (size_t i = 0; i < by_numpy.size(); ++i) {
    EXPECT_NEAR(std::stod(by_numpy[i]), std::stod(scores[i + 1].substr(scores[i + 1].find(',') + 1)), 1e-4);
  }
}

TEST(TwoTower, WhatItCannotDoIsSaid) {
  std::ofstream(TestFile("towers.yaml")) << kConfig;
  std::ofstream(TestFile("negative.csv")) << "user,item,shelf,y\na,b,c,1\na,d,c,-1\n";
  PsctlRun run({"local", TestFile("towers.yaml"), "--set", "data.train=" + TestFile("negative.csv"), "--set",
                "data.csv.label=y"});
  EXPECT_NE(run.WaitForEnd(), "ended");
  EXPECT_THAT(run.output(), HasSubstr("the label -1 is no reward"));
}

}  // namespace
}  // namespace lodestone
