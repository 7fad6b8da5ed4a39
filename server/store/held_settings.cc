#include "server/store/held_settings.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "google/protobuf/field_mask.pb.h"
#include "google/protobuf/util/field_mask_util.h"

namespace lodestone::server {
namespace {

using google::protobuf::FieldMask;
using google::protobuf::util::FieldMaskUtil;

// What may change while a table lives; the shape and what rows start from may not, and the model is the workers'.
constexpr const char* kSettable[] = {"optimizer",           "broadcast",          "memory_max_bytes", "guard",
                                     "embedding.admission", "embedding.eviction", "consistency"};

absl::Status CheckSettable(const std::string& path) {
  const bool known = std::any_of(std::begin(kSettable), std::end(kSettable), [&](const char* settable) {
    return path == settable || absl::StartsWith(path, absl::StrCat(settable, "."));
  });
  if (known && FieldMaskUtil::IsValidPath<v1::TableSpec>(path)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`", path, "` is nothing that can be set of a table that is there: ",
                                                 known ? "there is no such field in " : "set ",
                                                 absl::StrJoin(kSettable, ", "), known ? "" : ", or fields of these"));
}

template <typename Paths>
FieldMask MaskOf(const Paths& paths) {
  FieldMask mask;
  for (const std::string& path : paths) mask.add_paths(path);
  return mask;
}

// Whether all that a path goes through is there: a member of a oneof that another one has taken the place of is not.
bool LeadsSomewhere(const std::string& path, const v1::TableSpec& spec) {
  const google::protobuf::Message* at = &spec;
  for (const absl::string_view name : absl::StrSplit(path, '.')) {
    const google::protobuf::FieldDescriptor* const field = at->GetDescriptor()->FindFieldByName(std::string(name));
    if (field == nullptr) return false;
    if (field->real_containing_oneof() != nullptr && !at->GetReflection()->HasField(*at, field)) return false;
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE || field->is_repeated()) return true;
    at = &at->GetReflection()->GetMessage(*at, field);
  }
  return true;
}

void Copy(const FieldMask& fields, const v1::TableSpec& from, v1::TableSpec* to) {
  FieldMaskUtil::MergeOptions options;
  options.set_replace_message_fields(true);
  options.set_replace_repeated_fields(true);
  FieldMaskUtil::MergeMessageTo(from, fields, options, to);
}

}  // namespace

absl::StatusOr<v1::TableSpec> WithSettings(const v1::TableSpec& spec, const v1::SetTableRequest& request) {
  for (const std::string& path : request.fields()) LODESTONE_RETURN_IF_ERROR(CheckSettable(path));
  v1::TableSpec set = spec;
  for (const std::string& path : request.released()) {
    const auto held = std::find(set.held().begin(), set.held().end(), path);
    if (held == set.held().end()) {
      if (request.orders() > 0) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("`", path, "` of table `", spec.name(), "` is not held; ",
                       spec.held().empty() ? std::string("nothing is")
                                           : absl::StrCat("what is: ", absl::StrJoin(spec.held(), ", "))));
    }
    set.mutable_held()->erase(held);
  }
  if (request.fields().empty()) return set;
  const FieldMask fields = MaskOf(request.fields());
  Copy(fields, request.settings(), &set);
  FieldMask held;
  FieldMaskUtil::Union(MaskOf(set.held()), fields, &held);  // Sorted, and none within another.
  set.clear_held();
  for (const std::string& path : held.paths()) {
    if (LeadsSomewhere(path, set)) set.add_held(path);
  }
  return set;
}

void KeepHeld(const v1::TableSpec& existing, v1::TableSpec* spec) {
  *spec->mutable_held() = existing.held();
  if (!existing.held().empty()) Copy(MaskOf(existing.held()), existing, spec);
}

}  // namespace lodestone::server
