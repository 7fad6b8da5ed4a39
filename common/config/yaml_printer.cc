#include "common/config/yaml_printer.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/config/yaml_scalar.h"
#include "google/protobuf/descriptor.h"

namespace lodestone {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kIndent = 2;

// A string as a YAML scalar that any reader takes for the same string: without quotes only where nothing in it could
// mean anything else.
std::string StringText(const std::string& value) {
  const bool plain = !value.empty() && (absl::ascii_isalpha(value[0]) || value[0] == '/') &&
                     std::all_of(value.begin(), value.end(), [](char c) {
                       return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/';
                     });
  const std::string lower = absl::AsciiStrToLower(value);
  if (plain && !ParseBool(value) && lower != "null" && lower != "y" && lower != "n") return value;
  std::string text = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      absl::StrAppend(&text, "\\", std::string(1, c));
    } else if (c == '\n') {
      text += "\\n";
    } else if (c == '\t') {
      text += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppendFormat(&text, "\\x%02x", byte);
    } else {
      text += c;
    }
  }
  return text + "\"";
}

// One value of a field that is no message: element `index` if it is repeated.
std::string ValueText(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& reflection = *message.GetReflection();
  const bool repeated = field.is_repeated();
  const auto get = [&](auto single, auto element) {
    return repeated ? (reflection.*element)(message, &field, index) : (reflection.*single)(message, &field);
  };
  using R = Reflection;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(get(&R::GetInt32, &R::GetRepeatedInt32));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(get(&R::GetInt64, &R::GetRepeatedInt64));
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(get(&R::GetUInt32, &R::GetRepeatedUInt32));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(get(&R::GetUInt64, &R::GetRepeatedUInt64));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return ShortestText(get(&R::GetFloat, &R::GetRepeatedFloat));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return ShortestText(get(&R::GetDouble, &R::GetRepeatedDouble));
    case FieldDescriptor::CPPTYPE_BOOL:
      return get(&R::GetBool, &R::GetRepeatedBool) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return absl::AsciiStrToLower(get(&R::GetEnum, &R::GetRepeatedEnum)->name());
    case FieldDescriptor::CPPTYPE_STRING:
      return StringText(get(&R::GetString, &R::GetRepeatedString));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return "{}";
}

void PrintFields(const Message& message, int indent, std::string* out);

// "name:" and the message under it, or "name: {}". `name` may also be the "-" of a list's item.
void PrintMessage(const std::string& name, const Message& message, int indent, std::string* out) {
  std::string fields;
  PrintFields(message, indent + kIndent, &fields);
  absl::StrAppend(out, std::string(indent, ' '), name, fields.empty() ? " {}\n" : "\n", fields);
}

// The entries of a map, in the order of their keys' texts.
void PrintMap(const Message& message, const FieldDescriptor& field, int indent, std::string* out) {
  const Reflection& reflection = *message.GetReflection();
  const FieldDescriptor& key = *field.message_type()->map_key();
  const FieldDescriptor& value = *field.message_type()->map_value();
  std::vector<std::string> entries;
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
    const std::string name = absl::StrCat(ValueText(entry, key, 0), ":");
    std::string text;
    if (value.message_type() != nullptr) {
      PrintMessage(name, entry.GetReflection()->GetMessage(entry, &value), indent + kIndent, &text);
    } else {
      text = absl::StrCat(std::string(indent + kIndent, ' '), name, " ", ValueText(entry, value, 0), "\n");
    }
    entries.push_back(std::move(text));
  }
  std::sort(entries.begin(), entries.end());
  absl::StrAppend(out, std::string(indent, ' '), field.name(), ":\n", absl::StrJoin(entries, ""));
}

void PrintRepeated(const Message& message, const FieldDescriptor& field, int indent, std::string* out) {
  const Reflection& reflection = *message.GetReflection();
  const int size = reflection.FieldSize(message, &field);
  if (field.message_type() != nullptr) {
    absl::StrAppend(out, std::string(indent, ' '), field.name(), ":\n");
    for (int i = 0; i < size; ++i) {
      PrintMessage("-", reflection.GetRepeatedMessage(message, &field, i), indent + kIndent, out);
    }
    return;
  }
  std::vector<std::string> values;
  for (int i = 0; i < size; ++i) values.push_back(ValueText(message, field, i));
  absl::StrAppend(out, std::string(indent, ' '), field.name(), ": [", absl::StrJoin(values, ", "), "]\n");
}

void PrintFields(const Message& message, int indent, std::string* out) {
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    if (field.is_repeated()) {
      if (reflection.FieldSize(message, &field) == 0) continue;
      field.is_map() ? PrintMap(message, field, indent, out) : PrintRepeated(message, field, indent, out);
      continue;
    }
    const bool set = reflection.HasField(message, &field);
    if (field.message_type() != nullptr) {
      if (set) PrintMessage(field.name() + ":", reflection.GetMessage(message, &field), indent, out);
    } else if (set || (field.has_default_value() && field.real_containing_oneof() == nullptr)) {
      absl::StrAppend(out, std::string(indent, ' '), field.name(), ": ", ValueText(message, field, 0),
                      set ? "\n" : "  # default\n");
    }
  }
}

}  // namespace

std::string PrintYaml(const Message& message) {
  std::string out;
  PrintFields(message, 0, &out);
  return out.empty() ? "{}\n" : out;
}

}  // namespace lodestone
