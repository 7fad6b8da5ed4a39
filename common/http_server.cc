#include "common/http_server.h"

#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/host_port.h"
#include "common/limits.h"
#include "httplib.h"

namespace lodestone {
namespace {

constexpr std::string_view kBearer = "Bearer ";
constexpr char kText[] = "text/plain; charset=utf-8";

HttpRequest FromLibrary(const httplib::Request& request) {
  HttpRequest out;
  out.path = request.path;
  for (const auto& [name, value] : request.params) out.parameters.emplace(name, value);
  const std::string credentials = request.get_header_value("Authorization");
  if (credentials.compare(0, kBearer.size(), kBearer) == 0) out.token = credentials.substr(kBearer.size());
  return out;
}

// What the library found wrong, in a line; it has set the code.
void ExplainError(const httplib::Request& request, httplib::Response& response) {
  if (!response.body.empty()) return;
  std::string text = absl::StrCat("HTTP ", response.status, ": ");
  if (response.status == 404) {
    absl::StrAppend(&text, "there is nothing at ", request.path);
  } else {
    absl::StrAppend(&text, "this request is not served here");
  }
  response.set_content(text + "\n", kText);
}

void RefuseMethod(const httplib::Request& request, httplib::Response& response) {
  response.status = 405;
  response.set_header("Allow", "GET, HEAD");
  response.set_content(absl::StrCat("HTTP 405: ", request.method, " is not served here; GET and HEAD are\n"), kText);
}

}  // namespace

class HttpServer::Impl {
 public:
  explicit Impl(std::map<std::string, Handler> paths) : paths_(std::move(paths)) {}
  ~Impl() { Stop(); }

  absl::Status Start(const std::string& listen);
  uint16_t port() const { return port_; }
  void Stop();

 private:
  void SetUp();
  absl::Status Bind(const std::string& listen);
  // The port, or -1.
  int BindTo(const std::string& host, int port);

  // Constant after Start.
  const std::map<std::string, Handler> paths_;
  uint16_t port_ = 0;

  // Synchronise themselves.
  httplib::Server server_;
  std::atomic<bool> ended_{false};
  std::thread thread_;  // Joined by the first Stop.
};

void HttpServer::Impl::SetUp() {
  server_.new_task_queue = [] { return new httplib::ThreadPool(limits::kHttpThreads); };
  // The library's own choice would let two processes share a port.
  server_.set_socket_options([](socket_t socket) {
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  });
  server_.set_tcp_nodelay(true);
  // A connection holds a thread for as long as it is open.
  server_.set_keep_alive_max_count(1);
  const std::chrono::milliseconds timeout(limits::kHttpTimeoutMs);
  server_.set_read_timeout(timeout);
  server_.set_write_timeout(timeout);
  server_.set_payload_max_length(limits::kHttpRequestBytesMax);
  server_.set_error_handler(httplib::Server::Handler(ExplainError));
  for (const auto& entry : paths_) {
    server_.Get(entry.first, [&handler = entry.second](const httplib::Request& request, httplib::Response& response) {
      HttpResponse answer = handler(FromLibrary(request));
      response.status = answer.code;
      response.set_header("Cache-Control", "no-store");
      response.set_header("X-Content-Type-Options", "nosniff");
      response.set_content(std::move(answer.body), answer.content_type);
    });
  }
  server_.Post(".*", RefuseMethod);
  server_.Put(".*", RefuseMethod);
  server_.Patch(".*", RefuseMethod);
  server_.Delete(".*", RefuseMethod);
  server_.Options(".*", RefuseMethod);
}

int HttpServer::Impl::BindTo(const std::string& host, int port) {
  if (port == 0) return server_.bind_to_any_port(host);
  return server_.bind_to_port(host, port) ? port : -1;
}

absl::Status HttpServer::Impl::Bind(const std::string& listen) {
  const absl::StatusOr<HostPort> address = ParseHostPort(listen);
  if (!address.ok()) return address.status();
  const bool any = address->host.empty() || address->host == "*";
  errno = 0;
  int port = BindTo(any ? "::" : address->host, address->port);  // The former takes IPv4 too, where there is IPv6.
  if (port <= 0 && any) port = BindTo("0.0.0.0", address->port);
  if (port <= 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", listen, ": ", errno != 0 ? std::strerror(errno) : "it cannot be bound"));
  }
  port_ = static_cast<uint16_t>(port);
  return absl::OkStatus();
}

absl::Status HttpServer::Impl::Start(const std::string& listen) {
  SetUp();
  if (absl::Status status = Bind(listen); !status.ok()) return status;
  thread_ = std::thread([this] {
    server_.listen_after_bind();
    ended_.store(true);
  });
  // Until then the library does not hear of a Stop.
  while (!server_.is_running() && !ended_.load()) std::this_thread::yield();
  return absl::OkStatus();
}

void HttpServer::Impl::Stop() {
  if (!thread_.joinable()) return;
  server_.stop();
  thread_.join();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen,
                                                              std::map<std::string, Handler> paths) {
  auto impl = std::make_unique<Impl>(std::move(paths));
  if (absl::Status status = impl->Start(listen); !status.ok()) return status;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

uint16_t HttpServer::port() const { return impl_->port(); }
void HttpServer::Stop() { impl_->Stop(); }

}  // namespace lodestone
