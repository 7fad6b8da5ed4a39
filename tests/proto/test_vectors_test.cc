// The arithmetic that clients in other languages repeat: proto/test_vectors.json is what this program does, and what
// test_vectors.py, which was written from proto/README.md, makes of it.
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/wire/shard_map.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/table/table.h"

namespace lodestone {
namespace {

std::string FileOf(const std::string& path) {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"), "/", path);
}

uint64_t NumberOf(const nlohmann::json& text) {
  uint64_t number = 0;
  EXPECT_TRUE(absl::SimpleHexAtoi(text.get<std::string>(), &number)) << text;
  return number;
}

// Calls `check` with each case of the part `name`; there are at least `least`.
template <typename Check>
void ForEachCase(const std::string& name, size_t least, Check check) {
  std::ifstream file(FileOf("proto/test_vectors.json"));
  const nlohmann::json vectors = nlohmann::json::parse(file);
  EXPECT_EQ(vectors.at("format"), 1);
  EXPECT_GE(vectors.at(name).size(), least);
  for (const nlohmann::json& each : vectors.at(name)) {
    SCOPED_TRACE(each.dump());
    check(each);
  }
}

TEST(TestVectors, HashesAreWhatTheFileSays) {
  ForEachCase("mix64", 10,
              [](const nlohmann::json& each) { EXPECT_EQ(Mix64(NumberOf(each["x"])), NumberOf(each["mixed"])); });
  ForEachCase("stable_hash", 10, [](const nlohmann::json& each) {
    EXPECT_EQ(StableHash(each["text"].get<std::string>(), NumberOf(each["salt"])), NumberOf(each["hash"]));
  });
  ForEachCase("table_id", 5, [](const nlohmann::json& each) {
    EXPECT_EQ(TableIdOf(each["name"].get<std::string>()), each["id"].get<uint32_t>());
  });
}

TEST(TestVectors, KeysAndBlocksLieWhereTheFileSays) {
  ForEachCase("shard_of_key", 40, [](const nlohmann::json& each) {
    EXPECT_EQ(ShardOfKey(NumberOf(each["key"]), each["shards"]), each["shard"].get<uint32_t>());
  });
  ForEachCase("shard_of_block", 27, [](const nlohmann::json& each) {
    EXPECT_EQ(ShardOfBlock(TableIdOf(each["table"].get<std::string>()), each["block"], each["shards"]),
              each["shard"].get<uint32_t>());
  });
  ForEachCase("block_elements", 15, [](const nlohmann::json& each) {
    EXPECT_EQ(DefaultBlockElements(each["elements"], each["shards"]), each["block_elements"].get<uint32_t>());
  });
}

TEST(TestVectors, UntouchedParametersAreWhatTheFileSays) {
  ForEachCase("initial_values", 10, [](const nlohmann::json& each) {
    v1::TableSpec spec;
    spec.set_name(each["table"]);
    ASSERT_TRUE(
        google::protobuf::util::JsonStringToMessage(each["initializer"].dump(), spec.mutable_initializer()).ok());
    const uint32_t count = each["count"];
    if (each.contains("key")) {
      spec.mutable_embedding()->set_dim(count);
    } else {
      for (const uint64_t dim : each["dims"]) spec.mutable_dense()->add_dims(dim);
    }
    const auto table = server::Table::Create(spec, NumberOf(each["cluster_seed"]), 64);
    ASSERT_TRUE(table.ok()) << table.status();
    std::vector<float> values(count);
    if (each.contains("key")) {
      (*table)->InitializeRow(NumberOf(each["key"]), values.data());
    } else {
      (*table)->InitializeDense(each["first"], count, values.data());
    }
    for (uint32_t i = 0; i < count; ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(values[i]), NumberOf(each["float32_bits"][i])) << "element " << i;
    }
  });
}

TEST(TestVectors, APayloadHasKeysThenValues) {
  ForEachCase("rows_payload", 1, [](const nlohmann::json& each) {
    std::string bytes;
    const auto add = [&bytes](const auto& number) {
      bytes.append(reinterpret_cast<const char*>(&number),
                   sizeof(number));  // Little-endian, as every machine we run on.
    };
    for (const nlohmann::json& key : each["keys"]) add(NumberOf(key));
    for (const nlohmann::json& value : each["values"]) add(value.get<float>());
    EXPECT_EQ(absl::BytesToHexString(bytes), each["hex"].get<std::string>());
  });
}

TEST(TestVectors, AClientThatWasWrittenFromTheReadmeGetsThem) {
  const std::string command =
      absl::StrCat("python3 ", FileOf("tests/proto/test_vectors.py"), " ", FileOf("proto/test_vectors.json"));
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

TEST(TestVectors, AnythingElseIsFound) {
  const std::string other = absl::StrCat(std::getenv("TEST_TMPDIR"), "/other_vectors.json");
  std::ifstream file(FileOf("proto/test_vectors.json"));
  nlohmann::json vectors = nlohmann::json::parse(file);
  vectors["shard_of_key"][0]["shard"] = 1;
  std::ofstream(other) << vectors;
  const std::string command = absl::StrCat("python3 ", FileOf("tests/proto/test_vectors.py"), " ", other);
  EXPECT_NE(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace lodestone
