#include "worker/data/format.h"

#include "tests/worker/data/test_files.h"

namespace lodestone::worker {
namespace {

using Format = v1::DataConfig;

Format::Format Detect(const std::string& name, const std::string& content) {
  const auto format = DetectFormat(WriteFile(name, content));
  EXPECT_TRUE(format.ok()) << format.status();
  return *format;
}

std::string CriteoLine() {
  std::string line = "0";
  for (int i = 0; i < 13; ++i) line += i % 2 ? "\t" : "\t-1";
  for (int i = 0; i < 26; ++i) line += i % 2 ? "\t" : "\t68fd1e64";
  return line + "\n";
}

TEST(Format, KnowsIdxByItsMagicNumber) {
  const std::string bytes = std::string("\0\0\x08\x03", 4) + std::string(12, '\0');
  EXPECT_EQ(Detect("images", bytes), Format::IDX);
  EXPECT_EQ(Detect("images.gz", Packed(bytes)), Format::IDX);
}

TEST(Format, KnowsNpyByItsMagicNumber) {
  EXPECT_EQ(Detect("numbers", "\x93NUMPY and more"), Format::CRITEO_NPY);
  EXPECT_EQ(Detect("cut", "\x93NUMP"), Format::CSV);
}

TEST(Format, KnowsTextByItsFirstLine) {
  EXPECT_EQ(Detect("a.tsv", CriteoLine()), Format::CRITEO);
  EXPECT_EQ(Detect("b.gz", Packed(CriteoLine())), Format::CRITEO);
  EXPECT_EQ(Detect("c", "-1 3:1 11:1 \n"), Format::LIBSVM);
  EXPECT_EQ(Detect("d", "# made by x\n\n2.5 qid:1 3:1 # c\n"), Format::LIBSVM);
  EXPECT_EQ(Detect("e", "1\n-1 3:1\n"), Format::LIBSVM);  // The first sample has no feature.
  EXPECT_EQ(Detect("f", "0,1,6\n"), Format::CSV);
  EXPECT_EQ(Detect("g", "1::1193::5\n"), Format::CSV);
  EXPECT_EQ(Detect("h", "1\t2\t3.5\n"), Format::CSV);
  EXPECT_EQ(Detect("i", "10:30 20:1\n"), Format::CSV);
  EXPECT_EQ(Detect("j", ""), Format::CSV);
}

TEST(Format, KnowsSomeNames) {
  EXPECT_EQ(Detect("x.libsvm", "1\n"), Format::LIBSVM);
  EXPECT_EQ(Detect("x.svm.gz", Packed("1\n")), Format::LIBSVM);
  EXPECT_EQ(Detect("x.csv", "time note\n1 3:1\n"), Format::CSV);
}

TEST(Format, IsFoundByLoadData) {
  const auto data = Load(FilesConfig(Format::AUTO, {WriteFile("auto", "1 7:1\n0 8:1\n")}));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_TRUE(data->schema.sparse);
}

TEST(Format, IsCsvWhereColumnsAreDescribed) {
  auto config = FilesConfig(Format::AUTO, {WriteFile("described", CriteoLine() + CriteoLine())});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("0");
  csv.add_categorical("14-39");
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.numeric_count, 0);
  EXPECT_EQ(data->schema.field_count, 26);
}

// Regression: they were passed over without a word, the column of groups, for example.
TEST(Format, RefusesSettingsOfColumnsWhereFilesHaveNone) {
  const std::string images = WriteFile("no_columns", std::string("\0\0\x08\x03", 4) + std::string(12, '\0'));
  const std::string numbers = WriteFile("no_columns.npy", "\x93NUMPY and more");
  for (const auto& [file, format] : {std::pair(images, "idx"), std::pair(numbers, "criteo_npy")}) {
    auto config = FilesConfig(Format::AUTO, {file});
    config.mutable_data()->mutable_csv()->add_numeric("0");
    ExpectError(Load(config), {"data.csv: " + file + " is read as " + format, "leave data.csv out"});
  }
}

TEST(Format, NeedsFilesUnlessGenerated) {
  ExpectError(Load(FilesConfig(Format::CSV, {})), {"data.train is empty", "CSV"});
}

TEST(Format, RefusesLabelFilesForText) {
  auto config = FilesConfig(Format::AUTO, {WriteFile("text", "1 7:1\n0 8:1\n")});
  config.mutable_data()->add_train_labels("x");
  ExpectError(Load(config), {"data.train_labels", "LIBSVM"});
}

TEST(Format, KnowsFieldsOfFeatures) {
  EXPECT_EQ(Detect("fields", "1 0:3:1 1:11:0.5\n"), Format::LIBFFM);
  EXPECT_EQ(Detect("fields_qid", "1 qid:4 0:3:1\n"), Format::LIBFFM);
  EXPECT_EQ(Detect("mixed", "1 0:3:1 3:1\n"), Format::CSV);
  EXPECT_EQ(Detect("x.ffm.zst", "1\n"), Format::LIBFFM);
  EXPECT_EQ(Detect("x.libffm", "1\n"), Format::LIBFFM);
}

}  // namespace
}  // namespace lodestone::worker
