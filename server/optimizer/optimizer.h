// The update rule that makes new values of a table from a gradient.
//
// An Optimizer is const and stateless: the state (moments, accumulators, counts) stands beside the values it belongs to
// and is passed in. Thread-safe.
//
// Every method works element by element with IEEE operations that are never fused, so that a result does not depend on
// the CPU, on alignment, on the pieces in which a gradient arrives or on whether it is made in place. Of rows a method
// may also take sums over the row, in an order of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "proto/table.pb.h"

namespace lodestone::server {

// What state `n` values need: `vectors` arrays of n floats, Stride(n) apart, then `scalars` floats.
struct StateLayout {
  // The vectors of a long block are set off from each other: arrays a power of two apart share the few places of a
  // cache that their elements may take.
  static constexpr size_t kSetOffMin = 4096;
  static constexpr size_t kSetOff = 21 * 16;  // An odd number of cache lines.

  uint32_t vectors = 0;
  uint32_t scalars = 0;

  // Floats from the begin of one vector to the begin of the next.
  static constexpr size_t Stride(size_t n) { return n < kSetOffMin ? n : n + kSetOff; }
  // Where the scalars begin.
  static constexpr size_t ScalarsAt(uint32_t vectors, size_t n) {
    return vectors > 0 ? (vectors - 1) * Stride(n) + n : 0;
  }
  // Floats in all.
  size_t FloatsFor(size_t n) const { return ScalarsAt(vectors, n) + scalars; }
};

// Elements begin … begin + count - 1 of a block or row of n values.
struct Range {
  size_t n = 0;
  size_t begin = 0;
  size_t count = 0;
};

// A row to be updated in place: its values, and right behind them their state.
struct RowUpdate {
  const uint8_t* gradient = nullptr;
  float* values = nullptr;
};

// What one call of an optimizer works on: a range of a block, or rows.
struct UpdateWork {
  Range range;  // Of each row, if there are rows.
  const uint8_t* gradient = nullptr;
  const float* values_in = nullptr;
  const float* state_in = nullptr;
  float* values_out = nullptr;
  float* state_out = nullptr;
  std::span<const RowUpdate> rows;
};

// Base of the methods, one file each.
class Optimizer {
 public:
  // INVALID_ARGUMENT, naming the field, if a hyperparameter makes no sense. `has_rows`: for rows, as embedding tables
  // have them, which are always updated whole; else for blocks of a dense table.
  static absl::StatusOr<std::unique_ptr<const Optimizer>> Create(const v1::Optimizer& config, bool has_rows = false);

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

  // One update of a range of a block's values. `gradient` points to range.count little-endian float32, not aligned, all
  // finite; the other pointers to the whole block's n values and to their state. The outputs may be the inputs
  // themselves, or not overlap them at all.
  //
  // A step may be taken in several calls whose ranges cover the block: ascending, none of them empty. What lies between
  // the vectors of the state is not written, but with the last range as zeros to outputs that are not the inputs.
  void Update(const Step& step, const Range& range, const uint8_t* gradient, const float* values_in,
              const float* state_in, float* values_out, float* state_out) const {
    Run(step, {range, gradient, values_in, state_in, values_out, state_out, {}});
  }

  // One update of rows of `dim` values each, one after the other: a row may be there twice.
  void UpdateRows(const Step& step, size_t dim, std::span<const RowUpdate> rows) const {
    if (!rows.empty()) Run(step, {.range = {dim, 0, dim}, .rows = rows});
  }

 protected:
  virtual void Run(const Step& step, const UpdateWork& work) const = 0;
};

}  // namespace lodestone::server
