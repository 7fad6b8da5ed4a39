#include "common/http/http_stream.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "common/base/limits.h"

namespace lodestone {
namespace {

constexpr size_t kDrainBytesMax = 256 << 10;  // Of a request that nobody reads any more.
constexpr size_t kPieceBytesMax = 1 << 20;    // That OpenSSL is given at a time.

// Takes an address apart; what it is of is what `ask` (getpeername or getsockname) tells.
void Describe(int (*ask)(int, sockaddr*, socklen_t*), int socket, std::string* ip, int* port) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (ask(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return;
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET6) {
    const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(&address);
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
    *port = ntohs(v6->sin6_port);
  } else if (address.ss_family == AF_INET) {
    const auto* const v4 = reinterpret_cast<const sockaddr_in*>(&address);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
    *port = ntohs(v4->sin_port);
  }
  *ip = text;
}

}  // namespace

HttpStream::HttpStream(int socket, std::chrono::milliseconds timeout, SSL_CTX* tls)
    : socket_(socket),
      timeout_(timeout),
      tls_(tls == nullptr ? nullptr : SSL_new(tls), SSL_free),
      stage_(tls == nullptr ? Stage::kRequest : Stage::kHandshake),
      events_(POLLIN),
      deadline_(std::chrono::steady_clock::now() + timeout) {
  if (tls_ == nullptr) return;
  SSL_set_fd(tls_.get(), socket);
  SSL_set_mode(tls_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
}

HttpStream::~HttpStream() {
  tls_.reset();
  // The system would keep what it has of the answer for as long as the other side likes.
  const linger at_once = {1, 0};
  int untaken = 0;
  if (stage_ == Stage::kDrain && !drained_all_) ioctl(socket_, SIOCOUTQ, &untaken);
  if (stage_ == Stage::kAnswer || untaken > 0) {
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
  close(socket_);
}

HttpStream::Next HttpStream::Advance() {
  for (;;) {
    const Stage stage = stage_;
    Step step = Step::kFailed;
    switch (stage) {
      case Stage::kHandshake:
        step = Handshake();
        break;
      case Stage::kRequest:
        step = ReceiveRequest();
        break;
      case Stage::kAnswer:
        step = Send();
        break;
      case Stage::kDrain:
        step = Drain();
        break;
    }
    if (step == Step::kWaits) return Next::kPoll;
    if (stage == Stage::kDrain) drained_all_ = true;
    if (step == Step::kFailed || stage == Stage::kDrain) return Next::kEnd;
    if (stage == Stage::kRequest) return Next::kAnswer;
    stage_ = stage == Stage::kHandshake ? Stage::kRequest : Stage::kDrain;
  }
}

void HttpStream::SendAnswer() {
  stage_ = Stage::kAnswer;
  deadline_ = std::chrono::steady_clock::now() + timeout_;
}

void HttpStream::EndReceiving() const { shutdown(socket_, SHUT_RD); }

HttpStream::Step HttpStream::StepOf(ssize_t result) {
  return result < 0 && (errno == EAGAIN || errno == EINTR) ? Step::kWaits : Step::kFailed;
}

HttpStream::Step HttpStream::Handshake() {
  if (tls_ == nullptr) return Step::kFailed;  // OpenSSL had no memory for it.
  ERR_clear_error();
  const ssize_t done = FromTls(SSL_accept(tls_.get()));
  return done > 0 ? Step::kDone : StepOf(done);
}

bool HttpStream::IsWhole(size_t searched) const {
  if (request_.size() >= limits::kHttpRequestBytesMax) return true;
  const size_t line = request_.find('\n');
  if (line == std::string::npos) return false;
  // Without a first line that says what it is, there is no request.
  const absl::string_view first(request_.data(), line + 1);
  if (!absl::EndsWith(first, " HTTP/1.0\r\n") && !absl::EndsWith(first, " HTTP/1.1\r\n")) return true;
  return request_.find("\n\r\n", searched < 2 ? 0 : searched - 2) != std::string::npos;
}

HttpStream::Step HttpStream::ReceiveRequest() {
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t received =
        Receive(buffer.data(), std::min(buffer.size(), limits::kHttpRequestBytesMax - request_.size()));
    if (received == 0) return Step::kDone;  // The library says what it lacks.
    if (received < 0) return StepOf(received);
    const size_t searched = request_.size();
    request_.append(buffer.data(), static_cast<size_t>(received));
    if (IsWhole(searched)) return Step::kDone;
  }
}

HttpStream::Step HttpStream::Send() {
  const bool any = !answer_.empty();
  while (sent_ < answer_.size()) {
    const ssize_t sent = SendSome(answer_.data() + sent_, answer_.size() - sent_);
    if (sent <= 0) return StepOf(sent);
    sent_ += static_cast<size_t>(sent);
  }
  std::string().swap(answer_);
  sent_ = 0;
  stage_ = Stage::kDrain;  // Whatever comes of it: there is nothing more to take.
  if (tls_ != nullptr) {
    SSL_shutdown(tls_.get());
    ERR_clear_error();
  }
  return shutdown(socket_, SHUT_WR) == 0 && any ? Step::kDone : Step::kFailed;
}

HttpStream::Step HttpStream::Drain() {
  // A request that was too long may go on for a while. It is thrown away as it comes, under TLS too.
  std::array<char, 4096> buffer;
  while (drained_ < kDrainBytesMax) {
    events_ = POLLIN;
    const ssize_t received = recv(socket_, buffer.data(), buffer.size(), 0);
    if (received <= 0) return StepOf(received);
    drained_ += static_cast<size_t>(received);
  }
  return Step::kDone;
}

ssize_t HttpStream::FromTls(int result) {
  if (result > 0) return result;
  const int error = SSL_get_error(tls_.get(), result);
  ERR_clear_error();
  if (error == SSL_ERROR_ZERO_RETURN) return 0;
  events_ = error == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
  errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : ECONNABORTED;
  return -1;
}

ssize_t HttpStream::Receive(char* to, size_t size) {
  ERR_clear_error();  // Of what this thread did before: it would be taken for this one's.
  if (tls_ != nullptr) return FromTls(SSL_read(tls_.get(), to, static_cast<int>(size)));
  events_ = POLLIN;
  return recv(socket_, to, size, 0);
}

ssize_t HttpStream::SendSome(const char* from, size_t size) {
  ERR_clear_error();
  if (tls_ != nullptr) return FromTls(SSL_write(tls_.get(), from, static_cast<int>(std::min(size, kPieceBytesMax))));
  events_ = POLLOUT;
  return send(socket_, from, size, MSG_NOSIGNAL);
}

ssize_t HttpStream::read(char* to, size_t size) {
  const size_t taken = request_.copy(to, size, read_);
  read_ += taken;
  return static_cast<ssize_t>(taken);
}

ssize_t HttpStream::write(const char* from, size_t size) {
  answer_.append(from, size);
  return static_cast<ssize_t>(size);
}

void HttpStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  Describe(getpeername, socket_, &ip, &port);
}

void HttpStream::get_local_ip_and_port(std::string& ip, int& port) const { Describe(getsockname, socket_, &ip, &port); }

}  // namespace lodestone
