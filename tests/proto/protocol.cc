#include "tests/proto/protocol.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/descriptor.h"
#include "proto/admin.pb.h"
#include "proto/checkpoint.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/coordinator_state.pb.h"
#include "proto/log.pb.h"
#include "proto/parameter_server.pb.h"
#include "proto/replication.pb.h"
#include "proto/table.pb.h"

namespace lodestone {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

void AddReserved(const std::string& of, int first, int last, std::vector<std::string>* lines) {
  for (int number = first; number <= last; ++number) lines->push_back(absl::StrCat("reserved ", of, " ", number));
}

void AddEnum(const EnumDescriptor& type, std::vector<std::string>* lines) {
  for (int i = 0; i < type.value_count(); ++i) {
    lines->push_back(
        absl::StrCat("value ", type.full_name(), ".", type.value(i)->name(), " = ", type.value(i)->number()));
  }
  for (int i = 0; i < type.reserved_range_count(); ++i) {
    AddReserved(type.full_name(), type.reserved_range(i)->start, type.reserved_range(i)->end, lines);
  }
}

std::string TypeOf(const FieldDescriptor& field) {
  const std::string name = field.type() == FieldDescriptor::TYPE_MESSAGE ? field.message_type()->full_name()
                           : field.type() == FieldDescriptor::TYPE_ENUM  ? field.enum_type()->full_name()
                                                                         : field.type_name();
  return absl::StrCat(field.is_repeated() ? "repeated " : "", name);
}

void AddMessage(const Descriptor& type, std::vector<std::string>* lines) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    lines->push_back(absl::StrCat("field ", field.full_name(), " = ", field.number(), ": ", TypeOf(field)));
  }
  for (int i = 0; i < type.reserved_range_count(); ++i) {
    AddReserved(type.full_name(), type.reserved_range(i)->start, type.reserved_range(i)->end - 1, lines);
  }
  for (int i = 0; i < type.enum_type_count(); ++i) AddEnum(*type.enum_type(i), lines);
  for (int i = 0; i < type.nested_type_count(); ++i) AddMessage(*type.nested_type(i), lines);
}

void AddService(const ServiceDescriptor& service, std::vector<std::string>* lines) {
  for (int i = 0; i < service.method_count(); ++i) {
    const MethodDescriptor& method = *service.method(i);
    lines->push_back(absl::StrCat("method ", method.full_name(), ": ", method.client_streaming() ? "stream " : "",
                                  method.input_type()->full_name(), " -> ", method.server_streaming() ? "stream " : "",
                                  method.output_type()->full_name()));
  }
}

// The number of a field or value by its line, and what it belongs to: "lodestone.v1.Part 1".
std::string PlaceOf(const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" :"), absl::SkipEmpty());
  if (words.size() < 4 || (words[0] != "field" && words[0] != "value")) return "";
  return absl::StrCat(words[1].substr(0, words[1].rfind('.')), " ", words[3]);
}

}  // namespace

std::vector<std::string> ProtocolLines() {
  std::vector<std::string> lines;
  for (const FileDescriptor* file : {v1::StatusResponse::descriptor()->file(), v1::RowsTable::descriptor()->file(),
                                     v1::JoinRequest::descriptor()->file(), v1::CoordinatorState::descriptor()->file(),
                                     v1::LogRecord::descriptor()->file(), v1::PushRequest::descriptor()->file(),
                                     v1::FollowRequest::descriptor()->file(), v1::TableSpec::descriptor()->file()}) {
    for (int i = 0; i < file->message_type_count(); ++i) AddMessage(*file->message_type(i), &lines);
    for (int i = 0; i < file->enum_type_count(); ++i) AddEnum(*file->enum_type(i), &lines);
    for (int i = 0; i < file->service_count(); ++i) AddService(*file->service(i), &lines);
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::vector<std::string> BrokenBy(const std::vector<std::string>& former, const std::vector<std::string>& current) {
  const std::set<std::string> present(current.begin(), current.end());
  std::vector<std::string> broken;
  for (const std::string& line : former) {
    if (present.count(line) > 0) continue;
    const std::string place = PlaceOf(line);
    if (!place.empty() && present.count(absl::StrCat("reserved ", place)) > 0) continue;
    broken.push_back(line);
  }
  return broken;
}

}  // namespace lodestone
