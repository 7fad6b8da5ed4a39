#include "kernels/quantize.h"

#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/backend.h"
#include "tests/kernels/exact.h"

namespace lodestone::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

class QuantizeTest : public KernelTest {
 protected:
  float ThroughBf16(float x) {
    uint16_t small;
    float back = kNan;
    GetParam().to_bf16(1, &x, &small);
    GetParam().from_bf16(1, &small, &back);
    return back;
  }
  float ThroughF16(float x) {
    uint16_t small;
    float back = kNan;
    GetParam().to_f16(1, &x, &small);
    GetParam().from_f16(1, &small, &back);
    return back;
  }
};

TEST_P(QuantizeTest, Bf16RoundsToNearestAndTiesToEven) {
  EXPECT_EQ(ThroughBf16(1.0f + 0x1p-8f), 1.0f) << "a tie, to even";
  EXPECT_EQ(ThroughBf16(1.0f + 0x3p-8f), 1.0f + 0x1p-6f) << "a tie, to even";
  EXPECT_EQ(ThroughBf16(1.0f + 0x1p-8f + 0x1p-20f), 1.0f + 0x1p-7f);
  EXPECT_EQ(ThroughBf16(-3.140625f), -3.140625f);
  EXPECT_EQ(ThroughBf16(FLT_MAX), kInf);
  EXPECT_EQ(ThroughBf16(-kInf), -kInf);
  EXPECT_TRUE(std::isnan(ThroughBf16(kNan)));
  EXPECT_TRUE(std::signbit(ThroughBf16(-0.0f)));
  // A NaN whose payload is all in the half that goes.
  uint32_t bits = 0x7f800001u;
  float small_nan;
  std::memcpy(&small_nan, &bits, sizeof bits);
  EXPECT_TRUE(std::isnan(ThroughBf16(small_nan)));
}

TEST_P(QuantizeTest, F16RoundsToNearestAndTiesToEven) {
  EXPECT_EQ(ThroughF16(1.0f + 0x1p-11f), 1.0f) << "a tie, to even";
  EXPECT_EQ(ThroughF16(1.0f + 0x3p-11f), 1.0f + 0x1p-9f) << "a tie, to even";
  EXPECT_EQ(ThroughF16(65504.0f), 65504.0f) << "the largest";
  EXPECT_EQ(ThroughF16(65519.0f), 65504.0f);
  EXPECT_EQ(ThroughF16(65520.0f), kInf) << "a tie, to even";
  EXPECT_EQ(ThroughF16(-1e30f), -kInf);
  EXPECT_EQ(ThroughF16(0x1p-14f), 0x1p-14f) << "the smallest normal one";
  EXPECT_EQ(ThroughF16(0x1p-24f), 0x1p-24f) << "the smallest";
  EXPECT_EQ(ThroughF16(0x1p-25f), 0.0f) << "a tie, to even";
  EXPECT_EQ(ThroughF16(0x1.8p-25f), 0x1p-24f);
  EXPECT_EQ(ThroughF16(0x1p-14f - 0x1p-25f), 0x1p-14f) << "a tie, out of the subnormal ones";
  EXPECT_EQ(ThroughF16(FLT_TRUE_MIN), 0.0f);
  EXPECT_TRUE(std::isnan(ThroughF16(-kNan)));
  EXPECT_TRUE(std::signbit(ThroughF16(-0.0f)));
}

TEST_P(QuantizeTest, EveryHalfSurvivesTheWayThroughFloat) {
  std::vector<uint16_t> halves(1 << 16), back(1 << 16);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> floats(halves.size());
  GetParam().from_f16(halves.size(), halves.data(), floats.data());
  GetParam().to_f16(floats.size(), floats.data(), back.data());
  for (size_t i = 0; i < halves.size(); ++i) {
    if (std::isnan(floats[i])) {
      ASSERT_GT(halves[i] & 0x7fff, 0x7c00) << i;
      ASSERT_GT(back[i] & 0x7fff, 0x7c00) << i;
    } else {
      ASSERT_EQ(back[i], halves[i]) << floats[i];
    }
  }
}

TEST_P(QuantizeTest, RoundingIsWithinHalfAStepAtEverySize) {
  for (const size_t n : kSizes) {
    const std::vector<float> x = Random(n, 1000.0f);
    std::vector<uint16_t> small(n);
    std::vector<float> back(n, kNan);
    GetParam().to_bf16(n, x.data(), small.data());
    GetParam().from_bf16(n, small.data(), back.data());
    for (size_t i = 0; i < n; ++i) ASSERT_LE(std::abs(back[i] - x[i]), 0x1p-8 * std::abs(x[i])) << n;
    GetParam().to_f16(n, x.data(), small.data());
    GetParam().from_f16(n, small.data(), back.data());
    for (size_t i = 0; i < n; ++i) ASSERT_LE(std::abs(back[i] - x[i]), 0x1p-11 * std::abs(x[i]) + 0x1p-25) << n;
  }
}

TEST_P(QuantizeTest, BytesAreWithinHalfAStepOfTheirBlock) {
  for (const size_t n : kSizes) {
    for (const size_t block : {1, 3, 16, 64, 1000}) {
      const std::string name = std::to_string(n) + " by " + std::to_string(block);
      const std::vector<float> x = Random(n, 10.0f);
      std::vector<int8_t> bytes(n);
      std::vector<float> scales((n + block - 1) / block, kNan), back(n, kNan);
      GetParam().to_int8(n, block, x.data(), nullptr, bytes.data(), scales.data());
      GetParam().from_int8(n, block, bytes.data(), scales.data(), back.data());
      for (size_t b = 0; b < scales.size(); ++b) {
        float largest = 0;
        for (size_t i = b * block; i < std::min(n, (b + 1) * block); ++i) largest = std::max(largest, std::abs(x[i]));
        ASSERT_EQ(scales[b], largest / 127.0f) << name;
      }
      for (size_t i = 0; i < n; ++i) {
        // Half a step; and the division and the product round, up to 127 steps.
        ASSERT_LE(std::abs(back[i] - x[i]), scales[i / block] * (0.5 + 2 * 127 * kUnitRoundoff)) << name << " " << i;
      }
    }
  }
}

TEST_P(QuantizeTest, ErrorFeedbackLosesNothingOverTime) {
  constexpr size_t kCount = 67, kBlock = 16, kRounds = 50;
  const std::vector<float> x = Random(kCount);
  std::vector<float> error(kCount, 0.0f), back(kCount), scales((kCount + kBlock - 1) / kBlock);
  std::vector<double> sum(kCount);
  std::vector<int8_t> bytes(kCount);
  for (size_t round = 0; round < kRounds; ++round) {
    GetParam().to_int8(kCount, kBlock, x.data(), error.data(), bytes.data(), scales.data());
    GetParam().from_int8(kCount, kBlock, bytes.data(), scales.data(), back.data());
    for (size_t i = 0; i < kCount; ++i) sum[i] += back[i];
  }
  // What has been sent, and what is still owed, are all that there was; each round rounds a few numbers below 3.
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_NEAR(sum[i] + error[i], static_cast<double>(kRounds) * x[i], kRounds * 4 * 3 * kUnitRoundoff) << i;
    EXPECT_LE(std::abs(error[i]), 0.51f * scales[i / kBlock]) << i;
  }
}

TEST_P(QuantizeTest, ABlockOfZerosAndABlockWithoutNumbersAreTold) {
  const std::vector<float> x = {0, 0, 0, 1, kNan, 2, kInf, 1, 1, 5, -5, 0};
  std::vector<float> error(x.size(), 0.0f), scales(4, -1.0f);
  std::vector<int8_t> bytes(x.size(), 9);
  GetParam().to_int8(x.size(), 3, x.data(), error.data(), bytes.data(), scales.data());
  EXPECT_EQ(scales[0], 0.0f);
  EXPECT_TRUE(std::isnan(scales[1]));
  EXPECT_EQ(scales[2], kInf);
  EXPECT_EQ(scales[3], 5.0f / 127.0f);
  EXPECT_EQ(bytes, (std::vector<int8_t>{0, 0, 0, 0, 0, 0, 0, 0, 0, 127, -127, 0}));
  for (size_t i = 3; i < 9; ++i) EXPECT_EQ(error[i], 0.0f) << i;
}

TEST_P(QuantizeTest, EveryBackendMakesTheSameBytes) {
  constexpr size_t kCount = 1001, kBlock = 100;
  const std::vector<float> x = Random(kCount, 1e-3f);
  std::vector<uint16_t> got(kCount), want(kCount);
  GetParam().to_bf16(kCount, x.data(), got.data());
  cpu::ToBf16(kCount, x.data(), want.data());
  EXPECT_EQ(got, want);
  GetParam().to_f16(kCount, x.data(), got.data());
  cpu::ToF16(kCount, x.data(), want.data());
  EXPECT_EQ(got, want);
  std::vector<float> got_error = Random(kCount, 1e-5f), got_scales(11), want_error = got_error, want_scales(11);
  std::vector<int8_t> got_bytes(kCount), want_bytes(kCount);
  GetParam().to_int8(kCount, kBlock, x.data(), got_error.data(), got_bytes.data(), got_scales.data());
  cpu::ToInt8(kCount, kBlock, x.data(), want_error.data(), want_bytes.data(), want_scales.data());
  EXPECT_EQ(got_bytes, want_bytes);
  ExpectEqual(got_scales, want_scales, "scales");
  ExpectEqual(got_error, want_error, "error");
}

LODESTONE_ON_EVERY_BACKEND(QuantizeTest);

}  // namespace
}  // namespace lodestone::kernels
