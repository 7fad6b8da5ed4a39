#include "tools/psctl/verbs/verify.h"

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/server/checkpoint/fake_ps.h"
#include "tools/psctl/files/checkpoint_folder.h"

namespace lodestone::psctl {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Three servers' checkpoints: two periodic ones of each, and "all".
class VerifyTest : public ::testing::Test {
 protected:
  VerifyTest() {
    for (uint32_t server = 0; server < 3; ++server) {
      server::FakePs ps(server, 3, 7, server::SpecsWith("adam {}"));
      server::CheckpointWriter::Options options = ps.options(dir_);
      options.keep = 1;  // The second builds on the first.
      const auto writer = server::FakePs::OpenWriter(options);
      for (const char* name : {"", "", "all"}) {
        ++pushes_;
        ps.Run(pushes_, pushes_);
        EXPECT_TRUE(writer->Write(name, ps.source()).ok());
      }
    }
  }
  VerifyReport Verify(const std::string& name = "") {
    auto report = VerifyCheckpoints(dir_ + "/" + name);
    EXPECT_TRUE(report.ok()) << report.status();
    return *std::move(report);
  }
  int Run(const std::string& name = "", bool json = false) { return RunVerify({dir_ + "/" + name, json}); }

  uint32_t pushes_ = 0;
  const std::string dir_ = server::FreshFolder();
};

TEST_F(VerifyTest, FindsAllCheckpointsWhole) {
  const VerifyReport report = Verify();
  ASSERT_EQ(report.checkpoints.size(), 7u);
  for (const VerifiedCheckpoint& each : report.checkpoints) EXPECT_STREQ(each.state(), "whole") << each.name;
  EXPECT_THAT(report.checkpoints[0].servers, ElementsAre(0, 1, 2));
  EXPECT_EQ(report.checkpoints[0].shards.size(), 7u);
  EXPECT_THAT(report.checkpoints[4].name, "auto-ps1-000002");
  EXPECT_THAT(report.checkpoints[4].shards, ElementsAre(1, 4));
  EXPECT_THAT(report.checkpoints[4].needs, ElementsAre("auto-ps1-000001"));
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(Run(), 0);
  EXPECT_EQ(Run("all"), 0);
  EXPECT_EQ(Run("auto-ps1-000002"), 0);
  EXPECT_THAT(ToText(report), HasSubstr("7 of 7"));
}

TEST_F(VerifyTest, NamesAChangedByteWithFileAndOffset) {
  const std::string path = dir_ + "/all/ps-1.shard-00004";
  std::string content = server::ReadWhole(path);
  content[100] ^= 1;
  server::WriteWhole(path, content);
  const VerifyReport report = Verify("all");
  EXPECT_STREQ(report.checkpoints[0].state(), "damaged");
  EXPECT_THAT(report.checkpoints[0].damage, ElementsAre(AllOf(HasSubstr(path), HasSubstr("offset"))));
  EXPECT_THAT(report.checkpoints[0].shards_missing, ElementsAre(4));
  EXPECT_THAT(ToText(report), HasSubstr(path));
  EXPECT_EQ(Run("all"), 1);
  EXPECT_EQ(Run("auto-ps1-000001"), 0);
}

TEST_F(VerifyTest, NamesADamagedManifestAndWhatIsMissingWithoutIt) {
  const std::string path = dir_ + "/all/ps-0.manifest";
  server::WriteWhole(path, server::ReadWhole(path).substr(1));
  const VerifyReport report = Verify("all");
  EXPECT_THAT(report.checkpoints[0].damage, ElementsAre(HasSubstr(path)));
  EXPECT_THAT(report.checkpoints[0].shards_missing, ElementsAre(0, 3, 6));
}

TEST_F(VerifyTest, SaysWhichShardsANamedCheckpointLacks) {
  std::filesystem::remove(dir_ + "/all/ps-2.manifest");
  const VerifyReport report = Verify("all");
  EXPECT_STREQ(report.checkpoints[0].state(), "incomplete");
  EXPECT_THAT(report.checkpoints[0].damage, IsEmpty());
  EXPECT_THAT(ToText(report), HasSubstr("all lacks shards 2, 5"));
  EXPECT_EQ(Run("all"), 1);
}

TEST_F(VerifyTest, SaysWhichShardsNoCheckpointHolds) {
  std::filesystem::remove_all(dir_ + "/all");
  for (const char* name : {"auto-ps2-000001", "auto-ps2-000002"}) std::filesystem::remove_all(dir_ + "/" + name);
  const VerifyReport report = Verify();
  EXPECT_THAT(report.shards_missing, ElementsAre(2, 5));
  EXPECT_THAT(ToText(report), HasSubstr("no checkpoint holds shards 2, 5"));
  EXPECT_EQ(Run(), 1);
}

TEST_F(VerifyTest, AnOldFileThatIsMissingIsNamed) {
  std::filesystem::remove_all(dir_ + "/auto-ps0-000001");
  const VerifyReport report = Verify("auto-ps0-000002");
  ASSERT_FALSE(report.checkpoints[0].damage.empty());
  EXPECT_THAT(report.checkpoints[0].damage[0], HasSubstr("auto-ps0-000001/ps-0.shard-00000"));
}

TEST_F(VerifyTest, PartsOfDifferentClustersAreNotOneCheckpoint) {
  server::FakePs stranger(2, 3, 9, server::SpecsWith("adam {}"));
  std::filesystem::remove_all(dir_ + "/all/ps-2.manifest");
  EXPECT_TRUE(stranger.OpenWriter(dir_)->Write("all", stranger.source()).ok());
  EXPECT_THAT(Verify("all").checkpoints[0].damage, ElementsAre(HasSubstr("ps-2.manifest: is of another cluster")));
}

TEST_F(VerifyTest, TheReportAsJsonHasEverything) {
  std::filesystem::remove(dir_ + "/all/ps-2.manifest");
  const auto json = nlohmann::json::parse(ToJson(Verify("all")));
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["checkpoints"][0]["name"], "all");
  EXPECT_EQ(json["checkpoints"][0]["state"], "incomplete");
  EXPECT_EQ(json["checkpoints"][0]["servers"], (std::vector<int>{0, 1}));
  EXPECT_EQ(json["checkpoints"][0]["shards_missing"], (std::vector<int>{2, 5}));
}

TEST_F(VerifyTest, AFolderWithoutCheckpointsIsAnError) {
  std::filesystem::create_directory(dir_ + "/empty");
  EXPECT_THAT(std::string(VerifyCheckpoints(dir_ + "/empty").status().message()), HasSubstr("holds no checkpoint"));
  EXPECT_THAT(std::string(VerifyCheckpoints(dir_ + "/none").status().message()), HasSubstr("is no folder"));
  for (uint32_t server = 0; server < 3; ++server) {
    std::filesystem::remove(absl::StrCat(dir_, "/all/ps-", server, ".manifest"));
  }
  EXPECT_THAT(std::string(VerifyCheckpoints(dir_ + "/all").status().message()), HasSubstr("was never complete"));
  EXPECT_EQ(Run("none"), 1);
}

TEST_F(VerifyTest, ACheckpointIsToldFromAFolderOfThem) {
  EXPECT_EQ(FindCheckpointFolder(dir_)->name, "");
  EXPECT_EQ(FindCheckpointFolder(dir_ + "/all/")->name, "all");
  EXPECT_EQ(FindCheckpointFolder(dir_ + "/all/../all")->dir, std::filesystem::canonical(dir_));
  // A data folder has them in a folder of its own.
  const std::filesystem::path data = dir_ + "-data", within = data / "checkpoints";
  std::filesystem::create_directories(data / "log");
  std::filesystem::copy(dir_, within, std::filesystem::copy_options::recursive);
  EXPECT_EQ(FindCheckpointFolder(data)->dir, std::filesystem::canonical(within));
  EXPECT_EQ(FindCheckpointFolder(data)->name, "");
}

}  // namespace
}  // namespace lodestone::psctl
