// The texts that psctl writes beside exported tensors.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "proto/model.pb.h"

namespace lodestone::psctl {

// Of the cluster: its tables, shards and seed (ServerManifest), for psctl import and for the values of rows that are
// not in the file.
inline constexpr char kClusterMetadata[] = "lodestone";
// Of the model: ModelDescription. Not there if the tables are of no model, or of a program that described none.
inline constexpr char kModelMetadata[] = "lodestone_model";

// Both as JSON, for a file of the tensors of `cluster`. INTERNAL if protobuf cannot write them.
absl::StatusOr<std::map<std::string, std::string>> MetadataOf(const v1::ServerManifest& cluster);

}  // namespace lodestone::psctl
