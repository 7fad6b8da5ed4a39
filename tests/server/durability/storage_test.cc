#include "server/durability/storage.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <latch>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/durability/file_size_limit.h"
#include "tests/server/durability/storage_fixture.h"
#include "tests/server/store/busy_executor.h"

namespace lodestone::server {
namespace {

namespace fs = std::filesystem;

using StorageTest = StorageFixture;

TEST_P(StorageTest, WhatWasAcknowledgedIsThereAfterAKillAndIsNotAppliedAgain) {
  v1::ClusterConfig::Durability durability;
  ASSERT_TRUE(v1::ClusterConfig::Durability_Parse(GetParam(), &durability));
  config_.mutable_cluster()->set_durability(durability);
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 20);

  const Ps again = StartWell(Killed());
  EXPECT_EQ(Content(again), Content(ps));
  EXPECT_GT(StatusOf(again).replayed_records(), 0u);
  const auto retry = Push(again, 20, 20);
  ASSERT_TRUE(retry.ok()) << retry.status();
  for (const auto& shard : retry->shards()) EXPECT_TRUE(shard.duplicate());
  PushMany(again, 21, 25);
  PushMany(ps, 21, 25);
  EXPECT_EQ(Content(again), Content(ps));
}

INSTANTIATE_TEST_SUITE_P(Durabilities, StorageTest, ::testing::Values("PROCESS", "MACHINE"));

using StorageLifeTest = StorageFixture;
INSTANTIATE_TEST_SUITE_P(Process, StorageLifeTest, ::testing::Values("PROCESS"));

// Without a guard, finite gradients may take a value to infinity, as in a program without a ps. It is a value as any
// other: it is served, and comes back from the log and from a checkpoint.
TEST_P(StorageLifeTest, AValueThatFiniteGradientsHaveMadeInfiniteIsServedAndComesBackAfterAKill) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  for (const Sequence sequence : {1, 2}) {
    const auto pushed = Push(ps, sequence, 3e38f);
    ASSERT_TRUE(pushed.ok()) << pushed.status();
  }
  RequestBuilder<v1::PullRequest> pull(kShards);
  pull.AddRows(TableIdOf("rows"), kDim, {{0, 0.0f}}, false);
  float value = 0;
  std::latch done(1);
  ps.store->pulls().Pull(pull.header, pull.payload(), [&](const absl::StatusOr<PullPath::Values>& values) {
    EXPECT_TRUE(values.ok()) << values.status();
    if (values.ok()) std::memcpy(&value, values->payload[0].begin(), sizeof(value));
    done.count_down();
  });
  done.wait();
  EXPECT_EQ(value, std::numeric_limits<float>::infinity());
  EXPECT_EQ(Content(StartWell(Killed())), Content(ps));
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  EXPECT_EQ(Content(StartWell(Killed())), Content(ps));
}

TEST_P(StorageLifeTest, APartOfSeveralShardsComesBackAsAPartForEach) {
  std::map<ShardId, std::vector<Key>> by_shard;
  for (Key key = 0; key < 50; ++key) by_shard[ShardOfKey(key, kShards)].push_back(key);
  const auto push_rows = [&](const Ps& ps, bool wide) {
    RequestBuilder<v1::PushRequest> push(kShards);
    push.header.set_worker_incarnation(kWorker);
    push.header.set_sequence(1);
    if (!wide) {
      std::vector<std::pair<Key, float>> rows;
      for (Key key = 0; key < 50; ++key) rows.emplace_back(key, static_cast<float>(key));
      push.AddRows(TableIdOf("rows"), kDim, rows, true);
    } else {
      v1::Part* const part = push.header.add_parts();
      part->set_table(TableIdOf("rows"));
      for (const auto& [shard, keys] : by_shard) {
        part->add_shards(shard);
        part->add_row_counts(static_cast<uint32_t>(keys.size()));
        for (const Key key : keys) push.Append(key);
      }
      for (const auto& [shard, keys] : by_shard) {
        for (const Key key : keys) push.AppendRepeated(static_cast<float>(key), kDim);
      }
    }
    std::latch done(1);
    ps.store->pushes().Push(push.header, push.payload(), [&](const absl::StatusOr<v1::PushResponse>& response) {
      EXPECT_TRUE(response.ok()) << response.status();
      done.count_down();
    });
    done.wait();
  };
  const Ps reference = StartWell(MakeConfig("reference"));
  EnsureTables(reference);
  push_rows(reference, false);
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  push_rows(ps, true);
  EXPECT_EQ(Content(ps), Content(reference));
  EXPECT_EQ(Content(StartWell(Killed())), Content(reference));
}

TEST_P(StorageLifeTest, ManyLivesInARowLoseNothing) {
  const Ps reference = StartWell(MakeConfig("reference"));
  EnsureTables(reference);
  for (Sequence life = 0; life < 6; ++life) {
    const Ps ps = StartWell(config_);
    if (life == 0) EnsureTables(ps);
    PushMany(ps, 1 + 5 * life, 5 + 5 * life);
    PushMany(reference, 1 + 5 * life, 5 + 5 * life);
    if (life % 3 == 1) {
      EXPECT_TRUE(ps.storage->Checkpoint("").ok());
    }
    EXPECT_EQ(Content(ps), Content(reference)) << "life " << life;
    config_ = Killed();
  }
  EXPECT_EQ(Content(StartWell(config_)), Content(reference));
}

// Each shard's updates are applied again with the settings that they were applied with at first.
TEST_P(StorageLifeTest, OtherSettingsOfATableAreTheSameAfterAKillFromTheLogAndFromCheckpoints) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  std::vector<v1::Config> kills;
  for (Sequence round = 0; round < 4; ++round) {
    PushMany(ps, 1 + 10 * round, 5 + 10 * round);
    v1::EnsureTablesRequest request;
    request.set_worker_incarnation(kWorker);
    *request.add_tables() = AddingDense("dense", kElements, kBlockElements);
    *request.add_tables() = AddingRows("rows", kDim);
    const float rate = -0.5f - static_cast<float>(round);
    for (v1::TableSpec& spec : *request.mutable_tables()) spec.mutable_optimizer()->set_learning_rate(rate);
    const auto changed = ps.store->EnsureTables(request);
    ASSERT_TRUE(changed.ok()) << changed.status();
    kills.push_back(Killed());
    PushMany(ps, 6 + 10 * round, 10 + 10 * round);
    const Ps again = StartWell(Killed());
    EXPECT_EQ(Content(again), Content(ps)) << "round " << round;
    EXPECT_EQ(again.store->tables().SpecOf("dense")->optimizer().learning_rate(), rate);
    EXPECT_EQ(again.store->tables().SpecOf("rows")->revision(), round + 1);
    if (round % 2 == 1) {
      ASSERT_TRUE(ps.storage->Checkpoint("").ok());
    }
  }
  // From where it was killed right after the change, the same pushes lead to the same.
  const Ps again = StartWell(kills.back());
  PushMany(again, 36, 40);
  EXPECT_EQ(Content(again), Content(ps));
}

// It was in the log and not in use; another shape of that name, which was in use then, kept the ps from starting again.
TEST_P(StorageLifeTest, ATableThatIsMadeWhileTheLogCannotBeWrittenIsTheOneThatThereIs) {
  std::atomic<bool> full = false;
  FileCalls calls = FileCalls::System();
  calls.writev = [&full, really = calls.writev](int fd, const iovec* pieces, int count) {
    return full ? (errno = ENOSPC, -1) : really(fd, pieces, count);
  };
  Ps ps = Start(config_, calls);
  ASSERT_TRUE(ps.status.ok()) << ps.status;
  EnsureTables(ps);
  // By one without a session, which would be logged first.
  const auto ensure = [&](const std::string& table, uint32_t dim) {
    v1::EnsureTablesRequest request;
    *request.add_tables() = AddingRows(table, dim);
    return ps.store->EnsureTables(request).status();
  };
  full = true;
  EXPECT_EQ(ensure("late", 2).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ensure("later", 2).code(), absl::StatusCode::kUnavailable);
  full = false;
  EXPECT_TRUE(ensure("late", 2).ok()) << "it is there";
  EXPECT_EQ(ensure("late", 3).code(), absl::StatusCode::kAlreadyExists);
  absl::Status pushed = Push(ps, 1, 1).status();
  while (absl::IsUnavailable(pushed)) pushed = Push(ps, 1, 1).status();  // Until the log is written again.
  ASSERT_TRUE(pushed.ok()) << pushed;
  ps = StartWell(Killed());
  ASSERT_TRUE(ps.store->tables().SpecOf("late").has_value());
  EXPECT_EQ(ps.store->tables().SpecOf("late")->embedding().dim(), 2u);
  EXPECT_FALSE(ps.store->tables().SpecOf("later").has_value()) << "what is refused at once is not logged";
}

TEST_P(StorageLifeTest, ALogGoesOnFromACheckpointAndOldSegmentsGoAway) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 5);
  for (Sequence s = 6; s < 60; s += 6) {
    const auto checkpoint = ps.storage->Checkpoint("");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    PushMany(ps, s, s + 5);
  }
  EXPECT_LE(Segments(config_).size(), 2u * 3) << "two logs, each with the segments since the last two checkpoints";
  const Ps again = StartWell(Killed());
  EXPECT_EQ(Content(again), Content(ps));
}

TEST_P(StorageLifeTest, ADamagedCheckpointIsPassedOverForTheOneBeforeAndItsLog) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  for (Sequence s = 1; s <= 3; ++s) {
    PushMany(ps, s, s);
    ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  }
  PushMany(ps, 4, 4);
  const v1::Config killed = Killed();
  const fs::path newest = fs::path(killed.server().data_dir()) / "checkpoints" / "auto-ps0-000003";
  ASSERT_TRUE(fs::exists(newest));
  size_t damaged = 0;
  for (const auto& entry : fs::directory_iterator(newest)) {
    if (entry.path().extension() == ".manifest") continue;
    fs::resize_file(entry.path(), fs::file_size(entry.path()) / 2);
    ++damaged;
  }
  ASSERT_GT(damaged, 0u);
  EXPECT_EQ(Content(StartWell(killed)), Content(ps));
}

// Regression: a start from a named checkpoint took the log of the periodic one before for superfluous.
TEST_P(StorageLifeTest, TheLogOfThePeriodicCheckpointBeforeStaysWhereAStartWasFromANamedOneThatIsDeleted) {
  const auto write_push_and_kill = [this](const Ps& ps, const std::string& checkpoint, Sequence sequence) {
    EXPECT_TRUE(ps.storage->Checkpoint(checkpoint).ok());
    PushMany(ps, sequence, sequence);
    config_ = Killed();
  };
  {
    const Ps first = StartWell(config_);
    EnsureTables(first);
    PushMany(first, 1, 1);
    write_push_and_kill(first, "", 2);
  }
  write_push_and_kill(StartWell(config_), "named", 3);
  const Ps third = StartWell(config_);
  ASSERT_TRUE(third.storage->Checkpoint("").ok());
  PushMany(third, 4, 4);
  const v1::Config killed = Killed();
  const fs::path checkpoints = fs::path(killed.server().data_dir()) / "checkpoints";
  fs::remove_all(checkpoints / "named");
  for (const auto& entry : fs::directory_iterator(checkpoints / "auto-ps0-000002")) fs::resize_file(entry.path(), 1);
  EXPECT_EQ(Content(StartWell(killed)), Content(third));
}

TEST_P(StorageLifeTest, DamageToAnyOneFileOfAnyCheckpointIsSurvived) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  for (Sequence s = 1; s <= 5; ++s) {
    PushMany(ps, s, s);
    ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  }
  PushMany(ps, 6, 6);
  size_t damaged = 0;
  const fs::path checkpoints = fs::path(config_.server().data_dir()) / "checkpoints";
  for (const auto& entry : fs::recursive_directory_iterator(checkpoints)) {
    // One shard's file, and the manifest, of each.
    const std::string name = entry.path().filename().string();
    if (name != "ps-0.shard-00003" && name != "ps-0.manifest") continue;
    const v1::Config killed = Killed();
    const fs::path file =
        fs::path(killed.server().data_dir()) / "checkpoints" / fs::relative(entry.path(), checkpoints);
    fs::resize_file(file, fs::file_size(file) / 2);
    EXPECT_EQ(Content(StartWell(killed)), Content(ps)) << file;
    ++damaged;
  }
  EXPECT_GE(damaged, 2u * 4);
}

TEST_P(StorageLifeTest, DamagedCheckpointsAreNamedWhereTheLogDoesNotReachBackToTheOneBefore) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  for (Sequence s = 1; s <= 5; ++s) {
    PushMany(ps, s, s);
    ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  }
  const v1::Config killed = Killed();
  fs::path damaged;
  for (const char* name : {"auto-ps0-000004", "auto-ps0-000005"}) {
    damaged = fs::path(killed.server().data_dir()) / "checkpoints" / name / "ps-0.shard-00003";
    ASSERT_TRUE(fs::exists(damaged));
    fs::resize_file(damaged, fs::file_size(damaged) / 2);
  }
  const absl::Status status = Start(killed).status;
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), testing::HasSubstr(damaged.string()));
}

TEST_P(StorageLifeTest, AStopInGoodOrderWritesACheckpointAndTheNextLifeReplaysNothing) {
  std::map<ShardId, uint64_t> content;
  {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    PushMany(ps, 1, 10);
    content = Content(ps);
    ps.storage->Close();
  }
  const Ps again = StartWell(config_);
  EXPECT_EQ(StatusOf(again).replayed_records(), 0u);
  EXPECT_EQ(Content(again), content);
  again.storage->Close();
  EXPECT_EQ(StatusOf(again).checkpoint(), "") << "nothing has changed, so nothing is written";
}

TEST_P(StorageLifeTest, ShortLivesDoNotPileUpSegments) {
  for (Sequence life = 1; life <= 6; ++life) {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    PushMany(ps, life, life);
    ps.storage->Close();
  }
  EXPECT_LE(Segments(config_).size(), 3u * 2 * 2) << "three lives, two logs, rolled once each";
}

TEST_P(StorageLifeTest, AForgottenWorkerStaysForgotten) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 1);
  time_.AdvanceMs(limits::kSessionIdleMaxMs + 1);
  ps.store->Tick();
  ASSERT_EQ(Push(ps, 2, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  const Ps again = StartWell(Killed());
  EXPECT_EQ(Push(again, 2, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  v1::EnsureTablesRequest request;
  request.set_worker_incarnation(kWorker);
  EXPECT_EQ(again.store->EnsureTables(request).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(StorageLifeTest, AWorkerThatHasNotPushedYetKeepsItsSession) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  EnsureTables(ps, kWorker + 1);
  const Ps again = StartWell(Killed());
  EXPECT_TRUE(Push(again, 1, 1, kWorker + 1).ok());
  EXPECT_EQ(Push(again, 1, 1, kWorker + 2).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(StorageLifeTest, ACheckpointIsToldAndAPeriodicOneThatFails) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 3);
  ASSERT_TRUE(ps.storage->Checkpoint("mine").ok());
  EXPECT_THAT(Events(), testing::ElementsAre(testing::StartsWith("ps 0 checkpointed: mine: 8 shards, ")));
  EXPECT_FALSE(ps.storage->Checkpoint("mine").ok()) << "there is one";
  EXPECT_THAT(Events(), testing::SizeIs(1)) << "the caller was answered";
  const fs::path checkpoints = root_ / "a" / "checkpoints";
  fs::remove_all(checkpoints);
  std::ofstream(checkpoints.string()) << "in the way";
  EXPECT_FALSE(ps.storage->Checkpoint("").ok());
  ASSERT_THAT(Events(), testing::SizeIs(2));
  EXPECT_THAT(Events()[1], testing::StartsWith("ps 0 disk: a checkpoint failed: "));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(ps.storage->Checkpoint("").ok());
  EXPECT_THAT(Events(), testing::SizeIs(2)) << "that it goes on failing is no news";
  fs::remove(checkpoints);
  fs::create_directories(checkpoints);
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  ASSERT_THAT(Events(), testing::SizeIs(3));
  EXPECT_THAT(Events()[2], testing::StartsWith("ps 0 checkpointed: "));
  fs::remove_all(checkpoints);
  std::ofstream(checkpoints.string()) << "in the way again";
  EXPECT_FALSE(ps.storage->Checkpoint("").ok());
  ASSERT_THAT(Events(), testing::SizeIs(4));
  EXPECT_THAT(Events()[3], testing::StartsWith("ps 0 disk: a checkpoint failed: "));
  fs::remove(checkpoints);
}

TEST_P(StorageLifeTest, ANamedCheckpointIsGoneBackToOnceAndThenLeftBehind) {
  std::map<ShardId, uint64_t> early;
  {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    PushMany(ps, 1, 5);
    early = Content(ps);
    ASSERT_TRUE(ps.storage->Checkpoint("early").ok());
    PushMany(ps, 6, 10);
    ASSERT_TRUE(ps.storage->Checkpoint("").ok());
    PushMany(ps, 11, 12);
  }
  config_.mutable_checkpoint()->set_load("early");
  std::map<ShardId, uint64_t> late;
  {
    const Ps ps = StartWell(config_);
    EXPECT_EQ(Content(ps), early);
    PushMany(ps, 6, 6);  // Another push than the one of this number that was left behind.
    late = Content(ps);
    config_ = Killed();
  }
  EXPECT_EQ(Content(StartWell(config_)), late) << "it goes on from where it was, and not back once more";
  config_.mutable_checkpoint()->set_load("early#2");
  {
    const Ps ps = StartWell(config_);
    EXPECT_EQ(Content(ps), early) << "told to, it goes back again";
    PushMany(ps, 6, 7);
    late = Content(ps);
    config_ = Killed();
  }
  EXPECT_EQ(Content(StartWell(config_)), late);
  config_.mutable_checkpoint()->set_load("early");
  EXPECT_EQ(Content(StartWell(config_)), late) << "it has gone back to it for the first time long ago";
  config_.mutable_checkpoint()->set_load("nowhere");
  EXPECT_EQ(Start(config_).status.code(), absl::StatusCode::kNotFound);
}

// The worker's session is in the log of the first executor, whose end the machine lost, and its push in the other's.
TEST_P(StorageLifeTest, APushThatIsThereIsNotAppliedAgainWhereItsSessionWasLost) {
  constexpr Incarnation kLater = kWorker + 1;
  v1::Config killed;
  uint64_t before = 0;
  {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    PushMany(ps, 1, 2);
    before = fs::file_size(Segments(config_)[0]);
    EnsureTables(ps, kLater);
    ASSERT_TRUE(Push(ps, 1, 1.0f, kLater).ok());
    killed = Killed();
  }
  fs::resize_file(Segments(killed)[0], before);
  const Ps ps = StartWell(killed);
  EnsureTables(ps, kLater);
  const auto pushed = Push(ps, 1, 1.0f, kLater);
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  int duplicates = 0;
  for (const auto& shard : pushed->shards()) duplicates += shard.duplicate();
  EXPECT_EQ(duplicates, kShards / 2) << "those of the other executor";
}

// A table that was made after the checkpoint is in the log alone.
class GoingBackTest : public StorageLifeTest {
 protected:
  // A life with a checkpoint that is to be gone back to, and the table and pushes after it.
  void LeaveALaterTable() {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    PushMany(ps, 1, 5);
    early_ = Content(ps);
    ASSERT_TRUE(ps.storage->Checkpoint("early").ok());
    v1::EnsureTablesRequest request;
    request.set_worker_incarnation(kWorker);
    *request.add_tables() = later_;
    ASSERT_TRUE(ps.store->EnsureTables(request).ok());
    PushMany(ps, 6, 7);
    config_.mutable_checkpoint()->set_load("early");
  }
  void ExpectNothingLater() {
    const Ps ps = StartWell(config_);
    EXPECT_EQ(Content(ps), early_);
    const auto found = ps.store->tables().Find(later_);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, nullptr);
  }

  const v1::TableSpec later_ = AddingRows("later", kDim);
  std::map<ShardId, uint64_t> early_;
};

INSTANTIATE_TEST_SUITE_P(Process, GoingBackTest, ::testing::Values("PROCESS"));

TEST_P(GoingBackTest, AStartThatDoesNotGetBeyondItsFirstCheckpointGoesBackAgain) {
  ASSERT_NO_FATAL_FAILURE(LeaveALaterTable());
  absl::Status start;
  {
    const FileSizeLimit full(600);  // The state file is smaller.
    start = Start(config_).status;
  }
  EXPECT_FALSE(start.ok());
  ASSERT_NO_FATAL_FAILURE(ExpectNothingLater());
}

// It cannot save that it has gone back, and a kill just before that leaves the same.
TEST_P(GoingBackTest, APsThatIsKilledBeforeItHasSavedThatItHasGoneBackHasNothingOfWhatItLeft) {
  LeaveALaterTable();
  const fs::path in_the_way = fs::path(config_.server().data_dir()) / "ps-0" / "state.tmp";
  {
    Ps ps = Open(config_);
    ASSERT_TRUE(ps.status.ok()) << ps.status;
    fs::create_directory(in_the_way);
    BringBack(config_, &ps);
    EXPECT_FALSE(ps.status.ok());
  }
  fs::remove(in_the_way);
  ExpectNothingLater();
}

TEST_P(GoingBackTest, ALogThatIsNoMoreWrittenIsLeftBehindToo) {
  LeaveALaterTable();
  config_.mutable_cluster()->set_durability(v1::ClusterConfig::MEMORY);
  for (int start = 0; start < 2; ++start) {
    ExpectNothingLater();
    config_ = Killed();
  }
}

TEST_P(StorageLifeTest, WithoutALogAPsThatIsKilledHasGoneBackToo) {
  std::map<ShardId, uint64_t> early;
  config_.mutable_cluster()->set_durability(v1::ClusterConfig::MEMORY);
  {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    PushMany(ps, 1, 5);
    early = Content(ps);
    ASSERT_TRUE(ps.storage->Checkpoint("early").ok());
    PushMany(ps, 6, 10);
    ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  }
  config_.mutable_checkpoint()->set_load("early");
  {
    const Ps ps = StartWell(config_);
    EXPECT_EQ(Content(ps), early);
    config_ = Killed();
  }
  EXPECT_EQ(Content(StartWell(config_)), early);
}

// checkpoint.load was left in the configuration, and there are more ps: the folder of the new one is empty.
TEST_P(StorageLifeTest, WhatHasGoneBackDoesNotGoBackAgainOnAPsThatComesLater) {
  const auto config_of = [this](uint32_t server, uint32_t servers, const std::string& load) {
    v1::Config config = MakeConfigOf(server, servers);
    config.mutable_checkpoint()->set_load(load);
    return config;
  };
  std::map<ShardId, uint64_t> first, content;
  {
    const Ps ps = StartWell(config_of(0, 1, ""));
    EnsureTables(ps);
    PushMany(ps, 1, 3);
    first = Content(ps);
    ASSERT_TRUE(ps.storage->Checkpoint("first").ok());
    PushMany(ps, 4, 5);
  }
  {
    const Ps ps = StartWell(config_of(0, 1, "first"));
    EXPECT_EQ(Content(ps), first);
    PushMany(ps, 6, 8);
    content = Content(ps);
    ASSERT_TRUE(ps.storage->Checkpoint("second").ok());
    ps.storage->Close();
  }
  const auto content_of_two = [&](const std::string& load) {
    std::map<ShardId, uint64_t> found;
    for (uint32_t server = 0; server < 2; ++server) {
      const Ps ps = StartWell(config_of(server, 2, load));
      found.merge(Content(ps));
      ps.storage->Close();
    }
    return found;
  };
  EXPECT_EQ(content_of_two("first"), content);
  // Only to the one that was gone back to last.
  EXPECT_EQ(content_of_two("second"), content);
  EXPECT_EQ(content_of_two("first"), first);
  fs::remove_all(root_ / "ps1");
  EXPECT_EQ(content_of_two("first"), first);
}

// Regression: its first start was of a lower number than those that its checkpoints tell of, and its first checkpoint
// deleted the log that it was writing.
TEST_P(StorageLifeTest, APsWhoseFolderWasLostBesideItsCheckpointsKeepsTheLogOfItsNewOne) {
  config_ = MakeConfigOf(0, 1);
  constexpr Sequence kLives = 3;
  for (Sequence life = 1; life <= kLives; ++life) {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    PushMany(ps, life, life);
    ps.storage->Close();  // Which writes a checkpoint.
  }
  fs::remove_all(config_.server().data_dir());
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, kLives + 1, kLives + 2);
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  PushMany(ps, kLives + 3, kLives + 4);
  const Ps back = StartWell(Killed());
  EXPECT_EQ(Content(back), Content(ps));
}

TEST_P(StorageLifeTest, APsOfWhoseShardsSomeHaveGoneBackAndOthersHaveNotDoesNotStart) {
  for (uint32_t server = 0; server < 2; ++server) {
    const Ps ps = StartWell(MakeConfigOf(server, 2));
    EnsureTables(ps);
    ASSERT_TRUE(ps.storage->Checkpoint("first").ok());
    ps.storage->Close();
  }
  v1::Config config = MakeConfigOf(0, 2);
  config.mutable_checkpoint()->set_load("first");
  {
    const Ps ps = StartWell(config);
    ps.storage->Close();
  }
  config = MakeConfigOf(2, 1);  // Another folder.
  config.mutable_server()->set_index(0);
  config.mutable_checkpoint()->set_load("first");
  const absl::Status status = Start(config).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("have gone back to checkpoint `first` before, and "),
                             testing::HasSubstr("start it without checkpoint.load")));
}

// What could not be read may be read again later.
TEST_P(StorageLifeTest, WhatIsPushedWhileTheNewestLineagesCheckpointIsDamagedIsThereOnceItIsWholeAgain) {
  {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    PushMany(ps, 1, 2);
    ASSERT_TRUE(ps.storage->Checkpoint("first").ok());
    config_ = Killed();
  }
  config_.mutable_checkpoint()->set_load("first");
  {
    const Ps ps = StartWell(config_);
    config_ = Killed();
  }
  std::map<fs::path, std::string> files;
  for (const auto& entry :
       fs::directory_iterator(fs::path(config_.server().data_dir()) / "checkpoints" / "auto-ps0-000001")) {
    if (entry.path().extension() == ".manifest") continue;
    std::ifstream stream(entry.path(), std::ios::binary);
    files[entry.path().filename()] = {std::istreambuf_iterator<char>(stream), {}};
    fs::resize_file(entry.path(), fs::file_size(entry.path()) / 2);
  }
  ASSERT_FALSE(files.empty());
  std::map<ShardId, uint64_t> content;
  {
    const Ps ps = StartWell(config_);
    PushMany(ps, 3, 4);
    content = Content(ps);
    config_ = Killed();
  }
  for (const auto& [name, bytes] : files) {
    std::ofstream(fs::path(config_.server().data_dir()) / "checkpoints" / "auto-ps0-000001" / name, std::ios::binary)
        << bytes;
  }
  EXPECT_EQ(Content(StartWell(config_)), content);
}

// The folder of checkpoints is one for all ps. What this one wrote after it had seen a later lineage there was not
// taken for its own by its next life.
TEST_P(StorageLifeTest, ThatAnotherPsHasGoneBackDoesNotDisturbTheLogOfThisOne) {
  v1::Config other_config = MakeConfigOf(1, 2);
  {
    const Ps other = StartWell(other_config);
    EnsureTables(other);
    ASSERT_TRUE(other.storage->Checkpoint("first").ok());
  }
  config_ = MakeConfigOf(0, 2);
  std::map<ShardId, uint64_t> content;
  const auto push = [&](Sequence first, Sequence last) {
    const Ps ps = StartWell(config_);
    EXPECT_EQ(Content(ps), content);
    EnsureTables(ps);
    for (Sequence s = first; s <= last; ++s) {
      RequestBuilder<v1::PushRequest> request(kShards);
      request.header.set_worker_incarnation(kWorker);
      request.header.set_sequence(s);
      std::vector<std::pair<Key, float>> rows;
      for (Key key = 0; rows.size() < 50; ++key) {
        if (ShardOfKey(key, kShards) % 2 == 0) rows.emplace_back(key, 1.0f);
      }
      request.AddRows(TableIdOf("rows"), kDim, rows, true);
      ASSERT_TRUE(Push(ps, request).ok());
    }
    content = Content(ps);
    config_ = Killed();
  };
  push(1, 3);
  other_config.mutable_checkpoint()->set_load("first");
  StartWell(other_config);
  push(4, 6);
  push(7, 9);
  EXPECT_EQ(Content(StartWell(config_)), content);
}

// Its lineage came with a state then, and is not the folder's.
TEST_P(StorageLifeTest, AShardOfALaterLineageThanItsPsComesBackFromTheLogAndFromCheckpoints) {
  Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 2);
  ASSERT_TRUE(ps.storage->Checkpoint("old").ok());
  const auto raise = [&](uint64_t lineage) {
    for (const ShardId shard : ps.store->shards().adopted()) {
      ps.store->shards().Run(shard, [&](Shard* owned) { owned->RaiseLineage(lineage); });
    }
  };
  const auto expect = [&](uint64_t lineage) {
    for (const ShardId shard : ps.store->shards().adopted()) {
      EXPECT_EQ(ps.store->shards().Get(shard)->lineage(), lineage) << "shard " << shard;
    }
  };
  raise(5);
  PushMany(ps, 3, 4);
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  PushMany(ps, 5, 6);
  std::map<ShardId, uint64_t> content = Content(ps);
  config_ = Killed();
  ps = StartWell(config_);
  EXPECT_EQ(Content(ps), content);
  expect(5);
  PushMany(ps, 7, 8);
  content = Content(ps);
  config_ = Killed();
  // None of it counts once the shards have gone back.
  v1::Config back = config_;
  back.mutable_checkpoint()->set_load("old");
  ps = StartWell(back);
  expect(6);
  const std::map<ShardId, uint64_t> old = Content(ps);
  EXPECT_NE(old, content);
  config_ = back;
  config_ = Killed();
  EXPECT_EQ(Content(StartWell(config_)), old);
}

TEST_P(StorageLifeTest, AnyNumberOfServersGoOnFromTheCheckpointOfAnyOther) {
  const std::string checkpoints = (root_ / "shared").string();
  std::map<ShardId, uint64_t> content;
  const auto config_of = [&](uint32_t server, uint32_t servers) {
    v1::Config config = MakeConfig(absl::StrCat("of", servers, "-", server));
    config.mutable_cluster()->set_servers(servers);
    config.mutable_server()->set_index(server);
    config.mutable_checkpoint()->set_dir(checkpoints);
    return config;
  };
  const auto push_to_all = [](const std::vector<Ps>& cluster, Sequence sequence) {
    for (const Ps& ps : cluster) {
      RequestBuilder<v1::PushRequest> push(kShards);
      push.header.set_worker_incarnation(kWorker);
      push.header.set_sequence(sequence);
      std::vector<std::pair<Key, float>> rows;
      const std::vector<ShardId> owned = ps.store->shards().adopted();
      for (Key key = 0; key < 200; ++key) {
        if (std::binary_search(owned.begin(), owned.end(), ShardOfKey(key, kShards))) rows.emplace_back(key, 1.5f);
      }
      push.AddRows(TableIdOf("rows"), kDim, rows, true);
      std::latch done(1);
      ps.store->pushes().Push(push.header, push.payload(), [&](const absl::StatusOr<v1::PushResponse>& response) {
        EXPECT_TRUE(response.ok()) << response.status();
        done.count_down();
      });
      done.wait();
    }
  };
  Sequence sequence = 0;
  for (const uint32_t servers : {3u, 1u, 2u, 5u}) {
    std::vector<Ps> cluster;
    std::map<ShardId, uint64_t> found;
    for (uint32_t server = 0; server < servers; ++server) {
      cluster.push_back(StartWell(config_of(server, servers)));
      found.merge(Content(cluster.back()));
      if (sequence == 0) EnsureTables(cluster.back());
    }
    EXPECT_EQ(found, content) << servers << " servers";
    push_to_all(cluster, ++sequence);
    content.clear();
    for (const Ps& ps : cluster) {
      content.merge(Content(ps));
      ps.storage->Close();
    }
    EXPECT_EQ(content.size(), kShards);
  }
}

using StorageServersTest = StorageFixture;
INSTANTIATE_TEST_SUITE_P(Durabilities, StorageServersTest, ::testing::Values("PROCESS", "REPLICA"));

TEST_P(StorageServersTest, ANumberOfServersCannotChangeBeforeAllIsInCheckpoints) {
  if (GetParam() == "REPLICA") config_.mutable_cluster()->set_replicas(2);
  config_.mutable_cluster()->set_servers(2);
  {
    v1::Config second = config_;
    second.mutable_server()->set_index(1);
    const Ps ps = StartWell(config_), other = StartWell(second);
    for (const Ps* one : {&ps, &other}) {
      EnsureTables(*one);
      RequestBuilder<v1::PushRequest> push(kShards);
      push.header.set_worker_incarnation(kWorker);
      push.header.set_sequence(1);
      std::vector<std::pair<Key, float>> rows;
      for (Key key = 0; key < 100; ++key) {
        if (ShardOfKey(key, kShards) % 2 == (one == &ps ? 0 : 1)) rows.emplace_back(key, 1.0f);
      }
      push.AddRows(TableIdOf("rows"), kDim, rows, true);
      std::latch done(1);
      one->store->pushes().Push(push.header, push.payload(), [&](const absl::StatusOr<v1::PushResponse>& response) {
        EXPECT_TRUE(response.ok()) << response.status();
        done.count_down();
      });
      done.wait();
    }
    ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  }
  for (const uint32_t servers : {1u, 3u}) {
    v1::Config config = config_;
    config.mutable_cluster()->set_servers(servers);
    if (servers == 3) config.mutable_server()->set_index(1);  // Its own log; with one server, the other's.
    for (int attempt = 0; attempt < 2; ++attempt) {
      const absl::Status status = Start(config).status;
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr("as many servers as before"));
    }
  }
}

TEST_P(StorageLifeTest, WithAsManyServersAsBeforeWhatWasFollowedIsNotLookedForWhenNothingIsFollowedAnyMore) {
  config_.mutable_cluster()->set_replicas(2);
  {
    const Ps ps = StartWell(config_);
    EnsureTables(ps);
    PushMany(ps, 1, 5);
    config_ = Killed();
  }
  config_.mutable_cluster()->set_replicas(1);
  // Another ps has half of the shards by now.
  Ps ps;
  Store::Options options;
  options.shards = kShards;
  options.executors = 2;
  options.time = &time_;
  ps.store = std::make_unique<Store>(options);
  auto storage = Storage::Open(config_, &time_);
  ASSERT_TRUE(storage.ok()) << storage.status();
  ps.storage = *std::move(storage);
  const absl::Status recovered = ps.storage->Recover(ps.store.get(), {0, 1, 2, 3});
  EXPECT_TRUE(recovered.ok()) << recovered;
}

TEST_P(StorageLifeTest, PushesThatLetPullsGoFirstBetweenTwoShardsComeBackWhole) {
  Ps ps = StartWell(config_);
  EnsureTables(ps);
  Executors& executors = ps.store->shards().executors();
  BusyExecutors busy(ps.store.get());
  // All wait before the first begins, each with others that it lets go first, as pulls.
  constexpr Sequence kPushes = 5;
  Countdown done(kPushes);
  std::atomic<size_t> others{0};
  for (Sequence sequence = 1; sequence <= kPushes; ++sequence) {
    RequestBuilder<v1::PushRequest> push(kShards);
    push.header.set_worker_incarnation(kWorker);
    push.header.set_sequence(sequence);
    push.AddDense(TableIdOf("dense"), {kElements, kBlockElements}, static_cast<float>(sequence));
    ps.store->pushes().Push(push.header, push.payload(), [&](const absl::StatusOr<v1::PushResponse>& response) {
      EXPECT_TRUE(response.ok()) << response.status();
      done.CountDown();
    });
    for (size_t e = 0; e < executors.size(); ++e) executors[e].Submit([&] { ++others; }, Executor::Order::kFree);
  }
  busy.Release();
  done.Wait();
  for (size_t e = 0; e < executors.size(); ++e) executors[e].SubmitAndWait([] {});
  EXPECT_EQ(others, kPushes * executors.size());
  for (const ShardId shard : ps.store->shards().adopted()) EXPECT_EQ(ps.store->shards().VersionOf(shard), kPushes);
  const Ps back = StartWell(Killed());
  EXPECT_EQ(Content(back), Content(ps));
  const auto again = Push(back, 1, 1);
  ASSERT_TRUE(again.ok()) << again.status();
  for (const auto& shard : again->shards()) EXPECT_TRUE(shard.duplicate());
}

// Regression: a start that was killed between that checkpoint, which names the generation, and the state file, made the
// next one take two. The coordinator knows of one life that it may not have heard of.
TEST_P(StorageLifeTest, AStartTakesOneGenerationAlsoWhereOneBeforeItDidNotGetBeyondItsFirstCheckpoint) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 10);
  v1::Config killed = Killed();
  DamageLogs(killed);
  killed.mutable_server()->set_cut_damaged_log(true);
  config_ = killed;
  const v1::Config same = Killed();
  const auto generation = [&] { return Open(killed).storage->dir().data().generation(); };
  const uint64_t before = generation();
  absl::Status start;
  {
    const FileSizeLimit full(600);  // The state file is smaller.
    start = Start(killed).status;
  }
  EXPECT_FALSE(start.ok());
  EXPECT_EQ(generation(), before + 1) << start;
  EXPECT_EQ(Content(StartWell(killed)), Content(StartWell(same)));
  EXPECT_EQ(generation(), before + 2);
}

TEST_P(StorageLifeTest, DamageInTheLogStopsTheStartUnlessItIsToBeCut) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 10);
  v1::Config killed = Killed();
  DamageLogs(killed);
  const Ps refused = Start(killed);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(refused.status.message()),
              testing::AllOf(testing::HasSubstr(".log"), testing::HasSubstr("cut_damaged_log")));
}

TEST_P(StorageLifeTest, WithLeaveToCutADamagedLogTheRestIsThere) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 10);
  v1::Config killed = Killed();
  DamageLogs(killed);
  killed.mutable_server()->set_cut_damaged_log(true);
  const Ps cut = StartWell(killed);
  for (const ShardId shard : cut.store->shards().adopted()) {
    EXPECT_LT(cut.store->shards().VersionOf(shard), ps.store->shards().VersionOf(shard));
  }
  EXPECT_GT(StatusOf(cut).replayed_records(), 0u);
  PushMany(cut, 11, 12);
  config_ = killed;
  v1::Config later = Killed();
  later.mutable_server()->set_cut_damaged_log(false);
  EXPECT_EQ(Content(StartWell(later)), Content(cut)) << "the damage is gone for good";
}

TEST_P(StorageLifeTest, AnUnfinishedRecordAtTheEndIsCutOff) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 10);
  const std::map<ShardId, uint64_t> before = Content(ps);
  const v1::Config base = Killed();
  PushMany(ps, 11, 11);
  const v1::Config longer = Killed();
  const std::vector<fs::path> short_segments = Segments(base), long_segments = Segments(longer);
  ASSERT_EQ(short_segments.size(), long_segments.size());
  for (size_t i = 0; i < short_segments.size(); ++i) {
    const auto whole = fs::file_size(short_segments[i]);
    ASSERT_GT(fs::file_size(long_segments[i]), whole + 20);
    fs::resize_file(long_segments[i], whole + 20);
  }
  EXPECT_EQ(Content(StartWell(longer)), before);
}

TEST_P(StorageLifeTest, AFolderIsOneProcessesAndOneClustersAlone) {
  const Ps ps = StartWell(config_);
  const absl::Status taken = Storage::Open(config_, &time_).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(taken.message()), testing::HasSubstr("lock"));
  for (const auto& change :
       std::vector<std::function<void(v1::Config*)>>{[](v1::Config* c) { c->mutable_cluster()->set_name("other"); },
                                                     [](v1::Config* c) { c->mutable_cluster()->set_shards(16); },
                                                     [](v1::Config* c) { c->mutable_cluster()->set_seed(9); }}) {
    v1::Config config = Killed();
    change(&config);
    EXPECT_EQ(Storage::Open(config, &time_).status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST_P(StorageLifeTest, WithoutADataFolderAPsStartsFromACheckpointAndKeepsNoLog) {
  const std::string checkpoints = (root_ / "shared").string();
  config_.mutable_checkpoint()->set_dir(checkpoints);
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 3);
  ASSERT_TRUE(ps.storage->Checkpoint("trained").ok());
  v1::Config config;
  config.mutable_cluster()->set_shards(kShards);
  config.mutable_cluster()->set_servers(1);
  config.mutable_checkpoint()->set_dir(checkpoints);
  config.mutable_checkpoint()->set_load("trained");
  config.mutable_checkpoint()->set_every_ms(0);
  const Ps reader = StartWell(config);
  EXPECT_EQ(Content(reader), Content(ps));
  EXPECT_EQ(StatusOf(reader).durability(), "memory");
  EXPECT_EQ(StatusOf(reader).log_records(), 0u);
}

}  // namespace
}  // namespace lodestone::server
