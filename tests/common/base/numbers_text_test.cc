#include "common/base/numbers_text.h"

#include "gtest/gtest.h"

namespace lodestone {
namespace {

TEST(NumbersText, JoinsNeighbours) {
  EXPECT_EQ(NumbersText({}), "");
  EXPECT_EQ(NumbersText({3}), "3");
  EXPECT_EQ(NumbersText({3, 4}), "3, 4");
  EXPECT_EQ(NumbersText({0, 3, 5, 6, 7, 9, 10}), "0, 3, 5-7, 9, 10");
}

TEST(NumbersText, CountsWhatIsTooMuchToRead) {
  EXPECT_EQ(NumbersText({0, 3, 5, 6, 7, 9, 10}, 4), "0, 3, 5-7, 9, 10");
  EXPECT_EQ(NumbersText({0, 3, 5, 6, 7, 9, 10}, 3), "0, 3, 5-7 and 2 more");
  EXPECT_EQ(NumbersText({1, 3}, 1), "1 and 1 more");
}

}  // namespace
}  // namespace lodestone
