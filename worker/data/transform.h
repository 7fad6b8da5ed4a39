// Transformations of numeric features on reading.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "proto/model.pb.h"

namespace lodestone::worker {

// `transform`, with `by_format` for DEFAULT.
inline v1::Transform ResolveTransform(v1::Transform transform, v1::Transform by_format) {
  return transform == v1::DEFAULT ? by_format : transform;
}

// Its name in descriptions, in lower case; and the transform of that name, nullopt if there is none.
std::string TransformName(v1::Transform transform);
std::optional<v1::Transform> TransformNamed(const std::string& name);

// Whether the transform needs statistics of the training files.
inline bool Standardizes(v1::Transform transform) {
  return transform == v1::STANDARDIZE || transform == v1::LOG_STANDARDIZE;
}

// sign(x) * ln(1 + |x|).
inline double SignedLog(double x) { return std::copysign(std::log1p(std::fabs(x)), x); }

// The part of the transform that needs no statistics. Finite for any float x.
inline float TransformNumber(v1::Transform transform, double x) {
  if (transform == v1::LOG || transform == v1::LOG_STANDARDIZE) return static_cast<float>(SignedLog(x));
  return static_cast<float>(transform == v1::UNIT ? x / 255 : x);
}

// What a missing number is read as: 0, or NaN in a column that Standardizer will put to 0 when it has its statistics.
inline float MissingNumber(v1::Transform transform) { return Standardizes(transform) ? std::nanf("") : 0.0f; }

// Means and deviations of the columns that need them. Not thread-safe while rows are added.
class Standardizer {
 public:
  // With `known`, the means and deviations are those, and rows are not counted. REQUIRES: it has these columns.
  explicit Standardizer(std::span<const v1::Transform> columns, const v1::DataDescription* known = nullptr);

  // Whether any column is standardized at all; if not, the rest does nothing.
  bool active() const { return !columns_.empty(); }
  // Counts a row of the training files, NaN being missing. REQUIRES: one number per column.
  void Add(std::span<const float> row);
  // The columns' means and deviations are those of the rows so far; the deviation of a constant column counts as 1.
  void Finish();
  // Sets the mean and deviation of its columns. REQUIRES: Finish was called.
  void Describe(v1::DataDescription* description) const;
  // (x - mean) / deviation, 0 for NaN, in the standardized columns of a row. REQUIRES: Finish was called.
  void Apply(std::span<float> row) const;

 private:
  struct Column {
    size_t index;
    uint64_t count = 0;
    double shift = 0;  // The first number: sums of differences from it do not cancel.
    double sum = 0;
    double square_sum = 0;
    double mean = 0;
    double deviation = 1;
  };
  const bool known_;
  std::vector<Column> columns_;
};

}  // namespace lodestone::worker
