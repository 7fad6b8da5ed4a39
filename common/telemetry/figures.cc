#include "common/telemetry/figures.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"

namespace lodestone {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Labels and hints are plain text of our own protos.
std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

}  // namespace

uint64_t Figure::Of(const Message& status) const { return status.GetReflection()->GetUInt64(status, field); }

uint64_t Figure::LimitOf(const Message& status) const {
  return limit == nullptr ? 0 : status.GetReflection()->GetUInt64(status, limit);
}

std::vector<Figure> FiguresOf(const Descriptor& type) {
  std::vector<Figure> figures;
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (!field.options().HasExtension(v1::figure)) continue;
    LODESTONE_CHECK(field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64 && !field.is_repeated());
    const v1::Figure& options = field.options().GetExtension(v1::figure);
    figures.push_back({&field, &options, options.limit().empty() ? nullptr : type.FindFieldByName(options.limit())});
  }
  return figures;
}

void SetFigure(const std::string& name, uint64_t value, Message* status) {
  const FieldDescriptor* const field = status->GetDescriptor()->FindFieldByName(name);
  LODESTONE_CHECK(field != nullptr);
  status->GetReflection()->SetUInt64(status, field, value);
}

void MergeFigures(const Message& from, Message* to) {
  for (const Figure& figure : FiguresOf(*from.GetDescriptor())) {
    const uint64_t a = figure.Of(*to), b = figure.Of(from);
    const bool sum = figure.options->merge() == v1::Figure::SUM;
    to->GetReflection()->SetUInt64(to, figure.field, sum ? a + b : std::max(a, b));
  }
}

std::string FiguresJson(const Descriptor& type) {
  std::vector<std::string> objects;
  for (const Figure& figure : FiguresOf(type)) {
    const v1::Figure& options = *figure.options;
    if (options.label().empty()) continue;
    objects.push_back(absl::StrCat("{\"field\": ", Quoted(figure.field->name()),
                                   ", \"label\": ", Quoted(options.label()), ", \"hint\": ", Quoted(options.hint()),
                                   ", \"bytes\": ", options.unit() == v1::Figure::BYTES ? "true" : "false",
                                   ", \"limit\": ", Quoted(options.limit()), "}"));
  }
  return absl::StrCat("[", absl::StrJoin(objects, ", "), "]");
}

}  // namespace lodestone
