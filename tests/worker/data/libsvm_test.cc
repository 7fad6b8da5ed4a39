#include "common/base/hash.h"
#include "tests/worker/data/test_files.h"
#include "worker/data/line_parser.h"

namespace lodestone::worker {
namespace {

constexpr auto kLibsvm = v1::DataConfig::LIBSVM;

TEST(Libsvm, ReadsSparseSamples) {
  const auto data = Load(FilesConfig(kLibsvm, {WriteFile("a.svm",
                                                         "# a comment\n"
                                                         "+1 3:0.5 7:-2 100000:1e-3 # another\n"
                                                         "\n"
                                                         "-1\n"
                                                         "  1 qid:7 5:1\t5:2  \n"
                                                         "-1 18446744073709551615:4")}));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_TRUE(data->schema.sparse);
  EXPECT_EQ(data->schema.numeric_count, 0);
  EXPECT_EQ(data->schema.field_count, 0);
  EXPECT_EQ(data->schema.train_samples, 4);
  EXPECT_EQ(data->schema.class_names, (std::vector<std::string>{"-1", "+1"}));
  EXPECT_EQ(data->schema.class_counts, (std::vector<uint64_t>{2, 2}));
  EXPECT_EQ(data->test, nullptr);
  const Batch batch = ReadAll(*data->train);
  EXPECT_EQ(batch.labels, (std::vector<float>{1, 0, 1, 0}));
  EXPECT_EQ(batch.offsets, (std::vector<uint32_t>{0, 3, 3, 5, 6}));
  EXPECT_EQ(batch.keys, (std::vector<Key>{3, 7, 100000, 5, 5, ~Key{0}}));
  EXPECT_EQ(batch.values, (std::vector<float>{0.5, -2, 1e-3f, 1, 2, 4}));
}

TEST(Libsvm, HasNoValuesIfAllAreOne) {
  const auto data = Load(FilesConfig(kLibsvm, {WriteFile("ones", "1 3:1 4:1.0\n0 5:1\n")}));
  ASSERT_TRUE(data.ok()) << data.status();
  const Batch batch = ReadAll(*data->train);
  EXPECT_EQ(batch.keys, (std::vector<Key>{3, 4, 5}));
  EXPECT_TRUE(batch.values.empty());
}

TEST(Libsvm, KeepsTheValuesOfManySamplesInAnyOrder) {
  // More than one chunk; only one late sample has values other than 1.
  std::string content;
  for (int i = 0; i < 40000; ++i) {
    content += std::to_string(i % 2) + " " + std::to_string(i) + ":" + (i == 20000 ? "5" : "1") + " 7:1\n";
  }
  const auto data = Load(FilesConfig(kLibsvm, {WriteFile("many", content)}));
  ASSERT_TRUE(data.ok()) << data.status();
  Batch batch;
  data->train->Read(std::vector<uint64_t>{39999, 20000, 0, 20001, 20000}, &batch);
  EXPECT_EQ(batch.labels, (std::vector<float>{1, 0, 0, 1, 0}));
  EXPECT_EQ(batch.keys, (std::vector<Key>{39999, 7, 20000, 7, 0, 7, 20001, 7, 20000, 7}));
  EXPECT_EQ(batch.values, (std::vector<float>{1, 1, 5, 1, 1, 1, 1, 1, 5, 1}));
  EXPECT_EQ(batch.offsets, (std::vector<uint32_t>{0, 2, 4, 6, 8, 10}));
}

TEST(Libsvm, TransformsValues) {
  auto config = FilesConfig(kLibsvm, {WriteFile("log", "1 3:-1.718281828459045 4:255\n0 5:0\n")});
  config.mutable_data()->set_numeric(v1::LOG);
  auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(ReadAll(*data->train).values, (std::vector<float>{-1, static_cast<float>(std::log(256.0)), 0}));
  config.mutable_data()->set_numeric(v1::UNIT);
  data = Load(config);
  EXPECT_EQ(ReadAll(*data->train).values[1], 1);
  config.mutable_data()->set_numeric(v1::STANDARDIZE);
  ExpectError(Load(config), {"data.numeric", "sparse"});
}

TEST(Libsvm, TellsLineAndColumnOfWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"1 2:1\n1 3:1 x\n", ":2:7: \"x\""},
      {"1 2:1\n1 3:1 4:\n", ":2:7: \"4:\""},
      {"1 2:1\n\n1 a:1\n", ":3:3: \"a:1\""},
      {"1 -2:1\n", ":1:3: \"-2:1\""},
      {"1 2:1x\n", ":1:3: \"2:1x\""},
      {"1 2:nan\n", ":1:3: \"2:nan\""},
      {"1 2:1e39\n", ":1:3: \"2:1e39\""},
      {"1 2:1:3\n", ":1:3: \"2:1:3\""},
      {"1 18446744073709551616:1\n", ":1:3: "},
      {"2:1 3:1\n", ":1:1: \"2:1\""},
      {"1 2:1\n1 3:1 \x01\xff\n", ":2:7: \"\\x01\\xff\""},
  };
  for (const auto& [content, message] : cases) {
    const std::string path = WriteFile("wrong.svm", content);
    ExpectError(Load(FilesConfig(kLibsvm, {path})), {path + message});
  }
}

TEST(Libsvm, SkipsAsManyMalformedLinesAsItMay) {
  const std::string path = WriteFile("bad.svm", "1 2:1\nx:y\n0 3:1\n1 :\n1 4:1\n");
  auto config = FilesConfig(kLibsvm, {path}, {Copied(path)});
  config.mutable_data()->set_bad_lines_max(1);
  ExpectError(Load(config), {path + ":4:3: ", "malformed line 2", "data.bad_lines_max is 1"});
  config.mutable_data()->set_bad_lines_max(2);
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.train_samples, 3);
  EXPECT_EQ(ReadAll(*data->train).keys, (std::vector<Key>{2, 3, 4}));
  EXPECT_EQ(data->test->size(), 3);
}

TEST(Libsvm, RefusesFilesWithoutASample) {
  const std::string path = WriteFile("none.svm", "\n# nothing\n");
  ExpectError(Load(FilesConfig(kLibsvm, {path})), {path, "no sample"});
  const std::string train = WriteFile("some.svm", "1 1:1\n0 1:1\n");
  ExpectError(Load(FilesConfig(kLibsvm, {train}, {path})), {path, "no sample"});
}

TEST(Libsvm, GroupsSamplesByTheirQid) {
  const auto data = Load(FilesConfig(kLibsvm, {WriteFile("qid.svm",
                                                         "# a header\n"
                                                         "1 qid:10 1:1\n"
                                                         "0 qid:11 1:1 # qid:10\n"
                                                         "0 2:1 qid:10\n"
                                                         "1 3:1\n")}));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(ReadAll(*data->train).groups,
            (std::vector<uint64_t>{GroupOf("10"), GroupOf("11"), GroupOf("10"), GroupOf("")}));
  EXPECT_EQ(data->schema.description.group(), "qid");
}

TEST(Libsvm, WithoutAQidInTheFirstSampleHasNoGroups) {
  const auto data = Load(FilesConfig(kLibsvm, {WriteFile("no_qid.svm", "1 1:1 # qid:1\n0 qid:7 1:1\n")}));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_TRUE(ReadAll(*data->train).groups.empty());
  EXPECT_EQ(data->schema.description.group(), "");
}

TEST(Libffm, MakesDifferentKeysOfDifferentFields) {
  const std::string path = WriteFile("a.ffm", "1 0:5:1 1:5:0.5\n0 0:7:1 # nothing else\n0\n");
  for (const auto format : {v1::DataConfig::LIBFFM, v1::DataConfig::AUTO}) {
    const auto data = Load(FilesConfig(format, {path}));
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_TRUE(data->schema.sparse);
    EXPECT_EQ(data->schema.description.format(), "libffm");
    const Batch batch = ReadAll(*data->train);
    EXPECT_EQ(batch.keys, (std::vector<Key>{StableHash("5", 0), StableHash("5", 1), StableHash("7", 0)}));
    EXPECT_EQ(batch.values, (std::vector<float>{1, 0.5, 1}));
    EXPECT_EQ(batch.offsets, (std::vector<uint32_t>{0, 2, 3, 3}));
  }
}

TEST(Libffm, TellsWhatIsNoFeature) {
  for (const char* const feature : {"5:1", "0:5", "a:5:1", "0:b:1", "0:5:x", ":5:1", "0::1", "0:5:1:1"}) {
    const std::string path = WriteFile("wrong.ffm", "1 0:5:1\n0 " + std::string(feature) + "\n");
    ExpectError(Load(FilesConfig(v1::DataConfig::LIBFFM, {path})), {path + ":2:3: ", "field:index:value"});
  }
}

}  // namespace
}  // namespace lodestone::worker
