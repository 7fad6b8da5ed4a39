#include "tools/schema/schema.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "proto/options.pb.h"

namespace lodestone::schema {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::OneofDescriptor;
using google::protobuf::SourceLocation;
using Json = nlohmann::ordered_json;

// The comment before a descriptor on one line; empty if there is none.
template <typename Any>
std::string Comment(const Any& descriptor) {
  SourceLocation location;
  if (!descriptor.GetSourceLocation(&location)) return "";
  std::string text = absl::StrReplaceAll(location.leading_comments, {{"\n", " "}});
  absl::RemoveExtraAsciiWhitespace(&text);
  return text;
}

// A whole number if it is one, so that 1 is not written 1.0.
Json Number(double value) {
  const bool whole = std::floor(value) == value && std::abs(value) < 1e15;
  return whole ? Json(static_cast<int64_t>(value)) : Json(value);
}

bool IsBytes(const FieldDescriptor& field) { return ("_" + field.name()).find("_bytes") != std::string::npos; }

// The bounds that the type gives, narrowed by the range option.
void AddBounds(const FieldDescriptor& field, Json* schema) {
  const v1::Range& range = field.options().GetExtension(v1::range);
  const bool is_unsigned =
      field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32 || field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64;
  if (range.has_above()) {
    (*schema)["exclusiveMinimum"] = Number(range.above());
  } else if (range.has_min()) {
    (*schema)["minimum"] = Number(range.min());
  } else if (is_unsigned) {
    (*schema)["minimum"] = 0;
  }
  if (range.has_below()) {
    (*schema)["exclusiveMaximum"] = Number(range.below());
  } else if (range.has_max()) {
    (*schema)["maximum"] = Number(range.max());
  } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
    (*schema)["maximum"] = std::numeric_limits<uint32_t>::max();
  }
}

// One name of an enum in lower case, with what each means.
Json EnumSchema(const EnumDescriptor& type, std::string* description) {
  // Tools that write YAML make true and false of yes and no.
  const bool has_flags = type.FindValueByName("YES") != nullptr && type.FindValueByName("NO") != nullptr;
  Json schema;
  schema["type"] = has_flags ? Json({"string", "boolean"}) : Json("string");
  schema["enum"] = Json::array();
  for (int i = 0; i < type.value_count(); ++i) {
    const std::string name = absl::AsciiStrToLower(type.value(i)->name());
    schema["enum"].push_back(name);
    const std::string comment = Comment(*type.value(i));
    if (!comment.empty()) absl::StrAppend(description, description->empty() ? "" : "\n", "- ", name, ": ", comment);
  }
  if (has_flags) {
    schema["enum"].push_back(true);
    schema["enum"].push_back(false);
  }
  return schema;
}

std::string DefinitionName(const Descriptor& type) {
  const std::string package = type.file()->package() + ".";
  return type.full_name().substr(package.size());
}

// A single value of `field`, without its description.
Json ValueSchema(const FieldDescriptor& field, std::string* description) {
  Json schema;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      // Under allOf, because draft-07 takes no description beside $ref.
      return {{"allOf", {{{"$ref", absl::StrCat("#/definitions/", DefinitionName(*field.message_type()))}}}}};
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumSchema(*field.enum_type(), description);
    case FieldDescriptor::CPPTYPE_BOOL:
      return {{"type", "boolean"}};
    case FieldDescriptor::CPPTYPE_STRING:
      return {{"type", {"string", "number", "boolean"}}};  // YAML's 0 and no are strings here.
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      schema["type"] = "number";
      break;
    default:
      schema["type"] = "integer";
      break;
  }
  if (IsBytes(field)) {
    schema["type"] = {"integer", "string"};
    schema["pattern"] = "^[0-9_.eE+]+ ?([KMGT]iB?|[kKMGT]B)?$";
  } else if (field.name().ends_with("_ms")) {
    schema["type"] = {"integer", "string"};
    schema["pattern"] = "^[0-9_.eE+]+ ?(ms|s|min|m|h|d)?$";
  }
  AddBounds(field, &schema);
  return schema;
}

Json DefaultOf(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return field.default_value_int32();
    case FieldDescriptor::CPPTYPE_INT64:
      return field.default_value_int64();
    case FieldDescriptor::CPPTYPE_UINT32:
      return field.default_value_uint32();
    case FieldDescriptor::CPPTYPE_UINT64:
      return field.default_value_uint64();
    case FieldDescriptor::CPPTYPE_FLOAT: {
      // 0.05, not the double that is nearest to the float that is nearest to 0.05.
      double value = 0;
      return absl::SimpleAtod(absl::StrCat(field.default_value_float()), &value) ? Number(value) : Json();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(field.default_value_double());
    case FieldDescriptor::CPPTYPE_BOOL:
      return field.default_value_bool();
    case FieldDescriptor::CPPTYPE_ENUM:
      return absl::AsciiStrToLower(field.default_value_enum()->name());
    case FieldDescriptor::CPPTYPE_STRING:
      return field.default_value_string();
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return Json();
}

Json FieldSchema(const FieldDescriptor& field) {
  std::string description = Comment(field);
  if (description.empty() && field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field.is_map()) {
    description = Comment(*field.message_type());
  }
  Json schema;
  if (field.is_map()) {
    schema = {{"type", "object"},
              {"additionalProperties", ValueSchema(*field.message_type()->map_value(), &description)}};
  } else if (field.is_repeated()) {
    const Json element = ValueSchema(field, &description);
    schema = {{"anyOf", {{{"type", "array"}, {"items", element}}, element}}};
  } else {
    schema = ValueSchema(field, &description);
    if (field.has_default_value()) schema["default"] = DefaultOf(field);
  }
  if (!description.empty()) schema["description"] = description;
  return schema;
}

Json MessageSchema(const Descriptor& type) {
  Json schema;
  const std::string description = Comment(type);
  if (!description.empty()) schema["description"] = description;
  schema["type"] = {"object", "null"};  // Nothing is a message that is present and empty.
  schema["additionalProperties"] = false;
  Json properties = Json::object();
  for (int i = 0; i < type.field_count(); ++i) properties[type.field(i)->name()] = FieldSchema(*type.field(i));
  schema["properties"] = properties;
  // Of each oneof at most one member: no two of them are there. The name alone stands for one with its defaults.
  Json pairs = Json::array();
  std::vector<std::string> choices;
  for (int i = 0; i < type.real_oneof_decl_count(); ++i) {
    const OneofDescriptor& oneof = *type.oneof_decl(i);
    for (int a = 0; a < oneof.field_count(); ++a) {
      if (oneof.field(a)->message_type() != nullptr) choices.push_back(oneof.field(a)->name());
      for (int b = a + 1; b < oneof.field_count(); ++b) {
        pairs.push_back({{"required", {oneof.field(a)->name(), oneof.field(b)->name()}}});
      }
    }
  }
  if (!pairs.empty()) schema["not"] = {{"anyOf", pairs}};
  if (!choices.empty()) {
    schema["type"].push_back("string");
    schema["pattern"] = absl::StrCat("^(", absl::StrJoin(choices, "|"), ")$");
  }
  return schema;
}

// Adds `type` and all messages below it to `definitions`, each once, in the order of the fields.
void AddDefinitions(const Descriptor& type, std::set<std::string>* done, Json* definitions) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    if (field->is_map()) field = field->message_type()->map_value();
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const std::string name = DefinitionName(*field->message_type());
    if (!done->insert(name).second) continue;
    (*definitions)[name] = MessageSchema(*field->message_type());
    AddDefinitions(*field->message_type(), done, definitions);
  }
}

}  // namespace

std::string JsonSchema(const Descriptor& root) {
  Json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"}, {"title", "Lodestone configuration"}};
  schema.update(MessageSchema(root));
  std::set<std::string> done;
  Json definitions = Json::object();
  AddDefinitions(root, &done, &definitions);
  schema["definitions"] = definitions;
  return schema.dump(2) + "\n";
}

}  // namespace lodestone::schema
