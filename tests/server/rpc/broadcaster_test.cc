#include "server/rpc/broadcaster.h"

#include <latch>
#include <set>
#include <thread>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "server/rpc/subscriber.h"
#include "tests/server/rpc/broadcast_reader.h"
#include "tests/server/rpc/exchange_tables.h"
#include "tests/server/store/store_fixture.h"

namespace lodestone::server {
namespace {

// A store with the dense tables "a" and "b" (whose pushes never come due by themselves) and the embedding table "e",
// served by a Broadcaster.
class BroadcastTest : public StoreTest {
 protected:
  void Start(uint32_t subscribers_max = 16, uint64_t elements = 64, uint32_t block_elements = 4,
             v1::Broadcast broadcast = Never()) {
    Make(options_);
    layout_ = {elements, block_elements};
    std::vector<v1::TableSpec> specs = {AddingDense("a", elements, block_elements),
                                        AddingDense("b", elements, block_elements), AddingRows("e", dim_)};
    for (v1::TableSpec& spec : specs) *spec.mutable_broadcast() = broadcast;
    const auto tables = Ensure(specs);
    ASSERT_TRUE(tables.ok()) << tables.status();
    a_ = tables->tables(0).id();
    b_ = tables->tables(1).id();
    e_ = tables->tables(2).id();
    broadcaster_ = std::make_unique<Broadcaster>(store_.get(), subscribers_max);
  }

  static v1::Broadcast Never() {
    v1::Broadcast broadcast;
    broadcast.set_every_ms(0);
    return broadcast;
  }

  // Kept until the test is torn down.
  Reader* NewReader(Reader::Answer answer = Reader::Answer::kAtOnce) {
    readers_.push_back(std::make_unique<Reader>(
        std::map<TableId, Reader::Table>{{a_, {.layout = layout_}}, {b_, {.layout = layout_}}, {e_, {.dim = dim_}}},
        answer));
    return readers_.back().get();
  }

  // Subscribes to dense tables and to the rows of the embedding table; starts the stream.
  absl::Status Subscribe(Reader* reader, const std::vector<TableId>& tables, bool start = true,
                         const std::map<ShardId, DeltaPath::Held>& held = {}) {
    v1::SubscribeRequest request;
    for (const auto& [shard, holds] : held) {
      auto* entry = request.add_held();
      entry->set_shard(shard);
      entry->set_term(holds.term);
      entry->set_version(holds.version);
    }
    request.set_worker_incarnation(kWorker);
    for (const TableId table : tables) {
      auto* entry = request.add_tables();
      entry->set_table(table);
      entry->set_rows(table == e_);
    }
    auto subscriber = broadcaster_->Add(request, "test:1", reader);
    if (!subscriber.ok()) return subscriber.status();
    reader->Connect(*std::move(subscriber));
    if (start) reader->subscriber().Start();
    return absl::OkStatus();
  }

  void PushDense(TableId table, float value, Incarnation worker = kWorker, Sequence sequence = 0) {
    auto push = NewPush(sequence == 0 ? ++sequence_ : sequence, worker);
    push.AddDense(table, layout_, value);
    const auto pushed = Push(push);
    ASSERT_TRUE(pushed.ok()) << pushed.status();
  }
  void PushBlock(TableId table, BlockIndex block, float value) {
    auto push = NewPush(++sequence_);
    v1::Part* part = push.header.add_parts();
    part->set_shard(ShardOfBlock(table, block, kShards));
    part->set_table(table);
    part->add_blocks(block);
    push.AppendRepeated(value, layout_.ElementsOf(block));
    const auto pushed = Push(push);
    ASSERT_TRUE(pushed.ok()) << pushed.status();
  }
  void PushRows(const std::vector<std::pair<Key, float>>& rows) {
    auto push = NewPush(++sequence_);
    push.AddRows(e_, dim_, rows, true);
    const auto pushed = Push(push);
    ASSERT_TRUE(pushed.ok()) << pushed.status();
  }

  std::map<ShardId, Version> StoreVersions() const {
    std::map<ShardId, Version> versions;
    for (const ShardId shard : store_->shards().owned()) versions[shard] = store_->shards().VersionOf(shard);
    return versions;
  }
  // A new reader that says it holds `held` of every shard; how its stream begins, by shard.
  std::map<ShardId, v1::Delta::ShardDelta> BeginWith(DeltaPath::Held held) {
    std::map<ShardId, DeltaPath::Held> all;
    std::map<ShardId, Version> versions;
    for (const ShardId shard : store_->shards().owned()) {
      all[shard] = held;
      versions[shard] = held.version;
    }
    Reader* const reader = NewReader();
    reader->Has(versions);
    EXPECT_TRUE(Subscribe(reader, {a_, b_}, true, all).ok());
    std::map<ShardId, v1::Delta::ShardDelta> first;
    for (size_t messages = 1; first.size() < kShards; ++messages) {
      reader->AwaitDeltas(messages);
      const v1::Delta delta = reader->deltas()[messages - 1].delta;
      for (const auto& shard : delta.shards()) first.try_emplace(shard.shard(), shard);
    }
    return first;
  }
  void ServeAndCatchUp(Reader* reader) {
    reader->subscriber().Serve();
    reader->AwaitVersions(StoreVersions());
  }
  void ExpectHoldsAll(const Reader& reader) {
    EXPECT_EQ(reader.versions(), StoreVersions());
    EXPECT_EQ(reader.blocks(a_), PullBlocks(a_, layout_));
    EXPECT_EQ(reader.blocks(b_), PullBlocks(b_, layout_));
  }

  // Messages that the executors have run.
  uint64_t Executed() const {
    v1::StatusResponse status;
    store_->FillStatus(&status);
    uint64_t executed = 0;
    for (const auto& executor : status.executors()) executed += executor.executed();
    return executed;
  }
  // A reader of the table that is answered by hand.
  Reader* Subscribed(TableId table, const std::map<ShardId, DeltaPath::Held>& held = {}) {
    Reader* const reader = NewReader(Reader::Answer::kByHand);
    EXPECT_TRUE(Subscribe(reader, {table}, true, held).ok());
    return reader;
  }
  // Where large changes wait for memory.
  const MemoryLine& line() { return store_->deltas().memory()->large(); }
  void AwaitWaiting(size_t waiting) {
    while (line().waiting() != waiting) std::this_thread::yield();
  }
  uint64_t PinnedBytes() const {
    v1::StatusResponse status;
    broadcaster_->FillStatus(&status);
    return status.server().broadcast_pinned_bytes();
  }

  Store::Options options_;
  uint32_t dim_ = kDim;  // Of "e".
  BlockLayout layout_;
  TableId a_ = 0;
  TableId b_ = 0;
  TableId e_ = 0;
  Sequence sequence_ = 0;
  std::unique_ptr<Broadcaster> broadcaster_;

  std::vector<std::unique_ptr<Reader>> readers_;

  // All streams end before the store does, as the gRPC server sees to.
  void TearDown() override {
    broadcaster_.reset();
    for (const auto& reader : readers_) reader->Leave();
  }
};

TEST_F(BroadcastTest, SendsAnAnchorOfEveryOwnedShardFirst) {
  Start();
  PushDense(a_, 2.5f);
  PushRows({{1, 1.0f}, {2, 2.0f}, {300, 3.0f}});
  Reader* const reader = NewReader();
  ASSERT_TRUE(Subscribe(reader, {a_, b_, e_}).ok());
  reader->AwaitVersions(StoreVersions());
  ExpectHoldsAll(*reader);
  EXPECT_EQ(reader->versions().size(), kShards);
  EXPECT_EQ(reader->rows(e_).size(), 3);
  for (const auto& message : reader->deltas()) {
    for (const auto& delta : message.delta.shards()) {
      EXPECT_TRUE(delta.anchor());
      EXPECT_TRUE(delta.complete());
      EXPECT_EQ(delta.from_version(), 0);
    }
  }
}

TEST_F(BroadcastTest, SendsAfterTheAnchorOnlyShardsThatChanged) {
  Start();
  Reader* const reader = NewReader();
  ASSERT_TRUE(Subscribe(reader, {a_}).ok());
  reader->AwaitVersions(StoreVersions());
  ASSERT_EQ(reader->deltas().size(), 1);
  reader->subscriber().Serve();  // Nothing changed: no message.
  PushBlock(a_, 5, 1.0f);
  ServeAndCatchUp(reader);
  const auto deltas = reader->deltas();
  ASSERT_EQ(deltas.size(), 2);
  ASSERT_EQ(deltas[1].delta.shards_size(), 1);
  const auto& change = deltas[1].delta.shards(0);
  EXPECT_EQ(change.shard(), ShardOfBlock(a_, 5, kShards));
  EXPECT_EQ(change.from_version(), 0);
  EXPECT_EQ(change.version(), 1);
  EXPECT_FALSE(change.anchor());
  EXPECT_TRUE(change.complete());
  ASSERT_EQ(change.parts_size(), 1);
  ASSERT_EQ(change.parts(0).blocks_size(), 1);
  EXPECT_EQ(change.parts(0).blocks(0), 5);
  EXPECT_EQ(deltas[1].payload_bytes, 4 * sizeof(float));
}

TEST_F(BroadcastTest, TellsTheVersionOfAShardWhoseSubscribedTablesDidNotChange) {
  Start();
  Reader* const reader = NewReader();
  ASSERT_TRUE(Subscribe(reader, {a_}).ok());
  reader->AwaitVersions(StoreVersions());
  PushDense(b_, 1.0f);
  ServeAndCatchUp(reader);
  const auto deltas = reader->deltas();
  ASSERT_EQ(deltas.size(), 2);
  EXPECT_EQ(deltas[1].delta.shards_size(), kShards);
  EXPECT_EQ(deltas[1].payload_bytes, 0);
  for (const auto& change : deltas[1].delta.shards()) {
    EXPECT_EQ(change.parts_size(), 0);
    EXPECT_TRUE(change.complete());
  }
  EXPECT_TRUE(reader->blocks(b_).empty());
}

TEST_F(BroadcastTest, ServesATableEveryFewPushes) {
  v1::Broadcast every_third = Never();
  every_third.set_every_pushes(3);
  Start(16, 64, 4, every_third);
  Reader* const reader = NewReader();
  Reader* const other = NewReader();
  ASSERT_TRUE(Subscribe(reader, {a_, e_}).ok());
  ASSERT_TRUE(Subscribe(other, {b_}).ok());
  const std::map<ShardId, Version> anchor = StoreVersions();
  reader->AwaitVersions(anchor);
  other->AwaitVersions(anchor);
  for (int push = 0; push < 2; ++push) PushDense(a_, 1.0f);
  EXPECT_EQ(reader->deltas().size(), 1);
  PushDense(a_, 1.0f);
  reader->AwaitVersions(StoreVersions());
  EXPECT_EQ(reader->blocks(a_), PullBlocks(a_, layout_));
  EXPECT_EQ(other->deltas().size(), 1) << "table b was not due";
}

TEST_F(BroadcastTest, SendsOnAThreadOfItsOwnAndNotOnThePushers) {
  v1::Broadcast every_push = Never();
  every_push.set_every_pushes(1);
  Start(16, 64, 4, every_push);
  Reader* const reader = NewReader();
  ASSERT_TRUE(Subscribe(reader, {a_}).ok());
  reader->AwaitVersions(StoreVersions());
  for (int push = 0; push < 20; ++push) {
    PushDense(a_, 1.0f);
    reader->AwaitVersions(StoreVersions());
  }
  EXPECT_FALSE(reader->writers().contains(std::this_thread::get_id()));
  EXPECT_EQ(reader->writers().size(), 1);
}

TEST_F(BroadcastTest, APushOfSeveralTablesThatAreDueIsOneBroadcast) {
  v1::Broadcast every_second = Never();
  every_second.set_every_pushes(2);
  Start(16, 64, 4, every_second);
  Reader* const reader = NewReader(Reader::Answer::kByHand);
  ASSERT_TRUE(Subscribe(reader, {a_, b_}).ok());
  reader->AwaitDeltas(1);
  reader->AnswerByHand(true);
  const auto push_both = [this] {
    auto push = NewPush(++sequence_);
    push.AddDense(a_, layout_, 1.0f);
    push.AddDense(b_, layout_, 1.0f);
    ASSERT_TRUE(Push(push).ok());
  };
  push_both();
  push_both();  // Due.
  reader->AwaitDeltas(2);
  push_both();  // Not due: the broadcast under way is not followed by another.
  reader->AnswerByHand(true);
  push_both();  // Due again.
  reader->AwaitDeltas(3);
  reader->AnswerByHand(true);
  EXPECT_EQ(reader->versions(), StoreVersions()) << "the third message holds both pushes since the second";
  v1::SubscriberStatus status;
  reader->subscriber().FillStatus(&status);
  EXPECT_EQ(status.skipped(), 0);
}

TEST_F(BroadcastTest, ServesByTheClock) {
  v1::Broadcast every_millisecond;
  every_millisecond.set_every_ms(1);
  Start(16, 64, 4, every_millisecond);
  Reader* const reader = NewReader();
  ASSERT_TRUE(Subscribe(reader, {a_, b_}).ok());
  for (int push = 0; push < 3; ++push) {
    PushDense(a_, 1.0f);
    reader->AwaitVersions(StoreVersions());
    ExpectHoldsAll(*reader);
  }
}

// Regression: readers that were there already kept the period of when they came.
TEST_F(BroadcastTest, ServesReadersThatAreThereByThePeriodThatIsSetLater) {
  Start();
  Reader* const reader = NewReader();
  ASSERT_TRUE(Subscribe(reader, {a_, b_}).ok());
  reader->AwaitVersions(StoreVersions());
  v1::SetTableRequest request;
  request.set_table("a");
  request.add_fields("broadcast.every_ms");
  for (const uint32_t every_ms : {3'600'000, 1}) {
    request.mutable_settings()->mutable_broadcast()->set_every_ms(every_ms);
    ASSERT_TRUE(store_->tables().Set(request).ok());
    broadcaster_->Tick();
  }
  for (int push = 0; push < 3; ++push) {
    PushDense(a_, 1.0f);
    reader->AwaitVersions(StoreVersions());
    ExpectHoldsAll(*reader);
  }
  request.mutable_settings()->mutable_broadcast()->set_every_ms(0);
  ASSERT_TRUE(store_->tables().Set(request).ok());
  broadcaster_->Tick();
  ServeAndCatchUp(reader);
}

TEST_F(BroadcastTest, GivesBitForBitWhatAPullGives) {
  Start();
  Reader* const reader = NewReader();
  ASSERT_TRUE(Subscribe(reader, {a_, b_, e_}).ok());
  for (int round = 0; round < 20; ++round) {
    PushBlock(a_, round % layout_.block_count(), 0.1f * round);
    if (round % 3 == 0) PushDense(b_, 0.7f * round);
    PushRows({{round, 0.3f}, {round % 5, -0.01f}});
    ServeAndCatchUp(reader);
    ExpectHoldsAll(*reader);
  }
  const auto rows = reader->rows(e_);
  EXPECT_EQ(rows.size(), 20);
  for (const auto& [key, bytes] : rows) EXPECT_EQ(Floats(bytes)[0], PullRows(e_, kDim, {key})[0]) << key;
}

TEST_F(BroadcastTest, SendsNothingOfAnEmbeddingTableWhoseRowsWereNotAskedFor) {
  Start();
  v1::SubscribeRequest request;
  request.add_tables()->set_table(e_);
  Reader* const reader = NewReader();
  auto subscriber = broadcaster_->Add(request, "test:1", reader);
  ASSERT_TRUE(subscriber.ok()) << subscriber.status();
  reader->Connect(*subscriber);
  (*subscriber)->Start();
  PushRows({{1, 1.0f}});
  reader->subscriber().Serve();
  reader->Leave();
  EXPECT_TRUE(reader->deltas().empty());
}

TEST_F(BroadcastTest, LetsASlowReaderSkipToTheNewest) {
  Start();
  Reader* const reader = NewReader(Reader::Answer::kByHand);
  ASSERT_TRUE(Subscribe(reader, {a_}).ok());
  reader->AwaitDeltas(1);  // The anchor, which is not answered for now.
  for (int push = 0; push < 5; ++push) {
    PushDense(a_, 1.0f);
    reader->subscriber().Serve();
  }
  EXPECT_EQ(reader->deltas().size(), 1);
  reader->AnswerByHand(true);
  reader->AwaitDeltas(2);
  EXPECT_EQ(reader->versions(), StoreVersions());
  EXPECT_EQ(reader->blocks(a_), PullBlocks(a_, layout_));
  const auto deltas = reader->deltas();
  for (const auto& change : deltas[1].delta.shards()) EXPECT_EQ(change.from_version(), 0);
  v1::SubscriberStatus status;
  reader->subscriber().FillStatus(&status);
  EXPECT_EQ(status.skipped(), 4);
  EXPECT_EQ(status.deltas(), 2);
  reader->AnswerByHand(true);
  EXPECT_EQ(reader->deltas().size(), 2);
}

// Rounds once visited every shard whose version had moved, and pushes of rows move all.
TEST_F(BroadcastTest, VisitsOnlyShardsThatHoldSomethingOfTheSubscription) {
  Start(16, /*elements=*/8, /*block_elements=*/4);
  std::set<ShardId> holding;
  for (BlockIndex b = 0; b < layout_.block_count(); ++b) holding.insert(ShardOfBlock(a_, b, kShards));
  ASSERT_LT(holding.size(), kShards);
  const auto versions = [&] {
    std::map<ShardId, Version> held = StoreVersions();
    std::erase_if(held, [&](const auto& entry) { return !holding.contains(entry.first); });
    return held;
  };
  Reader* const reader = NewReader();
  ASSERT_TRUE(Subscribe(reader, {a_}).ok());
  reader->AwaitVersions(versions());
  std::vector<std::pair<Key, float>> rows;
  for (Key key = 0; key < 100; ++key) rows.emplace_back(key, 1.0f);
  PushRows(rows);
  for (const auto& [shard, version] : StoreVersions()) ASSERT_EQ(version, 1u) << shard;
  const uint64_t before = Executed();
  reader->subscriber().Serve();
  reader->AwaitVersions(versions());
  EXPECT_LE(Executed() - before, holding.size());
  for (const auto& message : reader->deltas()) {
    for (const auto& delta : message.delta.shards()) EXPECT_TRUE(holding.contains(delta.shard())) << delta.shard();
  }
}

TEST_F(BroadcastTest, SubscribersThatAreDueTogetherAreSentWhatOneOfThemHadCollected) {
  v1::Broadcast every_push = Never();
  every_push.set_every_pushes(1);
  Start(16, 64, 4, every_push);
  std::vector<Reader*> readers;
  for (int r = 0; r < 10; ++r) {
    readers.push_back(NewReader(Reader::Answer::kByHand));
    ASSERT_TRUE(Subscribe(readers.back(), {a_}).ok());
    readers.back()->AwaitDeltas(1);
    readers.back()->AnswerByHand(true);
  }
  while (PinnedBytes() > 0) std::this_thread::yield();
  const uint64_t before = Executed();
  PushDense(a_, 1.0f);
  for (Reader* const reader : readers) reader->AwaitDeltas(2);
  EXPECT_LE(Executed() - before, store_->shards().executors().size() + kShards) << "the push, and each shard once";
  EXPECT_EQ(PinnedBytes(), layout_.elements * sizeof(float));
  for (Reader* const reader : readers) {
    EXPECT_EQ(reader->blocks(a_), PullBlocks(a_, layout_));
    reader->AnswerByHand(true);
  }
  while (PinnedBytes() > 0) std::this_thread::yield();
}

// Of the memory, broadcasts have room for a part of one shard of a large table.
class BroadcastMemoryTest : public BroadcastTest {
 protected:
  static constexpr uint32_t kLargeBlock = 512 << 10;  // Elements; a shard has one.
  static constexpr uint64_t kShardBytes = kLargeBlock * sizeof(float);
  static_assert(kShardBytes > limits::kSmallChangesBytes && kShardBytes < limits::kDeltaBytesTarget);

  void SetUp() override {
    options_.memory_max_bytes = 2 * kShards * kShardBytes + (4 << 20);
    Start(16, uint64_t{kShards} * kLargeBlock, kLargeBlock);
    ASSERT_LT(line().bytes_max(), kShardBytes);
  }
};

TEST_F(BroadcastMemoryTest, BroadcastsHaveAThirtySecondOfTheMemoryOrAQuarterOfWhatTheTablesLeave) {
  const uint64_t tables = store_->tables().totals().second;
  EXPECT_EQ(line().bytes_max(), options_.memory_max_bytes / 32);
  options_.memory_max_bytes = 2 * tables;
  broadcaster_.reset();
  Start(16, uint64_t{kShards} * kLargeBlock, kLargeBlock);
  EXPECT_EQ(line().bytes_max(), tables / 4);
}

TEST_F(BroadcastMemoryTest, ReadersOfLargeChangesHaveTheMemoryInTurn) {
  Reader* const first = Subscribed(a_);
  first->AwaitDeltas(1);
  EXPECT_EQ(line().bytes(), kShardBytes);
  Reader* const second = Subscribed(b_);
  AwaitWaiting(1);
  v1::StatusResponse status;
  line().FillStatus("ps 7", "broadcasts", &status);
  ASSERT_EQ(status.waits_size(), 1);
  EXPECT_THAT(status.waits(0).what(), ::testing::StartsWith("room for broadcasts: 1 wait while those under way take"));
  for (uint32_t shard = 1; shard <= kShards; ++shard) {
    first->AwaitDeltas(shard);
    EXPECT_EQ(second->deltas().size(), shard - 1);
    EXPECT_EQ(line().bytes(), kShardBytes);
    first->AnswerByHand(true);
    second->AwaitDeltas(shard);
    EXPECT_EQ(line().bytes(), kShardBytes);
    if (shard < kShards) AwaitWaiting(1);
    second->AnswerByHand(true);
  }
  first->AwaitVersions(StoreVersions());
  second->AwaitVersions(StoreVersions());
  EXPECT_EQ(first->blocks(a_), PullBlocks(a_, layout_));
  EXPECT_EQ(second->blocks(b_), PullBlocks(b_, layout_));
  while (line().bytes() > 0) std::this_thread::yield();
}

TEST_F(BroadcastMemoryTest, WhatIsSmallGoesOnThoughOthersAreNotRead) {
  Subscribed(a_)->AwaitDeltas(1);
  Subscribed(b_);
  AwaitWaiting(1);
  Reader* const small = NewReader();
  ASSERT_TRUE(Subscribe(small, {e_}).ok());
  for (Key key = 1; key <= 50; ++key) {
    PushRows({{key, 1.0f}});
    small->subscriber().Serve();
    small->AwaitVersions(StoreVersions());
  }
  EXPECT_EQ(small->rows(e_).size(), 50u);
  EXPECT_EQ(line().waiting(), 1u);
}

TEST_F(BroadcastMemoryTest, ASnapshotThatOthersKeepNeedsNoRoom) {
  std::vector<Reader*> readers;
  for (int r = 0; r < 8; ++r) {
    readers.push_back(Subscribed(a_));
    readers.back()->AwaitDeltas(1);
  }
  EXPECT_EQ(line().bytes(), kShardBytes);
  EXPECT_EQ(line().waiting(), 0u);
}

TEST_F(BroadcastMemoryTest, AllThatWaitForASnapshotHaveOnePlaceAndAreSentItTogether) {
  Reader* const first = Subscribed(a_);
  first->AwaitDeltas(1);
  std::vector<Reader*> others;
  for (int r = 0; r < 6; ++r) others.push_back(Subscribed(b_));
  AwaitWaiting(1);
  for (uint32_t shard = 1; shard <= kShards; ++shard) {
    first->AnswerByHand(true);
    for (Reader* const other : others) other->AwaitDeltas(shard);
    EXPECT_EQ(line().bytes(), kShardBytes);
    if (shard < kShards) AwaitWaiting(1);
    for (Reader* const other : others) other->AnswerByHand(true);
    if (shard < kShards) first->AwaitDeltas(shard + 1);
    if (shard + 1 < kShards) AwaitWaiting(1);
  }
  for (Reader* const other : others) {
    other->AwaitVersions(StoreVersions());
    EXPECT_EQ(other->blocks(b_), PullBlocks(b_, layout_));
  }
}

// Regression: what is large waited until nothing at all was kept, and small changes that overlap kept something always.
TEST_F(BroadcastMemoryTest, WhatIsLargeGoesOnThoughSmallChangesAreKept) {
  PushRows({{1, 1.0f}, {2, 1.0f}});
  Subscribed(e_)->AwaitDeltas(1);
  EXPECT_GT(PinnedBytes(), 0u);
  EXPECT_EQ(line().bytes(), 0u);
  Subscribed(a_)->AwaitDeltas(1);
  EXPECT_EQ(line().bytes(), kShardBytes);
}

TEST_F(BroadcastMemoryTest, AReaderThatLeavesWhileItWaitsGivesItsTurnToTheNext) {
  Reader* const first = Subscribed(a_);
  first->AwaitDeltas(1);
  Reader* const second = Subscribed(b_);
  AwaitWaiting(1);
  Reader* const third = Subscribed(b_);  // Has the same place.
  second->Leave();
  first->Leave();
  third->AwaitDeltas(1);
  EXPECT_TRUE(second->deltas().empty());
}

TEST_F(BroadcastMemoryTest, OnlyWhileOthersWaitForLongIsItAskedWhoDoesNotRead) {
  Reader* const first = Subscribed(a_);
  first->AwaitDeltas(1);
  time_.AdvanceMs(100 * limits::kUnreadMs);
  broadcaster_->Tick();
  Reader* const second = Subscribed(b_);
  AwaitWaiting(1);
  time_.AdvanceMs(limits::kUnreadMs - 1);
  broadcaster_->Tick();
  EXPECT_EQ(first->unread_asked(), 0);
  time_.AdvanceMs(1);
  broadcaster_->Tick();
  EXPECT_EQ(first->unread_asked(), 1);
  EXPECT_EQ(second->unread_asked(), 0) << "it writes nothing";
  first->AnswerByHand(false);
  EXPECT_FALSE(first->AwaitEnd().ok());
  second->AwaitDeltas(1);
}

// An embedding table that fills the memory, with 2 MiB on each shard.
class BroadcastRowMemoryTest : public BroadcastTest {
 protected:
  void SetUp() override {
    constexpr Key kRows = 16'000;
    dim_ = 256;
    options_.memory_max_bytes = 21 << 20;
    Start();
    for (Key first = 0; first < kRows; first += 1000) {
      std::vector<std::pair<Key, float>> rows;
      for (Key key = first; key < first + 1000; ++key) rows.emplace_back(1 + key, 1.0f);
      PushRows(rows);
    }
    ASSERT_LT(line().bytes_max(), 3u << 19);
  }
};

TEST_F(BroadcastRowMemoryTest, AnchorsOfRowsHaveTheMemoryInTurn) {
  Reader* const first = Subscribed(e_);
  first->AwaitDeltas(1);
  EXPECT_GT(line().bytes(), 3u << 19);
  Reader* const second = Subscribed(e_);
  AwaitWaiting(1);
  EXPECT_TRUE(second->deltas().empty());
  first->AnswerByHand(true);
  second->AwaitDeltas(1);
  EXPECT_EQ(first->deltas().size(), 1u);
}

TEST_F(BroadcastRowMemoryTest, AReaderThatLeavesWhileItWaitsGivesItsTurnToTheNext) {
  Reader* const first = Subscribed(e_);
  first->AwaitDeltas(1);
  Reader* const second = Subscribed(e_);
  AwaitWaiting(1);
  Reader* const third = Subscribed(e_);
  AwaitWaiting(2);
  second->Leave();
  first->AnswerByHand(true);
  third->AwaitDeltas(1);
  EXPECT_TRUE(second->deltas().empty());
}

// Regression: it was taken for one that needs little.
TEST_F(BroadcastRowMemoryTest, AReaderThatHoldsWhatIsNotKnownHereWaitsAsForAnAnchor) {
  Subscribed(e_)->AwaitDeltas(1);
  std::map<ShardId, DeltaPath::Held> held;
  for (const ShardId shard : store_->shards().owned()) held[shard] = {.term = 99, .version = 1};
  Subscribed(e_, held);
  AwaitWaiting(1);
}

TEST_F(BroadcastRowMemoryTest, ASmallChangeOfALargeTableGoesOn) {
  Reader* const reader = NewReader();
  ASSERT_TRUE(Subscribe(reader, {e_}).ok());
  const auto change = [&](Key key) {
    PushRows({{key, 1.0f}});
    reader->subscriber().Serve();
    reader->AwaitVersions(StoreVersions());
  };
  reader->AwaitVersions(StoreVersions());
  change(1);  // How large changes are is known from the first after the anchor.
  Subscribed(e_)->AwaitDeltas(1);
  Subscribed(e_);
  AwaitWaiting(1);
  for (Key key = 2; key <= 20; ++key) change(key);
  EXPECT_EQ(line().waiting(), 1u);
}

// Each was once sent a copy of its own moment: as many copies of the values in memory as there were slow readers.
TEST_F(BroadcastTest, ReadersThatDoNotReadOnKeepOneCopyOfTheValuesBetweenThem) {
  Start();
  std::vector<Reader*> readers;
  for (int r = 0; r < 16; ++r) {
    readers.push_back(NewReader(Reader::Answer::kByHand));
    ASSERT_TRUE(Subscribe(readers.back(), {a_}).ok());
    readers.back()->AwaitDeltas(1);
    PushDense(a_, 1.0f);
  }
  EXPECT_EQ(PinnedBytes(), layout_.elements * sizeof(float));
  for (Reader* const reader : readers) {
    reader->subscriber().Serve();
    reader->AnswerByHand(true);
    reader->AwaitDeltas(2);
    EXPECT_EQ(reader->versions(), StoreVersions());
    EXPECT_EQ(reader->blocks(a_), PullBlocks(a_, layout_));
    reader->AnswerByHand(true);
  }
}

TEST_F(BroadcastTest, AnAnchorOfAnEarlierMomentIsFollowedByTheChangesSince) {
  Start();
  Reader* const slow = NewReader(Reader::Answer::kByHand);
  ASSERT_TRUE(Subscribe(slow, {a_}).ok());
  slow->AwaitDeltas(1);
  PushDense(a_, 1.0f);
  Reader* const reader = NewReader();
  ASSERT_TRUE(Subscribe(reader, {a_}).ok());
  reader->AwaitVersions(StoreVersions());
  EXPECT_EQ(reader->blocks(a_), PullBlocks(a_, layout_));
}

TEST_F(BroadcastTest, CutsLargeChangesIntoMessagesAndMarksTheLastPiece) {
  const uint64_t elements = 3 << 20;  // 12 MiB: 1.5 MiB per shard.
  Start(16, elements, 1 << 16);
  PushDense(a_, 1.0f);
  Reader* const reader = NewReader();
  ASSERT_TRUE(Subscribe(reader, {a_}).ok());
  reader->AwaitVersions(StoreVersions());
  const auto deltas = reader->deltas();
  EXPECT_GE(deltas.size(), elements * sizeof(float) / limits::kDeltaBytesTarget);
  std::map<ShardId, int> anchors;
  std::map<ShardId, int> completes;
  size_t bytes = 0;
  for (const auto& message : deltas) {
    EXPECT_LE(message.payload_bytes, limits::kDeltaBytesTarget);
    bytes += message.payload_bytes;
    for (const auto& change : message.delta.shards()) {
      anchors[change.shard()] += change.anchor();
      completes[change.shard()] += change.complete();
    }
  }
  EXPECT_EQ(bytes, elements * sizeof(float));
  for (ShardId shard = 0; shard < kShards; ++shard) {
    EXPECT_EQ(anchors[shard], 1) << shard;
    EXPECT_EQ(completes[shard], 1) << shard;
  }
  EXPECT_EQ(reader->blocks(a_), PullBlocks(a_, layout_));
}

TEST_F(BroadcastTest, RefusesMoreThanItsMaximumUntilASubscriberIsGone) {
  Start(/*subscribers_max=*/2);
  Reader* const first = NewReader();
  Reader* const second = NewReader();
  Reader* const third = NewReader();
  ASSERT_TRUE(Subscribe(first, {a_}).ok());
  ASSERT_TRUE(Subscribe(second, {a_}).ok());
  const absl::Status refused = Subscribe(third, {a_});
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  first->subscriber().Cancel(absl::CancelledError("gone"));
  EXPECT_EQ(first->AwaitEnd().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Subscribe(third, {a_}).ok());
}

TEST_F(BroadcastTest, RefusesSubscriptionsThatMakeNoSense) {
  Start();
  Reader* const reader = NewReader();
  EXPECT_EQ(Subscribe(reader, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Subscribe(reader, {a_, 12345}).code(), absl::StatusCode::kNotFound);
}

TEST_F(BroadcastTest, IsUnavailableWhileTheServerOwnsNoShards) {
  Store::Options options;
  options.shards = kShards;
  options.time = &time_;
  store_ = std::make_unique<Store>(options);
  broadcaster_ = std::make_unique<Broadcaster>(store_.get(), 4);
  Reader* const reader = NewReader();
  EXPECT_EQ(Subscribe(reader, {TableIdOf("a")}).code(), absl::StatusCode::kUnavailable);
}

TEST_F(BroadcastTest, EndsAnIdleStreamAtOnceAndABusyOneAfterItsWrite) {
  Start();
  Reader* const idle = NewReader();
  ASSERT_TRUE(Subscribe(idle, {a_}).ok());
  idle->AwaitVersions(StoreVersions());
  idle->subscriber().Cancel(absl::CancelledError("gone"));
  EXPECT_EQ(idle->AwaitEnd().code(), absl::StatusCode::kCancelled);

  Reader* const busy = NewReader(Reader::Answer::kByHand);
  ASSERT_TRUE(Subscribe(busy, {a_}).ok());
  busy->AwaitDeltas(1);
  busy->subscriber().Cancel(absl::CancelledError("gone"));
  busy->subscriber().Cancel(absl::InternalError("only the first counts"));
  EXPECT_FALSE(busy->ended());
  busy->AnswerByHand(false);
  EXPECT_EQ(busy->AwaitEnd().code(), absl::StatusCode::kCancelled);
  busy->subscriber().Serve();  // Served no more; the reader would notice.
}

TEST_F(BroadcastTest, EndsAStreamWhoseWriteFailed) {
  Start();
  Reader* const reader = NewReader(Reader::Answer::kByHand);
  ASSERT_TRUE(Subscribe(reader, {a_}).ok());
  reader->AwaitDeltas(1);
  reader->AnswerByHand(false);
  EXPECT_EQ(reader->AwaitEnd().code(), absl::StatusCode::kCancelled);
}

TEST_F(BroadcastTest, TouchesNoSinkBeforeItsStreamStarts) {
  Start();
  Reader* const reader = NewReader();
  ASSERT_TRUE(Subscribe(reader, {a_}, /*start=*/false).ok());
  reader->subscriber().Serve();
  reader->subscriber().Cancel(absl::CancelledError("gone"));
  EXPECT_FALSE(reader->ended());
  reader->subscriber().Start();
  EXPECT_EQ(reader->AwaitEnd().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(reader->deltas().empty());
}

TEST_F(BroadcastTest, EndsAllStreamsAtShutdownAndTakesNoMore) {
  Start();
  Reader* const idle = NewReader();
  Reader* const busy = NewReader(Reader::Answer::kByHand);
  Reader* const late = NewReader();
  ASSERT_TRUE(Subscribe(idle, {a_}).ok());
  ASSERT_TRUE(Subscribe(busy, {a_}).ok());
  busy->AwaitDeltas(1);
  broadcaster_->Shutdown();
  EXPECT_EQ(idle->AwaitEnd().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(busy->ended());
  busy->AnswerByHand(true);
  EXPECT_EQ(busy->AwaitEnd().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Subscribe(late, {a_}).code(), absl::StatusCode::kUnavailable);
}

TEST_F(BroadcastTest, ReportsItsSubscribersAndBytes) {
  Start();
  Reader* const reader = NewReader();
  Reader* const gone = NewReader();
  ASSERT_TRUE(Subscribe(reader, {a_}).ok());
  ASSERT_TRUE(Subscribe(gone, {a_}).ok());
  reader->AwaitVersions(StoreVersions());
  gone->AwaitVersions(StoreVersions());
  gone->subscriber().Cancel(absl::CancelledError("gone"));
  EXPECT_EQ(gone->AwaitEnd().code(), absl::StatusCode::kCancelled);
  v1::StatusResponse status;
  broadcaster_->FillStatus(&status);
  EXPECT_EQ(status.server().broadcast_bytes(), 2 * layout_.elements * sizeof(float));
  ASSERT_EQ(status.subscribers_size(), 1);
  EXPECT_EQ(status.subscribers(0).peer(), "test:1");
  EXPECT_EQ(status.subscribers(0).worker_incarnation(), kWorker);
  EXPECT_EQ(status.subscribers(0).deltas(), 1);
  EXPECT_EQ(status.subscribers(0).bytes(), layout_.elements * sizeof(float));
  EXPECT_EQ(status.subscribers(0).skipped(), 0);
}

TEST_F(BroadcastTest, KeepsEverySubscriberExactWhileManyPushAndSomeLeave) {
  constexpr int kPushers = 3;
  constexpr int kPushes = 60;
  constexpr int kReaders = 4;
  v1::Broadcast often;
  often.set_every_ms(1);
  often.set_every_pushes(2);
  Start(16, 256, 4, often);
  std::vector<Reader*> readers;
  std::vector<Reader*> leavers;
  for (int r = 0; r < kReaders; ++r) readers.push_back(NewReader());
  for (int r = 0; r < kPushes; ++r) leavers.push_back(NewReader());
  std::latch start(kPushers + 2);
  std::vector<std::thread> threads;
  for (int pusher = 0; pusher < kPushers; ++pusher) {
    const Incarnation worker = kWorker + 1 + pusher;
    ASSERT_TRUE(Ensure({}, worker).ok());
    threads.emplace_back([this, worker, &start] {
      start.arrive_and_wait();
      for (Sequence sequence = 1; sequence <= kPushes; ++sequence) {
        PushDense(sequence % 2 == 0 ? a_ : b_, 0.1f * sequence, worker, sequence);
      }
    });
  }
  threads.emplace_back([this, &readers, &start] {
    start.arrive_and_wait();
    for (Reader* const reader : readers) EXPECT_TRUE(Subscribe(reader, {a_, b_}).ok());
  });
  threads.emplace_back([this, &leavers, &start] {
    start.arrive_and_wait();
    for (Reader* const reader : leavers) {
      EXPECT_TRUE(Subscribe(reader, {a_, b_}).ok());
      reader->Leave();
    }
  });
  for (std::thread& thread : threads) thread.join();
  for (Reader* const reader : readers) {
    ServeAndCatchUp(reader);
    ExpectHoldsAll(*reader);
  }
}

TEST_F(BroadcastTest, GoesOnFromWhatAReaderHoldsOfTheShardsOwnPast) {
  Start();
  for (int i = 0; i < 3; ++i) PushDense(a_, 1.0f);
  PushBlock(a_, 0, 5.0f);
  const ShardId changed = ShardOfBlock(a_, 0, kShards);
  for (const auto& [shard, delta] : BeginWith({.term = 0, .version = 3})) {
    EXPECT_FALSE(delta.anchor());
    EXPECT_EQ(delta.from_version(), 3u);
    EXPECT_EQ(delta.version(), shard == changed ? 4u : 3u);
    EXPECT_EQ(delta.parts_size(), shard == changed ? 1 : 0);
  }
}

TEST_F(BroadcastTest, BeginsAnewForAReaderWhoseVersionTheShardNeverHad) {
  Start();
  for (int i = 0; i < 3; ++i) PushDense(a_, 1.0f);
  for (const DeltaPath::Held held :
       {DeltaPath::Held{.term = 0, .version = 4}, DeltaPath::Held{.term = 9, .version = 3}}) {
    for (const auto& [shard, delta] : BeginWith(held)) {
      EXPECT_TRUE(delta.anchor()) << "shard " << shard << " term " << held.term;
      EXPECT_EQ(delta.version(), 3u);
    }
  }
}

// Followers that hold everything at once.
class QuickFollowers final : public ReplicaSink {
 public:
  void Append(std::span<const ShardLog::Record>, const std::shared_ptr<const void>&) override {}
  void Await(std::span<const Position>, Done done) override { done(absl::OkStatus()); }
  absl::Status health() const override { return absl::OkStatus(); }
};

// Three updates of term 0 and three of term 5 on each shard.
class NewTermBroadcastTest : public BroadcastTest {
 protected:
  void PushInTwoTerms() {
    for (int i = 0; i < 3; ++i) PushDense(a_, 1.0f);
    for (ShardId shard = 0; shard < kShards; ++shard) store_->shards().Own(shard, 5);
    for (int i = 0; i < 3; ++i) PushDense(a_, 1.0f);
  }
  void ExpectGoesOnUpToWhereTheFormerTermCame() {
    EXPECT_STREQ(Begins(0, 2), "delta");
    EXPECT_STREQ(Begins(0, 3), "delta");
    EXPECT_STREQ(Begins(0, 4), "anchor") << "the fourth update of the former term was lost";
    EXPECT_STREQ(Begins(5, 4), "delta");
    EXPECT_STREQ(Begins(4, 4), "anchor");
  }

 private:
  const char* Begins(uint64_t term, Version version) {
    const auto first = BeginWith({.term = term, .version = version});
    EXPECT_EQ(first.at(0).term(), 5u);
    EXPECT_EQ(first.at(0).version(), 6u);
    return first.at(0).anchor() ? "anchor" : "delta";
  }
};

TEST_F(NewTermBroadcastTest, GoesOnOverAChangeOfOwnersUpToWhereTheFormerOneCame) {
  Start();
  QuickFollowers followers;
  store_->log().SetReplicas(&followers);
  PushInTwoTerms();
  ExpectGoesOnUpToWhereTheFormerTermCame();
}

// Regression: a reader that held what a ps without log had forgotten got a change of other updates instead.
TEST_F(NewTermBroadcastTest, GoesOnAsFarWithoutLogAndFollowers) {
  Start();
  PushInTwoTerms();
  ExpectGoesOnUpToWhereTheFormerTermCame();
}

// Regression: a reader that had more than a ps had come back with took what that sent for a former owner's, and dropped
// it until the shard's first update.
TEST_F(NewTermBroadcastTest, WhatAPsCameBackWithIsOfTheTermThatItGoesOnIn) {
  Start();
  for (int i = 0; i < 3; ++i) PushDense(a_, 1.0f);
  for (ShardId shard = 0; shard < kShards; ++shard) store_->shards().Own(shard, 5);
  for (const auto& [shard, delta] : BeginWith({.term = 2, .version = 9})) {
    EXPECT_TRUE(delta.anchor()) << "shard " << shard;
    EXPECT_EQ(delta.term(), 5u);
    EXPECT_EQ(delta.version(), 3u);
  }
  for (const Version held : {2, 3}) {
    for (const auto& [shard, delta] : BeginWith({.term = 0, .version = held})) {
      EXPECT_FALSE(delta.anchor()) << "shard " << shard;
      EXPECT_EQ(delta.term(), 5u);
    }
  }
  PushBlock(a_, 0, 5.0f);
  const ShardId changed = ShardOfBlock(a_, 0, kShards);
  for (const auto& [shard, delta] : BeginWith({.term = 5, .version = 3})) {
    EXPECT_FALSE(delta.anchor()) << "shard " << shard << ": it has what the term began with";
    EXPECT_EQ(delta.version(), shard == changed ? 4u : 3u);
  }
  for (const auto& [shard, delta] : BeginWith({.term = 5, .version = 2})) {
    EXPECT_EQ(delta.anchor(), shard != changed) << "nobody had that";
  }
}

TEST_F(BroadcastTest, EndsAllStreamsWhenOtherShardsAreOwnedAndTakesNewOnes) {
  Start();
  Reader* const before = NewReader();
  ASSERT_TRUE(Subscribe(before, {a_}).ok());
  broadcaster_->EndAll();
  EXPECT_TRUE(absl::IsUnavailable(before->AwaitEnd()));
  Reader* const after = NewReader();
  ASSERT_TRUE(Subscribe(after, {a_}).ok());
  after->AwaitVersions(StoreVersions());
  EXPECT_FALSE(after->ended());
}

TEST_F(BroadcastTest, AStreamThatBeginsWhileOwnersChangeIsOfTheShardsThatAreStillOwned) {
  Start();
  PushDense(a_, 1.0f);
  for (uint64_t round = 1; round <= 50; ++round) {
    Reader* const reader = NewReader();
    std::latch go(2);
    absl::Status subscribed;
    std::thread add([&] {
      go.arrive_and_wait();
      subscribed = Subscribe(reader, {a_});
    });
    go.arrive_and_wait();
    store_->shards().Disown(0);
    broadcaster_->EndAll();
    add.join();
    if (!subscribed.ok()) {
      EXPECT_TRUE(absl::IsUnavailable(subscribed)) << subscribed;
      readers_.pop_back();
    } else {
      const std::map<ShardId, Version> owned = StoreVersions();
      const auto holds = [&] {
        const std::map<ShardId, Version> held = reader->versions();
        return std::includes(held.begin(), held.end(), owned.begin(), owned.end());
      };
      while (!reader->ended() && !holds()) std::this_thread::yield();
      reader->Leave();
    }
    store_->shards().Own(0, round);
  }
}

}  // namespace
}  // namespace lodestone::server
