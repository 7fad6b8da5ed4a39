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
  EXPECT_EQ(batch.KeysOf(0), (std::vector<Key>{7, 0, ~Key{0}, 3}));
  EXPECT_EQ(batch.groups[0].row, (std::vector<uint32_t>{0, 1, 0, 2, 1, 3}));
}

TEST(KeyIndexer, CountsTheKeysOfEachGroupOfFieldsApart) {
  KeyIndexer indexer({.fields = {{0, 2}, {1}}, .of_table = {}});
  KeyedBatch batch;
  batch.batch.size = 2;
  batch.batch.keys = {1, 2, 3, 1, 4, 5};
  batch.batch.offsets = {0, 3, 6};
  indexer.Index(&batch);
  ASSERT_EQ(batch.groups.size(), 2u);
  EXPECT_EQ(batch.KeysOf(0), (std::vector<Key>{1, 3, 5}));
  EXPECT_EQ(batch.groups[0].row, (std::vector<uint32_t>{0, 1, 0, 2}));
  EXPECT_EQ(batch.OffsetsOf(0), (std::vector<uint32_t>{0, 2, 4}));
  EXPECT_EQ(batch.KeysOf(1), (std::vector<Key>{2, 4}));
  EXPECT_EQ(batch.OffsetsOf(1), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_TRUE(batch.ValuesOf(1).empty());
  const BatchView view = batch.view();
  EXPECT_EQ(view.groups[0].features, 4u);
  EXPECT_EQ(view.groups[1].sparse.samples, 2u);

  // With several keys in a field, which have values.
  batch.batch.keys = {1, 2, 3, 3, 1, 4, 4, 5};
  batch.batch.values = {1, 0.5, 0.5, 2, 3, 4, 5, 6};
  batch.batch.offsets = {0, 1, 3, 4, 5, 7, 8};
  indexer.Index(&batch);
  EXPECT_EQ(batch.KeysOf(0), (std::vector<Key>{1, 3, 5}));
  EXPECT_EQ(batch.groups[0].row, (std::vector<uint32_t>{0, 1, 0, 2}));
  EXPECT_EQ(batch.OffsetsOf(0), (std::vector<uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(batch.ValuesOf(0), (std::vector<float>{1, 2, 3, 6}));
  EXPECT_EQ(batch.KeysOf(1), (std::vector<Key>{2, 3, 4}));
  EXPECT_EQ(batch.groups[1].row, (std::vector<uint32_t>{0, 1, 2, 2}));
  EXPECT_EQ(batch.OffsetsOf(1), (std::vector<uint32_t>{0, 2, 4}));
  EXPECT_EQ(batch.ValuesOf(1), (std::vector<float>{0.5, 0.5, 4, 5}));
}

TEST(KeyIndexer, ForgetsTheBatchBefore) {
  KeyIndexer indexer;
  KeyedBatch batch;
  batch.batch.keys = {1, 2, 3};
  indexer.Index(&batch);
  batch.batch.keys = {3, 1};
  indexer.Index(&batch);
  EXPECT_EQ(batch.KeysOf(0), (std::vector<Key>{3, 1}));
  EXPECT_EQ(batch.groups[0].row, (std::vector<uint32_t>{0, 1}));
  batch.batch.keys.clear();
  indexer.Index(&batch);
  EXPECT_TRUE(batch.KeysOf(0).empty());
  EXPECT_TRUE(batch.groups[0].row.empty());
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
      ASSERT_EQ(batch.groups[0].row[f], at->second) << "feature " << f << " of round " << round;
      ASSERT_EQ(batch.KeysOf(0)[batch.groups[0].row[f]], batch.batch.keys[f]);
    }
    ASSERT_EQ(batch.KeysOf(0).size(), rows.size());
  }
}

}  // namespace
}  // namespace lodestone::worker
