#include "common/http/http_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/http/http_stream.h"
#include "common/telemetry/log.h"
#include "httplib.h"

namespace lodestone {
namespace {

constexpr std::string_view kBearer = "Bearer ";
constexpr char kText[] = "text/plain; charset=utf-8";
constexpr size_t kConnectionsMax = 32 * limits::kHttpThreads;  // Open at a time.
// That wait to be taken, of more than one connection.
constexpr size_t kAnswerBytesMax = 64 << 20;
// Until connections are accepted again after the system refused to: it has no memory, or no file descriptors.
constexpr std::chrono::milliseconds kAcceptPause(100);
constexpr std::chrono::milliseconds kPollMax(60'000);

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
  const int fd = socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol);
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

}  // namespace

class HttpServer::Impl final : private httplib::Server {
 public:
  Impl(Paths paths, Security security, std::chrono::milliseconds timeout);
  ~Impl() override;

  absl::Status Start(const std::string& listen);
  uint16_t port() const { return port_; }
  void Stop();

 private:
  // Shared with the task that advances it, until that is gone.
  using Connection = std::shared_ptr<HttpStream>;
  using Time = std::chrono::steady_clock::time_point;

  // Takes connections until Stop, and polls those that wait until all are over.
  void Run();
  // Takes over those that wait again; how many are being served. Ends what is listened for and received if the server
  // stops.
  size_t TakeBack();
  // Closes those that have waited for too long, and the oldest ones while there are too many.
  void MakeRoom(size_t serving);
  void DropOldest(bool with_answer);
  // Polls; has those that are ready served, and accepts what has come.
  void Poll();
  void Accept();
  // Takes a connection as far as it goes, on one of the pool's threads.
  void Serve(Connection connection);
  void Wake();
  // Every request passes here.
  void Answer(const httplib::Request& request, httplib::Response& response) const;
  // Whether it is answered; otherwise it is refused.
  bool Check(const HttpRequest& request, httplib::Response* response) const;

  // Constant after Start.
  const Paths paths_;
  const Security security_;
  const std::chrono::milliseconds timeout_;
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> tls_{nullptr, SSL_CTX_free};  // Null without TLS.
  int wake_ = -1;                                                            // An eventfd.
  uint16_t port_ = 0;

  // Owned by the thread that runs Run.
  int listening_ = -1;               // -1 once the server stops.
  std::vector<Connection> waiting_;  // In the order in which they began to.
  std::vector<pollfd> polled_;
  Time accept_from_{};  // In the future after a failure,
  bool told_ = false;   // which was told.

  // Synchronises itself.
  std::unique_ptr<httplib::ThreadPool> pool_;

  Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  size_t serving_ ABSL_GUARDED_BY(mu_) = 0;              // Given to the pool, and not taken back.
  std::vector<Connection> served_ ABSL_GUARDED_BY(mu_);  // To wait again.

  Mutex stop_mu_;                                 // Taken before mu_, for as long as a Stop takes.
  std::thread thread_ ABSL_GUARDED_BY(stop_mu_);  // Joined by the first Stop.
};

HttpServer::Impl::Impl(Paths paths, Security security, std::chrono::milliseconds timeout)
    : paths_(std::move(paths)), security_(std::move(security)), timeout_(timeout) {
  set_error_handler(httplib::Server::Handler(ExplainError));
  set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    Answer(request, response);
    return HandlerResponse::Handled;
  });
}

HttpServer::Impl::~Impl() {
  Stop();
  if (wake_ >= 0) close(wake_);
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

absl::Status HttpServer::Impl::Start(const std::string& listen) {
  if (security_.certificates != nullptr) {
    tls_.reset(SSL_CTX_new(TLS_server_method()));
    if (tls_ == nullptr || !ServeTls(tls_.get(), security_.certificates.get(), security_.asks_clients)) {
      return absl::InternalError("OpenSSL does not serve TLS");
    }
  }
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) return absl::ErrnoToStatus(errno, "eventfd");
  LODESTONE_ASSIGN_OR_RETURN(listening_, Listen(listen));
  port_ = PortOf(listening_);
  pool_ = std::make_unique<httplib::ThreadPool>(limits::kHttpThreads);
  MutexLock lock(&stop_mu_);
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void HttpServer::Impl::Run() {
  for (;;) {
    const size_t serving = TakeBack();
    MakeRoom(serving);
    if (listening_ < 0 && serving == 0 && waiting_.empty()) return;
    Poll();
  }
}

size_t HttpServer::Impl::TakeBack() {
  bool stopping = false;
  size_t serving = 0;
  {
    MutexLock lock(&mu_);
    std::move(served_.begin(), served_.end(), std::back_inserter(waiting_));
    served_.clear();
    stopping = stopping_;
    serving = serving_;
  }
  if (!stopping) return serving;
  if (listening_ >= 0) close(std::exchange(listening_, -1));
  // What has arrived is answered; who is still sending is not waited for.
  for (const Connection& connection : waiting_) connection->EndReceiving();
  return serving;
}

void HttpServer::Impl::DropOldest(bool with_answer) {
  auto oldest = waiting_.end();
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    if (with_answer && (*it)->answer_bytes() == 0) continue;
    if (oldest == waiting_.end() || (*it)->deadline() < (*oldest)->deadline()) oldest = it;
  }
  waiting_.erase(oldest);
}

void HttpServer::Impl::MakeRoom(size_t serving) {
  const Time now = std::chrono::steady_clock::now();
  std::erase_if(waiting_, [now](const Connection& connection) { return connection->deadline() <= now; });
  while (waiting_.size() + serving > kConnectionsMax && !waiting_.empty()) DropOldest(/*with_answer=*/false);
  size_t answers = 0, bytes = 0;
  for (const Connection& connection : waiting_) {
    answers += connection->answer_bytes() > 0;
    bytes += connection->answer_bytes();
  }
  for (; answers > 1 && bytes > kAnswerBytesMax; --answers) {
    DropOldest(/*with_answer=*/true);
    bytes = 0;
    for (const Connection& connection : waiting_) bytes += connection->answer_bytes();
  }
}

void HttpServer::Impl::Poll() {
  const Time now = std::chrono::steady_clock::now();
  const bool accepts = listening_ >= 0 && accept_from_ <= now;
  Time until = now + kPollMax;
  if (listening_ >= 0 && !accepts) until = std::min(until, accept_from_);
  polled_.assign({{wake_, POLLIN, 0}, {accepts ? listening_ : -1, POLLIN, 0}});
  for (const Connection& connection : waiting_) {
    polled_.push_back({connection->fd(), connection->events(), 0});
    until = std::min(until, connection->deadline());
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now);
  if (poll(polled_.data(), polled_.size(), std::max(0, static_cast<int>(left.count()))) <= 0) return;
  if (polled_[0].revents != 0) {
    eventfd_t woken = 0;
    eventfd_read(wake_, &woken);
  }
  std::vector<Connection> ready;
  for (size_t i = 0; i < waiting_.size(); ++i) {
    if (polled_[i + 2].revents != 0) ready.push_back(std::move(waiting_[i]));
  }
  std::erase(waiting_, nullptr);
  {
    MutexLock lock(&mu_);
    serving_ += ready.size();
  }
  for (Connection& connection : ready) {
    pool_->enqueue([this, connection = std::move(connection)] { Serve(connection); });
  }
  // One at a time: in between, those that were there before have the chance to be served before they are too old.
  if (polled_[1].revents != 0) Accept();
}

void HttpServer::Impl::Accept() {
  const int socket = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (socket >= 0) {
    told_ = false;
    waiting_.push_back(std::make_shared<HttpStream>(socket, timeout_, tls_.get()));
    return;
  }
  if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
  const int error = errno;
  accept_from_ = std::chrono::steady_clock::now() + kAcceptPause;
  if (std::exchange(told_, true)) return;
  LODESTONE_LOG(WARN, "http", "no connections are accepted for the moment port={} error={}", port_,
                std::strerror(error));
}

void HttpServer::Impl::Serve(Connection connection) {
  HttpStream::Next next = connection->Advance();
  if (next == HttpStream::Next::kAnswer) {
    bool closed = false;
    process_request(*connection, /*close_connection=*/true, closed, [&connection](httplib::Request& of) {
      of.ssl = connection->tls();
      Tame(&of);
    });
    connection->SendAnswer();
    next = connection->Advance();
  }
  MutexLock lock(&mu_);
  --serving_;
  if (next == HttpStream::Next::kPoll) served_.push_back(std::move(connection));
  Wake();
}

void HttpServer::Impl::Wake() { eventfd_write(wake_, 1); }

void HttpServer::Impl::Stop() {
  MutexLock stop_lock(&stop_mu_);
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    Wake();
  }
  thread_.join();
  pool_->shutdown();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen, Paths paths) {
  return Start(listen, std::move(paths), Security());
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen, Paths paths, Security security,
                                                              std::chrono::milliseconds timeout) {
  auto impl = std::make_unique<Impl>(std::move(paths), std::move(security), timeout);
  LODESTONE_RETURN_IF_ERROR(impl->Start(listen));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

uint16_t HttpServer::port() const { return impl_->port(); }
void HttpServer::Stop() { impl_->Stop(); }

}  // namespace lodestone
