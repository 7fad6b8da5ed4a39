#include "tools/psctl/files/model_metadata.h"

#include "common/base/status.h"
#include "google/protobuf/util/json_util.h"

namespace lodestone::psctl {
namespace {

absl::StatusOr<std::string> JsonOf(const google::protobuf::Message& message, bool all_fields) {
  google::protobuf::util::JsonPrintOptions print;
  print.preserve_proto_field_names = true;
  print.always_print_primitive_fields = all_fields;
  std::string text;
  const auto printed = google::protobuf::util::MessageToJsonString(message, &text, print);
  if (!printed.ok()) return absl::InternalError(printed.ToString());
  return text;
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> MetadataOf(const v1::ServerManifest& cluster) {
  std::map<std::string, std::string> metadata;
  LODESTONE_ASSIGN_OR_RETURN(metadata[kClusterMetadata], JsonOf(cluster, /*all_fields=*/false));
  for (const v1::TableSpec& table : cluster.tables()) {
    if (!table.has_model()) continue;
    LODESTONE_ASSIGN_OR_RETURN(metadata[kModelMetadata], JsonOf(table.model(), /*all_fields=*/true));
  }
  return metadata;
}

}  // namespace lodestone::psctl
