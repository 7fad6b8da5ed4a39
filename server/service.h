// The ParameterServer service: bytes in, Store or Broadcaster, bytes out. Push, Pull, PushPull and Subscribe take and
// give ByteBuffers, so that payloads are used where they lie (common/wire.h); to a client they look like any other
// method. The stream Exchange is taken by exchange.h.
//
// Thread-safe. Store and Broadcaster must outlive the gRPC server that the service is registered with, and so must the
// service. Calls end when the store has answered: a client that goes away earlier leaves nothing behind.
#pragma once

#include "common/types.h"
#include "grpcpp/support/byte_buffer.h"
#include "proto/parameter_server.grpc.pb.h"
#include "server/broadcast.h"
#include "server/exchange.h"
#include "server/store.h"

namespace lodestone {

namespace internal {
// Which methods are raw; the generated classes nest.
using ParameterServerBase = v1::ParameterServer::WithCallbackMethod_EnsureTables<
    v1::ParameterServer::WithRawCallbackMethod_Push<v1::ParameterServer::WithRawCallbackMethod_Pull<
        v1::ParameterServer::WithRawCallbackMethod_PushPull<v1::ParameterServer::WithRawCallbackMethod_Subscribe<
            v1::ParameterServer::WithRawCallbackMethod_Exchange<v1::ParameterServer::Service>>>>>>;
}  // namespace internal

class ParameterService final : public internal::ParameterServerBase {
 public:
  // `incarnation`: what EnsureTables tells of this ps process.
  ParameterService(Store* store, Broadcaster* broadcaster, lodestone::Exchange* exchange, Incarnation incarnation)
      : store_(store), broadcaster_(broadcaster), exchange_(exchange), incarnation_(incarnation) {}

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
  Store* const store_;
  Broadcaster* const broadcaster_;
  lodestone::Exchange* const exchange_;
  const Incarnation incarnation_;
};

}  // namespace lodestone
