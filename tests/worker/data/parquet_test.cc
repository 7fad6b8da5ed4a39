#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/data/test_files.h"
#include "worker/data/parquet_codec.h"
#include "worker/data/parquet_column.h"
#include "worker/data/parquet_metadata.h"
#include "worker/data/parquet_reader.h"
#include "worker/data/parquet_thrift.h"
#include "worker/data/parquet_values.h"
#include "worker/data/random_file.h"

namespace lodestone::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Given(const std::string& name) {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"), "/tests/worker/data/parquet/",
                      name);
}

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// What the columns of the given files are for.
v1::Config RowsConfig(const std::vector<std::string>& files) {
  v1::Config config = FilesConfig(v1::DataConfig::AUTO, files);
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("label");
  for (const char* name : {"age", "price"}) csv.add_numeric(name);
  for (const char* name : {"id", "city", "word", "ok"}) csv.add_categorical(name);
  (*csv.mutable_transform())["age"] = v1::STANDARDIZE;
  return config;
}

// By file: every writer, codec, encoding and version of pages.
class ParquetFiles : public testing::TestWithParam<std::string> {};

TEST_P(ParquetFiles, HoldTheSamplesThatTheSameRowsInCsvAre) {
  const auto text = Load(RowsConfig({Given("rows.csv")}));
  const auto parquet = Load(RowsConfig({Given(GetParam() + ".parquet")}));
  ASSERT_TRUE(text.ok()) << text.status();
  ASSERT_TRUE(parquet.ok()) << parquet.status();
  const Batch expected = ReadAll(*text->train), read = ReadAll(*parquet->train);
  ASSERT_EQ(read.size, 300u);
  EXPECT_EQ(read.labels, expected.labels);
  EXPECT_EQ(read.numeric, expected.numeric);
  EXPECT_EQ(read.keys, expected.keys);
  EXPECT_EQ(parquet->schema.class_counts, text->schema.class_counts);
}

TEST_P(ParquetFiles, HoldTheWeightsAndTimesThatTheSameRowsInCsvDo) {
  const auto load = [](const std::string& file) {
    v1::Config config = RowsConfig({Given(file)});
    config.mutable_data()->set_bad_lines_max(300);  // Rows without a weight.
    v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
    csv.set_weight("age");
    csv.clear_numeric();
    csv.clear_transform();
    csv.clear_categorical();
    csv.add_categorical("city");
    v1::DateTimeColumn& time = (*csv.mutable_datetime())["price"];
    time.set_format(v1::DateTimeColumn::EPOCH_SECONDS);
    time.set_age_days(v1::DateTimeColumn::NUMBER);
    time.set_age_at("1970-01-02");
    return Load(config);
  };
  const auto text = load("rows.csv"), parquet = load(GetParam() + ".parquet");
  ASSERT_TRUE(text.ok()) << text.status();
  ASSERT_TRUE(parquet.ok()) << parquet.status();
  const Batch expected = ReadAll(*text->train), read = ReadAll(*parquet->train);
  ASSERT_GT(read.size, 200u);
  EXPECT_GT(read.weight_sum(), 1000);
  EXPECT_EQ(read.weights, expected.weights);
  EXPECT_EQ(read.numeric, expected.numeric);
  EXPECT_EQ(read.keys, expected.keys);
}

// Compact Thrift: a root with one column of type INT64, `annotation` being the field that says what it is.
ParquetTimeUnit UnitOf(const std::string& annotation) {
  using std::string_literals::operator""s;
  const std::string footer =
      "\x29\x2c\x48\x01r\x15\x02\x00\x15\x04\x25\x00\x18\x01t"s + annotation + "\x00\x16\x00\x19\x0c\x00"s;
  const auto metadata = ParseParquetMetadata(footer, footer.size());
  EXPECT_TRUE(metadata.ok()) << metadata.status();
  return metadata.ok() ? metadata->columns.at(0).time : ParquetTimeUnit{-1};
}

TEST(ParquetMetadata, SaysTheUnitOfDatesAndTimes) {
  using std::string_literals::operator""s;
  constexpr int64_t kDay = 19'782;  // 2024-02-29.
  constexpr double kSeconds = kDay * 86400.0;
  EXPECT_EQ(UnitOf("").seconds, 0);
  EXPECT_EQ(UnitOf("\x25\x0c").SecondsOf(kDay), kSeconds);                        // ConvertedType DATE,
  EXPECT_EQ(UnitOf("\x25\x12").SecondsOf(kDay * 86'400'000), kSeconds);           // TIMESTAMP_MILLIS,
  EXPECT_EQ(UnitOf("\x25\x14").SecondsOf(kDay * 86'400'000'000), kSeconds);       // TIMESTAMP_MICROS,
  EXPECT_EQ(UnitOf("\x25\x16").seconds, 0);                                       // UINT_8.
  EXPECT_EQ(UnitOf("\x6c\x6c\x00\x00"s).SecondsOf(kDay), kSeconds);               // LogicalType DATE,
  const ParquetTimeUnit nanos = UnitOf("\x6c\x8c\x11\x1c\x3c\x00\x00\x00\x00"s);  // and TIMESTAMP of UTC.
  // Regression: 1e-9 is no number of binary digits, so that a midnight in nanoseconds could be of the day before.
  for (int64_t day = -40'000; day < 40'000; ++day) {
    ASSERT_EQ(nanos.SecondsOf(day * 86'400'000'000'000), static_cast<double>(day) * 86400) << day;
  }
}

INSTANTIATE_TEST_SUITE_P(Writers, ParquetFiles,
                         testing::Values("arrow_gzip_v1", "arrow_nodict", "arrow_zstd_v2", "hyparquet_plain",
                                         "hyparquet_snappy", "parquetjs"),
                         [](const auto& info) { return info.param; });

TEST(Parquet, SeveralFilesAndATestFileAreRead) {
  v1::Config config = RowsConfig({Given("hyparquet_snappy.parquet"), Given("parquetjs.parquet")});
  config.mutable_data()->add_test(Given("arrow_zstd_v2.parquet"));
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train->size(), 600u);
  EXPECT_EQ(data->test->size(), 300u);
}

TEST(Parquet, WhatStandsForAMissingValueInCsvDoesSoInNumbers) {
  v1::Config config = RowsConfig({Given("rows.csv")});
  for (const char* const missing : {"37", "-5", "94.625"}) config.mutable_data()->mutable_csv()->add_missing(missing);
  const auto text = Load(config);
  config.mutable_data()->set_train(0, Given("arrow_nodict.parquet"));
  const auto parquet = Load(config);
  ASSERT_TRUE(text.ok()) << text.status();
  ASSERT_TRUE(parquet.ok()) << parquet.status();
  const Batch expected = ReadAll(*text->train), read = ReadAll(*parquet->train);
  EXPECT_EQ(read.numeric, expected.numeric);
  EXPECT_EQ(read.keys, expected.keys);
}

TEST(Parquet, AnEmptyPageNeedsNoBytes) {
  for (const int32_t codec : {0, 1, 2, 6}) {
    std::string out = "before";
    EXPECT_TRUE(UnpackParquet(codec, "", 0, &out).ok()) << codec;
    EXPECT_EQ(out, "");
    EXPECT_FALSE(UnpackParquet(codec, "", 1, &out).ok()) << codec;
  }
}

TEST(Parquet, WhatCannotBeReadIsNamedWithWhatToWriteInstead) {
  ExpectError(Load(RowsConfig({Given("arrow_brotli.parquet")})), {"arrow_brotli.parquet", "BROTLI", "zstd"});
  ExpectError(Load(RowsConfig({Given("arrow_delta.parquet")})),
              {"arrow_delta.parquet", "column \"id\"", "DELTA_BINARY_PACKED", "dictionary"});
}

TEST(Parquet, AColumnOfListsIsRefusedOnlyIfItIsUsed) {
  v1::Config config = FilesConfig(v1::DataConfig::PARQUET, {Given("arrow_list.parquet")});
  config.mutable_data()->mutable_csv()->set_label("label");
  config.mutable_data()->mutable_csv()->add_numeric("x");
  EXPECT_TRUE(Load(config).ok());
  config.mutable_data()->mutable_csv()->add_categorical("tags");
  ExpectError(Load(config), {"column \"tags\"", "lists"});
}

TEST(Parquet, AColumnThatIsNotThereIsNamedWithThoseThatAre) {
  v1::Config config = RowsConfig({Given("parquetjs.parquet")});
  config.mutable_data()->mutable_csv()->add_numeric("prize");
  ExpectError(Load(config), {"parquetjs.parquet", "prize", "label, age, price"});
}

TEST(Parquet, AMissingLabelIsNamedByItsRow) {
  v1::Config config = RowsConfig({Given("arrow_nodict.parquet")});
  config.mutable_data()->mutable_csv()->set_label("age");
  config.mutable_data()->mutable_csv()->clear_numeric();
  config.mutable_data()->mutable_csv()->clear_transform();
  ExpectError(Load(config, LabelKind::kNumber), {"arrow_nodict.parquet: row 0", "the label", "is missing"});
}

TEST(Parquet, ATextThatIsNoNumberIsNamed) {
  v1::Config config = RowsConfig({Given("arrow_nodict.parquet")});
  config.mutable_data()->mutable_csv()->add_numeric("word");
  config.mutable_data()->mutable_csv()->clear_categorical();
  ExpectError(Load(config), {"row 0", "column \"word\"", "\"w0\"", "is not a number"});
}

TEST(Parquet, AFileThatWasCutOffIsNoWholeOne) {
  const std::string bytes = BytesOf(Given("parquetjs.parquet"));
  ASSERT_GT(bytes.size(), 1000u);
  for (const size_t size : {size_t{4}, size_t{11}, bytes.size() / 2, bytes.size() - 1}) {
    v1::Config config = RowsConfig({WriteFile("cut.parquet", bytes.substr(0, size))});
    config.mutable_data()->set_format(v1::DataConfig::PARQUET);
    ExpectError(Load(config), {"cut.parquet", "Parquet"});
  }
}

TEST(Parquet, DamageAnywhereEndsInSamplesOrAnError) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (const std::string name : {"arrow_gzip_v1", "arrow_zstd_v2", "hyparquet_plain", "hyparquet_snappy"}) {
    const std::string bytes = BytesOf(Given(name + ".parquet"));
    for (int i = 0; i < 200; ++i) {
      std::string damaged = bytes;
      for (uint32_t hits = 1 + random() % 4; hits > 0; --hits) {
        damaged[random() % damaged.size()] = static_cast<char>(random());
      }
      v1::Config config = RowsConfig({WriteFile("damaged.parquet", damaged)});
      config.mutable_data()->set_format(v1::DataConfig::PARQUET);
      const auto loaded = Load(config);
      if (loaded.ok()) continue;
      EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("damaged.parquet"));
    }
  }
}

// A data page of truth values as one run: `value`, twice.
std::string PageOfTruths(uint8_t value) {
  const std::string runs = {2 << 1, static_cast<char>(value)};
  const std::string bytes = std::string("\2\0\0\0", 4) + runs;
  const char size = static_cast<char>(2 * bytes.size());  // Thrift's compact protocol doubles numbers.
  // A data page; its bytes, unpacked and packed; two values in RLE, and no levels.
  return std::string({0x15, 0, 0x15, size, 0x15, size, 0x2c, 0x15, 4, 0x15, 6, 0x15, 6, 0x15, 6, 0, 0}) + bytes;
}

// Regression: a damaged run's value was taken for where the truth lies, and memory behind the values was read.
TEST(Parquet, ATruthValueThatIsNeither0Nor1IsDamage) {
  ParquetColumn column;
  column.type = ParquetType::kBoolean;
  for (const uint8_t value : {0, 1, 2, 255}) {
    const std::string page = PageOfTruths(value);
    const auto file = RandomFile::Open(WriteFile("truths", page));
    ASSERT_TRUE(file.ok()) << file.status();
    const ParquetChunk chunk{.bytes = page.size()};
    ParquetColumnReader reader(file->get(), &column, &chunk);
    const absl::Status status = reader.Read(2);
    if (value > 1) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("a truth value is ", value)));
      continue;
    }
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(reader.codes().size(), 2u);
    for (const uint32_t code : reader.codes()) EXPECT_EQ(reader.At(code).integer(), value);
  }
}

TEST(ParquetRuns, ReadsTheExampleOfTheSpecification) {
  // "Encodings.md": 0 to 7 of 3 bits are 0x88 0xC6 0xFA; before them their head: one group of eight, packed.
  const std::string packed = "\x03\x88\xc6\xfa";
  const std::string equal = "\x08\x05";  // Four fives.
  const std::string bytes = packed + equal;
  ParquetRuns runs(bytes, 3);
  std::vector<uint32_t> numbers(12);
  ASSERT_TRUE(runs.Read(numbers));
  EXPECT_THAT(numbers, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 5, 5, 5, 5));
  EXPECT_FALSE(runs.Read(numbers));
}

TEST(ParquetRuns, ReadsNumbersOf32Bits) {
  const std::string bytes("\x02\xff\xff\xff\xff\x03\x01\x02\x03\x04", 10);
  ParquetRuns runs(bytes, 32);
  std::vector<uint32_t> numbers(2);
  ASSERT_TRUE(runs.Read(numbers));
  EXPECT_THAT(numbers, ElementsAre(0xffffffff, 0x04030201));
}

// Runs of any numbers of `width` bits, packed and equal ones, as a writer encodes them.
std::string EncodedRuns(uint32_t width, std::mt19937* random, std::vector<uint32_t>* numbers) {
  const uint64_t mask = (uint64_t{1} << width) - 1;
  std::string bytes;
  for (int run = 0; run < 12; ++run) {
    const uint32_t groups = 1 + (*random)() % 5;
    if (run % 3 == 2) {
      const auto equal = static_cast<uint32_t>((*random)() & mask);
      bytes.push_back(static_cast<char>(groups << 1));
      for (uint32_t bit = 0; bit < width; bit += 8) bytes.push_back(static_cast<char>(equal >> bit));
      numbers->insert(numbers->end(), groups, equal);
      continue;
    }
    bytes.push_back(static_cast<char>(groups << 1 | 1));
    std::string packed(groups * width, '\0');
    for (uint32_t i = 0; i < groups * 8; ++i) {
      numbers->push_back(static_cast<uint32_t>((*random)() & mask));
      for (uint32_t b = 0; b < width; ++b) {
        const uint32_t bit = i * width + b;
        packed[bit / 8] = static_cast<char>(packed[bit / 8] | (numbers->back() >> b & 1) << (bit % 8));
      }
    }
    bytes += packed;
  }
  return bytes;
}

TEST(ParquetRuns, ReadsNumbersOfAnyWidthInPiecesOfAnySize) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (uint32_t width = 1; width <= 32; ++width) {
    SCOPED_TRACE(absl::StrCat(width, " bits"));
    std::vector<uint32_t> wanted, got;
    const std::string encoded = EncodedRuns(width, &random, &wanted);
    const std::vector<char> bytes(encoded.begin(), encoded.end());  // Nothing behind them, which asan sees.
    ParquetRuns runs(absl::string_view(bytes.data(), bytes.size()), width);
    while (got.size() < wanted.size()) {
      std::vector<uint32_t> piece(std::min<size_t>(1 + random() % 40, wanted.size() - got.size()));
      ASSERT_TRUE(runs.Read(piece));
      got.insert(got.end(), piece.begin(), piece.end());
    }
    EXPECT_EQ(got, wanted);
    std::vector<uint32_t> more(1);
    EXPECT_FALSE(runs.Read(more));
  }
}

TEST(ThriftReader, AnyBytesEnd) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 10'000; ++i) {
    std::string bytes(random() % 64, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    ThriftReader reader(bytes);
    reader.Struct([&](int field) {
      if (field == 1) reader.Int();
      if (field == 2) reader.Text();
      if (field == 3) reader.List([&] { reader.Struct([](int) {}); });
    });
    EXPECT_LE(reader.offset(), bytes.size());
    (void)ParseParquetMetadata(bytes, bytes.size());
    (void)ParseParquetPage(bytes);
  }
}

TEST(ThriftReader, StructsThatAreNestedWithoutEndAreRefused) {
  const std::string deep(1000, '\x1c');  // Field 1 of a struct, again and again.
  ThriftReader reader(deep);
  reader.Struct([](int) {});
  EXPECT_THAT(std::string(reader.status().message()), HasSubstr("nested too deeply"));
}

TEST(ThriftReader, ReadsAStruct) {
  // Field 1: -3; field 2: "ab"; field 20: a list of 7 and -7; field 21: true; then one that is skipped: a map.
  const std::string bytes(
      "\x15\x05\x18\x02"
      "ab\x09\x28\x25\x0e\x0d\x11\x1b\x01\x58\x02\x01x\x00",
      20);
  ThriftReader reader(bytes);
  std::vector<int64_t> numbers;
  std::string text;
  reader.Struct([&](int field) {
    if (field == 1 || field == 21) numbers.push_back(reader.Int());
    if (field == 2) text = std::string(reader.Text());
    if (field == 20) reader.List([&] { numbers.push_back(reader.Int()); });
  });
  EXPECT_TRUE(reader.status().ok()) << reader.status();
  EXPECT_THAT(numbers, ElementsAre(-3, 7, -7, 1));
  EXPECT_EQ(text, "ab");
}

}  // namespace
}  // namespace lodestone::worker
