#include "common/base/limits.h"
#include "tests/worker/data/test_files.h"

namespace lodestone::worker {
namespace {

constexpr auto kLibsvmFormat = v1::DataConfig::LIBSVM;
using Texts = std::vector<std::string>;

std::string Samples(const Texts& labels) {
  std::string content;
  for (const std::string& label : labels) content += label + " 1:1\n";
  return content;
}

TEST(Labels, AreClassesInNumericOrder) {
  const auto data = Load(FilesConfig(kLibsvmFormat, {WriteFile("n", Samples({"10", "9", "-1", "2.5", "9"}))}));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.class_names, (Texts{"-1", "2.5", "9", "10"}));
  EXPECT_EQ(data->schema.class_counts, (std::vector<uint64_t>{1, 1, 2, 1}));
  EXPECT_EQ(ReadAll(*data->train).labels, (std::vector<float>{3, 2, 0, 1, 2}));
  EXPECT_EQ(data->schema.label_mean, (3 + 2 + 0 + 1 + 2) / 5.0);
}

TEST(Labels, AreOneClassIfTheyAreOneNumber) {
  const auto data = Load(FilesConfig(kLibsvmFormat, {WriteFile("o", Samples({"+1", "-1", "1", "1.0", "-1.0", "1e0"}))},
                                     {WriteFile("ot", Samples({"01", "-1.00"}))}));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.class_names, (Texts{"-1", "+1"}));
  EXPECT_EQ(data->schema.class_counts, (std::vector<uint64_t>{2, 4}));
  EXPECT_EQ(ReadAll(*data->train).labels, (std::vector<float>{1, 0, 1, 1, 0, 1}));
  EXPECT_EQ(ReadAll(*data->test).labels, (std::vector<float>{1, 0}));
}

TEST(Labels, AreClassesInTextOrderIfAnyIsNoNumber) {
  const auto data = Load(FilesConfig(kLibsvmFormat, {WriteFile("t", Samples({"dog", "cat", "10", "9", "cat"}))}));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.class_names, (Texts{"10", "9", "cat", "dog"}));
  EXPECT_EQ(ReadAll(*data->train).labels, (std::vector<float>{3, 2, 0, 1, 2}));
}

// Regression: labels that are ids of 64 bits were compared as doubles, and neighbours became one class.
TEST(Labels, AreDistinctClassesWhereDoublesDoNotTellThemApart) {
  const Texts ids = {"1234567890123456790", "1234567890123456789", "5", "1234567890123456790", "5.0"};
  const std::string test = WriteFile("idst", Samples({"1234567890123456789", "1234567890123456790"}));
  const auto data = Load(FilesConfig(kLibsvmFormat, {WriteFile("ids", Samples(ids))}, {test}));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.class_names, (Texts{"5", "1234567890123456789", "1234567890123456790"}));
  EXPECT_EQ(ReadAll(*data->train).labels, (std::vector<float>{2, 1, 0, 2, 0}));
  EXPECT_EQ(ReadAll(*data->test).labels, (std::vector<float>{1, 2}));
  // A model, and a map, that know one of them do not take the other for it.
  auto model = std::make_shared<v1::ModelDescription>();
  *model->mutable_data() =
      Load(FilesConfig(kLibsvmFormat, {WriteFile("one", Samples({ids[0], "5"}))}))->schema.description;
  auto config = FilesConfig(kLibsvmFormat, {test});
  ExpectError(LoadData(config, LabelKind::kClass, {}, false, nullptr, model), {"label \"1234567890123456789\""});
  auto& map = *config.mutable_data()->mutable_label_map();
  map[ids[0]] = 0;
  map["5"] = 1;
  ExpectError(Load(config), {"label \"1234567890123456789\""});
  map[ids[1]] = 1;
  EXPECT_TRUE(Load(config).ok()) << Load(config).status();
}

TEST(Labels, FollowTheMap) {
  auto config = FilesConfig(kLibsvmFormat, {WriteFile("m", Samples({"good", "bad", "3.0", "good"}))},
                            {WriteFile("mt", Samples({"3", "ugly"}))});
  auto& map = *config.mutable_data()->mutable_label_map();
  map["good"] = 1;
  map["bad"] = 0;
  map["ugly"] = 0;
  map["3"] = 1;
  const auto data = Load(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.class_names, (Texts{"bad|ugly", "3|good"}));
  EXPECT_EQ(data->schema.class_counts, (std::vector<uint64_t>{1, 3}));
  EXPECT_EQ(ReadAll(*data->train).labels, (std::vector<float>{1, 0, 1, 1}));
  EXPECT_EQ(ReadAll(*data->test).labels, (std::vector<float>{1, 0}));
}

TEST(Labels, RefuseWhatTheMapLacksOrContradicts) {
  const std::string path = WriteFile("r", Samples({"a", "b"}));
  auto config = FilesConfig(kLibsvmFormat, {path});
  auto& map = *config.mutable_data()->mutable_label_map();
  map["a"] = 0;
  ExpectError(Load(config), {path + ":2:1: label \"b\"", "data.label_map"});
  map["b"] = 2;
  ExpectError(Load(config), {"data.label_map", "class 1"});
  map["b"] = limits::kClassesMax;
  ExpectError(Load(config), {"data.label_map", "\"b\""});
  map.clear();
  map["1"] = 0;
  map["1.0"] = 1;
  ExpectError(Load(config), {"\"1\"", "\"1.0\"", "one number"});
  ExpectError(Load(config, LabelKind::kNumber), {"data.label_map", "squared"});
}

TEST(Labels, RefuseTestLabelsThatTrainingDoesNotKnow) {
  const std::string test = WriteFile("ut", Samples({"1", "7"}));
  ExpectError(Load(FilesConfig(kLibsvmFormat, {WriteFile("u", Samples({"0", "1"}))}, {test})),
              {test + ":2:1: label \"7\" is not among the 2 classes of the training files (0, 1)"});
}

TEST(Labels, AreNumbersForTheSquaredLoss) {
  const std::string path = WriteFile("q", Samples({"3.5", "-1e3", "0.5"}));
  const auto data = Load(FilesConfig(kLibsvmFormat, {path}, {Copied(path)}), LabelKind::kNumber);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(ReadAll(*data->train).labels, (std::vector<float>{3.5, -1000, 0.5}));
  EXPECT_EQ(ReadAll(*data->test).labels, (std::vector<float>{3.5, -1000, 0.5}));
  EXPECT_DOUBLE_EQ(data->schema.label_mean, -996.0 / 3);
  EXPECT_TRUE(data->schema.class_names.empty());
  const std::string text = WriteFile("qt", Samples({"1", "high"}));
  ExpectError(Load(FilesConfig(kLibsvmFormat, {text}), LabelKind::kNumber),
              {text + ":2:1: label \"high\" is not a number"});
}

TEST(Labels, RefuseMoreClassesThanThereMayBe) {
  Texts labels;
  for (uint32_t i = 0; i <= limits::kClassesMax; ++i) labels.push_back(std::to_string(i) + ".5");
  const std::string path = WriteFile("many", Samples(labels));
  ExpectError(Load(FilesConfig(kLibsvmFormat, {path})), {path + ":65537:1: ", "squared"});
  labels.pop_back();
  const auto data = Load(FilesConfig(kLibsvmFormat, {WriteFile("just", Samples(labels))}));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->schema.class_names.size(), limits::kClassesMax);
}

}  // namespace
}  // namespace lodestone::worker
