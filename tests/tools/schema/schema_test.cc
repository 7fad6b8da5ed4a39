#include "tools/schema/schema.h"

#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/config.pb.h"

namespace lodestone::schema {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using Json = nlohmann::ordered_json;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The configuration's descriptors with their comments.
const Descriptor& Root() {
  static const DescriptorPool* const pool = [] {
    google::protobuf::FileDescriptorSet files;
    EXPECT_TRUE(files.ParseFromString(ReadFile("tools/schema/config.descriptors")));
    auto* built = new DescriptorPool;
    for (const auto& file : files.file()) EXPECT_NE(built->BuildFile(file), nullptr) << file.name();
    return built;
  }();
  return *pool->FindMessageTypeByName("lodestone.v1.Config");
}

const Json& Schema() {
  static const auto* const schema = new Json(Json::parse(JsonSchema(Root())));
  return *schema;
}

const Json& Property(const std::string& message, const std::string& field) {
  return Schema().at("definitions").at(message).at("properties").at(field);
}

TEST(JsonSchema, OfTheTreeIsCurrent) {
  EXPECT_EQ(JsonSchema(Root()), ReadFile("configs/lodestone.schema.json"))
      << "regenerate it: bazel run //tools/schema > configs/lodestone.schema.json";
}

// Counts the fields below `type`, each message once, and expects each to be in the schema with a description.
void ExpectFields(const Descriptor& type, const Json& schema, std::set<std::string>* done, int* fields) {
  EXPECT_EQ(schema.at("properties").size(), static_cast<size_t>(type.field_count())) << type.full_name();
  EXPECT_EQ(schema.at("additionalProperties"), false);
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    ++*fields;
    ASSERT_TRUE(schema.at("properties").contains(field.name())) << field.full_name();
    EXPECT_TRUE(schema.at("properties").at(field.name()).contains("description")) << field.full_name();
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field.is_map()) continue;
    const std::string name = field.message_type()->full_name().substr(std::string("lodestone.v1.").size());
    if (!done->insert(name).second) continue;
    ExpectFields(*field.message_type(), Schema().at("definitions").at(name), done, fields);
  }
}

TEST(JsonSchema, DescribesEveryField) {
  std::set<std::string> done;
  int fields = 0;
  ExpectFields(*v1::Config::descriptor(), Schema(), &done, &fields);
  EXPECT_GT(fields, 100);
}

TEST(JsonSchema, GivesTypesRangesAndDefaults) {
  const Json& servers = Property("ClusterConfig", "servers");
  EXPECT_EQ(servers.at("type"), "integer");
  EXPECT_EQ(servers.at("minimum"), 1);
  EXPECT_EQ(servers.at("maximum"), 1024);
  EXPECT_EQ(servers.at("default"), 2);
  EXPECT_EQ(servers.at("description"),
            "Number of ps processes; with cluster.servers_at_start, that there may come to be.");
  EXPECT_EQ(Property("Optimizer", "learning_rate").at("default").dump(), "0.01");
  EXPECT_EQ(Property("Adam", "epsilon").at("default").dump(), "1e-08");
  EXPECT_EQ(Property("ModelConfig", "dropout").at("maximum").dump(), "0.95");
  EXPECT_EQ(Property("Adam", "epsilon").at("exclusiveMinimum"), 0);
  EXPECT_FALSE(Property("Adam", "epsilon").contains("minimum"));
  EXPECT_EQ(Property("Adam", "beta1").at("minimum"), 0);
  EXPECT_EQ(Property("Adam", "beta1").at("exclusiveMaximum"), 1);
  EXPECT_FALSE(Property("Adam", "beta1").contains("maximum"));
  EXPECT_EQ(Property("TrainConfig", "shuffle").at("default"), true);
  EXPECT_EQ(Property("CsvConfig", "label").at("default"), "-1");
}

TEST(JsonSchema, NamesEnumsInLowerCaseWithTheirMeaning) {
  const Json& type = Property("ModelConfig", "type");
  Json names = Json::array();
  const auto& types = *v1::ModelConfig::Type_descriptor();
  for (int i = 0; i < types.value_count(); ++i) names.push_back(absl::AsciiStrToLower(types.value(i)->name()));
  EXPECT_EQ(type.at("enum"), names);
  EXPECT_EQ(type.at("default"), "linear");
  EXPECT_NE(type.at("description")
                .get<std::string>()
                .find("- mlp: mlp over the fields' embeddings and the numeric features."),
            std::string::npos);
}

TEST(JsonSchema, TakesOneValueForAListAndNamesForMaps) {
  const Json& hidden = Property("ModelConfig", "hidden");
  EXPECT_EQ(hidden.at("anyOf").at(0).at("items").at("minimum"), 1);
  EXPECT_EQ(hidden.at("anyOf").at(1).at("type"), "integer");
  EXPECT_EQ(Property("DataConfig", "label_map").at("additionalProperties").at("type"), "integer");
  EXPECT_EQ(Property("CsvConfig", "transform").at("additionalProperties").at("enum").at(0), "default");
}

TEST(JsonSchema, ForbidsTwoMembersOfAOneof) {
  const Json& pairs = Schema().at("definitions").at("Optimizer").at("not").at("anyOf");
  const size_t methods = v1::Optimizer::descriptor()->FindOneofByName("kind")->field_count();
  EXPECT_EQ(pairs.size(), methods * (methods - 1) / 2);
  EXPECT_EQ(pairs.at(0).at("required"), Json({"sgd", "momentum"}));
  EXPECT_FALSE(Schema().at("definitions").at("ClusterConfig").contains("not"));
}

}  // namespace
}  // namespace lodestone::schema
