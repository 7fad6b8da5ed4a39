// The sockets of an HTTP port: the one that it listens on, and the addresses of both sides.
//
// Thread safety: pure functions.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace lodestone {

// A socket that listens on the first of the addresses of `listen`, host:port, that can be bound; it does not block, and
// the caller closes it. INVALID_ARGUMENT if `listen` is no address; UNAVAILABLE "cannot listen on ...".
absl::StatusOr<int> ListenOn(const std::string& listen);

// The port that a socket is bound to.
uint16_t PortOf(int fd);

// host:port of an IPv4 or IPv6 address.
std::string AddressText(const sockaddr* address);

}  // namespace lodestone
