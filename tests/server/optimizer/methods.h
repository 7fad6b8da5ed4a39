// Every optimizer with settings that no default shares, and arrays to run it on.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "server/optimizer/optimizer.h"

namespace lodestone::server {

inline v1::Optimizer OptimizerConfig(const std::string& text) {
  v1::Optimizer config;
  if (!google::protobuf::TextFormat::ParseFromString(text, &config)) ADD_FAILURE() << "not an Optimizer: " << text;
  return config;
}

inline std::unique_ptr<const Optimizer> MakeOptimizer(const std::string& text) {
  auto optimizer = Optimizer::Create(OptimizerConfig(text));
  if (!optimizer.ok()) {
    ADD_FAILURE() << text << ": " << optimizer.status();
    return nullptr;
  }
  return *std::move(optimizer);
}

// Text-format configurations, one for each method.
inline std::vector<std::string> AllMethods() {
  return {"sgd {} learning_rate: 0.3",
          "momentum { momentum: 0.8 } learning_rate: 0.3",
          "nesterov { momentum: 0.8 } learning_rate: 0.3",
          "adagrad { initial_accumulator: 0.1 epsilon: 1e-6 } learning_rate: 0.3",
          "rmsprop { rho: 0.7 epsilon: 1e-6 } learning_rate: 0.3",
          "adam { beta1: 0.8 beta2: 0.95 epsilon: 1e-6 } learning_rate: 0.3",
          "adamw { beta1: 0.8 beta2: 0.95 epsilon: 1e-6 } learning_rate: 0.3",
          "ftrl { beta: 0.5 l1: 0.2 l2: 0.1 } learning_rate: 0.3"};
}

// Values with their state.
struct Parameters {
  std::vector<float> values;
  std::vector<float> state;

  Parameters(const Optimizer& optimizer, std::vector<float> initial)
      : values(std::move(initial)), state(optimizer.state_layout().FloatsFor(values.size()), -7.0f) {
    optimizer.InitializeState(state.data(), values.size());
  }

  void UpdateInPlace(const Optimizer& optimizer, const Optimizer::Step& step, const uint8_t* gradient) {
    const size_t n = values.size();
    optimizer.Update(step, {n, 0, n}, gradient, values.data(), state.data(), values.data(), state.data());
  }
  void UpdateInPlace(const Optimizer& optimizer, const Optimizer::Step& step, const std::vector<float>& gradient) {
    UpdateInPlace(optimizer, step, reinterpret_cast<const uint8_t*>(gradient.data()));
  }
};

// Uniform in [-1, 1), a fixed sequence for each seed.
inline std::vector<float> RandomFloats(size_t n, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> values(n);
  for (float& value : values) value = uniform(generator);
  return values;
}

// The bits, so that comparisons tell -0 from 0 and know NaN.
inline std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  if (!values.empty()) std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

}  // namespace lodestone::server
