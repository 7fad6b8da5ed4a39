#include "server/table/age_counts.h"

#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

TEST(AgeCountsTest, TellsThePercentilesAndTheGreatestOfWhatItHasHad) {
  AgeCounts ages;
  EXPECT_EQ(ages.Percentile(50), 0u);
  EXPECT_EQ(ages.max(), 0u);
  for (uint64_t age = 1; age <= 10; ++age) ages.Add(age);
  EXPECT_EQ(ages.Percentile(50), 5u);
  EXPECT_EQ(ages.Percentile(90), 9u);
  EXPECT_EQ(ages.Percentile(91), 10u);
  EXPECT_EQ(ages.max(), 10u);
  for (int i = 0; i < 100; ++i) ages.Add(0);
  EXPECT_EQ(ages.Percentile(90), 0u);
  EXPECT_EQ(ages.Percentile(100), 10u);
}

TEST(AgeCountsTest, GreatAgesAreOneInThePercentilesAndExactInTheMaximum) {
  AgeCounts ages;
  ages.Add(1'000'000);
  ages.Add(70);
  EXPECT_EQ(ages.Percentile(50), AgeCounts::kAgeMax);
  EXPECT_EQ(ages.max(), 1'000'000u);
}

}  // namespace
}  // namespace lodestone::server
