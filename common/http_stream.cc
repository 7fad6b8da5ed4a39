#include "common/http_stream.h"

#include <arpa/inet.h>
#include <netinet/in.h>
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

HttpStream::HttpStream(int socket) : socket_(socket), read_by_(std::chrono::steady_clock::now() + kTimeout) {}

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

ssize_t HttpStream::Receive(char* to, size_t size) { return recv(socket_, to, size, MSG_DONTWAIT); }
ssize_t HttpStream::Send(const char* from, size_t size) {
  return send(socket_, from, size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t HttpStream::Fill(Deadline deadline) {
  if (received_ >= limits::kHttpRequestBytesMax) return 0;
  const size_t room = std::min(buffer_.size(), limits::kHttpRequestBytesMax - received_);
  for (;;) {
    if (!Await(POLLIN, deadline)) return -1;
    const ssize_t received = Receive(buffer_.data(), room);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) continue;
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
  for (;;) {
    if (!Await(POLLOUT, *write_by_)) return -1;
    const ssize_t sent = Send(from, size);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    return sent;
  }
}

void HttpStream::Linger() {
  if (shutdown(socket_, SHUT_WR) != 0 || !write_by_.has_value()) return;
  // A request that was too long may go on for a while.
  for (size_t left = kLingerBytesMax; left > 0 && Await(POLLIN, *write_by_);) {
    const ssize_t received = Receive(buffer_.data(), std::min(buffer_.size(), left));
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (received <= 0) return;
    left -= static_cast<size_t>(received);
  }
}

bool HttpStream::is_readable() const { return from_ < end_ || Await(POLLIN, read_by_); }

bool HttpStream::is_writable() const {
  return Await(POLLOUT, write_by_.value_or(std::chrono::steady_clock::now() + kTimeout));
}

void HttpStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  Describe(getpeername, socket_, &ip, &port);
}

void HttpStream::get_local_ip_and_port(std::string& ip, int& port) const { Describe(getsockname, socket_, &ip, &port); }

}  // namespace lodestone
