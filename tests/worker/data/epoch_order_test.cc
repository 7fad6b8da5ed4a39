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

TEST(EpochOrder, IsAPermutationWithAnyWindow) {
  for (uint64_t size : {1, 2, 5, 255, 256, 257, 1000, 4097, 100003}) {
    for (uint64_t window : {1, 2, 255, 256, 300, 1000, 1024, 5000, 100002, 1000000}) {
      for (uint64_t epoch : {0, 1}) {
        const EpochOrder order(size, 42, epoch, true, window);
        std::vector<bool> seen(size, false);
        for (uint64_t i = 0; i < size; ++i) {
          const uint64_t at = order.At(i);
          ASSERT_LT(at, size);
          ASSERT_FALSE(seen[at]) << "size " << size << " window " << window << " position " << i;
          seen[at] = true;
        }
      }
    }
  }
}

TEST(EpochOrder, ReadsARunInOneWindowOnly) {
  constexpr uint64_t kSize = 100003, kWindow = 5120;
  const EpochOrder order(kSize, 7, 3, true, kWindow);
  ASSERT_EQ(order.window_runs(), EpochOrder::kRunsPerWindow);
  std::vector<uint64_t> window_of(kSize, 0);
  uint64_t covered = 0;
  for (uint64_t place = 0; place < order.runs(); ++place) {
    const EpochOrder::Run run = order.RunAt(place);
    covered += run.count;
    for (uint64_t i = run.first; i < run.first + run.count; ++i) window_of[i] = place / order.window_runs();
  }
  EXPECT_EQ(covered, kSize);
  uint64_t steps = 0;
  for (uint64_t position = 0; position < kSize; ++position) {
    const uint64_t window = order.PlaceOf(position) / order.window_runs();
    ASSERT_EQ(window_of[order.At(position)], window) << "position " << position;
    ASSERT_NEAR(static_cast<double>(position), static_cast<double>(window * kWindow), kWindow);
    steps += position > 0 && order.At(position) == order.At(position - 1) + 1;
  }
  EXPECT_LT(steps, 200u) << "within a window, neighbours are strangers";
}

TEST(EpochOrder, WithAWindowThatHoldsAllSamplesIsTheOneWithout) {
  const EpochOrder all(1000, 5, 2, true), window(1000, 5, 2, true, 1000);
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_EQ(all.At(i), window.At(i));
}

TEST(EpochOrder, MixesASortedFileByWindowsToo) {
  // 16 windows of 256 runs. The ones among a window's runs are hypergeometric: a share of 1/2, deviation 1/32 at most;
  // to that a batch of 100 adds its own, 1/20.
  constexpr uint64_t kSize = 1 << 20, kBatch = 100;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const EpochOrder order(kSize, seed, 0, true, kSize / 16);
    for (uint64_t begin = 0; begin + kBatch <= kSize; begin += 7 * kBatch) {
      double ones = 0;
      for (uint64_t i = begin; i < begin + kBatch; ++i) ones += order.At(i) >= kSize / 2;
      EXPECT_NEAR(ones / kBatch, 0.5, 6 * 0.059) << "seed " << seed << " batch at " << begin;
    }
  }
}

}  // namespace
}  // namespace lodestone::worker
