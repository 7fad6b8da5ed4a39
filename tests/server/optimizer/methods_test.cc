// Each optimizer against its formula: by hand where the numbers are exact, in double precision over several steps.
#include "tests/server/optimizer/methods.h"

#include <cmath>
#include <functional>
#include <limits>

namespace lodestone::server {
namespace {

// One coordinate in double precision.
struct Coordinate {
  double w = 0;
  double a = 0;  // First state.
  double b = 0;  // Second.
};
using Formula = std::function<void(Coordinate&, double g, int step)>;

constexpr int kSteps = 8;

// Runs both on random gradients. With values and updates of order 1, a step makes at most about 16 roundings of numbers
// up to `size`, each half a unit of 2^-23, and the error of a step is not amplified by the next by more than `growth`.
void ExpectFollows(const std::string& config, const Optimizer::Step& step, double size, double initial_a,
                   const Formula& formula, double growth = 1.0) {
  const size_t n = 133;
  const std::unique_ptr<const Optimizer> optimizer = MakeOptimizer(config);
  const std::vector<float> initial = RandomFloats(n, 1);
  Parameters parameters(*optimizer, initial);
  std::vector<Coordinate> expected(n);
  for (size_t i = 0; i < n; ++i) expected[i] = {initial[i], initial_a, 0};
  double tolerance = 0;
  for (int k = 1; k <= kSteps; ++k) {
    const std::vector<float> gradient = RandomFloats(n, 100 + k);
    parameters.UpdateInPlace(*optimizer, step, gradient);
    tolerance = tolerance * growth + 16 * 0x1.0p-24 * size;
    for (size_t i = 0; i < n; ++i) {
      formula(expected[i], gradient[i], k);
      ASSERT_NEAR(parameters.values[i], expected[i].w, tolerance) << config << ", element " << i << ", step " << k;
    }
  }
}

const float kRate = 0.3f;
const float kDecay = 0.1f;
const Optimizer::Step kStep{.learning_rate = kRate, .weight_decay = kDecay};

TEST(Sgd, TakesTheStepComputedByHand) {
  const auto sgd = MakeOptimizer("sgd {}");
  Parameters parameters(*sgd, {1.0f, -2.0f});
  parameters.UpdateInPlace(*sgd, {.learning_rate = 0.5f, .weight_decay = 0.25f}, {0.5f, 1.0f});
  EXPECT_EQ(parameters.values, (std::vector<float>{1.0f - 0.5f * (0.5f + 0.25f), -2.0f - 0.5f * (1.0f - 0.5f)}));
}

TEST(Sgd, FollowsItsFormula) {
  ExpectFollows("sgd {}", kStep, 4, 0, [](Coordinate& c, double g, int) { c.w -= kRate * (g + kDecay * c.w); });
}

TEST(Sgd, AddsIntegersExactlyAtRateMinusOne) {
  const auto sgd = MakeOptimizer("sgd {} learning_rate: -1");
  const size_t n = 67;
  Parameters parameters(*sgd, std::vector<float>(n));
  std::vector<int64_t> sums(n);
  std::mt19937 generator(3);
  for (int round = 0; round < 100; ++round) {
    std::vector<float> gradient(n);
    for (size_t i = 0; i < n; ++i) {
      const int value = static_cast<int>(generator() % 200001) - 100000;
      gradient[i] = static_cast<float>(value);
      sums[i] += value;  // At most 10^7 < 2^24.
    }
    parameters.UpdateInPlace(*sgd, {.learning_rate = -1}, gradient);
  }
  for (size_t i = 0; i < n; ++i) EXPECT_EQ(parameters.values[i], sums[i]) << i;
}

TEST(Sgd, KeepsTheSignOfZeroAsIeeeArithmeticDoes) {
  const auto sgd = MakeOptimizer("sgd {}");
  Parameters parameters(*sgd, {0.0f, -0.0f, -0.0f, 0.0f, 0.0f, -0.0f, -0.0f});  // Vector lanes and tail.
  parameters.UpdateInPlace(*sgd, {.learning_rate = 1.0f}, {0.0f, 0.0f, -0.0f, -0.0f, 0.0f, 0.0f, -0.0f});
  const std::vector<float> expected = {0.0f - 0.0f, -0.0f - 0.0f, -0.0f - -0.0f, 0.0f - -0.0f,
                                       0.0f - 0.0f, -0.0f - 0.0f, -0.0f - -0.0f};
  EXPECT_EQ(Bits(parameters.values), Bits(expected));
  EXPECT_TRUE(std::signbit(parameters.values[1]));
  EXPECT_FALSE(std::signbit(parameters.values[2]));
}

TEST(Momentum, TakesTheStepsComputedByHand) {
  const auto momentum = MakeOptimizer("momentum { momentum: 0.5 }");
  Parameters parameters(*momentum, {1.0f});
  parameters.UpdateInPlace(*momentum, {.learning_rate = 0.25f}, {1.0f});  // m = 1
  EXPECT_EQ(parameters.values[0], 0.75f);
  parameters.UpdateInPlace(*momentum, {.learning_rate = 0.25f}, {0.5f});  // m = 1
  EXPECT_EQ(parameters.values[0], 0.5f);
  parameters.UpdateInPlace(*momentum, {.learning_rate = 0.25f}, {-1.0f});  // m = -0.5
  EXPECT_EQ(parameters.values[0], 0.625f);
  EXPECT_EQ(parameters.state[0], -0.5f);
}

TEST(Momentum, FollowsItsFormula) {
  const double mu = 0.8f;
  ExpectFollows(
      "momentum { momentum: 0.8 }", kStep, 8, 0,
      [mu](Coordinate& c, double g, int) {
        c.a = mu * c.a + g + kDecay * c.w;
        c.w -= kRate * c.a;
      },
      1.8);
}

TEST(Nesterov, TakesTheStepsComputedByHand) {
  const auto nesterov = MakeOptimizer("nesterov { momentum: 0.5 }");
  Parameters parameters(*nesterov, {1.0f});
  parameters.UpdateInPlace(*nesterov, {.learning_rate = 0.25f}, {1.0f});  // m = 1, looks at 1.5
  EXPECT_EQ(parameters.values[0], 0.625f);
  parameters.UpdateInPlace(*nesterov, {.learning_rate = 0.25f}, {0.5f});  // m = 1, looks at 1
  EXPECT_EQ(parameters.values[0], 0.375f);
}

TEST(Nesterov, FollowsItsFormula) {
  const double mu = 0.8f;
  ExpectFollows(
      "nesterov { momentum: 0.8 }", kStep, 8, 0,
      [mu](Coordinate& c, double g, int) {
        g += kDecay * c.w;
        c.a = mu * c.a + g;
        c.w -= kRate * (g + mu * c.a);
      },
      1.8);
}

TEST(Adagrad, TakesTheStepsComputedByHand) {
  const auto adagrad = MakeOptimizer("adagrad { epsilon: 1 }");
  Parameters parameters(*adagrad, {1.0f});
  parameters.UpdateInPlace(*adagrad, {.learning_rate = 1.0f}, {3.0f});  // s = 9
  EXPECT_EQ(parameters.values[0], 0.25f);
  parameters.UpdateInPlace(*adagrad, {.learning_rate = 1.0f}, {-4.0f});  // s = 25
  EXPECT_EQ(parameters.values[0], 0.25f + 4.0f / 6.0f);
  EXPECT_EQ(parameters.state[0], 25.0f);
}

TEST(Adagrad, FollowsItsFormula) {
  const double epsilon = 1e-6f;
  ExpectFollows(
      "adagrad { initial_accumulator: 0.1 epsilon: 1e-6 }", kStep, 2, 0.1f,
      [epsilon](Coordinate& c, double g, int) {
        g += kDecay * c.w;
        c.a += g * g;
        c.w -= kRate * g / (std::sqrt(c.a) + epsilon);
      },
      1.1);
}

TEST(Adagrad, DoesNotMoveWithoutAGradient) {
  const auto adagrad = MakeOptimizer("adagrad {}");
  Parameters parameters(*adagrad, {1.5f, -2.5f});
  parameters.UpdateInPlace(*adagrad, {.learning_rate = 1.0f}, {0.0f, 0.0f});
  EXPECT_EQ(parameters.values, (std::vector<float>{1.5f, -2.5f}));
}

TEST(RowwiseAdagrad, TakesTheStepsComputedByHand) {
  const auto adagrad = MakeOptimizer("rowwise_adagrad { epsilon: 1 }", /*has_rows=*/true);
  Parameters row(*adagrad, {1.0f, 2.0f});
  ASSERT_EQ(row.state.size(), 1u);
  row.UpdateInPlace(*adagrad, {.learning_rate = 1.0f}, {1.0f, 7.0f});  // s = (1 + 49) / 2 = 25
  EXPECT_EQ(row.values, (std::vector<float>{1.0f - 1.0f / 6, 2.0f - 7.0f / 6}));
  row.UpdateInPlace(*adagrad, {.learning_rate = 1.0f}, {4.0f, -16.0f});  // s = 25 + 136 = 161
  EXPECT_EQ(row.state[0], 161.0f);
}

TEST(RowwiseAdagrad, FollowsItsFormulaInRowsOfAllWidths) {
  for (size_t n = 1; n <= 37; ++n) {
    const auto adagrad = MakeOptimizer("rowwise_adagrad { initial_accumulator: 0.1 epsilon: 1e-6 }", /*has_rows=*/true);
    Parameters row(*adagrad, RandomFloats(n, 1));
    std::vector<double> expected(row.values.begin(), row.values.end());
    double s = 0.1f;
    for (uint32_t k = 0; k < 5; ++k) {
      const std::vector<float> gradient = RandomFloats(n, 100 + k);
      row.UpdateInPlace(*adagrad, kStep, gradient);
      std::vector<double> g(n);
      double squares = 0;
      for (size_t i = 0; i < n; ++i) {
        g[i] = gradient[i] + kDecay * expected[i];
        squares += g[i] * g[i];
      }
      s += squares / n;
      // As ExpectFollows; a sum of n terms rounds n times more.
      for (size_t i = 0; i < n; ++i) {
        expected[i] -= kRate * g[i] / (std::sqrt(s) + 1e-6f);
        ASSERT_NEAR(row.values[i], expected[i], (k + 1) * (16 + n) * 0x1p-24 * 4) << n << " values, step " << k;
      }
      ASSERT_NEAR(row.state[0], s, (k + 1) * (16 + n) * 0x1p-24 * 4) << n << " values, step " << k;
    }
  }
}

TEST(RowwiseAdagrad, IsAdagradWhereThereAreNoRows) {
  const auto rowwise = MakeOptimizer("rowwise_adagrad { initial_accumulator: 0.1 epsilon: 1e-6 }");
  const auto adagrad = MakeOptimizer("adagrad { initial_accumulator: 0.1 epsilon: 1e-6 }");
  Parameters a(*rowwise, RandomFloats(9, 1)), b(*adagrad, RandomFloats(9, 1));
  a.UpdateInPlace(*rowwise, kStep, RandomFloats(9, 2));
  b.UpdateInPlace(*adagrad, kStep, RandomFloats(9, 2));
  EXPECT_EQ(Bits(a.values), Bits(b.values));
  EXPECT_EQ(Bits(a.state), Bits(b.state));
}

TEST(RmsProp, TakesTheStepsComputedByHand) {
  const auto rmsprop = MakeOptimizer("rmsprop { rho: 0.75 epsilon: 1 }");
  Parameters parameters(*rmsprop, {1.0f});
  parameters.UpdateInPlace(*rmsprop, {.learning_rate = 1.0f}, {2.0f});  // s = 1
  EXPECT_EQ(parameters.values[0], 0.0f);
  parameters.UpdateInPlace(*rmsprop, {.learning_rate = 1.0f}, {-1.0f});  // s = 0.75 + 0.25 = 1
  EXPECT_EQ(parameters.values[0], 0.5f);
}

TEST(RmsProp, FollowsItsFormula) {
  const double rho = 0.7f;
  const double rest = 1.0f - 0.7f;
  const double epsilon = 1e-2f;
  ExpectFollows(
      "rmsprop { rho: 0.7 epsilon: 1e-2 }", kStep, 4, 0,
      [=](Coordinate& c, double g, int) {
        g += kDecay * c.w;
        c.a = rho * c.a + rest * g * g;
        c.w -= kRate * g / (std::sqrt(c.a) + epsilon);
      },
      1.1);
}

TEST(Adam, TakesItsFirstStepOfOneLearningRateWhateverTheGradient) {
  const auto adam = MakeOptimizer("adam { beta1: 0.5 beta2: 0.75 epsilon: 1e-30 }");
  Parameters parameters(*adam, {1.0f, 1.0f, 1.0f});
  // m = g / 2, v = g^2 / 4; corrected: g and g^2.
  parameters.UpdateInPlace(*adam, {.learning_rate = 0.125f}, {4.0f, -0.25f, 64.0f});
  EXPECT_EQ(parameters.values, (std::vector<float>{0.875f, 1.125f, 0.875f}));
  EXPECT_EQ(parameters.state.back(), 1.0f);
}

Formula AdamFormula(double epsilon, double coupled, double decoupled) {
  return [=](Coordinate& c, double g, int step) {
    const double beta1 = 0.8f;
    const double beta2 = 0.95f;
    g += coupled * c.w;
    c.a = beta1 * c.a + double{1.0f - 0.8f} * g;
    c.b = beta2 * c.b + double{1.0f - 0.95f} * g * g;
    const double m = c.a / (1 - std::pow(beta1, step));
    const double v = c.b / (1 - std::pow(beta2, step));
    c.w = c.w * (1 - kRate * decoupled) - kRate * m / (std::sqrt(v) + epsilon);
  };
}

TEST(Adam, FollowsItsFormula) {
  ExpectFollows("adam { beta1: 0.8 beta2: 0.95 epsilon: 1e-2 }", kStep, 4, 0, AdamFormula(1e-2f, kDecay, 0), 1.2);
}

TEST(AdamW, FollowsItsFormula) {
  ExpectFollows("adamw { beta1: 0.8 beta2: 0.95 epsilon: 1e-2 }", kStep, 4, 0, AdamFormula(1e-2f, 0, kDecay), 1.2);
}

TEST(AdamW, OnlyDecaysWhereThereIsNoGradient) {
  const auto adamw = MakeOptimizer("adamw {}");
  Parameters parameters(*adamw, {2.0f, -4.0f});
  parameters.UpdateInPlace(*adamw, {.learning_rate = 0.5f, .weight_decay = 0.25f}, {0.0f, 0.0f});
  EXPECT_EQ(parameters.values, (std::vector<float>{1.75f, -3.5f}));
}

TEST(Adam, CountsUpToTwoToThe24AndStaysThere) {
  const auto adam = MakeOptimizer("adam {}");
  Parameters parameters(*adam, {0.0f});
  parameters.state[2] = 16777215.0f;
  for (int round = 0; round < 3; ++round) parameters.UpdateInPlace(*adam, {.learning_rate = 0.1f}, {1.0f});
  EXPECT_EQ(parameters.state[2], 16777216.0f);
  EXPECT_TRUE(std::isfinite(parameters.values[0]));
}

// McMahan et al. 2013, algorithm 1, with z as in the paper; z starts where w is its solution without L1.
TEST(Ftrl, FollowsThePaper) {
  for (const double l1 : {0.0f, 0.2f}) {
    const double beta = 0.5f;
    const double l2 = 0.1f;
    const double alpha = kRate;
    const std::string config =
        "ftrl { beta: 0.5 l1: " + std::string(l1 == 0 ? "0" : "0.2") + " l2: 0.1 } learning_rate: 0.3";
    // z here is the paper's times alpha, up to 8 in size.
    ExpectFollows(
        config, {.learning_rate = kRate}, 32, 0,
        [=](Coordinate& c, double g, int) {
          if (c.b == 0) c.a = -c.w * (beta / alpha + l2);
          const double sigma = (std::sqrt(c.b + g * g) - std::sqrt(c.b)) / alpha;
          c.a += g - sigma * c.w;
          c.b += g * g;
          const double sign = c.a < 0 ? -1 : 1;
          c.w = std::abs(c.a) <= l1 ? 0 : -(c.a - sign * l1) / ((beta + std::sqrt(c.b)) / alpha + l2);
        },
        1.1);
  }
}

TEST(Ftrl, TakesTheStepsComputedByHand) {
  const auto ftrl = MakeOptimizer("ftrl { beta: 1 l1: 2 } learning_rate: 1");
  Parameters parameters(*ftrl, {0.0f, 0.0f});
  const Optimizer::Step step{.learning_rate = 1};
  parameters.UpdateInPlace(*ftrl, step, {1.0f, 3.0f});  // z = 1, 3; n = 1, 9
  EXPECT_EQ(parameters.values[0], 0.0f);                // Below l1: exactly zero.
  EXPECT_EQ(parameters.values[1], -0.25f);              // -(3 - 2) / (1 + 3)
  parameters.UpdateInPlace(*ftrl, step, {0.0f, 4.0f});  // z = 3 + 4 - (5 - 3) * -0.25 = 7.5
  EXPECT_EQ(parameters.values[0], 0.0f);
  EXPECT_EQ(parameters.values[1], -5.5f / 6.0f);
}

TEST(Ftrl, KeepsInitialValuesUntilTheFirstGradientAndStartsFromThem) {
  const auto ftrl = MakeOptimizer("ftrl { beta: 1 l1: 0.5 } learning_rate: 0.5");
  Parameters parameters(*ftrl, {0.75f, -0.125f});
  parameters.UpdateInPlace(*ftrl, {.learning_rate = 0.5f}, {0.0f, 0.0f});
  EXPECT_EQ(parameters.values, (std::vector<float>{0.75f, -0.125f}));
  const auto smooth = MakeOptimizer("ftrl { beta: 1 } learning_rate: 0.5");
  Parameters start(*smooth, {0.75f});
  start.UpdateInPlace(*smooth, {.learning_rate = 0.5f}, {1.0f});  // z = -0.75 + 0.5 - 0.75 = -1; n = 1
  EXPECT_EQ(start.values[0], 0.5f);
}

TEST(Ftrl, DoesNotMoveAtRateZero) {
  const auto ftrl = MakeOptimizer("ftrl { beta: 1 l1: 0.25 l2: 0.5 } learning_rate: 0.5");
  Parameters parameters(*ftrl, {0.0f, 0.0f});
  parameters.UpdateInPlace(*ftrl, {.learning_rate = 0.5f}, {3.0f, 0.25f});
  const std::vector<float> before = parameters.values;
  ASSERT_NE(before[0], 0.0f);
  ASSERT_EQ(before[1], 0.0f);
  parameters.UpdateInPlace(*ftrl, {.learning_rate = 0.0f}, {5.0f, 5.0f});
  // One step's roundings of z (order 4).
  EXPECT_NEAR(parameters.values[0], before[0], 16 * 0x1.0p-24 * 4);
  EXPECT_EQ(parameters.values[1], 0.0f);
}

TEST(Lion, TakesTheStepsComputedByHand) {
  const auto lion = MakeOptimizer("lion { beta1: 0.5 beta2: 0.75 }");
  Parameters parameters(*lion, {1.0f});
  const Optimizer::Step step{.learning_rate = 0.25f};
  parameters.UpdateInPlace(*lion, step, {1.0f});  // c = 1 / 2, m = 1 / 4
  EXPECT_EQ(parameters.values[0], 0.75f);
  parameters.UpdateInPlace(*lion, step, {-0.125f});  // c = 1 / 16: the gradient has turned, the direction has not.
  EXPECT_EQ(parameters.values[0], 0.5f);
  EXPECT_EQ(parameters.state[0], 0.15625f);        // 3 / 4 * 1 / 4 - 1 / 4 * 1 / 8
  parameters.UpdateInPlace(*lion, step, {-1.0f});  // c < 0
  EXPECT_EQ(parameters.values[0], 0.75f);
  EXPECT_EQ(parameters.state[0], -0.1328125f);  // 3 / 4 * 5 / 32 - 1 / 4
}

TEST(Lion, TakesStepsOfOneSizeWhateverTheGradient) {
  const auto lion = MakeOptimizer("lion {}");
  Parameters parameters(*lion, {1.0f, 1.0f, 1.0f});
  parameters.UpdateInPlace(*lion, {.learning_rate = 0.125f}, {1e30f, -1e-30f, 3.0f});
  EXPECT_EQ(parameters.values, (std::vector<float>{0.875f, 1.125f, 0.875f}));
}

TEST(Lion, OnlyDecaysWhereThereIsNoGradient) {
  const auto lion = MakeOptimizer("lion {}");
  Parameters parameters(*lion, {2.0f, -4.0f});
  parameters.UpdateInPlace(*lion, {.learning_rate = 0.5f, .weight_decay = 0.25f}, {0.0f, 0.0f});
  EXPECT_EQ(parameters.values, (std::vector<float>{1.75f, -3.5f}));
}

TEST(Lion, FollowsItsFormula) {
  const double beta1 = 0.8f;
  const double beta2 = 0.95f;
  ExpectFollows("lion { beta1: 0.8 beta2: 0.95 }", kStep, 4, 0, [=](Coordinate& c, double g, int) {
    const double direction = beta1 * c.a + double{1.0f - 0.8f} * g;
    c.w = c.w * (1 - kRate * kDecay) - kRate * (direction > 0 ? 1 : direction < 0 ? -1 : 0);
    c.a = beta2 * c.a + double{1.0f - 0.95f} * g;
  });
}

TEST(Lion, RefusesBetasOutsideOfZeroToOne) {
  for (const char* field : {"beta1", "beta2"}) {
    for (const char* value : {"1", "-0.5", "nan"}) {
      const auto lion = Optimizer::Create(OptimizerConfig(std::string("lion { ") + field + ": " + value + " }"));
      EXPECT_EQ(lion.status().code(), absl::StatusCode::kInvalidArgument) << field << " " << value;
      EXPECT_NE(lion.status().message().find(std::string("optimizer.lion.") + field), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace lodestone::server
