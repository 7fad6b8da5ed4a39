#include "common/rpc/life_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/status.h"

namespace lodestone {
namespace {

// Connections that the kernel holds: two of each coordinator that there was in this process's life.
constexpr int kConnectionsHeld = 128;

constexpr int kLoopbackMs = 100;  // For an answer of this machine; that none comes says nothing.

struct Interface {
  sockaddr_storage bytes{};
  socklen_t size = sizeof(bytes);

  sockaddr* address() { return reinterpret_cast<sockaddr*>(&bytes); }
  void SetPort(in_port_t port) {
    if (bytes.ss_family == AF_INET) reinterpret_cast<sockaddr_in&>(bytes).sin_port = port;
    if (bytes.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(bytes).sin6_port = port;
  }
};

absl::Status Failed(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

// This machine's own end of the way to `to`; no packet is sent.
absl::StatusOr<Interface> OwnEnd(const addrinfo& to) {
  const int fd = socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Failed("a socket");
  const absl::Cleanup closes = [fd] { close(fd); };
  Interface own;
  if (connect(fd, to.ai_addr, to.ai_addrlen) != 0) return Failed("the way there");
  if (getsockname(fd, own.address(), &own.size) != 0) return Failed("getsockname");
  own.SetPort(0);
  return own;
}

absl::StatusOr<std::string> NameOf(Interface own) {
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  if (getnameinfo(own.address(), own.size, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) !=
      0) {
    return absl::UnavailableError("the address of a socket cannot be written");
  }
  HostPort address{host, 0};
  if (!absl::SimpleAtoi(port, &address.port)) return absl::UnavailableError("a socket without a port");
  return FormatHostPort(address);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LifeSocket>> LifeSocket::Towards(const std::string& peer) {
  LODESTONE_ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(peer));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found) != 0) {
    return absl::UnavailableError(absl::StrCat("the name ", where.host, " is not found"));
  }
  const absl::Cleanup frees = [found] { freeaddrinfo(found); };
  absl::StatusOr<Interface> own = absl::UnavailableError("no address");
  for (const addrinfo* to = found; to != nullptr && !own.ok(); to = to->ai_next) own = OwnEnd(*to);
  LODESTONE_RETURN_IF_ERROR(own.status());
  const int fd = socket(own->bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return Failed("a socket");
  std::unique_ptr<LifeSocket> made(new LifeSocket(fd));
  if (bind(fd, own->address(), own->size) != 0) return Failed("bind");
  if (listen(fd, kConnectionsHeld) != 0) return Failed("listen");
  if (getsockname(fd, own->address(), &own->size) != 0) return Failed("getsockname");
  LODESTONE_ASSIGN_OR_RETURN(made->address_, NameOf(*own));
  return made;
}

LifeSocket::~LifeSocket() { close(fd_); }

bool LifeSocket::MayBeHere(const std::string& address) {
  const absl::StatusOr<HostPort> where = ParseHostPort(address);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (!where.ok() || getaddrinfo(where->host.c_str(), std::to_string(where->port).c_str(), &hints, &found) != 0) {
    return false;
  }
  const absl::Cleanup frees = [found] { freeaddrinfo(found); };
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return true;
  const absl::Cleanup closes = [fd] { close(fd); };
  if (connect(fd, found->ai_addr, found->ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return errno != ECONNREFUSED;
  pollfd answered{fd, POLLOUT, 0};
  int error = 0;
  socklen_t size = sizeof(error);
  if (poll(&answered, 1, kLoopbackMs) == 1) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error != ECONNREFUSED;
}

}  // namespace lodestone
