#include "server/checkpoint/checkpoint_writer.h"

#include <cerrno>
#include <latch>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/manifest.h"
#include "tests/server/checkpoint/fake_ps.h"

namespace lodestone::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class CheckpointWriterTest : public ::testing::Test {
 protected:
  CheckpointWriter::Result Write(CheckpointWriter* writer, const std::string& name = "") {
    auto result = writer->Write(name, ps_.source());
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : CheckpointWriter::Result();
  }

  CheckpointWriter::Result WriteArrived(CheckpointWriter* writer, std::vector<ShardId> shards) {
    CheckpointWriter::Source source = ps_.source();
    source.shards = std::move(shards);
    source.arrived = true;
    auto result = writer->Write("", source);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : CheckpointWriter::Result();
  }

  // Keeps one at a time: each builds on the one before.
  std::unique_ptr<CheckpointWriter> OpenSingle() const {
    CheckpointWriter::Options options = ps_.options(dir_);
    options.keep = 1;
    return FakePs::OpenWriter(options);
  }

  // The checksums of the shards as the folder has them; of one checkpoint only if it is named.
  std::map<ShardId, uint64_t> ReadBack(const std::string& name = "") {
    const auto reader = CheckpointReader::Open(dir_, name);
    EXPECT_TRUE(reader.ok()) << reader.status();
    EXPECT_THAT(reader->problems(), IsEmpty());
    FakePs fresh(0, 1, kShards, specs_);
    std::vector<std::string> damage;
    for (auto& [id, shard] : fresh.shards) {
      const auto restored = reader->Restore(&*shard, &damage);
      EXPECT_TRUE(restored.ok()) << restored.status();
    }
    EXPECT_THAT(damage, IsEmpty());
    return fresh.checksums();
  }
  // The checkpoints that there are, named as folders.
  std::vector<std::string> Names() {
    const auto names = ListFolder(dir_);
    EXPECT_TRUE(names.ok()) << names.status();
    return *names;
  }

  static constexpr uint32_t kShards = 3;
  const std::vector<v1::TableSpec> specs_ = SpecsWith("adagrad {}");
  std::string dir_ = FreshFolder() + "/all/checkpoints";
  FakePs ps_{0, 1, kShards, specs_};
};

TEST_F(CheckpointWriterTest, WritesWhatIsReadBack) {
  ps_.Run(1, 20);
  const auto writer = ps_.OpenWriter(dir_);
  const CheckpointWriter::Result result = Write(writer.get(), "first");
  EXPECT_EQ(result.path, dir_ + "/first");
  EXPECT_EQ(result.manifest.contents_size(), 3);
  EXPECT_EQ(result.manifest.cluster(), "test");
  EXPECT_EQ(result.manifest.tables_size(), 4);
  EXPECT_THAT(result.manifest.needs(), IsEmpty());
  uint64_t bytes = 0;
  for (const std::string& file : FilesBelow(dir_)) {
    if (!absl::StrContains(file, "manifest")) bytes += std::filesystem::file_size(dir_ + "/" + file);
  }
  EXPECT_EQ(result.bytes, bytes);
  EXPECT_EQ(ReadBack("first"), ps_.checksums());
  EXPECT_EQ(ReadBack(), ps_.checksums());
}

TEST_F(CheckpointWriterTest, APsWithoutShardsWritesAManifestOnly) {
  FakePs none(5, 6, kShards, specs_);
  const auto writer = none.OpenWriter(dir_);
  ASSERT_TRUE(writer->Write("", none.source()).ok());
  EXPECT_THAT(FilesBelow(dir_), ElementsAre("auto-ps5-000001/ps-5.manifest"));
}

TEST_F(CheckpointWriterTest, APeriodicOneHoldsWhatChangedSinceTheOneBefore) {
  ps_.Run(1, 20);
  const auto writer = OpenSingle();
  const uint64_t full_bytes = Write(writer.get()).bytes;
  EXPECT_EQ(ReadBack(), ps_.checksums());
  // Shard 1 alone changes: the others are referred to.
  ps_.shards.at(1).Push(9, 1, 1, /*rows=*/1);
  const CheckpointWriter::Result second = Write(writer.get());
  EXPECT_THAT(second.manifest.needs(), ElementsAre("auto-ps0-000001"));
  EXPECT_THAT(FilesBelow(second.path), ElementsAre("ps-0.manifest", "ps-0.shard-00001"));
  EXPECT_LT(second.bytes, full_bytes / 4);
  EXPECT_EQ(second.manifest.contents(0).files_size(), 1);
  EXPECT_EQ(second.manifest.contents(1).files_size(), 2);
  EXPECT_EQ(ReadBack(), ps_.checksums());
  // Nothing changes: no file at all.
  const CheckpointWriter::Result third = Write(writer.get());
  EXPECT_THAT(FilesBelow(third.path), ElementsAre("ps-0.manifest"));
  EXPECT_EQ(third.bytes, 0u);
  EXPECT_THAT(third.manifest.needs(), ElementsAre("auto-ps0-000001", "auto-ps0-000002"));
  EXPECT_EQ(ReadBack("auto-ps0-000003"), ps_.checksums());
}

TEST_F(CheckpointWriterTest, EverySoManyPeriodicOnesAreFull) {
  CheckpointWriter::Options options = ps_.options(dir_);
  options.full_every = 3;
  options.keep = 1;
  const auto writer = FakePs::OpenWriter(options);
  std::vector<bool> full;
  for (uint32_t i = 1; i <= 7; ++i) {
    ps_.Run(i, i);
    full.push_back(Write(writer.get()).manifest.needs().empty());
    EXPECT_EQ(ReadBack(), ps_.checksums());
  }
  EXPECT_EQ(full, (std::vector<bool>{true, false, false, true, false, false, true}));
}

TEST_F(CheckpointWriterTest, ANamedOneIsFullAndStandsAlone) {
  ps_.Run(1, 5);
  const auto writer = OpenSingle();
  Write(writer.get());
  ps_.Run(6, 6);
  EXPECT_THAT(Write(writer.get(), "mine").manifest.needs(), IsEmpty());
  const auto named = ps_.checksums();
  ps_.Run(7, 7);
  EXPECT_THAT(Write(writer.get()).manifest.needs(), ElementsAre("auto-ps0-000001"));  // Not "mine".
  EXPECT_EQ(ReadBack(), ps_.checksums());
  for (const std::string& name : Names()) {
    if (name != "mine") std::filesystem::remove_all(dir_ + "/" + name);
  }
  std::filesystem::rename(dir_ + "/mine", dir_ + "/renamed");
  EXPECT_EQ(ReadBack("renamed"), named);
}

TEST_F(CheckpointWriterTest, TheFirstOneOfAProcessIsFullAndItsNumberGoesOn) {
  ps_.Run(1, 5);
  Write(ps_.OpenWriter(dir_).get());
  ps_.Run(6, 6);
  const CheckpointWriter::Result result = Write(ps_.OpenWriter(dir_).get());
  EXPECT_EQ(result.manifest.name(), "auto-ps0-000002");
  EXPECT_THAT(result.manifest.needs(), IsEmpty());
}

TEST_F(CheckpointWriterTest, AShardThatIsNewHereIsWrittenWhole) {
  ps_.Run(1, 5);
  const auto writer = OpenSingle();
  CheckpointWriter::Source some = ps_.source();
  some.shards.pop_back();
  ASSERT_TRUE(writer->Write("", some).ok());
  ps_.Run(6, 6);
  const CheckpointWriter::Result result = Write(writer.get());
  EXPECT_EQ(result.manifest.contents(1).files_size(), 2);
  EXPECT_EQ(result.manifest.contents(2).files_size(), 1);
  EXPECT_EQ(ReadBack(), ps_.checksums());
}

TEST_F(CheckpointWriterTest, KeepsTheNewestPeriodicOnesAndWhatTheyNeed) {
  CheckpointWriter::Options options = ps_.options(dir_);
  options.full_every = 3;
  const auto writer = FakePs::OpenWriter(options);
  std::vector<std::vector<std::string>> names;
  for (uint32_t i = 1; i <= 8; ++i) {
    ps_.Run(i, i);
    Write(writer.get());
    names.push_back(Names());
    EXPECT_EQ(ReadBack(), ps_.checksums());
  }
  const auto name = [](int i) { return PeriodicName(0, i); };
  EXPECT_THAT(names[1], ElementsAre(name(1), name(2)));
  EXPECT_THAT(names[3], ElementsAre(name(1), name(2), name(3), name(4)));  // Which build on the first two.
  EXPECT_THAT(names[6], ElementsAre(name(2), name(4), name(6), name(7)));  // The seventh is full.
  EXPECT_THAT(names[7], ElementsAre(name(7), name(8)));                    // The eighth as well.
}

TEST_F(CheckpointWriterTest, ThoseThatAreKeptShareNoFile) {
  for (const uint32_t keep : {1, 2, 3}) {
    dir_ = FreshFolder();
    CheckpointWriter::Options options = ps_.options(dir_);
    options.keep = keep;
    options.full_every = 4;
    const auto writer = FakePs::OpenWriter(options);
    std::vector<std::map<ShardId, uint64_t>> content;
    for (uint32_t i = 1; i <= 14; ++i) {
      // Not every one has something new.
      if (i % 4 != 3) ps_.Run(100 * keep + i, 100 * keep + i);
      content.push_back(ps_.checksums());
      Write(writer.get());
      std::set<std::string> files;
      size_t listed = 0;
      for (uint32_t kept = 0; kept < std::min(keep, i); ++kept) {
        const std::string name = PeriodicName(0, i - kept);
        EXPECT_EQ(ReadBack(name), content[i - kept - 1]) << name;
        const auto manifest = ReadManifest(absl::StrCat(dir_, "/", name, "/", ManifestName(0)));
        ASSERT_TRUE(manifest.ok()) << manifest.status();
        for (const auto& entry : manifest->contents()) {
          for (const auto& file : entry.files()) {
            files.insert(absl::StrCat(file.folder().empty() ? name : file.folder(), "/", file.name()));
            ++listed;
          }
        }
      }
      EXPECT_EQ(files.size(), listed) << "after " << i;
    }
  }
}

TEST_F(CheckpointWriterTest, NeverRemovesNamedOnesNorThoseOfOthers) {
  const auto writer = [&] {
    CheckpointWriter::Options options = ps_.options(dir_);
    options.keep = 1;
    options.full_every = 1;
    return FakePs::OpenWriter(options);
  }();
  Write(writer.get(), "a");
  FakePs other(1, 2, kShards, specs_);
  ASSERT_TRUE(other.OpenWriter(dir_)->Write("", other.source()).ok());
  CheckpointWriter::Options foreign = other.options(dir_);
  foreign.server = 0;
  foreign.cluster = "foreign";
  ASSERT_TRUE(FakePs::OpenWriter(foreign)->Write("", other.source()).ok());
  for (int i = 1; i <= 3; ++i) {
    ps_.Run(i, i);
    Write(writer.get());
  }
  EXPECT_THAT(Names(), ElementsAre("a", "auto-ps0-000001", "auto-ps0-000004", "auto-ps1-000001"));
}

TEST_F(CheckpointWriterTest, KeepsAnOldOneWhoseShardsNobodyElseHasYet) {
  CheckpointWriter::Options options = ps_.options(dir_);
  options.keep = 1;
  options.full_every = 1;
  const auto writer = FakePs::OpenWriter(options);
  ps_.Run(1, 3);
  Write(writer.get());
  // The shards are divided anew: this ps keeps shards 0 and 2, another one gets shard 1.
  CheckpointWriter::Source fewer = ps_.source();
  fewer.shards = {0, 2};
  ps_.Run(4, 4);
  const auto second = writer->Write("", fewer);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(Names(), ElementsAre("auto-ps0-000001", "auto-ps0-000002"));
  EXPECT_THAT(second->stay, ElementsAre("auto-ps0-000001"));
  FakePs other(1, 2, kShards, specs_);
  other.Run(1, 4);
  ASSERT_TRUE(other.OpenWriter(dir_)->Write("", other.source()).ok());
  const auto third = writer->Write("", fewer);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_THAT(Names(), ElementsAre("auto-ps0-000003", "auto-ps1-000001"));
  EXPECT_THAT(third->stay, IsEmpty());
}

TEST_F(CheckpointWriterTest, OneThatStaysMayBeDeletedByHandAndWhatItBuiltOnIsToldNext) {
  const auto writer = OpenSingle();
  ps_.Run(1, 3);
  Write(writer.get());
  ps_.Run(4, 4);
  Write(writer.get());  // It builds on the first.
  CheckpointWriter::Source fewer = ps_.source();
  fewer.shards = {0, 2};
  const auto fewer_whole = [&] {
    const auto full = OpenSingle();  // The first one of a process builds on nothing.
    auto result = full->Write("", fewer);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->stay : std::vector<std::string>();
  };
  EXPECT_THAT(fewer_whole(), ElementsAre("auto-ps0-000002"));
  EXPECT_THAT(Names(), ElementsAre("auto-ps0-000001", "auto-ps0-000002", "auto-ps0-000003"));
  std::filesystem::remove_all(dir_ + "/auto-ps0-000002");
  EXPECT_THAT(fewer_whole(), ElementsAre("auto-ps0-000001"));
  std::filesystem::remove_all(dir_ + "/auto-ps0-000001");
  EXPECT_THAT(fewer_whole(), IsEmpty());
  EXPECT_THAT(Names(), ElementsAre("auto-ps0-000005"));
}

TEST_F(CheckpointWriterTest, WhatHasArrivedIsWrittenWholeAndNothingBuildsOnIt) {
  const auto writer = OpenSingle();
  ps_.Run(1, 3);
  Write(writer.get());
  ps_.Run(4, 4);
  const CheckpointWriter::Result arrived = WriteArrived(writer.get(), {1});
  ASSERT_EQ(arrived.manifest.contents_size(), 1);
  EXPECT_TRUE(arrived.manifest.arrived());
  EXPECT_EQ(arrived.manifest.contents(0).shard(), 1u);
  EXPECT_EQ(arrived.manifest.contents(0).files_size(), 1);
  EXPECT_EQ(ReadBack().at(1), ps_.checksums().at(1));
  ps_.Run(5, 5);
  const CheckpointWriter::Result next = Write(writer.get());
  for (const auto& entry : next.manifest.contents()) {
    ASSERT_EQ(entry.files_size(), 2) << entry.shard();
    EXPECT_EQ(entry.files(1).folder(), "auto-ps0-000001");
  }
  EXPECT_EQ(ReadBack(), ps_.checksums());
}

TEST_F(CheckpointWriterTest, WhatHasArrivedIsKeptUntilAsManyOthersHoldItAndPushesNoneOut) {
  CheckpointWriter::Options options = ps_.options(dir_);
  options.full_every = 1;
  const auto writer = FakePs::OpenWriter(options);
  ps_.Run(1, 3);
  Write(writer.get());
  Write(writer.get());
  WriteArrived(writer.get(), {1});
  EXPECT_THAT(Names(), ElementsAre("auto-ps0-000001", "auto-ps0-000002", "auto-ps0-000003"));
  Write(writer.get());
  EXPECT_THAT(Names(), ElementsAre("auto-ps0-000002", "auto-ps0-000003", "auto-ps0-000004"));
  Write(writer.get());
  EXPECT_THAT(Names(), ElementsAre("auto-ps0-000004", "auto-ps0-000005"));
}

TEST_F(CheckpointWriterTest, WhatHasArrivedTakesNoPlaceOfOneThatIsDamaged) {
  const auto writer = ps_.OpenWriter(dir_);
  ps_.Run(1, 3);
  Write(writer.get());
  Write(writer.get());
  ASSERT_TRUE(writer->NoteDamaged({"auto-ps0-000001"}));
  WriteArrived(writer.get(), {1});
  EXPECT_THAT(Names(), ElementsAre("auto-ps0-000001", "auto-ps0-000002", "auto-ps0-000003"));
  Write(writer.get());
  EXPECT_THAT(Names(), ElementsAre("auto-ps0-000002", "auto-ps0-000003", "auto-ps0-000004"));
}

TEST_F(CheckpointWriterTest, WhatArrivesAgainAndAgainDoesNotPileUp) {
  const auto writer = OpenSingle();
  ps_.Run(1, 3);
  WriteArrived(writer.get(), {1, 2});
  WriteArrived(writer.get(), {1});
  EXPECT_THAT(Names(), ElementsAre("auto-ps0-000001", "auto-ps0-000002")) << "shard 2 is in the first alone";
  WriteArrived(writer.get(), {1});
  WriteArrived(writer.get(), {2});
  EXPECT_THAT(Names(), ElementsAre("auto-ps0-000003", "auto-ps0-000004"));
}

TEST_F(CheckpointWriterTest, BuildsOnNothingThatWasRemovedByHand) {
  const auto writer = ps_.OpenWriter(dir_);
  ps_.Run(1, 3);
  Write(writer.get());
  std::filesystem::remove_all(dir_ + "/auto-ps0-000001");
  ps_.Run(4, 4);
  EXPECT_THAT(Write(writer.get()).manifest.needs(), IsEmpty());
  EXPECT_EQ(ReadBack(), ps_.checksums());
}

TEST_F(CheckpointWriterTest, BuildsOnNothingThatIsDamagedAndDoesNotKeepIt) {
  const auto writer = ps_.OpenWriter(dir_);  // Keeps two.
  for (uint64_t i = 1; i <= 4; ++i) {
    ps_.Run(20 * i, 20 * i + 9);
    Write(writer.get());
  }
  EXPECT_THAT(Names(), ElementsAre("auto-ps0-000001", "auto-ps0-000002", "auto-ps0-000003", "auto-ps0-000004"));
  EXPECT_TRUE(writer->NoteDamaged({"auto-ps0-000002", "auto-ps0-000004"}));
  EXPECT_FALSE(writer->NoteDamaged({"auto-ps0-000002"}));
  // The 3rd one, which is whole, is what the next would build on: then all that is whole would be in one row.
  EXPECT_THAT(Write(writer.get()).manifest.needs(), IsEmpty());
  EXPECT_THAT(Names(), ElementsAre("auto-ps0-000001", "auto-ps0-000003", "auto-ps0-000005"));
  ps_.Run(200, 209);
  EXPECT_THAT(Write(writer.get()).manifest.needs(), IsEmpty());
  EXPECT_THAT(Names(), ElementsAre("auto-ps0-000005", "auto-ps0-000006"));
  ps_.Run(210, 219);
  EXPECT_THAT(Write(writer.get()).manifest.needs(), ElementsAre("auto-ps0-000005"));
  EXPECT_EQ(ReadBack(), ps_.checksums());
}

TEST_F(CheckpointWriterTest, RefusesNamesThatCannotBeAndThatAre) {
  const auto writer = ps_.OpenWriter(dir_);
  EXPECT_TRUE(absl::IsInvalidArgument(writer->Write("../x", ps_.source()).status()));
  Write(writer.get(), "x");
  const absl::Status again = writer->Write("x", ps_.source()).status();
  EXPECT_TRUE(absl::IsAlreadyExists(again));
  EXPECT_THAT(std::string(again.message()), HasSubstr("/x/ps-0.manifest"));
  EXPECT_EQ(ReadBack("x"), ps_.checksums());
}

TEST_F(CheckpointWriterTest, SeveralServersWriteIntoOneNamedCheckpoint) {
  std::map<ShardId, uint64_t> expected;
  for (uint32_t server = 0; server < 3; ++server) {
    FakePs each(server, 3, kShards, specs_);
    each.Run(1, 5 + server);
    ASSERT_TRUE(each.OpenWriter(dir_)->Write("all", each.source()).ok());
    expected.merge(each.checksums());
  }
  EXPECT_EQ(ReadBack("all"), expected);
}

TEST_F(CheckpointWriterTest, WritesOneAtATime) {
  const auto writer = ps_.OpenWriter(dir_);
  std::latch inside(1);
  std::latch go_on(1);
  CheckpointWriter::Source slow = ps_.source();
  slow.describe = [&](v1::ServerManifest* manifest) {
    inside.count_down();
    go_on.wait();
    ps_.source().describe(manifest);
  };
  std::thread first([&] { EXPECT_TRUE(writer->Write("first", slow).ok()); });
  inside.wait();
  EXPECT_TRUE(absl::IsUnavailable(writer->Write("second", ps_.source()).status()));
  go_on.count_down();
  first.join();
  EXPECT_TRUE(writer->Write("second", ps_.source()).ok());
}

TEST_F(CheckpointWriterTest, LetsGoOfAShardBeforeTheNextAndDescribesLast) {
  ps_.Run(1, 5);
  const auto writer = ps_.OpenWriter(dir_);
  CheckpointWriter::Source source = ps_.source();
  std::vector<std::string> calls;
  std::vector<BufferRef> held;  // A block of each state.
  source.collect = [&](ShardId shard, const Version* after) -> absl::StatusOr<Shard::State> {
    calls.push_back(absl::StrCat("collect ", shard));
    Shard::State state = ps_.shards.at(shard)->CollectState(after);
    state.rows[0].content.pages[0].page = BufferRef::New(state.rows[0].layout.bytes());
    for (const BufferRef& other : held) EXPECT_TRUE(other.unique()) << shard;
    held.push_back(state.rows[0].content.pages[0].page);
    return state;
  };
  source.describe = [&](v1::ServerManifest* manifest) {
    calls.push_back("describe");
    ps_.source().describe(manifest);
  };
  ASSERT_TRUE(writer->Write("", source).ok());
  EXPECT_THAT(calls, ElementsAre("collect 0", "collect 1", "collect 2", "describe"));
}

// Regression: what a checkpoint builds on was removed while its manifest could not be read, for lack of files that may
// be open, say.
TEST_F(CheckpointWriterTest, WhatCannotBeReadAtTheMomentKeepsAllThatItMayNeed) {
  CheckpointWriter::Options options = ps_.options(dir_);
  options.keep = 2;
  options.full_every = 2;
  const auto writer = FakePs::OpenWriter(options);
  for (uint32_t i = 1; i <= 4; ++i) {
    ps_.Run(10 * i, 10 * i);
    Write(writer.get());  // The third builds on the first, the fourth on the second.
  }
  const std::string path = absl::StrCat(dir_, "/auto-ps0-000004/ps-0.manifest"), aside = absl::StrCat(dir_, ".aside");
  std::filesystem::rename(path, aside);
  std::filesystem::create_symlink("ps-0.manifest", path);  // ELOOP
  ps_.Run(50, 50);
  Write(writer.get());
  std::filesystem::remove(path);
  std::filesystem::rename(aside, path);
  EXPECT_TRUE(FileExists(absl::StrCat(dir_, "/auto-ps0-000002/ps-0.manifest")));
}

// Whatever goes wrong, nothing of the new one stays and the old one is whole; the next attempt succeeds.
class CheckpointWriterFailure : public CheckpointWriterTest {
 protected:
  CheckpointWriterFailure() {
    CheckpointWriter::Options options = ps_.options(dir_);
    options.keep = 1;
    options.calls.writev = [this](int fd, const iovec* pieces, int count) -> ssize_t {
      return --writes_left_ < 0 ? Fail(ENOSPC) : ::writev(fd, pieces, count);
    };
    options.calls.fdatasync = [this](int fd) { return --syncs_left_ < 0 ? Fail(EIO) : ::fdatasync(fd); };
    writer_ = FakePs::OpenWriter(options);
    ps_.Run(1, 10);
    Write(writer_.get());
    old_ = ps_.checksums();
    files_ = FilesBelow(dir_);
    ps_.Run(11, 12);
  }

  static int Fail(int error) {
    errno = error;
    return -1;
  }
  // Of the periodic one, then of a named one.
  std::vector<absl::Status> FailBoth() {
    std::vector<absl::Status> statuses;
    for (const char* name : {"", "named"}) {
      statuses.push_back(writer_->Write(name, ps_.source()).status());
      EXPECT_FALSE(statuses.back().ok());
      EXPECT_EQ(FilesBelow(dir_), files_);
      EXPECT_THAT(Names(), ElementsAre("auto-ps0-000001"));
      EXPECT_EQ(ReadBack(), old_);
    }
    return statuses;
  }
  void Succeed() {
    EXPECT_THAT(Write(writer_.get()).manifest.needs(), ElementsAre("auto-ps0-000001"));
    EXPECT_EQ(ReadBack(), ps_.checksums());
  }

  int writes_left_ = 1'000'000;
  int syncs_left_ = 1'000'000;
  std::unique_ptr<CheckpointWriter> writer_;
  std::map<ShardId, uint64_t> old_;
  std::vector<std::string> files_;
};

TEST_F(CheckpointWriterFailure, AFullDiskLeavesThePreviousOne) {
  for (const int writes : {0, 1, 2}) {
    writes_left_ = writes;
    const absl::Status status = writer_->Write("", ps_.source()).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("/ps-0.shard-0000", writes, ": writev")));
    EXPECT_EQ(FilesBelow(dir_), files_);
    EXPECT_EQ(ReadBack(), old_);
  }
  writes_left_ = 0;
  for (const absl::Status& status : FailBoth()) EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  writes_left_ = 1'000'000;
  Succeed();
}

// Regression: a checkpoint took the last of the disk, and the log, and all pushes, stopped until it had failed.
TEST_F(CheckpointWriterFailure, RoomForTheLogIsLeftAndThePreviousOneStays) {
  CheckpointWriter::Options options = ps_.options(dir_);
  options.keep = 1;
  options.spare_bytes = 1000;
  int looks_left = 0;
  options.volume = [&](const std::string& path) -> absl::StatusOr<VolumeBytes> {
    EXPECT_EQ(path, dir_);
    return VolumeBytes{.total = 5000, .free = --looks_left < 0 ? 999u : 1000u};
  };
  writer_ = FakePs::OpenWriter(options);
  for (const int looks : {0, 1, 2}) {
    looks_left = looks;
    const absl::Status status = writer_->Write("", ps_.source()).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("only 999 bytes are free"));
    EXPECT_EQ(FilesBelow(dir_), files_);
    EXPECT_EQ(ReadBack(), old_);
  }
  looks_left = 1'000'000;
  Write(writer_.get());
  EXPECT_EQ(ReadBack(), ps_.checksums());
}

TEST_F(CheckpointWriterFailure, ADiskThatCannotSyncLeavesThePreviousOne) {
  syncs_left_ = 0;
  for (const absl::Status& status : FailBoth()) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("fdatasync"));
  }
  syncs_left_ = 1'000'000;
  Succeed();
}

TEST_F(CheckpointWriterFailure, AShardThatCannotBeCollectedLeavesThePreviousOne) {
  CheckpointWriter::Source source = ps_.source();
  source.collect = [&](ShardId shard, const Version* after) -> absl::StatusOr<Shard::State> {
    if (shard == 2) return absl::UnavailableError("the shard moves");
    return ps_.shards.at(shard)->CollectState(after);
  };
  EXPECT_THAT(std::string(writer_->Write("", source).status().message()), HasSubstr("the shard moves"));
  EXPECT_EQ(FilesBelow(dir_), files_);
  Succeed();
}

TEST_F(CheckpointWriterFailure, AStoppedOneLeavesThePreviousOne) {
  CheckpointWriter::Source source = ps_.source();
  source.collect = [&](ShardId shard, const Version* after) -> absl::StatusOr<Shard::State> {
    if (shard == 1) writer_->Stop();
    return ps_.shards.at(shard)->CollectState(after);
  };
  EXPECT_TRUE(absl::IsCancelled(writer_->Write("", source).status()));
  EXPECT_EQ(FilesBelow(dir_), files_);
  EXPECT_TRUE(absl::IsCancelled(writer_->Write("", ps_.source()).status()));
}

TEST_F(CheckpointWriterFailure, ACrashAtAnyPointLeavesThePreviousOneAndIsClearedAway) {
  // What the folder would hold if the machine stopped just before the manifest is put in place.
  std::filesystem::copy(dir_, dir_ + "_crashed", std::filesystem::copy_options::recursive);
  Write(writer_.get());
  const std::string crashed = dir_ + "_crashed/auto-ps0-000002";
  std::filesystem::copy(dir_ + "/auto-ps0-000002", crashed);
  std::filesystem::rename(crashed + "/ps-0.manifest", crashed + "/ps-0.manifest.tmp");
  std::filesystem::create_directory(dir_ + "_crashed/named");
  WriteWhole(dir_ + "_crashed/named/ps-0.shard-00001", "half");
  WriteWhole(dir_ + "_crashed/named/ps-1.shard-00002", "another's");
  std::filesystem::create_directory(dir_ + "_crashed/auto-ps0-000007");
  std::filesystem::create_directory(dir_ + "_crashed/something else");
  std::filesystem::remove_all(dir_);
  std::filesystem::rename(dir_ + "_crashed", dir_);
  EXPECT_EQ(ReadBack(), old_);
  const auto writer = ps_.OpenWriter(dir_);
  EXPECT_THAT(Names(), ElementsAre("auto-ps0-000001", "named", "something else"));
  EXPECT_THAT(FilesBelow(dir_ + "/named"), ElementsAre("ps-1.shard-00002"));
  EXPECT_EQ(ReadBack(), old_);
  EXPECT_EQ(Write(writer.get()).manifest.name(), "auto-ps0-000008");
  EXPECT_EQ(ReadBack(), ps_.checksums());
}

TEST_F(CheckpointWriterFailure, ADamagedManifestDoesNotCountAmongThoseKept) {
  CheckpointWriter::Options options = ps_.options(dir_);
  options.full_every = 1;
  const auto writer = FakePs::OpenWriter(options);
  for (uint32_t i = 13; i <= 15; ++i) {
    ps_.Run(i, i);
    Write(writer.get());
    if (i == 14) WriteWhole(dir_ + "/auto-ps0-000003/ps-0.manifest", "garbage");
  }
  EXPECT_THAT(Names(), ElementsAre("auto-ps0-000002", "auto-ps0-000003", "auto-ps0-000004"));
  ps_.Run(16, 16);
  Write(writer.get());
  EXPECT_THAT(Names(), ElementsAre("auto-ps0-000004", "auto-ps0-000005"));
}

TEST_F(CheckpointWriterTest, RemovesANamedOneIfItIsThereAndNoOther) {
  const auto writer = FakePs::OpenWriter(ps_.options(dir_));
  Write(writer.get());
  Write(writer.get(), "best-1");
  Write(writer.get(), "best-2");
  EXPECT_TRUE(writer->Remove("best-1").ok());
  EXPECT_TRUE(writer->Remove("never").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(writer->Remove("../up")));
  EXPECT_TRUE(absl::IsInvalidArgument(writer->Remove(PeriodicName(0, 1)))) << "those go by themselves";
  EXPECT_THAT(Names(), testing::UnorderedElementsAre("best-2", PeriodicName(0, 1)));
}

}  // namespace
}  // namespace lodestone::server
