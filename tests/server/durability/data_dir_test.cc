#include "server/durability/data_dir.h"

#include "common/io/boot_id.h"
#include "common/io/record_file.h"
#include "server/optimizer/arithmetic.h"
#include "tests/common/telemetry/metric_text.h"
#include "tests/server/durability/storage_fixture.h"

namespace lodestone::server {
namespace {

class DataDirTest : public StorageFixture {
 protected:
  // What the folder is said to have by a ps that is started in it.
  std::optional<bool> Whole(const v1::Config& config) {
    const auto dir = DataDir::Open(config);
    EXPECT_TRUE(dir.ok()) << dir.status();
    const v1::ServerData data = (*dir)->data();
    EXPECT_EQ((*dir)->cut_short(), data.has_whole() && !data.whole());
    return data.has_whole() ? std::optional<bool>(data.whole()) : std::nullopt;
  }
  // What a ps that is started in the folder says of the lives that have begun there, and ends before its own does.
  uint64_t Generation(const v1::Config& config) {
    const auto dir = DataDir::Open(config);
    EXPECT_TRUE(dir.ok()) << dir.status();
    EXPECT_TRUE((*dir)->data().has_generation());
    return (*dir)->data().generation();
  }
  // The same if the machine has started again since.
  static v1::Config InAnotherBoot(v1::Config config) {
    v1::ServerState state = StateOf(config);
    EXPECT_EQ(state.boot(), BootId());
    state.set_boot("another");
    SetState(config, state);
    return config;
  }

  // What the state file says.
  static v1::ServerState StateOf(const v1::Config& config) {
    v1::ServerState state;
    const auto reader = RecordReader::Open(StatePath(config));
    EXPECT_TRUE(reader.ok()) << reader.status();
    ByteView payload;
    EXPECT_EQ((*reader)->Next(&state, &payload), RecordReader::Outcome::kRecord);
    return state;
  }
  static void SetState(const v1::Config& config, const v1::ServerState& state) {
    EXPECT_EQ(ReplaceFile(StatePath(config), RecordBuilder(state, {}).Copy()), absl::OkStatus());
  }

 private:
  static std::string StatePath(const v1::Config& config) {
    return absl::StrCat(config.server().data_dir(), "/ps-0/state");
  }
};

TEST_F(DataDirTest, AFolderOfAPsThatWasKilledIsWholeAsLongAsTheMachineHasNotGoneDown) {
  EXPECT_EQ(Whole(MakeConfig("fresh")), std::nullopt);
  v1::Config killed;
  {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    PushMany(ps, 1, 2);
    killed = Killed();
  }
  EXPECT_EQ(Whole(killed), true);
  EXPECT_EQ(Whole(killed), true) << "it has come back in between, and brought nothing back";
  const v1::Config cut = InAnotherBoot(killed);
  EXPECT_EQ(Whole(cut), false);
  EXPECT_EQ(Whole(cut), false);
  { const Ps ps = StartWell(cut); }
  EXPECT_EQ(Whole(cut), true) << "it goes on from what it had";
}

// The coordinator knew a folder by the last process in it, and did not believe the next one after a start that had
// failed.
TEST_F(DataDirTest, AStartThatEndsBeforeItServesIsNoLifeOfTheFolder) {
  EXPECT_EQ(Generation(config_), 0);
  EXPECT_EQ(Generation(config_), 0);
  {
    const Ps ps = StartWell(config_);
    EXPECT_EQ(ps.storage->generation(), 1);
  }
  EXPECT_EQ(Generation(config_), 1);
  EXPECT_EQ(Generation(config_), 1);
  { const Ps ps = StartWell(config_); }
  EXPECT_EQ(Generation(config_), 2);
}

// The coordinator would make it the owner of what it followed, and it brings none of that back.
TEST_F(DataDirTest, AFolderThatGoesBackToACheckpointSaysNothing) {
  v1::Config killed;
  {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    ASSERT_TRUE(ps.storage->Checkpoint("first").ok());
    killed = Killed();
  }
  killed.mutable_checkpoint()->set_load("first");
  EXPECT_EQ(Whole(killed), std::nullopt);
  { const Ps ps = StartWell(killed); }
  EXPECT_EQ(Whole(killed), true) << "it has gone there";
}

TEST_F(DataDirTest, AFolderOfAPsThatEndedInGoodOrderIsWholeWhateverTheMachineDidSince) {
  {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    PushMany(ps, 1, 2);
    ps.storage->Close();
  }
  const v1::Config ended = InAnotherBoot(config_);
  EXPECT_EQ(Whole(ended), true);
  v1::Config cuts = ended;
  cuts.mutable_server()->set_cut_damaged_log(true);
  EXPECT_EQ(Whole(cuts), false) << "what is damaged is left out";
  v1::Config killed;
  {
    const Ps ps = StartWell(ended);
    killed = Killed();
  }
  EXPECT_EQ(Whole(InAnotherBoot(killed)), false) << "it was started since";
}

TEST_F(DataDirTest, AFolderWhoseLogWasOnTheDiskBeforeAnythingWasAcknowledgedIsWholeWhateverTheMachineDidSince) {
  config_.mutable_cluster()->set_durability(v1::ClusterConfig::MACHINE);
  v1::Config killed;
  {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    PushMany(ps, 1, 2);
    killed = Killed();
  }
  const v1::Config in_another_boot = InAnotherBoot(killed);
  EXPECT_EQ(Whole(in_another_boot), true);
  v1::Config cuts = in_another_boot;
  cuts.mutable_server()->set_cut_damaged_log(true);
  EXPECT_EQ(Whole(cuts), false) << "what is damaged is left out";
  {
    config_ = in_another_boot;
    config_.mutable_cluster()->set_durability(v1::ClusterConfig::PROCESS);  // A life that does not wait for the disk.
    const Ps ps = StartWell(config_);
    killed = Killed();
  }
  EXPECT_EQ(Whole(InAnotherBoot(killed)), false);
}

TEST_F(DataDirTest, AFolderWithoutALogDoesNotSayWhetherItIsWhole) {
  config_.mutable_cluster()->set_durability(v1::ClusterConfig::MEMORY);
  {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    ps.storage->Close();
  }
  EXPECT_EQ(Whole(config_), std::nullopt);
}

// P4 of the review of arithmetic: a ps replayed its log on another processor, and nothing was said.
TEST_F(DataDirTest, AFolderThatWasWrittenWithOtherArithmeticIsNotedUntilALifeBeginsInItAndComesBack) {
  constexpr char kUnlike[] = "lodestone_ps_storage_unlike_starts_total";
  {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    PushMany(ps, 1, 2);
  }
  v1::ServerState state = StateOf(config_);
  EXPECT_EQ(state.arithmetic(), ArithmeticFingerprint());
  EXPECT_EQ(state.machine(), ArithmeticName());
  const MetricGrowth growth;
  EXPECT_TRUE(DataDir::Open(config_).ok());
  EXPECT_EQ(growth.Of(kUnlike), 0);
  state.set_arithmetic(ArithmeticFingerprint() ^ 2);
  state.set_machine("another");
  SetState(config_, state);
  EXPECT_TRUE(DataDir::Open(config_).ok());
  EXPECT_EQ(growth.Of(kUnlike), 1);
  { const Ps ps = StartWell(config_); }
  EXPECT_EQ(growth.Of(kUnlike), 2) << "the start before has replayed nothing";
  EXPECT_TRUE(DataDir::Open(config_).ok());
  EXPECT_EQ(growth.Of(kUnlike), 2) << "a life has begun, whose log is of this machine";
}

TEST_F(DataDirTest, AFolderOfAnOlderVersionDoesNotSayWithWhatArithmeticItWasWritten) {
  { const Ps ps = StartWell(config_); }
  v1::ServerState state = StateOf(config_);
  state.clear_arithmetic();
  state.clear_machine();
  SetState(config_, state);
  const MetricGrowth growth;
  { const Ps ps = StartWell(config_); }
  EXPECT_EQ(growth.Of("lodestone_ps_storage_unlike_starts_total"), 0);
  EXPECT_EQ(StateOf(config_).arithmetic(), ArithmeticFingerprint());
}

}  // namespace
}  // namespace lodestone::server
