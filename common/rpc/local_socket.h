// The Unix sockets at which a ps is reached by the processes of its own machine, more exactly of its network namespace:
// abstract ones, which have no file and go with the process. Their names are drawn at random for each life of a ps, so
// that no process can bind one beforehand, and published in the shard map.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lodestone {

// A name that nothing else has.
std::string DrawLocalSocket();

// INVALID_ARGUMENT if `name` cannot be one of DrawLocalSocket's.
absl::Status CheckLocalSocket(absl::string_view name);

// UNAVAILABLE, with the reason, if this process cannot have a socket called `name`.
absl::Status TryLocalSocket(const std::string& name);

// Whether something listens at the socket called `name`, here. Does not block for long: there is no network.
bool IsListeningHere(const std::string& name);

// What gRPC calls it, as the target of a channel and as a port of a server.
std::string LocalSocketTarget(absl::string_view name);

}  // namespace lodestone
