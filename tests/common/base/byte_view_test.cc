#include "common/base/byte_view.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone {
namespace {

// 40 bytes with the values 0, 1, … cut into runs.
struct Cut {
  explicit Cut(const std::vector<size_t>& sizes) {
    for (uint8_t i = 0; i < 40; ++i) bytes.push_back(i);
    size_t at = 0;
    for (const size_t size : sizes) {
      runs.push_back({bytes.data() + at, size});
      at += size;
    }
    EXPECT_EQ(at, bytes.size());
  }
  std::vector<uint8_t> bytes;
  std::vector<ByteView::Run> runs;
};

const std::vector<size_t> kCuts[] = {
    {40}, {20, 20}, {0, 40}, {40, 0}, {1, 39}, {7, 0, 0, 9, 24}, std::vector<size_t>(40, 1), {3, 3, 3, 3, 28}};

std::vector<uint8_t> Copy(const ByteView& view) {
  std::vector<uint8_t> copy(view.size());
  view.CopyTo(copy.data());
  return copy;
}

TEST(ByteView, TakesPrefixesAcrossRuns) {
  for (const auto& sizes : kCuts) {
    const Cut cut(sizes);
    for (size_t first = 0; first <= 40; ++first) {
      for (size_t second = 0; first + second <= 40; ++second) {
        ByteView rest(cut.runs);
        const ByteView a = rest.Take(first);
        const ByteView b = rest.Take(second);
        EXPECT_EQ(Copy(a), std::vector<uint8_t>(cut.bytes.begin(), cut.bytes.begin() + first));
        EXPECT_EQ(Copy(b), std::vector<uint8_t>(cut.bytes.begin() + first, cut.bytes.begin() + first + second));
        EXPECT_EQ(Copy(rest), std::vector<uint8_t>(cut.bytes.begin() + first + second, cut.bytes.end()));
        EXPECT_EQ(rest.size(), 40 - first - second);
        EXPECT_EQ(rest.empty(), first + second == 40);
      }
    }
  }
}

TEST(ByteView, VisitsEveryElementOnceAndWholeWhereverRunsEnd) {
  for (const auto& sizes : kCuts) {
    const Cut cut(sizes);
    std::vector<uint8_t> seen;
    ByteView(cut.runs).ForEachRun<uint32_t>([&](const uint8_t* data, size_t count) {
      EXPECT_GE(count, 1);
      seen.insert(seen.end(), data, data + count * sizeof(uint32_t));
    });
    EXPECT_EQ(seen, cut.bytes);
  }
}

TEST(ByteView, LoadsElementsThatStraddle) {
  for (const auto& sizes : kCuts) {
    const Cut cut(sizes);
    const ByteView view(cut.runs);
    for (size_t i = 0; i < 5; ++i) {
      uint64_t expected;
      std::memcpy(&expected, cut.bytes.data() + 8 * i, 8);
      EXPECT_EQ(view.Load<uint64_t>(i), expected);
    }
  }
}

TEST(ByteView, IsContiguousExactlyIfOneRunHoldsAllOfIt) {
  const Cut cut({10, 30});
  ByteView rest(cut.runs);
  EXPECT_EQ(rest.contiguous(), nullptr);
  const ByteView front = rest.Take(10);
  EXPECT_EQ(front.contiguous(), cut.bytes.data());
  EXPECT_EQ(rest.contiguous(), cut.bytes.data() + 10);
  EXPECT_EQ(ByteView(cut.bytes.data(), 3).contiguous(), cut.bytes.data());
}

TEST(ByteView, AnEmptyOneHasNothingToVisit) {
  ByteView empty;
  EXPECT_TRUE(empty.empty());
  EXPECT_TRUE(empty.Take(0).empty());
  empty.ForEachRun<float>([](const uint8_t*, size_t) { ADD_FAILURE(); });
  empty.CopyTo(nullptr);
  const std::vector<ByteView::Run> none(2);
  EXPECT_TRUE(ByteView(none).empty());
}

}  // namespace
}  // namespace lodestone
