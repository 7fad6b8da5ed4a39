#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "worker/data/dataset.h"

namespace lodestone::worker {
namespace {

TEST(EpochOrder, IsAPermutationOfAnySize) {
  for (uint64_t size : {1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 1000, 4096, 4097, 100003}) {
    for (uint64_t epoch : {0, 1}) {
      const EpochOrder order(size, 42, epoch, true);
      std::vector<bool> seen(size, false);
      for (uint64_t i = 0; i < size; ++i) {
        const uint64_t at = order.At(i);
        ASSERT_LT(at, size);
        ASSERT_FALSE(seen[at]) << "size " << size << " position " << i;
        seen[at] = true;
      }
    }
  }
}

TEST(EpochOrder, StaysBelowVeryLargeSizes) {
  for (uint64_t size : {uint64_t{1} << 40, (uint64_t{1} << 62) + 1, ~uint64_t{0}}) {
    const EpochOrder order(size, 1, 0, true);
    for (uint64_t i = 0; i < 100; ++i) EXPECT_LT(order.At(i), size);
  }
}

TEST(EpochOrder, IsTheSameForTheSameSeedAndEpochAndDiffersBetweenThem) {
  constexpr uint64_t kSize = 1000;
  const auto list = [](uint64_t seed, uint64_t epoch) {
    const EpochOrder order(kSize, seed, epoch, true);
    std::vector<uint64_t> all;
    for (uint64_t i = 0; i < kSize; ++i) all.push_back(order.At(i));
    return all;
  };
  EXPECT_EQ(list(1, 0), list(1, 0));
  EXPECT_NE(list(1, 0), list(1, 1));
  EXPECT_NE(list(1, 0), list(2, 0));
}

TEST(EpochOrder, IsTheFilesOrderWithoutShuffle) {
  const EpochOrder order(10, 1, 3, false);
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(order.At(i), i);
}

TEST(EpochOrder, MixesAFileThatIsSortedByLabel) {
  // The first half has label 0, the second label 1. In a random order the number of ones in a batch of b samples is
  // hypergeometric, with variance close to b / 4.
  constexpr uint64_t kSize = 60000;
  constexpr uint64_t kBatch = 100;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const EpochOrder order(kSize, seed, 0, true);
    double square_sum = 0;
    for (uint64_t begin = 0; begin < kSize; begin += kBatch) {
      double ones = 0;
      for (uint64_t i = begin; i < begin + kBatch; ++i) ones += order.At(i) >= kSize / 2;
      EXPECT_NEAR(ones, kBatch / 2.0, 6 * std::sqrt(kBatch / 4.0)) << "seed " << seed << " batch at " << begin;
      square_sum += (ones - kBatch / 2.0) * (ones - kBatch / 2.0);
    }
    // The mean of 600 squares: its relative deviation is sqrt(2 / 600) = 0.058, so five of them are 0.29.
    EXPECT_NEAR(square_sum / (kSize / kBatch), kBatch / 4.0, 0.29 * kBatch / 4.0) << "seed " << seed;
  }
}

TEST(EpochOrder, IsNotCorrelatedWithThePosition) {
  constexpr uint64_t kSize = 20000;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const EpochOrder order(kSize, seed, 1, true);
    double sum = 0;
    for (uint64_t i = 0; i < kSize; ++i) {
      sum += (i / double{kSize} - 0.5) * (order.At(i) / double{kSize} - 0.5);
    }
    // The correlation of random permutations has deviation 1 / sqrt(size).
    EXPECT_LT(std::fabs(sum / kSize * 12), 5 / std::sqrt(double{kSize})) << "seed " << seed;
  }
}

}  // namespace
}  // namespace lodestone::worker
