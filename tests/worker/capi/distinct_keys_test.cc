#include "worker/capi/distinct_keys.h"

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(FindDistinct, KeysStandInTheOrderOfTheirFirstAppearance) {
  const std::vector<Key> keys = {9, 0, 9, std::numeric_limits<Key>::max(), 0, 3};
  std::vector<Key> distinct;
  std::vector<uint32_t> row;
  FindDistinct(keys, &distinct, &row);
  EXPECT_THAT(distinct, ElementsAre(9, 0, std::numeric_limits<Key>::max(), 3));
  EXPECT_THAT(row, ElementsAre(0, 1, 0, 2, 1, 3));
  FindDistinct({}, &distinct, &row);
  EXPECT_THAT(distinct, IsEmpty());
  EXPECT_THAT(row, IsEmpty());
}

TEST(FindDistinct, AgreesWithAMapOnKeysThatAreAlike) {
  // Small numbers, their multiples of large powers of two, and random ones: each list has many of its keys twice.
  for (const uint64_t stride : {uint64_t{1}, uint64_t{1} << 20, uint64_t{1} << 44, uint64_t{0x9e3779b97f4a7c15}}) {
    std::vector<Key> keys;
    for (uint64_t i = 0; i < 5000; ++i) keys.push_back(RandomBits(7, i) % 2000 * stride);
    std::vector<Key> distinct;
    std::vector<uint32_t> row;
    FindDistinct(keys, &distinct, &row);
    std::map<Key, uint32_t> places;
    for (size_t i = 0; i < keys.size(); ++i) {
      const uint32_t place = places.emplace(keys[i], static_cast<uint32_t>(places.size())).first->second;
      ASSERT_EQ(row[i], place);
      ASSERT_EQ(distinct[place], keys[i]);
    }
    EXPECT_EQ(distinct.size(), places.size());
  }
}

}  // namespace
}  // namespace lodestone::worker
