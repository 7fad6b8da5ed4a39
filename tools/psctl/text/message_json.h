// Conversion of protobuf messages to the JSON that psctl prints.
//
// Thread safety: pure.
#pragma once

#include <string>

#include "google/protobuf/message.h"
#include "nlohmann/json.hpp"

namespace lodestone::psctl {

// A message with all its fields, under their names in the .proto; what is unset is 0, "" or []. Counts are numbers;
// what only names something (fixed64) is a text, because many a program would round it; NaN and infinity, which JSON
// does not have, are null.
nlohmann::ordered_json JsonOf(const google::protobuf::Message& message);

// Indented, with a line end. Whatever is no text in it is replaced.
std::string IndentedJson(const nlohmann::ordered_json& json);
// In one line, with its end.
std::string JsonLine(const nlohmann::ordered_json& json);

}  // namespace lodestone::psctl
