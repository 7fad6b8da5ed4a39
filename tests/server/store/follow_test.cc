// What a store makes of updates that another ps, or an earlier life, has made.
#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "server/shard/shard.h"
#include "tests/server/store/busy_executor.h"
#include "tests/server/store/store_fixture.h"
#include "tests/server/wal/log_files.h"

namespace lodestone::server {
namespace {

// Says how well followers of this ps keep up, and takes all that it is given.
class FakeSink final : public ReplicaSink {
 public:
  void Append(std::span<const ShardLog::Record> records, const std::shared_ptr<const void>&) override {
    for (const ShardLog::Record& record : records) {
      if (record.message.has_session_opened()) opened_.push_back(record.message.session_opened());
    }
  }
  void Await(std::span<const Position>, Done done) override { done(absl::OkStatus()); }
  absl::Status health() const override { return health_; }
  void set_health(absl::Status health) { health_ = std::move(health); }
  const std::vector<Incarnation>& opened() const { return opened_; }

 private:
  std::vector<Incarnation> opened_;
  absl::Status health_;
};

class FollowingTest : public ::testing::Test {
 protected:
  static constexpr ShardId kShard = 0;

  FollowingTest() { MakeStore(); }

  void MakeStore(uint32_t executors = 1) {
    Store::Options options;
    options.shards = 2;
    options.executors = executors;
    options.time = &time_;
    store_ = std::make_unique<Store>(options);
  }

  // Owns shard 0, or others too, and has a table with one block on each.
  void Adopt(const std::vector<ShardId>& shards = {kShard}) {
    store_->shards().Adopt(shards);
    ASSERT_TRUE(store_->tables().Ensure(Spec()).ok());
    table_ = TableIdOf("dense");
    while (ShardOfBlock(table_, block_, 2) != kShard) ++block_;
  }
  static v1::TableSpec Spec() { return AddingDense("dense", 4, 2); }

  // A push of `value` to the block, as the log has it.
  v1::LogRecord Record(Version version, uint64_t term, std::optional<uint64_t> previous = std::nullopt) const {
    v1::LogRecord record;
    record.set_shard(kShard);
    record.set_version(version);
    record.set_term(term);
    if (previous.has_value()) record.set_previous_term(*previous);
    record.mutable_push()->set_worker(kWorker);
    record.mutable_push()->set_sequence(++sequence_);
    v1::Part* const part = record.mutable_push()->add_parts();
    part->set_shard(kShard);
    part->set_table(table_);
    part->add_blocks(block_);
    return record;
  }
  Payload Values() const {
    const float values[] = {1, 1};
    return Payload({grpc::Slice(values, sizeof(values))});
  }
  absl::StatusOr<bool> Replay(const v1::LogRecord& record) {
    return store_->replayer().Replay(record, Values().bytes());
  }
  void ExpectApplied(const v1::LogRecord& record) {
    const auto applied = Replay(record);
    ASSERT_TRUE(applied.ok()) << applied.status();
    EXPECT_TRUE(*applied);
    EXPECT_EQ(store_->shards().VersionOf(kShard), record.version());
  }
  void ExpectSkipped(const v1::LogRecord& record) {
    const Version version = store_->shards().VersionOf(kShard);
    const auto applied = Replay(record);
    ASSERT_TRUE(applied.ok()) << applied.status();
    EXPECT_FALSE(*applied);
    EXPECT_EQ(store_->shards().VersionOf(kShard), version);
  }
  void ExpectLoss(const v1::LogRecord& record) {
    const Version version = store_->shards().VersionOf(kShard);
    const auto applied = Replay(record);
    EXPECT_TRUE(absl::IsDataLoss(applied.status())) << applied.status();
    EXPECT_TRUE(absl::StrContains(applied.status().message(), "shard 0")) << applied.status();
    EXPECT_EQ(store_->shards().VersionOf(kShard), version);
  }
  // As a checkpoint of the shard at this version and term.
  void Restore(Version version, uint64_t term) {
    store_->shards().Run(kShard, [&](Shard* shard) {
      ASSERT_TRUE(shard->restore().Finish(version).ok());
      shard->RestoreTerm(term);
    });
  }
  uint64_t term() {
    uint64_t term = 0;
    store_->shards().Run(kShard, [&](Shard* shard) { term = shard->term(); });
    return term;
  }

  ManualTime time_;
  FakeSink sink_;  // Outlives the store's calls.
  std::unique_ptr<Store> store_;
  TableId table_ = 0;
  BlockIndex block_ = 0;
  mutable Sequence sequence_ = 0;
};

TEST_F(FollowingTest, OfOneTermWhatTheShardHasIsSkippedAndTheNextIsApplied) {
  Adopt();
  Restore(5, 2);
  ExpectSkipped(Record(4, 2));
  ExpectSkipped(Record(5, 2));
  ExpectApplied(Record(6, 2));
  ExpectLoss(Record(8, 2));
}

TEST_F(FollowingTest, WhatAFormerOwnerAppliedAndItsFollowerNeverHadIsNotApplied) {
  Adopt();
  Restore(5, 2);
  ExpectSkipped(Record(6, 0));
  ExpectSkipped(Record(7, 1));
  ExpectApplied(Record(6, 2));
}

TEST_F(FollowingTest, ANewTermGoesOnFromTheOneThatItNames) {
  Adopt();
  Restore(5, 2);
  ExpectApplied(Record(6, 7, 2));
  EXPECT_EQ(term(), 7u);
  ExpectApplied(Record(7, 7));
  ExpectSkipped(Record(8, 2));
}

TEST_F(FollowingTest, ANewTermThatGoesOnFromAnotherOneIsALoss) {
  Adopt();
  Restore(5, 2);
  ExpectLoss(Record(6, 7, 4));
  EXPECT_EQ(term(), 2u);
}

TEST_F(FollowingTest, ATermWhoseBeginningIsNotThereIsALossAndSaysWhy) {
  Adopt();
  Restore(5, 2);
  ExpectLoss(Record(6, 7));
  EXPECT_TRUE(absl::StrContains(Replay(Record(6, 7)).status().message(), "taken over from another ps"));
}

TEST_F(FollowingTest, ANewTermThatLeavesVersionsOutIsALoss) {
  Adopt();
  Restore(5, 2);
  ExpectLoss(Record(7, 7, 2));
  EXPECT_EQ(term(), 2u);
  ExpectLoss(Record(5, 7, 2));
}

TEST_F(FollowingTest, RecordsOfShardsThatAreNotHereAreSkipped) {
  Adopt();
  v1::LogRecord other = Record(1, 0);
  other.set_shard(1);
  const auto applied = Replay(other);
  ASSERT_TRUE(applied.ok()) << applied.status();
  EXPECT_FALSE(*applied);
}

// Its state was taken row by row, whatever there was room for.
TEST_F(FollowingTest, AShardOfRowsIsFollowedOnlyWhereThereIsRoomForAsMuchAsOthersHave) {
  for (const uint64_t share : {1, 4}) {  // Of the limit, that the rows of the first shard take.
    Store::Options options;
    options.shards = 2;
    options.time = &time_;
    Store store(options);
    store.shards().Adopt({kShard});
    v1::TableSpec spec = AddingRows("rows", 64);
    constexpr uint64_t kRows = 1000;
    spec.set_memory_max_bytes(share * kRows * 64 * sizeof(float) * 3 / 2);
    ASSERT_TRUE(store.tables().Ensure(spec).ok());
    RequestBuilder<v1::PushRequest> push(2);
    std::vector<std::pair<Key, float>> rows;
    for (Key key = 0; rows.size() < kRows; ++key) {
      if (ShardOfKey(key, 2) == kShard) rows.emplace_back(key, 1.0f);
    }
    push.AddRows(TableIdOf("rows"), 64, rows, true);
    v1::LogRecord record;
    record.set_shard(kShard);
    record.set_version(1);
    record.mutable_push()->set_worker(kWorker);
    record.mutable_push()->set_sequence(1);
    *record.mutable_push()->mutable_parts() = push.header.parts();
    ASSERT_TRUE(store.replayer().Replay(record, push.payload().bytes()).ok());
    const absl::Status followed = store.replayer().Follow(1 - kShard);
    EXPECT_EQ(followed.code(), share == 1 ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kOk) << followed;
    EXPECT_EQ(store.shards().RoleOf(1 - kShard), share == 1 ? ShardRole::kNone : ShardRole::kFollowing);
  }
}

TEST_F(FollowingTest, AFollowerAppliesAlsoWhenItsOwnFollowersAreBehind) {
  // Two ps that follow each other, and both refuse what the other one sends, would be behind for ever.
  store_->log().SetReplicas(&sink_);
  Adopt();
  store_->Serve({});
  ASSERT_TRUE(store_->replayer().Follow(kShard).ok());
  store_->replayer().ClearState(kShard);
  ASSERT_TRUE(store_->replayer().FinishState(kShard, 5, 2).ok());
  sink_.set_health(absl::ResourceExhaustedError("followers are behind"));
  const absl::Status status = store_->replayer().ReplayFollowed(Record(6, 2), Values());
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(store_->shards().VersionOf(kShard), 6u);
}

TEST_F(FollowingTest, ASessionThatAnOwnerTellsOfIsToldToOwnFollowersOnce) {
  // Its worker may push here then. A follower that did not know the session would forget its marks with a restart.
  store_->log().SetReplicas(&sink_);
  Adopt();
  store_->Serve({});
  v1::LogRecord record;
  record.set_session_opened(kWorker);
  ASSERT_TRUE(store_->replayer().ReplayFollowed(record, Payload()).ok());
  const Incarnation known[] = {kWorker, kWorker + 1};
  store_->replayer().AddSessions(known, 0);
  EXPECT_EQ(sink_.opened(), (std::vector<Incarnation>{kWorker, kWorker + 1}));
}

// Regression: a worker of before as many ends as a ps remembers was taken for forgotten by a ps that came later.
TEST_F(FollowingTest, ASessionOfBeforeManyEndsThatAnOwnerTellsOfIsKnown) {
  constexpr int kEnds = 16384;  // As many as the owner remembers.
  Adopt();
  store_->Serve({});
  std::vector<Incarnation> ended(kEnds);
  std::iota(ended.begin(), ended.end(), kWorker + 1);
  const Incarnation heard = ended.back() + 1;  // Of that the owner has not heard yet.
  store_->EndSessions({&heard, 1});
  const Incarnation open[] = {kWorker};
  store_->replayer().AddSessions(open, 0, ended);
  EXPECT_TRUE(store_->sessions().IsOpen(kWorker));
  EXPECT_TRUE(store_->sessions().IsOver(ended.front()));
  EXPECT_TRUE(store_->sessions().IsOver(ended.back()));
}

TEST_F(FollowingTest, AFollowedShardTakesUpdatesOnlyOnceItsStateIsWhole) {
  Adopt();
  store_->Serve({});
  ASSERT_TRUE(store_->replayer().Follow(kShard).ok());
  store_->replayer().ClearState(kShard);
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->replayer().ReplayFollowed(Record(1, 2), Values())));
  ASSERT_TRUE(store_->replayer().FinishState(kShard, 0, 2).ok());
  EXPECT_TRUE(store_->replayer().ReplayFollowed(Record(1, 2), Values()).ok());
  EXPECT_EQ(store_->shards().VersionOf(kShard), 1u);
}

TEST_F(FollowingTest, AStateWithPiecesThatDoNotFitLeavesTheShardUnheldAndTheNextOneIsTaken) {
  Adopt();
  store_->Serve({});
  ASSERT_TRUE(store_->replayer().Follow(kShard).ok());
  store_->replayer().ClearState(kShard);
  v1::CheckpointRecord record;
  record.mutable_block()->set_table(table_ + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(store_->replayer().RestoreRecord(kShard, record, {})));
  record.clear_block();
  EXPECT_TRUE(absl::IsInvalidArgument(store_->replayer().RestoreRecord(kShard, record, {})));
  EXPECT_FALSE(store_->replayer().FinishState(kShard, Version{1} << 63, 2).ok());
  EXPECT_EQ(store_->shards().RoleOf(kShard), ShardRole::kFollowing);
  store_->replayer().ClearState(kShard);
  EXPECT_TRUE(store_->replayer().FinishState(kShard, 3, 2).ok());
  EXPECT_EQ(store_->shards().RoleOf(kShard), ShardRole::kFollows);
  EXPECT_EQ(store_->shards().StateGeneration(kShard), 2u);
}

// Regression: the shard had them and its log did not, where later updates then followed on a hole.
TEST_F(FollowingTest, SettingsThatCannotBeLoggedAreAppliedWhenTheyComeAgain) {
  const std::string dir = LogFolder();
  const auto full = std::make_shared<std::atomic<bool>>(false);  // The disk is.
  ShardLog::Options options;
  options.segments.dir = dir;
  options.segments.header = LogHeader();
  options.segments.calls.writev = [full](int fd, const iovec* pieces, int count) -> ssize_t {
    return *full ? (errno = ENOSPC, -1) : ::writev(fd, pieces, count);
  };
  options.retry_ms = 1;
  auto log = ShardLog::Open(std::move(options));
  ASSERT_TRUE(log.ok()) << log.status();
  std::vector<std::unique_ptr<ShardLog>> logs;
  logs.push_back(*std::move(log));
  Adopt();
  store_->Serve(std::move(logs));
  ASSERT_TRUE(store_->replayer().Follow(kShard).ok());
  store_->replayer().ClearState(kShard);
  ASSERT_TRUE(store_->replayer().FinishState(kShard, 0, 0).ok());
  v1::LogRecord settings;
  settings.set_shard(kShard);
  settings.set_version(1);
  *settings.mutable_settings() = *store_->tables().SpecOf("dense");
  settings.mutable_settings()->mutable_optimizer()->set_learning_rate(-0.5f);
  settings.mutable_settings()->set_revision(1);
  *full = true;
  EXPECT_TRUE(absl::IsUnavailable(store_->replayer().ReplayFollowed(settings, Payload())));
  EXPECT_EQ(store_->shards().VersionOf(kShard), 0u);
  *full = false;
  while (!store_->log().log_health().ok()) std::this_thread::yield();
  EXPECT_TRUE(store_->replayer().ReplayFollowed(settings, Payload()).ok());
  EXPECT_TRUE(store_->replayer().ReplayFollowed(Record(2, 0), Values()).ok());

  store_.reset();
  MakeStore();
  Adopt();
  const auto found = ListLogs(dir);
  ASSERT_TRUE(found.ok() && found->size() == 1) << found.status();
  const auto reader = LogReader::Open({.dir = dir, .expected = LogHeader()}, found->front());
  ASSERT_TRUE(reader.ok()) << reader.status();
  v1::LogRecord record;
  ByteView payload;
  for (;;) {
    const auto next = (*reader)->Next(&record, &payload);
    ASSERT_TRUE(next.ok()) << next.status();
    if (!*next) break;
    const auto applied = store_->replayer().Replay(record, payload);
    ASSERT_TRUE(applied.ok()) << applied.status();
  }
  EXPECT_EQ(store_->shards().VersionOf(kShard), 2u);
}

// A ps that was started again owns nothing and may know no worker: those whose shard map is old are to look for the
// owner.
TEST_F(FollowingTest, APushForAShardOfAnotherPsIsAbortedThoughTheWorkerIsNotKnown) {
  Adopt();
  store_->Serve({});
  const auto push = [this](ShardId shard) {
    v1::PushRequest header;
    header.set_worker_incarnation(4711);
    header.set_sequence(1);
    header.add_parts()->set_shard(shard);
    absl::Status status;
    store_->pushes().Push(std::move(header), Payload(),
                          [&status](const auto& response) { status = response.status(); });
    return status;
  };
  EXPECT_TRUE(absl::IsAborted(push(1)));
  EXPECT_TRUE(absl::IsFailedPrecondition(push(kShard)));
}

// The values are here still, and may be behind those of the new owner.
TEST_F(FollowingTest, APullOfAShardThatWasGivenAwayIsAborted) {
  Adopt();
  ASSERT_TRUE(store_->tables().Ensure(AddingRows("rows", 2)).ok());
  store_->Serve({});
  Key key = 0;
  while (ShardOfKey(key, 2) != kShard) ++key;
  const auto pull = [this, key](bool rows) {
    v1::PullRequest header;
    v1::Part* const part = header.add_parts();
    part->set_shard(kShard);
    part->set_table(rows ? TableIdOf("rows") : table_);
    if (!rows) part->add_blocks(block_);
    if (rows) part->set_row_count(1);
    std::promise<absl::Status> status;
    store_->pulls().Pull(std::move(header), rows ? Payload({grpc::Slice(&key, sizeof(key))}) : Payload(),
                         [&status](const auto& values) { status.set_value(values.status()); });
    return status.get_future().get();
  };
  for (const bool rows : {false, true}) EXPECT_TRUE(pull(rows).ok()) << pull(rows);
  store_->shards().Disown(kShard);
  for (const bool rows : {false, true}) EXPECT_TRUE(absl::IsAborted(pull(rows))) << pull(rows);
}

// Regression: blocks were read of a state that came piece by piece, and answered once all of it was there.
TEST_F(FollowingTest, APullWhoseBlocksWereReadWhileTheirShardWasNotOwnedIsAbortedThoughItIsOwnedAgain) {
  constexpr ShardId kOther = 1 - kShard;
  MakeStore(/*executors=*/2);
  Adopt({kShard, kOther});
  ASSERT_TRUE(store_->tables().Ensure(AddingRows("rows", 2)).ok());
  store_->Serve({});
  v1::PullRequest header;
  header.add_parts()->set_shard(kShard);
  header.mutable_parts(0)->set_table(table_);
  header.mutable_parts(0)->add_blocks(block_);
  Key key = 0;
  while (ShardOfKey(key, 2) != kOther) ++key;
  header.add_parts()->set_shard(kOther);
  header.mutable_parts(1)->set_table(TableIdOf("rows"));
  header.mutable_parts(1)->set_row_count(1);
  const auto call = store_->pulls().Check(std::move(header), Payload({grpc::Slice(&key, sizeof(key))}));
  ASSERT_TRUE(call.ok()) << call.status();
  // As while it waits for room.
  ASSERT_TRUE(store_->replayer().Follow(kShard).ok());
  store_->replayer().ClearState(kShard);
  BusyExecutor busy(&store_->shards().executors()[store_->shards().ExecutorOf(kOther)]);
  const auto answered = std::make_shared<std::promise<absl::Status>>();
  store_->pulls().Read(*call, [answered](const auto& values) { answered->set_value(values.status()); });
  EXPECT_TRUE(store_->replayer().FinishState(kShard, 5, 2).ok());
  store_->shards().Own(kShard, 3);
  busy.Release();
  const absl::Status status = answered->get_future().get();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
}

TEST_F(FollowingTest, AStateThatEndedHalfWayIsForgottenWhenTheNextOneBegins) {
  Adopt();
  ASSERT_TRUE(store_->tables().Ensure(AddingRows("rows", 2)).ok());
  store_->Serve({});
  ASSERT_TRUE(store_->replayer().Follow(kShard).ok());
  store_->replayer().ClearState(kShard);
  v1::CheckpointRecord record;
  record.mutable_rows()->set_table(TableIdOf("rows"));
  EXPECT_FALSE(store_->replayer().RestoreRecord(kShard, record, {}).ok());
  store_->replayer().ClearState(kShard);
  EXPECT_TRUE(store_->replayer().FinishState(kShard, 7, 3).ok());
  EXPECT_EQ(store_->shards().VersionOf(kShard), 7);
}

class StepsFollowingTest : public FollowingTest {
 protected:
  // As Adopt, with steps of two batches.
  void AdoptWithSteps() {
    v1::TableSpec spec = Spec();
    spec.mutable_consistency()->mutable_sync()->set_batches(2);
    store_->shards().Adopt({kShard});
    ASSERT_TRUE(store_->tables().Ensure(spec).ok());
    table_ = TableIdOf("dense");
    while (ShardOfBlock(table_, block_, 2) != kShard) ++block_;
  }
  v1::LogRecord Contribution(Version version, uint64_t step, uint32_t batch) const {
    v1::LogRecord record = Record(version, 0);
    record.mutable_push()->mutable_contribution()->set_step(step);
    record.mutable_push()->mutable_contribution()->set_batch(batch);
    record.mutable_push()->mutable_contribution()->set_samples(1);
    return record;
  }
  v1::LogRecord Closed(Version version, TableId table, uint64_t step) const {
    v1::LogRecord record;
    record.set_shard(kShard);
    record.set_version(version);
    record.mutable_closed()->set_table(table);
    record.mutable_closed()->set_step(step);
    return record;
  }
};

TEST_F(StepsFollowingTest, AStepIsAppliedWhereTheLogSaysSo) {
  AdoptWithSteps();
  ExpectApplied(Contribution(1, 0, 1));
  ExpectApplied(Contribution(2, 0, 0));
  ExpectApplied(Closed(3, table_, 0));
  ExpectSkipped(Closed(3, table_, 0));
  store_->shards().Run(kShard, [&](Shard* shard) { EXPECT_EQ(shard->steps().Of(table_)->steps(), 1u); });
}

// The record of an owner whose table has ceased to have steps.
TEST_F(StepsFollowingTest, AStepThatLacksABatchIsAppliedWhereItsOwnerHasAsStepsEnded) {
  AdoptWithSteps();
  ExpectApplied(Contribution(1, 0, 1));
  v1::LogRecord closed = Closed(2, table_, 0);
  closed.mutable_closed()->set_ends_steps(true);
  ExpectApplied(closed);
  store_->shards().Run(kShard, [&](Shard* shard) {
    EXPECT_EQ(shard->steps().Of(table_)->steps(), 1u);
    EXPECT_TRUE(shard->steps().Of(table_)->pending().empty());
  });
}

TEST_F(StepsFollowingTest, ARecordThatDoesNotFitTheStepsOfItsShardIsALoss) {
  AdoptWithSteps();
  ExpectLoss(Closed(1, table_, 0));  // Nothing waits.
  ExpectApplied(Contribution(1, 0, 1));
  ExpectLoss(Closed(2, table_ + 1, 0));     // There is no such table.
  ExpectLoss(Contribution(2, 0, 1));        // It is here.
  EXPECT_FALSE(Replay(Record(2, 0)).ok());  // Of a table without steps.
  ExpectLoss(Closed(2, table_, 0));         // It lacks a batch.
  ExpectApplied(Contribution(2, 0, 0));
  ExpectLoss(Closed(3, table_, 1));
  v1::LogRecord evicts = Closed(3, table_, 0);
  evicts.mutable_closed()->add_evicted()->set_table(table_);
  EXPECT_TRUE(absl::IsDataLoss(Replay(evicts).status()));
}

}  // namespace
}  // namespace lodestone::server
