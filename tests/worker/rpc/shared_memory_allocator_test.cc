#include "worker/rpc/shared_memory_allocator.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/wire/shared_memory.h"
#include "gtest/gtest.h"
#include "proto/parameter_server.pb.h"

namespace lodestone::worker {
namespace {

using Range = SharedMemoryAllocator::Range;

constexpr uint64_t kSeed = 17;
constexpr uint64_t kLine = 64;

// Memory with `bytes` for ranges.
std::shared_ptr<SharedMemory> Memory(uint64_t bytes) {
  auto memory = SharedMemory::Make(kSharedMemoryHead + bytes);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return *std::move(memory);
}

// Whether nothing is taken of the `bytes` that there are.
bool AllIsFree(uint64_t bytes, SharedMemoryAllocator* ranges) {
  const std::optional<Range> all = ranges->Take(bytes);
  if (!all.has_value()) return false;
  ranges->GiveBack(*all);
  return all->offset == kSharedMemoryHead;
}

TEST(SharedMemoryAllocator, LieInTheMemoryBehindItsHeadAndDoNotOverlap) {
  const auto memory = Memory(100'000);
  SharedMemoryAllocator ranges(memory);
  EXPECT_EQ(ranges.memory(), memory.get());
  std::vector<Range> taken;
  for (uint64_t bytes = 1; const auto range = ranges.Take(bytes); bytes += 13) {
    EXPECT_EQ(range->bytes, bytes);
    EXPECT_EQ(range->data, memory->data() + range->offset);
    EXPECT_GE(range->offset, kSharedMemoryHead);
    EXPECT_LE(range->offset + range->bytes, memory->size());
    taken.push_back(*range);
  }
  ASSERT_GT(taken.size(), 50u);
  std::sort(taken.begin(), taken.end(), [](const Range& a, const Range& b) { return a.offset < b.offset; });
  for (size_t i = 1; i < taken.size(); ++i) EXPECT_LE(taken[i - 1].offset + taken[i - 1].bytes, taken[i].offset);
}

TEST(SharedMemoryAllocator, TakeWholeCacheLines) {
  SharedMemoryAllocator ranges(Memory(10 * kLine));
  uint64_t expected = kSharedMemoryHead;
  for (const auto& [bytes, lines] : {std::pair{1, 1}, {63, 1}, {64, 1}, {65, 2}, {128, 2}, {129, 3}}) {
    const auto range = ranges.Take(bytes);
    ASSERT_TRUE(range.has_value()) << bytes;
    EXPECT_EQ(range->offset, expected) << bytes;
    EXPECT_EQ(range->bytes, static_cast<uint64_t>(bytes));
    expected += lines * kLine;
  }
  EXPECT_FALSE(ranges.Take(1).has_value());
}

TEST(SharedMemoryAllocator, AMessageNamesARangeByWhereItIs) {
  SharedMemoryAllocator ranges(Memory(10 * kLine));
  ASSERT_TRUE(ranges.Take(3 * kLine).has_value());
  const auto range = ranges.Take(100);
  ASSERT_TRUE(range.has_value());
  const v1::SharedRange proto = ToProto(*range);
  EXPECT_EQ(proto.offset(), kSharedMemoryHead + 3 * kLine);
  EXPECT_EQ(proto.bytes(), 100u);
}

TEST(SharedMemoryAllocator, TheLowestThatIsLargeEnoughComesFirst) {
  SharedMemoryAllocator ranges(Memory(16 * kLine));
  std::vector<Range> taken;
  for (const uint64_t lines : {1, 1, 2, 1, 3, 1}) {
    const auto range = ranges.Take(lines * kLine);
    ASSERT_TRUE(range.has_value());
    taken.push_back(*range);
  }
  for (const size_t i : {4, 0, 2}) ranges.GiveBack(taken[i]);
  const auto offset = [&](uint64_t lines) {
    const auto range = ranges.Take(lines * kLine);
    return range.has_value() ? range->offset : 0;
  };
  EXPECT_EQ(offset(3), taken[4].offset);
  EXPECT_EQ(offset(2), taken[2].offset);
  EXPECT_EQ(offset(2), taken[5].offset + kLine) << "the gap at the beginning is too small";
  EXPECT_EQ(offset(1), taken[0].offset);
}

TEST(SharedMemoryAllocator, WhatIsGivenBackIsJoinedWithBothNeighbours) {
  constexpr uint64_t kAll = 12 * kLine;
  std::vector<size_t> order = {0, 1, 2, 3};
  do {
    SCOPED_TRACE(testing::PrintToString(order));
    SharedMemoryAllocator ranges(Memory(kAll));
    std::vector<Range> taken;
    for (const uint64_t bytes : {kLine, 3 * kLine - 1, 5 * kLine, 3 * kLine - 63}) {
      const auto range = ranges.Take(bytes);
      ASSERT_TRUE(range.has_value());
      taken.push_back(*range);
    }
    ASSERT_FALSE(ranges.Take(1).has_value());
    for (const size_t i : order) {
      EXPECT_FALSE(ranges.Take(kAll).has_value());
      ranges.GiveBack(taken[i]);
    }
    EXPECT_TRUE(AllIsFree(kAll, &ranges));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(SharedMemoryAllocator, ThereIsNothingWhenAllIsTakenUntilSomethingIsGivenBack) {
  SharedMemoryAllocator ranges(Memory(4 * kLine));
  std::vector<Range> taken;
  while (const auto range = ranges.Take(kLine)) taken.push_back(*range);
  ASSERT_EQ(taken.size(), 4u);
  EXPECT_FALSE(ranges.Take(1).has_value());
  ranges.GiveBack(taken[2]);
  EXPECT_FALSE(ranges.Take(kLine + 1).has_value());
  const auto again = ranges.Take(kLine);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->offset, taken[2].offset);
  EXPECT_FALSE(ranges.Take(1).has_value());
}

TEST(SharedMemoryAllocator, ThereIsNoRangeLargerThanAll) {
  constexpr uint64_t kAll = 4 * kLine;
  SharedMemoryAllocator ranges(Memory(kAll));
  const uint64_t size = ranges.memory()->size();
  for (const uint64_t bytes : {kAll + 1, size, size + 1, UINT64_MAX - kLine, UINT64_MAX - 1, UINT64_MAX}) {
    EXPECT_FALSE(ranges.Take(bytes).has_value()) << bytes;
  }
  EXPECT_TRUE(AllIsFree(kAll, &ranges));
}

TEST(SharedMemoryAllocator, WhatIsLessThanACacheLineAtTheEndIsNotUsed) {
  SharedMemoryAllocator ranges(Memory(2 * kLine + 63));
  EXPECT_FALSE(ranges.Take(2 * kLine + 1).has_value());
  EXPECT_TRUE(AllIsFree(2 * kLine, &ranges));
  SharedMemoryAllocator none(Memory(63));
  EXPECT_FALSE(none.Take(1).has_value());
}

TEST(SharedMemoryAllocator, TakeAsMuchOfTheMachineAsTheHighestNeeds) {
  constexpr uint64_t kBytes = 4 << 20;
  SharedMemoryAllocator ranges(Memory(kSharedMemoryBytesMax - kSharedMemoryHead));
  const auto machine_bytes = [&] {
    struct stat status = {};
    EXPECT_EQ(fstat(static_cast<int>(ranges.memory()->Offer().file()), &status), 0);
    return static_cast<uint64_t>(status.st_blocks) * 512;
  };
  const auto first = ranges.Take(kBytes);
  ASSERT_TRUE(first.has_value());
  const uint64_t before = machine_bytes();
  EXPECT_GE(before, kSharedMemoryHead + kBytes);
  EXPECT_LE(before, 2 * kBytes);
  ranges.GiveBack(*first);
  for (int i = 0; i < 100; ++i) {
    const auto range = ranges.Take(kBytes);
    ASSERT_TRUE(range.has_value());
    ranges.GiveBack(*range);
  }
  EXPECT_EQ(machine_bytes(), before);
}

// The model is a line of flags, searched from its beginning.
TEST(SharedMemoryAllocator, ARandomSeriesGoesAsInASimpleModel) {
  RecordProperty("seed", std::to_string(kSeed));
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  constexpr size_t kLines = 150;
  SharedMemoryAllocator ranges(Memory(kLines * kLine + 63));
  std::vector<bool> taken_lines(kLines, false);
  std::vector<Range> taken;
  const auto mark = [&](const Range& range, bool is_taken) {
    const uint64_t begin = (range.offset - kSharedMemoryHead) / kLine;
    for (uint64_t i = begin; i < begin + (range.bytes + kLine - 1) / kLine; ++i) {
      ASSERT_NE(taken_lines[i], is_taken);
      taken_lines[i] = is_taken;
    }
  };
  size_t refused = 0;
  for (uint64_t step = 0; step < 20'000; ++step) {
    const uint64_t bits = RandomBits(kSeed, step);
    if (!taken.empty() && bits % 2 == 0) {
      const size_t i = (bits >> 8) % taken.size();
      ranges.GiveBack(taken[i]);
      ASSERT_NO_FATAL_FAILURE(mark(taken[i], false)) << "step " << step;
      taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    const uint64_t bytes = 1 + (bits >> 8) % (bits % 16 == 1 ? 64 * kLine : 5 * kLine);
    const auto at = std::search_n(taken_lines.begin(), taken_lines.end(), (bytes + kLine - 1) / kLine, false);
    const auto range = ranges.Take(bytes);
    ASSERT_EQ(range.has_value(), at != taken_lines.end()) << "step " << step;
    if (!range.has_value()) {
      ++refused;
      continue;
    }
    ASSERT_EQ(range->offset, kSharedMemoryHead + kLine * (at - taken_lines.begin())) << "step " << step;
    ASSERT_NO_FATAL_FAILURE(mark(*range, true)) << "step " << step;
    taken.push_back(*range);
  }
  EXPECT_GT(refused, 100u) << "the memory was never full";
  for (const Range& range : taken) ranges.GiveBack(range);
  EXPECT_TRUE(AllIsFree(kLines * kLine, &ranges));
}

TEST(SharedMemoryAllocator, SeveralThreadsHaveEachItsOwn) {
  RecordProperty("seed", std::to_string(kSeed));
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  constexpr int kThreads = 4;
  constexpr uint64_t kBytesMax = 4'096;
  // What is free lies in at most kThreads pieces, of which one is large enough then.
  constexpr uint64_t kAll = 2 * kThreads * kBytesMax;
  SharedMemoryAllocator ranges(Memory(kAll));
  std::latch ready(kThreads);
  std::atomic<int> missing{0}, spoilt{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      ready.arrive_and_wait();
      for (uint64_t round = 0; round < 1'000; ++round) {
        const uint64_t bytes = 1 + RandomBits(StreamSeed(kSeed, thread), round) % kBytesMax;
        const auto range = ranges.Take(bytes);
        if (!range.has_value()) {
          ++missing;
          continue;
        }
        const auto own = static_cast<uint8_t>(thread + 1);
        std::memset(range->data, own, bytes);
        std::this_thread::yield();
        if (std::count(range->data, range->data + bytes, own) != static_cast<std::ptrdiff_t>(bytes)) ++spoilt;
        ranges.GiveBack(*range);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(missing.load(), 0);
  EXPECT_EQ(spoilt.load(), 0);
  EXPECT_TRUE(AllIsFree(kAll, &ranges));
}

}  // namespace
}  // namespace lodestone::worker
