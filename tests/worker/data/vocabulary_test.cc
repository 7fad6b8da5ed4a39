#include "worker/data/vocabulary.h"

#include <memory>
#include <string>
#include <utility>

#include "common/base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/test_files.h"

namespace lodestone::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kClicks[] = "label,item,clicked,last\n1,a,b|a,b\n0,b,,a\n";

v1::Config ClicksConfig(const std::string& file) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {file});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("label");
  csv.add_categorical("item");
  csv.add_categorical("last");
  (*csv.mutable_multi())["clicked"].set_pooling(v1::MultiColumn::SUM);
  (*csv.mutable_vocabulary_of())["clicked"] = "item";
  return config;
}

absl::StatusOr<LoadedData> LoadOn(const v1::Config& config, std::shared_ptr<const v1::ModelDescription> model) {
  return LoadData(config, LabelKind::kClass, {}, /*with_test=*/false, nullptr, std::move(model));
}

Key KeyOf(const std::string& column, const std::string& text) { return StableHash(text, StableHash(column)); }

TEST(Vocabulary, TheSameTextIsOneKeyInColumnsThatShareIt) {
  const v1::Config config = ClicksConfig(WriteFile("clicks.csv", kClicks));
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(ReadAll(*data->train).keys,
              ElementsAre(KeyOf("item", "a"), KeyOf("last", "b"), KeyOf("item", "b"), KeyOf("item", "a"),
                          KeyOf("item", "b"), KeyOf("last", "a"), KeyOf("item", "")));
  const auto& columns = data->schema.description.categorical();
  EXPECT_EQ(columns.at(2).name(), "clicked");
  EXPECT_EQ(columns.at(2).vocabulary_of(), "item");
  EXPECT_EQ(columns.at(2).salt(), columns.at(0).salt());
  EXPECT_EQ(columns.at(1).vocabulary_of(), "");
}

TEST(Vocabulary, WhatCannotBeSharedIsNamed) {
  const std::string file = WriteFile("clicks.csv", kClicks);
  const auto message = [&](const std::string& column, const std::string& other) {
    v1::Config config = ClicksConfig(file);
    (*config.mutable_data()->mutable_csv()->mutable_vocabulary_of())[column] = other;
    const auto data = Load(config);
    EXPECT_EQ(data.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(data.status().message());
  };
  EXPECT_THAT(message("last", "seen"), HasSubstr("seen"));
  EXPECT_THAT(message("last", "label"), HasSubstr("column \"label\" has no categories"));
  EXPECT_THAT(message("last", "last"), HasSubstr("column \"last\" is its own anyhow"));
  EXPECT_THAT(message("last", "clicked"),
              HasSubstr("column \"clicked\" has the categories of item; name that one for \"last\" too"));
  v1::Config bucket = ClicksConfig(file);
  v1::CsvConfig& csv = *bucket.mutable_data()->mutable_csv();
  csv.clear_categorical();
  csv.add_categorical("last");
  (*csv.mutable_bucket())["item"] = v1::CsvConfig::LOG2;
  EXPECT_THAT(std::string(Load(bucket).status().message()), HasSubstr("in different ways (csv.bucket)"));
}

TEST(Vocabulary, AModelKeepsWhatItWasTrainedWith) {
  const std::string file = WriteFile("clicks.csv", kClicks);
  const auto trained = Load(ClicksConfig(file));
  ASSERT_TRUE(trained.ok()) << trained.status();
  v1::ModelDescription model;
  *model.mutable_data() = trained->schema.description;
  v1::Config silent = ClicksConfig(file), other = silent;
  silent.mutable_data()->mutable_csv()->clear_vocabulary_of();
  const auto known = std::make_shared<const v1::ModelDescription>(model);
  const auto again = LoadOn(silent, known);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ReadAll(*again->train).keys, ReadAll(*trained->train).keys);
  (*other.mutable_data()->mutable_csv()->mutable_vocabulary_of())["last"] = "item";
  EXPECT_THAT(
      std::string(LoadOn(other, known).status().message()),
      HasSubstr("the model was trained with categories of its own for column \"last\"; set csv.vocabulary_of as"));
}

}  // namespace
}  // namespace lodestone::worker
