// Which columns of CSV files are read: of files whose columns stand elsewhere, of very many, and behind odd first
// lines.
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/worker/data/test_files.h"
#include "worker/data/csv_layout.h"
#include "worker/data/csv_split.h"
#include "worker/data/sample_parser.h"

namespace lodestone::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kCsvFormat = v1::DataConfig::CSV;

v1::Config Indexed(const std::vector<std::string>& files, const std::function<void(v1::CsvConfig*)>& set) {
  v1::Config config = FilesConfig(kCsvFormat, files);
  set(config.mutable_data()->mutable_csv());
  return config;
}

// Regression: labels, groups, weights and features that were named by an index were other columns in a file that has
// them in another order.
TEST(CsvColumns, OfAnIndexHaveOneNameInAllFiles) {
  const std::string first = WriteFile("first.csv", "user,x,w,y\n1,2,3,0\n2,4,1,1\n");
  const std::string more = WriteFile("more.csv", "user,x,w,y,mobile\n1,2,3,0,1\n");
  const std::string swapped = WriteFile("swapped.csv", "x,user,w,y\n1,2,3,0\n");
  const std::string weight = WriteFile("weight.csv", "user,x,rate,y\n1,2,3,0\n");
  const auto error = [&](const std::string& second, const std::string& name, const std::string& option,
                         const std::function<void(v1::CsvConfig*)>& set) {
    ExpectError(Load(Indexed({first, second}, set)),
                {second, absl::StrCat("column \"", name, "\" stands where the first training file has"),
                 absl::StrCat("name the columns in ", option)});
    v1::Config test = Indexed({first}, set);
    test.mutable_data()->add_test(second);
    ExpectError(Load(test), {second, name, option});
  };
  error(more, "mobile", "csv.label", [](v1::CsvConfig* csv) { csv->add_numeric("x"), csv->set_group("user"); });
  error(swapped, "x", "csv.group", [](v1::CsvConfig* csv) { csv->add_numeric("x"), csv->set_group("0"); });
  error(weight, "rate", "csv.weight", [](v1::CsvConfig* csv) { csv->add_numeric("x"), csv->set_weight("2"); });
  error(swapped, "x", "csv.numeric", [](v1::CsvConfig* csv) { csv->add_numeric("0-1"); });
  error(swapped, "x", "csv.categorical", [](v1::CsvConfig* csv) { csv->add_categorical("0-1"); });
  // By their names they are found wherever they stand.
  EXPECT_TRUE(Load(Indexed({first, swapped, more}, [](v1::CsvConfig* csv) {
                csv->set_label("y");
                csv->set_group("user");
                csv->set_weight("w");
                csv->add_numeric("x");
              })).ok());
}

TEST(CsvColumns, OfAnIndexAreThoseOfAKnownModel) {
  const auto set = [](v1::CsvConfig* csv) { csv->add_numeric("x"), csv->set_group("0"); };
  v1::Config config = Indexed({WriteFile("known.csv", "user,x,y\n1,2,0\n2,4,1\n")}, set);
  auto model = std::make_shared<v1::ModelDescription>();
  *model->mutable_data() = Load(config)->schema.description;
  const auto load = [&](const std::string& content, const std::string& label) {
    config.mutable_data()->set_train(0, WriteFile("new.csv", content));
    config.mutable_data()->mutable_csv()->set_label(label);
    return LoadData(config, LabelKind::kClass, {}, false, nullptr, model);
  };
  ExpectError(load("user,x,y,mobile\n1,2,0,1\n", "-1"),
              {"new.csv: csv.label: -1 is \"mobile\"", "the model was trained with \"y\"", "name the column"});
  ExpectError(load("page,x,y\n1,2,0\n", "y"), {"csv.group: 0 is \"page\"", "\"user\""});
  EXPECT_TRUE(load("user,x,y,mobile\n1,2,0,1\n", "y").ok());
  EXPECT_TRUE(load("user,x,y,mobile\n1,2,0,1\n", "mobile").ok()) << "a label that is named is what is meant";
}

// Regression: the time grew with the square of the number of columns.
TEST(CsvColumns, MayBeVeryMany) {
  std::vector<std::string> names, values;
  for (size_t i = 0; i < kColumnsMax; ++i) names.push_back(absl::StrCat("c", i)), values.push_back("1");
  const std::string header = absl::StrJoin(names, ","), row = absl::StrJoin(values, ",");
  v1::CsvConfig csv;
  csv.add_numeric("c7");
  csv.add_categorical(absl::StrCat("c", kColumnsMax - 2));
  const auto layout = FindCsvLayout(csv, v1::NONE, "wide.csv", header, row);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->numeric.at(0).index, 7u);
  EXPECT_EQ(layout->categorical, std::vector<size_t>{kColumnsMax - 2});
  EXPECT_TRUE(FindColumnLayout(csv, v1::NONE, "wide", names).ok());

  const auto more = FindCsvLayout(csv, v1::NONE, "wide.csv", header + ",c", std::nullopt);
  EXPECT_EQ(more.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(more.status().message()),
              HasSubstr(absl::StrCat("wide.csv: first line: column ", header.size() + 2, ": more than ", kColumnsMax,
                                     " columns; is csv.delimiter right?")));
  names.push_back("c");
  const auto named = FindColumnLayout(csv, v1::NONE, "wide", names);
  EXPECT_THAT(std::string(named.status().message()), HasSubstr(absl::StrCat(kColumnsMax, " at most")));
}

TEST(CsvColumns, ThatShareANameAreToldByTheirIndex) {
  v1::CsvConfig csv;
  csv.set_label("y");
  csv.add_numeric("x#1");
  const auto layout = FindCsvLayout(csv, v1::NONE, "twins.csv", "x,x,y", std::nullopt);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_THAT(layout->plain_names, ElementsAre("x#0", "x#1", "y"));
  EXPECT_EQ(layout->numeric.at(0).index, 1u);
  csv.add_numeric("x");
  EXPECT_THAT(std::string(FindCsvLayout(csv, v1::NONE, "twins.csv", "x,x,y", std::nullopt).status().message()),
              HasSubstr("two columns are named \"x\"; use an index"));
}

// Regression: quotes joined the first lines as if a comma were the delimiter, whatever it was.
TEST(CsvColumns, QuotesJoinTheFirstLinesWhateverTheDelimiter) {
  const auto samples = [](const std::string& name, const std::string& content, const std::string& delimiter) {
    v1::Config config = FilesConfig(kCsvFormat, {WriteFile(name, content)});
    v1::CsvConfig& csv = *config.mutable_data()->mutable_csv();
    csv.set_delimiter(delimiter);
    csv.set_label("y");
    csv.add_categorical("0");
    const auto data = Load(config);
    EXPECT_TRUE(data.ok()) << name << ": " << data.status();
    return data.ok() ? data->train->size() : 0;
  };
  EXPECT_EQ(samples("semicolons.csv", "a;\"b\nc\";y\n1;2;0\n3;4;1\n", ""), 2u);
  EXPECT_EQ(samples("begins.csv", "\"a\nb\";\"c\nd\";y\n1;2;0\n3;4;1\n", ""), 2u);
  EXPECT_EQ(samples("second.csv", "a;b;y\n\"1\n1\";2;0\n3;4;1\n", ""), 2u);
  EXPECT_EQ(samples("tabs.tsv", "a\tz\tb,\"c\ty\n1\t2\t3\t0\n4\t5\t6\t1\n", ""), 2u);
  EXPECT_EQ(samples("yaml.tsv", "a\tb,\"c\ty\n1\t2\t0\n3\t4\t1\n", "\\t"), 2u);
  EXPECT_EQ(samples("joined.tsv", "a\t\"b\nc\"\ty\n1\t2\t0\n3\t4\t1\n", "\\t"), 2u);
}

}  // namespace
}  // namespace lodestone::worker
