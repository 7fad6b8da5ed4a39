#include "server/coordinator/learners.h"

#include <optional>

#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

// Regression: the follower whose place a learner that died was to take was taken for that of the next learner, too.
TEST(Learners, NothingIsLeftOfOneThatDied) {
  Learners learners(2);
  learners.Set(0, 3, 1);
  learners.Set(1, 2, 1);
  EXPECT_EQ(learners.ReplacedBy(0), std::optional<uint32_t>(1));
  EXPECT_TRUE(learners.Remove(3));
  EXPECT_FALSE(learners.Remove(3));
  EXPECT_EQ(learners.Of(0), std::nullopt);
  EXPECT_EQ(learners.ReplacedBy(0), std::nullopt);
  EXPECT_EQ(learners.Of(1), std::optional<uint32_t>(2));
  EXPECT_EQ(learners.ReplacedBy(1), std::optional<uint32_t>(1));
}

}  // namespace
}  // namespace lodestone::server
