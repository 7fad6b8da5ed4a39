// Serves the page of a made-up cluster, which a test changes, as a ps would.
//
// Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/http/http_server.h"
#include "server/dashboard/dashboard.h"
#include "tests/common/rpc/reserved_port.h"
#include "tests/server/dashboard/page_cases.h"

namespace lodestone::server {

class PageServer {
 public:
  PageServer() {
    Handlers pages = PageHandlers({
        [this] { return page().status; },
        [this](const v1::EventsRequest& request) { return EventsAfter(request.after_id()); },
        [this] { return page().history; },
    });
    for (auto& [path, handler] : pages) {
      paths_[path] = [this, handler = std::move(handler)](const HttpRequest& request) {
        return Guard(request, handler);
      };
    }
    Listen();
  }

  std::string url() const { return "http://" + port_.address() + "/"; }

  // Nothing answers any more.
  void Close() { server_ = nullptr; }
  // At the same address as before.
  void Listen() {
    auto server = HttpServer::Start(port_.address(), paths_);
    LODESTONE_CHECK(server.ok());
    server_ = *std::move(server);
  }

  void Set(PageCase page) {
    MutexLock lock(&mu_);
    page_ = std::move(page);
  }
  template <typename Change>
  void Update(Change change) {
    MutexLock lock(&mu_);
    change(&page_);
  }
  // From now on /api asks for it; another token is answered with `code`. Empty: everybody may ask.
  void RequireToken(const std::string& token, int code = 401) {
    MutexLock lock(&mu_);
    token_ = token;
    code_ = code;
  }
  // Requests of /api since the start.
  int requests() const {
    MutexLock lock(&mu_);
    return requests_;
  }

 private:
  using Handlers = std::map<std::string, HttpServer::Handler>;

  PageCase page() const {
    MutexLock lock(&mu_);
    return page_;
  }
  v1::EventsResponse EventsAfter(uint64_t id) const {
    MutexLock lock(&mu_);
    v1::EventsResponse response;
    response.set_incarnation(page_.events.incarnation());
    for (const v1::Event& event : page_.events.events()) {
      if (event.id() > id) *response.add_events() = event;
    }
    return response;
  }
  HttpResponse Guard(const HttpRequest& request, const HttpServer::Handler& handler) {
    if (request.path != "/") {
      MutexLock lock(&mu_);
      ++requests_;
      if (!token_.empty() && request.token != token_) {
        HttpResponse refused;
        refused.code = request.token.empty() ? 401 : code_;
        refused.body = "HTTP: <b>a token is needed</b>\n";
        return refused;
      }
    }
    return handler(request);
  }

  const ReservedPort port_;
  Handlers paths_;
  mutable Mutex mu_;
  PageCase page_ ABSL_GUARDED_BY(mu_);
  std::string token_ ABSL_GUARDED_BY(mu_);
  int code_ ABSL_GUARDED_BY(mu_) = 401;
  int requests_ ABSL_GUARDED_BY(mu_) = 0;

  std::unique_ptr<HttpServer> server_;  // Last: its threads use everything above.
};

}  // namespace lodestone::server
