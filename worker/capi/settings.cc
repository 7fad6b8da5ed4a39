#include "worker/capi/settings.h"

#include "common/config/config.h"
#include "common/config/yaml_reader.h"
#include "google/protobuf/util/json_util.h"

namespace lodestone::worker {

absl::StatusOr<v1::Config> ReadClientConfig(const std::string& text) {
  absl::StatusOr<v1::Config> config = ParseConfig(text, "config");
  if (!config.ok()) return config;
  if (config->coordinator().address().empty() && config->coordinator().etcd().empty()) {
    return absl::InvalidArgumentError("config: neither coordinator.address nor coordinator.etcd is set");
  }
  return config;
}

absl::StatusOr<v1::TableSpec> ReadTableSpec(const std::string& text) {
  v1::TableSpec spec;
  YamlReader reader(&spec);
  reader.Read(text, "table");
  if (!reader.status().ok()) return reader.status();
  if (spec.name().empty()) return absl::InvalidArgumentError("table: name is not set");
  return spec;
}

std::string JsonOf(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  // Fails only for messages that JSON has no form for; ours have.
  if (!google::protobuf::util::MessageToJsonString(message, &json, options).ok()) return "{}";
  return json;
}

}  // namespace lodestone::worker
