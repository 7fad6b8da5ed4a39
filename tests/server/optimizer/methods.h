// Every optimizer with settings that no default shares, and arrays to run it on.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "server/optimizer/optimizer.h"

namespace lodestone::server {

inline v1::Optimizer OptimizerConfig(const std::string& text) {
  v1::Optimizer config;
  if (!google::protobuf::TextFormat::ParseFromString(text, &config)) ADD_FAILURE() << "not an Optimizer: " << text;
  return config;
}

inline std::unique_ptr<const Optimizer> MakeOptimizer(const std::string& text, bool has_rows = false) {
  auto optimizer = Optimizer::Create(OptimizerConfig(text), has_rows);
  if (!optimizer.ok()) {
    ADD_FAILURE() << text << ": " << optimizer.status();
    return nullptr;
  }
  return *std::move(optimizer);
}

// Text-format configurations, one for each method: every hyperparameter is off its default.
inline std::vector<std::string> AllMethods() {
  std::vector<std::string> methods;
  const google::protobuf::OneofDescriptor& kinds = *v1::Optimizer::descriptor()->FindOneofByName("kind");
  for (int k = 0; k < kinds.field_count(); ++k) {
    v1::Optimizer config;
    google::protobuf::Message* const method = config.GetReflection()->MutableMessage(&config, kinds.field(k));
    for (int i = 0; i < method->GetDescriptor()->field_count(); ++i) {
      const google::protobuf::FieldDescriptor& field = *method->GetDescriptor()->field(i);
      const float value = field.default_value_float();
      method->GetReflection()->SetFloat(method, &field, value == 0 ? 0.2f : 0.9f * value);
    }
    config.set_learning_rate(0.3f);
    methods.push_back(config.ShortDebugString());
  }
  return methods;
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
