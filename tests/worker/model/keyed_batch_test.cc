#include "worker/model/keyed_batch.h"

#include <cstdint>
#include <map>
#include <vector>

#include "common/base/random.h"
#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

TEST(KeyIndexer, GivesEachDistinctKeyOneRowInOrderOfFirstAppearance) {
  KeyedBatch batch;
  batch.batch.keys = {7, 0, 7, ~Key{0}, 0, 3};
  KeyIndexer indexer;
  indexer.Index(&batch);
  EXPECT_EQ(batch.keys, (std::vector<Key>{7, 0, ~Key{0}, 3}));
  EXPECT_EQ(batch.row, (std::vector<uint32_t>{0, 1, 0, 2, 1, 3}));
}

TEST(KeyIndexer, ForgetsTheBatchBefore) {
  KeyIndexer indexer;
  KeyedBatch batch;
  batch.batch.keys = {1, 2, 3};
  indexer.Index(&batch);
  batch.batch.keys = {3, 1};
  indexer.Index(&batch);
  EXPECT_EQ(batch.keys, (std::vector<Key>{3, 1}));
  EXPECT_EQ(batch.row, (std::vector<uint32_t>{0, 1}));
  batch.batch.keys.clear();
  indexer.Index(&batch);
  EXPECT_TRUE(batch.keys.empty());
  EXPECT_TRUE(batch.row.empty());
}

TEST(KeyIndexer, AgreesWithAMapOnManyRandomBatches) {
  constexpr uint64_t kSeed = 4711;
  SCOPED_TRACE(kSeed);
  KeyIndexer indexer;
  KeyedBatch batch;
  uint64_t n = 0;
  for (int round = 0; round < 50; ++round) {
    const size_t features = RandomBits(kSeed, n++) % 5000;
    const uint64_t range = 1 + RandomBits(kSeed, n++) % 6000;
    batch.batch.keys.clear();
    for (size_t f = 0; f < features; ++f) batch.batch.keys.push_back(RandomBits(kSeed, n++) % range);
    indexer.Index(&batch);
    std::map<Key, uint32_t> rows;
    for (size_t f = 0; f < features; ++f) {
      const auto [at, fresh] = rows.emplace(batch.batch.keys[f], static_cast<uint32_t>(rows.size()));
      ASSERT_EQ(batch.row[f], at->second) << "feature " << f << " of round " << round;
      ASSERT_EQ(batch.keys[batch.row[f]], batch.batch.keys[f]);
    }
    ASSERT_EQ(batch.keys.size(), rows.size());
  }
}

}  // namespace
}  // namespace lodestone::worker
