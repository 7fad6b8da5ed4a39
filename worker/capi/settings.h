// The configuration and the specifications that a program gives as text.
//
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "proto/config.pb.h"
#include "proto/table.pb.h"

namespace lodestone::worker {

// Of YAML or JSON in the form of Lodestone's configuration files. INVALID_ARGUMENT names the field, also if there is no
// way to the coordinator.
absl::StatusOr<v1::Config> ReadClientConfig(const std::string& text);
// Of YAML or JSON in the form of a TableSpec; checked as far as it can be without the cluster.
absl::StatusOr<v1::TableSpec> ReadTableSpec(const std::string& text);
// One line of JSON, with the names of the schema.
std::string JsonOf(const google::protobuf::Message& message);

}  // namespace lodestone::worker
