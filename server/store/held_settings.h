// The settings of a table that an operator holds (TableSpec.held, Admin.SetTable): which there may be, and what becomes
// of them when a worker brings others. A path is a field's, as in a google.protobuf.FieldMask:
// "optimizer.learning_rate".
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "proto/admin.pb.h"
#include "proto/table.pb.h"

namespace lodestone::server {

// `spec` with the fields that `request` sets, which are held then, and without those that it releases.
// INVALID_ARGUMENT: a field is none that can change. FAILED_PRECONDITION: one that is released is not held; not in a
// pause of training, where a request is made until all ps have done it.
absl::StatusOr<v1::TableSpec> WithSettings(const v1::TableSpec& spec, const v1::SetTableRequest& request);

// Gives `spec` what `existing` holds, values included.
void KeepHeld(const v1::TableSpec& existing, v1::TableSpec* spec);

}  // namespace lodestone::server
