#include "kernels/feature_order.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::kernels {
namespace {

using testing::ElementsAre;

std::vector<uint32_t> Of(const uint32_t* data, size_t n) { return {data, data + n}; }

TEST(FeatureOrder, SortsByRowAndKeepsTheBatchsOrderWithinARow) {
  const std::vector<uint32_t> offsets = {0, 2, 2, 5}, row = {2, 0, 0, 2, 0};
  FeatureOrderArrays arrays;
  arrays.Fill({3, offsets.data(), row.data(), nullptr, nullptr}, 4);
  const FeatureOrder order = arrays.View();
  EXPECT_THAT(Of(order.feature, 5), ElementsAre(1, 2, 4, 0, 3));
  EXPECT_THAT(Of(order.sample, 5), ElementsAre(0, 2, 2, 0, 2));
  ASSERT_EQ(order.chunks, 2u) << "rows 1 and 3 have no feature";
  EXPECT_THAT(Of(order.chunk_begin, 3), ElementsAre(0, 3, 5));
  EXPECT_THAT(Of(order.chunk_row, 2), ElementsAre(0, 2));
  EXPECT_EQ(order.long_rows, 0u);
}

TEST(FeatureOrder, CutsLongRowsIntoChunks) {
  constexpr uint32_t kChunk = FeatureOrder::kFeaturesPerChunk;
  // Row 0 fills a chunk, row 1 a chunk and one more feature, row 2 two chunks.
  std::vector<uint32_t> row(kChunk, 0);
  row.insert(row.end(), kChunk + 1, 1);
  row.insert(row.end(), 2 * kChunk, 2);
  const std::vector<uint32_t> offsets = {0, static_cast<uint32_t>(row.size())};
  FeatureOrderArrays arrays;
  arrays.Fill({1, offsets.data(), row.data(), nullptr, nullptr}, 3);
  const FeatureOrder order = arrays.View();
  ASSERT_EQ(order.chunks, 5u);
  EXPECT_THAT(Of(order.chunk_begin, 6),
              ElementsAre(0, kChunk, 2 * kChunk, 2 * kChunk + 1, 3 * kChunk + 1, 4 * kChunk + 1));
  EXPECT_THAT(Of(order.chunk_row, 5), ElementsAre(0, 1, 1, 2, 2));
  ASSERT_EQ(order.long_rows, 2u);
  EXPECT_THAT(Of(order.first_chunk, 2), ElementsAre(1, 3));
  EXPECT_THAT(Of(order.end_chunk, 2), ElementsAre(3, 5));
}

TEST(FeatureOrder, ForgetsTheBatchBefore) {
  const std::vector<uint32_t> offsets = {0, 3}, row = {0, 0, 1}, empty = {0};
  FeatureOrderArrays arrays;
  arrays.Fill({1, offsets.data(), row.data(), nullptr, nullptr}, 2);
  arrays.Fill({0, empty.data(), nullptr, nullptr, nullptr}, 0);
  EXPECT_EQ(arrays.View().chunks, 0u);
  EXPECT_THAT(Of(arrays.View().chunk_begin, 1), ElementsAre(0));
  arrays.Fill({1, offsets.data(), row.data(), nullptr, nullptr}, 2);
  EXPECT_EQ(arrays.View().chunks, 2u);
  EXPECT_THAT(Of(arrays.View().feature, 3), ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace lodestone::kernels
