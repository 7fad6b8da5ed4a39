// Dates and times, and the features that are made of them.
#include "worker/data/date_time.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "common/base/hash.h"
#include "tests/worker/data/test_files.h"
#include "worker/data/data_survey.h"
#include "worker/data/sample_parser.h"

namespace lodestone::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using TimeColumn = v1::DateTimeColumn;

// NaN: it is no time.
double ParsedTime(const std::string& text, TimeColumn::Format format = TimeColumn::AUTO) {
  double seconds = 0;
  return ParseTime(text, format, &seconds) ? seconds : std::nan("");
}

TEST(DateTime, ReadsIso8601) {
  // date -u -d ... +%s
  EXPECT_EQ(ParsedTime("1970-01-01"), 0);
  EXPECT_EQ(ParsedTime("2024-03-01"), 1709251200);
  EXPECT_EQ(ParsedTime("2024-02-29T12:34:56Z"), 1709210096);
  EXPECT_EQ(ParsedTime("2024-02-29 12:34:56"), 1709210096);
  EXPECT_EQ(ParsedTime("2024-02-29T12:34"), 1709210040);
  EXPECT_EQ(ParsedTime("2024-02-29T12:34:56.25Z"), 1709210096.25);
  EXPECT_EQ(ParsedTime("2024-02-29T14:34:56+02:00"), 1709210096);
  EXPECT_EQ(ParsedTime("2024-02-29T05:04:56-0730"), 1709210096);
  EXPECT_EQ(ParsedTime("2024-02-29T14:34:56+02"), 1709210096);
  EXPECT_EQ(ParsedTime("1969-12-31T23:59:59Z"), -1);
  EXPECT_EQ(ParsedTime("1900-01-01"), -2208988800);
}

TEST(DateTime, ReadsSecondsSince1970) {
  EXPECT_EQ(ParsedTime("1709210096"), 1709210096);
  EXPECT_EQ(ParsedTime("1709210096.5"), 1709210096.5);
  EXPECT_EQ(ParsedTime("-5"), -5);
  EXPECT_EQ(ParsedTime("-5", TimeColumn::EPOCH_SECONDS), -5);
}

TEST(DateTime, RefusesWhatIsNoTime) {
  for (const char* bad :
       {"2023-02-29", "2024-13-01", "2024-1-1", "2024-01-01T25:00", "2024-01-01T12", "2024-01-01T12:60",
        "2024-01-01T12:00+24:00", "2024-01-01T12:00Zx", "2024-01-01x", "yesterday", "01/02/2024", "1709210096000",
        "nan", "inf", "2024-01-01T12:00:00.", "2024-01-01 "}) {
    EXPECT_TRUE(std::isnan(ParsedTime(bad))) << bad;
  }
  EXPECT_TRUE(std::isnan(ParsedTime("1709210096", TimeColumn::ISO8601)));
  EXPECT_TRUE(std::isnan(ParsedTime("2024-03-01", TimeColumn::EPOCH_SECONDS)));
  EXPECT_TRUE(std::isnan(ParsedTime("")));
}

TEST(DateTime, GivesHourWeekdayAndAge) {
  const double friday = ParsedTime("2024-03-01T23:59:59Z");
  EXPECT_EQ((TimeRule{TimeRule::Part::kHour}).Of(friday), 23);
  EXPECT_EQ((TimeRule{TimeRule::Part::kWeekday}).Of(friday), 4);
  EXPECT_EQ((TimeRule{TimeRule::Part::kWeekday}).Of(0), 3);   // A Thursday.
  EXPECT_EQ((TimeRule{TimeRule::Part::kWeekday}).Of(-1), 2);  // The Wednesday before,
  EXPECT_EQ((TimeRule{TimeRule::Part::kHour}).Of(-1), 23);    // late.
  EXPECT_EQ((TimeRule{TimeRule::Part::kWeekday}).Of(4 * 86400), 0);
  const TimeRule age{TimeRule::Part::kAgeDays, TimeColumn::AUTO, ParsedTime("2024-03-11")};
  EXPECT_EQ(age.Of(ParsedTime("2024-03-01")), 10);
  EXPECT_EQ(age.Of(ParsedTime("2024-03-11T12:00Z")), -0.5);
  EXPECT_TRUE(std::isnan(age.Of(std::nan(""))));
}

TEST(DateTime, TextIsReadAsTheSameTime) {
  for (const double seconds : {0.0, -1.0, 1709210096.0, 951782400.0, -2208988800.0}) {
    EXPECT_EQ(ParsedTime(TimeText(seconds), TimeColumn::ISO8601), seconds);
  }
}

v1::Config TimesConfig(const std::string& file) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {file});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("y");
  csv.add_numeric("x");
  csv.add_categorical("city");
  TimeColumn& seen = (*csv.mutable_datetime())["seen"];
  seen.set_age_days(TimeColumn::NUMBER);
  seen.set_age_at("2024-03-11");
  TimeColumn& born = (*csv.mutable_datetime())["born"];
  born.set_hour(TimeColumn::NONE);
  born.set_weekday(TimeColumn::NUMBER);
  born.set_age_days(TimeColumn::CATEGORY);
  born.set_age_at("1970-01-31T00:00Z");
  return config;
}

constexpr char kTimesRows[] =
    "seen,x,born,city,y\n"
    "2024-03-01T23:59:59Z,5,86400,paris,1\n"
    ",6,,rome,0\n";

Key TimeKeyOf(const std::string& column, const std::string& text) { return StableHash(text, StableHash(column)); }

TEST(DateTime, ColumnsBecomeCategoriesAndNumbersInTheOrderOfTheirNames) {
  const auto data = Load(TimesConfig(WriteFile("times.csv", kTimesRows)));
  ASSERT_TRUE(data.ok()) << data.status();
  const Batch batch = ReadAll(*data->train);
  EXPECT_EQ(data->schema.field_count, 4u);
  EXPECT_THAT(batch.keys,
              ElementsAre(TimeKeyOf("city", "paris"), TimeKeyOf("born:age_days", "29"), TimeKeyOf("seen:hour", "23"),
                          TimeKeyOf("seen:weekday", "4"), TimeKeyOf("city", "rome"), TimeKeyOf("born:age_days", ""),
                          TimeKeyOf("seen:hour", ""), TimeKeyOf("seen:weekday", "")));
  const float age = static_cast<float>(9 + 1.0 / 86400);
  EXPECT_THAT(batch.numeric, ElementsAre(5, 4, age, 6, 0, 0));  // x, born's weekday (a Friday), seen's age.
}

TEST(DateTime, NumbersAreTransformed) {
  v1::Config config = TimesConfig(WriteFile("times.csv", kTimesRows));
  (*config.mutable_data()->mutable_csv()->mutable_datetime())["seen"].set_transform(v1::LOG);
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(ReadAll(*data->train).numeric[2], static_cast<float>(std::log1p(9 + 1.0 / 86400)));
}

TEST(DateTime, WhatIsNoTimeIsAnErrorThatNamesLineAndColumn) {
  const auto data =
      Load(TimesConfig(WriteFile("bad.csv", "seen,x,born,city,y\n2024-03-01,1,0,a,1\n1,1,02/03/24,a,0\n")));
  EXPECT_THAT(
      std::string(data.status().message()),
      testing::AllOf(HasSubstr("bad.csv:3:5"), HasSubstr("\"02/03/24\" in column \"born\" is no date or time")));
}

TEST(DateTime, ColumnsWithoutAFeatureOrAReferenceAreRefused) {
  const auto error_of = [](const auto& change) {
    v1::Config config = TimesConfig(WriteFile("times.csv", kTimesRows));
    change(config.mutable_data()->mutable_csv());
    return std::string(Load(config).status().message());
  };
  EXPECT_THAT(error_of([](v1::CsvConfig* csv) { (*csv->mutable_datetime())["born"].clear_age_at(); }),
              HasSubstr("csv.datetime: the age of column \"born\" needs age_at"));
  EXPECT_THAT(error_of([](v1::CsvConfig* csv) { (*csv->mutable_datetime())["born"].set_age_at("soon"); }),
              HasSubstr("\"soon\" is none"));
  EXPECT_THAT(error_of([](v1::CsvConfig* csv) {
                TimeColumn& born = (*csv->mutable_datetime())["born"];
                born.set_weekday(TimeColumn::NONE);
                born.set_age_days(TimeColumn::NONE);
              }),
              HasSubstr("csv.datetime: column \"born\" has no feature"));
  EXPECT_THAT(error_of([](v1::CsvConfig* csv) { csv->add_numeric("born"); }), HasSubstr("is already numeric"));
  EXPECT_THAT(error_of([](v1::CsvConfig* csv) { (*csv->mutable_datetime())["gone"]; }),
              HasSubstr("csv.datetime: there is no column \"gone\""));
}

// A description of a model on these columns.
std::shared_ptr<const v1::ModelDescription> TimesDescribed(const Schema& schema) {
  auto model = std::make_shared<v1::ModelDescription>();
  *model->mutable_data() = schema.description;
  return model;
}

TEST(DateTime, ADescribedModelReadsTheSameFeaturesWhereverItsColumnsStand) {
  const v1::Config config = TimesConfig(WriteFile("times.csv", kTimesRows));
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  const auto model = TimesDescribed(data->schema);
  const auto parser = SampleParser::OfColumns(config.data(), model, {"city", "born", "seen", "x"});
  ASSERT_TRUE(parser.ok()) << parser.status();
  Batch batch;
  std::vector<CsvField> fields(4);
  fields[0].text = "paris", fields[1].text = "86400", fields[2].text = "2024-03-01T23:59:59Z", fields[3].text = "5";
  ASSERT_TRUE((*parser)->AddFields(fields, &batch).ok());
  Batch trained;
  data->train->Read(std::vector<uint64_t>{0}, &trained);
  EXPECT_EQ(batch.keys, trained.keys);
  EXPECT_EQ(batch.numeric, trained.numeric);
}

TEST(DateTime, OtherSettingsThanAModelWasTrainedWithAreRefused) {
  v1::Config config = TimesConfig(WriteFile("times.csv", kTimesRows));
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  (*config.mutable_data()->mutable_csv()->mutable_datetime())["seen"].set_age_at("2024-03-12");
  const auto other = LoadData(config, LabelKind::kClass, {}, true, nullptr, TimesDescribed(data->schema));
  EXPECT_THAT(std::string(other.status().message()),
              HasSubstr("the model was trained with age_days (format auto, age_at 2024-03-11T00:00:00Z) of column "
                        "\"seen\"; set csv.datetime as it was"));
}

TEST(DateTime, PartsAreColumnsOfTheSurvey) {
  const auto survey = SurveyData(TimesConfig(WriteFile("times.csv", kTimesRows)).data(), LabelKind::kClass, 1000);
  ASSERT_TRUE(survey.ok()) << survey.status();
  std::vector<std::string> names;
  for (const SurveyedColumn& column : survey->columns) names.push_back(column.name);
  EXPECT_THAT(names,
              ElementsAre("x", "born:weekday", "seen:age_days", "city", "born:age_days", "seen:hour", "seen:weekday"));
  EXPECT_EQ(survey->columns[2].missing, 1u);
}

}  // namespace
}  // namespace lodestone::worker
