// The addresses at which a ps listens and others find it.
//
// Thread safety: pure functions, but for CheckCanBind and ListenLocally, which ask the system.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace lodestone::server {

// Checks server.listen and server.advertise before anything is bound: INVALID_ARGUMENT if one is malformed, if
// `advertise` is a wildcard, or if `listen` is one and `advertise` is empty.
absl::Status CheckAddresses(const std::string& listen, const std::string& advertise);

// The address that others get, once `listen` is bound to `bound_port`: `advertise`, or `listen` if that is empty;
// port 0 stands for the bound one. REQUIRES: CheckAddresses is OK.
std::string AdvertisedAddress(const std::string& listen, const std::string& advertise, int bound_port);

// Tries whether `listen` can be bound, and lets it go again. UNAVAILABLE "cannot listen on HOST:PORT: reason" if not.
absl::Status CheckCanBind(const std::string& listen);

// Has what is built listen at a Unix socket too, with `credentials`, and returns its name (common/rpc/local_socket.h);
// "" if that is not possible here, which is logged.
std::string ListenLocally(grpc::ServerBuilder* builder, const std::shared_ptr<grpc::ServerCredentials>& credentials);

}  // namespace lodestone::server
