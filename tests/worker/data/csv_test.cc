#include <cmath>

#include "common/base/hash.h"
#include "tests/worker/data/test_files.h"
#include "worker/data/csv_split.h"

namespace lodestone::worker {
namespace {

constexpr auto kCsv = v1::DataConfig::CSV;

std::vector<std::string> Split(const std::string& line, const std::string& delimiter) {
  std::vector<CsvField> fields;
  std::string scratch;
  LineError error;
  if (!SplitCsv(line, delimiter, &fields, &scratch, &error))
    return {"error", std::to_string(error.column), error.message};
  std::vector<std::string> texts;
  for (const CsvField& field : fields) texts.emplace_back(field.text);
  return texts;
}

using Texts = std::vector<std::string>;

TEST(CsvSplit, SplitsByDelimitersOfAnyLength) {
  EXPECT_EQ(Split("a,b,,d", ","), (Texts{"a", "b", "", "d"}));
  EXPECT_EQ(Split("a,b,", ","), (Texts{"a", "b", ""}));
  EXPECT_EQ(Split("1::2::3.5", "::"), (Texts{"1", "2", "3.5"}));
  EXPECT_EQ(Split("1:2::3", "::"), (Texts{"1:2", "3"}));
  EXPECT_EQ(Split("a\t\tc", "\t"), (Texts{"a", "", "c"}));
  EXPECT_EQ(Split("  1   2 3 ", " "), (Texts{"1", "2", "3"}));
  EXPECT_EQ(Split(" a , b ", ","), (Texts{"a", "b"}));
}

TEST(CsvSplit, UndoesQuotes) {
  EXPECT_EQ(Split(R"("a,b",c)", ","), (Texts{"a,b", "c"}));
  EXPECT_EQ(Split(R"("say ""hi""","""",x)", ","), (Texts{"say \"hi\"", "\"", "x"}));
  EXPECT_EQ(Split(R"("",a)", ","), (Texts{"", "a"}));
  EXPECT_EQ(Split("\"two\nlines\",a", ","), (Texts{"two\nlines", "a"}));
  EXPECT_EQ(Split(R"( " a " , b)", ","), (Texts{" a ", "b"}));
  EXPECT_EQ(Split(R"(5" pipe,b)", ","), (Texts{"5\" pipe", "b"}));
  EXPECT_EQ(Split(R"(a,"b"x)", ",")[1], "6");
  EXPECT_EQ(Split(R"(a,"b)", ",")[1], "3");
}

TEST(CsvSplit, KnowsWhetherALineEndsInQuotes) {
  EXPECT_FALSE(CsvEndsInQuotes("a,b", ",", false));
  EXPECT_TRUE(CsvEndsInQuotes("a,\"b", ",", false));
  EXPECT_FALSE(CsvEndsInQuotes("a,\"b\"\"\"", ",", false));
  EXPECT_TRUE(CsvEndsInQuotes("a,\"b\"\"", ",", false));
  EXPECT_FALSE(CsvEndsInQuotes("5\" pipe", ",", false));
  EXPECT_FALSE(CsvEndsInQuotes("end\",c", ",", true));
  EXPECT_TRUE(CsvEndsInQuotes("end\",\"c", ",", true));
}

TEST(CsvSplit, FindsTheDelimiter) {
  EXPECT_EQ(DetectCsvDelimiter("1,2,3"), ",");
  EXPECT_EQ(DetectCsvDelimiter("1\t2\t3"), "\t");
  EXPECT_EQ(DetectCsvDelimiter("1;2;3"), ";");
  EXPECT_EQ(DetectCsvDelimiter("\"a,b,c\";2;3"), ";");
  EXPECT_EQ(DetectCsvDelimiter("1|2"), "|");
  EXPECT_EQ(DetectCsvDelimiter("1::1193::5"), "::");
  EXPECT_EQ(DetectCsvDelimiter("1 2 3"), " ");
  EXPECT_EQ(DetectCsvDelimiter("red wine,2,3 4"), ",");
  EXPECT_EQ(DetectCsvDelimiter("1"), ",");
}

TEST(Csv, TakesAllColumnsAsNumbersAndTheLastAsLabelByDefault) {
  const auto data = Load(FilesConfig(kCsv, {WriteFile("plain.csv", "1,2.5,7\r\n-3,4,8\r\n")}));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.numeric_count, 2);
  EXPECT_EQ(data->schema.field_count, 0);
  EXPECT_EQ(data->schema.class_names, (Texts{"7", "8"}));
  EXPECT_EQ(ReadAll(*data->train).numeric, (std::vector<float>{1, 2.5, -3, 4}));
}

TEST(Csv, FindsHeaders) {
  const auto samples = [](const std::string& content, v1::CsvConfig::Header header) {
    auto config = FilesConfig(kCsv, {WriteFile("header.csv", content)});
    config.mutable_data()->mutable_csv()->set_header(header);
    const auto data = Load(config);
    return data.ok() ? static_cast<int>(data->schema.train_samples) : -1;
  };
  EXPECT_EQ(samples("x,y,label\n1,2,a\n3,4,b\n", v1::CsvConfig::DETECT), 2);
  EXPECT_EQ(samples("1,2,a\n3,4,b\n", v1::CsvConfig::DETECT), 2);
  EXPECT_EQ(samples("x,y,label\n1,2,a\n3,4,b\n", v1::CsvConfig::YES), 2);
  EXPECT_EQ(samples("1,2,a\n3,4,b\n", v1::CsvConfig::YES), 1);
  EXPECT_EQ(samples("1,2,a\n3,4,b\n", v1::CsvConfig::NO), 2);
  EXPECT_EQ(samples("x,y,label\n1,2,a\n3,4,b\n", v1::CsvConfig::NO), -1);
  EXPECT_EQ(samples("1,x,a\n3,4,b\n", v1::CsvConfig::DETECT), -1);  // Data with a fault, no header.
  EXPECT_EQ(samples(",2,a\n3,4,b\n", v1::CsvConfig::DETECT), 2);    // A missing number makes no header.
}

// As parts of a file that was split have one: the first only, or each.
TEST(Csv, SomeFilesHaveAHeader) {
  const std::string headed = "kind,age,city\na,1,Delft\nb,2,Gouda\n", bare = "b,3,Delft\na,4,Gouda\n";
  const std::string first = WriteFile("headed1.csv", headed), second = WriteFile("bare.csv", bare);
  const std::string third = WriteFile("headed2.csv", headed), all = WriteFile("all.csv", headed + bare);
  for (const bool named : {true, false}) {
    const auto read = [&](const std::vector<std::string>& files) {
      auto config = FilesConfig(kCsv, files);
      v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
      csv.set_label(named ? "kind" : "0");
      csv.add_numeric(named ? "age" : "1");
      csv.add_categorical(named ? "city" : "2");
      const auto data = Load(config);
      EXPECT_TRUE(data.ok()) << data.status();
      return data.ok() ? ReadAll(*data->train) : Batch();
    };
    const Batch whole = read({all}), parts = read({first, second}), again = read({first, second, third});
    EXPECT_EQ(parts.labels, whole.labels);
    EXPECT_EQ(parts.numeric, whole.numeric);
    EXPECT_EQ(parts.keys, whole.keys);
    EXPECT_EQ(again.size, 6u);
  }
}

TEST(Csv, TakesNoCategoryForANumberWhenItLooksForAHeader) {
  auto config = FilesConfig(kCsv, {WriteFile("hex.csv", "ab,68fd1e6f,no\nef,623049e6,yes\n")});
  config.mutable_data()->mutable_csv()->add_categorical("0-1");
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.train_samples, 2);
}

v1::Config NamedColumns(const std::string& path) {
  auto config = FilesConfig(kCsv, {path});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("bought");
  csv.add_numeric("age");
  csv.add_numeric("-1");
  csv.add_categorical("city");
  csv.add_categorical("2");
  csv.add_missing("?");
  (*csv.mutable_transform())["age"] = v1::LOG;
  return config;
}

// The key of a category of a named column.
Key KeyIn(const std::string& column, const std::string& text) { return StableHash(text, StableHash(column)); }

TEST(Csv, ReadsColumnsByNameAndIndex) {
  const std::string path = WriteFile("named.csv",
                                     "id;bought;country;city;age;income\n"
                                     "a;yes;NL;\"Den \"\"Haag\"\"; Z\";0;10\n"
                                     "b;no;?;;?;-5\n");
  const auto data = Load(NamedColumns(path));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.numeric_count, 2);
  EXPECT_EQ(data->schema.field_count, 2);
  EXPECT_EQ(data->schema.class_names, (Texts{"no", "yes"}));
  const Batch batch = ReadAll(*data->train);
  EXPECT_EQ(batch.labels, (std::vector<float>{1, 0}));
  EXPECT_EQ(batch.numeric, (std::vector<float>{0, 10, 0, -5}));
  EXPECT_EQ(batch.keys, (std::vector<Key>{KeyIn("city", "Den \"Haag\"; Z"), KeyIn("country", "NL"), KeyIn("city", ""),
                                          KeyIn("country", "")}));
}

TEST(Csv, FindsNamedColumnsInEachFile) {
  const std::string train =
      WriteFile("order1.csv", "bought,country,city,age,id,income\nyes,NL,Delft,1,7,2\nno,,,3,7,4\n");
  const std::string test = WriteFile("order2.csv", "age,city,country,bought,income\n0,Delft,NL,yes,9\n");
  auto config = NamedColumns(train);
  config.mutable_data()->mutable_csv()->mutable_categorical(1)->assign("country");
  config.mutable_data()->add_test(test);
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  const Batch batch = ReadAll(*data->test);
  EXPECT_EQ(batch.labels[0], 1);
  EXPECT_EQ(batch.numeric, (std::vector<float>{0, 9}));
  EXPECT_EQ(batch.keys, (std::vector<Key>{KeyIn("city", "Delft"), KeyIn("country", "NL")}));
}

TEST(Csv, ReadsRangesWithoutLabelAndIgnoredColumns) {
  auto config = FilesConfig(kCsv, {WriteFile("range.csv", "9,1,2,x,0,5\n9,3,4,x,1,6\n")});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_label("4");
  csv.add_numeric("1-5");
  csv.add_ignore("3");
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(ReadAll(*data->train).numeric, (std::vector<float>{1, 2, 5, 3, 4, 6}));
}

TEST(Csv, RefusesAFileWhoseRangeHasAnotherNumberOfColumns) {
  // The label, which is the last column, is in the range or beyond it.
  const std::string two = WriteFile("range2.csv", "1,2,0\n3,4,1\n"),
                    three = WriteFile("range3.csv", "1,2,9,0\n3,4,9,1\n");
  for (const bool numeric : {true, false}) {
    for (const auto& [first, second] : {std::pair(two, three), std::pair(three, two)}) {
      v1::Config config = FilesConfig(kCsv, {first, second});
      v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
      csv.set_label("-1");
      csv.set_header(v1::CsvConfig::NO);
      *(numeric ? csv.add_numeric() : csv.add_categorical()) = "0-2";
      ExpectError(Load(config), {second, numeric ? "numeric columns" : "categorical columns", "first training file"});
    }
  }
}

TEST(Csv, LinesThatAnOpenQuoteTakesAlongAreMalformedToo) {
  const std::string path = WriteFile("inch.csv", "x,y\n1,0\n\"12 inch,1\n3,1\n4,0\n");
  v1::Config config = FilesConfig(kCsv, {path});
  config.mutable_data()->mutable_csv()->set_label("y");
  config.mutable_data()->set_bad_lines_max(2);
  ExpectError(Load(config), {path + ":3:", "takes the 2 lines after it along", "malformed line 3 of this file"});
  config.mutable_data()->set_bad_lines_max(3);
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train->size(), 1u);
}

TEST(Csv, ReadsRatings) {
  const std::string path = WriteFile("ratings.tsv", "1\t1\t3.5\n1\t2\t0.5\n2\t1\t5\n");
  auto config = FilesConfig(v1::DataConfig::AUTO, {path}, {Copied(path)});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.add_categorical("0");
  csv.add_categorical("1");
  csv.set_label("2");
  const auto data = Load(config, LabelKind::kNumber);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.field_count, 2);
  EXPECT_EQ(data->schema.numeric_count, 0);
  EXPECT_TRUE(data->schema.class_names.empty());
  EXPECT_EQ(data->schema.label_mean, 3);
  const Batch batch = ReadAll(*data->train);
  EXPECT_EQ(batch.labels, (std::vector<float>{3.5, 0.5, 5}));
  EXPECT_NE(batch.keys[0], batch.keys[1]);  // User 1 is not item 1.
  EXPECT_EQ(batch.keys[0], batch.keys[2]);
}

TEST(Csv, StandardizesByColumnAndCopesWithConstantOnes) {
  auto config = FilesConfig(kCsv, {WriteFile("std.csv", "1,5,100,0\n3,5,101,1\n,5,99,1\n")},
                            {WriteFile("std_test.csv", "5,7,100,1\n")});
  config.mutable_data()->set_numeric(v1::STANDARDIZE);
  (*config.mutable_data()->mutable_csv()->mutable_transform())["2"] = v1::NONE;
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(ReadAll(*data->train).numeric, (std::vector<float>{-1, 0, 100, 1, 0, 101, 0, 0, 99}));
  EXPECT_EQ(ReadAll(*data->test).numeric, (std::vector<float>{3, 2, 100}));
}

TEST(Csv, StandardizesTheLogWithLogStandardize) {
  auto config = FilesConfig(kCsv, {WriteFile("logstd.csv", "0,0\n1,1\n3,0\n7,1\n")});
  config.mutable_data()->set_numeric(v1::LOG_STANDARDIZE);
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  // The logs are 0, 1, 2, 3 times ln 2: mean 1.5, deviation sqrt(1.25). Each is rounded to float three times.
  const Batch batch = ReadAll(*data->train);
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(batch.numeric[i], (i - 1.5) / std::sqrt(1.25), 4 * 1.2e-7 * 1.35);
}

TEST(Csv, JoinsLinesWithinQuotes) {
  const std::string path = WriteFile("multi.csv", "text,n,label\n\"one\n\ntwo\",1,a\n\"x\",bad,b\n");
  auto config = FilesConfig(kCsv, {path});
  config.mutable_data()->mutable_csv()->add_categorical("text");
  config.mutable_data()->mutable_csv()->add_numeric("n");
  ExpectError(Load(config), {path + ":5:5: \"bad\" in column \"n\" is not a number"});
  config.mutable_data()->set_bad_lines_max(1);
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(ReadAll(*data->train).keys, (std::vector<Key>{KeyIn("text", "one\n\ntwo")}));
}

TEST(Csv, TellsLineAndColumnOfWhatIsWrong) {
  const auto error = [](const std::string& content, const std::vector<std::string>& parts) {
    const std::string path = WriteFile("wrong.csv", content);
    std::vector<std::string> expected = parts;
    expected[0] = path + parts[0];
    ExpectError(Load(FilesConfig(kCsv, {path})), expected);
  };
  error("a,b,y\n1,2,0\n1,zwei,0\n", {":3:3: \"zwei\" in column \"b\"", "csv.missing"});
  error("1,2,0\n1,zwei,0\n", {":2:3: \"zwei\" in column 1"});
  error("1,2,0\n1,0\n", {":2:4: 2 columns instead of 3"});
  error("1,2,0\n1,2,0,5\n", {":2:7: 4 columns instead of 3"});
  error("1,2,0\n1,2,\n", {":2:5: the label (column 2) is missing"});
  error("1,2,0\n1,\"2\"x,0\n", {":2:6: text follows the closing quote"});
  error("1,2,0\n1,\"2,0\n3,4,5\n", {":2:3: the quote that opens here is not closed"});
  error("1,2,0\n1,nan,0\n", {":2:3: \"nan\""});
  error("\n", {": the file is empty"});
  error("1\n2\n", {": no feature columns"});
}

TEST(Csv, TellsColumnsThatAreNotThereOrTwoThings) {
  const std::string path = WriteFile("columns.csv", "age,city,y,age2\n1,a,0,2\n2,b,1,3\n");
  const auto error = [&](const std::function<void(v1::CsvConfig*)>& change, const std::vector<std::string>& parts) {
    auto config = FilesConfig(kCsv, {path});
    change(config.mutable_data()->mutable_csv());
    ExpectError(Load(config), parts);
  };
  error([](auto* csv) { csv->set_label("Y"); }, {path, "csv.label", "\"Y\"", "age, city, y, age2"});
  error([](auto* csv) { csv->set_label("4"); }, {"csv.label", "no column 4", "4 columns"});
  error([](auto* csv) { csv->set_label("-5"); }, {"csv.label", "no column -5"});
  error([](auto* csv) { csv->add_numeric("2-9"); }, {"csv.numeric", "2-9"});
  error([](auto* csv) { csv->add_numeric("age"), csv->add_categorical("age"); },
        {"csv.numeric", "already categorical"});
  error([](auto* csv) { csv->set_label("y"), csv->add_numeric("y"); }, {"csv.numeric", "already the label"});
  error([](auto* csv) { csv->add_categorical("city"), (*csv->mutable_transform())["city"] = v1::LOG; },
        {"csv.transform", "\"city\" is not numeric"});
  error([](auto* csv) { csv->set_header(v1::CsvConfig::NO), csv->set_label("y"); }, {"csv.label", "no header"});
}

TEST(Csv, RefusesFilesWithOtherColumnsThanTheFirst) {
  const std::string train = WriteFile("two.csv", "a,b,y\n1,2,0\n3,4,1\n");
  const std::string more = WriteFile("three.csv", "a,b,c,y\n1,2,3,0\n");
  const std::string swapped = WriteFile("swapped.csv", "b,a,y\n1,2,0\n");
  ExpectError(Load(FilesConfig(kCsv, {train}, {more})), {more, "4 columns", "3 in the first training file"});
  ExpectError(Load(FilesConfig(kCsv, {train, swapped})), {swapped, "\"b\"", "\"a\""});
}

TEST(Csv, TakesADelimiterThatIsGiven) {
  for (const std::string delimiter : {"|", "::", "\t", "\\t", ";", " ", "##"}) {
    const std::string text = delimiter == "\\t" ? "\t" : delimiter;
    auto config =
        FilesConfig(kCsv, {WriteFile("delimiter.csv", "1" + text + "2" + text + "0\n3" + text + "4" + text + "1\n")});
    config.mutable_data()->mutable_csv()->set_delimiter(delimiter);
    const auto data = Load(config);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(ReadAll(*data->train).numeric, (std::vector<float>{1, 2, 3, 4})) << delimiter;
  }
}

TEST(Csv, LeavesOutLinesAtTheBeginningAndComments) {
  auto config = FilesConfig(kCsv, {WriteFile("no_samples.csv",
                                             "made by \"a program\n"
                                             "1,2,3\n"
                                             "# x is a number\n"
                                             "x,c,y\n"
                                             "# 1,b,0\n"
                                             "1,\"two\n# lines\",0\n"
                                             "2,#b,1\n"
                                             "#\n")});
  v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
  csv.set_skip_lines(2);
  csv.set_comment("#");
  csv.add_numeric("x");
  csv.add_categorical("c");
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  const Batch batch = ReadAll(*data->train);
  EXPECT_EQ(batch.numeric, (std::vector<float>{1, 2}));
  const uint64_t salt = StableHash("c");
  EXPECT_EQ(batch.keys, (std::vector<Key>{StableHash("two\n# lines", salt), StableHash("#b", salt)}));
  EXPECT_EQ(data->schema.description.skip_lines(), 2u);
  EXPECT_EQ(data->schema.description.comment(), "#");
}

TEST(Csv, CountsTheLinesThatItLeavesOut) {
  auto config = FilesConfig(kCsv, {WriteFile("counted.csv", "title\nx,y\n; note\n1,0\nold,1\n")});
  config.mutable_data()->mutable_csv()->set_skip_lines(1);
  config.mutable_data()->mutable_csv()->set_comment(";");
  ExpectError(Load(config), {TestPath("counted.csv") + ":5:1: "});
}

TEST(Csv, AFileOfNothingButLinesThatAreLeftOutIsEmpty) {
  auto config = FilesConfig(kCsv, {WriteFile("all_left_out.csv", "a\nb\n# c\n")});
  config.mutable_data()->mutable_csv()->set_skip_lines(2);
  config.mutable_data()->mutable_csv()->set_comment("#");
  ExpectError(Load(config), {TestPath("all_left_out.csv"), "empty"});
  config.mutable_data()->mutable_csv()->set_skip_lines(20);
  ExpectError(Load(config), {TestPath("all_left_out.csv"), "empty"});
}

}  // namespace
}  // namespace lodestone::worker
