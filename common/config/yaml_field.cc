#include "common/config/yaml_field.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/utf8.h"
#include "common/config/field_range.h"
#include "common/config/suggest.h"
#include "common/config/yaml_scalar.h"

namespace lodestone {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using google::protobuf::Reflection;

constexpr size_t kNamesListedMax = 16;
constexpr int kSchemaDepthMax = 8;

std::string WrongType(const YamlNode& node, std::string_view expected) {
  return absl::StrCat("expected ", std::string(expected), ", got the string ", Quote(node.text));
}

// By the unit in the field's name.
Units UnitsOf(const FieldDescriptor& field) {
  const std::string name = "_" + field.name();
  if (name.find("_bytes") != std::string::npos) return Units::kBytes;
  return field.name().ends_with("_ms") ? Units::kMilliseconds : Units::kNone;
}

// A whole number within [Int's limits] and the field's range.
template <typename Int>
std::string ReadInteger(const YamlNode& node, const FieldDescriptor& field, Int* value) {
  if (node.quoted) return WrongType(node, "a whole number");
  const absl::StatusOr<Integer> integer = ParseInteger(node.text, UnitsOf(field));
  constexpr Int kMin = std::numeric_limits<Int>::min();
  constexpr Int kMax = std::numeric_limits<Int>::max();
  const std::string bounds = BoundsText(field, absl::StrCat(kMin), absl::StrCat(kMax));
  if (!integer.ok()) {
    const std::string message(integer.status().message());
    return absl::IsOutOfRange(integer.status()) ? message + bounds : message;
  }
  const uint64_t limit =
      integer->negative ? static_cast<uint64_t>(0) - static_cast<uint64_t>(kMin) : static_cast<uint64_t>(kMax);
  const double approximate = static_cast<double>(integer->magnitude) * (integer->negative ? -1 : 1);
  if (integer->magnitude > limit || !WithinRange(field, approximate)) {
    return absl::StrCat(Quote(node.text), " is out of range", bounds);
  }
  *value = static_cast<Int>(integer->negative ? static_cast<uint64_t>(0) - integer->magnitude : integer->magnitude);
  return "";
}

template <typename Float>
std::string ReadFloat(const YamlNode& node, const FieldDescriptor& field, Float* value) {
  if (node.quoted) return WrongType(node, "a number");
  const absl::StatusOr<double> number = ParseNumber(node.text);
  if (!number.ok()) return std::string(number.status().message());
  *value = static_cast<Float>(*number);  // Rounds to nearest: what is within half a step of the largest is that.
  if (!std::isfinite(*value)) return absl::StrCat(Quote(node.text), " is too large for a float");
  if (*number != 0 && *value == 0) return absl::StrCat(Quote(node.text), " is too small for a float: it would be 0");
  if (WithinRange(field, *value)) return "";
  return absl::StrCat(Quote(node.text), " is out of range", BoundsText(field, "", ""));
}

std::string ReadBool(const YamlNode& node, bool* value) {
  const std::optional<bool> parsed = node.quoted ? std::nullopt : ParseBool(node.text);
  if (!parsed) return absl::StrCat("expected true or false, got ", Quote(node.text));
  *value = *parsed;
  return "";
}

std::string ReadEnum(const YamlNode& node, const FieldDescriptor& field, const EnumValueDescriptor** value) {
  const std::string name = absl::AsciiStrToUpper(node.text);
  *value = field.enum_type()->FindValueByName(name);
  // Among other values there may be yes and no, which tools that write YAML make true and false.
  const std::optional<bool> flag = node.quoted ? std::nullopt : ParseBool(node.text);
  if (*value == nullptr && flag.has_value()) *value = field.enum_type()->FindValueByName(*flag ? "YES" : "NO");
  if (*value != nullptr) return "";
  return absl::StrCat("unknown value ", Quote(node.text), Suggestion(node.text, NamesOf(*field.enum_type())));
}

template <typename T>
using Setter = void (Reflection::*)(Message*, const FieldDescriptor*, T) const;

// Sets or appends `value` if `error` is empty; returns it.
template <typename T>
std::string Store(std::string error, T value, Setter<T> set, Setter<T> add, const FieldDescriptor& field,
                  Message* message) {
  if (!error.empty()) return error;
  const Reflection& reflection = *message->GetReflection();
  (reflection.*(field.is_repeated() ? add : set))(message, &field, std::move(value));
  return "";
}

}  // namespace

std::string ReadScalarField(const YamlNode& node, const FieldDescriptor& field, Message* message) {
  using R = Reflection;
  const auto number = [&]<typename T>(T value, Setter<T> set, Setter<T> add) {
    std::string error;
    if constexpr (std::is_floating_point_v<T>) {
      error = ReadFloat(node, field, &value);
    } else {
      error = ReadInteger(node, field, &value);
    }
    return Store<T>(std::move(error), value, set, add, field, message);
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return number(int32_t{0}, &R::SetInt32, &R::AddInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return number(int64_t{0}, &R::SetInt64, &R::AddInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return number(uint32_t{0}, &R::SetUInt32, &R::AddUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return number(uint64_t{0}, &R::SetUInt64, &R::AddUInt64);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return number(float{0}, &R::SetFloat, &R::AddFloat);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return number(double{0}, &R::SetDouble, &R::AddDouble);
    case FieldDescriptor::CPPTYPE_BOOL: {
      bool value = false;
      std::string error = ReadBool(node, &value);
      return Store<bool>(std::move(error), value, &R::SetBool, &R::AddBool, field, message);
    }
    case FieldDescriptor::CPPTYPE_ENUM: {
      const EnumValueDescriptor* value = nullptr;
      std::string error = ReadEnum(node, field, &value);
      return Store<const EnumValueDescriptor*>(std::move(error), value, &R::SetEnum, &R::AddEnum, field, message);
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      std::string error = IsUtf8(node.text) ? "" : absl::StrCat(Quote(node.text), " is not UTF-8");
      return Store<std::string>(std::move(error), node.text, &R::SetString, &R::AddString, field, message);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return "expected a mapping";
}

std::vector<std::string> NamesOf(const Descriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
  return names;
}

std::vector<std::string> NamesOf(const OneofDescriptor& oneof) {
  std::vector<std::string> names;
  for (int i = 0; i < oneof.field_count(); ++i) names.push_back(oneof.field(i)->name());
  return names;
}

std::vector<std::string> NamesOf(const EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) names.push_back(absl::AsciiStrToLower(type.value(i)->name()));
  return names;
}

namespace {

std::string FindBelowAtDepth(const Descriptor& type, const std::string& name, int depth) {
  if (type.FindFieldByName(name) != nullptr) return name;
  for (int i = 0; i < type.field_count() && depth < kSchemaDepthMax; ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field.is_map()) continue;
    const std::string below = FindBelowAtDepth(*field.message_type(), name, depth + 1);
    if (!below.empty()) return absl::StrCat(field.name(), ".", below);
  }
  return "";
}

}  // namespace

std::string FindBelow(const Descriptor& type, const std::string& name) { return FindBelowAtDepth(type, name, 0); }

std::string Suggestion(const std::string& name, const std::vector<std::string>& valid) {
  const std::string nearest = Nearest(name, valid);
  if (!nearest.empty()) return absl::StrCat(" (did you mean `", nearest, "`?)");
  const auto end = valid.begin() + static_cast<ptrdiff_t>(std::min(valid.size(), kNamesListedMax));
  return valid.empty() ? ""
                       : absl::StrCat(" (one of: ", absl::StrJoin(valid.begin(), end, ", "),
                                      valid.size() > kNamesListedMax ? ", ...)" : ")");
}

}  // namespace lodestone
