#include "common/config/config.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/yaml_printer.h"
#include "common/config/yaml_reader.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "proto/options.pb.h"

namespace lodestone {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::util::MessageDifferencer;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;
using testing::UnorderedElementsAre;

v1::Config Parsed(const std::string& yaml, const std::vector<std::string>& sets = {}) {
  const absl::StatusOr<v1::Config> config = ParseConfig(yaml, "c.yaml", sets);
  EXPECT_TRUE(config.ok()) << config.status() << "\n" << yaml;
  return config.value_or(v1::Config());
}

// Whether two configurations mean the same: an unset field is equal to one that is set to its default.
bool SameValues(const v1::Config& a, const v1::Config& b) { return MessageDifferencer::Equivalent(a, b); }

constexpr char kWhole[] = R"(
# A comment.
cluster: {name: test, servers: 3, shards: 1e3, seed: 18446744073709551615}
server:
  listen: "[::1]:7000"
  memory_max_bytes: 1.5 GiB
  message_max_bytes: 64MiB
coordinator: {rebalance: auto, rebalance_rule: {bytes_min: 1GiB, traffic_bytes_per_second_min: 5MB, sustained_ms: 1min}}
model:
  type: Dlrm
  hidden:
  - 64
  - 1_024
  bottom_hidden: 0x10
  optimizer: &ours
    adagrad:
    learning_rate: 5e-2
    schedule: {warmup_steps: 10, cosine: {}}
  dense:
    optimizer: *ours
data:
  train: a b/*.csv
  test: [1.txt, 'two words', "tab\there"]
  label_map: {-1: 0, 1: 1, spam: 2}
  csv:
    delimiter: "::"
    header: no
    label: 0
    transform: {age: LOG, 3: log_standardize}
train: {shuffle: off}
)";

TEST(Config, ReadsEveryKindOfField) {
  const v1::Config config = Parsed(kWhole);
  EXPECT_EQ(config.cluster().name(), "test");
  EXPECT_EQ(config.cluster().servers(), 3u);
  EXPECT_EQ(config.cluster().shards(), 1000u);
  EXPECT_EQ(config.cluster().seed(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(config.server().memory_max_bytes(), uint64_t{3} << 29);
  EXPECT_EQ(config.server().message_max_bytes(), 64u << 20);
  EXPECT_EQ(config.coordinator().rebalance(), v1::CoordinatorConfig::AUTO);
  EXPECT_EQ(config.coordinator().rebalance_rule().bytes_min(), 1u << 30);
  EXPECT_EQ(config.coordinator().rebalance_rule().traffic_bytes_per_second_min(), 5'000'000u);
  EXPECT_EQ(config.coordinator().rebalance_rule().sustained_ms(), 60'000u);
  EXPECT_EQ(config.model().type(), v1::ModelConfig::DLRM);
  EXPECT_THAT(config.model().hidden(), ElementsAre(64, 1024));
  EXPECT_THAT(config.model().bottom_hidden(), ElementsAre(16));
  EXPECT_TRUE(config.model().optimizer().has_adagrad());
  EXPECT_EQ(config.model().optimizer().adagrad().epsilon(), 1e-7f);
  EXPECT_EQ(config.model().optimizer().learning_rate(), 0.05f);
  EXPECT_TRUE(config.model().optimizer().schedule().has_cosine());
  EXPECT_TRUE(MessageDifferencer::Equals(config.model().dense().optimizer(), config.model().optimizer()));
  EXPECT_THAT(config.data().train(), ElementsAre("a b/*.csv"));
  EXPECT_THAT(config.data().test(), ElementsAre("1.txt", "two words", "tab\there"));
  EXPECT_THAT(config.data().label_map(), UnorderedElementsAre(Pair("-1", 0), Pair("1", 1), Pair("spam", 2)));
  EXPECT_EQ(config.data().csv().delimiter(), "::");
  EXPECT_EQ(config.data().csv().header(), v1::CsvConfig::NO);
  EXPECT_EQ(config.data().csv().label(), "0");
  EXPECT_EQ(config.data().csv().transform().at("age"), v1::LOG);
  EXPECT_EQ(config.data().csv().transform().at("3"), v1::LOG_STANDARDIZE);
  EXPECT_FALSE(config.train().shuffle());
  EXPECT_FALSE(config.has_worker());
}

// Tools that write YAML make true and false of yes and no.
TEST(Config, TakesTrueAndFalseForYesAndNo) {
  EXPECT_EQ(Parsed("data: {csv: {header: true}}").data().csv().header(), v1::CsvConfig::YES);
  EXPECT_EQ(Parsed("data: {csv: {header: off}}").data().csv().header(), v1::CsvConfig::NO);
}

TEST(Config, TakesTheNameOfAChoiceForTheChoiceWithItsDefaults) {
  const v1::Config config = Parsed("model: {optimizer: adam}\ncoordinator: {lease_ms: 5s}");
  EXPECT_TRUE(config.model().optimizer().has_adam());
  EXPECT_EQ(config.coordinator().lease_ms(), 5000u);
}

TEST(Config, TakesAnEmptyTextForAllDefaults) {
  for (const char* const text : {"", "\n", "# only a comment\n", "---\n", "{}\n", "\xef\xbb\xbf"}) {
    EXPECT_TRUE(MessageDifferencer::Equals(Parsed(text), v1::Config())) << text;
  }
}

TEST(Config, TakesColumnsForParquetToo) {
  const v1::Config config = Parsed("data: {format: parquet, csv: {label: click}}");
  EXPECT_EQ(config.data().csv().label(), "click");
}

TEST(Config, ReadsWindowsLineEndings) {
  const v1::Config config = Parsed("train:\r\n  epochs: 2\r\nlog:\r\n  level: warn\r\n");
  EXPECT_EQ(config.train().epochs(), 2);
  EXPECT_EQ(config.log().level(), v1::LogConfig::WARN);
}

TEST(Config, KeepsABroadcastThatNeverComes) {
  const v1::Config config = Parsed("model: {dense: {broadcast: {every_ms: 0, every_pushes: 0}}}");
  EXPECT_TRUE(config.model().dense().broadcast().has_every_ms());
}

TEST(Config, TakesOverridesAfterTheFileInOrder) {
  const v1::Config config = Parsed(
      kWhole, {"train.epochs=3", "train.epochs=4", "data.train=x.csv", "model.hidden=[7, 8]", "data.label_map.spam=3",
               "data.label_map.a.b=4", "model.optimizer.adam=", "server.memory_max_bytes=1MB", "log.json=true",
               "data.csv.delimiter=|", "worker.index=1", "data.test="});
  EXPECT_EQ(config.train().epochs(), 4);
  EXPECT_THAT(config.data().train(), ElementsAre("x.csv"));
  EXPECT_TRUE(config.data().test().empty());
  EXPECT_THAT(config.model().hidden(), ElementsAre(7, 8));
  EXPECT_THAT(config.data().label_map(),
              UnorderedElementsAre(Pair("-1", 0), Pair("1", 1), Pair("spam", 3), Pair("a.b", 4)));
  EXPECT_TRUE(config.model().optimizer().has_adam());
  EXPECT_FALSE(config.model().optimizer().has_adagrad());
  EXPECT_EQ(config.model().optimizer().learning_rate(), 0.05f);  // Not part of the oneof.
  EXPECT_EQ(config.server().memory_max_bytes(), 1000'000u);
  EXPECT_TRUE(config.log().json());
  EXPECT_EQ(config.data().csv().delimiter(), "|");
  EXPECT_EQ(config.worker().index(), 1u);
}

TEST(Config, TakesStringsInOverridesAsTheyAre) {
  const auto label = [](const std::string& value) {
    return Parsed("", {"data.csv.label=" + value}).data().csv().label();
  };
  for (const std::string value : {"a: b", "#1", "*x", "&x", "{a", "null", "~", "- x", "a=b", "!x", "@x", "  x", "%"}) {
    EXPECT_EQ(label(value), value);
  }
  EXPECT_EQ(label("\"a\\tb\""), "a\tb");
  EXPECT_EQ(label("'it''s'"), "it's");
  EXPECT_THAT(Parsed("", {"data.train=*.gz"}).data().train(), ElementsAre("*.gz"));
  EXPECT_THAT(Parsed("", {"data.train=[\"*.gz\", b]"}).data().train(), ElementsAre("*.gz", "b"));
}

TEST(Config, ReplacesAMessageByAnOverride) {
  const v1::Config config = Parsed(kWhole, {"model.optimizer={sgd: {}}", "data.label_map={x: 1}", "train={}"});
  EXPECT_TRUE(config.model().optimizer().has_sgd());
  EXPECT_FALSE(config.model().optimizer().has_learning_rate());
  EXPECT_THAT(config.data().label_map(), UnorderedElementsAre(Pair("x", 1)));
  EXPECT_TRUE(config.train().shuffle());
}

TEST(Config, ReadsFilesOfTheTreeAndPrintsThemBack) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    // That of identities has a schema of its own, and a test in tests/configs.
    if (entry.path().extension() != ".yaml" || entry.path().filename() == "identities.yaml") continue;
    ++files;
    const absl::StatusOr<v1::Config> config = LoadConfig(entry.path().string());
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_TRUE(SameValues(*config, Parsed(PrintConfig(*config)))) << entry.path();
  }
  EXPECT_GT(files, 0);
}

TEST(Config, LoadsAFile) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/config.yaml";
  std::ofstream(path) << "train: {epochs: 2}\n";
  const absl::StatusOr<v1::Config> config = LoadConfig(path, std::vector<std::string>{"train.batch_size=7"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->train().epochs(), 2);
  EXPECT_EQ(config->train().batch_size(), 7u);
  std::ofstream(path) << "train: {epochs: -2}\n";
  EXPECT_EQ(std::string(LoadConfig(path).status().message()),
            path + ":1:17: train.epochs: `-2` is out of range: must be at least 0");
}

TEST(PrintConfig, ShowsDefaultsAndWhatIsSet) {
  const std::string printed = PrintConfig(Parsed("train: {epochs: 2}\nmodel: {optimizer: {sgd: }}"));
  EXPECT_THAT(printed, HasSubstr("cluster:\n  name: lodestone  # default\n  servers: 2  # default\n"));
  EXPECT_THAT(printed, HasSubstr("listen: \"127.0.0.1:0\"  # default\n"));
  EXPECT_THAT(printed, HasSubstr("train:\n  epochs: 2\n  batch_size: 256  # default\n"));
  EXPECT_THAT(printed, HasSubstr("  optimizer:\n    sgd: {}\n    learning_rate: 0.01  # default\n"));
  EXPECT_THAT(printed, HasSubstr("level: info  # default\n"));
  EXPECT_THAT(printed, Not(HasSubstr("data:")));
  // An index that is not set means the lowest free one: 0 would be another configuration.
  EXPECT_THAT(printed, HasSubstr("worker:\n  threads: 1"));
}

TEST(PrintConfig, QuotesStringsThatYamlWouldTakeForSomethingElse) {
  for (const std::string& value : std::vector<std::string>{
           "",         "null",         "~",           "true",  "No",      "12",
           "1e3",      "a: b",         "a #b",        "- a",   "*a",      "\"",
           "'",        "\\",           "line\nbreak", "\ttab", " space ", std::string("\0\x01\x7f", 3),
           "\xc3\xa9", "\xe2\x80\xa8", "[a]",         "{a}",   "%a",      "@a",
           "a,b",      ".inf",         "\xef\xbb\xbf"}) {
    v1::Config config;
    config.mutable_data()->add_train("x" + value);
    config.mutable_data()->mutable_csv()->set_delimiter(value);
    (*config.mutable_data()->mutable_label_map())[value] = 3;
    const v1::Config read = Parsed(PrintConfig(config));
    EXPECT_EQ(read.data().csv().delimiter(), value);
    EXPECT_EQ(read.data().train(0), "x" + value);
    EXPECT_EQ(read.data().label_map().count(value), 1u) << PrintConfig(config);
  }
}

TEST(PrintConfig, IsReadBackToTheSameConfiguration) {
  const v1::Config config = Parsed(kWhole);
  EXPECT_TRUE(SameValues(config, Parsed(PrintConfig(config)))) << PrintConfig(config);
  EXPECT_EQ(PrintConfig(Parsed(PrintConfig(config))), PrintConfig(Parsed(PrintConfig(Parsed(PrintConfig(config))))));
}

// A value of a field, different for different salts, within its range.
void SetSomeValue(const FieldDescriptor& field, uint32_t salt, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  const v1::Range& range = field.options().GetExtension(v1::range);
  const double min = range.has_above() ? range.above() : range.has_min() ? range.min() : 0;
  const double max = range.has_below() ? range.below() : range.has_max() ? range.max() : min + 1e6;
  // Never a bound itself, which may be outside.
  const double number = min + (max - min) * (salt % 97 + 0.5) / 98.0;
  const bool repeated = field.is_repeated();
  const auto store = [&](auto value, auto set, auto add) {
    (reflection.*(repeated ? add : set))(message, &field, value);
  };
  using R = Reflection;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return store(static_cast<uint32_t>(std::ceil(number)), &R::SetUInt32, &R::AddUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return store(static_cast<uint64_t>(std::ceil(number)), &R::SetUInt64, &R::AddUInt64);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return store(static_cast<float>(number), &R::SetFloat, &R::AddFloat);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return store(number, &R::SetDouble, &R::AddDouble);
    case FieldDescriptor::CPPTYPE_BOOL:
      return store(salt % 2 == 0, &R::SetBool, &R::AddBool);
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto* type = field.enum_type();
      return store(type->value(static_cast<int>(salt) % type->value_count()), &R::SetEnum, &R::AddEnum);
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return store("value " + std::to_string(salt), &R::SetString, &R::AddString);
    default:
      ADD_FAILURE() << "no value for " << field.full_name();
  }
}

// Sets every field below `message`, of each oneof member `choice` modulo their number, two elements in every list.
// Returns how many single values it set.
int SetEveryField(uint32_t choice, uint32_t* salt, Message* message) {
  int count = 0;
  const Reflection& reflection = *message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message->GetDescriptor()->field(i);
    const auto* oneof = field.real_containing_oneof();
    if (oneof != nullptr && field.index_in_oneof() != static_cast<int>(choice) % oneof->field_count()) continue;
    for (int element = 0; element < (field.is_repeated() ? 2 : 1); ++element) {
      if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
        SetSomeValue(field, ++*salt, message);
        ++count;
      } else if (field.is_repeated()) {
        count += SetEveryField(choice, salt, reflection.AddMessage(message, &field));
      } else {
        count += SetEveryField(choice, salt, reflection.MutableMessage(message, &field));
      }
    }
  }
  return count;
}

// The members of the largest oneof: so many choices set every field of the configuration.
uint32_t Choices() {
  uint32_t largest = 1;
  for (const auto* type : {v1::Optimizer::descriptor(), v1::Initializer::descriptor(), v1::Schedule::descriptor()}) {
    for (int i = 0; i < type->real_oneof_decl_count(); ++i) {
      largest = std::max(largest, static_cast<uint32_t>(type->oneof_decl(i)->field_count()));
    }
  }
  return largest;
}

TEST(PrintYaml, IsReadBackExactlyWithEveryFieldSet) {
  uint32_t salt = 1;
  for (uint32_t choice = 0; choice < Choices(); ++choice) {
    v1::Config config;
    EXPECT_GT(SetEveryField(choice, &salt, &config), 100);
    v1::Config read;
    YamlReader reader(&read);
    reader.Read(PrintYaml(config), "printed");
    ASSERT_TRUE(reader.status().ok()) << reader.status() << "\n" << PrintYaml(config);
    EXPECT_TRUE(MessageDifferencer::Equals(config, read)) << PrintYaml(config) << "\n----\n" << PrintYaml(read);
  }
}

// Makes every message below `message` present and leaves all single values to their defaults.
void MakeEveryMessagePresent(uint32_t choice, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message->GetDescriptor()->field(i);
    const auto* oneof = field.real_containing_oneof();
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field.is_repeated()) continue;
    if (oneof != nullptr && field.index_in_oneof() != static_cast<int>(choice) % oneof->field_count()) continue;
    MakeEveryMessagePresent(choice, reflection.MutableMessage(message, &field));
  }
}

TEST(PrintYaml, ShowsDefaultsThatAreThemselvesReadable) {
  for (uint32_t choice = 0; choice < Choices(); ++choice) {
    v1::Config config;
    MakeEveryMessagePresent(choice, &config);
    const std::string printed = PrintYaml(config);
    EXPECT_THAT(printed, HasSubstr("# default"));
    v1::Config read;
    YamlReader reader(&read);
    reader.Read(printed, "printed");
    ASSERT_TRUE(reader.status().ok()) << reader.status() << "\n" << printed;
    EXPECT_TRUE(SameValues(config, read)) << printed;
    EXPECT_FALSE(MessageDifferencer::Equals(config, read));  // What was a default is set now.
  }
}

TEST(PrintYaml, KeepsEveryBitOfNumbers) {
  for (const double number : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, 123456789012345678.0}) {
    v1::Config config;
    config.mutable_train()->set_epochs(number);
    EXPECT_EQ(Parsed(PrintYaml(config)).train().epochs(), number);
  }
  for (const float number : {0.1f, 1.0f / 3, 1e-45f, 3.4028235e38f, -16777217.0f}) {
    v1::Config config;
    config.mutable_model()->mutable_dense()->mutable_initializer()->mutable_constant()->set_value(number);
    EXPECT_EQ(Parsed(PrintYaml(config)).model().dense().initializer().constant().value(), number);
  }
}

TEST(PrintYaml, PrintsNothingAsAnEmptyMapping) { EXPECT_EQ(PrintYaml(v1::Sgd()), "{}\n"); }

TEST(Config, ForTrainingSaysWhatIsTrainedAndOnWhat) {
  const auto error_of = [](const std::string& yaml, const std::vector<std::string>& sets = {}) {
    return std::string(ParseConfig(yaml, "c.yaml", sets, ConfigUse::kTraining).status().message());
  };
  const std::string none = error_of("cluster: {servers: 1}\n");
  EXPECT_THAT(none, HasSubstr("model.type: must name the model: linear, fm, mf, deepfm"));
  EXPECT_THAT(none, HasSubstr("data.train: must name the training files"));
  EXPECT_THAT(error_of("model: {type: fm}\ndata: {test: x}\n"), HasSubstr("c.yaml:2:1: data.train: must name"));
  EXPECT_EQ(error_of("model: {type: fm}\ndata: {format: generated}\n"), "");
  EXPECT_EQ(error_of("model: {type: fm}\ndata: {generated: {}}\n"), "");
  EXPECT_EQ(error_of("model: {type: fm}\n", {"data.train=x"}), "");
  // The configuration of a ps alone need not.
  EXPECT_TRUE(ParseConfig("cluster: {servers: 1}\n", "c.yaml").ok());
}

TEST(Config, ForTrainingHasNoSettingsOfOtherTypesOfModel) {
  const auto error_of = [](const std::string& model) {
    const std::string yaml = absl::StrCat("model: {", model, "}\ndata: {format: generated}\n");
    return std::string(ParseConfig(yaml, "c.yaml", {}, ConfigUse::kTraining).status().message());
  };
  EXPECT_EQ(
      error_of("type: fm, dropout: 0.5"),
      "c.yaml:1:19: model.dropout: is for model.type: mlp, widedeep, deepfm, dlrm, dcn, twotower, multitask; leave "
      "it out for fm");
  EXPECT_THAT(error_of("type: linear, hidden: [4]"), HasSubstr("model.hidden: is for model.type: mlp, widedeep"));
  EXPECT_THAT(error_of("type: mlp, hidden: [4], bottom_hidden: [4]"),
              HasSubstr("model.bottom_hidden: is for model.type: dlrm; leave it out for mlp"));
  EXPECT_THAT(error_of("type: deepfm, hidden: [4], cross: {layers: 2}"), HasSubstr("model.cross: is for"));
  EXPECT_THAT(error_of("type: deepfm, hidden: [4], multitask: {experts: 3}"), HasSubstr("model.multitask: is for"));
  EXPECT_THAT(error_of("type: mlp, hidden: [4], two_tower: {dim: 3}"), HasSubstr("model.two_tower: is for"));
  EXPECT_THAT(error_of("type: mlp, hidden: [4], numeric_pairs: true"),
              HasSubstr("model.numeric_pairs: is for model.type: fm, deepfm; leave it out for mlp"));
  EXPECT_THAT(error_of("type: mlp, hidden: [4], linear: {}"), HasSubstr("model.linear: is for"));
  EXPECT_THAT(error_of("type: linear, embedding: {}"), HasSubstr("model.embedding: is for"));
  EXPECT_THAT(error_of("type: fm, activation: gelu"), HasSubstr("model.activation: is for"));
  EXPECT_THAT(error_of("type: mf, layer_norm: true"), HasSubstr("model.layer_norm: is for"));
  EXPECT_EQ(error_of("type: deepfm, hidden: [4], dropout: 0.5, numeric_pairs: true, linear: {}, embedding: {}"), "");
  // A ps trains no model, whatever a file says of it.
  EXPECT_TRUE(ParseConfig("model: {type: fm, dropout: 0.5}\n", "c.yaml").ok());
}

TEST(Config, EveryShippedConfigurationOfAClusterIsForTraining) {
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    if (entry.path().extension() != ".yaml" || entry.path().stem() == "identities") continue;
    const absl::Status status = LoadConfig(entry.path().string(), {}, ConfigUse::kTraining).status();
    EXPECT_TRUE(status.ok()) << status;
  }
}

}  // namespace
}  // namespace lodestone
