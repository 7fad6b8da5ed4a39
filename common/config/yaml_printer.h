// Printer of protobuf messages as YAML that yaml_reader reads back.
#pragma once

#include <string>

#include "google/protobuf/message.h"

namespace lodestone {

// What is set, in the schema's order, and single values that are not set but have a default in the schema, marked
// "# default". Messages that are not set are not printed, nor are single values that have no default of their own.
// Strings that are not UTF-8 do not survive. "{}\n" if there is nothing to print.
std::string PrintYaml(const google::protobuf::Message& message);

}  // namespace lodestone
