// The page that a ps serves, and what it is drawn from: what Admin.Status (but for the loads of its shards, one by
// one), Events and History answer, as JSON. Any other program may read that too.
//
// Thread-safe, if the functions of PageSources are.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "common/http/http_server.h"
#include "proto/admin.pb.h"

namespace lodestone::server {

// Where the page's data comes from. Called on any thread, several at a time; must stay valid as long as the handlers
// are.
struct PageSources {
  std::function<v1::StatusResponse()> status;
  std::function<v1::EventsResponse(const v1::EventsRequest&)> events;
  std::function<v1::HistoryResponse()> history;
};

// What serves "/" (the page) and "/api/status", "/api/events?after_id=N", "/api/history" (JSON with the names of the
// .proto fields, and every field of a message that is there). A parameter that is not known or has no such value is
// answered with 400 and a line that names it. Who may ask is for the caller to decide; the page itself holds nothing
// that is worth hiding, and asks for a token when "/api/..." answers with 401 or 403.
std::map<std::string, HttpServer::Handler> PageHandlers(PageSources sources);

}  // namespace lodestone::server
