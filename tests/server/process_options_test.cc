#include "server/process_options.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

v1::Config WithMemory(uint64_t memory_max_bytes, uint32_t message_max_bytes) {
  v1::Config config;
  config.mutable_server()->set_memory_max_bytes(memory_max_bytes);
  config.mutable_server()->set_message_max_bytes(message_max_bytes);
  return config;
}

TEST(CallMemoryBytesTest, CallsHaveATwentyFourthOfTheMemory) {
  uint64_t tables = 0;
  const auto bytes = CallMemoryBytes(WithMemory(24'000'000, 1'000), [&tables] { return tables; });
  EXPECT_EQ(bytes(), 1'000'000u);
  tables = 30'000'000;
  EXPECT_EQ(bytes(), 1'000'000u);
}

// Regression: four messages had room however much the tables took, so that the process exceeded a small limit by far.
TEST(CallMemoryBytesTest, FourMessagesHaveRoomOnlyWhereTheTablesLeaveIt) {
  uint64_t tables = 0;
  const auto bytes = CallMemoryBytes(WithMemory(24'000'000, 1'000'000), [&tables] { return tables; });
  EXPECT_EQ(bytes(), 4'000'000u);
  tables = 20'000'000;
  EXPECT_EQ(bytes(), 2'000'000u) << "and large answers and broadcasts 1,000,000 each";
  tables = 23'500'000;
  EXPECT_EQ(bytes(), 1'000'000u);
}

}  // namespace
}  // namespace lodestone::server
