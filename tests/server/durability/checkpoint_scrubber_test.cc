#include "server/durability/checkpoint_scrubber.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/checkpoint/manifest.h"
#include "tests/server/durability/storage_fixture.h"

namespace lodestone::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

class CheckpointScrubberTest : public StorageFixture {
 protected:
  std::filesystem::path Checkpoints() const {
    return std::filesystem::path(config_.server().data_dir()) / "checkpoints";
  }
  // As a disk does that loses a bit.
  void Damage(const std::filesystem::path& file) const {
    std::fstream stream(Checkpoints() / file, std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(stream.good()) << file;
    stream.seekg(static_cast<std::streamoff>(std::filesystem::file_size(Checkpoints() / file) / 2));
    const char found = static_cast<char>(stream.peek());
    stream.seekp(stream.tellg());
    stream.put(static_cast<char>(found ^ 0x10));
  }
  CheckpointScrubber::Options Options() const {
    CheckpointScrubber::Options options;
    options.dir = Checkpoints();
    options.cluster = config_.cluster().name();
    options.bytes_per_second = 0;
    return options;
  }
  std::vector<CheckpointScrubber::Damage> Found() const {
    auto found = CheckpointScrubber(Options(), [](const auto&) { return absl::OkStatus(); }).Pass();
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? *found : std::vector<CheckpointScrubber::Damage>();
  }
  static auto Is(const std::string& checkpoint, const std::string& what) {
    return AllOf(Field(&CheckpointScrubber::Damage::checkpoint, checkpoint),
                 Field(&CheckpointScrubber::Damage::what, HasSubstr(what)));
  }
  // A ps with two periodic checkpoints, the first of its life (1 and 2), and a named one.
  Ps WithCheckpoints() {
    Ps ps = StartWell(config_);
    EnsureTables(ps);
    for (Sequence sequence = 1; sequence <= 2; ++sequence) {
      PushMany(ps, sequence, sequence);
      EXPECT_TRUE(ps.storage->Checkpoint("").ok());
    }
    EXPECT_TRUE(ps.storage->Checkpoint("mine").ok());
    return ps;
  }
  // Until a pass has begun and ended since, and another behind it: what the first found is replaced.
  static void AwaitPasses(const Ps& ps) {
    const uint64_t passes = StatusOf(ps).scrub_passes();
    while (StatusOf(ps).scrub_passes() < passes + 3) std::this_thread::yield();
  }
};

TEST_F(CheckpointScrubberTest, FindsNothingInWhatIsWhole) {
  const Ps ps = WithCheckpoints();
  CheckpointScrubber scrubber(Options(), nullptr);
  const auto found = scrubber.Pass();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(*found, IsEmpty());
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(Checkpoints())) {
    if (absl::StrContains(entry.path().filename().string(), ".shard-")) bytes += entry.file_size();
  }
  v1::StorageStatus status;
  scrubber.FillStatus(&status);
  EXPECT_EQ(status.scrub_bytes(), bytes);
  EXPECT_GT(bytes, 0u);
}

TEST_F(CheckpointScrubberTest, NamesWhatIsDamaged) {
  const Ps ps = WithCheckpoints();
  Damage("auto-ps0-000002/ps-0.shard-00003");
  EXPECT_THAT(Found(), ElementsAre(Is("auto-ps0-000002", "auto-ps0-000002/ps-0.shard-00003: its content is not")));
  std::filesystem::resize_file(Checkpoints() / "mine/ps-0.shard-00001", 10);
  EXPECT_THAT(Found(), ElementsAre(Is("auto-ps0-000002", "ps-0.shard-00003"),
                                   Is("mine", "mine/ps-0.shard-00001: has 10 bytes, and")));
  std::filesystem::remove(Checkpoints() / "auto-ps0-000001/ps-0.shard-00000");
  EXPECT_THAT(Found(), ElementsAre(Is("auto-ps0-000001", "auto-ps0-000001/ps-0.shard-00000"),
                                   Is("auto-ps0-000002", "ps-0.shard-00003"), Is("mine", "ps-0.shard-00001")));
  Damage("mine/ps-0.manifest");
  EXPECT_THAT(Found(), ElementsAre(Is("auto-ps0-000001", ""), Is("auto-ps0-000002", ""), Is("mine", "ps-0.manifest")));
}

TEST_F(CheckpointScrubberTest, NamesAllThatBuildOnWhatIsDamaged) {
  config_.mutable_checkpoint()->set_keep(1);
  const Ps ps = WithCheckpoints();
  PushMany(ps, 3, 3);
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  Damage("auto-ps0-000001/ps-0.shard-00003");
  const std::string file = "auto-ps0-000001/ps-0.shard-00003";
  EXPECT_THAT(Found(),
              ElementsAre(Is("auto-ps0-000001", file), Is("auto-ps0-000002", file), Is("auto-ps0-000003", file)));
}

TEST_F(CheckpointScrubberTest, LooksAtNoOtherServersFilesAndNoOtherClusters) {
  const Ps ps = WithCheckpoints();
  Damage("auto-ps0-000002/ps-0.shard-00003");
  for (const bool other_server : {true, false}) {
    CheckpointScrubber::Options options = Options();
    options.server = other_server ? 1 : 0;
    options.cluster = other_server ? config_.cluster().name() : "another";
    const auto found = CheckpointScrubber(options, nullptr).Pass();
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_THAT(*found, IsEmpty());
  }
}

TEST_F(CheckpointScrubberTest, ADamagedPeriodicCheckpointIsReplacedFromMemory) {
  config_.mutable_checkpoint()->set_scrub_every_ms(1);
  Ps ps = WithCheckpoints();
  AwaitPasses(ps);
  EXPECT_THAT(StatusOf(ps).checkpoint_damage(), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(Checkpoints() / "auto-ps0-000003")) << "what is whole is left alone";
  PushMany(ps, 3, 3);
  const auto content = Content(ps);

  Damage("auto-ps0-000002/ps-0.shard-00003");
  AwaitPasses(ps);
  EXPECT_THAT(StatusOf(ps).checkpoint_damage(), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(Checkpoints() / "auto-ps0-000002")) << "it does not count among those kept";
  EXPECT_TRUE(std::filesystem::exists(Checkpoints() / "auto-ps0-000001/ps-0.manifest"));
  const auto manifest = ReadManifest(Checkpoints() / "auto-ps0-000003/ps-0.manifest");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_THAT(manifest->needs(), IsEmpty()) << "it builds on none";
  EXPECT_THAT(Found(), IsEmpty());

  v1::Config killed = Killed();
  std::filesystem::remove_all(std::filesystem::path(killed.server().data_dir()) / "ps-0" / "log");
  EXPECT_EQ(Content(StartWell(killed)), content);
}

// Regression: the write that replaced the newest checkpoint dropped the log that the one before needs.
TEST_F(CheckpointScrubberTest, AfterTheNewestWasReplacedTheOneBeforeAndTheLogWillStillDo) {
  const Ps ps = WithCheckpoints();
  Damage("auto-ps0-000002/ps-0.shard-00003");
  ASSERT_EQ(ps.storage->checkpointer().Replace({"auto-ps0-000002"}), absl::OkStatus());
  ASSERT_FALSE(std::filesystem::exists(Checkpoints() / "auto-ps0-000002"));
  PushMany(ps, 3, 3);
  const auto content = Content(ps);
  std::filesystem::remove_all(Checkpoints() / "mine");
  Damage("auto-ps0-000003/ps-0.shard-00005");
  EXPECT_EQ(Content(StartWell(Killed())), content);
}

TEST_F(CheckpointScrubberTest, WhatCannotBeReadAtTheMomentIsNotDamaged) {
  const Ps ps = WithCheckpoints();
  std::filesystem::remove(Checkpoints() / "auto-ps0-000001/ps-0.shard-00000");
  std::filesystem::create_symlink("ps-0.shard-00000", Checkpoints() / "auto-ps0-000001/ps-0.shard-00000");  // ELOOP
  const auto found = CheckpointScrubber(Options(), nullptr).Pass();
  EXPECT_FALSE(found.ok());
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("ps-0.shard-00000"));
}

TEST_F(CheckpointScrubberTest, ADamagedNamedCheckpointIsToldOfAndStays) {
  config_.mutable_checkpoint()->set_scrub_every_ms(1);
  const Ps ps = WithCheckpoints();
  Damage("mine/ps-0.shard-00003");
  AwaitPasses(ps);
  EXPECT_THAT(StatusOf(ps).checkpoint_damage(), ElementsAre(HasSubstr("mine/ps-0.shard-00003: its content")));
  EXPECT_TRUE(std::filesystem::exists(Checkpoints() / "mine/ps-0.manifest"));
  EXPECT_FALSE(std::filesystem::exists(Checkpoints() / "auto-ps0-000003"));
  std::filesystem::remove_all(Checkpoints() / "mine");
  EXPECT_THAT(StatusOf(ps).checkpoint_damage(), IsEmpty()) << "at once";
}

TEST_F(CheckpointScrubberTest, TriesAgainUntilWhatIsDamagedIsReplaced) {
  const Ps ps = WithCheckpoints();
  Damage("auto-ps0-000002/ps-0.shard-00003");
  CheckpointScrubber::Options options = Options();
  options.period = std::chrono::milliseconds(1);
  options.again = std::chrono::milliseconds(1);
  std::latch done(1);
  int tries = 0;  // Of the scrubber's thread, until it is done.
  v1::StorageStatus status;
  CheckpointScrubber scrubber(options, [&](const std::vector<std::string>& checkpoints) -> absl::Status {
    EXPECT_THAT(checkpoints, ElementsAre("auto-ps0-000002"));
    if (++tries < 3) return absl::ResourceExhaustedError("the disk is full");
    if (tries > 3) return absl::OkStatus();
    scrubber.FillStatus(&status);
    done.count_down();
    return absl::OkStatus();
  });
  scrubber.Start();
  done.wait();
  scrubber.Stop();
  EXPECT_GE(tries, 3);
  EXPECT_THAT(status.checkpoint_damage(), ElementsAre(HasSubstr("ps-0.shard-00003"))) << "it is not replaced yet";
  EXPECT_EQ(status.scrub_passes(), 1u) << "nothing is read again for it";
}

TEST_F(CheckpointScrubberTest, StopsInTheMiddleOfAPass) {
  const Ps ps = WithCheckpoints();
  CheckpointScrubber::Options options = Options();
  options.bytes_per_second = 1;  // A pass would take a day.
  CheckpointScrubber scrubber(options, nullptr);
  std::atomic<bool> ended{false};
  std::thread stopper([&] {
    v1::StorageStatus status;
    while (status.scrub_bytes() == 0 && !ended) scrubber.FillStatus(&status);
    scrubber.Stop();
  });
  EXPECT_EQ(scrubber.Pass().status().code(), absl::StatusCode::kCancelled);
  ended = true;
  stopper.join();
}

TEST_F(CheckpointScrubberTest, WhatIsRemovedMeanwhileIsNotDamaged) {
  const Ps ps = WithCheckpoints();
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int i = 0; i < 30; ++i) EXPECT_TRUE(ps.storage->Checkpoint("").ok());
    done = true;
  });
  while (!done) EXPECT_THAT(Found(), IsEmpty());
  writer.join();
}

}  // namespace
}  // namespace lodestone::server
