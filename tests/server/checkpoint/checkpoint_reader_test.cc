#include "server/checkpoint/checkpoint_reader.h"

#include <map>
#include <string>
#include <vector>

#include "common/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/checkpoint/fake_ps.h"

namespace lodestone::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr uint32_t kShards = 11;

CheckpointReader Open(const std::string& dir, const std::string& name = "") {
  auto reader = CheckpointReader::Open(dir, name);
  EXPECT_TRUE(reader.ok()) << reader.status();
  return *std::move(reader);
}

class CheckpointReaderTest : public ::testing::Test {
 protected:
  void Write(FakePs* ps, const std::string& name = "") {
    const auto result = ps->OpenWriter(dir_)->Write(name, ps->source());
    EXPECT_TRUE(result.ok()) << result.status();
  }
  std::vector<std::string> TableNames(const CheckpointReader& reader, const std::vector<ShardId>& shards) {
    const auto specs = reader.Tables(shards);
    EXPECT_TRUE(specs.ok()) << specs.status();
    std::vector<std::string> names;
    for (const v1::TableSpec& spec : *specs) names.push_back(spec.name());
    return names;
  }

  const std::vector<v1::TableSpec> specs_ = SpecsWith("nesterov {}");
  const std::string dir_ = FreshFolder();
};

TEST_F(CheckpointReaderTest, WhatThreeServersWroteIsReadByAnyNumber) {
  std::map<ShardId, uint64_t> expected;
  for (uint32_t server = 0; server < 3; ++server) {
    FakePs ps(server, 3, kShards, specs_);
    ps.Run(1, 10 + server);
    Write(&ps);
    Write(&ps, "named");
    expected.merge(ps.checksums());
  }
  for (const char* name : {"", "named"}) {
    const CheckpointReader reader = Open(dir_, name);
    EXPECT_EQ(reader.CheckCluster("test", kShards, FilledShard::kSeed), absl::OkStatus());
    for (const uint32_t servers : {1, 2, 5}) {
      std::map<ShardId, uint64_t> restored;
      for (uint32_t server = 0; server < servers; ++server) {
        FakePs ps(server, servers, kShards, specs_);
        std::vector<std::string> damage;
        for (auto& [id, shard] : ps.shards) {
          const auto state = reader.Restore(&*shard, &damage);
          ASSERT_TRUE(state.ok()) << state.status();
          ASSERT_TRUE(state->has_value());
          EXPECT_EQ((*state)->files.version, shard->version());
        }
        EXPECT_THAT(damage, IsEmpty());
        restored.merge(ps.checksums());
      }
      EXPECT_EQ(restored, expected) << servers;
    }
  }
}

TEST_F(CheckpointReaderTest, AFolderThatIsNotThereHasNothing) {
  const CheckpointReader reader = Open(dir_ + "/none");
  EXPECT_THAT(reader.manifests(), IsEmpty());
  Shard shard(0);
  std::vector<std::string> damage;
  const auto restored = reader.Restore(&shard, &damage);
  ASSERT_TRUE(restored.ok());
  EXPECT_FALSE(restored->has_value());
  EXPECT_THAT(TableNames(reader, {0}), IsEmpty());
}

TEST_F(CheckpointReaderTest, ANamedOneThatIsNotThereIsAnError) {
  const absl::Status status = CheckpointReader::Open(dir_, "none").status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("`none`"), HasSubstr(dir_)));
}

TEST_F(CheckpointReaderTest, ANamedOneOfWhichAServersPartIsMissingIsAnErrorForItsShardsOnly) {
  FakePs ps(1, 3, kShards, specs_);
  Write(&ps, "some");
  const CheckpointReader reader = Open(dir_, "some");
  std::vector<std::string> damage;
  FakePs fresh(0, 1, kShards, specs_);
  EXPECT_TRUE(reader.Restore(&*fresh.shards.at(1), &damage).ok());
  const absl::Status missing = reader.Restore(&*fresh.shards.at(2), &damage).status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("does not hold shard 2"));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("copy the folders `some` of all ps into one"));
}

TEST_F(CheckpointReaderTest, TakesTheNewestVersionOfTheNewestLineage) {
  FakePs ps(0, 1, 1, specs_);
  ps.Run(1, 5);
  Write(&ps, "early");
  ps.Run(6, 20);
  Write(&ps, "late");
  // Started from "early" again: what comes now counts, though its version is less than that of "late".
  FakePs again(0, 1, 1, specs_);
  again.Run(1, 7);
  again.lineage = 2;
  Write(&again, "again");
  const CheckpointReader reader = Open(dir_);
  std::vector<std::string> names;
  for (const CheckpointReader::State& state : reader.StatesOf(0)) names.push_back(state.found->name);
  EXPECT_THAT(names, ElementsAre("again", "late", "early"));
  FakePs fresh(0, 1, 1, specs_);
  std::vector<std::string> damage;
  const auto restored = reader.Restore(&*fresh.shards.at(0), &damage);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ((*restored)->manifest().lineage(), 2u);
  EXPECT_EQ(fresh.checksums(), again.checksums());
}

TEST_F(CheckpointReaderTest, AShardThatMovedKeepsItsLineageInTheCheckpointsOfAPsOfAnother) {
  FakePs source(0, 1, 1, specs_);
  source.Run(1, 20);
  source.lineage = 3;
  Write(&source, "source");
  FakePs target(0, 1, 1, specs_);
  target.Run(1, 30);
  target.shards.at(0)->RaiseLineage(3);
  target.lineage = 2;
  Write(&target, "target");
  const CheckpointReader reader = Open(dir_);
  const std::vector<CheckpointReader::State> states = reader.StatesOf(0);
  ASSERT_EQ(states.size(), 2u);
  EXPECT_EQ(states[0].found->name, "target");
  EXPECT_EQ(states[0].files.lineage, 3u);
  EXPECT_EQ(states[0].manifest().lineage(), 3u) << "its tables count";
  EXPECT_EQ(states[1].files.lineage, 3u);
}

TEST_F(CheckpointReaderTest, UpToAVersionTakesTheBestStateThatIsNotBeyondIt) {
  FakePs ps(0, 1, 1, specs_);
  ps.Run(1, 5);
  Write(&ps, "early");
  const Version early = ps.shards.at(0)->version();
  const auto early_sums = ps.checksums();
  ps.Run(6, 20);
  Write(&ps, "late");
  const Version late = ps.shards.at(0)->version();
  FakePs again(0, 1, 1, specs_);
  again.Run(1, 10);
  again.lineage = 2;
  Write(&again, "again");
  const Version branch = again.shards.at(0)->version();
  const CheckpointReader reader = Open(dir_);
  const auto name_of = [&](Version version_max) -> std::string {
    FakePs fresh(0, 1, 1, specs_);
    std::vector<std::string> damage;
    const auto restored = reader.Restore(&*fresh.shards.at(0), &damage, version_max);
    EXPECT_TRUE(restored.ok()) << restored.status();
    EXPECT_THAT(damage, IsEmpty());
    if (!restored->has_value()) return "none";
    EXPECT_LE(fresh.shards.at(0)->version(), version_max);
    return (*restored)->found->name;
  };
  EXPECT_EQ(name_of(late), "again") << "of the newest lineage";
  EXPECT_EQ(name_of(branch), "again");
  EXPECT_EQ(name_of(branch - 1), "early");
  EXPECT_EQ(name_of(early), "early");
  EXPECT_EQ(name_of(early - 1), "none");
  FakePs fresh(0, 1, 1, specs_);
  std::vector<std::string> damage;
  const absl::Status named = Open(dir_, "late").Restore(&*fresh.shards.at(0), &damage, early).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(named));
  EXPECT_THAT(std::string(named.message()), AllOf(HasSubstr("`late` holds shard 0"), HasSubstr("beyond")));
  ASSERT_TRUE(Open(dir_, "early").Restore(&*fresh.shards.at(0), &damage, early).ok());
  EXPECT_EQ(fresh.checksums(), early_sums);
}

TEST_F(CheckpointReaderTest, TellsOfAManifestThatCannotBeReadAndGoesOnWithout) {
  FakePs ps(0, 1, kShards, specs_);
  ps.Run(1, 3);
  Write(&ps, "good");
  const auto good = ps.checksums();
  ps.Run(4, 6);
  Write(&ps, "bad");
  const std::string path = dir_ + "/bad/ps-0.manifest";
  WriteWhole(path, ReadWhole(path).substr(0, 50));
  const CheckpointReader reader = Open(dir_);
  ASSERT_THAT(reader.problems(), SizeIs(1));
  EXPECT_THAT(reader.problems()[0], AllOf(HasSubstr(path), HasSubstr("offset 0")));
  FakePs fresh(0, 1, kShards, specs_);
  std::vector<std::string> damage;
  for (auto& [id, shard] : fresh.shards) ASSERT_TRUE(reader.Restore(&*shard, &damage).ok());
  EXPECT_EQ(fresh.checksums(), good);
  const absl::Status named = CheckpointReader::Open(dir_, "bad").status();
  EXPECT_TRUE(absl::IsDataLoss(named));
  EXPECT_THAT(std::string(named.message()), HasSubstr(path));
}

TEST_F(CheckpointReaderTest, TellsOfADamagedFileAndTakesTheNextOlderState) {
  FakePs ps(0, 1, 2, specs_);
  const auto writer = ps.OpenWriter(dir_);
  std::vector<std::map<ShardId, uint64_t>> sums;
  for (uint32_t i = 1; i <= 3; ++i) {
    ps.Run(3 * i, 3 * i + 2);
    ASSERT_TRUE(writer->Write(absl::StrCat("c", i), ps.source()).ok());
    sums.push_back(ps.checksums());
  }
  const auto damage_file = [&](int i) {
    const std::string path = absl::StrCat(dir_, "/c", i, "/ps-0.shard-00001");
    std::string content = ReadWhole(path);
    content[content.size() / 2] ^= 1;
    WriteWhole(path, content);
    return path;
  };
  const CheckpointReader reader = Open(dir_);
  const std::string newest = damage_file(3);
  FakePs fresh(0, 1, 2, specs_);
  std::vector<std::string> damage;
  ASSERT_TRUE(reader.Restore(&*fresh.shards.at(0), &damage).ok());
  EXPECT_THAT(damage, IsEmpty());
  const auto restored = reader.Restore(&*fresh.shards.at(1), &damage);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ((*restored)->found->name, "c2");
  EXPECT_THAT(damage, ElementsAre(AllOf(HasSubstr(newest), HasSubstr("offset"))));
  EXPECT_EQ(fresh.checksums()[0], sums[2][0]);
  EXPECT_EQ(fresh.checksums()[1], sums[1][1]);
  // The named one is not replaced by another.
  FakePs other(0, 1, 2, specs_);
  EXPECT_TRUE(absl::IsDataLoss(Open(dir_, "c3").Restore(&*other.shards.at(1), &damage).status()));
  damage_file(1);
  damage_file(2);
  damage.clear();
  const absl::Status none = reader.Restore(&*other.shards.at(1), &damage).status();
  EXPECT_TRUE(absl::IsDataLoss(none));
  EXPECT_THAT(std::string(none.message()), AllOf(HasSubstr("no state of shard 1 is whole"), HasSubstr(newest)));
  EXPECT_THAT(damage, SizeIs(3));
}

TEST_F(CheckpointReaderTest, NamesACheckpointOfAnotherCluster) {
  FakePs ps(0, 1, kShards, specs_);
  Write(&ps);
  const CheckpointReader reader = Open(dir_);
  const std::string path = dir_ + "/auto-ps0-000001/ps-0.manifest";
  const auto error = [&](const std::string& cluster, uint32_t shards, uint64_t seed) {
    const absl::Status status = reader.CheckCluster(cluster, shards, seed);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(error("other", kShards, FilledShard::kSeed), AllOf(HasSubstr(path), HasSubstr("named `test`")));
  EXPECT_THAT(error("test", 64, FilledShard::kSeed), AllOf(HasSubstr(path), HasSubstr("of 11 shards")));
  EXPECT_THAT(error("test", kShards, 1), AllOf(HasSubstr(path), HasSubstr("seed 17")));
}

TEST_F(CheckpointReaderTest, JoinsTheTablesOfAllServers) {
  std::vector<v1::TableSpec> fewer = specs_;
  fewer.pop_back();
  FakePs first(0, 2, kShards, fewer);
  FakePs second(1, 2, kShards, specs_);
  Write(&first);
  Write(&second);
  EXPECT_THAT(TableNames(Open(dir_), {0, 1}), ElementsAre("dense", "rows/bounded", "rows/expiring", "rows/plain"));
}

TEST_F(CheckpointReaderTest, NamesATableThatServersDoNotAgreeOn) {
  FakePs first(0, 2, kShards, specs_);
  FakePs second(1, 2, kShards, SpecsWith("nesterov {}", /*dim=*/6));
  Write(&first);
  Write(&second);
  const std::vector<ShardId> shards = {0};
  const absl::Status status = Open(dir_).Tables(shards).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("table `rows/plain`"), HasSubstr("ps-0.manifest"),
                                                   HasSubstr("ps-1.manifest"), HasSubstr("embedding.dim: 5 -> 6")));
}

// Regression: a ps that a worker had had make a table later than others, with other settings, kept all from starting.
TEST_F(CheckpointReaderTest, TablesThatServersMadeWithOtherSettingsAreTheSame) {
  std::vector<v1::TableSpec> later = specs_;
  for (v1::TableSpec& spec : later) spec.mutable_consistency()->mutable_sync()->set_batches(2);
  later.back().mutable_optimizer()->set_learning_rate(0.125f);
  FakePs first(0, 2, kShards, specs_);
  FakePs second(1, 2, kShards, later);
  Write(&first);
  Write(&second);
  EXPECT_EQ(TableNames(Open(dir_), {0, 1}).size(), specs_.size());
  later.back().mutable_initializer()->mutable_constant()->set_value(7);
  FakePs third(1, 2, kShards, later);
  Write(&third);
  const std::vector<ShardId> shards = {0};
  EXPECT_TRUE(absl::IsFailedPrecondition(Open(dir_).Tables(shards).status())) << "its rows begin otherwise";
}

TEST_F(CheckpointReaderTest, ALaterLineagesTablesCount) {
  FakePs before(0, 2, kShards, specs_);
  Write(&before, "before");
  FakePs after(0, 2, kShards, SpecsWith("nesterov {}", /*dim=*/6));
  after.lineage = 2;
  Write(&after, "after");
  FakePs only_before(1, 2, kShards, specs_);  // Its shards have no state of the later lineage.
  Write(&only_before, "before");
  const CheckpointReader reader = Open(dir_);
  for (const std::vector<ShardId>& shards : {std::vector<ShardId>{0}, {0, 1}}) {
    const auto specs = reader.Tables(shards);
    ASSERT_TRUE(specs.ok()) << specs.status();
    ASSERT_EQ((*specs)[3].name(), "rows/plain");
    EXPECT_EQ((*specs)[3].embedding().dim(), 6u);
  }
}

}  // namespace
}  // namespace lodestone::server
