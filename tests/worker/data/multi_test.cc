// Fields that have any number of categories, and numbers that say what is missing.
#include "worker/data/multi.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "tests/worker/data/test_files.h"
#include "worker/data/sample_parser.h"
#include "worker/data/sample_stream.h"

namespace lodestone::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Key KeyOf(const std::string& column, const std::string& text) { return StableHash(text, StableHash(column)); }

v1::Config MultiConfig(const std::string& file) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {file});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("y");
  csv.add_categorical("city");
  csv.add_missing("?");
  v1::MultiColumn& tags = (*csv.mutable_multi())["tags"];
  tags.set_separator("|");
  tags.set_values_max(3);
  v1::MultiColumn& words = (*csv.mutable_multi())["words"];
  words.set_separator(" ");
  words.set_pooling(v1::MultiColumn::MAX);
  return config;
}

constexpr char kRows[] =
    "y,tags,city,words\n"
    "1,a|b,paris,the cat\n"
    "0, a | |?| b |c|d,rome,cat\n"
    "1,?,?,\n";

TEST(Multi, AFieldsTextIsCutIntoItsCategories) {
  const auto data = Load(MultiConfig(WriteFile("multi.csv", kRows)));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.field_count, 3u);
  EXPECT_THAT(data->schema.pooling, ElementsAre(v1::MultiColumn::MEAN, v1::MultiColumn::MEAN, v1::MultiColumn::MAX));
  const Batch batch = ReadAll(*data->train);
  // Field by field: city, then tags and words. The second sample's tags are cut at three; blanks, empty pieces and
  // those that stand for missing ones are none.
  EXPECT_THAT(batch.keys, ElementsAre(KeyOf("city", "paris"), KeyOf("tags", "a"), KeyOf("tags", "b"),
                                      KeyOf("words", "the"), KeyOf("words", "cat"), KeyOf("city", "rome"),
                                      KeyOf("tags", "a"), KeyOf("tags", "b"), KeyOf("tags", "c"), KeyOf("words", "cat"),
                                      KeyOf("city", ""), KeyOf("tags", ""), KeyOf("words", "")));
  EXPECT_THAT(batch.offsets, ElementsAre(0, 1, 3, 5, 6, 9, 10, 11, 12, 13));
  const float third = 1.0f / 3;
  EXPECT_THAT(batch.values, ElementsAre(1, 0.5f, 0.5f, 1, 1, 1, third, third, third, 1, 1, 1, 1));
}

TEST(Multi, SamplesReadInAnotherOrderKeepTheirFields) {
  const auto data = Load(MultiConfig(WriteFile("multi.csv", kRows)));
  ASSERT_TRUE(data.ok()) << data.status();
  Batch batch;
  data->train->Read(std::vector<uint64_t>{2, 0}, &batch);
  EXPECT_THAT(batch.offsets, ElementsAre(0, 1, 2, 3, 4, 6, 8));
  EXPECT_EQ(batch.keys[0], KeyOf("city", ""));
  EXPECT_EQ(batch.keys[4], KeyOf("tags", "a"));
}

TEST(Multi, SamplesOnADiskAreThoseInMemory) {
  std::string rows = "y,tags,city,words\n";
  for (int i = 0; i < 5000; ++i) {
    absl::StrAppend(&rows, i % 2, ",t", i % 7, i % 3 == 0 ? "|u" : "", i % 5 == 0 ? "|v|w" : "", ",c", i % 11, ",x y",
                    i % 4, "\n");
  }
  v1::Config config = MultiConfig(WriteFile("many.csv", rows));
  const auto memory = Load(config);
  config.mutable_data()->set_memory_max_bytes(100'000);
  config.mutable_data()->set_spill_dir(TestPath("spilled"));
  const auto disk = Load(config);
  ASSERT_TRUE(memory.ok()) << memory.status();
  ASSERT_TRUE(disk.ok()) << disk.status();
  EXPECT_GT(disk->spilled_bytes, 100'000u);
  const Batch a = ReadAll(*memory->train), b = ReadAll(*disk->train);
  EXPECT_EQ(a.keys, b.keys);
  EXPECT_EQ(a.offsets, b.offsets);
  EXPECT_EQ(a.values, b.values);
  EXPECT_EQ(a.offsets.size(), 5000u * 3 + 1);
}

TEST(Multi, AColumnHasOneRole) {
  v1::Config config = MultiConfig(WriteFile("multi.csv", kRows));
  config.mutable_data()->mutable_csv()->add_categorical("tags");
  ExpectError(Load(config), {"csv.multi: column \"tags\" is already categorical"});
}

TEST(Multi, AllThatIsNotNamedIsNoFeatureWhereMultiNamesAColumn) {
  v1::Config config = MultiConfig(WriteFile("plain.csv", "y,tags,words,n\n1,a|b,x,5\n0,c,y,6\n"));
  config.mutable_data()->mutable_csv()->clear_categorical();
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.numeric_count, 0u);
  EXPECT_EQ(data->schema.field_count, 2u);
}

// A model on the data, as far as it is described.
std::shared_ptr<const v1::ModelDescription> Described(const LoadedData& data) {
  auto model = std::make_shared<v1::ModelDescription>();
  *model->mutable_data() = data.schema.description;
  return model;
}

TEST(Multi, AModelReadsFilesAndSamplesAsItWasTrained) {
  v1::Config config = MultiConfig(WriteFile("multi.csv", kRows));
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  const auto& described = data->schema.description.categorical();
  EXPECT_EQ(described[0].pooling(), "");
  EXPECT_EQ(described[1].pooling(), "mean");
  EXPECT_EQ(described[1].values_max(), 3u);
  EXPECT_EQ(described[2].pooling(), "max");
  EXPECT_EQ(described[2].separator(), " ");
  const auto model = Described(*data);
  const Batch trained = ReadAll(*data->train);

  // A file whose columns stand in another order, without labels.
  const std::string other = WriteFile("other.csv",
                                      "words,city,tags\n"
                                      "the cat,paris,a|b\n"
                                      "cat,rome, a | |?| b |c|d\n"
                                      ",?,?\n");
  auto stream = SampleStream::Open(config.data(), model, {other}, {});
  ASSERT_TRUE(stream.ok()) << stream.status();
  Batch batch;
  std::vector<std::string> ids;
  ASSERT_TRUE((*stream)->Next(100, &batch, &ids).ok());
  EXPECT_EQ(batch.keys, trained.keys);
  EXPECT_EQ(batch.offsets, trained.offsets);
  EXPECT_EQ(batch.values, trained.values);

  // Fields of a request.
  auto parser = SampleParser::OfColumns(config.data(), model, {"tags", "words", "city"});
  ASSERT_TRUE(parser.ok()) << parser.status();
  Batch request;
  request.offsets = {0};
  ASSERT_TRUE((*parser)->AddFields({{"a|b", 1}, {"the cat", 1}, {"paris", 1}}, &request).ok());
  EXPECT_THAT(request.offsets, ElementsAre(0, 1, 3, 5));
  EXPECT_EQ(request.keys, std::vector<Key>(trained.keys.begin(), trained.keys.begin() + 5));

  // Other settings are another model.
  (*config.mutable_data()->mutable_csv()->mutable_multi())["tags"].set_pooling(v1::MultiColumn::SUM);
  ExpectError(LoadData(config, LabelKind::kClass, {}, true, nullptr, model),
              {"mean of up to 3", "csv.multi as it was"});
}

// By file: lists of three levels and of two, rows that go on in the next page, dictionaries, both versions of pages.
class ParquetLists : public testing::TestWithParam<std::string> {};

std::string GivenParquet(const std::string& name) {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"), "/tests/worker/data/parquet/",
                      name);
}

v1::Config ListsConfig(const std::string& file, uint32_t values_max) {
  v1::Config config = FilesConfig(v1::DataConfig::AUTO, {GivenParquet(file)});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("label");
  for (const char* name : {"words", "numbers"}) (*csv.mutable_multi())[name].set_values_max(values_max);
  return config;
}

TEST_P(ParquetLists, HoldTheSamplesThatTheSameRowsInCsvAre) {
  for (const uint32_t values_max : {50, 2}) {
    for (const char* missing : {"", "w3"}) {
      v1::Config csv = ListsConfig("lists.csv", values_max), lists = ListsConfig(GetParam() + ".parquet", values_max);
      for (v1::Config* config : {&csv, &lists}) {
        if (*missing != 0) config->mutable_data()->mutable_csv()->add_missing(missing);
      }
      const auto text = Load(csv), parquet = Load(lists);
      ASSERT_TRUE(text.ok()) << text.status();
      ASSERT_TRUE(parquet.ok()) << parquet.status();
      const Batch expected = ReadAll(*text->train), read = ReadAll(*parquet->train);
      ASSERT_EQ(read.size, 300u);
      EXPECT_EQ(read.labels, expected.labels);
      EXPECT_EQ(read.offsets, expected.offsets);
      EXPECT_EQ(read.keys, expected.keys);
      EXPECT_EQ(read.values, expected.values);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Writers, ParquetLists, testing::Values("lists_arrow_v1", "lists_arrow_v2", "lists_parquetjs"),
                         [](const auto& test) { return test.param; });

// Regression: rows of the group were looked up among the values of the lists.
TEST(Multi, AGroupHasNoLists) {
  v1::Config config = ListsConfig("lists_arrow_v1.parquet", 2);
  config.mutable_data()->mutable_csv()->set_group("words");
  ExpectError(Load(config),
              {"lists_arrow_v1.parquet", "words", "it has lists; a label, an id or a group is one value"});
}

// Regression: so were those of the weight.
TEST(Multi, AWeightHasNoLists) {
  v1::Config config = ListsConfig("lists_arrow_v1.parquet", 2);
  config.mutable_data()->mutable_csv()->set_weight("words");
  ExpectError(Load(config), {"lists_arrow_v1.parquet", "words", "one value for each row, and so is a weight"});
}

TEST(Multi, ATextColumnOfParquetIsCutAsOneOfCsv) {
  v1::Config config = FilesConfig(v1::DataConfig::PARQUET, {GivenParquet("arrow_gzip_v1.parquet")});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("label");
  (*csv.mutable_multi())["word"].set_separator("w");
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  const Batch batch = ReadAll(*data->train);
  EXPECT_EQ(batch.keys[0], KeyOf("word", "0"));  // "w0": nothing, and 0.
  EXPECT_EQ(batch.offsets[1], 1u);
}

TEST(MissingIndicator, IsANumberBesideTheColumns) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {WriteFile("gaps.csv",
                                                                  "y,a,b\n"
                                                                  "1,2,\n"
                                                                  "0,,3\n"
                                                                  "1,4,5\n")});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("y");
  csv.add_missing_indicator("a");
  (*csv.mutable_transform())["a"] = v1::STANDARDIZE;
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.numeric_count, 3u);
  EXPECT_THAT(ReadAll(*data->train).numeric, ElementsAre(-1, 0, 0, 0, 3, 1, 1, 5, 0));
  const auto& columns = data->schema.description.numeric();
  EXPECT_FALSE(columns[0].indicates_missing());
  EXPECT_EQ(columns[2].name(), "a");
  EXPECT_TRUE(columns[2].indicates_missing());

  // A model that was trained so reads new files so, and one that was not says what to change.
  const auto model = Described(*data);
  const auto again = LoadData(config, LabelKind::kClass, {}, true, nullptr, model);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ReadAll(*again->train).numeric, ReadAll(*data->train).numeric);
  csv.clear_missing_indicator();
  EXPECT_FALSE(LoadData(config, LabelKind::kClass, {}, true, nullptr, model).ok());
}

TEST(MissingIndicator, OfARangeIsOfItsNumericColumns) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {WriteFile("range.csv", "1,2,x,\n0,,y,3\n")});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_header(v1::CsvConfig::NO);
  csv.set_label("0");
  csv.add_numeric("1");
  csv.add_numeric("3");
  csv.add_categorical("2");
  csv.add_missing_indicator("1-3");
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(ReadAll(*data->train).numeric, ElementsAre(2, 0, 0, 1, 0, 3, 1, 0));
  csv.add_missing_indicator("2");
  ExpectError(Load(config), {"csv.missing_indicator: \"2\" is not numeric"});
}

}  // namespace
}  // namespace lodestone::worker
