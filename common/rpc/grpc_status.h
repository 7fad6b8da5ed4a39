// Conversions between absl::Status and gRPC's own status, which has the same codes.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace lodestone {

// The same code and message.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// What a call of ours ended with. A connection that breaks, or a peer that shuts down, ends it with UNAVAILABLE, but
// now and then with CANCELLED or UNKNOWN, which no method answers by itself: those are UNAVAILABLE here.
absl::Status FromCall(const grpc::Status& status);

}  // namespace lodestone
