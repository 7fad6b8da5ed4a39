#include "worker/data/epoch_batches.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

std::vector<std::vector<uint64_t>> All(EpochBatches batches) {
  std::vector<std::vector<uint64_t>> all;
  std::vector<uint64_t> indices;
  while (batches.Next(&indices)) all.push_back(indices);
  return all;
}

TEST(EpochBatches, VisitsEverySampleOncePerEpochInBatchesOfEqualSize) {
  for (uint64_t size : {1u, 7u, 100u, 257u}) {
    for (uint64_t batch_size : {1u, 10u, 64u, 1000u}) {
      const auto batches = All(EpochBatches(size, 2, batch_size, 1, true));
      std::vector<int> visits(size, 0);
      uint64_t smallest = size, largest = 0;
      for (const auto& batch : batches) {
        for (uint64_t i : batch) ++visits[i];
        smallest = std::min<uint64_t>(smallest, batch.size());
        largest = std::max<uint64_t>(largest, batch.size());
      }
      EXPECT_EQ(visits, std::vector<int>(size, 2));
      EXPECT_LE(largest, batch_size);
      EXPECT_LE(largest - smallest, 1u);
    }
  }
}

TEST(EpochBatches, NoBatchSpansTwoEpochs) {
  const auto batches = All(EpochBatches(10, 3, 4, 1, true));
  ASSERT_EQ(batches.size(), 9u);
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<int> visits(10, 0);
    for (int b = 0; b < 3; ++b) {
      for (uint64_t i : batches[3 * epoch + b]) ++visits[i];
    }
    EXPECT_EQ(visits, std::vector<int>(10, 1));
  }
}

TEST(EpochBatches, EpochsMayBeFractional) {
  EpochBatches batches(10, 1.3, 4, 1, false);
  EXPECT_EQ(batches.total_samples(), 13u);
  const auto all = All(batches);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[3], (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_TRUE(All(EpochBatches(10, 0, 4, 1, true)).empty());
  EXPECT_EQ(All(EpochBatches(10, 0.5, 4, 1, true)).size(), 2u);
}

TEST(EpochBatches, AnEmptyPartitionHasNoBatches) { EXPECT_TRUE(All(EpochBatches(0, 5, 4, 1, true)).empty()); }

TEST(EpochBatches, ShufflesEachEpochAnewAndRepeatably) {
  const auto once = All(EpochBatches(100, 2, 100, 1, true));
  ASSERT_EQ(once.size(), 2u);
  EXPECT_NE(once[0], once[1]);
  EXPECT_EQ(once, All(EpochBatches(100, 2, 100, 1, true)));
  EXPECT_NE(once, All(EpochBatches(100, 2, 100, 2, true)));
}

TEST(EpochBatches, TheWindowIsSaidByTheConfigurationAlone) {
  v1::Config config;
  EXPECT_EQ(EpochBatches::WindowOf(config), 0u);
  config.mutable_data()->set_spill_dir("/disk");
  EXPECT_EQ(EpochBatches::WindowOf(config), 262144u);
  config.mutable_train()->set_shuffle_window(1000);
  EXPECT_EQ(EpochBatches::WindowOf(config), 1000u);
}

}  // namespace
}  // namespace lodestone::worker
