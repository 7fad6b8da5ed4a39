// The HTTP port of a process, for metrics, probes and the page: a few paths that are read with GET or HEAD.
//
// Requests are answered on threads of its own, limits::kHttpThreads at a time. Whoever is slow to send a request or to
// take an answer holds none of them, and is cut off after limits::kHttpTimeoutMs; when there are too many of them, or
// too much that they do not take, then those who have had most of that time. Whatever is asked of other paths or with
// other methods is answered with 404 or 405 and a line that says so; an answer never depends on what the process's bulk
// data path does.
//
// Thread-safe. Handlers must stay valid until Stop, or the destructor, has returned.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/limits.h"
#include "common/security/certificates.h"

namespace lodestone {

// What is asked.
struct HttpRequest {
  std::string path;
  std::map<std::string, std::string> parameters;  // Of the query, decoded; of several with one name the first.
  std::string token;                              // Of "Authorization: Bearer TOKEN"; empty if there is none.
  std::string peer;                               // Where it comes from, host:port.
  bool has_certificate = false;                   // A certificate was shown, and the authorities vouch for it.
  std::vector<std::string> certificate_names;     // Its common name and DNS names.
};

// What is answered.
struct HttpResponse {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

class HttpServer {
 public:
  // Called on any thread, several at a time. Must not throw, and must not stop the server.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;
  using Paths = std::map<std::string, Handler>;

  // Who may ask, and how.
  struct Security {
    // Served by TLS with the newest of these, which must have a certificate; null: without TLS.
    std::shared_ptr<CertificateFiles> certificates;
    // Whether clients are asked for a certificate. None is better than one that the authorities do not vouch for.
    bool asks_clients = false;
    // Judges requests of all paths, there or not, but for those of `open`: UNAUTHENTICATED becomes 401, anything else
    // 403. Null: all are answered. Called as a Handler is.
    std::function<absl::Status(const HttpRequest&)> check = nullptr;
    // What everybody may see: probes carry no token, and the page is there to ask for one.
    std::set<std::string> open = {"/", "/healthz", "/readyz"};
  };

  // Binds `listen`, host:port (port 0: a free one), and answers. `paths`: what serves each path, "/metrics" say.
  // INVALID_ARGUMENT if `listen` is no address; UNAVAILABLE "cannot listen on ..." if it cannot be bound.
  // `timeout`: for a request to arrive, and for an answer to be taken.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const std::string& listen, Paths paths, Security security,
      std::chrono::milliseconds timeout = std::chrono::milliseconds(limits::kHttpTimeoutMs));
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& listen, Paths paths);
  // Stops if Stop was not called.
  ~HttpServer();

  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // The port that it is bound to.
  uint16_t port() const;

  // Takes no new requests, takes those that have not arrived whole for over, and returns when all are answered or too
  // late. Only the first call counts.
  void Stop();

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lodestone
