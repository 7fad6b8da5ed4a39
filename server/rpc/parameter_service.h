// The ParameterServer service: bytes in, Store or Broadcaster, bytes out. Push, Pull, PushPull and Subscribe take and
// give ByteBuffers, so that payloads are used where they lie (common/wire/message.h); to a client they look like any
// other method. The stream Exchange is taken by exchange.h.
//
// Thread-safe. Store and Broadcaster must outlive the gRPC server that the service is registered with, and so must the
// service. Calls end when the store has answered: a client that goes away earlier leaves nothing behind.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "grpcpp/support/byte_buffer.h"
#include "proto/parameter_server.grpc.pb.h"
#include "server/auth/access.h"
#include "server/auth/authorized_caller.h"
#include "server/rpc/broadcaster.h"
#include "server/rpc/exchange.h"
#include "server/store/store.h"

namespace lodestone::server {

namespace internal {
// Which methods are raw; the generated classes nest.
using ParameterServerBase = v1::ParameterServer::WithCallbackMethod_EnsureTables<
    v1::ParameterServer::WithRawCallbackMethod_Push<v1::ParameterServer::WithRawCallbackMethod_Pull<
        v1::ParameterServer::WithRawCallbackMethod_PushPull<v1::ParameterServer::WithRawCallbackMethod_Subscribe<
            v1::ParameterServer::WithRawCallbackMethod_Exchange<v1::ParameterServer::Service>>>>>>;
}  // namespace internal

class ParameterService final : public internal::ParameterServerBase {
 public:
  // `incarnation`: what EnsureTables tells of this ps process. `access`: who may make which calls; null: everybody all.
  // It must outlive the gRPC server.
  ParameterService(Store* store, Broadcaster* broadcaster, lodestone::server::Exchange* exchange,
                   Incarnation incarnation, Access* access = nullptr)
      : store_(store), broadcaster_(broadcaster), exchange_(exchange), incarnation_(incarnation), access_(access) {}

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
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Exchange(grpc::CallbackServerContext* context) override {
    return exchange_->Open(context);
  }

 private:
  // Who calls; null: he may do everything. UNAUTHENTICATED.
  absl::StatusOr<std::shared_ptr<Caller>> CallerOf(const grpc::CallbackServerContext& context) const;
  // Ends a call in `hold_ms`.
  void Finish(grpc::ServerUnaryReactor* reactor, const absl::Status& status, int64_t hold_ms) const;

  Store* const store_;
  Broadcaster* const broadcaster_;
  lodestone::server::Exchange* const exchange_;
  const Incarnation incarnation_;
  Access* const access_;
};

}  // namespace lodestone::server
