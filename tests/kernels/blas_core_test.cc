#include "kernels/blas_core.h"

#include "gtest/gtest.h"

namespace lodestone::kernels::cpu {
namespace {

TEST(BetterCoreType, IsThatOfTheInstructionsWhereOpenBlasTookAnOldOne) {
  EXPECT_EQ(BetterCoreType("Prescott", true, true), "SkylakeX");
  EXPECT_EQ(BetterCoreType("Prescott", true, false), "Haswell");
  EXPECT_EQ(BetterCoreType("Barcelona", true, false), "Haswell");
}

TEST(BetterCoreType, IsNoneWhereOpenBlasKnowsTheProcessorOrThatHasNoNewerInstructions) {
  for (const char* taken : {"Haswell", "Zen", "SkylakeX", "Cooperlake", "Sapphirerapids", "Excavator", "armv8"}) {
    EXPECT_EQ(BetterCoreType(taken, true, true), "") << taken;
  }
  EXPECT_EQ(BetterCoreType("Prescott", false, false), "");
  EXPECT_EQ(BetterCoreType("Nehalem", false, false), "");
}

}  // namespace
}  // namespace lodestone::kernels::cpu
