#include "common/config/field_range.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/yaml_scalar.h"

namespace lodestone {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// A bound as a person would write it: 3600000, not 3.6e+06.
std::string BoundText(double bound) {
  const bool whole = std::abs(bound) < 1e15 && std::floor(bound) == bound;
  return whole ? absl::StrCat(static_cast<int64_t>(bound)) : ShortestText(bound);
}

template <typename Float>
void CheckFloat(const FieldDescriptor& field, Float value, const std::string& path,
                std::vector<ConfigProblem>* problems) {
  if (!std::isfinite(value)) {
    problems->push_back({path, absl::StrCat(value, " is not a finite number")});
  } else if (!WithinRange(field, value)) {
    problems->push_back({path, absl::StrCat(ShortestText(value), " is out of range", BoundsText(field, "", ""))});
  }
}

template <typename Int>
void CheckInteger(const FieldDescriptor& field, Int value, const std::string& path,
                  std::vector<ConfigProblem>* problems) {
  if (WithinRange(field, static_cast<double>(value))) return;
  problems->push_back({path, absl::StrCat(value, " is out of range", BoundsText(field, "", ""))});
}

// Checks a value of `field`: the only one, or number `index` of a repeated one.
void CheckValue(const Message& message, const FieldDescriptor& field, int index, const std::string& path,
                std::vector<ConfigProblem>* problems) {
  const Reflection& of = *message.GetReflection();
  const bool many = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return CheckInteger(field, many ? of.GetRepeatedInt32(message, &field, index) : of.GetInt32(message, &field),
                          path, problems);
    case FieldDescriptor::CPPTYPE_INT64:
      return CheckInteger(field, many ? of.GetRepeatedInt64(message, &field, index) : of.GetInt64(message, &field),
                          path, problems);
    case FieldDescriptor::CPPTYPE_UINT32:
      return CheckInteger(field, many ? of.GetRepeatedUInt32(message, &field, index) : of.GetUInt32(message, &field),
                          path, problems);
    case FieldDescriptor::CPPTYPE_UINT64:
      return CheckInteger(field, many ? of.GetRepeatedUInt64(message, &field, index) : of.GetUInt64(message, &field),
                          path, problems);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return CheckFloat(field, many ? of.GetRepeatedFloat(message, &field, index) : of.GetFloat(message, &field), path,
                        problems);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return CheckFloat(field, many ? of.GetRepeatedDouble(message, &field, index) : of.GetDouble(message, &field),
                        path, problems);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return CheckRanges(many ? of.GetRepeatedMessage(message, &field, index) : of.GetMessage(message, &field), path,
                         problems);
    case FieldDescriptor::CPPTYPE_BOOL:
    case FieldDescriptor::CPPTYPE_ENUM:
    case FieldDescriptor::CPPTYPE_STRING:
      return;
  }
}

}  // namespace

std::string BoundsText(const FieldDescriptor& field, const std::string& type_min, const std::string& type_max) {
  const v1::Range& range = field.options().GetExtension(v1::range);
  const std::string min = range.has_min() ? BoundText(range.min()) : type_min;
  const std::string max = range.has_max() ? BoundText(range.max()) : type_max;
  const bool open = range.has_above() || range.has_below();
  if (!open && !min.empty() && !max.empty()) return absl::StrCat(": must be ", min, " to ", max);
  std::vector<std::string> bounds;
  if (range.has_above()) {
    bounds.push_back(absl::StrCat("above ", BoundText(range.above())));
  } else if (!min.empty()) {
    bounds.push_back(absl::StrCat("at least ", min));
  }
  if (range.has_below()) {
    bounds.push_back(absl::StrCat("below ", BoundText(range.below())));
  } else if (!max.empty()) {
    bounds.push_back(absl::StrCat("at most ", max));
  }
  return bounds.empty() ? "" : absl::StrCat(": must be ", absl::StrJoin(bounds, " and "));
}

void CheckRanges(const Message& message, const std::string& path, std::vector<ConfigProblem>* problems) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* const field : fields) {
    const std::string below = path.empty() ? field->name() : absl::StrCat(path, ".", field->name());
    if (!field->is_repeated()) {
      CheckValue(message, *field, 0, below, problems);
      continue;
    }
    const int count = message.GetReflection()->FieldSize(message, field);
    for (int i = 0; i < count; ++i) CheckValue(message, *field, i, absl::StrCat(below, "[", i, "]"), problems);
  }
}

}  // namespace lodestone
