#include "common/http_server.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/host_port.h"
#include "common/http_stream.h"
#include "common/limits.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/status.h"
#include "httplib.h"

namespace lodestone {
namespace {

constexpr std::string_view kBearer = "Bearer ";
constexpr char kText[] = "text/plain; charset=utf-8";
// Connections that are open at a time, with those that wait for a thread; more are closed as they come.
constexpr size_t kConnectionsMax = 16 * limits::kHttpThreads;
// Until connections are accepted again after the system refused to: it has no memory, or no file descriptors.
constexpr std::chrono::milliseconds kAcceptPause(100);

void AddCertificate(const SSL* tls, HttpRequest* out) {
  const std::unique_ptr<X509, void (*)(X509*)> shown(SSL_get1_peer_certificate(tls), X509_free);
  out->has_certificate = shown != nullptr && SSL_get_verify_result(tls) == X509_V_OK;
  if (out->has_certificate) out->certificate_names = NamesOf(*shown);
}

HttpRequest FromLibrary(const httplib::Request& request) {
  HttpRequest out;
  out.path = request.path;
  out.peer = FormatHostPort({request.remote_addr, request.remote_port});
  if (request.ssl != nullptr) AddCertificate(request.ssl, &out);
  for (const auto& [name, value] : request.params) out.parameters.emplace(name, value);
  const std::string credentials = request.get_header_value("Authorization");
  if (credentials.compare(0, kBearer.size(), kBearer) == 0) out.token = credentials.substr(kBearer.size());
  return out;
}

// Takes out of a request what the library would do and nobody needs here: ranges, of which few bytes can ask for
// gigabytes, and Brotli, which takes longer than what it saves takes to send.
void Tame(httplib::Request* request) {
  const bool gzip = absl::StrContains(request->get_header_value("Accept-Encoding"), "gzip");
  request->ranges.clear();
  request->headers.erase("Accept-Encoding");
  if (gzip) request->headers.emplace("Accept-Encoding", "gzip");
}

// What the library found wrong, in a line; it has set the code.
void ExplainError(const httplib::Request&, httplib::Response& response) {
  if (!response.body.empty()) return;
  response.set_content(absl::StrCat("HTTP ", response.status, ": this is no request, or one of more than ",
                                    limits::kHttpRequestBytesMax, " bytes\n"),
                       kText);
}

// A socket that listens, or UNAVAILABLE.
absl::StatusOr<int> Bind(const addrinfo& address) {
  const int fd = socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol);
  if (fd < 0) return absl::UnavailableError(std::strerror(errno));
  const int on = 1, off = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));  // Not SO_REUSEPORT: two processes would share the port.
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (address.ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(fd, address.ai_addr, address.ai_addrlen) == 0 && ::listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  close(fd);
  return absl::UnavailableError(std::strerror(error));
}

// The same, of the first of the addresses of `listen` that can be bound.
absl::StatusOr<int> Listen(const std::string& listen) {
  const absl::StatusOr<HostPort> wanted = ParseHostPort(listen);
  if (!wanted.ok()) return wanted.status();
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const bool any = wanted->host.empty() || wanted->host == "*";
  // IPv6's "any" takes IPv4 too, where there is IPv6.
  const std::string port = absl::StrCat(wanted->port);
  absl::StatusOr<int> bound = absl::UnavailableError("");
  for (const char* const host : {any ? "::" : wanted->host.c_str(), "0.0.0.0"}) {
    addrinfo* found = nullptr;
    if (const int failed = getaddrinfo(host, port.c_str(), &hints, &found); failed != 0) {
      bound = absl::UnavailableError(gai_strerror(failed));
    } else {
      for (const addrinfo* at = found; at != nullptr && !bound.ok(); at = at->ai_next) bound = Bind(*at);
      freeaddrinfo(found);
    }
    if (bound.ok() || !any) break;
  }
  if (bound.ok()) return bound;
  return absl::UnavailableError(absl::StrCat("cannot listen on ", listen, ": ", bound.status().message()));
}

uint16_t PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

// The library's threads, for so many connections. What comes beyond them is run by who brings it, the accepting thread.
class BoundedPool final : public httplib::TaskQueue {
 public:
  void enqueue(std::function<void()> run) override {
    if (connections_.fetch_add(1) >= kConnectionsMax) {
      connections_.fetch_sub(1);
      return run();
    }
    pool_.enqueue([this, run = std::move(run)] {
      run();
      connections_.fetch_sub(1);
    });
  }
  void shutdown() override { pool_.shutdown(); }

 private:
  std::atomic<size_t> connections_{0};
  httplib::ThreadPool pool_{limits::kHttpThreads};
};

}  // namespace

class HttpServer::Impl final : private httplib::Server {
 public:
  Impl(Paths paths, Security security);
  ~Impl() override { Stop(); }

  absl::Status Start(const std::string& listen);
  uint16_t port() const { return port_; }
  void Stop();

 private:
  // Accepts connections until Stop.
  void Run();
  // The library's: serves a connection that was accepted, and closes it.
  bool process_and_close_socket(socket_t socket) override;
  // Every request passes here.
  void Answer(const httplib::Request& request, httplib::Response& response) const;
  // Whether it is answered; otherwise it is refused.
  bool Check(const HttpRequest& request, httplib::Response* response) const;
  // Notes a connection; false if the server ends.
  bool Open(int socket);
  void Close(int socket);

  // Constant after Start.
  const Paths paths_;
  const Security security_;
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> tls_{nullptr, SSL_CTX_free};  // Null without TLS.
  int listening_ = -1;
  uint16_t port_ = 0;

  // Synchronise themselves.
  std::atomic<std::thread::id> accepting_;  // The thread that runs Run.

  Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::set<int> sockets_ ABSL_GUARDED_BY(mu_);  // Open ones.
  CondVar stopped_;

  Mutex stop_mu_;                                 // Taken before mu_, for as long as a Stop takes.
  std::thread thread_ ABSL_GUARDED_BY(stop_mu_);  // Joined by the first Stop.
};

HttpServer::Impl::Impl(Paths paths, Security security) : paths_(std::move(paths)), security_(std::move(security)) {
  new_task_queue = [] { return new BoundedPool; };
  set_error_handler(httplib::Server::Handler(ExplainError));
  set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    Answer(request, response);
    return HandlerResponse::Handled;
  });
}

bool HttpServer::Impl::Check(const HttpRequest& request, httplib::Response* response) const {
  if (security_.check == nullptr || security_.open.contains(request.path)) return true;
  const absl::Status status = security_.check(request);
  if (status.ok()) return true;
  response->status = absl::IsUnauthenticated(status) ? 401 : 403;
  if (response->status == 401) response->set_header("WWW-Authenticate", "Bearer realm=\"lodestone\"");
  response->set_content(absl::StrCat("HTTP ", response->status, ": ", status.message(), "\n"), kText);
  return false;
}

void HttpServer::Impl::Answer(const httplib::Request& request, httplib::Response& response) const {
  response.set_header("Cache-Control", "no-store");
  response.set_header("X-Content-Type-Options", "nosniff");
  if (request.method != "GET" && request.method != "HEAD") {
    response.status = 405;
    response.set_header("Allow", "GET, HEAD");
    response.set_content(absl::StrCat("HTTP 405: ", request.method, " is not served here; GET and HEAD are\n"), kText);
    return;
  }
  const HttpRequest asked = FromLibrary(request);
  if (!Check(asked, &response)) return;
  const auto found = paths_.find(request.path);
  if (found == paths_.end()) {
    response.status = 404;
    response.set_content(absl::StrCat("HTTP 404: there is nothing at ", request.path, "\n"), kText);
    return;
  }
  HttpResponse answer = found->second(asked);
  response.status = answer.code;
  response.set_content(std::move(answer.body), answer.content_type);
}

bool HttpServer::Impl::Open(int socket) {
  MutexLock lock(&mu_);
  if (stopping_) return false;
  sockets_.insert(socket);
  return true;
}

void HttpServer::Impl::Close(int socket) {
  MutexLock lock(&mu_);
  sockets_.erase(socket);
  close(socket);
}

bool HttpServer::Impl::process_and_close_socket(socket_t socket) {
  bool served = false;
  // On the accepting thread: there are too many connections.
  if (std::this_thread::get_id() != accepting_.load() && Open(socket)) {
    HttpStream stream(socket, tls_.get());
    bool closed = false;
    if (tls_ == nullptr || stream.Handshake()) {
      served = process_request(stream, /*close_connection=*/true, closed, [&stream](httplib::Request& of) {
        of.ssl = stream.tls();
        Tame(&of);
      });
      stream.Linger();
    }
  }
  Close(socket);
  return served;
}

absl::Status HttpServer::Impl::Start(const std::string& listen) {
  if (security_.certificates != nullptr) {
    tls_.reset(SSL_CTX_new(TLS_server_method()));
    if (tls_ == nullptr || !ServeTls(tls_.get(), security_.certificates.get(), security_.asks_clients)) {
      return absl::InternalError("OpenSSL does not serve TLS");
    }
  }
  LODESTONE_ASSIGN_OR_RETURN(listening_, Listen(listen));
  port_ = PortOf(listening_);
  MutexLock lock(&stop_mu_);
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

// The library gives up when the system accepts no connection for a moment, and closes the socket that it listens on: it
// gets copies.
void HttpServer::Impl::Run() {
  accepting_.store(std::this_thread::get_id());
  for (bool told = false;; told = true) {
    const int copy = fcntl(listening_, F_DUPFD_CLOEXEC, 0);
    svr_sock_.store(copy);
    const bool stopped = copy >= 0 && listen_after_bind();
    if (stopped) close(copy);
    MutexLock lock(&mu_);
    if (stopping_) return;
    if (!told) LODESTONE_LOG(WARN, "http", "no connections are accepted for the moment port={}", port_);
    stopped_.WaitUntil(&mu_, std::chrono::steady_clock::now() + kAcceptPause);
  }
}

void HttpServer::Impl::Stop() {
  MutexLock stop_lock(&stop_mu_);
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    stopped_.NotifyAll();
    svr_sock_.store(INVALID_SOCKET);
    shutdown(listening_, SHUT_RDWR);  // Ends the wait for a connection.
    // What has arrived is answered; who is still sending is not waited for.
    for (const int socket : sockets_) shutdown(socket, SHUT_RD);
  }
  thread_.join();
  close(listening_);
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen, Paths paths) {
  return Start(listen, std::move(paths), Security());
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen, Paths paths,
                                                              Security security) {
  auto impl = std::make_unique<Impl>(std::move(paths), std::move(security));
  LODESTONE_RETURN_IF_ERROR(impl->Start(listen));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

uint16_t HttpServer::port() const { return impl_->port(); }
void HttpServer::Stop() { impl_->Stop(); }

}  // namespace lodestone
