#include "worker/data/transform.h"

#include <cstddef>

namespace lodestone::worker {

Standardizer::Standardizer(std::span<const v1::Transform> columns) {
  for (size_t i = 0; i < columns.size(); ++i) {
    if (Standardizes(columns[i])) columns_.push_back({.index = i});
  }
}

void Standardizer::Add(std::span<const float> row) {
  for (Column& column : columns_) {
    const double x = row[column.index];
    if (std::isnan(x)) continue;
    if (column.count++ == 0) column.shift = x;
    const double difference = x - column.shift;
    column.sum += difference;
    column.square_sum += difference * difference;
  }
}

void Standardizer::Finish() {
  for (Column& column : columns_) {
    if (column.count == 0) continue;
    const double mean_difference = column.sum / static_cast<double>(column.count);
    const double variance = column.square_sum / static_cast<double>(column.count) - mean_difference * mean_difference;
    column.mean = column.shift + mean_difference;
    // Rounding leaves up to about 1e-16 of the square in the difference above.
    const double noise = 1e-14 * mean_difference * mean_difference;
    column.inverse_deviation = variance > noise ? 1 / std::sqrt(variance) : 1;
  }
}

void Standardizer::Apply(std::span<float> row) const {
  for (const Column& column : columns_) {
    float& x = row[column.index];
    x = std::isnan(x) ? 0.0f : static_cast<float>((x - column.mean) * column.inverse_deviation);
  }
}

}  // namespace lodestone::worker
