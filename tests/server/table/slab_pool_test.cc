#include "server/table/slab_pool.h"

#include <cstring>
#include <fstream>
#include <latch>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/table/counted_buffer.h"

namespace lodestone::server {
namespace {

constexpr size_t kCell = 9088;

// A pool whose plain memory is in use, so that it makes slabs.
class SlabPoolTest : public ::testing::Test {
 protected:
  explicit SlabPoolTest(size_t cell_bytes = kCell) : pool_(cell_bytes) {
    for (size_t bytes = 0; bytes < SlabPool::kPlainBytes; bytes += cell_bytes) {
      plain_.push_back(pool_.Allocate());
      EXPECT_EQ(plain_.back().slab, nullptr);
    }
  }
  ~SlabPoolTest() override {
    for (const SlabPool::Cell& cell : plain_) SlabPool::Free(cell);
  }

  SlabPool pool_;
  std::vector<SlabPool::Cell> plain_;
};

size_t Mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t lines = 0;
  for (std::string line; std::getline(maps, line);) ++lines;
  return lines;
}

TEST_F(SlabPoolTest, TakesNoSlabForWhatASmallTableNeeds) {
  EXPECT_EQ(pool_.slab_bytes(), 0u);
  const SlabPool::Cell cell = pool_.Allocate();
  EXPECT_NE(cell.slab, nullptr);
  EXPECT_EQ(pool_.slab_bytes(), size_t{2} << 20);
  SlabPool::Free(cell);
}

TEST(SlabPool, PlainMemoryThatComesAndGoesMakesNoSlab) {
  SlabPool pool(kCell);
  for (size_t bytes = 0; bytes < 2 * SlabPool::kPlainBytes; bytes += kCell) SlabPool::Free(pool.Allocate());
  EXPECT_EQ(pool.slab_bytes(), 0u);
}

TEST(SlabPool, SlabsDoNotUseUpTheKernelsMappings) {
  SlabPool pool(kCell);
  const size_t before = Mappings();
  std::vector<SlabPool::Cell> cells;
  while (pool.slab_bytes() < size_t{400} << 20) cells.push_back(pool.Allocate());
  EXPECT_LT(Mappings(), before + 50);
  for (const SlabPool::Cell& cell : cells) SlabPool::Free(cell);
}

TEST_F(SlabPoolTest, GivesCellsThatDoNotOverlapAndKeepWhatIsWrittenToThem) {
  constexpr unsigned kSeed = 4;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  std::vector<std::pair<SlabPool::Cell, uint8_t>> held;
  const auto check = [&](size_t i) {
    const auto* bytes = static_cast<const uint8_t*>(held[i].first.memory);
    for (size_t at = 0; at < kCell; ++at) ASSERT_EQ(bytes[at], held[i].second);
  };
  for (int i = 0; i < 5000; ++i) {
    if (held.size() > 700 || (!held.empty() && random() % 3 == 0)) {
      const size_t which = random() % held.size();
      check(which);
      SlabPool::Free(held[which].first);
      held[which] = held.back();
      held.pop_back();
    } else {
      held.emplace_back(pool_.Allocate(), static_cast<uint8_t>(random()));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(held.back().first.memory) % SlabPool::kAlignment, 0u);
      std::memset(held.back().first.memory, held.back().second, kCell);
    }
  }
  for (size_t i = 0; i < held.size(); ++i) {
    check(i);
    SlabPool::Free(held[i].first);
  }
}

TEST_F(SlabPoolTest, ReturnsSlabsWhoseCellsAreAllFreeButOne) {
  const size_t cells_per_slab = (size_t{2} << 20) / kCell;
  std::vector<SlabPool::Cell> cells(10 * cells_per_slab);
  for (SlabPool::Cell& cell : cells) cell = pool_.Allocate();
  EXPECT_EQ(pool_.slab_bytes(), size_t{20} << 20);
  for (const SlabPool::Cell& cell : cells) SlabPool::Free(cell);
  EXPECT_EQ(pool_.slab_bytes(), size_t{2} << 20);
}

TEST(SlabPool, FillsSlabsOfCellsOfAnySizeToAllButASmallPart) {
  for (size_t cell : {size_t{128}, size_t{9088}, size_t{262272}, size_t{525952}, SlabPool::kCellBytesMax}) {
    SlabPool pool(cell);
    std::vector<SlabPool::Cell> cells;
    size_t in_slabs = 0;
    while (in_slabs < (size_t{40} << 20) && cells.size() < 400'000) {
      cells.push_back(pool.Allocate());
      if (cells.back().slab != nullptr) in_slabs += cell;
    }
    // The last slab is used in part.
    EXPECT_LE(pool.slab_bytes(), in_slabs + in_slabs / 16 + (size_t{32} << 20)) << cell;
    for (const SlabPool::Cell& c : cells) SlabPool::Free(c);
  }
}

TEST_F(SlabPoolTest, ServesManyThreads) {
  constexpr int kThreads = 4;
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      std::vector<SlabPool::Cell> cells;
      for (int i = 0; i < 3000; ++i) {
        cells.push_back(pool_.Allocate());
        std::memset(cells.back().memory, t, 64);
        if (cells.size() < 300) continue;
        for (const SlabPool::Cell& cell : cells) {
          ASSERT_EQ(static_cast<uint8_t*>(cell.memory)[63], t);
          SlabPool::Free(cell);
        }
        cells.clear();
      }
      for (const SlabPool::Cell& cell : cells) SlabPool::Free(cell);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(AllocateZeroed, GivesZerosOfAnySize) {
  for (size_t bytes : {size_t{1}, size_t{64}, (size_t{2} << 20) - 1, size_t{2} << 20, (size_t{5} << 20) + 4097}) {
    const LargeMemory memory = AllocateZeroed(bytes);
    auto* data = static_cast<uint8_t*>(memory.get());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % SlabPool::kAlignment, 0u);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(data[i], 0) << i;
    std::memset(data, 1, bytes);
  }
}

TEST(BufferRef, KeptBuffersHaveTheirSizeAndAreFreedFromAnyThread) {
  for (size_t bytes : {size_t{4}, size_t{1000}, size_t{262144}, SlabPool::kCellBytesMax + 4}) {
    BufferRef buffer = BufferRef::NewKept(bytes);
    EXPECT_EQ(buffer->size_bytes(), bytes);
    std::memset(buffer->bytes(), 7, bytes);
    BufferRef other = buffer;
    EXPECT_FALSE(buffer.unique());
    std::thread([other = std::move(other)] { EXPECT_EQ(other->bytes()[0], 7); }).join();
    EXPECT_TRUE(buffer.unique());
  }
}

}  // namespace
}  // namespace lodestone::server
