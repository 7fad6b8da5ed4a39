#include "worker/training/output_pool.h"

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu_backend.h"

namespace lodestone::worker {
namespace {

TEST(OutputPool, WhatIsHeldIsNotGivenAgainAndWhatIsDroppedIs) {
  OutputPool pool(kernels::Cpu());
  std::shared_ptr<StepOutputs> first = pool.Take();
  first->Lay(std::vector<size_t>{100, 3}, 5);
  float* const memory = first->data();
  std::shared_ptr<const StepOutputs> pushed = first;  // As a push holds it.
  first.reset();
  const StepOutputs* const was = pushed.get();
  const std::shared_ptr<StepOutputs> second = pool.Take();
  EXPECT_NE(second.get(), was);
  std::thread([held = std::move(pushed)] {}).join();
  first = pool.Take();
  EXPECT_EQ(first.get(), was);
  first->Lay(std::vector<size_t>{100, 3}, 5);
  EXPECT_EQ(first->data(), memory) << "steps alike take no new memory";
}

TEST(OutputPool, WhatItGaveOutlivesIt) {
  std::optional<OutputPool> pool(kernels::Cpu());
  std::shared_ptr<StepOutputs> outputs = pool->Take();
  outputs->Lay(std::vector<size_t>{4}, 1);
  const std::weak_ptr<StepOutputs> seen = outputs;
  pool.reset();
  for (int i = 0; i < 4; ++i) outputs->GradientIn(outputs->data(), 0)[i] = static_cast<float>(i);
  std::thread([held = std::move(outputs), &seen] {
    EXPECT_EQ(held->GradientIn(held->data(), 0)[3], 3);
    EXPECT_FALSE(seen.expired());
  }).join();  // Who drops it last is another thread.
  EXPECT_TRUE(seen.expired());
}

TEST(StepOutputs, EverythingHasAPlaceOfItsOwnOnABoundary) {
  StepOutputs outputs(kernels::Cpu());
  outputs.Lay(std::vector<size_t>{1, 64, 65, 0}, 3);
  float* const base = outputs.data();
  const std::vector<const float*> places = {outputs.GradientIn(base, 0),
                                            outputs.GradientIn(base, 1),
                                            outputs.GradientIn(base, 2),
                                            outputs.GradientIn(base, 3),
                                            reinterpret_cast<float*>(outputs.LossIn(base)),
                                            outputs.PredictionsIn(base)};
  const std::vector<ptrdiff_t> floats = {1, 64, 65, 0, 2, 3};
  const float* end = base;
  for (size_t i = 0; i < places.size(); ++i) {
    EXPECT_EQ((places[i] - base) % 64, 0) << i;
    EXPECT_GE(places[i], end) << i;
    end = places[i] + floats[i];
  }
  EXPECT_LE(end, base + outputs.floats());
  EXPECT_EQ(outputs.gradient_floats(2), 65u);
}

}  // namespace
}  // namespace lodestone::worker
