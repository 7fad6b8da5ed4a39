#include "tools/bench/load/raw_socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"

namespace lodestone::bench {
namespace {

constexpr int kBacklog = 64;

void SetNoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // Not for Unix sockets, which have no such delay.
}

}  // namespace

absl::StatusOr<Listener> Listen(Transport transport) {
  Listener listener;
  const int family = transport == Transport::kTcp ? AF_INET : AF_UNIX;
  listener.address.ss_family = static_cast<sa_family_t>(family);
  listener.address_size = sizeof(sa_family_t);  // Unix: the kernel finds a name.
  if (transport == Transport::kTcp) {
    reinterpret_cast<sockaddr_in*>(&listener.address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener.address_size = sizeof(sockaddr_in);
  }
  listener.fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto* const address = reinterpret_cast<sockaddr*>(&listener.address);
  if (listener.fd < 0 || bind(listener.fd, address, listener.address_size) != 0 || listen(listener.fd, kBacklog) != 0) {
    return absl::ErrnoToStatus(errno, "listening for the limit's connections");
  }
  listener.address_size = sizeof(listener.address);
  getsockname(listener.fd, address, &listener.address_size);
  return listener;
}

absl::StatusOr<int> ConnectTo(const Listener& listener) {
  const int fd = socket(listener.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, reinterpret_cast<const sockaddr*>(&listener.address), listener.address_size) != 0) {
    return absl::ErrnoToStatus(errno, "connecting to the limit's server");
  }
  SetNoDelay(fd);
  return fd;
}

int AcceptFrom(const Listener& listener) {
  int fd;
  do {
    fd = accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC);
  } while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
  if (fd >= 0) SetNoDelay(fd);
  return fd;
}

bool SendMessage(int fd, const void* head, size_t head_size, const void* body, size_t body_size) {
  iovec parts[2] = {{const_cast<void*>(head), head_size}, {const_cast<void*>(body), body_size}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  while (parts[0].iov_len + parts[1].iov_len > 0) {
    const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    size_t left = static_cast<size_t>(sent);
    for (iovec& part : parts) {
      const size_t of_part = std::min(left, part.iov_len);
      part.iov_base = static_cast<uint8_t*>(part.iov_base) + of_part;
      part.iov_len -= of_part;
      left -= of_part;
    }
  }
  return true;
}

bool SocketReader::Read(void* data, size_t size) {
  auto* at = static_cast<uint8_t*>(data);
  for (;;) {
    const size_t buffered = std::min(size, end_ - begin_);
    if (buffered > 0) std::memcpy(at, buffer_.data() + begin_, buffered);
    begin_ += buffered;
    at += buffered;
    size -= buffered;
    if (size == 0) return true;
    // The rest goes to its place, and what comes after it into the buffer.
    iovec parts[2] = {{at, size}, {buffer_.data(), buffer_.size()}};
    const ssize_t got = readv(fd_, parts, 2);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    const size_t direct = std::min(size, static_cast<size_t>(got));
    at += direct;
    size -= direct;
    begin_ = 0;
    end_ = static_cast<size_t>(got) - direct;
  }
}

}  // namespace lodestone::bench
