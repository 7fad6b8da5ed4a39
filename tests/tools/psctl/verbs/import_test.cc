#include "tools/psctl/verbs/import.h"

#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "tests/server/checkpoint/fake_ps.h"
#include "tests/tools/psctl/files/tensor_reader.h"
#include "tools/psctl/files/tensor_file.h"
#include "tools/psctl/verbs/export.h"

namespace lodestone::psctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ImportTest : public ::testing::Test {
 protected:
  ImportTest() {
    server::FakePs ps(0, 1, 5, specs_);
    ps.Run(1, 12);
    EXPECT_TRUE(ps.OpenWriter(dir_)->Write("trained", ps.source()).ok());
    config_.mutable_cluster()->set_name("test");
    config_.mutable_cluster()->set_shards(5);
    config_.mutable_cluster()->set_seed(server::FilledShard::kSeed);
  }

  std::string Export(const std::string& name, bool with_state = false) {
    const std::string out = dir_ + "/" + name + ".safetensors";
    const absl::Status status = ExportCheckpoint({dir_ + "/" + name, out, {}, with_state});
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }
  absl::StatusOr<ImportResult> Import(const std::string& file, const std::string& name, const std::string& like = "") {
    ImportOptions options;
    options.file = file;
    options.into = dir_ + "/" + name;
    options.like = like;
    return ImportCheckpoint(options, config_);
  }
  // Two dense elements and some rows, without metadata, after `change`.
  std::string WriteTensors(const std::function<void(std::vector<Tensor>*, std::vector<float>*)>& change) {
    std::vector<Tensor> tensors = {{"w", TensorType::kFloat32, {2}},
                                   {"e.keys", TensorType::kUint64, {2}},
                                   {"e.values", TensorType::kFloat32, {2, 3}}};
    std::vector<float> floats = {1, 2, 0, 0, 0, 0, 3, 4, 5, 6, 7, 8};
    const Key keys[] = {10, 11};
    std::memcpy(&floats[2], keys, sizeof(keys));
    change(&tensors, &floats);
    const std::string path = dir_ + "/made.safetensors";
    auto file = TensorFile::Create(path, tensors, {});
    EXPECT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE((*file)->Append({reinterpret_cast<const uint8_t*>(floats.data()), floats.size() * 4}).ok());
    EXPECT_TRUE((*file)->Finish().ok());
    return path;
  }
  // A checkpoint of a cluster with tables "w" and "e" that has only just started.
  std::string Template() {
    std::vector<v1::TableSpec> specs(2);
    specs[0].set_name("w");
    specs[0].mutable_dense()->add_dims(2);
    specs[1].set_name("e");
    specs[1].mutable_embedding()->set_dim(3);
    specs[1].mutable_embedding()->mutable_eviction()->set_rows_max(10);
    for (v1::TableSpec& spec : specs) *spec.mutable_optimizer() = server::OptimizerConfig("adam {}");
    server::FakePs ps(0, 1, 5, specs);
    if (!std::filesystem::exists(dir_ + "/template")) {
      EXPECT_TRUE(ps.OpenWriter(dir_)->Write("template", ps.source()).ok());
    }
    return dir_ + "/template";
  }
  std::string Error(const std::function<void(std::vector<Tensor>*, std::vector<float>*)>& change) {
    const auto result = Import(WriteTensors(change), "bad", Template());
    EXPECT_FALSE(result.ok());
    EXPECT_FALSE(std::filesystem::exists(dir_ + "/bad"));
    return std::string(result.status().message());
  }

  const std::vector<v1::TableSpec> specs_ = server::SpecsWith("adam {}");
  const std::string dir_ = server::FreshFolder();
  v1::Config config_;
};

TEST_F(ImportTest, WhatWasExportedComesBackWithFreshOptimizersForAnyNumberOfShards) {
  const std::string file = Export("trained", /*with_state=*/true);
  const ReadTensors before = ReadSafetensors(server::ReadWhole(file));
  for (const uint32_t shards : {1, 5, 8}) {
    config_.mutable_cluster()->set_shards(shards);
    const std::string name = absl::StrCat("imported", shards);
    const auto result = Import(file, name);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->tables.size(), 4u);
    EXPECT_THAT(result->initial, IsEmpty());
    EXPECT_EQ(result->unused.size(), 8u);
    const ReadTensors after = ReadSafetensors(server::ReadWhole(Export(name, /*with_state=*/true)));
    ASSERT_EQ(after.size(), before.size());
    for (const auto& [tensor, content] : before) {
      EXPECT_EQ(after.at(tensor).shape, content.shape) << tensor;
      const bool state = absl::StrContains(tensor, ".state") || absl::StrContains(tensor, ".scalars");
      EXPECT_EQ(after.at(tensor).bytes, state ? std::string(content.bytes.size(), '\0') : content.bytes) << tensor;
    }
  }
}

TEST_F(ImportTest, AClusterStartsFromItAndTrains) {
  ASSERT_TRUE(Import(Export("trained"), "imported").ok());
  const auto reader = server::CheckpointReader::Open(dir_, "imported");
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->CheckCluster("test", 5, server::FilledShard::kSeed), absl::OkStatus());
  server::FakePs ps(1, 2, 5, specs_);
  std::vector<std::string> damage;
  for (auto& [id, shard] : ps.shards) {
    const auto state = reader->Restore(&*shard, &damage);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ((*state)->manifest().lineage(), 0u);  // Any state of a cluster that has run is newer.
    EXPECT_EQ(shard->version(), 1u);
  }
  ps.Run(1, 20);
}

TEST_F(ImportTest, TakesTheTablesOfAnotherCheckpointWhereTheFileSaysNone) {
  const std::string file = WriteTensors([](auto*, auto*) {});
  EXPECT_THAT(std::string(Import(file, "x").status().message()), HasSubstr("--like CHECKPOINT"));
  const auto result = Import(file, "x", Template());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->tables, ElementsAre("e", "w"));
  const ReadTensors tensors = ReadSafetensors(server::ReadWhole(Export("x")));
  EXPECT_EQ(tensors.at("w").As<float>(), (std::vector<float>{1, 2}));
  EXPECT_EQ(tensors.at("e.keys").As<Key>(), (std::vector<Key>{10, 11}));
  EXPECT_EQ(tensors.at("e.values").As<float>(), (std::vector<float>{3, 4, 5, 6, 7, 8}));
}

TEST_F(ImportTest, ATableWithoutATensorStaysAsItIsMade) {
  const auto result = Import(WriteTensors([](auto* tensors, auto* floats) {
                               tensors->resize(1);
                               floats->resize(2);
                             }),
                             "x", Template());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->tables, ElementsAre("w"));
  EXPECT_THAT(result->initial, ElementsAre("e"));
}

TEST_F(ImportTest, NamesTheTensorThatDoesNotFit) {
  EXPECT_THAT(Error([](auto* t, auto*) { (*t)[0].name += "v"; }),
              HasSubstr("tensor `wv` is of no table; the tables are: e, w"));
  EXPECT_THAT(Error([](auto* t, auto*) { (*t)[0].shape = {1, 2}; }), HasSubstr("tensor `w` is [1, 2], not [2]"));
  EXPECT_THAT(Error([](auto* t, auto*) {
                (*t)[2].shape = {3, 2};
              }),
              HasSubstr("tensor `e.values` is [3, 2], not [2, 3]"));
  EXPECT_THAT(Error([](auto* t, auto*) {
                (*t)[0] = {"w", TensorType::kInt64, {1}};
              }),
              HasSubstr("tensor `w` is I64, not F32"));
  EXPECT_THAT(Error([](auto* t, auto*) { (*t)[2].name += "x"; }), HasSubstr("and no `e.values`"));
  EXPECT_THAT(Error([](auto*, auto* f) { (*f)[1] = std::numeric_limits<float>::quiet_NaN(); }),
              HasSubstr("made.safetensors: tensor `w`: element 1 is nan"));
  EXPECT_THAT(Error([](auto*, auto* f) { std::memcpy(&(*f)[4], &(*f)[2], sizeof(Key)); }),
              HasSubstr("table `e`, page 0: key 10 is there twice"));
}

TEST_F(ImportTest, OverwritesNothingAndLeavesOthersFilesAlone) {
  std::filesystem::create_directory(dir_ + "/auto-ps0-000009");
  server::WriteWhole(dir_ + "/auto-ps0-000009/ps-0.shard-00000", "being written");
  const std::string file = Export("trained");
  EXPECT_TRUE(absl::IsAlreadyExists(Import(file, "trained").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Import(file, "auto-ps0-000001").status()));
  EXPECT_TRUE(Import(file, "new").ok());
  EXPECT_EQ(server::ReadWhole(dir_ + "/auto-ps0-000009/ps-0.shard-00000"), "being written");
}

}  // namespace
}  // namespace lodestone::psctl
