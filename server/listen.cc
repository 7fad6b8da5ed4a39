#include "server/listen.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/status.h"
#include "common/rpc/local_socket.h"
#include "common/telemetry/log.h"

namespace lodestone::server {
namespace {

// 0, or the errno of what failed.
int TryBind(const addrinfo& address) {
  const int fd = socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol);
  if (fd < 0) return errno;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  int error = 0;
  if (bind(fd, address.ai_addr, address.ai_addrlen) != 0 || listen(fd, 1) != 0) error = errno;
  close(fd);
  return error;
}

}  // namespace

absl::Status CheckAddresses(const std::string& listen, const std::string& advertise) {
  const absl::StatusOr<HostPort> bind = ParseHostPort(listen);
  if (!bind.ok()) return Annotate(bind.status(), "server.listen");
  if (advertise.empty()) {
    if (!IsWildcard(bind->host)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("server.listen is ", listen,
                                                   ", all interfaces, which others cannot connect to: set "
                                                   "server.advertise to the host:port that they can reach"));
  }
  const absl::StatusOr<HostPort> advertised = ParseHostPort(advertise);
  if (!advertised.ok()) return Annotate(advertised.status(), "server.advertise");
  if (!IsWildcard(advertised->host)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("server.advertise is ", advertise, ", all interfaces, which others cannot connect to"));
}

std::string AdvertisedAddress(const std::string& listen, const std::string& advertise, int bound_port) {
  HostPort advertised = *ParseHostPort(advertise.empty() ? listen : advertise);
  if (advertised.port == 0) advertised.port = bound_port;
  return FormatHostPort(advertised);
}

absl::Status CheckCanBind(const std::string& listen) {
  const absl::StatusOr<HostPort> wanted = ParseHostPort(listen);
  if (!wanted.ok()) return wanted.status();
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const bool any = wanted->host.empty() || wanted->host == "*";
  addrinfo* found = nullptr;
  const int failed =
      getaddrinfo(any ? nullptr : wanted->host.c_str(), std::to_string(wanted->port).c_str(), &hints, &found);
  if (failed != 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", listen, ": ", gai_strerror(failed)));
  }
  int error = 0;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    error = TryBind(*address);
    if (error == 0) break;
  }
  freeaddrinfo(found);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot listen on ", listen, ": ", std::strerror(error)));
}

std::string ListenLocally(grpc::ServerBuilder* builder, const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  std::string name = DrawLocalSocket();
  if (const absl::Status tried = TryLocalSocket(name); !tried.ok()) {
    LODESTONE_LOG(WARN, "server", "workers of this machine will use TCP reason={}", tried.ToString());
    return "";
  }
  builder->AddListeningPort(LocalSocketTarget(name), credentials);
  return name;
}

}  // namespace lodestone::server
