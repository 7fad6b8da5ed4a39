#include <cmath>

#include "common/base/hash.h"
#include "tests/worker/data/test_files.h"

namespace lodestone::worker {
namespace {

constexpr auto kCriteo = v1::DataConfig::CRITEO;

// A line whose first numbers and categories are given, the others empty.
std::string Line(const std::string& label, const std::vector<std::string>& numbers,
                 const std::vector<std::string>& categories) {
  std::string line = label;
  for (size_t i = 0; i < 13; ++i) line += "\t" + (i < numbers.size() ? numbers[i] : "");
  for (size_t i = 0; i < 26; ++i) line += "\t" + (i < categories.size() ? categories[i] : "");
  return line + "\n";
}

TEST(Criteo, ReadsNumbersByLogAndHashesCategoriesByField) {
  const std::string path =
      WriteFile("c.tsv", Line("0", {"", "-3", "100"}, {"68fd1e64", "68fd1e64"}) + Line("1", {"0"}, {}));
  const auto data = Load(FilesConfig(kCriteo, {path}));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.numeric_count, 13);
  EXPECT_EQ(data->schema.field_count, 26);
  EXPECT_FALSE(data->schema.sparse);
  const Batch batch = ReadAll(*data->train);
  EXPECT_EQ(batch.labels, (std::vector<float>{0, 1}));
  EXPECT_EQ(batch.numeric[0], 0);
  EXPECT_EQ(batch.numeric[1], static_cast<float>(-std::log(4.0)));
  EXPECT_EQ(batch.numeric[2], static_cast<float>(std::log(101.0)));
  ASSERT_EQ(batch.keys.size(), 52);
  EXPECT_EQ(batch.keys[0], StableHash("68fd1e64", 0));
  EXPECT_EQ(batch.keys[1], StableHash("68fd1e64", 1));
  EXPECT_EQ(batch.keys[2], StableHash("", 2));
  EXPECT_EQ(batch.keys[26 + 25], StableHash("", 25));
  EXPECT_EQ(batch.keys[2], batch.keys[26 + 2]);
  EXPECT_NE(batch.keys[2], batch.keys[3]);
  EXPECT_TRUE(batch.values.empty());
  EXPECT_EQ(batch.offsets, (std::vector<uint32_t>{0, 26, 52}));
}

TEST(Criteo, StandardizesWhatIsThereAndPutsMissingNumbersToZero) {
  auto config =
      FilesConfig(kCriteo, {WriteFile("s.tsv", Line("0", {"1"}, {}) + Line("1", {""}, {}) + Line("0", {"5"}, {}))},
                  {WriteFile("t.tsv", Line("1", {"7"}, {}))});
  config.mutable_data()->set_numeric(v1::STANDARDIZE);
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  const Batch train = ReadAll(*data->train);
  EXPECT_EQ(train.numeric[0], -1);  // Mean 3, deviation 2.
  EXPECT_EQ(train.numeric[13], 0);
  EXPECT_EQ(train.numeric[26], 1);
  EXPECT_EQ(train.numeric[1], 0);  // Never there.
  EXPECT_EQ(ReadAll(*data->test).numeric[0], 2);
}

TEST(Criteo, TellsLineAndColumnOfWhatIsWrong) {
  const std::string good = Line("1", {"1"}, {"a"});
  const auto error = [&](const std::string& line, const std::string& message) {
    const std::string path = WriteFile("wrong.tsv", good + line);
    ExpectError(Load(FilesConfig(kCriteo, {path})), {path + ":2:" + message});
  };
  error(Line("0", {"12", "x"}, {}), "6: \"x\" in integer column 2");
  error("0\t1\t2\n", "5: 3 columns instead of the 40");
  error("0,1,2\n", "1: 1 columns instead of the 40");
  error(good.substr(0, good.size() - 1) + "\tmore\n", "44: more than the 40 columns");
  error(Line("", {}, {}), "1: the label is missing");
}

}  // namespace
}  // namespace lodestone::worker
