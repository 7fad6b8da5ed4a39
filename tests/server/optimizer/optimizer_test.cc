// What all optimizers have in common.
#include "server/optimizer/optimizer.h"

#include <algorithm>
#include <limits>

#include "hwy/targets.h"
#include "tests/server/optimizer/methods.h"

namespace lodestone::server {
namespace {

class EveryOptimizer : public testing::TestWithParam<std::string> {
 protected:
  const std::unique_ptr<const Optimizer> optimizer_ = MakeOptimizer(GetParam());
  // Clips, scales and decays, so that every part of the loop runs.
  const Optimizer::Step full_step_{
      .learning_rate = 0.3f, .weight_decay = 0.1f, .gradient_scale = 0.7f, .clip_value = 0.6f};
  const Optimizer::Step plain_step_{.learning_rate = 0.3f};
};

INSTANTIATE_TEST_SUITE_P(Methods, EveryOptimizer, testing::ValuesIn(AllMethods()),
                         [](const auto& info) { return info.param.substr(0, info.param.find(' ')); });

TEST_P(EveryOptimizer, IsNamedAsInTheConfiguration) {
  EXPECT_EQ(optimizer_->name(), GetParam().substr(0, GetParam().find(' ')));
  EXPECT_EQ(MakeOptimizer(GetParam(), /*has_rows=*/true)->name(), GetParam().substr(0, GetParam().find(' ')));
}

TEST_P(EveryOptimizer, GivesTheSameBitsInPlaceAndIntoFreshArrays) {
  for (const Optimizer::Step& step : {plain_step_, full_step_}) {
    for (size_t n = 0; n <= 67; ++n) {
      Parameters in_place(*optimizer_, RandomFloats(n, 1));
      Parameters copied = in_place;
      for (uint32_t round = 0; round < 3; ++round) {
        const std::vector<float> gradient = RandomFloats(n, 10 + round);
        const Parameters before = copied;
        std::vector<float> values(n + 1, 5.0f);  // One more, to see that it stays.
        std::vector<float> state(copied.state.size() + 1, 6.0f);
        optimizer_->Update(step, {n, 0, n}, reinterpret_cast<const uint8_t*>(gradient.data()), copied.values.data(),
                           copied.state.data(), values.data(), state.data());
        EXPECT_EQ(values.back(), 5.0f) << n;
        EXPECT_EQ(state.back(), 6.0f) << n;
        EXPECT_EQ(Bits(copied.values), Bits(before.values)) << n;
        EXPECT_EQ(Bits(copied.state), Bits(before.state)) << n;
        values.pop_back();
        state.pop_back();
        copied.values = values;
        copied.state = state;
        in_place.UpdateInPlace(*optimizer_, step, gradient);
        ASSERT_EQ(Bits(in_place.values), Bits(copied.values)) << n;
        ASSERT_EQ(Bits(in_place.state), Bits(copied.state)) << n;
      }
    }
  }
}

TEST_P(EveryOptimizer, GivesTheSameBitsWhereverTheGradientLies) {
  const size_t n = 67;
  const std::vector<float> gradient = RandomFloats(n, 2);
  Parameters expected(*optimizer_, RandomFloats(n, 1));
  expected.UpdateInPlace(*optimizer_, full_step_, gradient);
  for (size_t offset = 0; offset < 8; ++offset) {
    std::vector<uint8_t> bytes(offset + n * sizeof(float));  // Ends where the gradient does: asan sees a read beyond.
    std::memcpy(bytes.data() + offset, gradient.data(), n * sizeof(float));
    Parameters parameters(*optimizer_, RandomFloats(n, 1));
    parameters.UpdateInPlace(*optimizer_, full_step_, bytes.data() + offset);
    EXPECT_EQ(Bits(parameters.values), Bits(expected.values)) << "offset " << offset;
    EXPECT_EQ(Bits(parameters.state), Bits(expected.state)) << "offset " << offset;
  }
}

// Elements begin … end - 1 as parameters of their own.
Parameters SliceOf(const Optimizer& optimizer, const Parameters& all, size_t begin, size_t end) {
  const StateLayout layout = optimizer.state_layout();
  const size_t n = all.values.size();
  Parameters part(optimizer, {all.values.begin() + begin, all.values.begin() + end});
  for (size_t v = 0; v < layout.vectors; ++v) {
    std::copy(all.state.begin() + v * n + begin, all.state.begin() + v * n + end,
              part.state.begin() + v * (end - begin));
  }
  std::copy_n(all.state.begin() + layout.vectors * n, layout.scalars,
              part.state.begin() + layout.vectors * (end - begin));
  return part;
}

TEST_P(EveryOptimizer, GivesTheSameBitsHoweverAnArrayIsSplit) {
  const size_t n = 67;
  Parameters whole(*optimizer_, RandomFloats(n, 1));
  whole.UpdateInPlace(*optimizer_, full_step_, RandomFloats(n, 2));
  const Parameters start = whole;
  const std::vector<float> gradient = RandomFloats(n, 3);
  whole.UpdateInPlace(*optimizer_, full_step_, gradient);
  for (size_t split = 0; split <= n; ++split) {
    Parameters left = SliceOf(*optimizer_, start, 0, split);
    Parameters right = SliceOf(*optimizer_, start, split, n);
    left.UpdateInPlace(*optimizer_, full_step_, {gradient.begin(), gradient.begin() + split});
    right.UpdateInPlace(*optimizer_, full_step_, {gradient.begin() + split, gradient.end()});
    const Parameters expected_left = SliceOf(*optimizer_, whole, 0, split);
    const Parameters expected_right = SliceOf(*optimizer_, whole, split, n);
    ASSERT_EQ(Bits(left.values), Bits(expected_left.values)) << split;
    ASSERT_EQ(Bits(left.state), Bits(expected_left.state)) << split;
    ASSERT_EQ(Bits(right.values), Bits(expected_right.values)) << split;
    ASSERT_EQ(Bits(right.state), Bits(expected_right.state)) << split;
  }
}

TEST_P(EveryOptimizer, GivesTheSameBitsInWhateverPiecesTheGradientComes) {
  const size_t n = 67;
  Parameters whole(*optimizer_, RandomFloats(n, 1));
  whole.UpdateInPlace(*optimizer_, full_step_, RandomFloats(n, 2));
  const Parameters start = whole;
  const std::vector<float> gradient = RandomFloats(n, 3);
  const auto* bytes = reinterpret_cast<const uint8_t*>(gradient.data());
  whole.UpdateInPlace(*optimizer_, full_step_, gradient);
  for (size_t piece = 1; piece <= n; ++piece) {
    Parameters in_place = start;
    Parameters fresh(*optimizer_, std::vector<float>(n));
    for (size_t begin = 0; begin < n; begin += piece) {
      const Range range{n, begin, std::min(piece, n - begin)};
      const uint8_t* const part = bytes + begin * sizeof(float);
      optimizer_->Update(full_step_, range, part, in_place.values.data(), in_place.state.data(), in_place.values.data(),
                         in_place.state.data());
      optimizer_->Update(full_step_, range, part, start.values.data(), start.state.data(), fresh.values.data(),
                         fresh.state.data());
    }
    ASSERT_EQ(Bits(in_place.values), Bits(whole.values)) << piece;
    ASSERT_EQ(Bits(in_place.state), Bits(whole.state)) << piece;
    ASSERT_EQ(Bits(fresh.values), Bits(whole.values)) << piece;
    ASSERT_EQ(Bits(fresh.state), Bits(whole.state)) << piece;
  }
}

TEST_P(EveryOptimizer, GivesALongBlockTheSameValuesAsShortOnesInPlaceAndIntoFreshArrays) {
  const size_t n = 2 * StateLayout::kSetOffMin + 3;  // Its state vectors are set off.
  const size_t half = n / 2;
  static_assert(StateLayout::kSetOffMin > 1000);  // Those of the short ones are not.
  Parameters whole(*optimizer_, RandomFloats(n, 1));
  Parameters fresh(*optimizer_, std::vector<float>(n));
  std::vector<Parameters> parts;
  for (size_t begin = 0; begin < n; begin += 1000) {
    const size_t end = std::min(n, begin + 1000);
    parts.emplace_back(*optimizer_, std::vector<float>(whole.values.begin() + begin, whole.values.begin() + end));
  }
  for (uint32_t round = 0; round < 3; ++round) {
    const std::vector<float> gradient = RandomFloats(n, 10 + round);
    const auto* bytes = reinterpret_cast<const uint8_t*>(gradient.data());
    std::fill(fresh.state.begin(), fresh.state.end(), 3.0f);
    optimizer_->Update(full_step_, {n, 0, half}, bytes, whole.values.data(), whole.state.data(), fresh.values.data(),
                       fresh.state.data());
    optimizer_->Update(full_step_, {n, half, n - half}, bytes + half * sizeof(float), whole.values.data(),
                       whole.state.data(), fresh.values.data(), fresh.state.data());
    whole.UpdateInPlace(*optimizer_, full_step_, gradient);
    ASSERT_EQ(Bits(fresh.values), Bits(whole.values));
    ASSERT_EQ(Bits(fresh.state), Bits(whole.state));
    for (size_t p = 0; p < parts.size(); ++p) {
      parts[p].UpdateInPlace(*optimizer_, full_step_, bytes + p * 1000 * sizeof(float));
      const std::vector<float> expected(whole.values.begin() + p * 1000,
                                        whole.values.begin() + p * 1000 + parts[p].values.size());
      ASSERT_EQ(Bits(parts[p].values), Bits(expected)) << p;
    }
  }
}

TEST_P(EveryOptimizer, UpdatesRowsOneAfterTheOtherAsIfEachWereABlock) {
  const std::unique_ptr<const Optimizer> of_rows = MakeOptimizer(GetParam(), /*has_rows=*/true);
  for (const size_t dim : {1, 5, 16, 67}) {
    constexpr size_t kRows = 75;
    std::vector<Parameters> expected;
    std::vector<std::vector<float>> rows;  // Values, then state.
    for (size_t r = 0; r < kRows; ++r) {
      expected.emplace_back(*of_rows, RandomFloats(dim, 1 + r));
      // Different counts for methods that count.
      for (size_t i = 0; i < r % 3; ++i) expected[r].UpdateInPlace(*of_rows, plain_step_, RandomFloats(dim, 7));
      rows.push_back(expected[r].values);
      rows[r].insert(rows[r].end(), expected[r].state.begin(), expected[r].state.end());
    }
    std::vector<std::vector<float>> gradients;
    std::vector<RowUpdate> updates;
    for (size_t i = 0; i < 2 * kRows; ++i) gradients.push_back(RandomFloats(dim, 100 + i));
    for (size_t i = 0; i < 2 * kRows; ++i) {
      const size_t r = i * 7 % kRows;  // Each row twice.
      expected[r].UpdateInPlace(*of_rows, full_step_, gradients[i]);
      updates.push_back({reinterpret_cast<const uint8_t*>(gradients[i].data()), rows[r].data()});
    }
    of_rows->UpdateRows(full_step_, dim, updates);
    for (size_t r = 0; r < kRows; ++r) {
      std::vector<float> row = expected[r].values;
      row.insert(row.end(), expected[r].state.begin(), expected[r].state.end());
      ASSERT_EQ(Bits(rows[r]), Bits(row)) << "row " << r << " of dimension " << dim;
    }
  }
}

TEST_P(EveryOptimizer, GivesTheSameBitsOnEveryInstructionSet) {
  const size_t n = 1003;
  const std::unique_ptr<const Optimizer> of_rows = MakeOptimizer(GetParam(), /*has_rows=*/true);
  auto run = [&] {
    Parameters parameters(*of_rows, RandomFloats(n, 1));
    for (uint32_t round = 0; round < 5; ++round) {
      parameters.UpdateInPlace(*of_rows, round % 2 == 0 ? plain_step_ : full_step_, RandomFloats(n, 20 + round));
    }
    return parameters;
  };
  const int64_t supported = hwy::SupportedTargets();
  const Parameters expected = run();
  for (int64_t rest = supported; rest != 0; rest &= rest - 1) {
    const int64_t target = rest & -rest;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    const Parameters parameters = run();
    EXPECT_EQ(Bits(parameters.values), Bits(expected.values)) << hwy::TargetName(target);
    EXPECT_EQ(Bits(parameters.state), Bits(expected.state)) << hwy::TargetName(target);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST_P(EveryOptimizer, GoesOnAfterSaveAndRestoreAsIfNothingHadHappened) {
  const size_t n = 37;
  Parameters parameters(*optimizer_, RandomFloats(n, 1));
  for (uint32_t round = 0; round < 4; ++round) {
    parameters.UpdateInPlace(*optimizer_, full_step_, RandomFloats(n, 10 + round));
  }
  const std::vector<uint32_t> saved_values = Bits(parameters.values);
  const std::vector<uint32_t> saved_state = Bits(parameters.state);
  parameters.UpdateInPlace(*optimizer_, full_step_, RandomFloats(n, 30));

  const std::unique_ptr<const Optimizer> other_process = MakeOptimizer(GetParam());
  Parameters restored(*other_process, std::vector<float>(n));
  std::memcpy(restored.values.data(), saved_values.data(), n * sizeof(float));
  if (!saved_state.empty()) std::memcpy(restored.state.data(), saved_state.data(), saved_state.size() * sizeof(float));
  restored.UpdateInPlace(*other_process, full_step_, RandomFloats(n, 30));
  EXPECT_EQ(Bits(restored.values), Bits(parameters.values));
  EXPECT_EQ(Bits(restored.state), Bits(parameters.state));
}

TEST_P(EveryOptimizer, ClampsThenScalesTheGradient) {
  const size_t n = 45;
  const std::vector<float> gradient = RandomFloats(n, 2);
  std::vector<float> prepared(n);
  size_t clamped = 0;
  for (size_t i = 0; i < n; ++i) {
    clamped += std::abs(gradient[i]) > 0.5f;
    prepared[i] = std::min(std::max(gradient[i], -0.5f), 0.5f) * 0.25f;
  }
  ASSERT_GT(clamped, 0);
  Parameters by_step(*optimizer_, RandomFloats(n, 1));
  Parameters by_hand = by_step;
  by_step.UpdateInPlace(*optimizer_, {.learning_rate = 0.3f, .gradient_scale = 0.25f, .clip_value = 0.5f}, gradient);
  by_hand.UpdateInPlace(*optimizer_, plain_step_, prepared);
  EXPECT_EQ(by_step.values, by_hand.values);
  EXPECT_EQ(by_step.state, by_hand.state);
}

TEST_P(EveryOptimizer, AddsWeightDecayToTheGradientUnlessItIsDecoupled) {
  const size_t n = 45;
  const Parameters before(*optimizer_, RandomFloats(n, 1));
  Parameters by_step = before, coupled = before, undecayed = before;
  const std::vector<float> gradient = RandomFloats(n, 2);
  std::vector<float> decayed(n);
  for (size_t i = 0; i < n; ++i) decayed[i] = gradient[i] + 0.125f * before.values[i];  // Exact but for the sum.
  by_step.UpdateInPlace(*optimizer_, {.learning_rate = 0.3f, .weight_decay = 0.125f}, gradient);
  coupled.UpdateInPlace(*optimizer_, plain_step_, decayed);
  const std::string name(optimizer_->name());
  const bool decoupled = name == "adamw" || name == "lion";
  EXPECT_EQ(by_step.values == coupled.values, !decoupled);
  if (!decoupled) {
    EXPECT_EQ(by_step.state, coupled.state);
    return;
  }
  // Decoupled: the state knows nothing of it, and each value lost its share. Numbers of order 1 are rounded four times.
  undecayed.UpdateInPlace(*optimizer_, plain_step_, gradient);
  EXPECT_EQ(by_step.state, undecayed.state);
  for (size_t i = 0; i < n; ++i) {
    EXPECT_NEAR(by_step.values[i], undecayed.values[i] - 0.3 * 0.125 * before.values[i], 4 * 0x1p-23) << i;
  }
}

TEST_P(EveryOptimizer, StaysFiniteAfterTheLargestGradientAndMovesAgain) {
  if (std::string(optimizer_->name()) == "momentum" || std::string(optimizer_->name()) == "nesterov" ||
      std::string(optimizer_->name()) == "sgd") {
    GTEST_SKIP() << "linear in the gradient: follows it wherever it leads";
  }
  const float huge = std::numeric_limits<float>::max();
  Parameters parameters(*optimizer_, {0.5f, 0.0f, -0.5f});
  parameters.UpdateInPlace(*optimizer_, plain_step_, {huge, -huge, huge});
  for (int round = 0; round < 3; ++round) parameters.UpdateInPlace(*optimizer_, plain_step_, {1.0f, 1.0f, 1.0f});
  for (float value : parameters.values) EXPECT_TRUE(std::isfinite(value)) << value;
  for (float value : parameters.state) EXPECT_TRUE(std::isfinite(value)) << value;
}

TEST_P(EveryOptimizer, MovesAgainstTheGradient) {
  Parameters parameters(*optimizer_, {0.0f, 0.0f});
  for (int round = 0; round < 3; ++round) parameters.UpdateInPlace(*optimizer_, plain_step_, {1.0f, -1.0f});
  EXPECT_LT(parameters.values[0], 0);
  EXPECT_GT(parameters.values[1], 0);
}

TEST(OptimizerCreate, TakesSgdIfNoMethodIsSet) { EXPECT_STREQ(MakeOptimizer("")->name(), "sgd"); }

TEST(OptimizerCreate, RefusesHyperparametersThatMakeNoSenseAndNamesTheField) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"learning_rate: nan", "optimizer.learning_rate"},
      {"learning_rate: inf", "optimizer.learning_rate"},
      {"weight_decay: -1", "optimizer.weight_decay"},
      {"weight_decay: nan", "optimizer.weight_decay"},
      {"clip { value: -1 }", "optimizer.clip.value"},
      {"clip { row_norm: nan }", "optimizer.clip.row_norm"},
      {"clip { block_norm: -0.5 }", "optimizer.clip.block_norm"},
      {"momentum { momentum: 1.5 }", "optimizer.momentum.momentum"},
      {"momentum { momentum: nan }", "optimizer.momentum.momentum"},
      {"nesterov { momentum: -0.1 }", "optimizer.nesterov.momentum"},
      {"adagrad { initial_accumulator: -1 }", "optimizer.adagrad.initial_accumulator"},
      {"adagrad { epsilon: nan }", "optimizer.adagrad.epsilon"},
      {"adagrad { epsilon: 0 }", "optimizer.adagrad.epsilon"},
      {"rmsprop { rho: 1 }", "optimizer.rmsprop.rho"},
      {"rmsprop { epsilon: 0 }", "optimizer.rmsprop.epsilon"},
      {"adam { beta1: 1 }", "optimizer.adam.beta1"},
      {"adam { beta2: -0.5 }", "optimizer.adam.beta2"},
      {"adam { epsilon: 0 }", "optimizer.adam.epsilon"},
      {"adamw { beta2: 1 }", "optimizer.adamw.beta2"},
      {"rowwise_adagrad { initial_accumulator: -1 }", "optimizer.rowwise_adagrad.initial_accumulator"},
      {"rowwise_adagrad { epsilon: 0 }", "optimizer.rowwise_adagrad.epsilon"},
      {"ftrl { beta: -1 }", "optimizer.ftrl.beta"},
      {"ftrl { l1: nan }", "optimizer.ftrl.l1"},
      {"ftrl { l2: inf }", "optimizer.ftrl.l2"},
      {"ftrl {} learning_rate: -1", "optimizer.learning_rate"},
      {"ftrl {} learning_rate: 0", "optimizer.learning_rate"},
      {"schedule { cosine { steps: 0 } }", "optimizer.schedule.cosine.steps"},
      {"schedule { cosine { floor: 2 } }", "optimizer.schedule.cosine.floor"},
      {"schedule { inverse_sqrt { steps: 0 } }", "optimizer.schedule.inverse_sqrt.steps"},
      {"schedule { step { every_steps: 0 } }", "optimizer.schedule.step.every_steps"},
      {"schedule { step { factor: nan } }", "optimizer.schedule.step.factor"},
  };
  for (const auto& [text, field] : cases) {
    const absl::Status status = Optimizer::Create(OptimizerConfig(text)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(std::string(status.message()).find(field), std::string::npos) << text << ": " << status;
  }
}

}  // namespace
}  // namespace lodestone::server
