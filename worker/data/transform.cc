#include "worker/data/transform.h"

#include <cstddef>

#include "absl/strings/ascii.h"

namespace lodestone::worker {

std::string TransformName(v1::Transform transform) { return absl::AsciiStrToLower(v1::Transform_Name(transform)); }

std::optional<v1::Transform> TransformNamed(const std::string& name) {
  v1::Transform transform;
  if (!v1::Transform_Parse(absl::AsciiStrToUpper(name), &transform)) return std::nullopt;
  return transform;
}

Standardizer::Standardizer(std::span<const v1::Transform> columns, const v1::DataDescription* known)
    : known_(known != nullptr) {
  for (size_t i = 0; i < columns.size(); ++i) {
    if (!Standardizes(columns[i])) continue;
    Column& column = columns_.emplace_back();
    column.index = i;
    if (!known_) continue;
    column.mean = known->numeric(static_cast<int>(i)).mean();
    column.deviation = known->numeric(static_cast<int>(i)).deviation();
  }
}

void Standardizer::Add(std::span<const float> row) {
  if (known_) return;
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
    column.deviation = variance > noise ? std::sqrt(variance) : 1;
  }
}

void Standardizer::Describe(v1::DataDescription* description) const {
  for (const Column& column : columns_) {
    v1::DataDescription::NumericColumn& out = *description->mutable_numeric(static_cast<int>(column.index));
    out.set_mean(column.mean);
    out.set_deviation(column.deviation);
  }
}

void Standardizer::Apply(std::span<float> row) const {
  for (const Column& column : columns_) {
    float& x = row[column.index];
    x = std::isnan(x) ? 0.0f : static_cast<float>((x - column.mean) / column.deviation);
  }
}

}  // namespace lodestone::worker
