#include "tools/psctl/model/dense_follower.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone::psctl {
namespace {

// Of one table of two blocks of two numbers, both of shard 3.
class DenseFollowerTest : public ::testing::Test {
 protected:
  static worker::TableHandle MakeTable() {
    worker::TableHandle table;
    table.id = 7;
    table.layout = {4, 2};
    return table;
  }
  void Send(BlockIndex block, Version version, float value) {
    const std::vector<float> values(2, value);
    follower_.OnBlock(
        {.table = 7,
         .block = block,
         .shard = 3,
         .version = version,
         .values = ByteView(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)),
         .count = values.size()});
  }
  std::vector<float> Values() { return follower_.Newest()->at(0); }

  worker::TableHandle table_ = MakeTable();
  DenseFollower follower_{{&table_}, {{1, 2, 3, 4}}};
};

TEST_F(DenseFollowerTest, ABlockThatIsOlderThanWhatIsHeldChangesNothing) {
  EXPECT_EQ(Values(), (std::vector<float>{1, 2, 3, 4}));
  Send(1, 5, 8);
  EXPECT_EQ(Values(), (std::vector<float>{1, 2, 8, 8}));
  Send(1, 4, 9);
  EXPECT_EQ(Values(), (std::vector<float>{1, 2, 8, 8}));
  EXPECT_FALSE(follower_.OnShard(3));
}

// Regression: a model that had gone back to a checkpoint was served with the numbers that it had gone back from.
TEST_F(DenseFollowerTest, AnAnchorReplacesWhatIsHeldAlsoWhereItsVersionsAreLower) {
  Send(0, 50, 6);
  Send(1, 60, 6);
  follower_.OnAnchor(3);
  Send(0, 4, 7);
  Send(1, 2, 8);
  EXPECT_TRUE(follower_.OnShard(3));
  EXPECT_EQ(Values(), (std::vector<float>{7, 7, 8, 8}));
  Send(0, 3, 9);
  EXPECT_EQ(Values(), (std::vector<float>{7, 7, 8, 8})) << "that is of a change, and late";
  Send(0, 5, 9);
  EXPECT_EQ(Values(), (std::vector<float>{9, 9, 8, 8}));
}

}  // namespace
}  // namespace lodestone::psctl
