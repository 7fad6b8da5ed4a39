// The activations of hidden layers. Their formulas are in activation.cc and activation.cu.
#pragma once

#include <cstdint>

namespace lodestone::kernels {

// Numbered as ModelConfig.Activation in config.proto.
enum class Activation : uint8_t { kNone, kRelu, kGelu };
inline constexpr Activation kLastActivation = Activation::kGelu;

// Whether the backward pass needs the activation's input, which then must be kept beside its output. The others'
// derivatives are computed from the output, which may replace the input.
constexpr bool NeedsInput(Activation activation) { return activation == Activation::kGelu; }

}  // namespace lodestone::kernels
