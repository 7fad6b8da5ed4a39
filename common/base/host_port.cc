#include "common/base/host_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace lodestone {
namespace {

constexpr size_t kHostBytesMax = 253;  // Of a DNS name.
constexpr int kPortMax = 65535;

absl::Status Invalid(std::string_view address, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("`", std::string(address.substr(0, 2 * kHostBytesMax)), "` is not host:port: ", std::string(what)));
}

bool IsIpv6(const std::string& host) {
  in6_addr number;
  return inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &number) == 1;  // Without "%interface".
}

// Letters, digits, "-", "_" and "." only: what a name or an IPv4 number may have.
bool IsName(std::string_view host) {
  return std::all_of(host.begin(), host.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.'; });
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(std::string_view address) {
  HostPort result;
  if (const size_t scheme = address.find("://"); scheme != std::string_view::npos) {
    return Invalid(address, absl::StrCat("leave out `", std::string(address.substr(0, scheme + 3)),
                                         "` and everything after the port"));
  }
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) {
    const bool is_port = !address.empty() && std::all_of(address.begin(), address.end(), absl::ascii_isdigit);
    return Invalid(address, is_port ? "it has no host: put one before the port, as 127.0.0.1:PORT" : "it has no port");
  }
  std::string_view host = address.substr(0, colon);
  const std::string_view port = address.substr(colon + 1);
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return Invalid(address, "`]` and a port are missing");
    host = host.substr(1, host.size() - 2);
    if (!IsIpv6(std::string(host))) return Invalid(address, "what is in brackets is no IPv6 number");
  } else if (host.find(':') != std::string_view::npos) {
    return Invalid(address, "an IPv6 number stands in brackets, [::1]:7000");
  } else if (host != "*" && (!IsName(host) || host.size() > kHostBytesMax)) {
    return Invalid(address, "the host is neither a name nor a number");
  }
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), result.port);
  const bool digits = !port.empty() && std::all_of(port.begin(), port.end(), absl::ascii_isdigit);
  if (!digits || error != std::errc() || end != port.data() + port.size() || result.port > kPortMax) {
    return Invalid(address, "the port is no number from 0 to 65535");
  }
  result.host = std::string(host);
  return result;
}

std::string FormatHostPort(const HostPort& address) {
  const bool brackets = address.host.find(':') != std::string::npos;
  return brackets ? absl::StrCat("[", address.host, "]:", address.port) : absl::StrCat(address.host, ":", address.port);
}

bool IsWildcard(std::string_view host) {
  if (host.empty() || host == "*") return true;
  in_addr v4;
  if (inet_pton(AF_INET, std::string(host).c_str(), &v4) == 1) return v4.s_addr == htonl(INADDR_ANY);
  in6_addr v6;
  return inet_pton(AF_INET6, std::string(host).c_str(), &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6);
}

bool IsLoopback(std::string_view host) {
  if (host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, std::string(host).c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, std::string(host).c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace lodestone
