#include "common/telemetry/histogram.h"

#include <algorithm>
#include <cmath>
#include <latch>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

using testing::ElementsAre;

// The bucket that an observation went to; the histogram had none before.
size_t BucketOf(const Histogram& histogram) {
  const Histogram::Snapshot snapshot = histogram.snapshot();
  EXPECT_EQ(snapshot.count, 1u);
  return static_cast<size_t>(std::find(snapshot.counts.begin(), snapshot.counts.end(), 1u) - snapshot.counts.begin());
}

// The first bucket whose bound is not below the value, found the slow way.
size_t ExpectedBucket(const Histogram& histogram, double value) {
  size_t bucket = 0;
  while (bucket < Histogram::kBounds && histogram.bound(bucket) < value) ++bucket;
  return bucket;
}

TEST(Histogram, BoundsAreRoundNumbers) {
  const Histogram seconds(Histogram::Of::kSeconds), numbers(Histogram::Of::kNumbers);
  std::vector<double> of_seconds, of_numbers;
  for (size_t i = 0; i < Histogram::kBounds; ++i) {
    of_seconds.push_back(seconds.bound(i));
    of_numbers.push_back(numbers.bound(i));
  }
  EXPECT_THAT(of_seconds, ElementsAre(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05,
                                      0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100));
  EXPECT_THAT(of_numbers, ElementsAre(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1e3, 2500, 5e3, 1e4, 2.5e4,
                                      5e4, 1e5, 2.5e5, 5e5, 1e6));
}

TEST(Histogram, EveryDurationIsInTheFirstBucketThatTakesIt) {
  constexpr uint64_t kSeed = 6;
  RecordProperty("seed", std::to_string(kSeed));
  std::vector<int64_t> all = {0, 1, std::numeric_limits<int64_t>::max()};
  const Histogram any(Histogram::Of::kSeconds);
  for (size_t i = 0; i < Histogram::kBounds; ++i) {
    const auto bound = static_cast<int64_t>(std::llround(any.bound(i) * 1e9));
    all.insert(all.end(), {bound - 1, bound, bound + 1});
  }
  for (int bits = 1; bits < 63; ++bits) {
    const int64_t power = int64_t{1} << bits;
    all.insert(all.end(), {power - 1, power, power + 1});
    all.push_back(static_cast<int64_t>(RandomBits(kSeed, bits) >> (64 - bits)));
  }
  for (const int64_t ns : all) {
    Histogram histogram(Histogram::Of::kSeconds);
    histogram.ObserveNs(ns);
    EXPECT_EQ(BucketOf(histogram), ExpectedBucket(histogram, static_cast<double>(ns) / 1e9)) << ns << " ns";
  }
}

TEST(Histogram, SumsWhatItObserves) {
  Histogram histogram(Histogram::Of::kSeconds);
  for (const int64_t ns : {1'000'000, 2'000'000, 500'000'000}) histogram.ObserveNs(ns);
  histogram.ObserveNs(-5);
  const Histogram::Snapshot snapshot = histogram.snapshot();
  EXPECT_EQ(snapshot.count, 4u);
  EXPECT_EQ(snapshot.counts[0], 1u) << "below 0 is 0";
  EXPECT_DOUBLE_EQ(snapshot.sum, 0.503);
}

TEST(Histogram, NumbersCountInThousandths) {
  const auto bucket = [](double number) {
    Histogram histogram(Histogram::Of::kNumbers);
    histogram.ObserveNumber(number);
    EXPECT_EQ(BucketOf(histogram), ExpectedBucket(histogram, number)) << number;
    return histogram.snapshot().sum;
  };
  for (const double number : {0.0, 0.1, 0.25, 1.0, 1.98, 2.5, 999.5, 1e6, 1e9})
    EXPECT_DOUBLE_EQ(bucket(number), number);
  EXPECT_DOUBLE_EQ(bucket(1.9996), 2.0);
  EXPECT_DOUBLE_EQ(bucket(1e300), 1e15);
  EXPECT_DOUBLE_EQ(bucket(std::numeric_limits<double>::infinity()), 1e15);
  Histogram odd(Histogram::Of::kNumbers);
  odd.ObserveNumber(std::nan(""));
  odd.ObserveNumber(-1);
  EXPECT_EQ(odd.snapshot().counts[0], 2u);
  EXPECT_EQ(odd.snapshot().sum, 0);
}

TEST(Histogram, ManyThreadsLoseNothingWhileItIsRead) {
  constexpr int kThreads = 40, kTimes = 5000;  // More than there are sets of cells.
  Histogram histogram(Histogram::Of::kSeconds);
  std::latch start(1);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      start.wait();
      for (int i = 0; i < kTimes; ++i) histogram.ObserveNs(1000 * (thread + 1));
    });
  }
  start.count_down();
  uint64_t last = 0;
  while (last < kThreads * kTimes) {
    const uint64_t now = histogram.snapshot().count;
    ASSERT_GE(now, last);
    last = now;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(histogram.snapshot().count, uint64_t{kThreads * kTimes});
  EXPECT_DOUBLE_EQ(histogram.snapshot().sum, 1e-6 * kTimes * kThreads * (kThreads + 1) / 2);
}

}  // namespace
}  // namespace lodestone
