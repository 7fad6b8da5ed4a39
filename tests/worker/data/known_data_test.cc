// Data that is read as a model knows it: its columns, statistics and classes, whatever those of the files are.
#include <memory>
#include <string>
#include <vector>

#include "tests/worker/data/test_files.h"
#include "worker/data/sample_stream.h"

namespace lodestone::worker {
namespace {

using testing::HasSubstr;

v1::Config People(const std::string& path) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {path});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("kind");
  csv.add_numeric("age");
  csv.add_numeric("pay");
  csv.add_categorical("city");
  (*csv.mutable_transform())["age"] = v1::STANDARDIZE;
  return config;
}

constexpr char kFirst[] = "age,city,kind,pay\n10,Delft,b,1\n30,Gouda,a,2\n,Delft,a,3\n";

std::shared_ptr<const v1::ModelDescription> DescribedBy(const v1::Config& config) {
  const auto data = Load(config);
  EXPECT_TRUE(data.ok()) << data.status();
  auto model = std::make_shared<v1::ModelDescription>();
  *model->mutable_data() = data->schema.description;
  return model;
}

absl::StatusOr<LoadedData> LoadOn(const v1::Config& config, std::shared_ptr<const v1::ModelDescription> model) {
  return LoadData(config, LabelKind::kClass, {}, /*with_test=*/false, nullptr, std::move(model));
}

TEST(KnownData, IsDescribedWithNamesStatisticsSaltsAndClasses) {
  const v1::DataDescription data = DescribedBy(People(WriteFile("first.csv", kFirst)))->data();
  EXPECT_EQ(data.format(), "csv");
  EXPECT_TRUE(data.header());
  EXPECT_EQ(data.delimiter(), ",");
  EXPECT_EQ(data.label(), "kind");
  EXPECT_EQ(data.samples(), 3u);
  ASSERT_EQ(data.numeric_size(), 2);
  EXPECT_EQ(data.numeric(0).name(), "age");
  EXPECT_EQ(data.numeric(0).transform(), "standardize");
  EXPECT_EQ(data.numeric(0).mean(), 20);
  EXPECT_EQ(data.numeric(0).deviation(), 10);
  EXPECT_EQ(data.numeric(1).transform(), "none");
  ASSERT_EQ(data.categorical_size(), 1);
  EXPECT_EQ(data.categorical(0).name(), "city");
  EXPECT_NE(data.categorical(0).salt(), 0u);
  ASSERT_EQ(data.classes_size(), 2);
  EXPECT_EQ(data.classes(0).name(), "a");
  EXPECT_EQ(data.classes(0).samples(), 2u);
  EXPECT_EQ(data.classes(1).labels(0), "b");
}

TEST(KnownData, OfOtherFilesHasTheModelsStatisticsClassesAndKeys) {
  const auto model = DescribedBy(People(WriteFile("first.csv", kFirst)));
  const std::string moved = "pay,name,kind,city,age\n7,x,b,Gouda,50\n8,y,b,Delft,70\n";
  const auto data = LoadOn(People(WriteFile("moved.csv", moved)), model);
  ASSERT_TRUE(data.ok()) << data.status();
  const Batch batch = ReadAll(*data->train);
  const Batch first = ReadAll(*Load(People(WriteFile("first.csv", kFirst)))->train);
  EXPECT_EQ(batch.numeric, (std::vector<float>{3, 7, 5, 8}));
  EXPECT_EQ(batch.labels, (std::vector<float>{1, 1}));
  EXPECT_EQ(batch.keys, (std::vector<Key>{first.keys[1], first.keys[0]}));
  EXPECT_EQ(data->schema.class_names, (std::vector<std::string>{"a", "b"}));
}

TEST(KnownData, ThatLacksWhatTheModelReadsOrReadsItOtherwiseIsRefused) {
  const auto model = DescribedBy(People(WriteFile("first.csv", kFirst)));
  v1::Config config = People(WriteFile("second.csv", "age,city,kind,pay,rent\n10,Delft,b,1,2\n"));
  config.mutable_data()->mutable_csv()->mutable_numeric(1)->assign("rent");
  ExpectError(LoadOn(config, model), {"second.csv", "the model reads a numeric column \"pay\""});
  config = People(config.data().train(0));
  config.mutable_data()->mutable_csv()->add_numeric("rent");
  ExpectError(LoadOn(config, model), {"names 3 numeric columns", "trained on 2"});
  config = People(config.data().train(0));
  config.mutable_data()->mutable_csv()->clear_transform();
  ExpectError(LoadOn(config, model), {"with the transform standardize of column \"age\"", "csv.transform"});
  config = People(WriteFile("third.csv", "age,city,kind,pay\n10,Delft,c,1\n"));
  ExpectError(LoadOn(config, model), {"third.csv:2:", "label \"c\" is not among the 2 classes of the model (a, b)"});
  EXPECT_THAT(std::string(LoadData(config, LabelKind::kNumber, {}, false, nullptr, model).status().message()),
              HasSubstr("the model tells classes"));
}

TEST(KnownData, OfColumnsThatShareANameIsFoundAgain) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {WriteFile("twins.csv", "x,x,y\n1,2,0\n3,4,1\n")});
  config.mutable_data()->mutable_csv()->set_label("y");
  config.mutable_data()->mutable_csv()->add_numeric("0");
  config.mutable_data()->mutable_csv()->add_numeric("1");
  const auto model = DescribedBy(config);
  v1::Config again = FilesConfig(v1::DataConfig::CSV, {});  // By the names that the description has.
  again.mutable_data()->mutable_csv()->set_label("y");
  for (const auto& column : model->data().numeric()) again.mutable_data()->mutable_csv()->add_numeric(column.name());
  const auto stream =
      SampleStream::Open(again.data(), model, {TestPath("twins.csv")}, {.labels = true, .id_column = ""});
  ASSERT_TRUE(stream.ok()) << stream.status();
  Batch batch;
  std::vector<std::string> ids;
  ASSERT_TRUE((*stream)->Next(10, &batch, &ids).ok());
  EXPECT_EQ(batch.numeric, (std::vector<float>{1, 2, 3, 4}));
}

std::unique_ptr<SampleStream> Stream(const std::shared_ptr<const v1::ModelDescription>& model,
                                     std::vector<std::string> files, SampleStream::Options options) {
  v1::DataConfig config = People("").data();
  auto stream = SampleStream::Open(config, model, std::move(files), std::move(options));
  EXPECT_TRUE(stream.ok()) << stream.status();
  return *std::move(stream);
}

TEST(SampleStreamTest, GivesAllSamplesOfAllFilesInBatchesAsTheLoaderDoes) {
  const std::string first = WriteFile("first.csv", kFirst), empty = WriteFile("empty.csv", "");
  const auto model = DescribedBy(People(first));
  const Batch all = ReadAll(*Load(People(first))->train);
  const auto stream = Stream(model, {first, empty, first}, {.labels = true, .id_column = ""});
  Batch batch;
  std::vector<std::string> ids, names;
  std::vector<float> numeric, labels;
  std::vector<Key> keys;
  std::vector<size_t> sizes;
  do {
    ASSERT_TRUE(stream->Next(4, &batch, &ids).ok());
    sizes.push_back(batch.size);
    names.insert(names.end(), ids.begin(), ids.end());
    numeric.insert(numeric.end(), batch.numeric.begin(), batch.numeric.end());
    labels.insert(labels.end(), batch.labels.begin(), batch.labels.end());
    keys.insert(keys.end(), batch.keys.begin(), batch.keys.end());
  } while (batch.size > 0);
  EXPECT_EQ(sizes, (std::vector<size_t>{4, 2, 0}));
  EXPECT_EQ(names, (std::vector<std::string>{"0", "1", "2", "3", "4", "5"}));
  const auto twice = [](auto values) {
    const auto once = values;
    values.insert(values.end(), once.begin(), once.end());
    return values;
  };
  EXPECT_EQ(numeric, twice(all.numeric));
  EXPECT_EQ(labels, twice(all.labels));
  EXPECT_EQ(keys, twice(all.keys));
}

TEST(SampleStreamTest, NeedsNoLabelsUnlessTheyAreWantedAndNamesSamplesByAColumn) {
  const auto model = DescribedBy(People(WriteFile("first.csv", kFirst)));
  const std::string file = WriteFile("unlabelled.csv", "who,age,city,pay\nann,10,Delft,1\n\"b,c\",30,Gouda,2\n");
  const auto stream = Stream(model, {file}, {.labels = false, .id_column = "who"});
  Batch batch;
  std::vector<std::string> ids;
  ASSERT_TRUE(stream->Next(10, &batch, &ids).ok());
  EXPECT_EQ(batch.size, 2u);
  EXPECT_EQ(ids, (std::vector<std::string>{"ann", "b,c"}));
  EXPECT_THAT(
      std::string(
          SampleStream::Open(People("").data(), model, {file}, {.labels = true, .id_column = ""}).status().message()),
      HasSubstr("there is no column \"kind\""));
  EXPECT_THAT(std::string(SampleStream::Open(People("").data(), model, {file}, {.labels = false, .id_column = "no"})
                              .status()
                              .message()),
              HasSubstr("no column \"no\""));
}

// Regression: the samples of a file without weights got the last weight of the file before.
TEST(SampleStreamTest, SamplesOfAFileWithoutWeightsCountOne) {
  const std::string weighted = WriteFile("weighted.csv", "age,city,kind,pay,w\n10,Delft,b,1,3\n30,Gouda,a,2,0.5\n");
  const std::string plain = WriteFile("plain.csv", kFirst);
  v1::Config config = People(weighted);
  config.mutable_data()->mutable_csv()->set_weight("w");
  const auto model = DescribedBy(config);
  for (const bool weighted_first : {true, false}) {
    auto files = weighted_first ? std::vector{weighted, plain} : std::vector{plain, weighted};
    const auto stream = Stream(model, files, {.labels = true, .id_column = ""});
    Batch batch;
    std::vector<std::string> ids;
    ASSERT_TRUE(stream->Next(10, &batch, &ids).ok());
    EXPECT_EQ(batch.weights,
              weighted_first ? (std::vector<float>{3, 0.5f, 1, 1, 1}) : (std::vector<float>{1, 1, 1, 3, 0.5f}));
  }
}

// Regression: and those of a file without groups were of the last group of the file before.
TEST(SampleStreamTest, SamplesOfAFileWithoutGroupsAreOfNone) {
  const std::string grouped = WriteFile("grouped.csv", "age,city,kind,pay,user\n10,Delft,b,1,ann\n30,Gouda,a,2,bob\n");
  const std::string plain = WriteFile("plain.csv", kFirst);
  v1::Config config = People(grouped);
  config.mutable_data()->mutable_csv()->set_group("user");
  const auto stream = Stream(DescribedBy(config), {grouped, plain}, {.labels = true, .id_column = ""});
  Batch batch;
  std::vector<std::string> ids;
  ASSERT_TRUE(stream->Next(10, &batch, &ids).ok());
  const uint64_t none = GroupOf("");
  EXPECT_EQ(batch.groups, (std::vector<uint64_t>{GroupOf("ann"), GroupOf("bob"), none, none, none}));
}

// Regression: the numbers beside the dates, which no setting named, counted as features that the model does not know.
TEST(SampleStreamTest, AModelWhoseFeaturesAreAllDatesReadsTheFileThatItWasTrainedOn) {
  const std::string file = WriteFile("dates.csv", "seen,w,y\n2024-03-01T10:00:00Z,1,a\n2024-03-02T11:00:00Z,2,b\n");
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {file});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("y");
  csv.add_ignore("w");
  (*csv.mutable_datetime())["seen"];
  const auto model = DescribedBy(config);
  csv.clear_ignore();  // The model does not know of it.
  const auto stream = SampleStream::Open(config.data(), model, {file}, {.labels = true, .id_column = ""});
  ASSERT_TRUE(stream.ok()) << stream.status();
  Batch batch;
  std::vector<std::string> ids;
  ASSERT_TRUE((*stream)->Next(10, &batch, &ids).ok());
  EXPECT_EQ(batch.size, 2u);
  EXPECT_EQ(batch.numeric.size(), 2 * static_cast<size_t>(model->data().numeric_size()));
}

TEST(SampleStreamTest, SaysWhereALineIsMalformed) {
  const auto model = DescribedBy(People(WriteFile("first.csv", kFirst)));
  const std::string file = WriteFile("bad.csv", "age,city,kind,pay\n10,Delft,a,1\nx,Delft,a,1\n");
  const auto stream = Stream(model, {file}, {.labels = true, .id_column = ""});
  Batch batch;
  std::vector<std::string> ids;
  EXPECT_THAT(std::string(stream->Next(10, &batch, &ids).message()), HasSubstr(file + ":3:1: \"x\" in column \"age\""));
}

}  // namespace
}  // namespace lodestone::worker
