#include "server/durability/lineage.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/manifest.h"

namespace lodestone::server {
namespace {

using ::testing::ElementsAre;

class LineageTest : public ::testing::Test {
 protected:
  LineageTest() { std::filesystem::remove_all(dir_); }
  ~LineageTest() override { std::filesystem::remove_all(dir_); }

  // A manifest with these lineages of shards. Those of periodic ones are written again and again.
  void Write(uint32_t server, const std::string& name, const std::string& loaded,
             const std::vector<std::pair<ShardId, uint64_t>>& lineages) {
    v1::ServerManifest manifest;
    manifest.set_format(kCheckpointFormat);
    manifest.set_cluster("test");
    manifest.set_name(name);
    manifest.set_server(server);
    manifest.set_servers(2);
    manifest.set_shards(kShards);
    manifest.set_loaded(loaded);
    for (const auto& [shard, lineage] : lineages) {
      v1::ServerManifest::ShardEntry& entry = *manifest.add_contents();
      entry.set_shard(shard);
      entry.set_lineage(lineage);
      entry.add_files()->set_name(ShardFileName(server, shard));
      manifest.set_lineage(std::max<uint64_t>(manifest.lineage(), lineage));
    }
    std::filesystem::create_directories(absl::StrCat(dir_, "/", name));
    const absl::Status written = WriteManifest(absl::StrCat(dir_, "/", name, "/", ManifestName(server)), manifest);
    ASSERT_TRUE(written.ok()) << written;
  }
  std::vector<uint64_t> GoBack(uint32_t server, uint64_t lineage, const std::string& load) {
    v1::SegmentHeader ps;
    ps.set_cluster("test");
    ps.set_server(server);
    ps.set_shards(kShards);
    ps.set_lineage(lineage);
    const auto lineages = LineagesGoneBack(ps, dir_, load);
    EXPECT_TRUE(lineages.ok()) << lineages.status();
    return lineages.value_or(std::vector<uint64_t>());
  }

  static constexpr uint32_t kShards = 3;
  const std::string dir_ = absl::StrCat(::testing::TempDir(), "/lineages");
};

TEST_F(LineageTest, WhatIsWrittenFromNowOnRanksAboveAllThatIsThereOfTheShard) {
  EXPECT_THAT(GoBack(0, 1, "x"), ElementsAre(2, 2, 2)) << "there is nothing yet";
  Write(0, "x", "", {{0, 1}});
  Write(1, "y", "w", {{1, 4}, {2, 3}});
  EXPECT_THAT(GoBack(0, 1, "x"), ElementsAre(2, 5, 4));
  EXPECT_THAT(GoBack(0, 6, "x"), ElementsAre(7, 7, 7)) << "its log may hold what no checkpoint has";
}

TEST_F(LineageTest, AllPsThatGoBackComeToTheSame) {
  Write(0, "x", "", {{0, 1}, {2, 1}});
  Write(1, "x", "", {{1, 1}, {2, 1}});
  const std::vector<uint64_t> first = GoBack(0, 1, "x");
  Write(0, "auto-ps0-000001", "x", {{0, first[0]}, {2, first[2]}});
  EXPECT_EQ(GoBack(1, 1, "x"), first);
}

TEST_F(LineageTest, APsThatLostItsFolderGoesBackOnceMore) {
  Write(0, "x", "", {{0, 1}});
  Write(0, "auto-ps0-000001", "x", {{0, 2}, {1, 3}});
  EXPECT_THAT(GoBack(0, 1, "x"), ElementsAre(4, 4, 4));
}

TEST_F(LineageTest, OtherClustersDoNotCount) {
  Write(0, "x", "", {{0, 1}});
  v1::SegmentHeader ps;
  ps.set_cluster("other");
  ps.set_shards(kShards);
  ps.set_lineage(1);
  EXPECT_THAT(*LineagesGoneBack(ps, dir_, "x"), ElementsAre(2, 2, 2));
}

}  // namespace
}  // namespace lodestone::server
