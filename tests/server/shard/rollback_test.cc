#include <algorithm>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/shard_file.h"
#include "server/shard/table_state.h"
#include "tests/server/shard/filled_shard.h"

namespace lodestone::server {
namespace {

using testing::HasSubstr;
using TableRecords = std::vector<TablePart::Record>;

std::span<const uint8_t> BytesOf(const std::string& payload) {
  return {reinterpret_cast<const uint8_t*>(payload.data()), payload.size()};
}

// What a checkpoint of the state keeps of a table.
TableRecords RecordsOf(const Shard::State& state, TableId table) {
  TableRecords records;
  const RecordVisitor add = [&](const v1::CheckpointRecord& message, std::span<const ByteView> payload) {
    records.push_back({message, ""});
    for (const ByteView& piece : payload) {
      std::string& bytes = records.back().payload;
      bytes.append(reinterpret_cast<const char*>(piece.contiguous()), piece.size());
    }
    return absl::OkStatus();
  };
  for (const auto& part : state.dense) {
    if (part.table->id() != table) continue;
    EXPECT_EQ(VisitRecords(part, add), absl::OkStatus());
  }
  for (const auto& part : state.rows) {
    if (part.table->id() != table) continue;
    EXPECT_EQ(VisitRecords(part, add), absl::OkStatus());
  }
  return records;
}

absl::Status StageAll(const TableRecords& records, Shard* shard) {
  for (const TablePart::Record& record : records) {
    if (auto status = shard->rollback().Stage(record.message, BytesOf(record.payload)); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// All of a table but the versions: what is counted, blocks and rows with their state, uses, and keys that wait.
std::map<std::string, std::string> ContentOf(const Shard::State& state, TableId table) {
  std::map<std::string, std::string> content;
  for (const auto& part : state.dense) {
    if (part.table->id() != table) continue;
    for (const DenseTable::BlockState& block : part.blocks) {
      std::string& bytes = content[absl::StrCat("block ", block.block)];
      bytes.append(reinterpret_cast<const char*>(block.values->bytes()), block.values->size_bytes());
      if (block.state) bytes.append(reinterpret_cast<const char*>(block.state->bytes()), block.state->size_bytes());
      absl::StrAppend(&bytes, " updates ", block.updates);
    }
  }
  for (const auto& part : state.rows) {
    if (part.table->id() != table) continue;
    content["table"] = absl::StrCat(part.content.updates, " made ", part.content.made_ms);
    for (size_t p = 0; p < part.content.pages.size(); ++p) {
      const BufferRef& page = part.content.pages[p].page;
      for (uint32_t i = 0; i < part.layout.rows(); ++i) {
        if (part.layout.Changed(page)[i] == 0) continue;
        std::string& bytes = content[absl::StrCat("row ", part.layout.Keys(page)[i])];
        bytes.append(reinterpret_cast<const char*>(part.layout.Row(page, i)), part.layout.row_floats * sizeof(float));
        if (part.content.usage.empty()) continue;
        const auto& usage = part.content.usage[p * part.layout.rows() + i];
        absl::StrAppend(&bytes, " used ", usage.last_used, " times ", usage.count);
      }
    }
    for (const auto& [key, count] : part.content.candidates) content[absl::StrCat("waits ", key)] = absl::StrCat(count);
  }
  return content;
}

class RollbackWithEveryOptimizer : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Methods, RollbackWithEveryOptimizer, testing::ValuesIn(AllMethods()),
                         [](const auto& info) { return info.param.substr(0, info.param.find(' ')); });

TEST_P(RollbackWithEveryOptimizer, ATableIsWhatItWasAndTakesTheSameNextSteps) {
  const auto specs = SpecsWith(GetParam());
  FilledShard live(2, 4, specs), past(2, 4, specs);
  live.Run(1, 90);
  past.Run(1, 40);
  const Shard::State then = past->CollectState(nullptr);
  for (size_t t = 0; t < specs.size(); ++t) {
    const TableId id = live.table(t).id();
    const Version next = live->version() + 1;
    ASSERT_EQ(StageAll(RecordsOf(then, id), &*live), absl::OkStatus());
    ASSERT_EQ(live->rollback().Commit(id, next, live.now_ms()), absl::OkStatus());
    EXPECT_EQ(live->version(), next);
    EXPECT_EQ(ContentOf(live->CollectState(nullptr), id), ContentOf(then, id)) << specs[t].name();
    EXPECT_EQ(live.table(t).counters().rows, past.table(t).counters().rows);
    EXPECT_EQ(live.table(t).counters().blocks, past.table(t).counters().blocks);
  }
  // Which keys are admitted depends on the version, so only these two can be compared.
  for (Sequence s = 1'000; s < 1'010; ++s) {
    live.Push(9, s, static_cast<uint32_t>(s));
    past.Push(9, s, static_cast<uint32_t>(s));
  }
  for (const size_t t : {0, 1}) {
    const TableId id = live.table(t).id();
    EXPECT_EQ(ContentOf(live->CollectState(nullptr), id), ContentOf(past->CollectState(nullptr), id))
        << specs[t].name();
  }
  live.Run(2'000, 2'100);  // Admits, evicts and expires as ever.
  EXPECT_LE(live.table(2).counters().rows.load(), 300u);
}

class ShardRollbackTest : public ::testing::Test {
 protected:
  ShardRollbackTest() {
    past_.Run(1, 40);
    then_ = past_->CollectState(nullptr);
    live_.Run(1, 90);
  }
  TableId IdOf(size_t t) { return live_.table(t).id(); }

  // What staging and taking `records` as table `t` says; the shard is as it was afterwards, and takes the right ones.
  std::string ErrorOf(const TableRecords& records, size_t t, int64_t versions_ahead = 1) {
    const uint64_t checksum = live_.checksum();
    const uint64_t bytes = live_.table(t).counters().bytes, rows = live_.table(t).counters().rows;
    absl::Status status = StageAll(records, &*live_);
    if (status.ok()) status = live_->rollback().Commit(IdOf(t), live_->version() + versions_ahead, live_.now_ms());
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(live_->rollback().staged(), 0u);
    EXPECT_EQ(live_.checksum(), checksum);
    EXPECT_EQ(live_.table(t).counters().bytes, bytes);
    EXPECT_EQ(live_.table(t).counters().rows, rows);
    FilledShard other(1, 3, specs_);
    other.Run(1, 90);
    EXPECT_EQ(StageAll(RecordsOf(then_, IdOf(t)), &*other), absl::OkStatus());
    return std::string(status.message());
  }

  const std::vector<v1::TableSpec> specs_ = SpecsWith("adam {}");
  FilledShard past_{1, 3, specs_};
  FilledShard live_{1, 3, specs_};
  Shard::State then_;
};

TEST_F(ShardRollbackTest, WhatDoesNotFitChangesNothing) {
  const TableRecords dense = RecordsOf(then_, IdOf(0)), rows = RecordsOf(then_, IdOf(1));
  const auto changed = [](TableRecords records, const std::function<void(TableRecords*)>& change) {
    change(&records);
    return records;
  };
  EXPECT_THAT(ErrorOf(changed(dense, [](TableRecords* r) { r->back().payload.pop_back(); }), 0),
              HasSubstr("bytes, not"));
  EXPECT_THAT(ErrorOf(changed(dense, [](TableRecords* r) { r->push_back(r->front()); }), 0),
              HasSubstr("is there twice"));
  EXPECT_THAT(ErrorOf(changed(dense, [&](TableRecords* r) { r->push_back(rows[0]); }), 0), HasSubstr("two tables"));
  EXPECT_THAT(ErrorOf(changed(dense, [](TableRecords* r) { r->back().message.mutable_window(); }), 0),
              HasSubstr("no block"));
  EXPECT_THAT(
      ErrorOf(changed(dense, [](TableRecords* r) { r->resize(1), r->back().message.mutable_block()->set_table(3); }),
              0),
      HasSubstr("no dense table with id 3"));
  EXPECT_THAT(ErrorOf(dense, 1), HasSubstr("the records are of table id"));
  EXPECT_THAT(ErrorOf(dense, 0, /*versions_ahead=*/2), HasSubstr("updates between them are missing"));
  EXPECT_THAT(ErrorOf(rows, 1, /*versions_ahead=*/0), HasSubstr("updates between them are missing"));
  EXPECT_THAT(ErrorOf(changed(rows, [](TableRecords* r) { r->pop_back(); }), 1), HasSubstr("is missing"));
  EXPECT_THAT(ErrorOf(changed(rows, [](TableRecords* r) { r->erase(r->begin()); }), 1), HasSubstr("no header"));
  EXPECT_THAT(ErrorOf(changed(rows, [](TableRecords* r) { r->back().payload.replace(0, 8, 8, '\x7f'); }), 1),
              HasSubstr("key "));
}

TEST_F(ShardRollbackTest, EveryBlockAndPageHasChangedAndFollowersOfRowsStartAnew) {
  for (const size_t t : {0, 1, 2}) {
    const Table* const table = &live_.table(t);
    const Version before = live_->version(), next = before + 1;
    ASSERT_EQ(StageAll(RecordsOf(then_, IdOf(t)), &*live_), absl::OkStatus());
    ASSERT_EQ(live_->rollback().Commit(IdOf(t), next, live_.now_ms()), absl::OkStatus());
    const auto since = live_->Collect({&table, 1}, &before);
    if (t == 0) {
      ASSERT_TRUE(since.has_value());
      EXPECT_EQ(since->dense[0].blocks.size(), live_->CollectState(nullptr).dense[0].blocks.size());
      for (const auto& block : since->dense[0].blocks) EXPECT_EQ(block.version, next);
    } else {
      EXPECT_FALSE(since.has_value());
    }
    const Shard::State changes = live_->CollectState(&before);
    for (const auto& rows : changes.rows) {
      if (rows.table != table) continue;
      EXPECT_EQ(rows.content.pages.size(), rows.content.pages_total);
      for (const auto& page : rows.content.pages) {
        for (uint32_t i = 0; i < rows.layout.rows(); ++i) {
          const uint32_t changed = rows.layout.Changed(page.page)[i];
          EXPECT_TRUE(changed == 0 || changed == ChangedStamp(next));
        }
      }
    }
    const auto nothing = live_->Collect({&table, 1}, &next);
    ASSERT_TRUE(nothing.has_value());
    EXPECT_TRUE(t == 0 ? nothing->dense[0].blocks.empty() : nothing->rows[0].content.pages.empty());
  }
}

TEST_F(ShardRollbackTest, WhatWasReadBeforeStaysAsItWas) {
  const Shard::State before = live_->CollectState(nullptr);
  const uint64_t checksum = ContentChecksum(before);
  for (const size_t t : {0, 1, 2, 3}) {
    ASSERT_EQ(StageAll(RecordsOf(then_, IdOf(t)), &*live_), absl::OkStatus());
    ASSERT_EQ(live_->rollback().Commit(IdOf(t), live_->version() + 1, live_.now_ms()), absl::OkStatus());
  }
  EXPECT_EQ(ContentChecksum(before), checksum);
}

TEST_F(ShardRollbackTest, WindowsStayAndOtherTablesToo) {
  const Shard::State before = live_->CollectState(nullptr);
  ASSERT_EQ(StageAll(RecordsOf(then_, IdOf(1)), &*live_), absl::OkStatus());
  ASSERT_EQ(live_->rollback().Commit(IdOf(1), live_->version() + 1, live_.now_ms()), absl::OkStatus());
  for (const size_t t : {0, 2, 3}) {
    EXPECT_EQ(ContentOf(live_->CollectState(nullptr), IdOf(t)), ContentOf(before, IdOf(t)));
  }
  EXPECT_TRUE(live_.Push(1 + 90 % 3, 90, 90).duplicate);
}

TEST_F(ShardRollbackTest, WithoutAnyRecordATableIsAsItWasMade) {
  FilledShard fresh(1, 3, specs_, live_.now_ms());
  for (const size_t t : {0, 1, 2, 3}) {
    ASSERT_EQ(live_->rollback().Commit(IdOf(t), live_->version() + 1, live_.now_ms()), absl::OkStatus());
    EXPECT_EQ(ContentOf(live_->CollectState(nullptr), IdOf(t)), ContentOf(fresh->CollectState(nullptr), IdOf(t)));
    EXPECT_EQ(live_.table(t).counters().rows, 0u);
  }
}

TEST_F(ShardRollbackTest, BytesAreCountedAsOfATableThatWasRestored) {
  FilledShard restored(1, 3, specs_);
  for (const size_t t : {1, 2, 3}) {
    for (const TablePart::Record& record : RecordsOf(then_, IdOf(t))) {
      ASSERT_EQ(record.message.has_rows() ? restored->restore().Rows(record.message.rows())
                                          : restored->restore().Page(record.message.page(), BytesOf(record.payload)),
                absl::OkStatus());
    }
    ASSERT_EQ(StageAll(RecordsOf(then_, IdOf(t)), &*live_), absl::OkStatus());
    ASSERT_EQ(live_->rollback().Commit(IdOf(t), live_->version() + 1, live_.now_ms()), absl::OkStatus());
  }
  ASSERT_EQ(restored->restore().Finish(then_.version), absl::OkStatus());
  for (const size_t t : {1, 2, 3}) EXPECT_EQ(live_.table(t).counters().bytes, restored.table(t).counters().bytes);
}

TEST_F(ShardRollbackTest, APushInAReplayDropsWhatAnUnfinishedRollbackStaged) {
  ASSERT_EQ(StageAll(RecordsOf(then_, IdOf(0)), &*live_), absl::OkStatus());
  EXPECT_GT(live_->rollback().staged(), 0u);
  Evictions none(std::vector<EvictedKeys>{});
  ASSERT_EQ(live_->ReplayPush(live_->version() + 1, 50, 1, {}, live_.now_ms(), &none), absl::OkStatus());
  EXPECT_EQ(live_->rollback().staged(), 0u);
}

}  // namespace
}  // namespace lodestone::server
