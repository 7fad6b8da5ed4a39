// The address at which a worker's process can be seen to live, as far as it can be believed.
//
// Thread safety: a function. It waits for no other machine.
#pragma once

#include <string>

#include "proto/coordinator.pb.h"

namespace lodestone::server {

// JoinRequest.watched_at of a worker, if its host is the one that the Join came from: `peer`, as gRPC writes it
// ("ipv4:10.0.0.7:51234"). Otherwise the coordinator may find another process there, or none (the address was
// translated on the way), which says nothing of the worker's life: empty. So it is with a loopback address that refuses
// connections: the worker's machine is at the other end of a tunnel.
std::string WatchedAddress(const v1::JoinRequest& request, const std::string& peer);

}  // namespace lodestone::server
