#include "tools/psctl/text/message_json.h"

#include "absl/strings/numbers.h"
#include "common/base/check.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/util/json_util.h"

namespace lodestone::psctl {
namespace {

using Json = nlohmann::ordered_json;
using google::protobuf::FieldDescriptor;

// Protobuf writes all 64-bit numbers as texts, and what is no number ("NaN", "Infinity").
void MakeNumber(const FieldDescriptor& field, Json* value) {
  if (!value->is_string()) return;
  uint64_t number = 0;
  if (field.type() == FieldDescriptor::TYPE_DOUBLE || field.type() == FieldDescriptor::TYPE_FLOAT) {
    *value = nullptr;
  } else if (field.type() == FieldDescriptor::TYPE_UINT64 && absl::SimpleAtoi(value->get<std::string>(), &number)) {
    *value = number;
  }
}

void MakeNumbers(const google::protobuf::Descriptor& message, Json* json) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    const auto found = json->find(field.name());
    if (found == json->end() || found->is_null() || field.is_map()) continue;
    const auto fix = [&field](Json* value) {
      MakeNumber(field, value);
      if (field.type() == FieldDescriptor::TYPE_MESSAGE) MakeNumbers(*field.message_type(), value);
    };
    if (!field.is_repeated()) {
      fix(&*found);
      continue;
    }
    for (Json& value : *found) fix(&value);
  }
}

}  // namespace

Json JsonOf(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions print;
  print.always_print_primitive_fields = true;
  print.preserve_proto_field_names = true;
  std::string text;
  LODESTONE_CHECK(google::protobuf::util::MessageToJsonString(message, &text, print).ok());
  Json json = Json::parse(text);
  MakeNumbers(*message.GetDescriptor(), &json);
  return json;
}

std::string IndentedJson(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::string JsonLine(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

}  // namespace lodestone::psctl
