// Network addresses as configurations and the coordinator write them: "host:port", "[v6]:port".
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lodestone {

// An address taken apart.
struct HostPort {
  std::string host;  // A name or number, without brackets; empty in ":7000".
  int port = 0;      // 0 to 65535.
};

// InvalidArgument says what is wrong with `address`. An IPv6 number stands in brackets.
absl::StatusOr<HostPort> ParseHostPort(std::string_view address);

// The reverse: brackets around a host that has colons.
std::string FormatHostPort(const HostPort& address);

// Whether `host` stands for all interfaces, so that one can bind it but not connect to it: "", "*", "0.0.0.0", "::".
bool IsWildcard(std::string_view host);

// Whether only processes of this machine can connect to `host`: "localhost", 127.0.0.0/8 or ::1.
bool IsLoopback(std::string_view host);

}  // namespace lodestone
