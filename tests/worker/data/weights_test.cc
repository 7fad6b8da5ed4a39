// Samples with weights: csv.weight, and files without labels.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/data/test_files.h"
#include "worker/data/data_survey.h"

namespace lodestone::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kWeightsRows[] = "x,w,y\n1,2,a\n2,0.5,b\n3,0,a\n4,1.5,b\n";

v1::Config WeightsConfig(const std::string& rows, const std::vector<std::string>& test = {}) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {WriteFile("weights.csv", rows)}, test);
  config.mutable_data()->mutable_csv()->set_label("y");
  config.mutable_data()->mutable_csv()->set_weight("w");
  return config;
}

std::string WeightsErrorOf(const v1::Config& config, LabelKind kind = LabelKind::kClass) {
  return std::string(Load(config, kind).status().message());
}

TEST(Weights, AreReadFromTheirColumnWhichIsNoFeature) {
  const auto data = Load(WeightsConfig(kWeightsRows));
  ASSERT_TRUE(data.ok()) << data.status();
  const Batch batch = ReadAll(*data->train);
  EXPECT_THAT(batch.weights, ElementsAre(2, 0.5f, 0, 1.5f));
  EXPECT_THAT(batch.numeric, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(batch.weight_sum(), 4);
  EXPECT_EQ(data->schema.description.weight(), "w");
}

TEST(Weights, AreInBatchesOfAnyOrderAndFewOfThem) {
  const auto data = Load(WeightsConfig(kWeightsRows));
  ASSERT_TRUE(data.ok()) << data.status();
  Batch batch;
  data->train->Read(std::vector<uint64_t>{3, 0}, &batch);
  EXPECT_THAT(batch.weights, ElementsAre(1.5f, 2));
}

TEST(Weights, WithoutTheColumnEachSampleCountsOne) {
  v1::Config config = WeightsConfig(kWeightsRows);
  config.mutable_data()->mutable_csv()->clear_weight();
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  const Batch batch = ReadAll(*data->train);
  EXPECT_THAT(batch.weights, IsEmpty());
  EXPECT_EQ(batch.weights_or_null(), nullptr);
  EXPECT_EQ(batch.weight_sum(), 4);
  EXPECT_THAT(data->schema.class_weights, IsEmpty());
}

TEST(Weights, MayBeAFeatureToo) {
  v1::Config config = WeightsConfig(kWeightsRows);
  config.mutable_data()->mutable_csv()->add_numeric("w");
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(ReadAll(*data->train).numeric, ElementsAre(2, 0.5f, 0, 1.5f));
}

TEST(Weights, WeighTheLabelsStatistics) {
  const auto classes = Load(WeightsConfig(kWeightsRows));
  ASSERT_TRUE(classes.ok()) << classes.status();
  EXPECT_THAT(classes->schema.class_counts, ElementsAre(2u, 2u));
  EXPECT_THAT(classes->schema.class_weights, ElementsAre(2, 2));
  EXPECT_EQ(classes->schema.label_mean, 0.5);
  v1::Config config = WeightsConfig("x,w,y\n1,3,10\n1,1,2\n1,0,1000\n");
  config.mutable_data()->set_standardize_label(true);
  const auto numbers = Load(config, LabelKind::kNumber);
  ASSERT_TRUE(numbers.ok()) << numbers.status();
  EXPECT_EQ(numbers->schema.label_mean, 8);
  EXPECT_DOUBLE_EQ(numbers->schema.label_deviation, std::sqrt(12.0));  // (3 * 2^2 + 6^2) / 4
}

TEST(Weights, ThatAreNoneAreErrorsThatNameLineAndColumn) {
  for (const char* bad : {"-1", "nan", "inf", "1e300", "x"}) {
    EXPECT_THAT(WeightsErrorOf(WeightsConfig(absl::StrCat("x,w,y\n1,2,a\n2,", bad, ",b\n"))),
                testing::AllOf(HasSubstr("weights.csv:3:3"), HasSubstr("in column \"w\" is no weight: csv.weight takes "
                                                                       "finite numbers that are not negative")))
        << bad;
  }
  EXPECT_THAT(WeightsErrorOf(WeightsConfig("x,w,y\n1,,a\n")), HasSubstr("the weight (column \"w\") is missing"));
  v1::Config tolerant = WeightsConfig("x,w,y\n1,2,a\n2,-1,b\n3,1,b\n");
  tolerant.mutable_data()->set_bad_lines_max(1);
  const auto data = Load(tolerant);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train->size(), 2u);
}

TEST(Weights, ThatAreAllZeroAreAnErrorInTrainingAndTestData) {
  EXPECT_THAT(WeightsErrorOf(WeightsConfig("x,w,y\n1,0,a\n2,0,b\n")),
              HasSubstr("all training samples have the weight 0 in column \"w\""));
  EXPECT_THAT(WeightsErrorOf(WeightsConfig(kWeightsRows, {WriteFile("test.csv", "x,w,y\n1,0,a\n")})),
              testing::AllOf(HasSubstr("test.csv"), HasSubstr("all test samples have the weight 0")));
}

TEST(Weights, OfAColumnThatCannotHaveThemAreRefused) {
  v1::Config config = WeightsConfig(kWeightsRows);
  config.mutable_data()->mutable_csv()->set_weight("nothing");
  EXPECT_THAT(WeightsErrorOf(config), HasSubstr("csv.weight: there is no column \"nothing\""));
  config.mutable_data()->mutable_csv()->set_weight("y");
  EXPECT_THAT(WeightsErrorOf(config), HasSubstr("csv.weight: column \"y\" is the label"));
  v1::Config sparse = FilesConfig(v1::DataConfig::LIBSVM, {WriteFile("weights.libsvm", "1 1:1\n0 2:1\n")});
  sparse.mutable_data()->mutable_csv()->set_weight("w");
  EXPECT_THAT(WeightsErrorOf(sparse), HasSubstr("csv.weight: samples of libsvm files have no column of weights"));
  v1::Config generated;
  generated.mutable_data()->mutable_generated();
  generated.mutable_data()->mutable_csv()->set_weight("w");
  EXPECT_THAT(WeightsErrorOf(generated), HasSubstr("csv.weight is for files, but the data is generated"));
  generated.mutable_data()->mutable_csv()->clear_weight();
  generated.mutable_data()->set_standardize_label(true);
  EXPECT_THAT(WeightsErrorOf(generated, LabelKind::kNumber), HasSubstr("data.standardize_label is for files"));
}

TEST(Weights, OnADiskAreThoseInMemory) {
  std::string rows = "x,w,y\n";
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&rows, i, ",", i % 7, ",", i % 2, "\n");
  v1::Config config = WeightsConfig(rows);
  const auto memory = Load(config);
  config.mutable_data()->set_memory_max_bytes(20'000);
  config.mutable_data()->set_spill_dir(TestPath("spilled"));
  const auto disk = Load(config);
  ASSERT_TRUE(memory.ok() && disk.ok()) << memory.status() << disk.status();
  EXPECT_GT(disk->spilled_bytes, 0u);
  const Batch batch = ReadAll(*disk->train);
  EXPECT_EQ(batch.weights, ReadAll(*memory->train).weights);
  EXPECT_EQ(batch.weights[4999], 4999 % 7);
}

TEST(Weights, AreInTheSurvey) {
  const auto survey = SurveyData(WeightsConfig(kWeightsRows).data(), LabelKind::kClass, 1000);
  ASSERT_TRUE(survey.ok()) << survey.status();
  EXPECT_EQ(survey->schema.description.weight(), "w");
  EXPECT_EQ(survey->weight_sum, 4);
  EXPECT_EQ(survey->weight_least, 0);
  EXPECT_EQ(survey->weight_greatest, 2);
  EXPECT_EQ(survey->weightless, 1u);
}

TEST(Labels, OfFilesThatHaveNoneAreOne) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {WriteFile("chosen.csv", "user,item\n7,3\n8,4\n")});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("");
  csv.add_categorical("user");
  csv.add_categorical("item");
  const auto data = Load(config, LabelKind::kNumber);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.field_count, 2u);
  EXPECT_THAT(ReadAll(*data->train).labels, ElementsAre(1, 1));
}

TEST(Labels, ThatThereAreNoneOfMakeNoHeaderOfALineWithAGap) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {WriteFile("gap.csv", "7,\n8,4\n")});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("");
  csv.add_numeric("0-1");
  const auto data = Load(config, LabelKind::kNumber);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(ReadAll(*data->train).numeric, ElementsAre(7, 0, 8, 4));
}

TEST(Labels, ThatAreScaledAreNumbersWithTheirDeviation) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {WriteFile("scaled.csv", "1,1e6\n2,1e6\n3,1000003\n")});
  config.mutable_data()->set_standardize_label(true);
  const auto data = Load(config, LabelKind::kNumber);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.label_mean, 1'000'001);
  EXPECT_DOUBLE_EQ(data->schema.label_deviation, std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(data->schema.description.label_deviation(), std::sqrt(2.0));
  EXPECT_THAT(ReadAll(*data->train).labels, ElementsAre(1e6f, 1e6f, 1000003.0f));  // As they stand in the file.
  EXPECT_THAT(WeightsErrorOf(config), HasSubstr("data.standardize_label scales numbers"));
  config.mutable_data()->set_standardize_label(false);
  EXPECT_EQ(Load(config, LabelKind::kNumber)->schema.label_deviation, 0);
}

}  // namespace
}  // namespace lodestone::worker
