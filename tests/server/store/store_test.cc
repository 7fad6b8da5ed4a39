#include "server/store/store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <latch>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/incarnation.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "gmock/gmock.h"
#include "server/shard/shard.h"
#include "server/table/norm_guard.h"
#include "tests/server/store/busy_executor.h"
#include "tests/server/store/store_fixture.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;

TEST_F(StoreTest, APushBeforeTheShardsAreKnownIsUnavailable) {
  Store::Options options;
  options.shards = kShards;
  options.time = &time_;
  store_ = std::make_unique<Store>(options);
  EXPECT_EQ(Push(NewPush(1)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Ensure({}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(store_->shards().owned().empty());
}

TEST_F(StoreTest, PushesAddUpExactlyOnceUnderConcurrentDuplicates) {
  Make();
  const BlockLayout layout{1000, 64};
  const auto tables = Ensure({AddingDense("d", 1000, 64), AddingRows("r", 2)});
  ASSERT_TRUE(tables.ok()) << tables.status();
  const TableId dense = tables->tables(0).id();
  const TableId rows = tables->tables(1).id();
  constexpr int kWorkers = 4;
  constexpr int kPushes = 120;
  for (int w = 0; w < kWorkers; ++w) ASSERT_TRUE(Ensure({}, kWorker + w).ok());
  std::atomic<uint64_t> duplicates{0};
  std::vector<std::thread> threads;
  // Two threads per worker send the same pushes: each must count once.
  for (int t = 0; t < 2 * kWorkers; ++t) {
    threads.emplace_back([&, w = t / 2] {
      for (int i = 1; i <= kPushes; ++i) {
        auto push = NewPush(i, kWorker + w);
        push.AddDense(dense, layout, static_cast<float>(i % 7));
        push.AddRows(rows, 2, {{static_cast<Key>(i % 10), 1.0f}, {1000, 2.0f}}, true);
        const auto response = Push(push);
        ASSERT_TRUE(response.ok()) << response.status();
        for (const auto& shard : response->shards()) duplicates.fetch_add(shard.duplicate());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  float sum = 0;
  for (int i = 1; i <= kPushes; ++i) sum += static_cast<float>(i % 7);
  for (const auto& [block, value] : PullBlocks(dense, layout)) {
    for (const float element : Floats(value.second)) ASSERT_EQ(element, kWorkers * sum) << "block " << block;
  }
  EXPECT_EQ(PullRows(rows, 2, {1000, 3})[0], kWorkers * kPushes * 2.0f);
  EXPECT_EQ(PullRows(rows, 2, {1000, 3})[1], kWorkers * kPushes / 10 * 1.0f);
  EXPECT_GT(duplicates.load(), 0u);
  v1::StatusResponse status;
  store_->FillStatus(&status);
  // Both copies of a push may each be the first on some shard, so at least the originals count as applied.
  EXPECT_GE(status.server().pushes(), kWorkers * kPushes);
  EXPECT_EQ(status.server().pushes() + status.server().pushes_duplicate(), 2u * kWorkers * kPushes);
}

// Regression: rows of a shard that was not owned when they were to be read, and was again when the last share ended,
// were whatever the memory had held.
TEST_F(StoreTest, APullOfAShardThatIsGivenUpAndTakenBackWhileItWaitsIsRefused) {
  Make();
  const auto tables = Ensure({AddingRows("r", 1)});
  ASSERT_TRUE(tables.ok()) << tables.status();
  const TableId table = tables->tables(0).id();
  ShardSet& shards = store_->shards();
  const auto key_of_executor = [&](size_t executor) {
    Key key = 0;
    while (shards.ExecutorOf(ShardOfKey(key, kShards)) != executor) ++key;
    return key;
  };
  const Key given_up = key_of_executor(0), kept = key_of_executor(1);
  const ShardId shard = ShardOfKey(given_up, kShards);
  std::latch held(2), release_first(1), release_last(1), taken_back(1);
  std::vector<std::thread> threads;
  for (const size_t executor : {0, 1}) {
    threads.emplace_back([&, executor] {
      shards.executors()[executor].Submit([&, executor] {
        held.count_down();
        (executor == 0 ? release_first : release_last).wait();
      });
    });
  }
  held.wait();
  shards.executors()[0].Submit([&] { shards.SetRole(shard, ShardRole::kGivesUp); });
  RequestBuilder<v1::PullRequest> pull(kShards);
  pull.AddRows(table, 1, {{given_up, 0.0f}, {kept, 0.0f}}, false);
  std::promise<absl::Status> pulled;
  store_->pulls().Pull(pull.header, pull.payload(), [&](auto values) { pulled.set_value(values.status()); });
  shards.executors()[0].Submit([&] {
    shards.SetRole(shard, ShardRole::kOwns);
    taken_back.count_down();
  });
  release_first.count_down();
  taken_back.wait();
  release_last.count_down();
  EXPECT_TRUE(absl::IsAborted(pulled.get_future().get()));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(PullRows(table, 1, {given_up, kept}), (std::vector<float>{0, 0}));
}

// Regression: a tick read the map of the tables that the next table had replaced; AddressSanitizer finds it.
TEST_F(StoreTest, TablesAreMadeWhileTicksLookAtThem) {
  Make();
  std::atomic<bool> done{false};
  std::thread ticks([&] {
    while (!done.load()) store_->Tick();
  });
  for (int table = 0; table < 300; ++table) {
    const auto made = Ensure({AddingRows(absl::StrCat("t", table), 1)});
    EXPECT_TRUE(made.ok()) << made.status();
  }
  done.store(true);
  ticks.join();
}

TEST_F(StoreTest, LargeCallsOfAnIdlePsAddUpWhicheverThreadsRunThem) {
  Make();
  constexpr uint64_t kElements = 1 << 16;
  constexpr size_t kPushes = 4;
  const BlockLayout layout{kElements, 4096};
  const auto tables = Ensure({AddingDense("d", kElements, 4096), AddingRows("r", 1)});
  ASSERT_TRUE(tables.ok()) << tables.status();
  std::vector<std::pair<Key, float>> rows;
  for (Key key = 0; key < 8000; ++key) rows.emplace_back(key, static_cast<float>(key));
  for (size_t i = 1; i <= kPushes; ++i) {
    // This thread waits, as one that serves calls does in an idle ps.
    std::thread([] {
      volatile uint64_t work = 0;
      for (int step = 0; step < 20'000'000; ++step) work = work + 1;
    }).join();
    auto push = NewPush(i);
    push.AddDense(tables->tables(0).id(), layout, 1.0f);
    push.AddRows(tables->tables(1).id(), 1, rows, true);
    const auto response = Push(push);
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->shards_size(), static_cast<int>(kShards));
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.AddRows(tables->tables(1).id(), 1, rows, false);
    const auto pulled = Pull(pull);
    ASSERT_TRUE(pulled.ok()) << pulled.status();
    std::vector<float> values = Floats(Concatenate(pulled->payload));
    std::sort(values.begin(), values.end());
    ASSERT_EQ(values.size(), rows.size());
    for (size_t key = 0; key < rows.size(); ++key) ASSERT_EQ(values[key], static_cast<float>(i * key));
  }
  for (const auto& [block, value] : PullBlocks(tables->tables(0).id(), layout)) {
    for (const float element : Floats(value.second)) ASSERT_EQ(element, kPushes);
  }
  v1::StatusResponse status;
  store_->FillStatus(&status);
  uint64_t handed_over = 0;
  for (const auto& executor : status.executors()) handed_over += executor.queue_length_max();
  EXPECT_GT(handed_over, 0u) << "each ran on one thread";
}

TEST_F(StoreTest, EveryBlockPulledDuringPushesEqualsTheTablesStateAtTheVersionItClaims) {
  Make();
  const BlockLayout layout{4096, 256};
  const auto tables = Ensure({AddingDense("d", 4096, 256)});
  ASSERT_TRUE(tables.ok());
  const TableId table = tables->tables(0).id();
  std::atomic<bool> stop{false};
  std::thread pusher([&] {
    for (Sequence s = 1; !stop.load(); ++s) {
      auto push = NewPush(s);
      push.AddDense(table, layout, 1.0f);
      ASSERT_TRUE(Push(push).ok());
    }
  });
  for (int i = 0; i < 300; ++i) {
    for (const auto& [block, value] : PullBlocks(table, layout)) {
      // Each push touches each shard once and adds 1, so the content is the version.
      for (const float element : Floats(value.second)) ASSERT_EQ(element, static_cast<float>(value.first));
    }
  }
  stop.store(true);
  pusher.join();
}

TEST_F(StoreTest, ASubscriberThatAppliesEveryChangeHoldsBitForBitWhatAPullReturns) {
  Make();
  const BlockLayout layout{2000, 64};
  v1::TableSpec spec = AddingDense("d", 2000, 64);
  spec.mutable_optimizer()->mutable_adam();
  spec.mutable_optimizer()->set_learning_rate(0.01f);
  spec.mutable_initializer()->mutable_normal();
  const auto tables = Ensure({spec});
  ASSERT_TRUE(tables.ok());
  const TableId table = tables->tables(0).id();
  const DeltaPath::Subscription subscription{{{table, false}}};
  std::atomic<bool> stop{false};
  std::thread pusher([&] {
    for (Sequence s = 1; !stop.load(); ++s) {
      auto push = NewPush(s);
      push.AddDense(table, layout, static_cast<float>(s % 5) - 2.0f);
      ASSERT_TRUE(Push(push).ok());
    }
  });
  Blocks held;
  std::map<ShardId, Version> versions;
  const auto catch_up = [&] {
    for (const ShardId shard : store_->shards().owned()) {
      const auto from = versions.contains(shard) ? std::optional<Version>(versions[shard]) : std::nullopt;
      const ShardChange change = Change(shard, subscription, from);
      EXPECT_EQ(change.pieces.front().delta.anchor(), !from.has_value());
      EXPECT_GE(change.version, from.value_or(0));
      for (const auto& piece : change.pieces) {
        if (piece.delta.parts().empty()) continue;
        const v1::Part& part = piece.delta.parts(0);
        for (int i = 0; i < part.blocks_size(); ++i) {
          EXPECT_LE(part.block_versions(i), change.version);
          held[part.blocks(i)] = {part.block_versions(i), Concatenate({piece.payload[i]})};
        }
      }
      versions[shard] = change.version;
    }
  };
  for (int round = 0; round < 200; ++round) {
    catch_up();
    for (const auto& [block, value] : PullBlocks(table, layout)) {
      if (held.at(block).first == value.first) {
        ASSERT_EQ(held[block].second, value.second) << "block " << block;
      }
    }
  }
  stop.store(true);
  pusher.join();
  catch_up();
  EXPECT_EQ(held, PullBlocks(table, layout));
}

TEST_F(StoreTest, ChangesOfRowsHoldWhatChangedAndWhatWasEvicted) {
  Make();
  v1::TableSpec spec = AddingRows("r", 2);
  spec.mutable_embedding()->mutable_eviction()->set_ttl_ms(10'000);
  const auto tables = Ensure({spec});
  ASSERT_TRUE(tables.ok());
  const TableId table = tables->tables(0).id();
  const DeltaPath::Subscription subscription{{{table, true}}};
  std::map<Key, std::vector<float>> held;
  std::map<ShardId, Version> versions;
  const auto catch_up = [&] {
    size_t rows_received = 0;
    for (const ShardId shard : store_->shards().owned()) {
      const auto from = versions.contains(shard) ? std::optional<Version>(versions[shard]) : std::nullopt;
      const ShardChange change = Change(shard, subscription, from);
      for (const auto& piece : change.pieces) {
        if (piece.delta.parts().empty()) continue;
        const v1::Part& part = piece.delta.parts(0);
        const std::string bytes = Concatenate(piece.payload);
        EXPECT_EQ(bytes.size(), piece.payload_bytes);
        const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
        for (uint32_t i = 0; i < part.evicted_count(); ++i) held.erase(LoadAt<Key>(data, i));
        data += part.evicted_count() * sizeof(Key);
        const uint8_t* values = data + part.row_count() * sizeof(Key);
        for (uint32_t i = 0; i < part.row_count(); ++i) {
          held[LoadAt<Key>(data, i)] = {LoadAt<float>(values, 2 * i), LoadAt<float>(values, 2 * i + 1)};
        }
        rows_received += part.row_count();
      }
      versions[shard] = change.version;
    }
    return rows_received;
  };
  Sequence sequence = 0;
  const auto push_rows = [&](const std::vector<std::pair<Key, float>>& rows) {
    auto push = NewPush(++sequence);
    push.AddRows(table, 2, rows, true);
    ASSERT_TRUE(Push(push).ok());
  };
  push_rows({{1, 1}, {2, 2}, {3, 3}, {4, 4}});
  EXPECT_EQ(catch_up(), 4u);
  EXPECT_EQ(held.size(), 4u);
  EXPECT_EQ(catch_up(), 0u);
  time_.AdvanceMs(9'000);
  push_rows({{2, 10}});
  EXPECT_EQ(catch_up(), 1u);
  EXPECT_EQ(held[2], (std::vector<float>{12, 12}));
  time_.AdvanceMs(9'000);
  // A sweep looks at a part of the rows; each goes on step by step on the executors.
  const auto sweep_all = [this] {
    for (int sweep = 0; sweep < 5; ++sweep) {
      store_->Tick();
      for (uint32_t step = 0; step < 2 * kShards; ++step) store_->shards().executors().Drain();
    }
  };
  sweep_all();
  catch_up();
  EXPECT_EQ(held, (std::map<Key, std::vector<float>>{{2, {12, 12}}}));
  // A ps that shuts down has stopped its sweeps before it drains its executors for the last time.
  time_.AdvanceMs(20'000);
  store_->StopSweeps();
  sweep_all();
  catch_up();
  EXPECT_EQ(held.size(), 1u);
}

TEST_F(StoreTest, RacingCallersOfEnsureTablesAgree) {
  Make();
  std::vector<std::thread> threads;
  std::vector<TableId> ids(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto tables = Ensure({AddingDense("d", 5000, 0)}, kWorker + t);
      ASSERT_TRUE(tables.ok()) << tables.status();
      ids[t] = tables->tables(0).id();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ids, std::vector<TableId>(4, ids[0]));
}

// Regression: the map of tables was let go of while it was gone through.
TEST_F(StoreTest, StatusCanBeAskedForWhileTablesAreMade) {
  Make();
  std::atomic<bool> made{false};
  std::vector<std::thread> asks;
  for (int t = 0; t < 4; ++t) {
    asks.emplace_back([&] {
      while (!made.load()) {
        v1::StatusResponse status;
        store_->FillStatus(&status);
        store_->tables().specs();
      }
    });
  }
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(Ensure({AddingDense(absl::StrCat("d", i), 10, 0)}).ok());
  made.store(true);
  for (std::thread& thread : asks) thread.join();
  v1::StatusResponse status;
  store_->FillStatus(&status);
  EXPECT_EQ(status.tables_size(), 1000);
}

TEST_F(StoreTest, ATableThatExistsWithAnotherShapeIsRefusedNamingIt) {
  Make();
  ASSERT_TRUE(Ensure({AddingDense("d", 10, 0)}).ok());
  const auto again = Ensure({AddingDense("d", 12, 0)});
  EXPECT_EQ(again.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("dense [10], not dense [12]"));
}

TEST_F(StoreTest, ATableWithANonsensicalSpecificationIsRefusedNamingWhatIsWrong) {
  Make();
  v1::TableSpec spec = AddingDense("d", 10, 0);
  spec.mutable_initializer()->mutable_uniform()->set_low(std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(std::string(Ensure({spec}).status().message()), HasSubstr("table `d`: initializer"));
  spec = AddingDense("d", 10, 0);
  spec.mutable_optimizer()->set_learning_rate(std::numeric_limits<float>::infinity());
  EXPECT_THAT(std::string(Ensure({spec}).status().message()), HasSubstr("table `d`: optimizer"));
  spec = AddingDense("d e", 10, 0);
  EXPECT_THAT(std::string(Ensure({spec}).status().message()), HasSubstr("may hold only"));
  spec = AddingDense("d", 0, 0);
  EXPECT_THAT(std::string(Ensure({spec}).status().message()), HasSubstr("a dimension is 0"));
  spec.mutable_dense()->clear_dims();
  EXPECT_EQ(Ensure({spec}).status().code(), absl::StatusCode::kInvalidArgument);
  spec.clear_shape();
  EXPECT_THAT(std::string(Ensure({spec}).status().message()), HasSubstr("neither dense nor embedding"));
}

// What is wrong with a push, and what the error must say.
struct BadPush {
  const char* name;
  std::function<void(RequestBuilder<v1::PushRequest>*, TableId dense, TableId rows)> make;
  absl::StatusCode code;
  const char* says;
};

TEST_F(StoreTest, AMalformedPushIsRefusedWithAClearErrorAndChangesNothing) {
  Make();
  const BlockLayout layout{100, 64};
  const auto tables = Ensure({AddingDense("d", 100, 64), AddingRows("r", 2)});
  ASSERT_TRUE(tables.ok());
  const TableId dense = tables->tables(0).id();
  const TableId rows = tables->tables(1).id();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<BadPush> cases = {
      {"unknown table",
       [](auto* p, TableId, TableId) {
         p->AddDense(12345, {100, 64}, 1.0f);
       },
       absl::StatusCode::kNotFound, "unknown table id 12345"},
      {"payload too short", [&](auto* p, TableId d, TableId) { p->AddDense(d, layout, 1.0f), p->bytes().pop_back(); },
       absl::StatusCode::kInvalidArgument, "bytes of payload"},
      {"payload too long", [&](auto* p, TableId d, TableId) { p->AddDense(d, layout, 1.0f), p->bytes() += "x"; },
       absl::StatusCode::kInvalidArgument, "the parts describe"},
      {"unknown block",
       [](auto* p, TableId d, TableId) {
         p->AddDense(d, {100, 64}, 1.0f);
         p->header.mutable_parts(0)->set_blocks(0, 9);
       },
       absl::StatusCode::kInvalidArgument, "block 9"},
      {"block twice",
       [](auto* p, TableId d, TableId) {
         p->AddDense(d, {100, 64}, 1.0f);
         p->header.mutable_parts(0)->add_blocks(p->header.parts(0).blocks(0));
       },
       absl::StatusCode::kInvalidArgument, "ascending"},
      {"block on another shard",
       [](auto* p, TableId d, TableId) {
         p->AddDense(d, {100, 64}, 1.0f);
         p->header.mutable_parts(0)->set_shard((p->header.parts(0).shard() + 1) % 8);
       },
       absl::StatusCode::kInvalidArgument, "is not on shard"},
      {"shard that does not exist",
       [](auto* p, TableId d, TableId) {
         p->AddDense(d, {100, 64}, 1.0f);
         p->header.mutable_parts(0)->set_shard(99);
       },
       absl::StatusCode::kInvalidArgument, "shard 99"},
      {"key on another shard",
       [](auto* p, TableId, TableId r) {
         p->AddRows(r, 2, {{7, 1.0f}}, true);
         p->header.mutable_parts(0)->set_shard((p->header.parts(0).shard() + 1) % 8);
       },
       absl::StatusCode::kInvalidArgument, "key 7 is not on shard"},
      {"rows for a dense table",
       [](auto* p, TableId d, TableId) {
         p->AddRows(d, 2, {{7, 1.0f}}, true);
       },
       absl::StatusCode::kInvalidArgument, "is a dense table"},
      {"blocks for an embedding table",
       [](auto* p, TableId, TableId r) {
         p->AddDense(r, {100, 64}, 1.0f);
       },
       absl::StatusCode::kInvalidArgument, "is an embedding table"},
      {"wrong row width",
       [](auto* p, TableId, TableId r) {
         p->AddRows(r, 3, {{7, 1.0f}}, true);
       },
       absl::StatusCode::kInvalidArgument, "the parts describe"},
      {"far too many rows",
       [](auto* p, TableId, TableId r) {
         p->AddRows(r, 2, {{7, 1.0f}}, true);
         p->header.mutable_parts(0)->set_row_count(UINT32_MAX);
       },
       absl::StatusCode::kInvalidArgument, "bytes of payload"},
      {"NaN in a dense table", [&](auto* p, TableId d, TableId) { p->AddDense(d, layout, nan); },
       absl::StatusCode::kInvalidArgument, "table `d`, element"},
      {"Inf in a row",
       [&](auto* p, TableId, TableId r) {
         p->AddRows(r, 2, {{5, 1.0f}, {7, inf}}, true);
       },
       absl::StatusCode::kInvalidArgument, "key 7, element 0 is inf"},
      {"no sequence", [](auto* p, TableId, TableId) { p->header.set_sequence(0); }, absl::StatusCode::kInvalidArgument,
       "positive sequence"},
      {"no worker", [](auto* p, TableId, TableId) { p->header.set_worker_incarnation(0); },
       absl::StatusCode::kInvalidArgument, "worker_incarnation"},
      {"unknown worker", [](auto* p, TableId, TableId) { p->header.set_worker_incarnation(5555); },
       absl::StatusCode::kFailedPrecondition, "no session"},
  };
  Sequence sequence = 0;
  for (const BadPush& bad : cases) {
    SCOPED_TRACE(bad.name);
    auto push = NewPush(++sequence);
    bad.make(&push, dense, rows);
    const auto response = Push(push);
    EXPECT_EQ(response.status().code(), bad.code) << response.status();
    EXPECT_THAT(std::string(response.status().message()), HasSubstr(bad.says));
  }
  v1::StatusResponse status;
  store_->FillStatus(&status);
  EXPECT_EQ(status.server().pushes_refused(), cases.size());
  EXPECT_EQ(status.server().pushes(), 0u);
  for (const auto& [block, value] : PullBlocks(dense, layout)) {
    EXPECT_EQ(value.first, 0u);
    for (const float element : Floats(value.second)) EXPECT_EQ(element, 0.0f);
  }
}

TEST_F(StoreTest, RowsOfAdjacentPartsOfAPullLieInOneSlice) {
  Make();
  const auto tables = Ensure({AddingDense("dense", 1000, 100), AddingRows("wide", 4), AddingRows("narrow", 1)});
  ASSERT_TRUE(tables.ok()) << tables.status();
  const TableId dense = tables->tables(0).id(), wide = tables->tables(1).id(), narrow = tables->tables(2).id();
  std::vector<std::pair<Key, float>> rows;
  for (Key key = 0; key < 300; ++key) rows.emplace_back(key, static_cast<float>(key));
  auto push = NewPush(1);
  push.AddRows(wide, 4, rows, true);
  push.AddRows(narrow, 1, rows, true);
  ASSERT_TRUE(Push(push).ok());

  RequestBuilder<v1::PullRequest> pull(kShards);
  pull.AddRows(wide, 4, rows, false);
  pull.AddRows(narrow, 1, {}, false);
  pull.AddDense(dense, {1000, 100}, std::nullopt);
  pull.AddRows(narrow, 1, rows, false);
  pull.AddRows(wide, 4, {rows[7]}, false);
  const auto values = Pull(pull);
  ASSERT_TRUE(values.ok()) << values.status();
  ASSERT_EQ(values->payload.size(), 1 + 10 + 1);
  EXPECT_EQ(values->payload.front().size(), 300 * 4 * sizeof(float));
  EXPECT_EQ(values->payload.back().size(), (300 + 4) * sizeof(float));
  // Keys by shard, as the request has them.
  std::vector<Key> order;
  for (ShardId shard = 0; shard < kShards; ++shard) {
    for (Key key = 0; key < 300; ++key) {
      if (ShardOfKey(key, kShards) == shard) order.push_back(key);
    }
  }
  const std::vector<float> first = Floats(Concatenate({values->payload.front()}));
  const std::vector<float> last = Floats(Concatenate({values->payload.back()}));
  for (size_t i = 0; i < order.size(); ++i) {
    for (size_t element = 0; element < 4; ++element) EXPECT_EQ(first[4 * i + element], static_cast<float>(order[i]));
    EXPECT_EQ(last[i], static_cast<float>(order[i]));
  }
  EXPECT_EQ(std::vector<float>(last.end() - 4, last.end()), std::vector<float>(4, 7.0f));
}

// Each push adds 1 to every block, and so makes one version of every shard.
TEST_F(StoreTest, APullBesidePushesTellsAVersionThatIsNotOlderThanItsValuesAndShowsOneCutIfItIsAsked) {
  Make();
  constexpr uint64_t kElements = 64;
  constexpr uint32_t kBlock = 2;  // 32 blocks: four in each shard.
  const auto tables = Ensure({AddingDense("d", kElements, kBlock), AddingRows("r", 1)});
  ASSERT_TRUE(tables.ok());
  const TableId dense = tables->tables(0).id();
  const TableId rows = tables->tables(1).id();
  std::vector<std::pair<Key, float>> keys;
  for (Key key = 0; key < 100; ++key) keys.emplace_back(key, 1.0f);
  std::atomic<bool> ends = false;
  std::latch first(1);
  std::thread pusher([&] {
    for (Sequence sequence = 1; !ends.load(); ++sequence) {
      auto push = NewPush(sequence);
      push.AddDense(dense, {kElements, kBlock}, 1.0f);
      push.AddRows(rows, 1, keys, true);
      EXPECT_TRUE(Push(push).ok());
      if (sequence == 1) first.count_down();
    }
  });
  first.wait();
  for (int i = 0; i < 2000; ++i) {
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.header.set_one_cut(i % 2 == 0);
    pull.AddDense(dense, {kElements, kBlock}, std::nullopt);
    pull.AddRows(rows, 1, keys, false);
    const auto values = Pull(pull);
    ASSERT_TRUE(values.ok()) << values.status();
    const std::vector<float> floats = Floats(Concatenate(values->payload));
    size_t at = 0;
    for (int p = 0; p < values->header.parts_size(); ++p) {
      const v1::Part& part = values->header.parts(p);
      const uint64_t told = values->header.shard_versions(p);
      for (const uint64_t version : part.block_versions()) EXPECT_LE(version, told);
      const size_t count = part.row_count() + part.blocks_size() * kBlock;
      if (i % 2 == 0) {
        EXPECT_EQ(told, values->header.shard_versions(0 + p % (values->header.parts_size() / 2))) << "blocks and rows";
        for (size_t v = at; v < at + count; ++v) ASSERT_EQ(floats[v], static_cast<float>(told)) << "part " << p;
      }
      at += count;
    }
    ASSERT_EQ(at, floats.size());
  }
  ends = true;
  pusher.join();
}

TEST_F(StoreTest, BriefAnswersSayTheSameAndPartsOfSeveralShardsAreSeveral) {
  Make();
  const TableId table = Ensure({AddingRows("rows", 2)})->tables(0).id();
  std::vector<std::pair<Key, float>> rows;
  for (Key key = 1; key <= 40; ++key) rows.emplace_back(key, static_cast<float>(key));
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return ShardOfKey(a.first, kShards) < ShardOfKey(b.first, kShards);
  });
  v1::Part part;  // Of all shards.
  part.set_table(table);
  for (const auto& [key, value] : rows) {
    const ShardId shard = ShardOfKey(key, kShards);
    if (part.shards_size() == 0 || part.shards(part.shards_size() - 1) != shard) {
      part.add_shards(shard);
      part.add_row_counts(0);
    }
    part.set_row_counts(part.shards_size() - 1, part.row_counts(part.shards_size() - 1) + 1);
  }
  const auto push_all = [&](Sequence sequence, bool brief) {
    auto push = NewPush(sequence);
    push.header.set_brief(brief);
    *push.header.add_parts() = part;
    for (const auto& [key, value] : rows) push.Append(key);
    for (const auto& [key, value] : rows) push.AppendRepeated(value, 2);
    return Push(push);
  };
  // Before, one shard has the push with sequence 1.
  auto first = NewPush(1);
  first.AddRows(table, 2, {rows.back()}, true);
  ASSERT_TRUE(Push(first).ok());
  const auto pushed = push_all(1, true);
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  EXPECT_EQ(pushed->shards_size(), 0);
  ASSERT_EQ(pushed->versions_size(), part.shards_size());
  ASSERT_EQ(pushed->duplicates_size(), 1);
  EXPECT_EQ(pushed->duplicates(0), part.shards_size() - 1) << "the place of the last shard";
  EXPECT_EQ(pushed->late_size(), 0);
  const auto again = push_all(1, false);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->versions_size() + again->duplicates_size(), 0);
  ASSERT_EQ(again->shards_size(), part.shards_size());
  for (int i = 0; i < again->shards_size(); ++i) {
    EXPECT_TRUE(again->shards(i).duplicate());
    EXPECT_EQ(again->shards(i).shard(), part.shards(i));
    EXPECT_EQ(again->shards(i).version(), pushed->versions(i));
  }

  RequestBuilder<v1::PullRequest> pull(kShards);
  *pull.header.add_parts() = part;
  for (const auto& [key, value] : rows) pull.Append(key);
  const auto values = Pull(pull);
  ASSERT_TRUE(values.ok()) << values.status();
  ASSERT_EQ(values->header.parts_size(), part.shards_size());
  pull.header.set_brief(true);
  const auto brief = Pull(pull);
  ASSERT_TRUE(brief.ok()) << brief.status();
  EXPECT_EQ(brief->header.parts_size(), 0);
  EXPECT_EQ(Concatenate(brief->payload), Concatenate(values->payload));
  ASSERT_EQ(brief->header.shard_versions_size(), part.shards_size());
  for (int i = 0; i < part.shards_size(); ++i) {
    EXPECT_EQ(values->header.parts(i).shard(), part.shards(i));
    EXPECT_EQ(values->header.parts(i).row_count(), part.row_counts(i));
    EXPECT_EQ(brief->header.shard_versions(i), values->header.shard_versions(i));
  }
  const std::vector<float> floats = Floats(Concatenate(brief->payload));
  ASSERT_EQ(floats.size(), 2 * rows.size());
  for (size_t i = 0; i < floats.size(); ++i) {
    // Of the last shard only its one row had come.
    const auto& [key, value] = rows[i / 2];
    const bool lacks = ShardOfKey(key, kShards) == ShardOfKey(rows.back().first, kShards) && key != rows.back().first;
    EXPECT_EQ(floats[i], lacks ? 0 : value) << "key " << key;
  }
}

TEST_F(StoreTest, APullWhoseAnswerWouldBeTooLargeIsRefused) {
  Make();
  const auto tables = Ensure({AddingRows("r", 16'384)});
  ASSERT_TRUE(tables.ok());
  RequestBuilder<v1::PullRequest> pull(kShards);
  std::vector<std::pair<Key, float>> rows;
  for (Key key = 0; key < limits::kPullBytesMax / (16'384 * sizeof(float)) + 1; ++key) rows.emplace_back(key, 0.0f);
  pull.AddRows(tables->tables(0).id(), 16'384, rows, false);
  const auto values = Pull(pull);
  EXPECT_EQ(values.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(values.status().message()), HasSubstr("several calls"));
}

TEST_F(StoreTest, ATableAtItsMemoryLimitRefusesPushesAndGoesOnServing) {
  Make();
  v1::TableSpec spec = AddingRows("r", 16);
  spec.set_memory_max_bytes(1 << 20);
  const auto tables = Ensure({spec, AddingDense("d", 100, 0)});
  ASSERT_TRUE(tables.ok());
  const TableId table = tables->tables(0).id();
  absl::Status status;
  Key next = 0;
  Sequence sequence = 0;
  while (status.ok() && next < 1'000'000) {
    auto push = NewPush(++sequence);
    std::vector<std::pair<Key, float>> rows;
    for (int i = 0; i < 1000; ++i) rows.emplace_back(next++, 1.0f);
    push.AddRows(table, 16, rows, true);
    status = Push(push).status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("memory_max_bytes"));
  EXPECT_EQ(PullRows(table, 16, {0, 999}), (std::vector<float>{1, 1}));
  auto push = NewPush(++sequence);
  push.AddDense(tables->tables(1).id(), {100, 4096}, 1.0f);
  EXPECT_TRUE(Push(push).ok());
}

TEST_F(StoreTest, ADenseTableOverTheServersMemoryIsRefusedBeforeItIsMade) {
  Store::Options options;
  options.memory_max_bytes = 1 << 20;
  Make(options);
  const auto tables = Ensure({AddingDense("d", 1 << 20, 0)});
  EXPECT_EQ(tables.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(tables.status().message()), HasSubstr("server.memory_max_bytes"));
}

// Regression: what came during a sweep waited for a step of each shard.
TEST_F(StoreTest, OfASweepOneStepWaitsInAnExecutorsQueueHoweverManyShardsItHas) {
  Make();
  v1::TableSpec spec = AddingRows("r", 1);
  spec.mutable_embedding()->mutable_eviction()->set_ttl_ms(10'000);
  ASSERT_TRUE(Ensure({spec}).ok());
  Executor& executor = store_->shards().executors()[0];
  BusyExecutor busy(&executor);
  store_->Tick();
  EXPECT_EQ(executor.queue_length(), 2u) << "a step of the sweep, and one that measures loads";
  busy.Release();
}

// Regression: pulls that came during a push that makes many rows waited until all of its shards had them.
TEST_F(StoreTest, PullsThatWaitDuringAPushGoFirstBetweenTwoOfItsShardsAndOtherPushesDoNot) {
  Make({.turn_ns = 0});
  const auto tables = Ensure({AddingRows("r", 1)});
  ASSERT_TRUE(tables.ok()) << tables.status();
  std::vector<std::pair<Key, float>> rows;
  for (Key key = 0; key < 1000; ++key) rows.emplace_back(key, 1);
  Executors& executors = store_->shards().executors();
  const auto versions = [&](size_t executor) {  // Of its shards, ascending.
    std::vector<Version> versions;
    for (ShardId shard = 0; shard < kShards; ++shard) {
      if (store_->shards().ExecutorOf(shard) == executor) versions.push_back(store_->shards().VersionOf(shard));
    }
    std::sort(versions.begin(), versions.end());
    return versions;
  };
  // Everything waits for the executors, one behind the other: two pushes, and what looks at their shards as a pull.
  BusyExecutors busy(store_.get());
  constexpr Sequence kPushes = 2;
  std::vector<RequestBuilder<v1::PushRequest>> pushes;
  std::vector<std::optional<absl::StatusOr<v1::PushResponse>>> responses(kPushes);
  std::latch done{kPushes};
  for (Sequence i = 0; i < kPushes; ++i) {
    pushes.push_back(NewPush(i + 1));
    pushes[i].AddRows(tables->tables(0).id(), 1, rows, true);
    store_->pushes().Push(pushes[i].header, pushes[i].payload(), [&, i](absl::StatusOr<v1::PushResponse> result) {
      responses[i] = std::move(result);
      done.count_down();
    });
  }
  std::vector<std::vector<Version>> seen(executors.size());
  Countdown looked(static_cast<int64_t>(executors.size()));
  for (size_t e = 0; e < executors.size(); ++e) {
    const auto look = [&, e] {
      seen[e] = versions(e);
      looked.CountDown();
    };
    executors[e].Submit(look, Executor::Order::kFree);
  }
  busy.Release();
  looked.Wait();
  done.wait();
  for (size_t e = 0; e < executors.size(); ++e) {
    EXPECT_THAT(seen[e], testing::ElementsAre(0, 0, 0, 1)) << "the first push has had one turn, and the second none";
    EXPECT_THAT(versions(e), testing::Each(kPushes));
  }
  for (Sequence i = 0; i < kPushes; ++i) {
    ASSERT_TRUE(responses[i]->ok()) << responses[i]->status();
    ASSERT_EQ((*responses[i])->shards_size(), static_cast<int>(kShards));
    for (const auto& shard : (*responses[i])->shards()) EXPECT_EQ(shard.version(), i + 1) << "in their order";
    const auto again = Push(pushes[i]);
    ASSERT_TRUE(again.ok()) << again.status();
    for (const auto& shard : again->shards()) EXPECT_TRUE(shard.duplicate());
  }
  v1::StatusResponse status;
  store_->FillStatus(&status);
  EXPECT_EQ(status.tables(0).updates(), kPushes);
}

TEST_F(StoreTest, AnIdleSessionIsForgottenAndItsWorkerCannotPushAgain) {
  Make();
  const BlockLayout layout{10, 10};
  const auto tables = Ensure({AddingDense("d", 10, 10)});
  ASSERT_TRUE(tables.ok());
  auto push = NewPush(1);
  push.AddDense(tables->tables(0).id(), layout, 1.0f);
  ASSERT_TRUE(Push(push).ok());
  time_.AdvanceMs(limits::kSessionIdleMaxMs + 1);
  store_->Tick();
  EXPECT_EQ(Push(push).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Ensure({}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Ensure({}, kWorker + 1).ok());
  EXPECT_EQ(Floats(PullBlocks(tables->tables(0).id(), layout).at(0).second)[0], 1.0f);
}

// Regression: a run that rested for longer could not go on. Each worker that got one of its ranges was refused.
TEST_F(StoreTest, TheSessionOfARangeThatIsOpenStaysHoweverLongNobodyTrainsIt) {
  Make();
  const auto tables = Ensure({AddingDense("d", 10, 10)});
  ASSERT_TRUE(tables.ok());
  auto push = NewPush(1);
  push.AddDense(tables->tables(0).id(), {10, 10}, 1.0f);
  ASSERT_TRUE(Push(push).ok());
  for (int i = 0; i < 3; ++i) {
    time_.AdvanceMs(limits::kSessionIdleMaxMs / 2 + 1);
    store_->KeepSessions({{kWorker, kWorker + 7}});  // The other one has none.
    store_->Tick();
  }
  const auto again = Push(push);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->shards(0).duplicate());
}

// Regression: a ps that had heard from another one that this had forgotten its newest worker forgot it too when it was
// started again.
TEST_F(StoreTest, ASessionComesBackAlsoWhereAnotherPsHasForgottenTheWorker) {
  Make();
  store_->replayer().RestoreSessions({{kWorker}}, /*forgotten_max=*/kWorker, {});
  EXPECT_TRUE(store_->sessions().IsOpen(kWorker));
  store_->replayer().RestoreSessions({}, /*forgotten_max=*/kWorker, {});
  EXPECT_FALSE(store_->sessions().IsOpen(kWorker)) << "by another checkpoint it was forgotten here";
}

TEST_F(StoreTest, WhatTheCoordinatorGaveSaysHowFarAheadAWorkerMayBe) {
  Make();
  const auto ahead = [](int hours) {
    return FirstIncarnation(std::chrono::system_clock::now() + std::chrono::hours(hours));
  };
  EXPECT_TRUE(absl::IsInvalidArgument(Ensure({}, ahead(50)).status()));
  store_->NoteGiven(ahead(48));  // To a ps, as Join and the map say.
  EXPECT_TRUE(Ensure({}, ahead(50)).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Ensure({}, ahead(98)).status()));
  store_->EndSessions({{ahead(96)}});  // To a worker that was refused.
  EXPECT_TRUE(Ensure({}, ahead(98)).ok());
}

TEST_F(StoreTest, TheSessionOfAWorkerThatHasEndedIsOverAndItsMarksGo) {
  Make();
  const BlockLayout layout{10, 10};
  const auto tables = Ensure({AddingDense("d", 10, 10)});
  ASSERT_TRUE(tables.ok());
  const auto push_of = [&](Sequence sequence, Incarnation worker) {
    auto push = NewPush(sequence, worker);
    push.AddDense(tables->tables(0).id(), layout, 1.0f);
    return push;
  };
  ASSERT_TRUE(Ensure({}, kWorker + 1).ok());
  ASSERT_TRUE(Push(push_of(1, kWorker)).ok());
  ASSERT_TRUE(Push(push_of(1, kWorker + 1)).ok());
  store_->EndSessions({{kWorker}});
  ASSERT_TRUE(Ensure({AddingDense("made_after_that", 1, 0)}, /*worker=*/0).ok());
  EXPECT_EQ(Push(push_of(1, kWorker)).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Ensure({}, kWorker).status().code(), absl::StatusCode::kFailedPrecondition);
  const auto again = Push(push_of(1, kWorker + 1));
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->shards(0).duplicate());
  const ShardId shard = ShardOfBlock(tables->tables(0).id(), 0, kShards);
  size_t windows = 0;
  store_->shards().Run(shard, [&](Shard* owned) { windows = owned->CollectState(nullptr).windows.size(); });
  EXPECT_EQ(windows, 1u);
}

TEST_F(StoreTest, TheBroadcastListenerIsCalledEachTimeATableHadItsPushes) {
  Make();
  v1::TableSpec spec = AddingDense("d", 10, 10);
  spec.mutable_broadcast()->set_every_pushes(3);
  std::atomic<int> called{0};
  store_->pushes().SetBroadcastListener([&](std::span<const TableId>) { called.fetch_add(1); });
  const auto tables = Ensure({spec});
  ASSERT_TRUE(tables.ok());
  for (Sequence s = 1; s <= 10; ++s) {
    auto push = NewPush(s);
    push.AddDense(tables->tables(0).id(), {10, 10}, 1.0f);
    ASSERT_TRUE(Push(push).ok());
    ASSERT_TRUE(Push(push).ok());  // Duplicates do not count.
  }
  EXPECT_EQ(called.load(), 3);
}

// Messages once counted: broadcasts of a table that takes several of them were as much too frequent, and their values
// those of half a push.
TEST_F(StoreTest, APushInSeveralMessagesCountsOnceForBroadcastsAndUpdates) {
  Make();
  const BlockLayout layout{96, 4};
  v1::TableSpec spec = AddingDense("d", layout.elements, layout.block_elements);
  spec.mutable_broadcast()->set_every_pushes(2);
  int called = 0;
  store_->pushes().SetBroadcastListener([&](std::span<const TableId>) { ++called; });
  const auto tables = Ensure({spec});
  ASSERT_TRUE(tables.ok());
  const TableId table = tables->tables(0).id();
  Sequence sequence = 0;
  const auto push_whole = [&] {
    const BlockIndex blocks_per_message = 8;
    for (BlockIndex begin = 0; begin < layout.block_count(); begin += blocks_per_message) {
      auto push = NewPush(++sequence);
      for (BlockIndex b = begin; b < begin + blocks_per_message; ++b) {
        v1::Part* part = push.header.add_parts();
        part->set_shard(ShardOfBlock(table, b, kShards));
        part->set_table(table);
        part->add_blocks(b);
        if (begin + blocks_per_message < layout.block_count()) part->set_more(v1::Part::FOR_SHARD);
        push.AppendRepeated(1.0f, layout.ElementsOf(b));
      }
      ASSERT_TRUE(Push(push).ok());
      ASSERT_TRUE(Push(push)->shards(0).duplicate());
    }
  };
  std::vector<int> calls;
  for (int i = 0; i < 5; ++i) {
    push_whole();
    calls.push_back(called);
  }
  EXPECT_EQ(calls, (std::vector<int>{0, 1, 1, 2, 2}));
  v1::StatusResponse status;
  store_->FillStatus(&status);
  EXPECT_EQ(status.tables(0).updates(), 5u);
}

// A message that ended after the last one of its push (another executor, or sent again) once was broadcast with the
// next push only, if any came.
TEST_F(StoreTest, AMessageThatEndsAfterTheLastOneOfItsPushIsBroadcastToo) {
  Make();
  const BlockLayout layout{8, 4};
  v1::TableSpec spec = AddingDense("d", layout.elements, layout.block_elements);
  spec.mutable_broadcast()->set_every_pushes(2);
  int called = 0;
  store_->pushes().SetBroadcastListener([&](std::span<const TableId>) { ++called; });
  const auto tables = Ensure({spec});
  ASSERT_TRUE(tables.ok());
  const TableId table = tables->tables(0).id();
  // Calls of the listener after a message: block 0 is sent first, and block 1 last.
  const auto after = [&](Sequence sequence, BlockIndex block, Incarnation worker = kWorker) {
    auto push = NewPush(sequence, worker);
    v1::Part* part = push.header.add_parts();
    part->set_shard(ShardOfBlock(table, block, kShards));
    part->set_table(table);
    part->add_blocks(block);
    if (block == 0) part->set_more(v1::Part::FOR_PS);
    push.AppendRepeated(1.0f, layout.ElementsOf(block));
    EXPECT_TRUE(Push(push).ok());
    EXPECT_TRUE(Push(push)->shards(0).duplicate());  // By the same executor, after what it tells the listener.
    return called;
  };
  EXPECT_EQ(after(2, 1), 0);
  EXPECT_EQ(after(1, 0), 0) << "nothing was due for it";
  EXPECT_EQ(after(6, 1), 1) << "the second push";
  EXPECT_EQ(after(7, 0), 1) << "the third, which goes on";
  EXPECT_EQ(after(5, 0), 2) << "late";
  EXPECT_EQ(after(8, 1), 2) << "the third";
  constexpr Incarnation kOther = kWorker + 1;
  ASSERT_TRUE(Ensure({}, kOther).ok());
  EXPECT_EQ(after(2, 1, kOther), 3) << "the fourth";
  EXPECT_EQ(after(4, 1, kOther), 3) << "the fifth";
  EXPECT_EQ(after(10, 1), 4) << "the sixth";
  EXPECT_EQ(after(3, 0, kOther), 5) << "late, though another worker's push was the last that counted";
  EXPECT_EQ(after(12, 1), 5) << "the seventh";
  EXPECT_EQ(after(11, 0), 5) << "nothing was due since it was counted";
}

// Each message once was a step, so that shards whose rows a cut went through had other learning rates than the rest.
TEST_F(StoreTest, RowsOfAPushInSeveralMessagesTakeOneStepOfTheSchedule) {
  Make();
  v1::TableSpec spec = AddingRows("r", 2);
  v1::Schedule::Step* const step = spec.mutable_optimizer()->mutable_schedule()->mutable_step();
  step->set_every_steps(1);
  step->set_factor(0.5f);
  const auto tables = Ensure({spec});
  ASSERT_TRUE(tables.ok());
  const TableId table = tables->tables(0).id();
  std::vector<Key> keys;  // Of one shard.
  for (Key key = 0; keys.size() < 3; ++key) {
    if (ShardOfKey(key, kShards) == 0) keys.push_back(key);
  }
  Sequence sequence = 0;
  for (int i = 0; i < 2; ++i) {
    for (const Key key : keys) {
      auto push = NewPush(++sequence);
      push.AddRows(table, 2, {{key, 1.0f}}, true);
      if (key != keys.back()) push.header.mutable_parts(0)->set_more(v1::Part::FOR_SHARD);
      ASSERT_TRUE(Push(push).ok());
    }
  }
  EXPECT_EQ(PullRows(table, 2, keys), std::vector<float>(3, 1.5f)) << "a full step and a half one";
}

TEST_F(StoreTest, TheBroadcastListenerIsCalledOnceForAllTablesOfAPushThatAreDue) {
  Make();
  std::vector<v1::TableSpec> specs = {AddingDense("a", 10, 10), AddingDense("b", 10, 10), AddingRows("r", 2)};
  for (v1::TableSpec& spec : specs) spec.mutable_broadcast()->set_every_pushes(2);
  specs[2].mutable_broadcast()->set_every_pushes(4);
  std::vector<std::vector<TableId>> called;
  store_->pushes().SetBroadcastListener([&](std::span<const TableId> due) {
    called.emplace_back(due.begin(), due.end());
    std::sort(called.back().begin(), called.back().end());
  });
  const auto tables = Ensure(specs);
  ASSERT_TRUE(tables.ok());
  std::vector<TableId> all;
  for (const auto& table : tables->tables()) all.push_back(table.id());
  for (Sequence s = 1; s <= 4; ++s) {
    auto push = NewPush(s);
    push.AddDense(all[0], {10, 10}, 1.0f);
    push.AddDense(all[1], {10, 10}, 1.0f);
    push.AddRows(all[2], 2, {{s, 1.0f}}, true);
    ASSERT_TRUE(Push(push).ok());
  }
  store_.reset();  // Whatever an executor may still say.
  std::vector<TableId> dense = {all[0], all[1]};
  std::sort(dense.begin(), dense.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(called, (std::vector<std::vector<TableId>>{dense, all}));
}

// Each part of a push once counted for itself, and duplicates and refused pushes counted too.
TEST_F(StoreTest, AnAppliedPushIsOneUpdateOfEachTableThatItTouches) {
  Make();
  v1::TableSpec small = AddingRows("full", 2);
  small.set_memory_max_bytes(1);
  const BlockLayout layout{1000, 64};
  const auto tables = Ensure({AddingDense("d", 1000, 64), AddingRows("r", 2), small});
  ASSERT_TRUE(tables.ok()) << tables.status();
  const TableId dense = tables->tables(0).id();
  const TableId rows = tables->tables(1).id();
  const TableId full = tables->tables(2).id();
  std::vector<std::pair<Key, float>> many;
  for (Key key = 0; key < 100; ++key) many.emplace_back(key, 1.0f);

  auto both = NewPush(1);
  both.AddDense(dense, layout, 1.0f);
  both.AddRows(rows, 2, many, true);
  ASSERT_GT(both.header.parts_size(), 2) << "it goes to several shards";
  ASSERT_TRUE(Push(both).ok());
  const auto again = Push(both);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->shards(0).duplicate());

  auto rows_alone = NewPush(2);
  rows_alone.AddRows(rows, 2, many, true);
  ASSERT_TRUE(Push(rows_alone).ok());

  auto not_finite = NewPush(3);
  not_finite.AddDense(dense, layout, 1.0f);
  not_finite.AddRows(rows, 2, {{7, std::numeric_limits<float>::quiet_NaN()}}, true);
  EXPECT_EQ(Push(not_finite).status().code(), absl::StatusCode::kInvalidArgument);

  absl::Status refused;
  uint64_t let_in = 0;
  for (Sequence sequence = 4; refused.ok() && sequence < 100; ++sequence) {
    auto push = NewPush(sequence);
    push.AddRows(rows, 2, many, true);
    push.AddRows(full, 2, many, true);
    refused = Push(push).status();
    let_in += refused.ok();
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);

  v1::StatusResponse status;
  store_->FillStatus(&status);
  std::map<std::string, uint64_t> updates;
  for (const v1::TableStatus& table : status.tables()) updates[table.name()] = table.updates();
  EXPECT_EQ(updates["d"], 1u);
  EXPECT_EQ(updates["r"], 2 + let_in);
  EXPECT_EQ(updates["full"], let_in);
}

TEST_F(StoreTest, APushFarAboveTheUsualIsRefusedWholeAndCountedForItsWorker) {
  Make();
  v1::TableSpec guarded = AddingDense("guarded", 1000, 64);
  guarded.mutable_guard()->set_norm_max_factor(10);
  const auto tables = Ensure({guarded, AddingRows("free", 2)});
  ASSERT_TRUE(tables.ok());
  const BlockLayout layout{1000, 64};
  Sequence sequence = 0;
  for (uint64_t i = 0; i < NormGuard::kPushesUnjudged; ++i) {
    auto push = NewPush(++sequence);
    push.AddDense(tables->tables(0).id(), layout, 1.0f);
    ASSERT_TRUE(Push(push).ok());
  }
  auto poison = NewPush(++sequence);
  poison.AddRows(tables->tables(1).id(), 2, {{7, 1.0f}}, true);
  poison.AddDense(tables->tables(0).id(), layout, 11.0f);
  EXPECT_EQ(Push(poison).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(PullRows(tables->tables(1).id(), 2, {7}), std::vector<float>{0.0f});
  auto usual = NewPush(++sequence);
  usual.AddDense(tables->tables(0).id(), layout, 9.0f);
  EXPECT_TRUE(Push(usual).ok());

  v1::StatusResponse status;
  store_->FillStatus(&status);
  ASSERT_EQ(status.sessions_size(), 1);
  EXPECT_EQ(status.sessions(0).refused(), 1u);
  EXPECT_THAT(status.server().last_refusal(), testing::HasSubstr("table `guarded`"));
}

TEST_F(StoreTest, WhatAnOperatorSetsForAPauseIsRefusedOnceAWorkerTrainsAgain) {
  Make();
  ASSERT_TRUE(Ensure({AddingRows("r", 4)}).ok());
  v1::SetTableRequest request;
  request.set_table("r");
  request.set_orders(1);
  request.add_fields("consistency");
  request.mutable_settings()->mutable_consistency()->mutable_sync()->set_batches(2);
  const auto set = [&] {
    std::promise<absl::StatusOr<v1::SetTableResponse>> done;
    store_->SetTable(request, [&](absl::StatusOr<v1::SetTableResponse> response) { done.set_value(response); });
    return done.get_future().get().status();
  };
  EXPECT_TRUE(set().ok());
  v1::EnsureTablesRequest asks;
  asks.set_orders(2);
  asks.add_describe("r");
  const auto observer = store_->EnsureTables(asks);
  ASSERT_TRUE(observer.ok()) << observer.status();
  EXPECT_TRUE(observer->described(0).consistency().has_sync());
  EXPECT_TRUE(set().ok()) << "an observer trains nothing";
  asks.set_worker_incarnation(kWorker);
  EXPECT_TRUE(store_->EnsureTables(asks).ok());
  request.mutable_settings()->mutable_consistency()->mutable_async();
  EXPECT_EQ(set().code(), absl::StatusCode::kFailedPrecondition) << "its caller was held up";
  EXPECT_TRUE(store_->tables().SpecOf("r")->consistency().has_sync());
  request.set_orders(3);
  EXPECT_TRUE(set().ok());
  store_->NoteOrders(5);
  EXPECT_EQ(set().code(), absl::StatusCode::kFailedPrecondition) << "it was started again meanwhile";
}

// Regression: at the end of a ps the tables behind the one that was being made were still made, and told to a log and
// to followers that were gone.
TEST_F(StoreTest, OnceItEndsNoTableIsMadeBehindTheOneThatIsBeingMade) {
  Make();
  BusyExecutors busy(store_.get());
  v1::EnsureTablesRequest request;
  request.set_worker_incarnation(kWorker);
  for (const char* name : {"first", "second"}) *request.add_tables() = AddingDense(name, 10, 10);
  std::promise<absl::Status> made;
  store_->EnsureTables(
      request, [&](const absl::StatusOr<v1::EnsureTablesResponse>& tables) { made.set_value(tables.status()); });
  while (store_->shards().executors()[0].queue_length() == 0) std::this_thread::yield();  // The first one is.
  std::thread ends([this] { store_->EndSlowWork(); });
  std::atomic<bool> refused{false};
  while (!refused.load()) {
    store_->EnsureTables(request, [&](const absl::StatusOr<v1::EnsureTablesResponse>& tables) {
      EXPECT_TRUE(absl::IsUnavailable(tables.status())) << tables.status();
      refused = true;
    });
    std::this_thread::yield();
  }
  busy.Release();
  ends.join();
  EXPECT_TRUE(absl::IsUnavailable(made.get_future().get()));
  EXPECT_TRUE(store_->tables().SpecOf("first").has_value());
  EXPECT_FALSE(store_->tables().SpecOf("second").has_value());
}

TEST_F(StoreTest, StatusTellsTablesSessionsAndRates) {
  Make();
  const auto tables = Ensure({AddingDense("d", 1000, 64), AddingRows("r", 4)});
  ASSERT_TRUE(tables.ok());
  store_->Tick();
  for (Sequence s = 1; s <= 20; ++s) {
    auto push = NewPush(s);
    push.header.set_clock(s);
    push.AddRows(tables->tables(1).id(), 4, {{s, 1.0f}}, true);
    ASSERT_TRUE(Push(push).ok());
  }
  time_.AdvanceMs(2'000);
  store_->Tick();
  v1::StatusResponse status;
  store_->FillStatus(&status);
  ASSERT_EQ(status.tables_size(), 2);
  EXPECT_EQ(status.tables(0).shape(), "dense [1000]");
  EXPECT_EQ(status.tables(0).blocks(), 16u);
  EXPECT_GE(status.tables(0).bytes(), 4000u);
  EXPECT_EQ(status.tables(1).rows(), 20u);
  EXPECT_EQ(status.tables(1).optimizer(), "sgd");
  ASSERT_EQ(status.sessions_size(), 1);
  EXPECT_EQ(status.sessions(0).clock(), 20u);
  EXPECT_EQ(status.sessions(0).pushes(), 20u);
  EXPECT_DOUBLE_EQ(status.server().pushes_per_second(), 10.0);
}

}  // namespace
}  // namespace lodestone::server
