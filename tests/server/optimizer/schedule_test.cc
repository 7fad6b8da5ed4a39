#include "server/optimizer/schedule.h"

#include <cmath>

#include "tests/server/optimizer/methods.h"

namespace lodestone::server {
namespace {

// A factor is computed in double, then rounded once to float with the rate.
constexpr float kRounding = 0x1.0p-23f;

TEST(LearningRateAt, IsConstantWithoutASchedule) {
  const v1::Optimizer config = OptimizerConfig("learning_rate: 0.25");
  for (uint64_t step : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) EXPECT_EQ(LearningRateAt(config, step), 0.25f);
}

TEST(LearningRateAt, RisesLinearlyFromZeroDuringWarmUp) {
  const v1::Optimizer config = OptimizerConfig("learning_rate: 2 schedule { warmup_steps: 8 }");
  for (uint64_t step = 0; step <= 8; ++step) EXPECT_EQ(LearningRateAt(config, step), step / 4.0f);
  EXPECT_EQ(LearningRateAt(config, 9), 2.0f);
  EXPECT_EQ(LearningRateAt(config, ~uint64_t{0}), 2.0f);
}

TEST(LearningRateAt, FallsByHalfACosineToTheFloorAfterWarmUp) {
  const v1::Optimizer config =
      OptimizerConfig("learning_rate: 4 schedule { warmup_steps: 10 cosine { steps: 100 floor: 0.25 } }");
  EXPECT_EQ(LearningRateAt(config, 0), 0.0f);
  EXPECT_EQ(LearningRateAt(config, 5), 2.0f);
  EXPECT_EQ(LearningRateAt(config, 10), 4.0f);
  EXPECT_NEAR(LearningRateAt(config, 60), 4 * (0.25 + 0.75 * 0.5), 4 * kRounding);
  EXPECT_NEAR(LearningRateAt(config, 35), 4 * (0.25 + 0.75 * 0.5 * (1 + std::sqrt(0.5))), 4 * kRounding);
  EXPECT_EQ(LearningRateAt(config, 110), 1.0f);
  EXPECT_EQ(LearningRateAt(config, 111), 1.0f);
  EXPECT_EQ(LearningRateAt(config, ~uint64_t{0}), 1.0f);
}

TEST(LearningRateAt, NeverRisesAlongACosine) {
  const v1::Optimizer config = OptimizerConfig("learning_rate: 1 schedule { cosine { steps: 1000 } }");
  for (uint64_t step = 0; step < 1010; ++step) {
    EXPECT_GE(LearningRateAt(config, step), LearningRateAt(config, step + 1)) << step;
    EXPECT_GE(LearningRateAt(config, step), 0.0f);
  }
}

TEST(LearningRateAt, FallsWithTheInverseSquareRoot) {
  const v1::Optimizer config =
      OptimizerConfig("learning_rate: 8 schedule { warmup_steps: 4 inverse_sqrt { steps: 100 } }");
  EXPECT_EQ(LearningRateAt(config, 4), 8.0f);
  EXPECT_NEAR(LearningRateAt(config, 104), 8 / std::sqrt(2.0), 8 * kRounding);
  EXPECT_EQ(LearningRateAt(config, 304), 4.0f);
  EXPECT_GT(LearningRateAt(config, ~uint64_t{0}), 0.0f);
}

TEST(LearningRateAt, IsCutEveryFewSteps) {
  const v1::Optimizer config = OptimizerConfig("learning_rate: 8 schedule { step { every_steps: 10 factor: 0.5 } }");
  EXPECT_EQ(LearningRateAt(config, 0), 8.0f);
  EXPECT_EQ(LearningRateAt(config, 9), 8.0f);
  EXPECT_EQ(LearningRateAt(config, 10), 4.0f);
  EXPECT_EQ(LearningRateAt(config, 19), 4.0f);
  EXPECT_EQ(LearningRateAt(config, 35), 1.0f);
  EXPECT_EQ(LearningRateAt(config, ~uint64_t{0}), 0.0f);
}

TEST(LearningRateAt, KeepsANegativeRateNegative) {
  const v1::Optimizer config = OptimizerConfig("learning_rate: -1 schedule { step { every_steps: 1 factor: 0.5 } }");
  EXPECT_EQ(LearningRateAt(config, 0), -1.0f);
  EXPECT_EQ(LearningRateAt(config, 2), -0.25f);
}

}  // namespace
}  // namespace lodestone::server
