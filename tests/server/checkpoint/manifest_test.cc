#include "server/checkpoint/manifest.h"

#include <string>

#include "common/io/record_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/checkpoint/fake_ps.h"

namespace lodestone::server {
namespace {

using testing::HasSubstr;

TEST(CheckpointName, HoldsLettersDigitsAndAFewMore) {
  for (const char* name : {"a", "A-b_c.9", "2026-11-21T10.00.00Z", "auto", "manual-1"}) {
    EXPECT_EQ(CheckCheckpointName(name), absl::OkStatus()) << name;
  }
  EXPECT_EQ(CheckCheckpointName(std::string(100, 'x')), absl::OkStatus());
  for (const char* name : {"", ".", "..", ".a", "-a", "_a", "a/b", "a b", "a:b", "\xc3\xa4", "auto-ps0-000001"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckCheckpointName(name))) << name;
  }
  EXPECT_THAT(std::string(CheckCheckpointName(std::string(101, 'x')).message()), HasSubstr("1 to 100 characters"));
  EXPECT_THAT(std::string(CheckCheckpointName("a\nb").message()), HasSubstr("`a\\nb`"));
}

TEST(CheckpointName, OfAPeriodicOneIsToldFromOthers) {
  EXPECT_EQ(PeriodicName(3, 12), "auto-ps3-000012");
  EXPECT_EQ(NumberOfPeriodic(3, "auto-ps3-000012"), 12u);
  EXPECT_EQ(NumberOfPeriodic(3, PeriodicName(3, 12'345'678)), 12'345'678u);
  EXPECT_EQ(NumberOfPeriodic(3, "auto-ps31-000012"), std::nullopt);
  EXPECT_EQ(NumberOfPeriodic(3, "auto-ps3-"), std::nullopt);
  EXPECT_EQ(NumberOfPeriodic(3, "auto-ps3-1x"), std::nullopt);
  EXPECT_EQ(NumberOfPeriodic(3, "auto-ps3--1"), std::nullopt);
  EXPECT_TRUE(IsPeriodic("auto-ps31-000012"));
  EXPECT_FALSE(IsPeriodic("auto-psx-000012"));
  EXPECT_FALSE(IsPeriodic("manual"));
  EXPECT_TRUE(IsFileOf(1, ShardFileName(1, 7)));
  EXPECT_TRUE(IsFileOf(1, ManifestName(1) + ".tmp"));
  EXPECT_FALSE(IsFileOf(1, ManifestName(11)));
}

class ManifestTest : public ::testing::Test {
 protected:
  ManifestTest() {
    manifest_.set_format(1);
    manifest_.set_server(2);
    manifest_.set_shards(4);
    for (const uint32_t shard : {1, 3}) {
      auto* entry = manifest_.add_contents();
      entry->set_shard(shard);
      entry->add_files()->set_name("f");
    }
  }
  std::string Error() {
    EXPECT_EQ(WriteManifest(path_, manifest_), absl::OkStatus());
    const absl::Status status = ReadManifest(path_).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    return std::string(status.message());
  }

  const std::string dir_ = FreshFolder();
  const std::string path_ = dir_ + "/ps-2.manifest";
  v1::ServerManifest manifest_;
};

TEST_F(ManifestTest, IsReadBack) {
  ASSERT_EQ(WriteManifest(path_, manifest_), absl::OkStatus());
  const auto read = ReadManifest(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->SerializeAsString(), manifest_.SerializeAsString());
}

TEST_F(ManifestTest, ThatMakesNoSenseIsNamed) {
  manifest_.set_format(7);
  EXPECT_THAT(Error(), HasSubstr("/ps-2.manifest: is of format 7"));
  manifest_.set_format(1);
  manifest_.set_shards(3);
  EXPECT_THAT(Error(), HasSubstr("shard 3 is none of the cluster's"));
  manifest_.set_shards(4);
  manifest_.mutable_contents(1)->set_shard(1);
  EXPECT_THAT(Error(), HasSubstr("in order"));
  manifest_.mutable_contents(1)->set_shard(2);
  manifest_.mutable_contents(1)->clear_files();
  EXPECT_THAT(Error(), HasSubstr("shard 2 has no files"));
  for (const char* name : {"", "..", "a/b", "/etc/passwd"}) {
    manifest_.mutable_contents(1)->clear_files();
    manifest_.mutable_contents(1)->add_files()->set_name(name);
    EXPECT_THAT(Error(), HasSubstr("whose name is none")) << name;
  }
  manifest_.mutable_contents(1)->mutable_files(0)->set_name("f");
  manifest_.mutable_contents(1)->mutable_files(0)->set_folder("..");
  EXPECT_THAT(Error(), HasSubstr("in a folder whose name is none"));
}

TEST_F(ManifestTest, WithMoreBehindItIsRefused) {
  ASSERT_EQ(WriteManifest(path_, manifest_), absl::OkStatus());
  WriteWhole(path_, ReadWhole(path_) + ReadWhole(path_));
  EXPECT_THAT(std::string(ReadManifest(path_).status().message()), HasSubstr("more after the manifest"));
  WriteWhole(path_, "");
  EXPECT_THAT(std::string(ReadManifest(path_).status().message()), HasSubstr("is empty"));
}

TEST_F(ManifestTest, FindsThoseOfAllCheckpointsAndServers) {
  for (const char* folder : {"b", "a", "empty"}) std::filesystem::create_directory(dir_ + "/" + folder);
  const auto add = [&](const char* folder, uint32_t server) {
    manifest_.set_server(server);
    ASSERT_EQ(WriteManifest(dir_ + "/" + folder + "/" + ManifestName(server), manifest_), absl::OkStatus());
  };
  add("a", 10);
  add("a", 9);
  add("b", 0);
  WriteWhole(dir_ + "/b/ps-1.manifest", ReadWhole(dir_ + "/b/ps-0.manifest"));
  WriteWhole(dir_ + "/b/ps-x.manifest", "no manifest");
  WriteWhole(dir_ + "/stray", "no folder");
  const auto found = FindManifests(dir_);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->size(), 4u);
  EXPECT_EQ((*found)[0].path, dir_ + "/a/ps-9.manifest");
  EXPECT_EQ((*found)[1].server, 10u);
  EXPECT_EQ((*found)[2].name, "b");
  EXPECT_THAT(std::string((*found)[3].manifest.status().message()), HasSubstr("is the manifest of ps 0"));
  EXPECT_EQ(FindManifests(dir_, "a")->size(), 2u);
  EXPECT_EQ(FindManifests(dir_, "nothing")->size(), 0u);
  EXPECT_EQ(FindManifests(dir_ + "/none")->size(), 0u);
}

}  // namespace
}  // namespace lodestone::server
