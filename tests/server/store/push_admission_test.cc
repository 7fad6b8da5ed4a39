#include "server/store/push_admission.h"

#include <future>
#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "server/table/norm_guard.h"
#include "tests/server/store/store_fixture.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;

// Keeps the records that followers would get.
class RecordingSink final : public ReplicaSink {
 public:
  void Append(std::span<const ShardLog::Record> records, const std::shared_ptr<const void>&) override {
    for (const ShardLog::Record& record : records) {
      std::string payload;
      for (const ByteView& piece : record.payload) {
        std::string bytes(piece.size(), '\0');
        piece.CopyTo(reinterpret_cast<uint8_t*>(bytes.data()));
        payload += bytes;
      }
      MutexLock lock(&mu_);
      records_.emplace_back(record.message, std::move(payload));
    }
  }
  void Await(std::span<const Position>, Done done) override { done(absl::OkStatus()); }
  absl::Status health() const override { return absl::OkStatus(); }

  std::vector<std::pair<v1::LogRecord, std::string>> records() const {
    MutexLock lock(&mu_);
    return records_;
  }

 private:
  mutable Mutex mu_;
  std::vector<std::pair<v1::LogRecord, std::string>> records_ ABSL_GUARDED_BY(mu_);
};

class PushAdmissionTest : public StoreTest {
 protected:
  static constexpr uint64_t kBytesMax = 1 << 20;
  static constexpr uint32_t kDim = 16;

  void MakeBounded() {
    Store::Options options;
    options.memory_max_bytes = kBytesMax;
    Make(options);
  }
  // A table of rows, and what becomes of new keys without room.
  TableId MakeRows(v1::Admission::WhenFull when_full = v1::Admission::REFUSE_PUSH) {
    v1::TableSpec spec = AddingRows("r", kDim);
    spec.mutable_embedding()->mutable_admission()->set_when_full(when_full);
    const auto tables = Ensure({spec});
    EXPECT_TRUE(tables.ok()) << tables.status();
    return tables->tables(0).id();
  }
  absl::Status PushKeys(TableId table, Key first, size_t count, float value = 1.0f) {
    auto push = NewPush(++sequence_);
    std::vector<std::pair<Key, float>> rows;
    for (Key key = first; key < first + count; ++key) rows.emplace_back(key, value);
    push.AddRows(table, kDim, rows, true);
    return Push(push).status();
  }
  // Pushes new keys from 0 on, few at a time, until there is no room; returns how many there are.
  Key Fill(TableId table) {
    Key next = 0;
    while (next < 100'000 && PushKeys(table, next, 50).ok()) next += 50;
    return next;
  }
  v1::TableStatus TableStatusOf(size_t index = 0) {
    v1::StatusResponse status;
    store_->FillStatus(&status);
    return status.tables(static_cast<int>(index));
  }

  Sequence sequence_ = 0;
};

// Regression: one push of five million rows took 224 MiB at a limit of 16.
TEST_F(PushAdmissionTest, APushWhoseNewRowsWouldGoOverTheLimitIsRefusedBeforeAnythingIsApplied) {
  MakeBounded();
  const TableId table = MakeRows();
  const absl::Status refused = PushKeys(table, 0, 50'000);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("table `r` needs"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("server.memory_max_bytes"));
  EXPECT_EQ(TableStatusOf().rows(), 0u);
  EXPECT_TRUE(PushKeys(table, 0, 100).ok()) << "what was reserved is free again";
}

TEST_F(PushAdmissionTest, WhatTheRestOfTheProcessTakesIsNotForTablesButForAHalfOfTheLimit) {
  std::atomic<uint64_t> others = kBytesMax / 4;
  Store::Options options;
  options.memory_max_bytes = kBytesMax;
  options.process_bytes = [&] { return others + store_->tables().totals().second; };
  Make(options);
  const TableId table = MakeRows();
  const auto tables_max = [&] {
    store_->Tick();
    v1::StatusResponse status;
    store_->FillStatus(&status);
    return status.server().table_bytes_max();
  };
  EXPECT_EQ(tables_max(), kBytesMax - kBytesMax / 4);
  const Key rows = Fill(table);
  EXPECT_LE(TableStatusOf().bytes(), kBytesMax / 4 * 3);
  EXPECT_GT(TableStatusOf().bytes(), kBytesMax / 2);
  others = 0;
  EXPECT_EQ(tables_max(), kBytesMax);
  EXPECT_TRUE(PushKeys(table, rows, 1000).ok()) << "memory that was given back is there for tables";
  others = 100 * kBytesMax;
  EXPECT_EQ(tables_max(), kBytesMax / 2);
  EXPECT_FALSE(PushKeys(table, rows + 1000, 5000).ok());
  EXPECT_TRUE(PushKeys(table, 0, rows).ok()) << "rows that exist need none";
}

// Regression: a table that grew between two looks at the process did so at the cost of what else it took.
TEST_F(PushAdmissionTest, TheProcessIsLookedAtAgainWhenTablesHaveGrown) {
  std::atomic<int> looks = 0;
  Store::Options options;
  options.memory_max_bytes = kBytesMax;
  options.process_bytes = [&] {
    ++looks;
    return uint64_t{0};
  };
  Make(options);
  const TableId table = MakeRows();
  ASSERT_GT(Fill(table), 0u);
  EXPECT_GE(looks, 32);
  EXPECT_LE(looks, 64);
}

// Regression: afterwards each push that touched an embedding table was refused, for ever.
TEST_F(PushAdmissionTest, RowsThatExistStayTrainableWhenThereIsNoRoomForNewOnes) {
  MakeBounded();
  const TableId table = MakeRows();
  const Key rows = Fill(table);
  ASSERT_GT(rows, 1000u);
  ASSERT_LT(rows, 100'000u);
  EXPECT_LE(TableStatusOf().bytes(), kBytesMax);
  EXPECT_GT(TableStatusOf().bytes(), kBytesMax * 8 / 10);
  ASSERT_TRUE(PushKeys(table, 0, rows, 2.0f).ok());
  EXPECT_EQ(PullRows(table, kDim, {0, rows - 1}), (std::vector<float>{3, 3}));
  EXPECT_EQ(TableStatusOf().rows(), rows);
}

TEST_F(PushAdmissionTest, ATableThatSaysSoTurnsNewKeysAwayAndCountsThem) {
  MakeBounded();
  const TableId table = MakeRows(v1::Admission::TURN_AWAY);
  ASSERT_TRUE(PushKeys(table, 0, 100).ok());
  ASSERT_TRUE(PushKeys(table, 0, 50'000).ok());
  const v1::TableStatus status = TableStatusOf();
  EXPECT_LE(status.bytes(), kBytesMax);
  EXPECT_GT(status.turned_away(), 0u);
  EXPECT_EQ(status.rows() + status.turned_away(), 50'000u);
  EXPECT_EQ(PullRows(table, kDim, {0, 99}), (std::vector<float>{2, 2}));
}

// Once they took all of it, and no key got a row any more.
TEST_F(PushAdmissionTest, KeysThatAreSeenOnceLeaveTheTablesMemoryToTheRows) {
  Make();
  v1::TableSpec spec = AddingRows("r", kDim);
  spec.mutable_embedding()->mutable_admission()->set_count_min(2);
  spec.set_memory_max_bytes(8 << 20);
  const auto tables = Ensure({spec});
  ASSERT_TRUE(tables.ok()) << tables.status();
  const TableId table = tables->tables(0).id();
  for (Key first = 0; first < 400'000; first += 4'000) ASSERT_TRUE(PushKeys(table, first, 4'000).ok()) << first;
  EXPECT_LT(TableStatusOf().bytes(), 4u << 20);
  const uint64_t rows = TableStatusOf().rows();
  for (int times = 0; times < 2; ++times) ASSERT_TRUE(PushKeys(table, 1'000'000, 50).ok());
  EXPECT_EQ(TableStatusOf().rows(), rows + 50);
}

TEST_F(PushAdmissionTest, AReplayTurnsAwayTheSameKeysThoughItHasRoom) {
  RecordingSink sink;
  Store::Options options;
  options.memory_max_bytes = kBytesMax;
  options.shards = kShards;
  options.executors = 2;
  options.time = &time_;
  store_ = std::make_unique<Store>(options);
  store_->log().SetReplicas(&sink);
  store_->OwnShards({0, 1, 2, 3, 4, 5, 6, 7});
  const TableId table = MakeRows(v1::Admission::TURN_AWAY);
  for (Key first = 0; first < 30'000; first += 1'500) ASSERT_TRUE(PushKeys(table, first, 3'000).ok());
  const v1::TableStatus original = TableStatusOf();
  ASSERT_GT(original.turned_away(), 0u);
  const std::vector<float> values = PullRows(table, kDim, {0, 1'600, 20'000, 31'000});

  const std::unique_ptr<Store> first = std::move(store_);
  options.memory_max_bytes = 0;
  store_ = std::make_unique<Store>(options);
  store_->shards().Adopt({0, 1, 2, 3, 4, 5, 6, 7});
  for (const auto& [record, payload] : sink.records()) {
    const ByteView bytes(reinterpret_cast<const uint8_t*>(payload.data()), payload.size());
    const auto replayed = store_->replayer().Replay(record, bytes);
    ASSERT_TRUE(replayed.ok()) << replayed.status();
  }
  store_->Serve({});
  EXPECT_EQ(TableStatusOf().rows(), original.rows());
  EXPECT_EQ(TableStatusOf().turned_away(), original.turned_away());
  EXPECT_EQ(PullRows(table, kDim, {0, 1'600, 20'000, 31'000}), values);
}

TEST_F(PushAdmissionTest, RowsThatAnEvictionMakesRoomForNeedNone) {
  Make();
  v1::TableSpec spec = AddingRows("r", kDim);
  spec.mutable_embedding()->mutable_eviction()->set_rows_max(800);
  spec.set_memory_max_bytes(kBytesMax / 2);
  const auto tables = Ensure({spec});
  ASSERT_TRUE(tables.ok());
  for (Key first = 0; first < 20'000; first += 1'000) {
    const absl::Status status = PushKeys(tables->tables(0).id(), first, 1'000);
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_LE(TableStatusOf().bytes(), kBytesMax / 2);
}

// Regression: a copy of an applied push was refused by the guard or for want of memory, and counted as refused.
TEST_F(PushAdmissionTest, ADuplicateIsAcknowledgedThoughItWouldBeRefusedNow) {
  Make();
  const BlockLayout layout{1000, 64};
  v1::TableSpec guarded = AddingDense("guarded", 1000, 64);
  guarded.mutable_guard()->set_norm_max_factor(10);
  v1::TableSpec bounded = AddingRows("rows", kDim);
  bounded.set_memory_max_bytes(kBytesMax);
  const auto tables = Ensure({guarded, bounded});
  ASSERT_TRUE(tables.ok());
  auto high = NewPush(++sequence_);
  high.AddDense(tables->tables(0).id(), layout, 100.0f);
  high.AddRows(tables->tables(1).id(), kDim, {{1'000'000, 1.0f}}, true);
  ASSERT_TRUE(Push(high).ok()) << "nothing is usual yet";
  // So that it is forgotten.
  for (uint64_t i = 0; i < 3 * NormGuard::kPushesRemembered; ++i) {
    auto push = NewPush(++sequence_);
    push.AddDense(tables->tables(0).id(), layout, 1.0f);
    ASSERT_TRUE(Push(push).ok());
  }
  const auto again = Push(high);
  ASSERT_TRUE(again.ok()) << again.status();
  for (const auto& shard : again->shards()) EXPECT_TRUE(shard.duplicate());
  v1::StatusResponse status;
  store_->FillStatus(&status);
  EXPECT_EQ(status.server().pushes_refused(), 0u);
  high.header.set_sequence(++sequence_);
  EXPECT_EQ(Push(high).status().code(), absl::StatusCode::kOutOfRange) << "a new one";
}

// Regression: duplicates moved what the guard takes for usual.
TEST_F(PushAdmissionTest, AGuardLearnsFromEachPushOnce) {
  Make();
  const BlockLayout layout{1000, 64};
  v1::TableSpec guarded = AddingDense("guarded", 1000, 64);
  guarded.mutable_guard()->set_norm_max_factor(10);
  const auto tables = Ensure({guarded});
  ASSERT_TRUE(tables.ok());
  const auto push_of = [&](Sequence sequence, float value) {
    auto push = NewPush(sequence);
    push.AddDense(tables->tables(0).id(), layout, value);
    return push;
  };
  for (uint64_t i = 1; i <= NormGuard::kPushesUnjudged; ++i) ASSERT_TRUE(Push(push_of(i, 1.0f)).ok());
  const Sequence last = NormGuard::kPushesUnjudged + 1;
  ASSERT_TRUE(Push(push_of(last, 9.0f)).ok());
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(Push(push_of(last, 9.0f)).ok());
  EXPECT_EQ(Push(push_of(last + 1, 60.0f)).status().code(), absl::StatusCode::kOutOfRange);
}

// Regression: what it had been asked about it, without an answer, was applied without room for its new rows.
TEST_F(PushAdmissionTest, APushForAShardThatIsNotOwnedWhenItIsAskedAndThenIsAgainIsRefusedWhole) {
  MakeBounded();
  const TableId table = MakeRows();
  ShardSet& shards = store_->shards();
  const ShardId shard = ShardOfKey(0, kShards);
  const size_t executor = shards.ExecutorOf(shard);
  std::latch held(1), release(1);
  std::thread holder([&] {
    shards.executors()[executor].Submit([&] {
      held.count_down();
      release.wait();
    });
  });
  held.wait();
  shards.executors()[executor].Submit([&] { shards.SetRole(shard, ShardRole::kGivesUp); });
  auto push = NewPush(++sequence_);
  std::vector<std::pair<Key, float>> rows;
  for (Key key = 0; key < 50'000; ++key) rows.emplace_back(key, 1.0f);
  push.AddRows(table, kDim, rows, true);
  std::promise<absl::Status> pushed;
  store_->pushes().Push(push.header, push.payload(), [&](auto response) { pushed.set_value(response.status()); });
  shards.executors()[executor].Submit([&] { shards.SetRole(shard, ShardRole::kOwns); });
  release.count_down();
  EXPECT_TRUE(absl::IsAborted(pushed.get_future().get()));
  holder.join();
  EXPECT_EQ(TableStatusOf().rows(), 0u);
}

// Regression: it kept everybody out, also reads of dense values, which need none.
TEST_F(PushAdmissionTest, AFullExecutorHoldsBackOnlyTheCallsThatNeedIt) {
  Make();
  const auto tables = Ensure({AddingDense("d", 1000, 64), AddingRows("r", kDim)});
  ASSERT_TRUE(tables.ok());
  const auto key_of_executor = [&](size_t executor) {
    Key key = 0;
    while (store_->shards().ExecutorOf(ShardOfKey(key, kShards)) != executor) ++key;
    return key;
  };
  std::latch held(1), release(1);
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    store_->shards().executors()[1].Submit([&] {
      held.count_down();
      release.wait();
    });
  });
  held.wait();
  for (size_t i = 0; i < limits::kExecutorQueueMax; ++i) store_->shards().executors()[1].Submit([] {});
  EXPECT_TRUE(PushKeys(tables->tables(1).id(), key_of_executor(0), 1).ok());
  EXPECT_EQ(PullRows(tables->tables(1).id(), kDim, {key_of_executor(0)}), std::vector<float>{1.0f});
  EXPECT_FALSE(PullBlocks(tables->tables(0).id(), {1000, 64}).empty());
  const absl::Status status = PushKeys(tables->tables(1).id(), key_of_executor(1), 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("executor 1"));
  RequestBuilder<v1::PullRequest> pull(kShards);
  pull.AddRows(tables->tables(1).id(), kDim, {{key_of_executor(1), 0.0f}}, false);
  EXPECT_EQ(Pull(pull).status().code(), absl::StatusCode::kResourceExhausted);
  release.count_down();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace lodestone::server
