// Parquet files written byte by byte: those that say that they hold more than they do, settings that they do not have,
// and texts as no other file here has them.
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "tests/worker/data/test_files.h"
#include "worker/data/parquet_column.h"
#include "worker/data/parquet_metadata.h"
#include "worker/data/random_file.h"

namespace lodestone::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Thrift's compact protocol, as far as these files need it: a field's head is its distance from the one before, and its
// type.
std::string Varint(uint64_t number) {
  std::string bytes;
  for (; number >= 0x80; number >>= 7) bytes.push_back(static_cast<char>(number | 0x80));
  return bytes + static_cast<char>(number);
}
std::string Head(int distance, int type) { return std::string(1, static_cast<char>(distance << 4 | type)); }
std::string Int(int distance, uint64_t number) { return Head(distance, 5) + Varint(2 * number); }
std::string Text(int distance, const std::string& text) { return Head(distance, 8) + Varint(text.size()) + text; }
std::string Struct(int distance, const std::string& fields) { return Head(distance, 12) + fields + '\0'; }
std::string List(int distance, const std::vector<std::string>& structs) {
  std::string bytes = Head(distance, 9) + "\xfc" + Varint(structs.size());
  for (const std::string& fields : structs) bytes += fields + '\0';
  return bytes;
}

std::string LittleEndian(uint32_t number) {
  std::string bytes(sizeof(number), '\0');
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

// parquet.thrift: Type and FieldRepetitionType.
constexpr uint64_t kInt32 = 1, kByteArray = 6, kRequired = 0, kRepeated = 2;

// A page of the dictionary, and one of data (PLAIN), with their heads.
std::string DictionaryPage(uint64_t values, const std::string& bytes) {
  return Int(1, 2) + Int(1, bytes.size()) + Int(1, bytes.size()) + Struct(4, Int(1, values) + Int(1, 0)) + '\0' + bytes;
}
std::string DataPage(uint64_t values, const std::string& bytes) {
  return Int(1, 0) + Int(1, bytes.size()) + Int(1, bytes.size()) +
         Struct(2, Int(1, values) + Int(1, 0) + Int(1, 3) + Int(1, 3)) + '\0' + bytes;
}

absl::Status ReadDictionary(ParquetType type, uint64_t values) {
  ParquetColumn column;
  column.type = type;
  const std::string page = DictionaryPage(values, std::string(64, '\0'));
  const auto file = RandomFile::Open(WriteFile("dictionary", page));
  const ParquetChunk chunk{.bytes = page.size()};
  return ParquetColumnReader(file->get(), &column, &chunk).Read(1);
}

// Regression: a dictionary in few packed bytes could take any amount of memory.
TEST(ParquetLimits, TheValuesOfADictionaryAreBounded) {
  const auto expect = [](const absl::Status& status, const std::string& part) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  };
  expect(ReadDictionary(ParquetType::kBoolean, 3), "a dictionary of 3 values, where there may be 2");
  expect(ReadDictionary(ParquetType::kByteArray, (1 << 25) + 1), "33554433 values, where there may be 33554432");
  // Then it is the data that is missing.
  expect(ReadDictionary(ParquetType::kBoolean, 2), "a page is missing");
  expect(ReadDictionary(ParquetType::kByteArray, 16), "a page is missing");
}

// Regression: each leaf has the names of the groups around it, and one of 400 KB was copied 60,000 times.
TEST(ParquetLimits, TheNamesOfAllColumnsAreBounded) {
  const auto parse = [](size_t name_bytes, uint64_t leaves) {
    std::vector<std::string> schema = {Text(4, "root") + Int(1, 1),
                                       Text(4, std::string(name_bytes, 'g')) + Int(1, leaves)};
    for (uint64_t i = 0; i < leaves; ++i) schema.push_back(Int(1, kInt32) + Int(2, kRequired) + Text(1, "x"));
    const std::string footer = List(2, schema) + Int(1, 0) + List(1, {}) + '\0';
    return ParseParquetMetadata(footer, footer.size()).status();
  };
  EXPECT_TRUE(parse(100, 10'000).ok()) << parse(100, 10'000);
  EXPECT_THAT(std::string(parse(400'000, 100).message()), HasSubstr("the names of its columns are too long"));
}

std::string PlainText(const std::string& text) { return LittleEndian(static_cast<uint32_t>(text.size())) + text; }

// A file of one row: a label, and `words`, of which the page has `count` values.
std::string FileOfOneRow(uint64_t repetition, uint32_t count, const std::string& values) {
  const std::string label = DataPage(1, LittleEndian(1)), words = DataPage(count, values), begin = "PAR1";
  const auto chunk = [](uint64_t values, uint64_t bytes, uint64_t offset) {
    return Struct(3, Int(4, 0) + Int(1, values) + Int(2, bytes) + Int(2, offset));
  };
  const std::string footer =
      List(2, {Text(4, "root") + Int(1, 2), Int(1, kInt32) + Int(2, kRequired) + Text(1, "label"),
               Int(1, kByteArray) + Int(2, repetition) + Text(1, "words")}) +
      Int(1, 1) +
      List(1,
           {List(1, {chunk(1, label.size(), begin.size()), chunk(count, words.size(), begin.size() + label.size())}) +
            Int(2, 1)}) +
      '\0';
  return begin + label + words + footer + LittleEndian(static_cast<uint32_t>(footer.size())) + begin;
}

std::string TextFile(const std::string& text) { return FileOfOneRow(kRequired, 1, PlainText(text)); }

std::string ListFile(const std::vector<std::string>& texts) {
  const auto count = static_cast<uint32_t>(texts.size());
  // Levels as runs: the first of a row 0, the others 1; all values are there.
  const std::string repetitions = std::string({2, 0, static_cast<char>((count - 1) << 1), 1});
  const std::string definitions = std::string({static_cast<char>(count << 1), 1});
  std::string values = LittleEndian(4) + repetitions + LittleEndian(2) + definitions;
  for (const std::string& text : texts) values += PlainText(text);
  return FileOfOneRow(kRepeated, count, values);
}

// Regression: they were left out after they had counted, so that values behind them were lost.
TEST(ParquetLimits, EmptyTextsOfAListDoNotCountAsItsValues) {
  v1::Config config =
      FilesConfig(v1::DataConfig::PARQUET, {WriteFile("empty_texts.parquet", ListFile({"", "", "a", "b"}))});
  config.mutable_data()->mutable_csv()->set_label("label");
  (*config.mutable_data()->mutable_csv()->mutable_multi())["words"].set_values_max(1);
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(ReadAll(*data->train).keys, ElementsAre(StableHash("a", StableHash("words"))));
}

// Regression: they were categories of their own, and " NA " was none that is missing.
TEST(ParquetTexts, BlanksAroundThoseOfAListAreNoPartOfThemAsInCsv) {
  const std::string joined = "a| b|c | | NA ";
  for (const std::string& file :
       {WriteFile("blanks.csv", "label,words\n1," + joined + "\n"), WriteFile("blank_text.parquet", TextFile(joined)),
        WriteFile("blank_list.parquet", ListFile({"a", " b", "c ", " ", " NA "}))}) {
    SCOPED_TRACE(file);
    v1::Config config = FilesConfig(v1::DataConfig::AUTO, {file});
    v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
    csv.set_label("label");
    csv.add_missing("NA");
    csv.mutable_multi()->insert({"words", {}});
    const auto data = Load(config);
    ASSERT_TRUE(data.ok()) << data.status();
    const uint64_t salt = StableHash("words");
    EXPECT_THAT(ReadAll(*data->train).keys,
                ElementsAre(StableHash("a", salt), StableHash("b", salt), StableHash("c", salt)));
  }
}

TEST(ParquetLimits, SettingsOfTextAreRefused) {
  const auto load = [](const std::function<void(v1::CsvConfig*)>& set) {
    v1::Config config = FilesConfig(v1::DataConfig::AUTO, {WriteFile("settings.parquet", ListFile({"a"}))});
    v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
    csv.set_label("label");
    csv.mutable_multi()->insert({"words", {}});
    set(&csv);
    return Load(config);
  };
  const std::vector<std::string> refused = {"csv.delimiter", "settings.parquet is Parquet", "leave them out"};
  ExpectError(load([](v1::CsvConfig* csv) { csv->set_delimiter(";"); }), refused);
  ExpectError(load([](v1::CsvConfig* csv) { csv->set_header(v1::CsvConfig::NO); }), refused);
  ExpectError(load([](v1::CsvConfig* csv) { csv->set_skip_lines(1); }), refused);
  ExpectError(load([](v1::CsvConfig* csv) { csv->set_comment("#"); }), refused);
  EXPECT_TRUE(load([](v1::CsvConfig* csv) { csv->set_header(v1::CsvConfig::YES); }).ok());  // As it is.
}

}  // namespace
}  // namespace lodestone::worker
