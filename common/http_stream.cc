#include "common/http_stream.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/limits.h"

namespace lodestone {
namespace {

constexpr std::chrono::milliseconds kTimeout(limits::kHttpTimeoutMs);
constexpr size_t kLingerBytesMax = 256 << 10;  // Of a request that nobody reads any more.
constexpr size_t kPieceBytesMax = 1 << 20;     // That OpenSSL is given at a time.

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

HttpStream::HttpStream(int socket, SSL_CTX* tls)
    : socket_(socket),
      tls_(tls == nullptr ? nullptr : SSL_new(tls), SSL_free),
      read_by_(std::chrono::steady_clock::now() + kTimeout) {
  if (tls_ == nullptr) return;
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  SSL_set_fd(tls_.get(), socket);
  SSL_set_mode(tls_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
}

bool HttpStream::Handshake() {
  if (tls_ == nullptr) return false;  // OpenSSL had no memory for it.
  for (;;) {
    const ssize_t done = FromTls(SSL_accept(tls_.get()));
    if (done > 0) return true;
    if (done == 0 || errno != EAGAIN || !Await(wanted_, read_by_)) return false;
  }
}

ssize_t HttpStream::FromTls(int result) {
  if (result > 0) return result;
  const int error = SSL_get_error(tls_.get(), result);
  ERR_clear_error();
  if (error == SSL_ERROR_ZERO_RETURN) return 0;
  wanted_ = error == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
  errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : ECONNABORTED;
  return -1;
}

bool HttpStream::Await(short events, Deadline deadline) const {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd wait = {socket_, events, 0};
    const int ready = poll(&wait, 1, static_cast<int>(left.count()));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

ssize_t HttpStream::Receive(char* to, size_t size) {
  if (tls_ != nullptr) return FromTls(SSL_read(tls_.get(), to, static_cast<int>(std::min(size, kPieceBytesMax))));
  wanted_ = POLLIN;
  return recv(socket_, to, size, MSG_DONTWAIT);
}

ssize_t HttpStream::Send(const char* from, size_t size) {
  if (tls_ != nullptr) return FromTls(SSL_write(tls_.get(), from, static_cast<int>(std::min(size, kPieceBytesMax))));
  wanted_ = POLLOUT;
  return send(socket_, from, size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t HttpStream::Fill(Deadline deadline) {
  if (received_ >= limits::kHttpRequestBytesMax) return 0;
  const size_t room = std::min(buffer_.size(), limits::kHttpRequestBytesMax - received_);
  for (;;) {
    // OpenSSL may hold what the socket does not any more: it is asked first.
    const ssize_t received = Receive(buffer_.data(), room);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (!Await(wanted_, deadline)) return -1;
      continue;
    }
    from_ = 0;
    end_ = received > 0 ? static_cast<size_t>(received) : 0;
    received_ += end_;
    return received;
  }
}

ssize_t HttpStream::read(char* to, size_t size) {
  if (from_ == end_) {
    if (const ssize_t filled = Fill(read_by_); filled <= 0) return filled;
  }
  const size_t taken = std::min(size, end_ - from_);
  std::memcpy(to, buffer_.data() + from_, taken);
  from_ += taken;
  return static_cast<ssize_t>(taken);
}

ssize_t HttpStream::write(const char* from, size_t size) {
  if (!write_by_.has_value()) write_by_ = std::chrono::steady_clock::now() + kTimeout;
  if (size == 0) return 0;
  for (;;) {
    const ssize_t sent = Send(from, size);
    if (sent >= 0 || (errno != EAGAIN && errno != EINTR)) return sent;
    if (!Await(wanted_, *write_by_)) return -1;
  }
}

void HttpStream::Linger() {
  if (tls_ != nullptr) SSL_shutdown(tls_.get());
  if (shutdown(socket_, SHUT_WR) != 0 || !write_by_.has_value()) return;
  // A request that was too long may go on for a while. It is thrown away as it comes, under TLS too.
  for (size_t left = kLingerBytesMax; left > 0 && Await(POLLIN, *write_by_);) {
    const ssize_t received = recv(socket_, buffer_.data(), std::min(buffer_.size(), left), MSG_DONTWAIT);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (received <= 0) return;
    left -= static_cast<size_t>(received);
  }
}

bool HttpStream::is_readable() const {
  return from_ < end_ || (tls_ != nullptr && SSL_pending(tls_.get()) > 0) || Await(POLLIN, read_by_);
}

bool HttpStream::is_writable() const {
  return Await(POLLOUT, write_by_.value_or(std::chrono::steady_clock::now() + kTimeout));
}

void HttpStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  Describe(getpeername, socket_, &ip, &port);
}

void HttpStream::get_local_ip_and_port(std::string& ip, int& port) const { Describe(getsockname, socket_, &ip, &port); }

}  // namespace lodestone
