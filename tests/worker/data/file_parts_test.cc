// Workers that read their share of the files.
#include "worker/data/file_parts.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "tests/worker/data/test_files.h"

namespace lodestone::worker {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kRows = 30'000;

std::string NumberedRows(bool header) {
  std::string rows = header ? "y,id\n" : "";
  for (uint64_t i = 0; i < kRows; ++i) absl::StrAppend(&rows, i % 2, ",row", i, std::string(i % 37, 'x'), "\n");
  return rows;
}

v1::Config ShareConfig(const std::vector<std::string>& files) {
  v1::Config config = FilesConfig(v1::DataConfig::CSV, files);
  config.mutable_data()->set_read(v1::DataConfig::SHARE);
  (*config.mutable_data()->mutable_label_map())["0"] = 0;
  (*config.mutable_data()->mutable_label_map())["1"] = 1;
  config.mutable_data()->mutable_csv()->set_label("0");
  config.mutable_data()->mutable_csv()->add_categorical("1");
  return config;
}

// The keys of all workers' samples, sorted, with what each worker parsed.
struct Shares {
  std::vector<Key> keys;
  std::vector<uint64_t> samples;
  std::vector<uint64_t> parsed;
};

Shares LoadShares(const v1::Config& config, uint32_t workers) {
  Shares shares;
  for (uint32_t w = 0; w < workers; ++w) {
    const auto data = Load(config, LabelKind::kClass, {w, workers});
    EXPECT_TRUE(data.ok()) << data.status();
    if (!data.ok()) continue;
    const Batch batch = ReadAll(*data->train);
    shares.keys.insert(shares.keys.end(), batch.keys.begin(), batch.keys.end());
    shares.samples.push_back(batch.size);
    shares.parsed.push_back(data->parsed_bytes);
  }
  std::sort(shares.keys.begin(), shares.keys.end());
  return shares;
}

TEST(FileParts, TwoWorkersReadHalfOfTheBytesEachAndTogetherEverySampleOnce) {
  for (const bool header : {false, true}) {
    const std::string text = NumberedRows(header);
    v1::Config config = ShareConfig({WriteFile("rows.csv", text)});
    config.mutable_data()->mutable_csv()->set_header(header ? v1::CsvConfig::YES : v1::CsvConfig::NO);
    v1::Config all = config;
    all.mutable_data()->set_read(v1::DataConfig::ALL);
    const Shares shared = LoadShares(config, 2), whole = LoadShares(all, 2);
    EXPECT_EQ(shared.keys.size(), kRows);
    EXPECT_EQ(shared.keys, whole.keys);
    // All parse all of them; or each a half, to a block or two of 4 KiB.
    for (const uint64_t parsed : whole.parsed) EXPECT_EQ(parsed, text.size());
    EXPECT_EQ(shared.parsed[0] + shared.parsed[1], text.size());
    for (const uint64_t parsed : shared.parsed) EXPECT_NEAR(parsed, text.size() / 2.0, 3 * 4096.0);
  }
}

TEST(FileParts, AnyNumberOfWorkersAndFilesReadEverySampleOnce) {
  const std::string text = NumberedRows(false), windows = "1,a\r\n0,b\r\n1,c";
  for (const uint32_t workers : {1u, 3u, 7u}) {
    const v1::Config config = ShareConfig({WriteFile("rows.csv", text), WriteFile("small.csv", windows),
                                           WriteFile("packed.csv.gz", Packed("0,packed\n1,packed too\n"))});
    const Shares shares = LoadShares(config, workers);
    EXPECT_EQ(shares.keys.size(), kRows + 3 + 2) << workers;
    EXPECT_EQ(std::adjacent_find(shares.keys.begin(), shares.keys.end()), shares.keys.end());
  }
}

TEST(FileParts, RowGroupsOfParquetArePartsToo) {
  const std::string file = absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"),
                                        "/tests/worker/data/parquet/arrow_zstd_v2.parquet");
  v1::Config config = ShareConfig({file});
  config.mutable_data()->set_format(v1::DataConfig::PARQUET);
  config.mutable_data()->mutable_csv()->set_label("label");
  config.mutable_data()->mutable_csv()->set_categorical(0, "id");
  const Shares shares = LoadShares(config, 3);  // Three row groups of 100.
  EXPECT_EQ(shares.samples, (std::vector<uint64_t>{100, 100, 100}));
  EXPECT_EQ(shares.keys.size(), 300u);
  const Shares alone = LoadShares(config, 1);
  EXPECT_EQ(shares.keys, alone.keys);
  EXPECT_EQ(shares.parsed[0] + shares.parsed[1] + shares.parsed[2], alone.parsed[0]);
  for (const uint64_t parsed : shares.parsed) EXPECT_LT(parsed, alone.parsed[0] * 0.4);
  int empty = 0;
  for (uint32_t w = 0; w < 4; ++w) {
    const auto data = Load(config, LabelKind::kClass, {w, 4});
    if (data.ok()) continue;
    ++empty;
    EXPECT_THAT(std::string(data.status().message()), HasSubstr("leaves nothing to read for one of 4 workers"));
  }
  EXPECT_EQ(empty, 1);
}

TEST(FileParts, WhatNeedsAllFilesIsRefusedUnlessItIsKnown) {
  const std::string file = WriteFile("rows.csv", NumberedRows(false));
  v1::Config config = ShareConfig({file});
  config.mutable_data()->clear_label_map();
  ExpectError(Load(config, LabelKind::kClass, {0, 2}),
              {"data.read: share", "the classes are the labels", "data.label_map"});
  // A model that was trained before knows the classes.
  v1::Config all = config;
  all.mutable_data()->set_read(v1::DataConfig::ALL);
  const auto trained = Load(all);
  ASSERT_TRUE(trained.ok()) << trained.status();
  auto model = std::make_shared<v1::ModelDescription>();
  *model->mutable_data() = trained->schema.description;
  const auto again = LoadData(config, LabelKind::kClass, {0, 2}, true, nullptr, model);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_NEAR(again->train->size(), kRows / 2.0, kRows * 0.05);

  v1::Config numbers = FilesConfig(v1::DataConfig::CSV, {WriteFile("numbers.csv", "1,2\n3,4\n")});
  numbers.mutable_data()->set_read(v1::DataConfig::SHARE);
  numbers.mutable_data()->set_numeric(v1::STANDARDIZE);
  ExpectError(Load(numbers, LabelKind::kNumber, {0, 2}), {"standardized numbers"});
}

TEST(FileParts, WorkersOfANewModelAgreeOnItsDescription) {
  const v1::Config config = ShareConfig({WriteFile("rows.csv", NumberedRows(false))});
  const auto a = Load(config, LabelKind::kClass, {0, 2}), b = Load(config, LabelKind::kClass, {1, 2});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->schema.description.SerializeAsString(), b->schema.description.SerializeAsString());
  EXPECT_EQ(a->schema.class_counts, b->schema.class_counts);
  EXPECT_EQ(a->schema.class_names.size(), 2u);
}

TEST(FileParts, AQuotedLineEndIsRefused) {
  std::string rows = NumberedRows(false);
  rows += "1,\"two\nlines\"\n";
  const v1::Config config = ShareConfig({WriteFile("quoted.csv", rows)});
  const auto a = Load(config, LabelKind::kClass, {0, 2}), b = Load(config, LabelKind::kClass, {1, 2});
  ASSERT_FALSE(a.ok() && b.ok());
  const absl::Status status = a.ok() ? b.status() : a.status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("quoted.csv: byte"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("data.read: all"));
}

TEST(FileParts, AMalformedLineIsNamedByItsPlaceInTheFile) {
  std::string rows = NumberedRows(false);
  const size_t at = rows.size();
  rows += "1,too,many\n";
  const v1::Config config = ShareConfig({WriteFile("broken.csv", rows)});
  const auto a = Load(config, LabelKind::kClass, {0, 2}), b = Load(config, LabelKind::kClass, {1, 2});
  ASSERT_FALSE(a.ok() && b.ok());
  const absl::Status status = a.ok() ? b.status() : a.status();
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("broken.csv: byte ", at + 6, ": 3 columns")));
}

}  // namespace
}  // namespace lodestone::worker
