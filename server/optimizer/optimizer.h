// How a gradient becomes a new value.
//
// An Optimizer is const and stateless: the state (moments, accumulators, counts) stands beside the values it belongs to
// and is passed in. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/table.pb.h"

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
  // INVALID_ARGUMENT if a hyperparameter makes no sense.
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

// The learning rate at `step` (from 0): the configured one times the schedule's factor.
float LearningRateAt(const v1::Optimizer& config, uint64_t step);

// Euclidean norm of `n` unaligned floats after clamping each to [-clip_value, clip_value] (0: no clamp).
double GradientNorm(const uint8_t* gradient, size_t n, float clip_value);

// Index of the first of `n` unaligned floats that is NaN or infinite; n if all are finite.
size_t FirstNonFinite(const uint8_t* values, size_t n);

// dst[i] = initial value number first + i of a table; a pure function of (seed, table_seed, first + i) and the shape.
// For embeddings pass stream = the row's key, else 0. fan_in and fan_out are those of the dense table [fan_in, fan_out].
void InitializeValues(const v1::Initializer& config, uint64_t seed, uint64_t stream, uint64_t first, size_t n,
                      uint64_t fan_in, uint64_t fan_out, float* dst);

}  // namespace lodestone
