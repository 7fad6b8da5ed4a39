// The calls of ParameterServer that are more than one of the store: the same for unary methods (parameter_service.h)
// and streams (exchange.h). Push and Pull are the store's own.
//
// Thread-safe; callbacks run on the calling thread or on an executor's.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "grpcpp/support/slice.h"
#include "proto/parameter_server.pb.h"
#include "server/store/request_payload.h"

namespace lodestone::server {

class Store;

// The answer of a PushPull: its header, without payload, and the payload.
struct PushPullValues {
  v1::PushPullResponse header;
  std::vector<grpc::Slice> payload;
};

// A PushPull that has been checked as far as it can be before it pushes.
struct PushPullCall;

// Checks a PushPull, whose pull must be possible for its push to be applied. The payload fields of `header`'s push and
// pull must be empty: `numbers` has the payload of the push, followed by that of the pull.
absl::StatusOr<std::shared_ptr<PushPullCall>> CheckPushPull(Store* store, v1::PushPullRequest header,
                                                            RequestPayload numbers);
// Bytes of the values in its answer.
size_t PushPullAnswerBytes(const PushPullCall& call);
// The two halves of a PushPull, in this order; the second where the first was OK. Between them the caller may wait for
// room for the answer: a push never waits for that, because a pull that has some may wait for the push.
void RunPushOf(Store* store, const std::shared_ptr<PushPullCall>& call, std::function<void(const absl::Status&)> done);
void RunPullOf(Store* store, const std::shared_ptr<PushPullCall>& call,
               std::function<void(absl::StatusOr<PushPullValues>)> done);
// Both, for a caller that has the room already.
void RunPushPull(Store* store, const std::shared_ptr<PushPullCall>& call,
                 std::function<void(absl::StatusOr<PushPullValues>)> done);

// EnsureTables on the ps of incarnation `server`. Does not block; `done` as Store's.
void RunEnsureTables(Store* store, Incarnation server, v1::EnsureTablesRequest request,
                     std::function<void(absl::StatusOr<v1::EnsureTablesResponse>)> done);

}  // namespace lodestone::server
