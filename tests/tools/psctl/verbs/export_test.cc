#include "tools/psctl/verbs/export.h"

#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/checkpoint/fake_ps.h"
#include "tests/tools/psctl/files/tensor_reader.h"

namespace lodestone::psctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint32_t kShards = 5;
constexpr uint32_t kDim = 5;

// What the servers hold, found out without a checkpoint.
struct Expected {
  std::vector<float> dense = std::vector<float>(23 * 9);
  std::vector<float> dense_m = dense;
  std::vector<float> dense_v = dense;
  std::vector<float> counts = std::vector<float>((23 * 9 + 31) / 32);
  std::map<Key, std::vector<float>> rows;  // Of "rows/plain": values and state.
};

class ExportTest : public ::testing::Test {
 protected:
  ExportTest() {
    for (uint32_t server = 0; server < 3; ++server) {
      server::FakePs ps(server, 3, kShards, server::SpecsWith("adam {}", kDim));
      server::CheckpointWriter::Options options = ps.options(dir_);
      options.keep = 1;  // The second builds on the first.
      const auto writer = server::FakePs::OpenWriter(options);
      ps.Run(1, 10);
      EXPECT_TRUE(writer->Write("", ps.source()).ok());
      ps.Run(11, 12);
      EXPECT_TRUE(writer->Write("", ps.source()).ok());
      EXPECT_TRUE(writer->Write("all", ps.source()).ok());
      for (auto& [id, shard] : ps.shards) Note(shard->CollectState(nullptr));
    }
  }

  void Note(const server::Shard::State& state) {
    for (const server::DenseTable::BlockState& block : state.dense[0].blocks) {
      const size_t n = block.values->size_bytes() / sizeof(float);
      const size_t begin = block.block * 32;
      std::copy_n(block.values->floats(), n, &expected_.dense[begin]);
      std::copy_n(block.state->floats(), n, &expected_.dense_m[begin]);
      std::copy_n(block.state->floats() + n, n, &expected_.dense_v[begin]);
      expected_.counts[block.block] = block.state->floats()[2 * n];
    }
    for (const server::Shard::State::RowsPart& part : state.rows) {
      if (part.table->name() != "rows/plain") continue;
      for (const auto& page : part.content.pages) {
        for (uint32_t i = 0; i < part.layout.rows(); ++i) {
          if (part.layout.Changed(page.page)[i] == 0) continue;
          const float* row = part.layout.Row(page.page, i);
          expected_.rows[part.layout.Keys(page.page)[i]] = {row, row + part.layout.row_floats};
        }
      }
    }
  }

  ReadTensors Export(ExportOptions options, const std::string& from, const std::string& kind) {
    options.path = dir_ + "/" + from;
    options.out = server::FreshFolder() + "/f." + kind;
    const absl::Status status = ExportCheckpoint(options);
    EXPECT_TRUE(status.ok()) << status;
    return kind == "npz" ? ReadNpz(server::ReadWhole(options.out)) : ReadSafetensors(server::ReadWhole(options.out));
  }

  void ExpectRows(const ReadTensors& tensors, bool with_state) {
    std::vector<Key> keys;
    std::vector<float> values, state, counts;
    for (const auto& [key, row] : expected_.rows) {
      keys.push_back(key);
      values.insert(values.end(), row.begin(), row.begin() + kDim);
      state.insert(state.end(), row.begin() + kDim, row.begin() + 3 * kDim);
      counts.push_back(row[3 * kDim]);
    }
    EXPECT_GT(keys.size(), 100u);
    EXPECT_EQ(tensors.at("rows/plain.keys").As<Key>(), keys);
    EXPECT_THAT(tensors.at("rows/plain.values").shape, ElementsAre(keys.size(), kDim));
    EXPECT_EQ(tensors.at("rows/plain.values").As<float>(), values);
    EXPECT_EQ(tensors.contains("rows/plain.state"), with_state);
    if (!with_state) return;
    EXPECT_THAT(tensors.at("rows/plain.state").shape, ElementsAre(keys.size(), 2, kDim));
    EXPECT_EQ(tensors.at("rows/plain.state").As<float>(), state);
    EXPECT_THAT(tensors.at("rows/plain.scalars").shape, ElementsAre(keys.size(), 1));
    EXPECT_EQ(tensors.at("rows/plain.scalars").As<float>(), counts);
  }

  const std::string dir_ = server::FreshFolder();
  Expected expected_;
};

TEST_F(ExportTest, GivesEveryTableInBothFormatsFromOneCheckpointAndFromAll) {
  for (const char* from : {"all", ""}) {
    for (const char* kind : {"safetensors", "npz"}) {
      const ReadTensors tensors = Export({}, from, kind);
      EXPECT_EQ(tensors.size(), 1u + 3 * 2);
      EXPECT_THAT(tensors.at("dense").shape, ElementsAre(23, 9));
      EXPECT_EQ(tensors.at("dense").As<float>(), expected_.dense);
      ExpectRows(tensors, /*with_state=*/false);
    }
  }
}

TEST_F(ExportTest, GivesTheOptimizersStateIfAsked) {
  const ReadTensors tensors = Export({.with_state = true}, "all", "npz");
  std::vector<float> state = expected_.dense_m;
  state.insert(state.end(), expected_.dense_v.begin(), expected_.dense_v.end());
  EXPECT_THAT(tensors.at("dense.state").shape, ElementsAre(2, 23, 9));
  EXPECT_EQ(tensors.at("dense.state").As<float>(), state);
  EXPECT_THAT(tensors.at("dense.scalars").shape, ElementsAre(7, 1));
  EXPECT_EQ(tensors.at("dense.scalars").As<float>(), expected_.counts);
  ExpectRows(tensors, /*with_state=*/true);
}

TEST_F(ExportTest, GivesTheTablesThatAreNamedAndKeysAsWanted) {
  const ReadTensors tensors = Export({.tables = {"rows/plain"}, .signed_keys = true}, "all", "safetensors");
  EXPECT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors.at("rows/plain.keys").type, "I64");
}

TEST_F(ExportTest, NamesATableThatThereIsNot) {
  const absl::Status status = ExportCheckpoint({dir_ + "/all", dir_ + "/f.npz", {"dense", "densee"}});
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("`densee`; there are: dense, rows/bounded"));
}

TEST_F(ExportTest, NamesShardsThatAreMissingAndDamage) {
  const auto error = [&](const std::string& from) {
    const absl::Status status = ExportCheckpoint({from, dir_ + "/f.npz"});
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(std::filesystem::exists(dir_ + "/f.npz"));
    return std::string(status.message());
  };
  EXPECT_THAT(error(dir_ + "/auto-ps1-000002"),
              HasSubstr("lacks shards 0, 2, 3 of 5; all periodic ones together are the folder above"));
  EXPECT_THAT(error(dir_ + "/none"), HasSubstr("no folder"));
  const std::string path = dir_ + "/all/ps-0.shard-00003";
  std::string content = server::ReadWhole(path);
  content[content.size() / 2] ^= 4;
  server::WriteWhole(path, content);
  EXPECT_THAT(error(dir_ + "/all"), HasSubstr(path + ": the record at offset"));
  EXPECT_EQ(RunExport({dir_ + "/all", dir_ + "/f.npz"}), 1);
  EXPECT_EQ(RunExport({dir_ + "/all", dir_ + "/f.pt"}), 2);
}

// Every damage to every file of what is exported: cut tails, flipped bits, and more at the end.
TEST_F(ExportTest, WhateverIsDamagedWhereverIsNamedAndNothingIsWritten) {
  constexpr uint32_t kSeed = 18;
  std::printf("seed %u\n", kSeed);
  std::mt19937_64 random(kSeed);
  const std::string out = dir_ + "/f.npz";
  size_t damages = 0;
  const auto expect_refused = [&](const std::string& from, const std::string& path, const std::string& damaged,
                                  const std::string& what) {
    ++damages;
    server::WriteWhole(path, damaged);
    const absl::Status status = ExportCheckpoint({from, out, {}, /*with_state=*/true});
    EXPECT_TRUE(absl::IsDataLoss(status)) << path << " " << what << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path)) << what;
    EXPECT_FALSE(std::filesystem::exists(out)) << path << " " << what;
    std::filesystem::remove(out);
  };
  const auto sweep = [&](const std::string& from, const std::string& path) {
    const std::string whole = server::ReadWhole(path);
    ASSERT_GT(whole.size(), 64u) << path;
    std::uniform_int_distribution<size_t> place(0, whole.size() - 1);
    for (const size_t kept : {size_t{0}, size_t{1}, size_t{32}, place(random), place(random), whole.size() - 1}) {
      expect_refused(from, path, whole.substr(0, kept), absl::StrCat("cut to ", kept, " of ", whole.size()));
    }
    for (const size_t at : {size_t{0}, place(random), place(random), place(random), place(random), whole.size() - 1}) {
      const int bit = static_cast<int>(place(random) % 8);
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      expect_refused(from, path, flipped, absl::StrCat("bit ", bit, " of byte ", at, " of ", whole.size()));
    }
    expect_refused(from, path, whole + whole, "twice");
    expect_refused(from, path, whole + std::string(100, '\0'), "zeros at the end");
    server::WriteWhole(path, whole);
    EXPECT_TRUE(ExportCheckpoint({from, out}).ok()) << path;
    std::filesystem::remove(out);
  };
  const std::vector<std::string> of_one = server::FilesBelow(dir_ + "/all");
  EXPECT_EQ(of_one.size(), 3 + kShards) << "manifests and shards";
  for (const std::string& file : of_one) sweep(dir_ + "/all", dir_ + "/all/" + file);

  std::filesystem::remove_all(dir_ + "/all");
  const std::vector<std::string> of_chains = server::FilesBelow(dir_);
  EXPECT_EQ(of_chains.size(), 2 * of_one.size()) << "the second builds on the first";
  for (const std::string& file : of_chains) sweep(dir_, absl::StrCat(dir_, "/", file));
  EXPECT_EQ(damages, 14 * 3 * of_one.size());
}

TEST(Export, ATableThatWasNeverTouchedHasItsInitialValues) {
  const std::string dir = server::FreshFolder();
  server::FakePs ps(0, 1, 3, {});
  EXPECT_TRUE(ps.OpenWriter(dir)->Write("before", ps.source()).ok());
  // The table is made after its shards were written: only the manifest has it.
  const auto specs = server::SpecsWith("adagrad { initial_accumulator: 0.25 }");
  server::CheckpointWriter::Source source = ps.source();
  server::FakePs described(0, 1, 3, specs);
  source.describe = [&](v1::ServerManifest* manifest) { described.source().describe(manifest); };
  EXPECT_TRUE(ps.OpenWriter(dir)->Write("after", source).ok());
  ASSERT_TRUE(ExportCheckpoint({dir + "/after", dir + "/f.npz", {}, /*with_state=*/true}).ok());
  const ReadTensors tensors = ReadNpz(server::ReadWhole(dir + "/f.npz"));
  std::vector<float> initial(23 * 9);
  (*server::Table::Create(specs[0], server::FilledShard::kSeed, 3))->InitializeDense(0, initial.size(), initial.data());
  EXPECT_EQ(tensors.at("dense").As<float>(), initial);
  EXPECT_EQ(tensors.at("dense.state").As<float>(), std::vector<float>(23 * 9, 0.25f));
  EXPECT_THAT(tensors.at("rows/plain.keys").shape, ElementsAre(0));
  EXPECT_THAT(tensors.at("rows/plain.values").shape, ElementsAre(0, 5));
}

}  // namespace
}  // namespace lodestone::psctl
