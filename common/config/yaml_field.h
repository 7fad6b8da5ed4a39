// Conversion of a YAML scalar to a value of a protobuf field, and the names in a schema for error messages.
#pragma once

#include <string>
#include <vector>

#include "common/config/yaml_tree.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace lodestone {

// Sets `field` of `message`, or appends to it if it is repeated, from a node that stands for one value. REQUIRES: the
// field is no message. Returns what is wrong, empty if nothing is; then the message is unchanged.
std::string ReadScalarField(const YamlNode& node, const google::protobuf::FieldDescriptor& field,
                            google::protobuf::Message* message);

// Names of the fields of a message, of the members of a oneof, of the values of an enum (lower case), in their order.
std::vector<std::string> NamesOf(const google::protobuf::Descriptor& type);
std::vector<std::string> NamesOf(const google::protobuf::OneofDescriptor& oneof);
std::vector<std::string> NamesOf(const google::protobuf::EnumDescriptor& type);

// The path of the first field called `name` anywhere below `type`, depth first; empty if there is none.
std::string FindBelow(const google::protobuf::Descriptor& type, const std::string& name);

// " (did you mean `x`?)" for the nearest of `valid`; if none is near, " (one of: a, b, c)".
std::string Suggestion(const std::string& name, const std::vector<std::string>& valid);

}  // namespace lodestone
