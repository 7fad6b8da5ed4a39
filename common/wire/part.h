// Predicates on the parts of a push or a pull (Part in parameter_server.proto).
//
// Thread safety: pure functions.
#pragma once

#include <algorithm>

#include "google/protobuf/repeated_ptr_field.h"
#include "proto/parameter_server.pb.h"

namespace lodestone {

// Whether any of the parts names rows of an embedding table by their keys.
inline bool HasRows(const google::protobuf::RepeatedPtrField<v1::Part>& parts) {
  return std::any_of(parts.begin(), parts.end(), [](const v1::Part& part) { return part.row_count() > 0; });
}

}  // namespace lodestone
