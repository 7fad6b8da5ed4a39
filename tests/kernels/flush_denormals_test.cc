#include "kernels/flush_denormals.h"

#include <bit>
#include <cstdint>
#include <limits>
#include <thread>

#include "gtest/gtest.h"

namespace lodestone::kernels {
namespace {

constexpr float kDenormal = std::numeric_limits<float>::min() / 4;

// As the processor has it now.
float Product(float x, float y) {
  volatile float factor = x;
  return factor * y;
}
// By its bits: where denormals are zero, they are equal to it.
bool IsZero(float x) { return std::bit_cast<uint32_t>(x) == 0; }

// Whether denormals are zero.
bool Flushes() {
  const bool factor = IsZero(Product(kDenormal, 4));
  EXPECT_EQ(IsZero(Product(std::numeric_limits<float>::min(), 0.25f)), factor) << "factors and results alike";
  return factor;
}

class FlushDenormalsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!FlushDenormals::kAvailable) GTEST_SKIP() << "this processor's mode is not known";
  }
};

TEST_F(FlushDenormalsTest, DenormalsAreZeroInTheScopeAndNowhereElse) {
  EXPECT_FALSE(Flushes());
  {
    const FlushDenormals flush;
    EXPECT_TRUE(Flushes());
    EXPECT_EQ(Product(std::numeric_limits<float>::min(), 1), std::numeric_limits<float>::min());
  }
  EXPECT_FALSE(Flushes());
}

TEST_F(FlushDenormalsTest, AnInnerScopeLeavesTheOuterOneItsMode) {
  const FlushDenormals outer;
  { const FlushDenormals inner; }
  EXPECT_TRUE(Flushes());
}

TEST_F(FlushDenormalsTest, AnotherThreadKeepsItsOwn) {
  bool flushes = true;
  std::thread other([&] {
    const FlushDenormals flush;
    flushes = Flushes();
  });
  other.join();
  EXPECT_TRUE(flushes);
  EXPECT_FALSE(Flushes());
}

}  // namespace
}  // namespace lodestone::kernels
