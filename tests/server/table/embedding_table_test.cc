#include "server/table/embedding_table.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "common/base/limits.h"
#include "gtest/gtest.h"
#include "tests/common/wire/byte_runs.h"
#include "tests/server/optimizer/methods.h"

namespace lodestone::server {
namespace {

// An embedding table of a one-shard cluster; SGD at -1 (adds what is pushed), zero initial values unless changed.
class EmbeddingTableTest : public ::testing::Test {
 protected:
  EmbeddingTableTest() {
    spec_.set_name("rows");
    spec_.mutable_embedding()->set_dim(3);
    spec_.mutable_optimizer()->mutable_sgd();
    spec_.mutable_optimizer()->set_learning_rate(-1);
  }

  void Make() {
    auto table = Table::Create(spec_, /*cluster_seed=*/11, /*shards=*/1);
    ASSERT_TRUE(table.ok()) << table.status();
    table_ = *std::move(table);
    rows_ = std::make_unique<EmbeddingTable>(table_.get(), now_ms_);
  }

  // Pushes rows whose every element is the given number.
  void Push(const std::vector<std::pair<Key, float>>& rows) {
    std::vector<Key> keys;
    std::vector<float> gradients;
    for (const auto& [key, value] : rows) {
      keys.push_back(key);
      gradients.insert(gradients.end(), table_->dim(), value);
    }
    rows_->Apply(Bytes(keys), Bytes(gradients), keys.size(), now_ms_, ++version_);
  }

  // The first elements of the rows.
  std::vector<float> Read(const std::vector<Key>& keys) {
    std::vector<float> values(keys.size() * table_->dim());
    rows_->Read(Bytes(keys), keys.size(), now_ms_, values.data());
    std::vector<float> firsts;
    for (size_t i = 0; i < keys.size(); ++i) firsts.push_back(values[i * table_->dim()]);
    return firsts;
  }

  template <typename T>
  static ByteView Bytes(const std::vector<T>& values) {
    return ByteView(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T));
  }

  v1::TableSpec spec_;
  uint64_t now_ms_ = 5'000;
  Version version_ = 0;
  std::unique_ptr<Table> table_;
  std::unique_ptr<EmbeddingTable> rows_;
};

TEST_F(EmbeddingTableTest, ReadsInitialValuesOfAKeyThatWasNeverPushedWithoutMakingARow) {
  spec_.mutable_initializer()->mutable_uniform();
  Make();
  std::vector<float> expected(3);
  table_->InitializeRow(42, expected.data());
  EXPECT_EQ(Read({42}), std::vector<float>{expected[0]});
  EXPECT_NE(expected[0], 0);
  EXPECT_EQ(rows_->rows(), 0u);
}

TEST_F(EmbeddingTableTest, ReadsOfSeveralTablesAtOnceAreWhatReadsOneByOneAre) {
  constexpr unsigned kSeed = 5;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  // Tables of several widths, half of whose keys have rows; one counts uses.
  struct Part {
    std::unique_ptr<Table> table;
    std::unique_ptr<EmbeddingTable> rows;
  };
  std::vector<Part> parts;
  for (const uint32_t dim : {1, 3, 16, 70}) {
    spec_.mutable_embedding()->set_dim(dim);
    spec_.mutable_embedding()->mutable_eviction()->set_ttl_ms(dim == 3 ? 1'000 : 0);
    spec_.mutable_initializer()->mutable_uniform();
    Make();
    std::vector<std::pair<Key, float>> rows;
    for (Key key = 0; key < 400; key += 2) rows.emplace_back(key, static_cast<float>(random() % 9));
    Push(rows);
    parts.push_back({std::move(table_), std::move(rows_)});
  }
  for (const std::vector<size_t>& counts : {std::vector<size_t>{},
                                            {0},
                                            {1},
                                            {32},
                                            {33},
                                            {0, 5, 0, 0, 7, 0},
                                            {31, 1, 32, 64, 96},
                                            {200, 3, 1, 1, 90, 2, 33}}) {
    std::vector<std::vector<Key>> keys(counts.size());
    std::vector<std::vector<float>> one_by_one(counts.size()), together(counts.size());
    std::vector<ByteRuns> runs;
    std::mt19937 cuts(kSeed);
    for (size_t i = 0; i < counts.size(); ++i) {
      for (size_t k = 0; k < counts[i]; ++k) keys[i].push_back(random() % 400);
      runs.emplace_back(keys[i].data(), keys[i].size() * sizeof(Key), 50, &cuts);
    }
    std::vector<EmbeddingTable::Wanted> wanted;
    for (size_t i = 0; i < counts.size(); ++i) {
      const Part& part = parts[i % parts.size()];
      one_by_one[i].resize(counts[i] * part.table->dim());
      together[i].resize(one_by_one[i].size());
      for (size_t k = 0; k < counts[i]; ++k) {
        part.rows->Read(Bytes(std::vector<Key>{keys[i][k]}), 1, now_ms_, &one_by_one[i][k * part.table->dim()]);
      }
      wanted.push_back({part.rows.get(), runs[i].view(), counts[i], together[i].data()});
    }
    EmbeddingTable::Read(wanted, now_ms_);
    EXPECT_EQ(together, one_by_one);
  }
  // Reading keeps rows from expiring, in whichever company.
  now_ms_ += 900;
  const std::vector<Key> kept = {2, 4};
  std::vector<float> values(2 * 3), other(2);
  const std::vector<EmbeddingTable::Wanted> wanted = {{parts[0].rows.get(), Bytes(kept), 2, other.data()},
                                                      {parts[1].rows.get(), Bytes(kept), 2, values.data()}};
  EmbeddingTable::Read(wanted, now_ms_);
  EXPECT_TRUE(parts[1].rows->EvictExpired(now_ms_ + 900, ++version_));
  EXPECT_EQ(parts[1].rows->rows(), 2u);
}

TEST_F(EmbeddingTableTest, AddsAcrossManyKeysPagesAndGrowths) {
  Make();
  constexpr unsigned kSeed = 3;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  std::map<Key, float> expected;
  for (int push = 0; push < 200; ++push) {
    std::map<Key, float> rows;
    for (int i = 0; i < 300; ++i) rows[random() % 20'000] = static_cast<float>(random() % 9);
    for (const auto& [key, value] : rows) expected[key] += value;
    Push({rows.begin(), rows.end()});
  }
  EXPECT_EQ(rows_->rows(), expected.size());
  EXPECT_EQ(table_->counters().rows.load(), expected.size());
  for (const auto& [key, value] : expected) ASSERT_EQ(Read({key})[0], value) << key;
}

TEST_F(EmbeddingTableTest, RowsAreReadAndUpdatedWhileTheirIndexGrows) {
  constexpr unsigned kSeed = 12;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  Make();
  // So many that the index grows in steps several times, a few more rows at a time.
  std::vector<float> counts;
  while (counts.size() < 30'000) {
    std::vector<std::pair<Key, float>> rows;
    for (int fresh = 0; fresh < 50; ++fresh) {
      counts.push_back(1);
      rows.emplace_back(counts.size() - 1, 1);
    }
    for (int known = 0; known < 50; ++known) {
      const Key key = random() % counts.size();
      counts[key] += 1;
      rows.emplace_back(key, 1);
    }
    Push(rows);
    std::vector<Key> read;
    std::vector<float> expected;
    for (int i = 0; i < 100; ++i) {
      read.push_back(random() % (counts.size() + 10));
      expected.push_back(read.back() < counts.size() ? counts[read.back()] : 0);
    }
    ASSERT_EQ(Read(read), expected) << counts.size();
  }
  EXPECT_EQ(rows_->rows(), counts.size());
}

// It once stayed half grown for as long as no row was new, and half of the look-ups searched twice.
TEST_F(EmbeddingTableTest, AGrowthOfTheIndexEndsThoughNoRowIsNewAnyMore) {
  constexpr uint64_t kIndexBytesLeast = 64 << 10;  // Of an index that grows in steps; far more than a page has.
  Make();
  uint64_t before = 0;
  for (Key key = 0; before == 0 || rows_->bytes() < before + kIndexBytesLeast; ++key) {
    before = rows_->bytes();
    Push({{key, 1}});
  }
  const uint64_t growing = rows_->bytes();
  for (int push = 0; push < 10'000 && rows_->bytes() == growing; ++push) Push({{0, 1}});
  EXPECT_LT(rows_->bytes(), growing);
}

TEST_F(EmbeddingTableTest, AKeyThatIsMissingOrNotAdmittedDoesNotShiftTheGradientsOfTheKeysAfterIt) {
  spec_.mutable_embedding()->mutable_admission()->set_count_min(2);
  Make();
  Push({{1, 10}, {3, 30}});        // Seen once: not admitted.
  Push({{1, 1}, {2, 2}, {3, 3}});  // 1 and 3 are admitted, 2 is not.
  EXPECT_EQ(Read({1, 2, 3, 4}), (std::vector<float>{1, 0, 3, 0}));
  EXPECT_EQ(table_->counters().not_admitted.load(), 3u);
  Push({{2, 20}, {9, 90}, {3, 30}});  // 9 is not admitted, between two that are.
  EXPECT_EQ(Read({1, 2, 9, 3}), (std::vector<float>{1, 20, 0, 33}));
}

TEST_F(EmbeddingTableTest, AnEvictedKeyDoesNotShiftTheGradientsOfTheKeysAfterIt) {
  spec_.mutable_embedding()->mutable_eviction()->set_rows_max(4);
  Make();
  Push({{1, 1}});
  now_ms_ += 1000;
  Push({{4, 4}});
  now_ms_ += 1000;
  Push({{2, 2}, {3, 3}});
  now_ms_ += 1000;
  Push({{5, 5}, {2, 20}, {1, 10}, {3, 30}});  // 5 evicts 1, which comes back as new and evicts 4.
  EXPECT_EQ(Read({1, 2, 3, 5, 4}), (std::vector<float>{10, 22, 33, 5, 0}));
  EXPECT_EQ(rows_->rows(), 4u);
  EXPECT_EQ(table_->counters().evicted.load(), 2u);
}

TEST_F(EmbeddingTableTest, ASecondOccurrenceOfAKeyInOnePushIsAddedToo) {
  Make();
  Push({{7, 1}, {8, 5}, {7, 2}});
  EXPECT_EQ(Read({7, 8}), (std::vector<float>{3, 5}));
}

TEST_F(EmbeddingTableTest, EvictsTheLeastRecentlyUsedAndCountsAReadAsUse) {
  spec_.mutable_embedding()->mutable_eviction()->set_rows_max(3);
  Make();
  for (const Key key : {1, 2, 3}) {
    Push({{key, 1}});
    now_ms_ += 1000;
  }
  Read({1});
  now_ms_ += 1000;
  Push({{4, 4}});
  EXPECT_EQ(Read({1, 2, 3, 4}), (std::vector<float>{1, 0, 1, 4}));
}

TEST_F(EmbeddingTableTest, EvictsTheLeastFrequentlyUsed) {
  spec_.mutable_embedding()->mutable_eviction()->set_rows_max(3);
  spec_.mutable_embedding()->mutable_eviction()->set_policy(v1::Eviction::LEAST_FREQUENT);
  Make();
  Push({{1, 1}, {2, 1}, {3, 1}});
  Push({{1, 1}, {3, 1}});
  now_ms_ += 1000;
  Push({{2, 1}});  // The most recent, but as frequent as the others.
  Push({{1, 1}, {3, 1}});
  Push({{4, 4}});
  EXPECT_EQ(Read({1, 2, 3, 4}), (std::vector<float>{3, 0, 3, 4}));
}

TEST_F(EmbeddingTableTest, EvictsWhatOutlivedItsTtlAndStartsItAnew) {
  spec_.mutable_embedding()->mutable_eviction()->set_ttl_ms(10'000);
  spec_.mutable_initializer()->mutable_constant()->set_value(0.5f);
  Make();
  Push({{1, 1}, {2, 1}});
  now_ms_ += 9'000;
  EXPECT_FALSE(rows_->EvictExpired(now_ms_, version_ + 1));
  Push({{2, 1}});
  now_ms_ += 9'000;
  EXPECT_TRUE(rows_->EvictExpired(now_ms_, ++version_));
  EXPECT_EQ(Read({1, 2}), (std::vector<float>{0.5f, 2.5f}));
  EXPECT_EQ(rows_->rows(), 1u);
  Push({{1, 3}});
  EXPECT_EQ(Read({1}), std::vector<float>{3.5f});
}

// Regression: a row that was only pulled went at once after a restart or a failover, where nothing had heard of the
// pulls.
TEST_F(EmbeddingTableTest, WhatBeginsToBeOwnedKeepsItsRowsForTheirTtlOrADay) {
  constexpr uint64_t kDayMs = 24 * 3600'000;
  for (const uint64_t ttl_ms : {uint64_t{10'000}, 3 * kDayMs}) {
    const uint64_t kept_ms = std::min(ttl_ms, kDayMs);
    spec_.mutable_embedding()->mutable_eviction()->set_ttl_ms(ttl_ms);
    Make();
    Push({{1, 1}, {2, 1}});
    now_ms_ += ttl_ms - 1'000;
    rows_->BeginOwned();
    for (const uint64_t after_ms : {uint64_t{1'500}, kept_ms - 2'000}) {
      now_ms_ += after_ms;
      EXPECT_FALSE(rows_->EvictExpired(now_ms_, version_ + 1)) << ttl_ms;
    }
    Read({2});
    now_ms_ += 3'000;
    EXPECT_TRUE(rows_->EvictExpired(now_ms_, ++version_)) << ttl_ms;
    EXPECT_EQ(Read({1, 2}), (std::vector<float>{0, 1}));
    // Nor does what has gone back know of pulls.
    rows_->CommitRollback(++version_, now_ms_);
    Push({{1, 1}});
    now_ms_ += ttl_ms + 1'000;
    EXPECT_FALSE(rows_->EvictExpired(now_ms_, version_ + 1)) << ttl_ms;
  }
}

// Regression: each new row made room for itself alone, so that the table stayed as large as it was; or, of a large one,
// a push of many new keys evicted millions of rows at once.
TEST_F(EmbeddingTableTest, ALimitThatIsLoweredIsReachedByPushesAndBySweepsInSmallSteps) {
  constexpr size_t kRows = 100'000;
  for (const size_t lowered : {size_t{50}, size_t{40'000}}) {
    for (const bool pushes : {true, false}) {
      spec_.mutable_embedding()->mutable_eviction()->set_rows_max(kRows);
      Make();
      std::vector<std::pair<Key, float>> rows;
      for (Key key = 0; key < kRows; ++key) rows.emplace_back(key, 1.0f);
      Push(rows);
      now_ms_ += 1'000;
      const std::vector<std::pair<Key, float>> hot(rows.end() - 30'000, rows.end());
      if (!pushes) Push(hot);
      spec_.mutable_embedding()->mutable_eviction()->set_rows_max(lowered);
      const auto kept = table_->Keep(spec_);
      ASSERT_TRUE(kept.ok()) << kept.status();
      rows_->SetSettings(*kept);
      size_t steps = 0;
      for (size_t before = rows_->rows(); before > lowered; before = rows_->rows(), ++steps) {
        ASSERT_LT(steps, kRows);
        if (pushes) {
          Push({{kRows + steps, 1.0f}});
          ASSERT_LE(before + 1 - rows_->rows(), 8u) << "at once";
        } else {
          ASSERT_GT(rows_->BeginSweep(), 0u);
          rows_->EvictExpired(now_ms_, ++version_, nullptr, 8192);
          ASSERT_LE(before - rows_->rows(), 8192 / 4 + rows_->layout().rows()) << "at once";
        }
      }
      EXPECT_EQ(rows_->BeginSweep(), 0u);
      EXPECT_FALSE(rows_->EvictExpired(now_ms_, version_ + 1));
      if (pushes) continue;
      EXPECT_EQ(rows_->rows(), lowered) << "and no more than it must";
      if (lowered < hot.size()) continue;
      std::vector<Key> keys;
      for (const auto& [key, value] : hot) keys.push_back(key);
      const std::vector<float> values = Read(keys);
      EXPECT_GE(std::count(values.begin(), values.end(), 2.0f), hot.size() * 98 / 100) << "those in use stay";
    }
  }
}

// Stamps of uses were compared as numbers: when they began anew, after 795 days, each sweep evicted all rows.
TEST_F(EmbeddingTableTest, ARowInUseIsNotEvictedHoweverOldTheTableIs) {
  constexpr uint64_t kDayMs = 24 * 3600'000;
  spec_.mutable_embedding()->mutable_eviction()->set_ttl_ms(10 * kDayMs);
  Make();
  Push({{1, 1}, {2, 1}});
  for (int day = 0; day < 1700; day += 5) {
    now_ms_ += 5 * kDayMs;
    EXPECT_FALSE(rows_->EvictExpired(now_ms_, version_ + 1)) << "day " << day;
    Push({{1, 1}, {2, 1}});
  }
  now_ms_ += 9 * kDayMs;
  Push({{2, 1}});
  now_ms_ += 2 * kDayMs;
  EXPECT_TRUE(rows_->EvictExpired(now_ms_, ++version_));
  EXPECT_EQ(rows_->rows(), 1u);
}

TEST_F(EmbeddingTableTest, TheLeastRecentlyUsedRowGoesHoweverOldTheTableIs) {
  constexpr uint64_t kDayMs = 24 * 3600'000;
  spec_.mutable_embedding()->mutable_eviction()->set_rows_max(2);
  for (const uint64_t days : {790, 794, 795, 796, 1590}) {
    Make();
    now_ms_ += days * kDayMs;
    Push({{1, 1}});
    now_ms_ += kDayMs;
    Push({{2, 1}});
    Push({{3, 1}});
    EXPECT_EQ(rows_->rows(), 2u);
    EXPECT_EQ(Read({1, 2, 3}), (std::vector<float>{0, 1, 1})) << days;
  }
}

TEST_F(EmbeddingTableTest, AClockThatHasGoneBackEvictsNothing) {
  constexpr uint64_t kDayMs = 24 * 3600'000;
  spec_.mutable_embedding()->mutable_eviction()->set_ttl_ms(10'000);
  Make();
  now_ms_ += 150 * kDayMs;
  Push({{1, 1}});
  EXPECT_FALSE(rows_->EvictExpired(now_ms_ - 149 * kDayMs, version_ + 1));
}

TEST_F(EmbeddingTableTest, ASweepLooksAtAShareOfTheRowsAndSweepsComeRound) {
  spec_.mutable_embedding()->set_dim(64);
  spec_.mutable_embedding()->mutable_eviction()->set_ttl_ms(3600'000);
  for (const size_t count : {size_t{1}, size_t{6000}}) {
    Make();
    std::vector<std::pair<Key, float>> rows;
    for (Key key = 0; key < count; ++key) rows.emplace_back(key, 1.0f);
    Push(rows);
    now_ms_ += 3601'000;
    size_t looked = 0;
    for (int sweep = 0; sweep < 60; ++sweep) {
      const size_t share = rows_->BeginSweep();
      EXPECT_LE(share, count / 30 + rows_->layout().rows());
      if (share == 0) continue;
      const size_t before = rows_->rows();
      rows_->EvictExpired(now_ms_, ++version_, nullptr, share);
      EXPECT_LE(before - rows_->rows(), share);
      looked += share;
    }
    EXPECT_EQ(rows_->rows(), 0u) << "within a minute of sweeps";
    EXPECT_LT(looked, count + rows_->layout().rows()) << "each page once";
  }
}

// A sixteenth of all rows went at once: tens of milliseconds in a shard of a million, within one push.
TEST_F(EmbeddingTableTest, AFullLargeTableMakesRoomInSmallStepsAndForgetsNoRowInUse) {
  constexpr size_t kRowsMax = 40'000;
  spec_.mutable_embedding()->mutable_eviction()->set_rows_max(kRowsMax);
  Make();
  std::vector<std::pair<Key, float>> cold, hot;
  for (Key key = 0; key < kRowsMax; ++key) (key % 2 == 0 ? cold : hot).emplace_back(key, 1.0f);
  Push(cold);
  Push(hot);
  now_ms_ += 1'000;
  Push(hot);
  for (Key key = kRowsMax; key < kRowsMax + 3'000; ++key) {
    const size_t before = rows_->rows();
    Push({{key, 2.0f}});
    ASSERT_LE(before + 1 - rows_->rows(), 300u) << "at once";
    ASSERT_LE(rows_->rows(), kRowsMax);
  }
  std::vector<Key> keys;
  for (const auto& [key, value] : hot) keys.push_back(key);
  EXPECT_EQ(Read(keys), std::vector<float>(keys.size(), 2.0f)) << "every row in use has both of its updates";
  EXPECT_EQ(Read({kRowsMax, kRowsMax + 2'999}), (std::vector<float>{2.0f, 2.0f}));
}

// The age was a difference of unsigned numbers: a table made after the sweep read the clock lost all of its rows.
TEST_F(EmbeddingTableTest, ASweepThatReadTheClockBeforeTheTableWasMadeEvictsNothing) {
  spec_.mutable_embedding()->mutable_eviction()->set_ttl_ms(10'000);
  Make();
  Push({{1, 1}});
  EXPECT_FALSE(rows_->EvictExpired(now_ms_ - 1, version_ + 1));
  EXPECT_EQ(rows_->rows(), 1u);
}

TEST_F(EmbeddingTableTest, ARowLimitNearTheLargestNumberIsNoLimit) {
  spec_.mutable_embedding()->mutable_eviction()->set_rows_max(UINT64_MAX);
  Make();
  Push({{1, 1}, {2, 2}, {3, 3}});
  EXPECT_EQ(rows_->rows(), 3u);
}

TEST_F(EmbeddingTableTest, AdmitsAboutTheConfiguredShareOfNewKeysAndTheSameOnesAgain) {
  spec_.mutable_embedding()->mutable_admission()->set_probability(0.25f);
  Make();
  std::vector<std::pair<Key, float>> rows;
  for (Key key = 0; key < 10'000; ++key) rows.emplace_back(key, 1.0f);
  Push(rows);
  // Binomial(10000, 0.25): standard deviation 43; five of them.
  EXPECT_NEAR(static_cast<double>(rows_->rows()), 2500, 220);
  const size_t admitted = rows_->rows();
  version_ = 0;
  Make();
  Push(rows);
  EXPECT_EQ(rows_->rows(), admitted);
}

TEST_F(EmbeddingTableTest, ASnapshotStaysAsItWasWhilePushesGoOn) {
  spec_.mutable_optimizer()->mutable_adagrad();
  Make();
  std::vector<std::pair<Key, float>> rows;
  for (Key key = 0; key < 3'000; ++key) rows.emplace_back(key, 1.0f);
  Push(rows);
  const auto snapshot = rows_->Collect(nullptr);
  ASSERT_TRUE(snapshot.has_value());
  std::vector<std::vector<uint8_t>> copies;
  for (const auto& page : snapshot->pages) {
    copies.emplace_back(page.page->bytes(), page.page->bytes() + page.page->size_bytes());
  }
  for (int i = 0; i < 5; ++i) Push(rows);
  for (size_t i = 0; i < copies.size(); ++i) {
    EXPECT_EQ(std::memcmp(copies[i].data(), snapshot->pages[i].page->bytes(), copies[i].size()), 0);
  }
  EXPECT_NE(Read({0})[0], rows_->layout().Row(snapshot->pages[0].page, 0)[0]);
}

TEST_F(EmbeddingTableTest, CollectsOnlyPagesAndEvictionsSinceAVersion) {
  spec_.mutable_embedding()->mutable_eviction()->set_ttl_ms(1'000);
  Make();
  std::vector<std::pair<Key, float>> rows;
  for (Key key = 0; key < 5'000; ++key) rows.emplace_back(key, 1.0f);
  Push(rows);
  const Version before = version_;
  now_ms_ += 2'000;
  Push({{17, 1}});
  const auto one = rows_->Collect(&before);
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(one->pages.size(), 1u);
  EXPECT_TRUE(one->evicted.empty());
  const Version pushed = version_;
  ASSERT_TRUE(rows_->EvictExpired(now_ms_, ++version_));
  const auto evicted = rows_->Collect(&pushed);
  ASSERT_TRUE(evicted.has_value());
  EXPECT_EQ(evicted->evicted.size(), 4'999u);
  EXPECT_EQ(rows_->Collect(&version_)->evicted.size(), 0u);
}

TEST_F(EmbeddingTableTest, SaysSoWhenEvictionsAreNoLongerAllKnown) {
  spec_.mutable_embedding()->mutable_eviction()->set_ttl_ms(1'000);
  Make();
  std::vector<std::pair<Key, float>> rows;
  for (Key key = 0; key < limits::kEvictedKeysRemembered + 10; ++key) rows.emplace_back(key, 1.0f);
  Push(rows);
  const Version before = version_;
  now_ms_ += 2'000;
  ASSERT_TRUE(rows_->EvictExpired(now_ms_, ++version_));
  EXPECT_FALSE(rows_->Collect(&before).has_value());
  EXPECT_TRUE(rows_->Collect(&version_).has_value());
}

TEST_F(EmbeddingTableTest, CountsItsMemoryWithinTheFifthOverValuesStateAndSixteenBytes) {
  spec_.mutable_embedding()->set_dim(16);
  spec_.mutable_optimizer()->mutable_adagrad();
  Make();
  constexpr Key kRows = 200'000;
  std::vector<std::pair<Key, float>> rows;
  for (Key key = 0; key < kRows; ++key) rows.emplace_back(key, 1.0f);
  Push(rows);
  const double per_row = static_cast<double>(table_->counters().bytes.load()) / kRows;
  EXPECT_LE(per_row, 1.25 * (16 * 4 * 2 + 16));
  EXPECT_GE(per_row, 16 * 4 * 2 + 8 + 4);
}

TEST_F(EmbeddingTableTest, ClipsARowsNormAndLeavesTheOthers) {
  spec_.mutable_embedding()->set_dim(1);
  spec_.mutable_optimizer()->mutable_clip()->set_row_norm(2);
  Make();
  Push({{1, 8}, {2, 1}, {3, -8}});
  EXPECT_EQ(Read({1, 2, 3}), (std::vector<float>{2, 1, -2}));
}

// The same with one of all optimizers.
class EmbeddingTableWithEveryOptimizer : public EmbeddingTableTest, public ::testing::WithParamInterface<std::string> {
 protected:
  static constexpr size_t kKeys = 150;

  void Configure(uint32_t dim, bool clips) {
    spec_.mutable_embedding()->set_dim(dim);
    *spec_.mutable_optimizer() = OptimizerConfig(GetParam());
    if (clips) spec_.mutable_optimizer()->mutable_clip()->set_row_norm(1);
    spec_.mutable_initializer()->mutable_uniform();
    Make();
  }
  // Keys, some of them twice.
  static std::vector<Key> Keys(uint32_t seed) {
    std::mt19937_64 random(seed);
    std::vector<Key> keys(kKeys);
    for (Key& key : keys) key = random() % (2 * kKeys);
    return keys;
  }
  std::vector<std::vector<uint8_t>> RowBytes() const {
    std::vector<std::vector<uint8_t>> rows;
    const auto snapshot = rows_->Collect(nullptr);
    for (const auto& page : snapshot->pages) {
      const PageLayout& layout = rows_->layout();
      for (uint32_t i = 0; i < layout.rows(); ++i) {
        if (layout.Changed(page.page)[i] == 0) continue;
        const auto* row = reinterpret_cast<const uint8_t*>(layout.Row(page.page, i));
        rows.emplace_back(row, row + layout.row_floats * sizeof(float));
      }
    }
    return rows;
  }
};

INSTANTIATE_TEST_SUITE_P(Methods, EmbeddingTableWithEveryOptimizer, testing::ValuesIn(AllMethods()),
                         [](const auto& info) { return info.param.substr(0, info.param.find(' ')); });

TEST_P(EmbeddingTableWithEveryOptimizer, AppliesAndReadsTheSameBitsInWhateverRunsKeysAndGradientsLie) {
  constexpr unsigned kSeed = 5;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (const uint32_t dim : {1, 7}) {
    for (const bool clips : {false, true}) {
      std::vector<std::vector<uint8_t>> expected;
      std::vector<float> expected_values;
      for (const size_t run_bytes_max : {0, 1, 3, 8, 29, 200, 1500}) {  // 0: all in one run.
        const auto cut = [&](ByteView bytes) {
          std::vector<uint8_t> copy(bytes.size());
          bytes.CopyTo(copy.data());
          return run_bytes_max == 0 ? ByteRuns(copy.data(), copy.size(), copy.size())
                                    : ByteRuns(copy.data(), copy.size(), run_bytes_max, &random);
        };
        Configure(dim, clips);
        for (uint32_t push = 1; push <= 4; ++push) {
          const auto held = rows_->Collect(nullptr);
          const ByteRuns keys = cut(Bytes(Keys(push)));
          const ByteRuns gradients = cut(Bytes(RandomFloats(kKeys * dim, push)));
          rows_->Apply(keys.view(), gradients.view(), kKeys, now_ms_, push);
        }
        std::vector<float> values(kKeys * dim);
        rows_->Read(cut(Bytes(Keys(9))).view(), kKeys, now_ms_, values.data());
        if (run_bytes_max == 0) {
          expected = RowBytes();
          expected_values = values;
        }
        ASSERT_EQ(RowBytes(), expected) << run_bytes_max;
        ASSERT_EQ(Bits(values), Bits(expected_values)) << run_bytes_max;
      }
    }
  }
}

}  // namespace
}  // namespace lodestone::server
