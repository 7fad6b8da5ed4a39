#include "worker/data/step_batches.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

TEST(StepBatches, AreThoseOfTheRunInWholeStepsAndEverySampleCountsOnceInEachEpoch) {
  for (const uint64_t size : {7u, 100u, 257u}) {
    for (const uint32_t step_batches : {1u, 3u, 4u, 7u}) {
      EpochBatches run(size, 2, 10, 1, true), again(size, 2, 10, 1, true);
      StepBatches batches(&run, step_batches);
      EXPECT_EQ(batches.batches(), batches.steps() * step_batches);
      EXPECT_GE(batches.batches(), run.batches());
      EXPECT_LT(batches.batches(), run.batches() + step_batches);
      std::vector<int> visits(size, 0);
      std::vector<uint64_t> indices, of_run;
      for (uint64_t b = 0; b < batches.batches(); ++b) {
        batches.Read(b, &indices);
        EXPECT_FALSE(indices.empty());
        for (const uint64_t i : indices) ++visits[i];
        if (b >= run.batches() / step_batches * step_batches) continue;
        again.Read(b, &of_run);
        EXPECT_EQ(indices, of_run);
      }
      EXPECT_EQ(visits, std::vector<int>(size, 2)) << size << " samples, steps of " << step_batches;
    }
  }
}

TEST(StepBatches, ALastStepOfFewerSamplesThanBatchesLeavesNoneWithoutASample) {
  EpochBatches run(9, 1, 4, 1, false);  // 3 batches of 3.
  StepBatches batches(&run, 8);
  ASSERT_EQ(batches.batches(), 8u);
  std::vector<uint64_t> indices;
  std::vector<int> visits(9, 0);
  for (uint64_t b = 0; b < 8; ++b) {
    batches.Read(b, &indices);
    EXPECT_GE(indices.size(), 1u);
    for (const uint64_t i : indices) ++visits[i];
  }
  EXPECT_EQ(visits, std::vector<int>(9, 1));
  EpochBatches few(2, 1, 4, 1, false);
  StepBatches more(&few, 5);
  ASSERT_EQ(more.batches(), 5u);
  visits.assign(2, 0);
  for (uint64_t b = 0; b < 5; ++b) {
    more.Read(b, &indices);
    EXPECT_EQ(indices.size(), 1u);
    for (const uint64_t i : indices) ++visits[i];
  }
  EXPECT_EQ(visits[0] + visits[1], 5);
  EXPECT_LE(std::max(visits[0], visits[1]) - std::min(visits[0], visits[1]), 1);
}

TEST(StepBatches, APartOfAnyBatchesIsAsThatOfTheLastStep) {
  EpochBatches run(95, 1, 10, 1, true), again(95, 1, 10, 1, true);
  StepBatches batches(&run, 4), parts(&again, 4);
  ASSERT_EQ(batches.batches(), 12u);
  std::vector<uint64_t> last, part;
  for (uint32_t b = 0; b < 4; ++b) {
    batches.Read(8 + b, &last);
    parts.ReadPart({8, 9}, b, &part);
    EXPECT_EQ(part, last);
  }
  std::vector<int> visits(95, 0);
  for (uint32_t b = 0; b < 4; ++b) {
    parts.ReadPart({2}, b, &part);
    for (const uint64_t i : part) ++visits[i];
  }
  parts.ReadWhole(2, &part);
  for (const uint64_t i : part) EXPECT_EQ(visits[i], 1);
}

}  // namespace
}  // namespace lodestone::worker
