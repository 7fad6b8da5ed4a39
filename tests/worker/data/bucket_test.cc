// Numbers that are categories.
#include "worker/data/bucket.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "tests/worker/data/test_files.h"
#include "worker/data/sample_stream.h"

namespace lodestone::worker {
namespace {

Key BucketKey(const std::string& column, const std::string& bucket) { return StableHash(bucket, StableHash(column)); }

TEST(Bucket, Log2IsByThePowerOfTwoThatANumberReaches) {
  const BucketRule rule{BucketRule::Kind::kLog2};
  std::string scratch;
  const std::vector<std::pair<double, std::string>> cases = {
      {0, "0"},   {-0.0, "0"},   {0.999, "0"}, {-0.5, "0"},   {1, "1"},     {1.99, "1"},
      {2, "2"},   {3.999, "2"},  {4, "3"},     {1023, "10"},  {1024, "11"}, {-1, "-1"},
      {-5, "-3"}, {1e30, "100"}, {1e-30, "0"}, {65535, "16"}, {65536, "17"}};
  for (const auto& [number, bucket] : cases) EXPECT_EQ(std::string(rule.TextOf(number, &scratch)), bucket) << number;
}

TEST(Bucket, QuantilesHaveAsManyNumbersEach) {
  Quantiles quantiles;
  for (int i = 0; i < 1000; ++i) quantiles.Add(i * 7919 % 1000);
  quantiles.Add(std::nan(""));
  const BucketRule rule{BucketRule::Kind::kQuantiles, quantiles.Bounds(4)};
  EXPECT_EQ(rule.bounds, (std::vector<double>{250, 500, 750}));
  std::string scratch;
  EXPECT_EQ(std::string(rule.TextOf(-5, &scratch)), "0");
  EXPECT_EQ(std::string(rule.TextOf(249.9, &scratch)), "0");
  EXPECT_EQ(std::string(rule.TextOf(250, &scratch)), "1");
  EXPECT_EQ(std::string(rule.TextOf(1e9, &scratch)), "3");
}

TEST(Bucket, EqualNumbersAreInOneQuantile) {
  Quantiles zeros, none;
  for (int i = 0; i < 1000; ++i) zeros.Add(i < 900 ? 0 : i);
  EXPECT_EQ(zeros.Bounds(10), (std::vector<double>{900}));
  EXPECT_TRUE(none.Bounds(10).empty());
}

TEST(Bucket, QuantilesOfMoreNumbersThanAreKeptAreOfAnEvenSample) {
  Quantiles quantiles;
  constexpr int kNumbers = 5'000'000;
  for (int i = 0; i < kNumbers; ++i) quantiles.Add(i);
  const std::vector<double> bounds = quantiles.Bounds(2);
  ASSERT_EQ(bounds.size(), 1u);
  EXPECT_NEAR(bounds[0], kNumbers / 2, kNumbers / 1000);
}

// Line i has the number i, or none.
std::string Ages(int lines) {
  std::string content = "age,pay,city,y\n";
  for (int i = 0; i < lines; ++i) {
    absl::StrAppend(&content, i % 10 == 3 ? "" : absl::StrCat(i), ",", i % 7, ",c", i % 5, ",", i % 2, "\n");
  }
  return content;
}

v1::Config AgesConfig(const std::string& path) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {path});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("y");
  csv.add_categorical("city");
  csv.add_numeric("pay");
  (*csv.mutable_bucket())["pay"] = v1::CsvConfig::LOG2;
  (*csv.mutable_bucket())["age"] = v1::CsvConfig::QUANTILES;
  csv.set_quantiles(4);
  return config;
}

TEST(Bucket, ColumnsComeBehindTheOtherCategoriesAndMayBeNumbersToo) {
  const auto data = Load(AgesConfig(WriteFile("ages.csv", Ages(1000))));
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ(data->schema.field_count, 3u);
  ASSERT_EQ(data->schema.numeric_count, 1u);
  const v1::DataDescription& described = data->schema.description;
  ASSERT_EQ(described.categorical_size(), 3);
  EXPECT_EQ(described.categorical(0).bucket(), "");
  EXPECT_EQ(described.categorical(1).name(), "age");
  EXPECT_EQ(described.categorical(1).bucket(), "quantiles");
  EXPECT_EQ(described.categorical(2).name(), "pay");
  EXPECT_EQ(described.categorical(2).bucket(), "log2");
  const auto& bounds = described.categorical(1).bounds();
  ASSERT_EQ(bounds.size(), 3);
  EXPECT_NEAR(bounds[1], 500, 5);
  const Batch batch = ReadAll(*data->train);
  for (size_t i = 0; i < batch.size; ++i) {
    EXPECT_EQ(batch.keys[3 * i], BucketKey("city", absl::StrCat("c", i % 5)));
    const std::string age =
        i % 10 == 3 ? "" : absl::StrCat(std::upper_bound(bounds.begin(), bounds.end(), i) - bounds.begin());
    EXPECT_EQ(batch.keys[3 * i + 1], BucketKey("age", age)) << i;
    const char* const pays[] = {"0", "1", "2", "2", "3", "3", "3"};
    EXPECT_EQ(batch.keys[3 * i + 2], BucketKey("pay", pays[i % 7])) << i;
    EXPECT_EQ(batch.numeric[i], i % 7);
  }
}

TEST(Bucket, ColumnsAreTheSameOnesWhereverTheyStandInAFile) {
  v1::Config config = AgesConfig(WriteFile("here.csv", Ages(1000)));
  (*config.mutable_data()->mutable_csv()->mutable_bucket())["pay"] = v1::CsvConfig::QUANTILES;
  const auto alone = Load(config);
  // The same lines, their columns in another order.
  std::string content = "y,city,pay,age\n";
  for (int i = 0; i < 1000; ++i) {
    absl::StrAppend(&content, i % 2, ",c", i % 5, ",", i % 7, ",", i % 10 == 3 ? "" : absl::StrCat(i), "\n");
  }
  config.mutable_data()->add_test(WriteFile("there.csv", content));
  const auto data = Load(config);
  ASSERT_TRUE(alone.ok() && data.ok()) << data.status();
  EXPECT_EQ(ReadAll(*data->test).keys, ReadAll(*alone->train).keys);
  config.mutable_data()->clear_test();
  config.mutable_data()->add_train(TestPath("there.csv"));
  const auto both = Load(config);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->schema.description.categorical(1).bounds(1), alone->schema.description.categorical(1).bounds(1));
}

TEST(Bucket, ColumnsByIndexThatBearOtherNamesAreRefused) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, {WriteFile("one.csv", "age,pay,y\n1,2,0\n3,4,1\n"),
                                                        WriteFile("two.csv", "pay,age,y\n1,2,0\n3,4,1\n")});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("y");
  csv.add_numeric("age");
  (*csv.mutable_bucket())["0"] = v1::CsvConfig::LOG2;
  (*csv.mutable_bucket())["1"] = v1::CsvConfig::QUANTILES;
  ExpectError(Load(config), {"two.csv", "quantiles of column \"age\"", "log2 in the first", "csv.bucket"});
}

TEST(Bucket, BoundsAreOfAllPartitionsAndOfNoSampleThatIsHeldOut) {
  v1::Config config = AgesConfig(WriteFile("ages.csv", Ages(1000)));
  const auto first = Load(config, LabelKind::kClass, {0, 3}), second = Load(config, LabelKind::kClass, {2, 3});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->schema.description.SerializeAsString(), second->schema.description.SerializeAsString());
  config.mutable_data()->mutable_csv()->set_quantiles(65536);  // Each number is a bound, but the least.
  config.mutable_data()->set_test_share(0.5);
  const auto half = Load(config);
  ASSERT_TRUE(half.ok()) << half.status();
  std::set<Key> trained;
  const Batch batch = ReadAll(*half->train);
  for (size_t i = 0; i < batch.size; ++i) trained.insert(batch.keys[3 * i + 1]);
  // The keys of missing numbers and of the least one have no bound.
  EXPECT_EQ(half->schema.description.categorical(1).bounds_size(), static_cast<int>(trained.size()) - 2);
}

TEST(Bucket, OfAModelThatIsKnownAreItsOwn) {
  const v1::Config config = AgesConfig(WriteFile("ages.csv", Ages(1000)));
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  auto model = std::make_shared<v1::ModelDescription>();
  *model->mutable_data() = data->schema.description;
  // Others would have other bounds.
  const v1::Config other = AgesConfig(WriteFile("few_ages.csv", "pay,age,y,city\n1,700,0,a\n6,10,1,b\n"));
  const auto again = LoadData(other, LabelKind::kClass, {}, false, nullptr, model);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ReadAll(*again->train).keys,
            (std::vector<Key>{BucketKey("city", "a"), BucketKey("age", "2"), BucketKey("pay", "1"),
                              BucketKey("city", "b"), BucketKey("age", "0"), BucketKey("pay", "3")}));
  auto stream = SampleStream::Open(other.data(), model, {other.data().train(0)}, {.labels = true, .id_column = ""});
  ASSERT_TRUE(stream.ok()) << stream.status();
  Batch batch;
  std::vector<std::string> ids;
  ASSERT_TRUE((*stream)->Next(10, &batch, &ids).ok());
  EXPECT_EQ(batch.keys, ReadAll(*again->train).keys);
  v1::Config changed = other;
  (*changed.mutable_data()->mutable_csv()->mutable_bucket())["pay"] = v1::CsvConfig::QUANTILES;
  ExpectError(LoadData(changed, LabelKind::kClass, {}, false, nullptr, model),
              {"few_ages.csv", "log2", "\"pay\"", "csv.bucket"});
}

TEST(Bucket, IsOfNumbersAndOfColumnsThatAreNothingElse) {
  v1::Config config = AgesConfig(WriteFile("text_age.csv", "age,pay,city,y\n1,2,a,0\nold,2,a,1\n"));
  ExpectError(Load(config), {"text_age.csv:3:1: ", "\"old\"", "csv.bucket"});
  config.mutable_data()->set_bad_lines_max(1);
  EXPECT_TRUE(Load(config).ok()) << "the line is left out, both times that the file is read";
  (*config.mutable_data()->mutable_csv()->mutable_bucket())["city"] = v1::CsvConfig::LOG2;
  ExpectError(Load(config), {"csv.bucket", "\"city\"", "csv.categorical"});
  config.mutable_data()->mutable_csv()->mutable_bucket()->erase("city");
  (*config.mutable_data()->mutable_csv()->mutable_bucket())["size"] = v1::CsvConfig::LOG2;
  ExpectError(Load(config), {"csv.bucket", "\"size\""});
}

}  // namespace
}  // namespace lodestone::worker
