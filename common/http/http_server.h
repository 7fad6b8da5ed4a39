// The HTTP port of a process, for metrics, probes and the page: a few paths that are read with GET or HEAD, and some
// that take a body with POST.
//
// libmicrohttpd receives requests and sends answers on one thread; handlers run on limits::kHttpThreads others. Slow
// clients occupy no thread and are disconnected after limits::kHttpTimeoutMs. When connections or unsent bytes exceed
// their limits, the oldest connections are closed first. Unknown paths and other methods are answered with 404 or 405
// and a line of explanation. Each connection serves one request.
//
// Thread-safe. Handlers must stay valid until Stop, or the destructor, has returned.
#pragma once

#include <chrono>
#include <cstddef>
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

// A request.
struct HttpRequest {
  std::string path;
  std::map<std::string, std::string> parameters;  // Of the query, decoded; of several with one name the first.
  std::string token;                              // Of "Authorization: Bearer TOKEN"; empty if there is none.
  std::string peer;                               // The client's address, host:port.
  bool has_certificate = false;                   // The client showed a certificate that the authorities vouch for.
  std::vector<std::string> certificate_names;     // Its common name and DNS names.
  std::string body;                               // Of a POST.
};

// Its answer.
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

  // Paths that are asked with POST, and with nothing else.
  struct Posts {
    Paths paths;
    size_t body_bytes_max = 0;  // A longer body is answered with 413, and not kept; 503 if there are many long ones.
  };

  // TLS and authorization of a port.
  struct Security {
    // Served by TLS with the newest of these, which must have a certificate; null: without TLS.
    std::shared_ptr<CertificateFiles> certificates;
    // Whether clients are asked for a certificate. None is better than one that the authorities do not vouch for.
    bool asks_clients = false;
    // Judges requests of all paths, there or not, but for those of `open`: UNAUTHENTICATED becomes 401, anything else
    // 403. Null: all are answered. Called as a Handler is, and before the body of a POST comes: must be quick.
    std::function<absl::Status(const HttpRequest&)> check = nullptr;
    // Paths that need no authorization: probes carry no token, and the page asks its user for one.
    std::set<std::string> open = {"/", "/healthz", "/readyz"};
  };

  // Binds `listen`, host:port (port 0: a free one), and answers. `paths`: what serves each path, "/metrics" say.
  // INVALID_ARGUMENT if `listen` is no address; UNAVAILABLE "cannot listen on ..." if it cannot be bound.
  // `timeout`: for a request to arrive, and for an answer to be taken.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const std::string& listen, Paths paths, Security security,
      std::chrono::milliseconds timeout = std::chrono::milliseconds(limits::kHttpTimeoutMs));
  // The same with paths that take a body.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const std::string& listen, Paths paths, Posts posts, Security security,
      std::chrono::milliseconds timeout = std::chrono::milliseconds(limits::kHttpTimeoutMs));
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& listen, Paths paths);
  // Stops if Stop was not called.
  ~HttpServer();

  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // The port that it is bound to.
  uint16_t port() const;

  // Closes the port, drops requests that have not arrived whole, and returns when all others are answered or too late.
  // Later calls wait for the first.
  void Stop();

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lodestone
