// The ParameterServer service: the unary methods and Subscribe on top of Store and Broadcaster. Push, Pull, PushPull
// and Subscribe receive and return ByteBuffers, so that payloads are used in place (common/wire/message.h); a client
// sees ordinary methods. Exchange serves the method of that name.
//
// Thread-safe. Store and Broadcaster must outlive the gRPC server that the service is registered with, and so must the
// service. A call ends when the store has answered, even if its client has disconnected.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "grpcpp/support/byte_buffer.h"
#include "proto/parameter_server.grpc.pb.h"
#include "server/auth/access.h"
#include "server/auth/authorized_caller.h"
#include "server/rpc/unary_calls.h"

namespace lodestone::server {

class Broadcaster;
class CallMemory;
class Exchange;
class Store;

namespace internal {
// The generated classes nest: one for each method, raw or not.
using ParameterServerBase = v1::ParameterServer::WithCallbackMethod_EnsureTables<
    v1::ParameterServer::WithRawCallbackMethod_Push<v1::ParameterServer::WithRawCallbackMethod_Pull<
        v1::ParameterServer::WithRawCallbackMethod_PushPull<v1::ParameterServer::WithRawCallbackMethod_Subscribe<
            v1::ParameterServer::WithRawCallbackMethod_Exchange<v1::ParameterServer::Service>>>>>>;
}  // namespace internal

class ParameterService final : public internal::ParameterServerBase {
 public:
  // `incarnation`: of this ps process, for EnsureTables. `access`: authorizes callers; null: every call is allowed. It
  // must outlive the gRPC server, and so must `memory`: what all calls may take; null: without bounds.
  ParameterService(Store* store, Broadcaster* broadcaster, lodestone::server::Exchange* exchange,
                   Incarnation incarnation, Access* access = nullptr, CallMemory* memory = nullptr)
      : store_(store),
        broadcaster_(broadcaster),
        exchange_(exchange),
        incarnation_(incarnation),
        access_(access),
        memory_(memory) {}

  // Ends the unary calls, as UnaryCalls. The stream of Exchange and the subscriptions have their own ends.
  void Drain(int64_t grace_ms) { unary_calls_.Drain(grace_ms); }

  grpc::ServerUnaryReactor* EnsureTables(grpc::CallbackServerContext* context, const v1::EnsureTablesRequest* request,
                                         v1::EnsureTablesResponse* response) override;
  grpc::ServerUnaryReactor* Push(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Pull(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* PushPull(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Subscribe(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Exchange(grpc::CallbackServerContext* context) override;

 private:
  // The caller; null: every call is allowed. UNAUTHENTICATED.
  absl::StatusOr<std::shared_ptr<Caller>> CallerOf(const grpc::CallbackServerContext& context) const;

  Store* const store_;
  Broadcaster* const broadcaster_;
  lodestone::server::Exchange* const exchange_;
  const Incarnation incarnation_;
  Access* const access_;
  CallMemory* const memory_;
  UnaryCalls unary_calls_;  // Synchronises itself.
};

}  // namespace lodestone::server
