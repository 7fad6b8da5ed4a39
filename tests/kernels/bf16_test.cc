#include <cfloat>
#include <cmath>
#include <random>

#include "gtest/gtest.h"
#include "kernels/bf16-inl.h"
#include "tests/kernels/special_values.h"

namespace lodestone::kernels {
namespace {

float ThroughBf16(float x) { return FloatOfBf16(Bf16Of(x)); }

TEST(Bf16, RoundsToNearestAndTiesToEven) {
  EXPECT_EQ(ThroughBf16(1.0f + 0x1p-8f), 1.0f) << "a tie, to even";
  EXPECT_EQ(ThroughBf16(1.0f + 0x3p-8f), 1.0f + 0x1p-6f) << "a tie, to even";
  EXPECT_EQ(ThroughBf16(1.0f + 0x1p-8f + 0x1p-20f), 1.0f + 0x1p-7f);
  EXPECT_EQ(ThroughBf16(-3.140625f), -3.140625f);
  EXPECT_EQ(ThroughBf16(FLT_MAX), kInf);
  EXPECT_EQ(ThroughBf16(-kInf), -kInf);
  EXPECT_TRUE(std::isnan(ThroughBf16(kNan)));
  EXPECT_TRUE(std::signbit(ThroughBf16(-0.0f)));
  // A NaN whose payload is all in the half that goes.
  EXPECT_TRUE(std::isnan(ThroughBf16(FloatOf(0x7f800001u))));
}

TEST(Bf16, RoundingIsWithinHalfAStep) {
  std::mt19937 random(20240229);
  std::uniform_real_distribution<float> distribution(-1000.0f, 1000.0f);
  for (int i = 0; i < 1000; ++i) {
    const float x = distribution(random);
    ASSERT_LE(std::abs(ThroughBf16(x) - x), 0x1p-8 * std::abs(x)) << x;
  }
}

}  // namespace
}  // namespace lodestone::kernels
