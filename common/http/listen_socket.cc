#include "common/http/listen_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"

namespace lodestone {
namespace {

// A listening socket, or UNAVAILABLE.
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

}  // namespace

absl::StatusOr<int> ListenOn(const std::string& listen) {
  const absl::StatusOr<HostPort> wanted = ParseHostPort(listen);
  if (!wanted.ok()) return wanted.status();
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const bool any = wanted->host.empty() || wanted->host == "*";
  // The wildcard address of IPv6 accepts IPv4 too, where there is IPv6.
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

std::string AddressText(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET6) {
    const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(address);
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
    return FormatHostPort({text, ntohs(v6->sin6_port)});
  }
  const auto* const v4 = reinterpret_cast<const sockaddr_in*>(address);
  inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
  return FormatHostPort({text, ntohs(v4->sin_port)});
}

}  // namespace lodestone
