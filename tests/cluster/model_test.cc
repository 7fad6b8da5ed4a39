// A model's life beyond the run that trained it: it is kept, trained on with other data, settings and numbers of
// workers, judged, and used by psctl and by another program, always with the same predictions.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/numpy_model.h"
#include "tests/cluster/psctl_run.h"

namespace lodestone {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSeed = 19;

// A CSV file of clicks: two numbers of very different scales, two categories, and a label that they tell. `share` of
// the labels are positive, about; `shift` moves the numbers.
void WriteClicks(const std::string& path, size_t lines, uint64_t stream, double share, double shift) {
  const uint64_t seed = StreamSeed(kSeed, stream);
  std::ofstream file(path);
  file << "age,income,city,device,click\n";
  for (size_t i = 0; i < lines; ++i) {
    const double age = 40 + shift + 10 * RandomNormal(seed, 5 * i);
    const double income = 30'000 + 800 * shift + 9000 * RandomNormal(seed, 5 * i + 1);
    const uint64_t city = RandomBits(seed, 1'000'000 + 2 * i) % 30, device = RandomBits(seed, 1'000'001 + 2 * i) % 5;
    const double score = 0.08 * (age - 40) + 1e-4 * (income - 30'000) + (city % 3 == 0 ? 1.5 : -0.5) +
                         (device == city % 5 ? 1 : 0) + std::log(share / (1 - share));
    const bool click = RandomUniform(seed, 2'000'000 + i) < 1 / (1 + std::exp(-score));
    file << (i % 17 == 0 ? "" : absl::StrCat(age)) << "," << income << ",c" << city << ",d" << device << ","
         << (click ? "yes" : "no") << "\n";
  }
}

// A CSV file of three classes that two numbers tell, in these shares.
void WriteClasses(const std::string& path, size_t lines, uint64_t stream, const std::vector<double>& shares,
                  double shift) {
  const uint64_t seed = StreamSeed(kSeed, stream);
  std::ofstream file(path);
  file << "x,y,kind\n";
  const char* const names[] = {"ash", "beech", "cedar"};
  for (size_t i = 0; i < lines; ++i) {
    const double draw = RandomUniform(seed, i);
    const size_t kind = draw < shares[0] ? 0 : draw < shares[0] + shares[1] ? 1 : 2;
    const double x = 100 * (static_cast<double>(kind) + 0.7 * RandomNormal(seed, 1'000'000 + i)) + shift;
    file << x << "," << RandomNormal(seed, 2'000'000 + i) + (kind == 1 ? 1 : 0) << "," << names[kind] << "\n";
  }
}

std::vector<std::string> Sets(std::vector<std::string> sets) {
  std::vector<std::string> arguments = {"--set", "cluster.shards=8", "--set", "data.csv.header=YES"};
  for (std::string& set : sets) arguments.insert(arguments.end(), {"--set", std::move(set)});
  return arguments;
}

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A configuration of its own, since the shipped ones name their columns.
std::string ConfigFile(const std::string& name, const std::string& text) {
  std::ofstream(TestFile(name)) << text;
  return TestFile(name);
}

// Runs psctl; what it says is in *output (may be null).
std::string RunPsctl(const std::vector<std::string>& arguments, std::string* output = nullptr) {
  PsctlRun run(arguments);
  const std::string outcome = run.WaitForEnd();
  if (output != nullptr) *output = run.output();
  if (outcome != "ended" && output == nullptr) ADD_FAILURE() << outcome << "\n" << run.output();
  return outcome;
}

psctl::RunSummary Train(const std::string& config, const std::vector<std::string>& arguments) {
  const std::string summary = TestFile("run.json");
  std::remove(summary.c_str());
  RunPsctl(std::vector<std::string>{"local", config, "--summary", summary} + arguments);
  const absl::StatusOr<psctl::RunSummary> read = psctl::ReadSummary(summary);
  EXPECT_TRUE(read.ok()) << read.status();
  return read.value_or(psctl::RunSummary());
}

// The scores of psctl predict's file.
std::vector<double> Scores(const std::string& path) {
  std::vector<double> scores;
  for (const std::string& line : Lines(path)) {
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    if (!scores.empty() || (fields.back() != "score" && fields.back() != "value"))
      scores.push_back(std::stod(fields.back()));
  }
  return scores;
}

void ExpectNear(const std::vector<double>& scores, const std::vector<std::string>& by_numpy) {
  ASSERT_EQ(scores.size(), by_numpy.size());
  ASSERT_GT(scores.size(), 0u);
  double worst = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const std::vector<std::string> fields = absl::StrSplit(by_numpy[i], ' ');
    worst = std::max(worst, std::abs(scores[i] - std::stod(fields.back())));
  }
  EXPECT_LE(worst, 1e-5);
}

constexpr char kClicks[] = R"(
cluster: {servers: 2, workers: 2, shards: 8}
model: {type: deepfm, embedding_dim: 4, hidden: [16, 8]}
data:
  format: csv
  csv: {label: click, numeric: [age, income], categorical: [city, device], transform: {age: STANDARDIZE, income: LOG_STANDARDIZE}}
train: {epochs: 3, batch_size: 64}
)";

constexpr char kClasses[] = R"(
cluster: {servers: 2, workers: 2, shards: 8}
model: {type: linear, optimizer: {adagrad: {}, learning_rate: 0.1}}
data: {format: csv, numeric: STANDARDIZE, csv: {label: kind}}
train: {epochs: 3, batch_size: 64}
)";

// Regression: other data, another number of workers, another learning rate: each was ALREADY_EXISTS.
TEST(ModelLife, GoesOnWithOtherDataAnotherRateAndThreeWorkers) {
  const std::string config = ConfigFile("clicks.yaml", kClicks);
  WriteClicks(TestFile("a.csv"), 6000, 1, 0.3, 0);
  WriteClicks(TestFile("b.csv"), 6000, 2, 0.4, 2);
  WriteClicks(TestFile("t.csv"), 3000, 3, 0.4, 0);
  const std::vector<std::string> folder =
      Sets({"server.data_dir=" + TestFile("continued"), "data.test=" + TestFile("t.csv")});
  const auto first = Train(config, folder + Sets({"data.train=" + TestFile("a.csv"), "train.epochs=1"}));
  std::string output;
  ASSERT_EQ(RunPsctl({"evaluate", TestFile("continued/checkpoints"), "--data", TestFile("t.csv"), "--json"}, &output),
            "ended")
      << output;
  EXPECT_NEAR(std::stod(output.substr(output.find("\"loss\": ") + 8)), MetricOf(first.test, "loss"), 1e-6);
  const auto again = Train(config, folder + Sets({"data.train=" + TestFile("b.csv"), "cluster.workers=3",
                                                  "model.optimizer.adagrad.initial_accumulator=0.01",
                                                  "model.optimizer.learning_rate=0.02"}));
  EXPECT_EQ(again.workers, 3u);
  EXPECT_LT(MetricOf(again.test, "loss"), MetricOf(first.test, "loss"));
}

// Regression: the class shares and statistics of the second run's data were used for the first one's parameters, so
// that a test accuracy of 0.80 became 0.106.
TEST(ModelLife, TheDataOfALaterRunDoesNotChangeWhatTheModelPredicts) {
  const std::string config = ConfigFile("classes.yaml", kClasses);
  WriteClasses(TestFile("a.csv"), 6000, 4, {0.8, 0.1, 0.1}, 0);
  WriteClasses(TestFile("b.csv"), 6000, 5, {0.1, 0.1, 0.8}, 500);
  WriteClasses(TestFile("t.csv"), 3000, 6, {0.8, 0.1, 0.1}, 0);
  const std::vector<std::string> folder =
      Sets({"server.data_dir=" + TestFile("other_data"), "data.test=" + TestFile("t.csv")});
  const auto first = Train(config, folder + Sets({"data.train=" + TestFile("a.csv")}));
  const auto again = Train(config, folder + Sets({"data.train=" + TestFile("b.csv"), "train.epochs=0"}));
  EXPECT_GE(MetricOf(first.test, "accuracy"), 0.8);
  EXPECT_EQ(MetricOf(again.test, "accuracy"), MetricOf(first.test, "accuracy"));
  EXPECT_NEAR(MetricOf(again.test, "loss"), MetricOf(first.test, "loss"), 1e-6);
}

TEST(ModelLife, AnotherModelOverTheSameTablesIsRefusedWithWhatToDo) {
  const std::string config = ConfigFile("classes.yaml", kClasses);
  WriteClasses(TestFile("a.csv"), 2000, 4, {0.4, 0.3, 0.3}, 0);
  const std::vector<std::string> folder =
      Sets({"server.data_dir=" + TestFile("refused"), "data.train=" + TestFile("a.csv"), "train.epochs=1"});
  Train(config, folder);
  std::string output;
  EXPECT_NE(RunPsctl(std::vector<std::string>{"local", config} + folder + Sets({"model.type=mlp", "model.hidden=[4]"}),
                     &output),
            "ended");
  EXPECT_THAT(output, HasSubstr("the cluster holds a model of model.type: linear, and the configuration says mlp"));
  EXPECT_THAT(output, HasSubstr("another server.data_dir"));
  EXPECT_NE(RunPsctl(std::vector<std::string>{"local", config} + folder + Sets({"data.numeric=LOG"}), &output),
            "ended");
  EXPECT_THAT(output, HasSubstr("trained with the transform standardize of column \"x\""));
}

TEST(ModelLife, IsKeptJudgedAndUsedByPsctlAndByAnotherProgramWithTheSamePredictions) {
  const std::string config = ConfigFile("clicks.yaml", kClicks);
  WriteClicks(TestFile("a.csv"), 6000, 1, 0.3, 0);
  WriteClicks(TestFile("t.csv"), 3000, 3, 0.4, 0);
  const std::string model = TestFile("clicks.safetensors");
  const auto trained = Train(config, Sets({"data.train=" + TestFile("a.csv"), "data.test=" + TestFile("t.csv")}) +
                                         std::vector<std::string>{"--model", model});
  std::string output;
  ASSERT_EQ(RunPsctl({"evaluate", model, "--data", TestFile("t.csv"), "--json"}, &output), "ended") << output;
  // The worker computes in batches of its own, so that sums of losses may differ in their last digits.
  EXPECT_THAT(output, HasSubstr(absl::StrCat("\"samples\": 3000")));
  const size_t loss_at = output.find("\"loss\": ");
  ASSERT_NE(loss_at, std::string::npos) << output;
  EXPECT_NEAR(std::stod(output.substr(loss_at + 8)), MetricOf(trained.test, "loss"), 1e-6);
  ASSERT_EQ(RunPsctl({"predict", model, "--data", TestFile("t.csv"), "--out", TestFile("scores.csv")}, &output),
            "ended")
      << output;
  const std::vector<std::string> lines = Lines(TestFile("scores.csv"));
  ASSERT_EQ(lines.size(), 3001u);
  EXPECT_EQ(lines[0], "row,class,score");
  EXPECT_THAT(lines[1], testing::AnyOf(HasSubstr("0,no,0."), HasSubstr("0,yes,0.")));
  if (!HasNumpy()) GTEST_SKIP() << "/usr/bin/python3 has no numpy";
  ExpectNear(Scores(TestFile("scores.csv")), ByNumpy(model, TestFile("t.csv")));
}

// Regression: keys were salted with the column's position, so that a column more renamed all keys behind it.
TEST(ModelLife, ColumnsMayComeAndGoAndChangePlacesAndTheLabelMayBeMissing) {
  const std::string config = ConfigFile("clicks.yaml", kClicks);
  WriteClicks(TestFile("a.csv"), 3000, 1, 0.3, 0);
  const std::string model = TestFile("moved.safetensors");
  Train(config,
        Sets({"data.train=" + TestFile("a.csv"), "train.epochs=1"}) + std::vector<std::string>{"--model", model});
  std::ofstream moved(TestFile("moved.csv"));
  std::vector<std::string> lines = Lines(TestFile("a.csv"));
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::vector<std::string> fields = absl::StrSplit(lines[i], ',');
    moved << (i == 0 ? "name" : absl::StrCat("sample ", i)) << "," << fields[3] << "," << fields[1] << ",new,"
          << fields[2] << "," << fields[0] << "\n";
  }
  moved.close();
  std::string output;
  ASSERT_EQ(RunPsctl({"predict", model, "--data", TestFile("a.csv"), "--out", TestFile("before.csv")}, &output),
            "ended")
      << output;
  ASSERT_EQ(
      RunPsctl({"predict", model, "--data", TestFile("moved.csv"), "--out", TestFile("after.csv"), "--id", "name"},
               &output),
      "ended")
      << output;
  EXPECT_EQ(Scores(TestFile("after.csv")), Scores(TestFile("before.csv")));
  EXPECT_TRUE(absl::StartsWith(Lines(TestFile("after.csv"))[1], "sample 1,"));
}

TEST(ModelLife, TrainingStartsFromAKeptModelAndARunThatKeepsNoneSaysHowTo) {
  const std::string config = ConfigFile("clicks.yaml", kClicks);
  WriteClicks(TestFile("a.csv"), 6000, 1, 0.3, 0);
  WriteClicks(TestFile("t.csv"), 3000, 3, 0.4, 0);
  const std::string model = TestFile("first.safetensors");
  const std::vector<std::string> data = Sets({"data.train=" + TestFile("a.csv"), "data.test=" + TestFile("t.csv")});
  const auto first = Train(config, data + std::vector<std::string>{"--model", model});
  std::string output;
  const auto again =
      Train(config, data + Sets({"train.epochs=0", "cluster.workers=1"}) + std::vector<std::string>{"--from", model});
  EXPECT_NEAR(MetricOf(again.test, "loss"), MetricOf(first.test, "loss"), 1e-6);
  ASSERT_EQ(RunPsctl(std::vector<std::string>{"local", config} + data + Sets({"train.epochs=0"}), &output), "ended")
      << output;
  EXPECT_THAT(output, HasSubstr("the model is not kept; --model FILE.safetensors keeps it"));
}

TEST(ModelLife, PredictionsUseTheModelsBucketsOfNumbers) {
  if (!HasNumpy()) GTEST_SKIP() << "/usr/bin/python3 has no numpy";
  const std::string config = ConfigFile("buckets.yaml", R"(
cluster: {servers: 2, workers: 2, shards: 8}
model: {type: deepfm, embedding_dim: 4, hidden: [16, 8]}
data:
  format: csv
  csv: {label: click, numeric: [age], categorical: [city], bucket: {age: QUANTILES, income: LOG2}, quantiles: 10}
train: {epochs: 1, batch_size: 64}
)");
  WriteClicks(TestFile("a.csv"), 3000, 1, 0.3, 0);
  WriteClicks(TestFile("t.csv"), 1000, 3, 0.4, 5);
  const std::string model = TestFile("buckets.safetensors");
  const auto trained = Train(config, Sets({"data.train=" + TestFile("a.csv"), "data.test=" + TestFile("t.csv")}) +
                                         std::vector<std::string>{"--model", model});
  std::string output;
  ASSERT_EQ(RunPsctl({"predict", model, "--data", TestFile("t.csv"), "--out", TestFile("scores.csv")}, &output),
            "ended")
      << output;
  const std::vector<double> scores = Scores(TestFile("scores.csv"));
  ExpectNear(scores, ByNumpy(model, TestFile("t.csv")));
  // And for the worker: their loss is its loss.
  double loss = 0;
  const std::vector<std::string> samples = Lines(TestFile("t.csv"));
  ASSERT_EQ(samples.size(), scores.size() + 1);
  for (size_t i = 0; i < scores.size(); ++i) {
    loss -= std::log(absl::EndsWith(samples[i + 1], "yes") ? scores[i] : 1 - scores[i]);
  }
  EXPECT_NEAR(loss / scores.size(), MetricOf(trained.test, "loss"), 1e-5);
}

class SeveralCategories : public testing::TestWithParam<const char*> {};

// The model is the parameter.
TEST_P(SeveralCategories, AndMissingNumbersArePredictedByAllAsTheWorkerDoes) {
  if (!HasNumpy()) GTEST_SKIP() << "/usr/bin/python3 has no numpy";
  const std::string config = ConfigFile("multi.yaml", absl::StrCat("model: ", GetParam(), R"(
cluster: {servers: 2, workers: 2, shards: 8}
data:
  format: csv
  csv:
    label: click
    numeric: [age]
    categorical: [city]
    multi: {tags: {pooling: mean, values_max: 3}, seen: {separator: " ", pooling: max}, words: {pooling: sum}}
    vocabulary_of: {words: tags}
    missing_indicator: [age]
    missing: ["?"]
train: {epochs: 1, batch_size: 64, validate: {every_epochs: 1}}
)"));
  const auto write = [](const std::string& path, uint32_t first, uint32_t count) {
    std::ofstream file(path);
    file << "click,age,city,tags,seen,words\n";
    for (uint32_t i = first; i < first + count; ++i) {
      const uint64_t bits = i * 0x9E3779B97F4A7C15u >> 20;
      const bool gap = bits % 5 == 0;
      file << (gap || bits % 11 == 0 ? "yes," : "no,") << (gap ? "?" : std::to_string(bits % 90 / 30.0)) << ",c"
           << bits % 7 << ",";
      for (uint64_t j = 0; j < bits % 6; ++j) file << (j > 0 ? "|" : "") << "t" << (bits >> j) % 13;
      file << ",i" << bits % 31 << "  i" << bits % 17 << "," << (i % 4 == 0 ? "" : "w1|?|w2") << "\n";
    }
  };
  write(TestFile("multi_a.csv"), 0, 3000);
  write(TestFile("multi_t.csv"), 5000, 500);
  const std::string model = TestFile("multi.safetensors");
  const auto trained =
      Train(config, Sets({"data.train=" + TestFile("multi_a.csv"), "data.test=" + TestFile("multi_t.csv")}) +
                        std::vector<std::string>{"--model", model});
  std::string output;
  ASSERT_EQ(RunPsctl({"predict", model, "--data", TestFile("multi_t.csv"), "--out", TestFile("scores.csv")}, &output),
            "ended")
      << output;
  const std::vector<double> scores = Scores(TestFile("scores.csv"));
  ExpectNear(scores, ByNumpy(model, TestFile("multi_t.csv")));
  double loss = 0;
  const std::vector<std::string> samples = Lines(TestFile("multi_t.csv"));
  ASSERT_EQ(samples.size(), scores.size() + 1);
  for (size_t i = 0; i < scores.size(); ++i) {
    loss -= std::log(absl::StartsWith(samples[i + 1], "yes") ? scores[i] : 1 - scores[i]);
  }
  EXPECT_NEAR(loss / scores.size(), MetricOf(trained.test, "loss"), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Models, SeveralCategories,
    testing::Values(
        "{type: deepfm, embedding_dim: 4, hidden: [16, 8]}",
        "{type: widedeep, embedding_dim: 4, embedding_dims: {city: 6, seen: 2}, hidden: [16, 8]}",
        "{type: dcn, embedding_dim: 4, embedding_dims: {city: 2, tags: 8, seen: 2, words: 8}, hidden: [8]}"));

// The numbers that follow `what` in a text.
std::vector<uint64_t> NumbersAfter(const std::string& text, const std::string& what) {
  std::vector<uint64_t> numbers;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    numbers.push_back(std::stoull(text.substr(at + what.size())));
  }
  return numbers;
}

TEST(ModelLife, WorkersThatGoOnFromAModelMayParseHalfOfTheNewFilesEach) {
  const std::string config = ConfigFile("share.yaml", kClicks);
  const std::string model = TestFile("share.safetensors"), summary = TestFile("share.json");
  WriteClicks(TestFile("first.csv"), 4000, 1, 0.3, 0);
  WriteClicks(TestFile("second.csv"), 20'000, 2, 0.3, 0);
  WriteClicks(TestFile("judge.csv"), 2000, 3, 0.3, 0);
  Train(config, Sets({"data.train=" + TestFile("first.csv"), "data.test=" + TestFile("judge.csv")}) +
                    std::vector<std::string>{"--model", model});
  const std::vector<std::string> second =
      std::vector<std::string>{"local", config, "--verbose", "--summary", summary} +
      Sets({"data.train=" + TestFile("second.csv"), "data.test=" + TestFile("judge.csv"), "data.read=share"});
  // A new model's mean and deviation are of all files.
  std::string output;
  EXPECT_NE(RunPsctl(second, &output), "ended");
  EXPECT_THAT(output, HasSubstr("data.read: share reads a part of the files"));

  ASSERT_EQ(RunPsctl(second + std::vector<std::string>{"--from", model}, &output), "ended") << output;
  const std::vector<uint64_t> parsed = NumbersAfter(output, "parsed_bytes=");
  ASSERT_EQ(parsed.size(), 2u) << output;
  const auto bytes = static_cast<double>(std::filesystem::file_size(TestFile("second.csv")));
  EXPECT_EQ(static_cast<double>(parsed[0] + parsed[1]), bytes);
  for (const uint64_t one : parsed) EXPECT_NEAR(static_cast<double>(one), bytes / 2, 0.05 * bytes);
  const absl::StatusOr<psctl::RunSummary> run = psctl::ReadSummary(summary);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_GT(MetricOf(run->test, "auc"), 0.7);
}

class CriteoModelLife : public testing::TestWithParam<std::vector<std::string>> {};

// What the first parameter names is trained with the settings that follow it, kept, and used by psctl and by NumPy.
TEST_P(CriteoModelLife, NumPyReadsTheModelAndPredictsAsTheWorkerDoes) {
  const char* const data = std::getenv("LODESTONE_DATA");
  if (data == nullptr) GTEST_SKIP() << "LODESTONE_DATA does not name the folder of data sets";
  const std::string train = absl::StrCat(data, "/criteo/criteo_first8k_train.tsv"),
                    test = absl::StrCat(data, "/criteo/criteo_first8k_test.tsv");
  if (!std::filesystem::exists(train)) GTEST_SKIP() << "no real data in " << data;
  if (!HasNumpy()) GTEST_SKIP() << "/usr/bin/python3 has no numpy";
  const std::string model = TestFile("criteo.safetensors");
  std::vector<std::string> arguments = {"--set", "data.train=" + train, "--set",   "data.test=" + test,
                                        "--set", "train.epochs=1",      "--model", model};
  for (size_t i = 1; i < GetParam().size(); ++i) arguments.insert(arguments.end(), {"--set", GetParam()[i]});
  const auto trained = Train(ProjectFile(absl::StrCat("configs/", GetParam()[0], ".yaml")), arguments);
  std::string output;
  ASSERT_EQ(RunPsctl({"predict", model, "--data", test, "--out", TestFile("criteo.csv")}, &output), "ended") << output;
  const std::vector<double> scores = Scores(TestFile("criteo.csv"));
  ExpectNear(scores, ByNumpy(model, test));
  // The worker's own predictions are these: their loss is its loss.
  double loss = 0;
  const std::vector<std::string> samples = Lines(test);
  ASSERT_EQ(samples.size(), scores.size());
  for (size_t i = 0; i < scores.size(); ++i) loss -= std::log(samples[i][0] == '1' ? scores[i] : 1 - scores[i]);
  EXPECT_NEAR(loss / scores.size(), MetricOf(trained.test, "loss"), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Models, CriteoModelLife,
    testing::Values(std::vector<std::string>{"criteo_deepfm"},
                    std::vector<std::string>{"criteo_deepfm", "model.numeric_pairs=true", "model.layer_norm=true"},
                    std::vector<std::string>{"criteo_widedeep"}, std::vector<std::string>{"criteo_dcn"},
                    std::vector<std::string>{"criteo_dcn", "model.cross.rank=0", "model.cross.structure=stacked"}));

// The value of a metric in the output of psctl evaluate --json.
double ValueIn(const std::string& json, const std::string& metric) {
  const size_t at = json.find(absl::StrCat("\"", metric, "\": "));
  return at == std::string::npos ? std::nan("") : std::stod(json.substr(at + metric.size() + 4));
}

// Prices that follow from the age and the hour of a sale; every fifth is wrong by 100,000, and weighs nothing.
void WriteSales(const std::string& path, uint32_t first, uint32_t count) {
  std::ofstream file(path);
  file << "sold,rooms,town,weight,price\n";
  for (uint32_t i = first; i < first + count; ++i) {
    const uint64_t bits = RandomBits(kSeed, i);
    const uint32_t day = 1 + bits % 28, hour = bits / 28 % 24;
    const bool is_wrong = i % 5 == 0;
    file << absl::StrFormat("2024-02-%02dT%02d:30:00Z", day, hour) << "," << bits / 1000 % 6 << ",t" << bits / 7000 % 9
         << "," << (is_wrong ? 0 : 1 + i % 2) << ","
         << 200'000 + 1000 * (29 - day) + 2000 * hour + 5000 * (bits / 1000 % 6) + (is_wrong ? 100'000 : 0) << "\n";
  }
}

TEST(ModelLife, WeightsTimesAndScaledLabelsAreTheSameForTheWorkerPsctlAndAnotherProgram) {
  const std::string config = ConfigFile("sales.yaml", R"(
cluster: {servers: 2, workers: 2, shards: 8}
model: {type: linear, loss: squared, optimizer: {adagrad: {}, learning_rate: 0.2}}
data:
  format: csv
  standardize_label: true
  csv:
    label: price
    weight: weight
    numeric: [rooms]
    categorical: [town]
    datetime: {sold: {age_days: NUMBER, age_at: 2024-03-01, transform: STANDARDIZE}}
train: {epochs: 6, batch_size: 32}
)");
  WriteSales(TestFile("sales_a.csv"), 0, 6000);
  WriteSales(TestFile("sales_t.csv"), 10'000, 1000);
  const std::string model = TestFile("sales.safetensors");
  const auto trained =
      Train(config, Sets({"data.train=" + TestFile("sales_a.csv"), "data.test=" + TestFile("sales_t.csv")}) +
                        std::vector<std::string>{"--model", model});
  // The deviation of a price is 17,000; what weighs nothing would add 20,000 to the mean.
  EXPECT_LT(MetricOf(trained.test, "rmse"), 3000);
  std::string output;
  ASSERT_EQ(RunPsctl({"evaluate", model, "--data", TestFile("sales_t.csv"), "--json"}, &output), "ended") << output;
  for (const char* metric : {"loss", "rmse", "mae"}) {
    const double want = MetricOf(trained.test, metric);
    EXPECT_NEAR(ValueIn(output, metric), want, 1e-5 * want) << metric;
  }
  EXPECT_EQ(ValueIn(output, "samples"), 1000);
  EXPECT_EQ(ValueIn(output, "weight"), 1200);
  ASSERT_EQ(RunPsctl({"predict", model, "--data", TestFile("sales_t.csv"), "--out", TestFile("prices.csv")}, &output),
            "ended")
      << output;
  const std::vector<double> scores = Scores(TestFile("prices.csv"));
  ASSERT_EQ(scores.size(), 1000u);
  if (!HasNumpy()) GTEST_SKIP() << "/usr/bin/python3 has no numpy";
  const std::vector<std::string> by_numpy = ByNumpy(model, TestFile("sales_t.csv"));
  ASSERT_EQ(by_numpy.size(), scores.size());
  for (size_t i = 0; i < scores.size(); ++i) EXPECT_NEAR(scores[i], std::stod(by_numpy[i]), 1e-6 * scores[i]);
}

}  // namespace
}  // namespace lodestone
