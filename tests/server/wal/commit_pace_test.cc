#include "server/wal/commit_pace.h"

#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

constexpr CommitPace::Options kPace{.slow_ns = 5, .calm_ns = 100};

TEST(CommitPace, IsFastUntilACommitTakesTooLong) {
  CommitPace pace(kPace);
  EXPECT_FALSE(pace.IsSlow(1000));
  pace.Begin(3, 1000);
  pace.End(3, 1000, 1005);
  EXPECT_FALSE(pace.IsSlow(1005));
  pace.Begin(3, 1010);
  pace.End(3, 1010, 1016);
  EXPECT_TRUE(pace.IsSlow(1016));
}

TEST(CommitPace, ACommitThatDoesNotEndIsSlow) {
  CommitPace pace(kPace);
  pace.Begin(3, 1000);
  EXPECT_FALSE(pace.IsSlow(1005));
  EXPECT_TRUE(pace.IsSlow(1006));
}

TEST(CommitPace, IsFastAgainWithACommitThatIsFastAWhileAfterTheLastSlowOne) {
  CommitPace pace(kPace);
  pace.Begin(0, 1000);
  pace.End(0, 1000, 1010);
  pace.End(0, 1050, 1051);
  EXPECT_TRUE(pace.IsSlow(1060));
  EXPECT_TRUE(pace.IsSlow(5000)) << "nothing was committed since";
  pace.End(1, 5000, 5001);
  EXPECT_FALSE(pace.IsSlow(5001));
}

}  // namespace
}  // namespace lodestone::server
