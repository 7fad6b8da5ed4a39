#include "server/optimizer/arithmetic.h"

#include <gnu/libc-version.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace lodestone::server {
namespace {

TEST(ArithmeticTest, TheFingerprintIsTheSameEachTimeAndNeverNone) {
  const uint64_t fingerprint = ArithmeticFingerprint();
  EXPECT_NE(fingerprint, 0u);
  EXPECT_EQ(fingerprint, ArithmeticFingerprint());
}

TEST(ArithmeticTest, NamesTheProcessorsInstructionsAndTheLibrary) {
  const int64_t targets = hwy::SupportedTargets();
  EXPECT_THAT(ArithmeticName(), testing::StartsWith(hwy::TargetName(targets & -targets)));
  EXPECT_THAT(ArithmeticName(), testing::HasSubstr(gnu_get_libc_version()));
}

}  // namespace
}  // namespace lodestone::server
