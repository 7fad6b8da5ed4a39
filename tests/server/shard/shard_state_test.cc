#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/content_checksum.h"
#include "server/shard/shard.h"
#include "tests/server/shard/filled_shard.h"

namespace lodestone::server {
namespace {

using testing::HasSubstr;

// What a checkpoint's records say, before or after it is changed.
struct Block {
  v1::DenseBlock header;
  std::vector<uint8_t> payload;
};
struct Page {
  v1::RowsPage header;
  std::vector<uint8_t> payload;
};
struct Records {
  std::vector<Block> blocks;
  std::vector<v1::RowsTable> tables;
  std::vector<Page> pages;
  std::vector<v1::Window> windows;
  Version version = 0;
};

void Append(const void* bytes, size_t size, std::vector<uint8_t>* out) {
  const auto* const begin = static_cast<const uint8_t*>(bytes);
  out->insert(out->end(), begin, begin + size);
}

void AddRows(const Shard::State::RowsPart& part, Records* records) {
  v1::RowsTable table;
  table.set_table(part.table->id());
  table.set_updates(part.content.updates);
  table.set_made_ms(part.content.made_ms);
  table.set_pages(part.content.pages_total);
  table.set_rows_log2(part.layout.rows_log2);
  table.set_row_floats(static_cast<uint32_t>(part.layout.row_floats));
  for (const auto& [key, count] : part.content.candidates) {
    table.add_candidate_keys(key);
    table.add_candidate_counts(count);
  }
  records->tables.push_back(table);
  for (size_t i = 0; i < part.content.pages.size(); ++i) {
    const auto& page = part.content.pages[i];
    Page out;
    out.header.set_table(part.table->id());
    out.header.set_page(page.index);
    out.header.set_version(page.version);
    Append(page.page->bytes(), page.page->size_bytes(), &out.payload);
    if (!part.content.usage.empty()) {
      Append(&part.content.usage[i * part.layout.rows()], part.layout.rows() * sizeof(part.content.usage[0]),
             &out.payload);
    }
    records->pages.push_back(std::move(out));
  }
}

Records RecordsOf(const Shard::State& state) {
  Records records;
  records.version = state.version;
  for (const auto& part : state.dense) {
    for (const DenseTable::BlockState& block : part.blocks) {
      Block out;
      out.header.set_table(part.table->id());
      out.header.set_block(block.block);
      out.header.set_version(block.version);
      out.header.set_updates(block.updates);
      out.header.set_values(static_cast<uint32_t>(block.values->size_bytes() / sizeof(float)));
      Append(block.values->bytes(), block.values->size_bytes(), &out.payload);
      if (block.state) {
        out.header.set_state(static_cast<uint32_t>(block.state->size_bytes() / sizeof(float)));
        Append(block.state->bytes(), block.state->size_bytes(), &out.payload);
      }
      records.blocks.push_back(std::move(out));
    }
  }
  for (const auto& part : state.rows) AddRows(part, &records);
  for (const auto& [worker, window] : state.windows) {
    v1::Window out;
    out.set_worker(worker);
    out.set_newest(window.newest());
    out.set_applied(window.AppliedBits());
    records.windows.push_back(out);
  }
  return records;
}

absl::Status Restore(const Records& records, Shard* shard) {
  for (const Block& block : records.blocks) {
    if (auto status = shard->restore().Block(block.header, block.payload); !status.ok()) return status;
  }
  for (const Page& page : records.pages) {  // Before the tables: any order will do.
    if (auto status = shard->restore().Page(page.header, page.payload); !status.ok()) return status;
  }
  for (const v1::RowsTable& table : records.tables) {
    if (auto status = shard->restore().Rows(table); !status.ok()) return status;
  }
  for (const v1::Window& window : records.windows) {
    if (auto status = shard->restore().Window(window); !status.ok()) return status;
  }
  return shard->restore().Finish(records.version);
}

class ShardStateWithEveryOptimizer : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Methods, ShardStateWithEveryOptimizer, testing::ValuesIn(AllMethods()),
                         [](const auto& info) { return info.param.substr(0, info.param.find(' ')); });

TEST_P(ShardStateWithEveryOptimizer, ARestoredShardIsTheSameAndTakesTheSameNextSteps) {
  for (const uint32_t dim : {1, 5, 16, 4100}) {
    SCOPED_TRACE(dim);
    const auto specs = SpecsWith(GetParam(), dim);
    const uint32_t steps = dim > 1000 ? 6 : 60;
    FilledShard original(2, 4, specs);
    original.Run(1, steps);
    FilledShard restored(2, 4, specs, /*now_ms=*/77);
    ASSERT_EQ(Restore(RecordsOf(original->CollectState(nullptr)), &*restored), absl::OkStatus());
    EXPECT_EQ(restored->version(), original->version());
    EXPECT_EQ(restored.checksum(), original.checksum());
    for (size_t t = 0; t < specs.size(); ++t) {
      EXPECT_EQ(restored.table(t).counters().rows, original.table(t).counters().rows);
      EXPECT_EQ(restored.table(t).counters().blocks, original.table(t).counters().blocks);
    }
    restored.SetClock(original.now_ms());
    original.Run(steps + 1, 2 * steps);
    restored.Run(steps + 1, 2 * steps);
    EXPECT_EQ(restored.checksum(), original.checksum());
    EXPECT_TRUE(restored.Push(1 + 2 * steps % 3, 2 * steps, 1).duplicate);
  }
}

TEST_P(ShardStateWithEveryOptimizer, WhatChangedSinceGoesOnTopOfWhatWasBefore) {
  const auto specs = SpecsWith(GetParam());
  FilledShard original(0, 2, specs);
  original.Run(1, 40);
  const Records full = RecordsOf(original->CollectState(nullptr));
  for (Sequence sequence = 41; sequence <= 43; ++sequence) original.Push(1, sequence, 41, /*rows=*/1);
  const Shard::State change = original->CollectState(&full.version);
  EXPECT_EQ(change.after, full.version);
  Records merged = RecordsOf(change);
  ASSERT_LT(merged.pages.size(), full.pages.size());
  std::set<std::pair<TableId, uint32_t>> seen;
  for (const Block& block : merged.blocks) seen.emplace(block.header.table(), block.header.block());
  for (const Page& page : merged.pages) seen.emplace(page.header.table(), page.header.page());
  for (const Block& block : full.blocks) {
    if (!seen.contains({block.header.table(), block.header.block()})) merged.blocks.push_back(block);
  }
  for (const Page& page : full.pages) {
    if (!seen.contains({page.header.table(), page.header.page()})) merged.pages.push_back(page);
  }
  FilledShard restored(0, 2, specs);
  ASSERT_EQ(Restore(merged, &*restored), absl::OkStatus());
  EXPECT_EQ(restored.checksum(), original.checksum());
}

class ShardStateTest : public ::testing::Test {
 protected:
  ShardStateTest() {
    original_.Run(1, 60);
    records_ = RecordsOf(original_->CollectState(nullptr));
  }

  // What restoring says of records that `change` has changed. The shard then takes the right ones.
  std::string ErrorAfter(const std::function<void(Records*)>& change) {
    Records changed = records_;
    change(&changed);
    FilledShard restored(1, 3, specs_);
    const absl::Status status = Restore(changed, &*restored);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    restored->restore().Abandon();
    const absl::Status again = Restore(records_, &*restored);
    EXPECT_EQ(again, absl::OkStatus());
    if (again.ok()) {
      EXPECT_EQ(restored.checksum(), original_.checksum());
    }
    return std::string(status.message());
  }

  // The first page of table `t`, and its parts.
  Page& PageOf(size_t t, Records* records) {
    for (Page& page : records->pages) {
      if (page.header.table() == original_.table(t).id()) return page;
    }
    ADD_FAILURE() << "no page";
    return records->pages.front();
  }
  v1::RowsTable& HeaderOf(size_t t, Records* records) {
    for (v1::RowsTable& table : records->tables) {
      if (table.table() == original_.table(t).id()) return table;
    }
    ADD_FAILURE() << "no table";
    return records->tables.front();
  }

  // A key of another shard.
  static Key Stranger() {
    Key key = 1;
    while (ShardOfKey(key, 3) == 1) ++key;
    return key;
  }

  const std::vector<v1::TableSpec> specs_ = SpecsWith(AllMethods()[5]);
  FilledShard original_{1, 3, specs_};
  Records records_;
};

TEST_F(ShardStateTest, AStateStaysAsItWasWhilePushesGoOn) {
  const Shard::State state = original_->CollectState(nullptr);
  const uint64_t before = ContentChecksum(state);
  original_.Run(61, 80);
  EXPECT_EQ(ContentChecksum(state), before);
  EXPECT_NE(original_.checksum(), before);
}

TEST_F(ShardStateTest, TheTestsTablesHaveEvictedRefusedAndCounted) {
  EXPECT_GT(original_.table(2).counters().evicted.load(), 0u);
  EXPECT_GT(original_.table(3).counters().evicted.load(), 0u);
  EXPECT_GT(original_.table(2).counters().not_admitted.load(), 0u);
  EXPECT_GT(HeaderOf(2, &records_).candidate_keys_size(), 0);
  EXPECT_GT(HeaderOf(3, &records_).pages(), 1u);
}

TEST_F(ShardStateTest, NamesABlockThatDoesNotFit) {
  EXPECT_THAT(ErrorAfter([](Records* r) { r->blocks[0].header.set_table(5); }), HasSubstr("no dense table with id 5"));
  EXPECT_THAT(ErrorAfter([](Records* r) { r->blocks[0].header.set_block(900); }),
              HasSubstr("table `dense`, block 900: the table has 7"));
  EXPECT_THAT(ErrorAfter([](Records* r) { r->blocks[0].header.set_block(r->blocks[0].header.block() + 1); }),
              HasSubstr("is of another shard"));
  EXPECT_THAT(ErrorAfter([](Records* r) { r->blocks[0].header.set_values(31); }), HasSubstr("has 31 values"));
  EXPECT_THAT(ErrorAfter([](Records* r) { r->blocks[0].header.set_state(0); }), HasSubstr("0 floats of state"));
  EXPECT_THAT(ErrorAfter([](Records* r) { r->blocks[0].payload.pop_back(); }), HasSubstr("bytes, not"));
  EXPECT_THAT(ErrorAfter([](Records* r) { r->blocks[0].header.set_version(r->version + 1); }),
              HasSubstr("the shard of"));
}

TEST_F(ShardStateTest, NamesAPageThatDoesNotFit) {
  EXPECT_THAT(ErrorAfter([&](Records* r) { PageOf(1, r).header.set_table(5); }), HasSubstr("no embedding table"));
  EXPECT_THAT(ErrorAfter([&](Records* r) { PageOf(1, r).payload.pop_back(); }), HasSubstr("page 0: has"));
  EXPECT_THAT(ErrorAfter([&](Records* r) { PageOf(1, r).header.set_page(1); }), HasSubstr("page 1: is there twice"));
  EXPECT_THAT(ErrorAfter([&](Records* r) { PageOf(1, r).header.set_page(0xffffffff); }),
              HasSubstr("`rows/plain`, page 4294967295: is beyond the table's"));
  EXPECT_THAT(ErrorAfter([&](Records* r) { PageOf(1, r).header.set_version(r->version + 1); }),
              HasSubstr("the shard of"));
  EXPECT_THAT(ErrorAfter([&](Records* r) { r->pages.pop_back(); }), HasSubstr("is missing"));
  EXPECT_THAT(ErrorAfter([&](Records* r) {
                const Key key = Stranger();
                std::memcpy(PageOf(1, r).payload.data(), &key, sizeof(key));
              }),
              HasSubstr(absl::StrCat("page 0: key ", Stranger(), " is not of shard 1")));
  EXPECT_THAT(ErrorAfter([&](Records* r) {
                std::memcpy(PageOf(1, r).payload.data(), PageOf(1, r).payload.data() + sizeof(Key), sizeof(Key));
              }),
              HasSubstr("is there twice"));
}

TEST_F(ShardStateTest, NamesATableThatDoesNotFit) {
  EXPECT_THAT(ErrorAfter([&](Records* r) { r->tables[0].set_table(5); }), HasSubstr("no embedding table"));
  EXPECT_THAT(ErrorAfter([&](Records* r) { HeaderOf(1, r).set_rows_log2(3); }), HasSubstr("`rows/plain`: has 2^3"));
  EXPECT_THAT(ErrorAfter([&](Records* r) { HeaderOf(1, r).set_row_floats(3); }), HasSubstr("of 3 floats"));
  EXPECT_THAT(ErrorAfter([&](Records* r) { HeaderOf(1, r).set_pages(0xffffffff); }), HasSubstr("more rows than"));
  EXPECT_THAT(ErrorAfter([&](Records* r) { HeaderOf(1, r).set_pages(1 << 20); }), HasSubstr("is missing"));
  EXPECT_THAT(ErrorAfter([&](Records* r) { r->tables.push_back(HeaderOf(1, r)); }), HasSubstr("twice"));
  EXPECT_THAT(ErrorAfter([&](Records* r) { r->tables.clear(); }), HasSubstr("has pages but no header"));
  EXPECT_THAT(ErrorAfter([&](Records* r) { HeaderOf(2, r).add_candidate_keys(7); }), HasSubstr("have counts"));
  EXPECT_THAT(ErrorAfter([&](Records* r) { HeaderOf(2, r).set_candidate_keys(0, Stranger()); }),
              HasSubstr("not admitted, is not of shard 1"));
  EXPECT_THAT(ErrorAfter([&](Records* r) { HeaderOf(2, r).set_candidate_keys(0, HeaderOf(2, r).candidate_keys(1)); }),
              HasSubstr("not admitted, is there twice"));
}

TEST_F(ShardStateTest, NamesAWorkerWhoseWindowDoesNotFit) {
  EXPECT_THAT(ErrorAfter([](Records* r) { r->windows.push_back(r->windows[0]); }), HasSubstr("incarnation 1 is there"));
  EXPECT_THAT(ErrorAfter([](Records* r) { r->windows[0].mutable_applied()->pop_back(); }), HasSubstr("contradicts"));
  EXPECT_THAT(ErrorAfter([](Records* r) { r->windows[0].set_newest(2); }), HasSubstr("contradicts"));
  EXPECT_THAT(ErrorAfter([](Records* r) { r->windows[0].mutable_applied()->assign(128, '\0'); }),
              HasSubstr("contradicts"));
}

TEST_F(ShardStateTest, RefusesAVersionThatIsImpossible) {
  EXPECT_THAT(ErrorAfter([](Records* r) { r->version = Version{1} << 63; }), HasSubstr("no shard has ever come to"));
}

// Files are under checksums, but what stands in them is not believed either.
TEST_F(ShardStateTest, WhateverStandsInRecordsIsTakenOrRefusedAndTheShardGoesOn) {
  constexpr uint32_t kSeed = 11;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const auto flip = [&](std::string* bytes) {
    if (!bytes->empty()) (*bytes)[random() % bytes->size()] ^= static_cast<char>(1 << random() % 8);
  };
  // Changes a bit of a message, or leaves it if that is none any more.
  const auto change = [&](auto* message) {
    std::string bytes = message->SerializeAsString();
    flip(&bytes);
    auto changed = *message;
    if (changed.ParseFromString(bytes)) *message = changed;
  };
  int taken = 0;
  for (int i = 0; i < 400; ++i) {
    Records changed = records_;
    for (int edits = 1 + random() % 3; edits > 0; --edits) {
      Page& page = changed.pages[random() % changed.pages.size()];
      switch (random() % 5) {
        case 0:
          change(&changed.blocks[random() % changed.blocks.size()].header);
          break;
        case 1:
          change(&changed.tables[random() % changed.tables.size()]);
          break;
        case 2:
          change(&page.header);
          break;
        case 3:
          change(&changed.windows[random() % changed.windows.size()]);
          break;
        case 4:  // Also keys and stamps, which stand in front.
          page.payload[random() % (random() % 2 == 0 ? page.payload.size() : 500)] ^= static_cast<uint8_t>(random());
          break;
      }
    }
    FilledShard restored(1, 3, specs_);
    if (const absl::Status status = Restore(changed, &*restored); !status.ok()) {
      ASSERT_TRUE(absl::IsInvalidArgument(status)) << status;
      restored->restore().Abandon();
      ASSERT_EQ(Restore(records_, &*restored), absl::OkStatus());
      ASSERT_EQ(restored.checksum(), original_.checksum());
    } else {
      ++taken;
    }
    restored.SetClock(original_.now_ms());
    restored.Push(77, 1, i);
    Sweep(&*restored, restored.now_ms());
  }
  EXPECT_GT(taken, 20);
  EXPECT_LT(taken, 380);
}

TEST_F(ShardStateTest, AChangeSinceBeforeTheRestoredVersionIsAnAnchor) {
  FilledShard restored(1, 3, specs_);
  ASSERT_EQ(Restore(records_, &*restored), absl::OkStatus());
  const Table* const table = &restored.table(1);
  const Version before = records_.version - 1;
  EXPECT_FALSE(restored->Collect({&table, 1}, &before).has_value());
  const auto since = restored->Collect({&table, 1}, &records_.version);
  ASSERT_TRUE(since.has_value());
  EXPECT_TRUE(since->rows[0].content.pages.empty());
}

// A ps that was started while its clock was far ahead evicted all rows of tables with a ttl at its first sweep.
TEST_F(ShardStateTest, AClockThatIsFarAheadWhenATableIsRestoredEvictsNothingThatIsUsedSince) {
  constexpr uint64_t kDayMs = 24 * 3600'000;
  FilledShard restored(1, 3, specs_);
  ASSERT_EQ(Restore(records_, &*restored), absl::OkStatus());
  restored.SetClock(original_.now_ms() + 400 * kDayMs);
  restored.Push(77, 1, 1);  // Before the first sweep.
  const uint64_t rows = restored.table(3).counters().rows.load();
  EXPECT_FALSE(Sweep(&*restored, restored.now_ms()));
  EXPECT_EQ(restored.table(3).counters().rows.load(), rows);
  restored.SetClock(restored.now_ms() + 150);
  restored.Push(77, 2, 1);  // The same keys.
  EXPECT_FALSE(Sweep(&*restored, restored.now_ms()));
  restored.SetClock(restored.now_ms() + 150);
  EXPECT_TRUE(Sweep(&*restored, restored.now_ms()));
  EXPECT_GT(restored.table(3).counters().rows.load(), 0u);
  EXPECT_LT(restored.table(3).counters().rows.load(), rows);
}

TEST_F(ShardStateTest, ARestoredTableFillsItsFreeRowsFromTheFirst) {
  FilledShard restored(1, 3, specs_);
  ASSERT_EQ(Restore(records_, &*restored), absl::OkStatus());
  const uint32_t pages = HeaderOf(3, &records_).pages();
  for (const uint64_t later_ms : {1'000, 2'000}) {  // At first the clock has run far since the last use.
    restored.SetClock(original_.now_ms() + later_ms);
    Sweep(&*restored, restored.now_ms());
  }
  EXPECT_EQ(restored.table(3).counters().rows.load(), 0u);
  restored.Push(9, 1, 5);
  EXPECT_EQ(HeaderOf(3, &records_).pages(), pages);
  for (const auto& part : restored->CollectState(nullptr).rows) {
    if (part.table == &restored.table(3)) {
      EXPECT_EQ(part.content.pages_total, pages);
    }
  }
}

TEST_F(ShardStateTest, CountsTheBytesOfARestoredTableOnce) {
  FilledShard restored(1, 3, specs_);
  ASSERT_EQ(Restore(records_, &*restored), absl::OkStatus());
  for (const size_t t : {1, 2, 3}) {
    const uint64_t pages = uint64_t{HeaderOf(t, &records_).pages()} * PageOf(t, &records_).payload.size();
    const uint64_t bytes = restored.table(t).counters().bytes.load();
    EXPECT_GE(bytes, pages);
    // Beside the pages: the index, free rows, candidates and the page's own accounting.
    EXPECT_LE(bytes, 2 * original_.table(t).counters().bytes.load());
  }
}

TEST_F(ShardStateTest, ATableThatNothingIsKnownOfIsAsItWasMade) {
  Records none;
  none.version = 7;
  FilledShard restored(1, 3, specs_);
  FilledShard fresh(1, 3, specs_);
  ASSERT_EQ(Restore(none, &*restored), absl::OkStatus());
  EXPECT_EQ(restored->version(), 7u);
  Shard::State state = restored->CollectState(nullptr);
  state.version = 0;
  EXPECT_EQ(ContentChecksum(state), fresh.checksum());
}

TEST(ContentChecksum, DoesNotDependOnWhereRowsLie) {
  auto specs = SpecsWith("sgd {}");
  specs.resize(2);
  const auto checksum_of = [&](const std::vector<Key>& keys) {
    FilledShard shard(0, 1, specs);
    const std::vector<float> gradients(keys.size() * 5, 0.25f);
    PartView part;
    part.table = &shard.table(1);
    part.keys = ByteView(reinterpret_cast<const uint8_t*>(keys.data()), keys.size() * sizeof(Key));
    part.row_count = keys.size();
    part.gradients = ByteView(reinterpret_cast<const uint8_t*>(gradients.data()), gradients.size() * sizeof(float));
    EXPECT_TRUE(shard->Push(1, 1, {&part, 1}, 5).ok());
    return shard.checksum();
  };
  EXPECT_EQ(checksum_of({1, 2, 3}), checksum_of({3, 1, 2}));
  EXPECT_NE(checksum_of({1, 2, 3}), checksum_of({1, 2, 4}));
}

TEST_F(ShardStateTest, TheChecksumSeesEveryPart) {
  const auto checksum_after = [&](const std::function<void(Records*)>& change) {
    Records changed = records_;
    change(&changed);
    FilledShard restored(1, 3, specs_);
    EXPECT_EQ(Restore(changed, &*restored), absl::OkStatus());
    return restored.checksum();
  };
  const std::vector<std::function<void(Records*)>> changes = {
      [](Records*) {},
      [](Records* r) { ++r->version; },
      [](Records* r) { r->blocks[0].payload.front() ^= 1; },
      [](Records* r) { r->blocks[0].payload.back() ^= 1; },
      [](Records* r) { r->blocks[0].header.set_updates(1); },
      [](Records* r) { r->blocks[0].header.set_version(1); },
      [&](Records* r) {  // The last state of the first row.
        const PageLayout layout(original_.table(1));
        PageOf(1, r).payload[layout.rows() * (sizeof(Key) + sizeof(uint32_t)) + layout.row_floats * 4 - 1] ^= 1;
      },
      [&](Records* r) { HeaderOf(1, r).set_updates(1); },
      [&](Records* r) { HeaderOf(2, r).set_candidate_counts(0, 9); },
      [](Records* r) { r->windows.pop_back(); },
      [](Records* r) { (*r->windows[0].mutable_applied())[0] ^= 2; },
  };
  std::set<uint64_t> seen;
  for (const auto& change : changes) seen.insert(checksum_after(change));
  EXPECT_EQ(seen.size(), changes.size());
  EXPECT_TRUE(seen.contains(original_.checksum()));
}

}  // namespace
}  // namespace lodestone::server
