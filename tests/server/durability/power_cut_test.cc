// What a machine that goes down leaves of a ps: anything of what was not synced may be missing, in any order.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/io/file.h"
#include "common/io/record_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/durability/storage_fixture.h"

namespace lodestone::server {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class PowerCutTest : public StorageFixture {
 protected:
  PowerCutTest() {
    v1::ClusterConfig::Durability durability = v1::ClusterConfig::AUTO;
    EXPECT_TRUE(v1::ClusterConfig::Durability_Parse(GetParam(), &durability));
    config_.mutable_cluster()->set_durability(durability);
  }

  static std::string ContentOf(const fs::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  // What a kill would leave, of a machine that has started again since.
  v1::Config KilledInAnEarlierBoot() {
    v1::Config killed = Killed();
    for (const fs::path& segment : Segments(killed)) {
      auto reader = RecordReader::Open(segment.string());
      EXPECT_TRUE(reader.ok()) << reader.status();
      v1::SegmentHeader header;
      ByteView payload;
      EXPECT_EQ((*reader)->Next(&header, &payload), RecordReader::Outcome::kRecord);
      EXPECT_TRUE(header.has_boot());
      header.set_boot(std::string(header.boot().size(), 'e'));
      const std::string fresh = RecordBuilder(header, {}).Copy();
      EXPECT_EQ(fresh.size(), (*reader)->next_offset());
      std::fstream file(segment, std::ios::in | std::ios::out | std::ios::binary);
      file << fresh;
    }
    return killed;
  }

  // The same by the state file.
  v1::Config BegunInAnEarlierBoot(const v1::Config& killed) const {
    const std::string path = (fs::path(killed.server().data_dir()) / "ps-0" / "state").string();
    auto reader = RecordReader::Open(path);
    EXPECT_TRUE(reader.ok()) << reader.status();
    v1::ServerState state;
    ByteView payload;
    EXPECT_EQ((*reader)->Next(&state, &payload), RecordReader::Outcome::kRecord);
    EXPECT_FALSE(state.boot().empty());
    state.set_boot("an earlier boot");
    EXPECT_TRUE(ReplaceFile(path, RecordBuilder(state, {}).Copy()).ok());
    return killed;
  }

  // Puts 40 bytes that nobody wrote at `share` of the way from byte `from` of a segment to its end.
  static void Spoil(const fs::path& segment, uint64_t from, double share) {
    const uint64_t size = fs::file_size(segment);
    ASSERT_GT(size, from);
    const auto offset = from + static_cast<uint64_t>(share * static_cast<double>(size - from));
    std::fstream file(segment, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    for (uint64_t i = offset; i < std::min(size, offset + 40); ++i) file.put('\x5a');
  }
};
INSTANTIATE_TEST_SUITE_P(Durabilities, PowerCutTest, ::testing::Values("PROCESS", "MACHINE"));

// Regression: with all headers gone nothing said when the log was written, and the ps did not start.
TEST_P(PowerCutTest, ALogOfWhichNothingWasOnTheDiskIsLeftOutIfNothingSyncedIt) {
  std::map<ShardId, uint64_t> early;
  v1::Config killed;
  {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    PushMany(ps, 1, 3);
    early = Content(ps);
    ASSERT_TRUE(ps.storage->Checkpoint("").ok());
    PushMany(ps, 4, 6);
    killed = BegunInAnEarlierBoot(Killed());
  }
  for (const fs::path& segment : Segments(killed)) fs::resize_file(segment, 0);
  const Ps ps = Start(killed);
  if (GetParam() == "MACHINE") {
    EXPECT_EQ(ps.status.code(), absl::StatusCode::kDataLoss) << ps.status;
    return;
  }
  ASSERT_TRUE(ps.status.ok()) << ps.status;
  EXPECT_EQ(Content(ps), early);
}

TEST_P(PowerCutTest, NothingIsServedBeforeTheDiskHasTheLogThatItCameFrom) {
  {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    PushMany(ps, 1, 10);
    config_ = Killed();
  }
  std::set<ino_t> unsynced;
  const auto inode = [](int fd) {
    struct stat info;
    EXPECT_EQ(fstat(fd, &info), 0);
    return info.st_ino;
  };
  for (const fs::path& segment : Segments(config_)) {
    const auto file = File::Open(segment.string(), O_RDONLY);
    ASSERT_TRUE(file.ok());
    unsynced.insert(inode(file->fd()));
  }
  ASSERT_EQ(unsynced.size(), 2u);
  Mutex mu;
  FileCalls calls = FileCalls::System();
  calls.fdatasync = [&](int fd) {
    MutexLock lock(&mu);
    unsynced.erase(inode(fd));
    return ::fdatasync(fd);
  };
  const Ps again = Start(config_, calls);
  ASSERT_TRUE(again.status.ok()) << again.status;
  EXPECT_TRUE(unsynced.empty());

  // Nor where the disk does not take it.
  config_ = Killed();
  calls.fdatasync = [](int) { return errno = EIO, -1; };
  const absl::Status refused = Start(config_, calls).status;
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.message()), HasSubstr(".log: fdatasync"));
}

TEST_P(PowerCutTest, WhatWasBeingWrittenIsLeftOutWhicheverPartsOfItAreThere) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 10);
  const std::map<ShardId, uint64_t> before = Content(ps);
  const std::vector<fs::path> shorter = Segments(Killed());
  PushMany(ps, 11, 11);
  for (const double share : {0.0, 0.3, 0.6, 0.9}) {
    config_.mutable_server()->set_data_dir((root_ / "a").string());
    v1::Config cut = KilledInAnEarlierBoot();
    const std::vector<fs::path> longer = Segments(cut);
    ASSERT_EQ(longer.size(), shorter.size());
    for (size_t i = 0; i < longer.size(); ++i) Spoil(longer[i], fs::file_size(shorter[i]), share);
    {
      const Ps back = StartWell(cut);
      ASSERT_TRUE(back.status.ok());
      for (const auto& [shard, content] : before) {
        EXPECT_GE(back.store->shards().VersionOf(shard), 10u) << "what was acknowledged is there";
      }
      PushMany(back, 12, 14);
      // The next lives read the same log again.
      config_ = cut;
      EXPECT_EQ(Content(StartWell(Killed())), Content(back));
      EXPECT_EQ(Content(StartWell(KilledInAnEarlierBoot())), Content(back));
    }
  }
}

TEST_P(PowerCutTest, WithoutSyncAnythingMayBeMissingAndTheRestIsServed) {
  if (GetParam() == "MACHINE") GTEST_SKIP() << "about logs without sync";
  config_.mutable_server()->set_log_segment_bytes(4096);
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 10);
  for (const char* what : {"hole", "short", "empty", "missing"}) {
    config_.mutable_server()->set_data_dir((root_ / "a").string());
    const v1::Config cut = KilledInAnEarlierBoot();
    const std::vector<fs::path> segments = Segments(cut);
    ASSERT_GT(segments.size(), 4u);
    const fs::path& hit = segments[segments.size() / 4];
    if (what == std::string("hole")) Spoil(hit, 0, 0.5);
    if (what == std::string("short")) fs::resize_file(hit, fs::file_size(hit) / 2);
    if (what == std::string("empty")) fs::resize_file(hit, 0);
    if (what == std::string("missing")) fs::remove(hit);
    const Ps back = StartWell(cut);
    ASSERT_TRUE(back.status.ok()) << what;
    EXPECT_LT(StatusOf(back).replayed_records(), StatusOf(ps).log_records()) << what;
    EXPECT_GT(StatusOf(back).replayed_records(), 0u) << what;
    // Another worker: the session of the first may be what is missing.
    EnsureTables(back, kWorker + 1);
    ASSERT_TRUE(Push(back, 1, 7, kWorker + 1).ok());
    config_ = cut;
    EXPECT_EQ(Content(StartWell(Killed())), Content(back)) << what;
  }
}

TEST_P(PowerCutTest, DamageToWhatWasSyncedStopsTheStartAndNothingIsAdvisedThatWouldLoseIt) {
  if (GetParam() == "PROCESS") GTEST_SKIP() << "about logs that were synced";
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 10);
  const v1::Config cut = KilledInAnEarlierBoot();
  for (const fs::path& segment : Segments(cut)) Spoil(segment, 0, 0.5);
  const absl::Status refused = Start(cut).status;
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("what follows there was acknowledged"));
  EXPECT_THAT(std::string(refused.message()), Not(HasSubstr("set server.cut_damaged_log")));
}

TEST_P(PowerCutTest, DamageToTheLogOfALifeBeforeIsNeverTakenForAPowerCut) {
  {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    PushMany(ps, 1, 10);
    config_ = Killed();
  }
  const std::vector<fs::path> first = Segments(config_);
  const Ps second = StartWell(config_);
  PushMany(second, 11, 12);
  for (const bool shortened : {false, true}) {
    const std::string data = config_.server().data_dir();
    const v1::Config cut = KilledInAnEarlierBoot();
    config_.mutable_server()->set_data_dir(data);
    const fs::path hit = fs::path(cut.server().data_dir()) / "ps-0" / "log" / first[0].filename();
    if (shortened) {
      fs::resize_file(hit, fs::file_size(hit) - 1);
    } else {
      Spoil(hit, 0, 0.5);
    }
    EXPECT_EQ(Start(cut).status.code(), absl::StatusCode::kDataLoss);
  }
}

}  // namespace
}  // namespace lodestone::server
