// The check of a table's specification, from a configuration or from the network.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config/config_problem.h"
#include "google/protobuf/message.h"
#include "proto/table.pb.h"

namespace lodestone {

// Adds the fields of parts of a specification that do not go together. `path` is the part's own. The bounds of each
// number are CheckRanges's (field_range.h).
void CheckOptimizer(const v1::Optimizer& optimizer, const std::string& path, std::vector<ConfigProblem>* problems);
void CheckInitializer(const v1::Initializer& initializer, bool is_embedding, const std::string& path,
                      std::vector<ConfigProblem>* problems);

// INVALID_ARGUMENT, naming table and field, if a number is NaN, infinite or out of its bounds, or fields do not go
// together; UNIMPLEMENTED as CheckKnown. Whether its shape is one that a ps can hold is for the ps to say.
absl::Status CheckTableSpec(const v1::TableSpec& spec);

// UNIMPLEMENTED, naming the table, where in it, and the field's number or the enum's value, if this program does not
// know all of the specification: a newer one has made it, and to leave a part out would make it another table.
absl::Status CheckKnown(const v1::TableSpec& spec);

// How two specifications, or other messages of one type, differ; empty if they say the same. NaN equals NaN, so that
// what was once accepted stays equal to itself. Unknown fields do not count. Messages in which nothing is set are as
// good as missing, but not as other members of a oneof.
std::string Differences(const google::protobuf::Message& a, const google::protobuf::Message& b);

}  // namespace lodestone
