#include "common/http/http_server.h"

#include <microhttpd.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/http/connection_table.h"
#include "common/http/http_tls.h"
#include "common/http/listen_socket.h"

namespace lodestone {
namespace {

constexpr std::string_view kBearer = "Bearer ";
constexpr size_t kConnectionsMax = 64 * limits::kHttpThreads;  // Open at a time.
constexpr unsigned kConnectionsSpare = 64;  // Of the library beyond that: those that were reset and are not closed yet.
constexpr size_t kAnswerBytesMax = 64 << 20;  // Of answers that wait to be taken, of more than one connection.
constexpr size_t kDrainBytesMax = 256 << 10;  // Of a body, beyond what is kept of it.
constexpr size_t kBodiesMax = 4;              // So many of the greatest bodies are kept at a time.
constexpr size_t kSmallBodyBytes = 64 << 10;  // Those up to this are kept however many others there are.
constexpr size_t kGzipBytesMin = 1000;        // Shorter answers are sent as they are.
// The longest wait of RunLibrary: the library does not listen while there are no file descriptors, and looks for some
// only when it is run.
constexpr MHD_UNSIGNED_LONG_LONG kLookAgainMs = 1000;

// Empty if there is no such header.
std::string_view Header(MHD_Connection* connection, const char* name) {
  const char* const value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

MHD_Result AddParameter(void* request, MHD_ValueKind, const char* name, size_t name_bytes, const char* value,
                        size_t value_bytes) {
  static_cast<HttpRequest*>(request)->parameters.emplace(std::string(name, name_bytes),
                                                         value == nullptr ? "" : std::string(value, value_bytes));
  return MHD_YES;
}

int SocketOf(MHD_Connection* connection) {
  return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

// Empty if zlib has no memory for it.
std::string Gzip(const std::string& text) {
  z_stream stream = {};
  constexpr int kGzipWindow = 15 + 16;
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) != Z_OK) return "";
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const bool whole = deflate(&stream, Z_FINISH) == Z_STREAM_END;
  out.resize(whole ? stream.total_out : 0);
  deflateEnd(&stream);
  return out;
}

HttpResponse Error(int code, std::string_view what) {
  return {.code = code, .body = absl::StrCat("HTTP ", code, ": ", absl::string_view(what.data(), what.size()), "\n")};
}

// One request and its answer: of the library's thread, and between MHD_suspend_connection and MHD_resume_connection of
// the one that runs its handler.
struct Exchange {
  bool begun = false;     // ConnectionTable::BeginAnswer.
  bool judged = false;    // Security::check has let it through, or has made `answer`.
  bool answered = false;  // `answer` is there.
  bool takes_gzip = false;
  bool zipped = false;        // `answer`'s body.
  size_t body_bytes_max = 0;  // To be kept of the request's body; 0: its path takes none.
  size_t body_bytes = 0;      // That came.
  bool body_lost = false;     // There was no room for all of it.
  const char* allowed = "";   // Methods, for 405.
  HttpRequest request;
  HttpResponse answer;
};

// Compresses a long answer for a client that takes it so.
void Zip(Exchange* exchange) {
  if (!exchange->takes_gzip || exchange->answer.body.size() < kGzipBytesMin) return;
  std::string zipped = Gzip(exchange->answer.body);
  exchange->zipped = !zipped.empty();
  if (exchange->zipped) exchange->answer.body.swap(zipped);
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(Paths paths, Posts posts, Security security, std::chrono::milliseconds timeout);
  ~Impl() {
    Stop();
    if (wake_ >= 0) close(wake_);
  }

  absl::Status Start(const std::string& listen);
  uint16_t port() const { return port_; }
  void Stop();

 private:
  // The library's callbacks, on its thread; `impl` is this.
  static void OnConnection(void* impl, MHD_Connection* connection, void** context, MHD_ConnectionNotificationCode code);
  static MHD_Result OnRequest(void* impl, MHD_Connection* connection, const char* path, const char* method,
                              const char* version, const char* body, size_t* body_bytes, void** exchange);
  static void OnCompleted(void* impl, MHD_Connection* connection, void** exchange, MHD_RequestTerminationCode code);
  // GnuTLS's, in a handshake.
  static const HttpTls& TlsOf(gnutls_session_t session);
  static int OnHandshake(gnutls_session_t session, const gnutls_cert_retr_st* info, gnutls_pcert_st** chain,
                         unsigned* chain_size, gnutls_ocsp_data_st** ocsp, unsigned* ocsp_size, gnutls_privkey_t* key,
                         unsigned* flags);
  static int OnClientCertificate(gnutls_session_t session);

  // The headers have arrived.
  MHD_Result TakeHeaders(MHD_Connection* connection, const char* path, std::string_view method, Exchange* exchange);
  // A piece of the body has.
  MHD_Result TakeBody(const char* body, size_t bytes, Exchange* exchange);
  bool IsPost(const std::string& path) const { return posts_.paths.contains(path); }
  // Reads what the library knows of a request, and has it answered.
  MHD_Result Begin(MHD_Connection* connection, const char* path, std::string_view method, Exchange* exchange);
  void Read(MHD_Connection* connection, const char* path, HttpRequest* request) const;
  MHD_Result Send(MHD_Connection* connection, Exchange* exchange);
  // Why the request is refused; nullopt: it is let through.
  std::optional<HttpResponse> Judge(const HttpRequest& request) const;
  // On a handler's thread.
  HttpResponse Answer(const Exchange& exchange) const;
  void RunHandlers();
  // Receives and sends. Not the library's own loop: that of 0.9.75 waits for ever, deaf to everything that it has just
  // heard of, when exactly 128 connections (or a multiple) have something for it at once.
  void RunLibrary(MHD_Daemon* daemon);

  // Constant after Start.
  const Paths paths_;
  const Posts posts_;
  const Security security_;
  std::unique_ptr<const HttpTls> tls_;  // Null without TLS.
  uint16_t port_ = 0;
  const int wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);  // Has RunLibrary look again.
  // What RunLibrary is to do, once it is woken.
  enum class Phase { kServe, kTakeNoMore, kEnd };
  std::atomic<Phase> phase_ = Phase::kServe;

  ConnectionTable connections_;  // Synchronises itself.
  size_t kept_bytes_ = 0;        // Of bodies. The library's thread's own.

  Mutex mu_;
  CondVar changed_;
  std::deque<std::pair<MHD_Connection*, Exchange*>> suspended_ ABSL_GUARDED_BY(mu_);  // To be answered, in their order.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  Mutex stop_mu_;                                                // Held by Start and Stop; taken before mu_.
  MHD_Daemon* daemon_ ABSL_GUARDED_BY(stop_mu_) = nullptr;       // Null before Start and after Stop.
  std::vector<std::thread> handlers_ ABSL_GUARDED_BY(stop_mu_);  // Run RunHandlers.
  std::thread library_ ABSL_GUARDED_BY(stop_mu_);                // Runs RunLibrary.
};

HttpServer::Impl::Impl(Paths paths, Posts posts, Security security, std::chrono::milliseconds timeout)
    : paths_(std::move(paths)),
      posts_(std::move(posts)),
      security_(std::move(security)),
      connections_({timeout, kConnectionsMax, kAnswerBytesMax}) {}

absl::Status HttpServer::Impl::Start(const std::string& listen) {
  if (security_.certificates != nullptr) {
    tls_ = std::make_unique<HttpTls>(security_.certificates, security_.asks_clients);
  }
  if (wake_ < 0) return absl::ResourceExhaustedError("this process can open no more files (ulimit -n)");
  LODESTONE_ASSIGN_OR_RETURN(const int listening, ListenOn(listen));
  port_ = PortOf(listening);
  MutexLock lock(&stop_mu_);
  unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME;
  std::vector<MHD_OptionItem> of_tls;
  if (tls_ != nullptr) {
    flags |= MHD_USE_TLS;
    of_tls.push_back({MHD_OPTION_HTTPS_CERT_CALLBACK2, 0, reinterpret_cast<void*>(&OnHandshake)});
    of_tls.push_back({MHD_OPTION_HTTPS_PRIORITIES, 0, const_cast<char*>(HttpTls::kPriorities)});
  }
  of_tls.push_back({MHD_OPTION_END, 0, nullptr});
  daemon_ =
      MHD_start_daemon(flags, /*port=*/0, /*accept=*/nullptr, nullptr, &OnRequest, this,                         //
                       MHD_OPTION_LISTEN_SOCKET, listening,                                                      //
                       MHD_OPTION_CONNECTION_LIMIT, static_cast<unsigned>(kConnectionsMax) + kConnectionsSpare,  //
                       MHD_OPTION_CONNECTION_MEMORY_LIMIT, 2 * limits::kHttpRequestBytesMax,                     //
                       MHD_OPTION_NOTIFY_CONNECTION, &OnConnection, this,                                        //
                       MHD_OPTION_NOTIFY_COMPLETED, &OnCompleted, this,                                          //
                       MHD_OPTION_ARRAY, of_tls.data(), MHD_OPTION_END);
  if (daemon_ == nullptr) {
    close(listening);
    return absl::InternalError("libmicrohttpd does not start (out of memory or file descriptors?)");
  }
  library_ = std::thread([this, daemon = daemon_] { RunLibrary(daemon); });
  for (size_t i = 0; i < limits::kHttpThreads; ++i) handlers_.emplace_back([this] { RunHandlers(); });
  return absl::OkStatus();
}

void HttpServer::Impl::Stop() {
  MutexLock stop_lock(&stop_mu_);
  if (daemon_ == nullptr) return;
  phase_ = Phase::kTakeNoMore;
  eventfd_write(wake_, 1);
  connections_.FinishAnswers();
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& handler : handlers_) handler.join();
  phase_ = Phase::kEnd;
  eventfd_write(wake_, 1);
  library_.join();
  MHD_stop_daemon(daemon_);
  daemon_ = nullptr;
}

void HttpServer::Impl::RunLibrary(MHD_Daemon* daemon) {
  const int events = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
  bool listens = true;
  while (phase_ != Phase::kEnd) {
    if (phase_ != Phase::kServe && std::exchange(listens, false)) close(MHD_quiesce_daemon(daemon));
    MHD_run(daemon);
    MHD_UNSIGNED_LONG_LONG wait_ms = kLookAgainMs;
    if (MHD_get_timeout(daemon, &wait_ms) == MHD_YES) wait_ms = std::min(wait_ms, kLookAgainMs);
    pollfd waits[] = {{events, POLLIN, 0}, {wake_, POLLIN, 0}};
    poll(waits, 2, static_cast<int>(wait_ms));
    eventfd_t ignored = 0;
    if (waits[1].revents != 0) eventfd_read(wake_, &ignored);
  }
}

void HttpServer::Impl::OnConnection(void* impl, MHD_Connection* connection, void** context,
                                    MHD_ConnectionNotificationCode code) {
  auto* const self = static_cast<Impl*>(impl);
  *context = self;  // For TlsOf.
  if (code == MHD_CONNECTION_NOTIFY_STARTED) {
    self->connections_.Add(SocketOf(connection));
  } else {
    self->connections_.Remove(SocketOf(connection));
  }
}

MHD_Result HttpServer::Impl::OnRequest(void* impl, MHD_Connection* connection, const char* path, const char* method,
                                       const char*, const char* body, size_t* body_bytes, void** exchange) {
  auto* const self = static_cast<Impl*>(impl);
  auto* const known = static_cast<Exchange*>(*exchange);
  if (known == nullptr) {
    auto* const fresh = new Exchange;
    *exchange = fresh;
    return self->TakeHeaders(connection, path, method, fresh);
  }
  if (*body_bytes > 0) {
    return self->TakeBody(body, std::exchange(*body_bytes, 0), known);
  }
  if (!known->begun) return self->Begin(connection, path, method, known);
  return known->answered ? self->Send(connection, known) : MHD_YES;
}

MHD_Result HttpServer::Impl::TakeHeaders(MHD_Connection* connection, const char* path, std::string_view method,
                                         Exchange* exchange) {
  if (method != "POST" || !IsPost(path)) return MHD_YES;
  exchange->body_bytes_max = posts_.body_bytes_max;
  // Of one who may not ask nothing is kept.
  Read(connection, path, &exchange->request);
  std::optional<HttpResponse> refused = Judge(exchange->request);
  exchange->judged = true;
  if (refused.has_value()) {
    exchange->answer = *std::move(refused);
    exchange->answered = true;
    exchange->body_lost = true;
  }
  const std::string_view length = Header(connection, "Content-Length");
  uint64_t bytes = 0;
  // If there is no length, the body comes in chunks.
  if (!absl::SimpleAtoi(absl::string_view(length.data(), length.size()), &bytes)) return MHD_YES;
  if (bytes <= exchange->body_bytes_max + kDrainBytesMax) return MHD_YES;
  exchange->body_bytes = bytes;  // None of it is read.
  return Begin(connection, path, method, exchange);
}

MHD_Result HttpServer::Impl::TakeBody(const char* body, size_t bytes, Exchange* exchange) {
  exchange->body_bytes += bytes;
  const bool fits =
      exchange->body_bytes <= kSmallBodyBytes || kept_bytes_ + bytes <= kBodiesMax * posts_.body_bytes_max;
  if (exchange->body_bytes <= exchange->body_bytes_max && fits && !exchange->body_lost) {
    exchange->request.body.append(body, bytes);
    kept_bytes_ += bytes;
  } else {
    exchange->body_lost = true;
    kept_bytes_ -= exchange->request.body.size();
    exchange->request.body = std::string();
  }
  return exchange->body_bytes <= exchange->body_bytes_max + kDrainBytesMax ? MHD_YES : MHD_NO;
}

void HttpServer::Impl::OnCompleted(void* impl, MHD_Connection* connection, void** exchange,
                                   MHD_RequestTerminationCode) {
  const std::unique_ptr<Exchange> done(static_cast<Exchange*>(*exchange));
  *exchange = nullptr;
  if (done == nullptr) return;
  static_cast<Impl*>(impl)->kept_bytes_ -= done->request.body.size();
  if (done->begun) static_cast<Impl*>(impl)->connections_.EndAnswer(SocketOf(connection));
}

MHD_Result HttpServer::Impl::Begin(MHD_Connection* connection, const char* path, std::string_view method,
                                   Exchange* exchange) {
  if (!connections_.BeginAnswer(SocketOf(connection))) return MHD_NO;
  exchange->begun = true;
  exchange->takes_gzip = Header(connection, "Accept-Encoding").find("gzip") != std::string_view::npos;
  const bool fits = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE)->header_size <=
                    limits::kHttpRequestBytesMax;
  if (!fits) {
    exchange->answer = Error(400, absl::StrCat("this request has more than ", limits::kHttpRequestBytesMax, " bytes"));
    return Send(connection, exchange);
  }
  if (exchange->answered) return Send(connection, exchange);
  const bool posts = IsPost(path);
  if (posts ? method != "POST" : method != "GET" && method != "HEAD") {
    exchange->allowed = posts ? "POST" : "GET, HEAD";
    exchange->answer =
        Error(405, absl::StrCat(std::string(method), " is not served here; ", posts ? "POST is" : "GET and HEAD are"));
    return Send(connection, exchange);
  }
  if (posts && exchange->body_bytes > exchange->body_bytes_max) {
    exchange->answer = Error(413, absl::StrCat("this request's body has more than ", exchange->body_bytes_max,
                                               " bytes; send less at a time"));
    return Send(connection, exchange);
  }
  if (exchange->body_lost) {
    exchange->answer = Error(503, "too many long requests at a time; send this one again later");
    return Send(connection, exchange);
  }
  if (!exchange->judged) Read(connection, path, &exchange->request);
  MHD_suspend_connection(connection);
  MutexLock lock(&mu_);
  suspended_.emplace_back(connection, exchange);
  changed_.NotifyOne();
  return MHD_YES;
}

void HttpServer::Impl::Read(MHD_Connection* connection, const char* path, HttpRequest* request) const {
  request->path = path;
  MHD_get_connection_values_n(connection, MHD_GET_ARGUMENT_KIND, &AddParameter, request);
  const std::string_view credentials = Header(connection, "Authorization");
  if (credentials.starts_with(kBearer)) request->token = credentials.substr(kBearer.size());
  request->peer = AddressText(MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr);
  if (tls_ == nullptr) return;
  const auto session = static_cast<gnutls_session_t>(
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION)->tls_session);
  if (const std::shared_ptr<X509> shown = tls_->ClientCertificate(session); shown != nullptr) {
    request->has_certificate = true;
    request->certificate_names = NamesOf(*shown);
  }
}

MHD_Result HttpServer::Impl::Send(MHD_Connection* connection, Exchange* exchange) {
  HttpResponse& answer = exchange->answer;
  // The body lives until OnCompleted.
  MHD_Response* const response =
      MHD_create_response_from_buffer(answer.body.size(), answer.body.data(), MHD_RESPMEM_PERSISTENT);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, "Content-Type", answer.content_type.c_str());
  MHD_add_response_header(response, "Cache-Control", "no-store");
  MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
  MHD_add_response_header(response, "Connection", "close");
  if (exchange->zipped) MHD_add_response_header(response, "Content-Encoding", "gzip");
  if (answer.code == 401) MHD_add_response_header(response, "WWW-Authenticate", "Bearer realm=\"lodestone\"");
  if (answer.code == 405) MHD_add_response_header(response, "Allow", exchange->allowed);
  connections_.SendAnswer(SocketOf(connection), answer.body.size());
  const MHD_Result queued = MHD_queue_response(connection, static_cast<unsigned>(answer.code), response);
  MHD_destroy_response(response);
  return queued;
}

std::optional<HttpResponse> HttpServer::Impl::Judge(const HttpRequest& request) const {
  if (security_.check == nullptr || security_.open.contains(request.path)) return std::nullopt;
  const absl::Status status = security_.check(request);
  if (status.ok()) return std::nullopt;
  return Error(absl::IsUnauthenticated(status) ? 401 : 403, std::string(status.message()));
}

HttpResponse HttpServer::Impl::Answer(const Exchange& exchange) const {
  const HttpRequest& request = exchange.request;
  if (!exchange.judged) {
    if (std::optional<HttpResponse> refused = Judge(request); refused.has_value()) return *std::move(refused);
  }
  const Paths& paths = IsPost(request.path) ? posts_.paths : paths_;
  const auto found = paths.find(request.path);
  if (found == paths.end()) return Error(404, absl::StrCat("there is nothing at ", request.path));
  return found->second(request);
}

void HttpServer::Impl::RunHandlers() {
  MutexLock lock(&mu_);
  for (;;) {
    while (suspended_.empty() && !stopping_) changed_.Wait(&mu_);
    if (suspended_.empty()) return;
    const auto [connection, exchange] = suspended_.front();
    suspended_.pop_front();
    mu_.Unlock();
    exchange->answer = Answer(*exchange);
    Zip(exchange);
    exchange->answered = true;
    MHD_resume_connection(connection);
    eventfd_write(wake_, 1);
    mu_.Lock();
  }
}

const HttpTls& HttpServer::Impl::TlsOf(gnutls_session_t session) {
  auto* const connection = static_cast<MHD_Connection*>(gnutls_session_get_ptr(session));
  const void* const self = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
  return *static_cast<const Impl*>(self)->tls_;
}

int HttpServer::Impl::OnHandshake(gnutls_session_t session, const gnutls_cert_retr_st*, gnutls_pcert_st** chain,
                                  unsigned* chain_size, gnutls_ocsp_data_st**, unsigned* ocsp_size,
                                  gnutls_privkey_t* key, unsigned* flags) {
  *ocsp_size = 0;
  *flags = GNUTLS_CERT_RETR_DEINIT_ALL;
  return TlsOf(session).Configure(session, &OnClientCertificate, chain, chain_size, key);
}

int HttpServer::Impl::OnClientCertificate(gnutls_session_t session) { return TlsOf(session).CheckClient(session); }

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen, Paths paths) {
  return Start(listen, std::move(paths), Security());
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen, Paths paths, Security security,
                                                              std::chrono::milliseconds timeout) {
  return Start(listen, std::move(paths), Posts(), std::move(security), timeout);
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen, Paths paths, Posts posts,
                                                              Security security, std::chrono::milliseconds timeout) {
  auto impl = std::make_unique<Impl>(std::move(paths), std::move(posts), std::move(security), timeout);
  LODESTONE_RETURN_IF_ERROR(impl->Start(listen));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

uint16_t HttpServer::port() const { return impl_->port(); }
void HttpServer::Stop() { impl_->Stop(); }

}  // namespace lodestone
