// How a gradient becomes a new value.
//
// An Optimizer is const and stateless: the state (moments, accumulators, counts) stands beside the values it belongs to
// and is passed in. Thread-safe.
//
// Every method works element by element with IEEE operations that are never fused, so that a result does not depend on
// the CPU, on alignment, on how an array is split into calls (Adam's count aside) or on whether it is made in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "proto/table.pb.h"
#include "server/optimizer/clipping.h"
#include "server/optimizer/initializer.h"
#include "server/optimizer/schedule.h"

namespace lodestone {

// What state `n` values need: `vectors` arrays of n floats, one after the other, then `scalars` floats.
struct StateLayout {
  uint32_t vectors = 0;
  uint32_t scalars = 0;
  size_t FloatsFor(size_t n) const { return vectors * n + scalars; }
};

// Base of the methods, one file each.
class Optimizer {
 public:
  // INVALID_ARGUMENT, naming the field, if a hyperparameter makes no sense.
  static absl::StatusOr<std::unique_ptr<const Optimizer>> Create(const v1::Optimizer& config);

  virtual ~Optimizer() = default;

  // "adagrad", …
  virtual const char* name() const = 0;
  virtual StateLayout state_layout() const = 0;
  // Fills the state of `n` values that were never updated.
  virtual void InitializeState(float* state, size_t n) const = 0;

  // What one step is taken with.
  struct Step {
    float learning_rate = 0;  // After the schedule.
    float weight_decay = 0;
    float gradient_scale = 1;  // Multiplies the gradient (norm clipping).
    float clip_value = 0;      // Clamps the gradient to [-clip_value, clip_value] before gradient_scale; 0: does not.
  };

  // One update of `n` values, for blocks and rows alike. `gradient` points to n little-endian float32, not aligned, all
  // finite. The outputs may be the inputs themselves, or not overlap them at all.
  virtual void Update(const Step& step, size_t n, const uint8_t* gradient, const float* values_in,
                      const float* state_in, float* values_out, float* state_out) const = 0;
};

}  // namespace lodestone
