// Replication.Follow over gRPC, at the follower's end.
#pragma once

#include <memory>
#include <string>

#include "common/security/credentials.h"
#include "server/replication/follow_call.h"

namespace lodestone::server {

// The owner at `address`, which is called with `credentials`.
std::unique_ptr<FollowPlace> OverGrpc(const std::string& address, const CredentialsRef& credentials);

}  // namespace lodestone::server
