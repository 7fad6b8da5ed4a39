// What the calls of ParameterServer do once their bytes have been taken apart, whichever way they came: unary methods
// (service.h) or Exchange (exchange.h). Push and Pull are the store's own.
//
// Thread-safe; callbacks run on the calling thread or on an executor's.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "grpcpp/support/slice.h"
#include "proto/parameter_server.pb.h"
#include "server/store/request_payload.h"
#include "server/store/store.h"

namespace lodestone::server {

// The answer of a PushPull, without its payload, and the payload.
struct PushPullValues {
  v1::PushPullResponse header;
  std::vector<grpc::Slice> payload;
};

// Pushes, then pulls. The payloads of `header`'s push and pull are empty; the numbers of both are in `numbers`.
void RunPushPull(Store* store, v1::PushPullRequest header, RequestPayload numbers,
                 std::function<void(absl::StatusOr<PushPullValues>)> done);

// EnsureTables on this ps, which is called `server`.
absl::StatusOr<v1::EnsureTablesResponse> RunEnsureTables(Store* store, Incarnation server,
                                                         const v1::EnsureTablesRequest& request);

}  // namespace lodestone::server
