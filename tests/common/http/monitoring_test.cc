#include "common/http/monitoring.h"

#include "gtest/gtest.h"

namespace lodestone {
namespace {

TEST(HttpAddress, IsOnTheHostAtWhichThePsIsReached) {
  EXPECT_EQ(HttpAddress("0.0.0.0:7080", "ps0.example:7000", 7080), "ps0.example:7080");
  EXPECT_EQ(HttpAddress("[::]:0", "[2001:db8::1]:7000", 7081), "[2001:db8::1]:7081");
  EXPECT_EQ(HttpAddress("10.0.0.5:7080", "ps0.example:7000", 7080), "ps0.example:7080");
  EXPECT_EQ(HttpAddress("127.0.0.1:0", "ps0.example:7000", 7082), "127.0.0.1:7082") << "nobody else reaches it";
  EXPECT_EQ(HttpAddress("localhost:0", "ps0.example:7000", 7082), "localhost:7082");
}

}  // namespace
}  // namespace lodestone
