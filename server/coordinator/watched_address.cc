#include "server/coordinator/watched_address.h"

#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/host_port.h"
#include "common/rpc/life_socket.h"

namespace lodestone::server {

std::string WatchedAddress(const v1::JoinRequest& request, const std::string& peer) {
  if (request.role() != v1::ROLE_WORKER || request.watched_at().empty()) return "";
  const absl::StatusOr<HostPort> watched = ParseHostPort(request.watched_at());
  if (!watched.ok() || watched->port == 0) return "";
  absl::string_view caller = peer;
  if (!absl::ConsumePrefix(&caller, "ipv4:") && !absl::ConsumePrefix(&caller, "ipv6:")) return "";
  const absl::StatusOr<HostPort> from = ParseHostPort(absl::StrReplaceAll(caller, {{"%5B", "["}, {"%5D", "]"}}));
  if (!from.ok() || from->host != watched->host) return "";
  std::string address = FormatHostPort(*watched);
  return IsLoopback(watched->host) && !LifeSocket::MayBeHere(address) ? "" : address;
}

}  // namespace lodestone::server
