// The work that an optimizer hands to its SIMD loop: plain data, shared by all of the CPU's instruction sets.
#pragma once

#include <limits>

#include "server/optimizer/optimizer.h"

namespace lodestone::server {

// What happens to each gradient element before a rule sees it: clamp(g, -bound, bound) * scale + decay * w.
struct GradientTransform {
  float bound = std::numeric_limits<float>::max();
  float scale = 1;
  float decay = 0;

  // With the weight decay coupled into the gradient; `decoupled`: left to the rule.
  explicit GradientTransform(const Optimizer::Step& step, bool decoupled = false)
      : bound(step.clip_value > 0 ? step.clip_value : std::numeric_limits<float>::max()),
        scale(step.gradient_scale),
        decay(decoupled ? 0 : step.weight_decay) {}

  // The gradient stays as it is.
  bool IsIdentity() const { return bound == std::numeric_limits<float>::max() && scale == 1 && decay == 0; }
};

}  // namespace lodestone::server
