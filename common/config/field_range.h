// The bounds of numeric fields: those that a proto's option `range` gives (proto/options.proto), and that a number with
// a fraction is finite. The YAML reader and the checks of received messages use the same.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "common/config/config_problem.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "proto/options.pb.h"

namespace lodestone {

// ": must be 1 to 1024", ": must be at least 0 and below 1" and the like, of the range option of `field` and the bounds
// of its type (empty: the type has none).
std::string BoundsText(const google::protobuf::FieldDescriptor& field, const std::string& type_min,
                       const std::string& type_max);

// Whether `value` is within the range option of `field`, whose bounds are rounded to Number: a bound of 0.1 admits the
// float that is nearest to 0.1. NaN is within none.
template <typename Number>
bool WithinRange(const google::protobuf::FieldDescriptor& field, Number value) {
  const v1::Range& range = field.options().GetExtension(v1::range);
  return value == value && !(range.has_min() && value < static_cast<Number>(range.min())) &&
         !(range.has_max() && value > static_cast<Number>(range.max())) &&
         !(range.has_above() && value <= static_cast<Number>(range.above())) &&
         !(range.has_below() && value >= static_cast<Number>(range.below()));
}

// Adds the numbers that are set in `message`, or anywhere below it, and are out of range or not finite. `path` is the
// message's own, empty or "a.b".
void CheckRanges(const google::protobuf::Message& message, const std::string& path,
                 std::vector<ConfigProblem>* problems);

}  // namespace lodestone
