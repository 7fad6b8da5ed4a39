// The JSON Schema of the configuration files, for editors that complete and check YAML.
#pragma once

#include <string>

#include "google/protobuf/descriptor.h"

namespace lodestone::schema {

// The draft-07 schema of YAML files that YamlReader reads into messages of type `root`: every field with its comment,
// type, range and default; nothing else is allowed. `root` must come from a pool whose files have source information,
// or there are no descriptions. The text is stable: the same descriptors give the same bytes.
std::string JsonSchema(const google::protobuf::Descriptor& root);

}  // namespace lodestone::schema
