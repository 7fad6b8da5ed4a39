#include "tests/chaos/history.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

namespace lodestone::chaos {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kInjector[] = "injector";

Json EndOf(int64_t end_ns) { return end_ns == kNeverNs ? Json(nullptr) : Json(end_ns); }
int64_t EndFrom(const Json& json) { return json.at("end").is_null() ? kNeverNs : json.at("end").get<int64_t>(); }

Operation OperationFrom(const Json& json) {
  Operation operation;
  operation.client = json.at("client").get<uint64_t>();
  const auto& call = json.at("call").get_ref<const std::string&>();
  if (call != "add" && call != "read") throw std::invalid_argument("the call is '" + call + "', not add or read");
  operation.call = call == "add" ? Operation::Call::kAdd : Operation::Call::kRead;
  const Json& arguments = json.at("arguments");
  operation.row = arguments.at("row").get<uint64_t>();
  operation.shard = arguments.at("shard").get<ShardId>();
  operation.start_ns = json.at("start").get<int64_t>();
  operation.end_ns = EndFrom(json);
  if (operation.call == Operation::Call::kAdd) {
    operation.value = arguments.at("value").get<int64_t>();
  } else if (operation.answered()) {
    const Json& result = json.at("result");
    operation.value = result.at("value").get<int64_t>();
    operation.twin = result.at("twin").get<int64_t>();
    operation.version = result.at("version").get<Version>();
  }
  return operation;
}

FaultMark FaultFrom(const Json& json) {
  const Json& arguments = json.at("arguments");
  return {arguments.at("what").get<std::string>(), arguments.at("kills").get<bool>(), json.at("start").get<int64_t>(),
          EndFrom(json)};
}

// An event of Knossos, and its place in time: what ends as another begins is concurrent with it.
struct Event {
  int64_t ns = 0;
  bool end = false;
  std::string text;
};

}  // namespace

std::string ToJson(const Operation& operation) {
  const bool adds = operation.call == Operation::Call::kAdd;
  Json json;
  json["client"] = operation.client;
  json["call"] = adds ? "add" : "read";
  json["arguments"] = {{"row", operation.row}, {"shard", operation.shard}};
  if (adds) json["arguments"]["value"] = operation.value;
  json["start"] = operation.start_ns;
  json["end"] = EndOf(operation.end_ns);
  if (!operation.answered()) {
    json["result"] = nullptr;
  } else if (adds) {
    json["result"] = "ok";
  } else {
    json["result"] = {{"value", operation.value}, {"twin", operation.twin}, {"version", operation.version}};
  }
  return json.dump();
}

std::string ToJson(const FaultMark& fault) {
  Json json;
  json["client"] = kInjector;
  json["call"] = "fault";
  json["arguments"] = {{"what", fault.what}, {"kills", fault.kills}};
  json["start"] = fault.start_ns;
  json["end"] = EndOf(fault.end_ns);
  json["result"] = fault.end_ns == kNeverNs ? Json(nullptr) : Json("ok");
  return json.dump();
}

std::string ToJsonLines(const History& history) {
  std::string lines;
  for (const FaultMark& fault : history.faults) absl::StrAppend(&lines, ToJson(fault), "\n");
  for (const Operation& operation : history.operations) absl::StrAppend(&lines, ToJson(operation), "\n");
  return lines;
}

absl::StatusOr<History> ParseHistory(absl::string_view lines) {
  History history;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
    ++number;
    if (line.empty()) continue;
    try {
      const Json json = Json::parse(line);
      if (json.at("client") == kInjector) {
        history.faults.push_back(FaultFrom(json));
      } else {
        history.operations.push_back(OperationFrom(json));
      }
    } catch (const std::exception& error) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", error.what()));
    }
  }
  return history;
}

std::string ToEdn(const History& history, uint64_t row) {
  std::vector<Event> events;
  const auto add = [&events](int64_t ns, const Operation& operation, const char* type, const std::string& value) {
    const char* const f = operation.call == Operation::Call::kAdd ? ":add" : ":read";
    events.push_back({ns, ns != operation.start_ns,
                      absl::StrCat("{:process ", operation.client, " :type ", type, " :f ", f, " :value ", value,
                                   " :time ", ns, "}")});
  };
  int64_t last_ns = 0;
  for (const Operation& operation : history.operations) {
    last_ns = std::max({last_ns, operation.start_ns, operation.answered() ? operation.end_ns : 0});
  }
  for (const Operation& operation : history.operations) {
    if (operation.row != row) continue;
    const bool adds = operation.call == Operation::Call::kAdd;
    if (!adds && !operation.answered()) continue;  // It says nothing.
    const std::string value = absl::StrCat(operation.value);
    add(operation.start_ns, operation, ":invoke", adds ? value : "nil");
    if (operation.answered()) {
      add(operation.end_ns, operation, ":ok", value);
    } else {
      add(last_ns + 1, operation, ":info", value);
    }
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const Event& a, const Event& b) { return std::tie(a.ns, a.end) < std::tie(b.ns, b.end); });
  std::string text;
  for (const Event& event : events) absl::StrAppend(&text, event.text, "\n");
  return text;
}

}  // namespace lodestone::chaos
