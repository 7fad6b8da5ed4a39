// What the first rows of a data set look like.
#include "worker/data/data_survey.h"

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/worker/data/test_files.h"

namespace lodestone::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 40 rows: of numbers with gaps, a category, a constant, what tells the label, and the label once more.
std::string Rows() {
  std::string rows = "y,n,city,same,told,copy\n";
  for (int i = 0; i < 40; ++i) {
    const int label = i % 3 == 0;
    absl::StrAppend(&rows, label, ",", i % 4 == 0 ? "" : absl::StrCat(i - 10), ",c", i % 5, ",7,t",
                    label * 2 + i / 20 % 2, ",", label, "\n");
  }
  return rows;
}

v1::Config SurveyConfig(const std::string& file) {
  v1::Config config = FilesConfig(v1::DataConfig::AUTO, {file});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("y");
  for (const char* name : {"n", "same", "copy"}) csv.add_numeric(name);
  for (const char* name : {"city", "told"}) csv.add_categorical(name);
  return config;
}

const SurveyedColumn& ColumnOf(const DataSurvey& survey, const std::string& name) {
  for (const SurveyedColumn& column : survey.columns) {
    if (column.name == name) return column;
  }
  ADD_FAILURE() << name;
  return survey.columns.at(0);
}

TEST(DataSurvey, SaysWhatIsInTheColumns) {
  const v1::Config config = SurveyConfig(WriteFile("survey.csv", Rows()));
  const auto survey = SurveyData(config.data(), LabelKind::kClass, 1000);
  ASSERT_TRUE(survey.ok()) << survey.status();
  EXPECT_EQ(survey->found.format, v1::DataConfig::CSV);
  EXPECT_TRUE(survey->format_detected);
  EXPECT_TRUE(survey->whole);
  EXPECT_EQ(survey->rows, 40u);
  EXPECT_EQ(survey->samples_about, 40u);
  EXPECT_EQ(survey->features, 80u);
  EXPECT_EQ(survey->keys, 5u + 4u);
  EXPECT_THAT(survey->schema.class_names, ElementsAre("0", "1"));
  EXPECT_THAT(survey->schema.class_counts, ElementsAre(26u, 14u));
  const SurveyedColumn& n = ColumnOf(*survey, "n");
  EXPECT_TRUE(n.is_number);
  EXPECT_EQ(n.rule, "none");
  EXPECT_EQ(n.missing, 10u);
  EXPECT_EQ(n.distinct, 31u);  // With the missing one.
  EXPECT_EQ(n.least, -9);
  EXPECT_EQ(n.greatest, 29);
  EXPECT_FALSE(n.tells_label);
  EXPECT_EQ(ColumnOf(*survey, "city").distinct, 5u);
  EXPECT_FALSE(ColumnOf(*survey, "city").tells_label);
  EXPECT_EQ(ColumnOf(*survey, "same").distinct, 1u);
  EXPECT_FALSE(ColumnOf(*survey, "same").tells_label);
  EXPECT_TRUE(ColumnOf(*survey, "told").tells_label);
  EXPECT_FALSE(ColumnOf(*survey, "told").is_label);
  EXPECT_TRUE(ColumnOf(*survey, "copy").is_label);
}

TEST(DataSurvey, NumbersAreThoseOfTheFileWhateverIsDoneToThem) {
  v1::Config config = SurveyConfig(WriteFile("survey.csv", Rows()));
  (*config.mutable_data()->mutable_csv()->mutable_transform())["n"] = v1::LOG_STANDARDIZE;
  config.mutable_data()->mutable_csv()->add_missing_indicator("n");
  const auto survey = SurveyData(config.data(), LabelKind::kClass, 1000);
  ASSERT_TRUE(survey.ok()) << survey.status();
  EXPECT_EQ(survey->columns.size(), 5u);
  EXPECT_EQ(ColumnOf(*survey, "n").greatest, 29);
  EXPECT_EQ(ColumnOf(*survey, "n").rule, "log_standardize");
  EXPECT_EQ(survey->schema.numeric_count, 4u);  // With the indicator.
}

TEST(DataSurvey, ReadsNoMoreRowsThanItMayAndSaysSo) {
  const v1::Config config = SurveyConfig(WriteFile("survey.csv", Rows()));
  const auto survey = SurveyData(config.data(), LabelKind::kClass, 10);
  ASSERT_TRUE(survey.ok()) << survey.status();
  EXPECT_EQ(survey->rows, 10u);
  EXPECT_FALSE(survey->whole);
}

TEST(DataSurvey, CountsSeveralCategoriesAndColumnsOfALibsvmFileNotAtAll) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {WriteFile("multi.csv", "y,tags\n1,a|b\n0,b\n1,\n")});
  config.mutable_data()->mutable_csv()->set_label("y");
  (*config.mutable_data()->mutable_csv()->mutable_multi())["tags"];
  auto survey = SurveyData(config.data(), LabelKind::kClass, 10);
  ASSERT_TRUE(survey.ok()) << survey.status();
  EXPECT_EQ(survey->keys, 3u);
  EXPECT_EQ(ColumnOf(*survey, "tags").missing, 1u);
  EXPECT_EQ(ColumnOf(*survey, "tags").distinct, 3u);
  EXPECT_EQ(ColumnOf(*survey, "tags").rule, "mean");

  config = FilesConfig(v1::DataConfig::AUTO, {WriteFile("x.libsvm", "1 3:1 5:2\n0 3:1\n")});
  survey = SurveyData(config.data(), LabelKind::kClass, 10);
  ASSERT_TRUE(survey.ok()) << survey.status();
  EXPECT_TRUE(survey->columns.empty());
  EXPECT_EQ(survey->keys, 2u);
  EXPECT_EQ(survey->features, 3u);
}

TEST(DataSurvey, ErrorsNameFileAndLine) {
  v1::Config config = SurveyConfig(WriteFile("broken.csv", Rows() + "1,x,c,7,t,1\n"));
  const auto survey = SurveyData(config.data(), LabelKind::kClass, 1000);
  ASSERT_FALSE(survey.ok());
  EXPECT_THAT(std::string(survey.status().message()), HasSubstr("broken.csv:42:3: \"x\" in column \"n\""));
  config.mutable_data()->set_bad_lines_max(1);
  const auto tolerant = SurveyData(config.data(), LabelKind::kClass, 1000);
  ASSERT_TRUE(tolerant.ok()) << tolerant.status();
  EXPECT_EQ(tolerant->malformed, 1u);
}

TEST(DataSurvey, ATestFileThatIsReadOtherwiseIsAnError) {
  v1::Config config = SurveyConfig(WriteFile("survey.csv", Rows()));
  config.mutable_data()->add_test(WriteFile("other.csv", "y,n,city,same,told\n1,2,c,7,t\n"));
  EXPECT_FALSE(SurveyData(config.data(), LabelKind::kClass, 1000).ok());
  config.mutable_data()->set_test(0, WriteFile("unknown.csv", "y,n,city,same,told,copy\n2,2,c,7,t,1\n"));
  const auto survey = SurveyData(config.data(), LabelKind::kClass, 1000);
  ASSERT_FALSE(survey.ok());
  EXPECT_THAT(std::string(survey.status().message()), HasSubstr("unknown.csv:2:1: label \"2\" is not among"));
  config.mutable_data()->set_test(0, WriteFile("empty.csv", "y,n,city,same,told,copy\n"));
  EXPECT_THAT(std::string(SurveyData(config.data(), LabelKind::kClass, 1000).status().message()),
              HasSubstr("empty.csv: no sample in the test files"));
  config.mutable_data()->add_test(WriteFile("empty_too.csv", "y,n,city,same,told,copy\n"));
  EXPECT_THAT(std::string(SurveyData(config.data(), LabelKind::kClass, 1000).status().message()),
              HasSubstr("empty.csv: no sample in the test files"));
}

TEST(DataFiles, ATestFileThatIsTrainedOnIsAnErrorForEveryWorker) {
  std::filesystem::create_directories(TestPath("days"));
  for (const char* name : {"days/0.csv", "days/1.csv", "days/2.csv"}) WriteFile(name, "1,2\n0,3\n");
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {TestPath("days/*.csv")}, {TestPath("days/2.csv")});
  ExpectError(Load(config), {"data.test", "days/2.csv is in data.train too", "data.test_share"});
  // One that does not judge, too.
  EXPECT_FALSE(LoadData(config, LabelKind::kClass, {1, 2}, /*with_test=*/false, nullptr).ok());
  // Under another name.
  std::filesystem::create_symlink(TestPath("days/1.csv"), TestPath("link.csv"));
  config.mutable_data()->set_test(0, TestPath("link.csv"));
  ExpectError(Load(config), {"link.csv is in data.train too, as", "days/1.csv"});
  config.mutable_data()->set_train(0, TestPath("days/[02].csv"));
  EXPECT_TRUE(Load(config).ok());
}

TEST(DataFiles, WithoutFilesThereIsNothingToTrainOnUnlessItSaysHowToMakeData) {
  v1::Config config;
  ExpectError(Load(config), {"data.train", "data.format: generated"});
  config.mutable_data()->mutable_generated()->set_train_samples(10);
  EXPECT_TRUE(Load(config).ok());
}

}  // namespace
}  // namespace lodestone::worker
