// A running ps brings a table back; whatever kills it afterwards, it comes back as it was.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/wire/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/durability/past_parts.h"
#include "server/durability/recovery.h"
#include "server/shard/shard.h"
#include "tests/server/durability/storage_fixture.h"

namespace lodestone::server {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// Blocks and rows of one table by index or key: the bytes of their values and state.
using TableContent = std::map<uint64_t, std::string>;

TableContent ContentOf(Store* store, ShardId shard, const std::string& table) {
  TableContent content;
  store->shards().Run(shard, [&](Shard* owned) {
    const Shard::State state = owned->CollectState(nullptr);
    for (const auto& part : state.dense) {
      if (part.table->name() != table) continue;
      for (const DenseTable::BlockState& block : part.blocks) {
        content[block.block] = {reinterpret_cast<const char*>(block.values->bytes()), block.values->size_bytes()};
      }
    }
    for (const auto& part : state.rows) {
      if (part.table->name() != table) continue;
      for (const EmbeddingTable::State::Page& page : part.content.pages) {
        for (uint32_t i = 0; i < part.layout.rows(); ++i) {
          if (part.layout.Changed(page.page)[i] == 0) continue;
          const auto* const row = reinterpret_cast<const char*>(part.layout.Row(page.page, i));
          content[part.layout.Keys(page.page)[i]] = {row, part.layout.row_floats * sizeof(float)};
        }
      }
    }
  });
  return content;
}

using Contents = std::map<ShardId, TableContent>;

Contents AllOf(Store* store, const std::string& table) {
  Contents contents;
  for (const ShardId shard : store->shards().adopted()) contents[shard] = ContentOf(store, shard, table);
  return contents;
}

class RollbackTest : public StorageFixture {
 protected:
  static absl::StatusOr<v1::RollbackResponse> ToCheckpoint(const Ps& ps, const std::string& table,
                                                           const std::string& checkpoint) {
    v1::RollbackRequest request;
    request.set_table(table);
    request.set_checkpoint(checkpoint);
    return ps.storage->Rollback(request);
  }
  static absl::StatusOr<v1::RollbackResponse> ToVersion(const Ps& ps, const std::string& table, Version version) {
    v1::RollbackRequest request;
    request.set_table(table);
    request.set_version(version);
    return ps.storage->Rollback(request);
  }

  // A ps with five pushes, a checkpoint `early`, and five more.
  Ps StartWithEarly() {
    Ps ps = StartWell(config_);
    EnsureTables(ps);
    PushMany(ps, 1, 5);
    early_dense_ = AllOf(ps.store.get(), "dense");
    early_rows_ = AllOf(ps.store.get(), "rows");
    EXPECT_TRUE(ps.storage->Checkpoint("early").ok());
    PushMany(ps, 6, 10);
    return ps;
  }

  // What Recover makes of the folders of `config`, up to a version.
  absl::StatusOr<std::unique_ptr<Store>> RecoverUntil(const v1::Config& config, Version until) {
    RecoveryOptions options;
    options.cluster.set_cluster(config.cluster().name());
    options.cluster.set_shards(kShards);
    options.cluster.set_seed(config.cluster().seed());
    options.log_dir = config.server().data_dir() + "/ps-0/log";
    options.checkpoint_dir = config.server().data_dir() + "/checkpoints";
    options.until = until;
    Store::Options store_options;
    store_options.shards = kShards;
    store_options.time = &time_;
    auto store = std::make_unique<Store>(store_options);
    std::vector<ShardId> shards(kShards);
    for (ShardId shard = 0; shard < kShards; ++shard) shards[shard] = shard;
    store->shards().Adopt(shards);
    const auto report = Recover(options, store.get());
    if (!report.ok()) return report.status();
    return store;
  }

  Contents early_dense_;
  Contents early_rows_;
};
INSTANTIATE_TEST_SUITE_P(Process, RollbackTest, ::testing::Values("PROCESS"));

TEST_P(RollbackTest, AFollowerThatTakesOverInTheMiddleOfARollbackCanRollBackAtOnce) {
  const Ps ps = StartWithEarly();
  const v1::SegmentHeader cluster = ps.storage->dir().Header();
  const std::vector<v1::TableSpec> specs = ps.store->tables().specs();
  const auto spec = std::find_if(specs.begin(), specs.end(), [](const auto& one) { return one.name() == "dense"; });
  ASSERT_NE(spec, specs.end());
  const auto early = PartsInCheckpoint(ps.storage->dir().checkpoint_dir(), "early", cluster, *spec, {0});
  ASSERT_TRUE(early.ok()) << early.status();
  const auto part = (*early)(0);
  ASSERT_TRUE(part.ok() && *part != nullptr) << part.status();
  ASSERT_GT((*part)->records.size(), 1u);

  // From now on another ps owns the shard, and has this one follow.
  Replayer& replayer = ps.store->replayer();
  ASSERT_TRUE(replayer.Follow(0).ok());
  replayer.ClearState(0);
  ASSERT_TRUE(replayer.FinishState(0, 10, 1).ok());
  v1::LogRecord piece;
  piece.set_shard(0);
  piece.set_version(11);
  piece.set_term(1);
  piece.mutable_restored()->set_table(TableIdOf("dense"));
  *piece.mutable_restored()->mutable_record() = (*part)->records[0].message;
  const std::string& bytes = (*part)->records[0].payload;
  const absl::Status staged = replayer.ReplayFollowed(piece, Payload(std::vector<grpc::Slice>{grpc::Slice(bytes)}));
  ASSERT_TRUE(staged.ok()) << staged;
  ps.store->shards().Own(0, 2);
  const auto done = replayer.RollBack(0, *part);
  EXPECT_TRUE(done.ok()) << done.status();
}

TEST_P(RollbackTest, ATableThatHasGoneBackIsTold) {
  const Ps ps = StartWithEarly();
  ASSERT_TRUE(ToCheckpoint(ps, "rows", "early").ok());
  ASSERT_TRUE(ToVersion(ps, "dense", 2).ok());
  EXPECT_FALSE(ToCheckpoint(ps, "rows", "never").ok());
  const std::vector<std::string> events = Events();
  ASSERT_EQ(events.size(), 3) << "and the checkpoint";
  EXPECT_EQ(events[1], "ps 0 rolled back: table rows to early: 8 shards");
  EXPECT_EQ(events[2], "ps 0 rolled back: table dense to version 2: 8 shards");
}

TEST_P(RollbackTest, ATableGoesBackToACheckpointAndTheOthersStay) {
  const Ps ps = StartWithEarly();
  const Contents dense = AllOf(ps.store.get(), "dense");
  const Version before = ps.store->shards().VersionOf(0);
  const auto done = ToCheckpoint(ps, "rows", "early");
  ASSERT_TRUE(done.ok()) << done.status();
  ASSERT_EQ(done->shards_size(), static_cast<int>(kShards));
  EXPECT_EQ(done->shards(0).version_before(), before);
  EXPECT_EQ(done->shards(0).version_after(), before + 1);
  EXPECT_EQ(done->shards(0).version_restored(), 5u);
  EXPECT_EQ(AllOf(ps.store.get(), "rows"), early_rows_);
  EXPECT_EQ(AllOf(ps.store.get(), "dense"), dense);
  const auto repeated = Push(ps, 10, 10);
  ASSERT_TRUE(repeated.ok());
  for (const auto& shard : repeated->shards()) EXPECT_TRUE(shard.duplicate()) << "what was applied once is not again";
  const Ps again = StartWell(Killed());
  EXPECT_EQ(Content(again), Content(ps));
  PushMany(again, 11, 13);
  PushMany(ps, 11, 13);
  EXPECT_EQ(Content(again), Content(ps));
}

TEST_P(RollbackTest, WhilePushesGoOnEachOneCountsBeforeOrAfterOnEachShard) {
  const Ps ps = StartWithEarly();
  std::map<ShardId, std::map<Version, float>> pushed;  // By shard: what made a version.
  std::atomic<bool> stop{false};
  absl::Notification some;
  std::thread pushes([&] {
    for (Sequence s = 11; !stop; ++s) {
      const auto result = Push(ps, s, static_cast<float>(s % 7));
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok()) break;
      for (const auto& shard : result->shards()) pushed[shard.shard()][shard.version()] = static_cast<float>(s % 7);
      if (s == 15) some.Notify();
    }
    if (!some.HasBeenNotified()) some.Notify();
  });
  some.WaitForNotification();
  const auto done = ToCheckpoint(ps, "dense", "early");
  stop = true;
  pushes.join();
  ASSERT_TRUE(done.ok()) << done.status();
  ASSERT_FALSE(done->shards().empty());
  for (const auto& shard : done->shards()) {
    float sum = 1 + 2 + 3 + 4 + 5;
    for (const auto& [version, value] : pushed[shard.shard()]) sum += version > shard.version_after() ? value : 0;
    EXPECT_FALSE(pushed[shard.shard()].contains(shard.version_after()));
    for (const auto& [block, bytes] : ContentOf(ps.store.get(), shard.shard(), "dense")) {
      for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
        ASSERT_EQ(reinterpret_cast<const float*>(bytes.data())[i], sum) << "shard " << shard.shard();
      }
    }
  }
  const Ps again = StartWell(Killed());
  EXPECT_EQ(Content(again), Content(ps));
}

TEST_P(RollbackTest, ATableGoesBackToAVersionAsReplayRebuildsIt) {
  const Ps ps = StartWithEarly();
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());  // Beyond the version: it must not be started from.
  PushMany(ps, 11, 12);
  for (const Version version : {5, 7, 0}) {
    const auto past = RecoverUntil(Killed(), version);
    ASSERT_TRUE(past.ok()) << past.status();
    const auto done = ToVersion(ps, "rows", version);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(done->shards_size(), static_cast<int>(kShards));
    EXPECT_EQ(AllOf(ps.store.get(), "rows"), AllOf(past->get(), "rows")) << version;
  }
  EXPECT_EQ(AllOf(ps.store.get(), "rows")[0].size(), 0u);
  const Ps again = StartWell(Killed());
  EXPECT_EQ(Content(again), Content(ps));
}

TEST_P(RollbackTest, AVersionBehindARollbackIsFoundToo) {
  const Ps ps = StartWithEarly();
  const Contents at_ten = AllOf(ps.store.get(), "dense");
  ASSERT_TRUE(ToCheckpoint(ps, "dense", "early").ok());
  PushMany(ps, 11, 12);
  const Contents at_end = AllOf(ps.store.get(), "dense");
  const Version end = ps.store->shards().VersionOf(0);
  ASSERT_TRUE(ToVersion(ps, "dense", 10).ok());
  EXPECT_EQ(AllOf(ps.store.get(), "dense"), at_ten);
  ASSERT_TRUE(ToVersion(ps, "dense", 11).ok());
  EXPECT_EQ(AllOf(ps.store.get(), "dense"), early_dense_);
  ASSERT_TRUE(ToVersion(ps, "dense", end).ok());
  EXPECT_EQ(AllOf(ps.store.get(), "dense"), at_end);
}

TEST_P(RollbackTest, AShardThatHasNotComeToTheVersionStaysAsItIs) {
  const Ps ps = StartWithEarly();
  const std::map<ShardId, uint64_t> content = Content(ps);
  const auto done = ToVersion(ps, "rows", 1000);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->shards_size(), 0);
  EXPECT_EQ(Content(ps), content);
}

TEST_P(RollbackTest, ACheckpointOfWhatChangedSinceRestoresATableThatShrank) {
  config_.mutable_checkpoint()->set_keep(2);
  config_.mutable_checkpoint()->set_full_every(8);
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 1);
  ASSERT_TRUE(ps.storage->Checkpoint("small").ok());
  PushMany(ps, 2, 400);  // Many pages.
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  ASSERT_TRUE(ToCheckpoint(ps, "rows", "small").ok());
  ASSERT_TRUE(ToCheckpoint(ps, "dense", "small").ok());
  for (Sequence s = 401; s <= 403; ++s) {
    const auto checkpoint = ps.storage->Checkpoint("");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const v1::Config killed = Killed();
    fs::remove_all(killed.server().data_dir() + "/ps-0");  // The checkpoint has to do.
    EXPECT_EQ(Content(StartWell(killed)), Content(ps));
    PushMany(ps, s, s);  // The table grows again.
  }
  EXPECT_EQ(Content(StartWell(Killed())), Content(ps));
}

TEST_P(RollbackTest, ARollbackWhoseRecordsAreNotAllInTheLogHasNotHappened) {
  const Ps ps = StartWithEarly();
  std::map<ShardId, std::map<Version, uint64_t>> known;  // By shard and version.
  const auto note = [&](const Ps& of) {
    for (const auto& [shard, content] : Content(of)) known[shard][of.store->shards().VersionOf(shard)] = content;
  };
  note(ps);
  const v1::Config base = Killed();
  ASSERT_TRUE(ToCheckpoint(ps, "rows", "early").ok());
  note(ps);
  const std::vector<fs::path> short_segments = Segments(base);
  size_t undone = 0, done = 0;
  for (int tenth = 0; tenth <= 10; ++tenth) {
    const v1::Config killed = Killed();
    const std::vector<fs::path> segments = Segments(killed);
    ASSERT_EQ(segments.size(), short_segments.size());
    size_t cuts = 0;
    for (size_t i = 0; i < segments.size(); ++i) {
      const auto from = fs::file_size(short_segments[i]), to = fs::file_size(segments[i]);
      if (to == from) continue;  // Of before the checkpoint.
      fs::resize_file(segments[i], from + (to - from) * tenth / 10);
      ++cuts;
    }
    ASSERT_EQ(cuts, 2u) << "one in each log";
    std::map<ShardId, uint64_t> content;
    {
      const Ps cut = StartWell(killed);
      content = Content(cut);
      for (const auto& [shard, checksum] : content) {
        const Version version = cut.store->shards().VersionOf(shard);
        ++(version == 10 ? undone : done);
        ASSERT_TRUE(known[shard].contains(version)) << "shard " << shard << " version " << version;
        EXPECT_EQ(checksum, known[shard][version]) << "shard " << shard << " version " << version;
      }
      if (tenth % 2 == 0) PushMany(cut, 11, 11);  // Else the next rollback makes the same version.
      ASSERT_TRUE(ToCheckpoint(cut, "rows", "early").ok());
      content = Content(cut);
    }
    EXPECT_EQ(Content(StartWell(killed)), content) << "what was left of it does not disturb what came after";
  }
  EXPECT_GE(undone, kShards + 1) << "one cut leaves nothing of it, others a part";
  EXPECT_GE(done, kShards + 1);
}

TEST_P(RollbackTest, SaysWhatIsNotThere) {
  const Ps ps = StartWithEarly();
  v1::EnsureTablesRequest request;
  *request.add_tables() = AddingRows("later", kDim);
  ASSERT_TRUE(ps.store->EnsureTables(request).ok());
  const std::map<ShardId, uint64_t> content = Content(ps);
  const auto expect = [](const absl::Status& status, absl::StatusCode code, const std::string& text) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  expect(ToCheckpoint(ps, "none", "early").status(), absl::StatusCode::kNotFound, "no table `none`");
  expect(ToCheckpoint(ps, "rows", "none").status(), absl::StatusCode::kNotFound, "no checkpoint `none`");
  expect(ToCheckpoint(ps, "rows", "../checkpoints/early").status(), absl::StatusCode::kInvalidArgument, "called");
  expect(ToCheckpoint(ps, "rows", "").status(), absl::StatusCode::kInvalidArgument, "called");
  expect(ToCheckpoint(ps, "later", "early").status(), absl::StatusCode::kNotFound, "`early` has no table `later`");
  EXPECT_EQ(Content(ps), content);
}

TEST_P(RollbackTest, ATableOfAnotherLayoutIsRefused) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 2);
  fs::create_directories(root_ / "a" / "checkpoints");
  int number = 0;
  const auto refused = [&](const v1::TableSpec& spec, const std::string& text) {
    const std::string name = absl::StrCat("other", ++number);
    const Ps other = StartWell(MakeConfig(name));
    v1::EnsureTablesRequest request;
    *request.add_tables() = spec;
    ASSERT_TRUE(other.store->EnsureTables(request).ok());
    ASSERT_TRUE(other.storage->Checkpoint(name).ok());
    fs::copy(root_ / name / "checkpoints" / name, root_ / "a" / "checkpoints" / name, fs::copy_options::recursive);
    const std::map<ShardId, uint64_t> content = Content(ps);
    const absl::Status status = ToCheckpoint(ps, spec.name(), name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    EXPECT_EQ(Content(ps), content);
  };
  refused(AddingDense("dense", kElements + 1, kBlockElements), "dense [1001]");
  refused(AddingDense("dense", kElements, 2 * kBlockElements), "in blocks of 128");
  refused(AddingRows("rows", kDim + 1), "embedding dim 3");
  refused(AddingRows("dense", kDim), "embedding dim 2");
  v1::TableSpec adam = AddingRows("rows", kDim);
  adam.mutable_optimizer()->mutable_adam();
  refused(adam, "adam");
  v1::TableSpec evicting = AddingRows("rows", kDim);
  evicting.mutable_embedding()->mutable_eviction()->set_rows_max(100);
  refused(evicting, "with eviction");
}

TEST_P(RollbackTest, AVersionThatNothingReachesBackToIsRefusedAndNamesAShard) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  for (Sequence s = 1; s <= 30; s += 3) {
    PushMany(ps, s, s + 2);
    ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  }
  const std::map<ShardId, uint64_t> content = Content(ps);
  const absl::Status status = ToVersion(ps, "rows", 4).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("shard 0 cannot be brought to version 4"));
  EXPECT_EQ(Content(ps), content);
  EXPECT_EQ(RecoverUntil(Killed(), 4).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(RollbackTest, WithoutALogATableGoesBackToCheckpointsOnly) {
  config_.mutable_cluster()->set_durability(v1::ClusterConfig::MEMORY);
  const Ps ps = StartWithEarly();
  EXPECT_EQ(ToVersion(ps, "rows", 3).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(ToCheckpoint(ps, "rows", "early").ok());
  EXPECT_EQ(AllOf(ps.store.get(), "rows"), early_rows_);
}

TEST_P(RollbackTest, APsThatEndsBringsNothingBack) {
  const Ps ps = StartWithEarly();
  ps.storage->StopRollback();
  EXPECT_EQ(ToCheckpoint(ps, "rows", "early").status().code(), absl::StatusCode::kCancelled);
  ps.storage->Close();
  EXPECT_EQ(ToCheckpoint(ps, "rows", "early").status().code(), absl::StatusCode::kUnavailable);
}

// Recovery up to a version began from the newest checkpoint, though that was beyond it.
TEST_P(RollbackTest, RecoveryUpToAVersionStartsFromACheckpointThatIsNotBeyondIt) {
  const Ps ps = StartWell(config_);
  EnsureTables(ps);
  PushMany(ps, 1, 5);
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  PushMany(ps, 6, 7);
  const std::map<ShardId, uint64_t> at_seven = Content(ps);
  PushMany(ps, 8, 10);
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  PushMany(ps, 11, 12);
  const auto store = RecoverUntil(Killed(), 7);
  ASSERT_TRUE(store.ok()) << store.status();
  std::map<ShardId, uint64_t> content;
  for (const ShardId shard : (*store)->shards().adopted()) {
    EXPECT_EQ((*store)->shards().VersionOf(shard), 7u);
    (*store)->shards().Run(shard,
                           [&](Shard* owned) { content[shard] = ContentChecksum(owned->CollectState(nullptr)); });
  }
  EXPECT_EQ(content, at_seven);
}

}  // namespace
}  // namespace lodestone::server
