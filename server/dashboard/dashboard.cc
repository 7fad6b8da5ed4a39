#include "server/dashboard/dashboard.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "google/protobuf/util/json_util.h"
#include "server/dashboard/dashboard_html.h"

namespace lodestone::server {
namespace {

constexpr char kAfterId[] = "after_id";

HttpResponse Refuse(int code, absl::string_view why) {
  HttpResponse response;
  response.code = code;
  response.body = absl::StrCat("HTTP ", code, ": ", why, "\n");
  return response;
}

HttpResponse AsJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  HttpResponse response;
  response.content_type = "application/json";
  const auto printed = google::protobuf::util::MessageToJsonString(message, &response.body, options);
  if (!printed.ok()) return Refuse(500, printed.ToString());
  return response;
}

// What the page shows: it is asked for again and again, and the loads of thousands of shards are no part of it.
v1::StatusResponse WithoutShardLoads(v1::StatusResponse status) {
  status.clear_shards();
  return status;
}

// That the query has no parameter but `known`, which may be empty.
absl::Status CheckParameters(const HttpRequest& request, absl::string_view known) {
  for (const auto& parameter : request.parameters) {
    if (parameter.first == known && !known.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(request.path, " takes ", known.empty() ? "no parameters" : known,
                                                   ", not \"", parameter.first, "\""));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::EventsRequest> ParseEventsRequest(const HttpRequest& request) {
  LODESTONE_RETURN_IF_ERROR(CheckParameters(request, kAfterId));
  v1::EventsRequest parsed;
  const auto after_id = request.parameters.find(kAfterId);
  if (after_id == request.parameters.end()) return parsed;
  uint64_t id = 0;
  if (!absl::SimpleAtoi(after_id->second, &id)) {
    return absl::InvalidArgumentError(
        absl::StrCat(kAfterId, ": \"", after_id->second, "\" is no whole number from 0 to ", UINT64_MAX));
  }
  parsed.set_after_id(id);
  return parsed;
}

HttpResponse ServePage(const HttpRequest&) {
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.body.assign(kPageHtml.data(), kPageHtml.size());
  return response;
}

}  // namespace

std::map<std::string, HttpServer::Handler> PageHandlers(PageSources sources) {
  const auto from = std::make_shared<const PageSources>(std::move(sources));
  return {
      {"/", ServePage},
      {"/api/status",
       [from](const HttpRequest& request) {
         const absl::Status checked = CheckParameters(request, "");
         return checked.ok() ? AsJson(WithoutShardLoads(from->status())) : Refuse(400, checked.message());
       }},
      {"/api/events",
       [from](const HttpRequest& request) {
         const absl::StatusOr<v1::EventsRequest> parsed = ParseEventsRequest(request);
         return parsed.ok() ? AsJson(from->events(*parsed)) : Refuse(400, parsed.status().message());
       }},
      {"/api/history",
       [from](const HttpRequest& request) {
         const absl::Status checked = CheckParameters(request, "");
         return checked.ok() ? AsJson(from->history()) : Refuse(400, checked.message());
       }},
  };
}

}  // namespace lodestone::server
