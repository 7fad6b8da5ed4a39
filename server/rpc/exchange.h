// The method Exchange of ParameterServer: streams of calls, many at a time over one connection. They do the same work
// as the unary methods (parameter_service.h) for a fraction of their CPU time.
//
// A stream continues to be read while its calls run, until limits::kExchangeCallsMax of them or
// limits::kExchangeBytesMax are unanswered, or there is no room in the memory that all calls of the ps share
// (call_memory.h); then the connection's flow control holds the client back. What pulls waits for room for its answer
// (but for the push of a PushPull), and calls that come later may be done before it. A client that does not read what
// it asked for loses its stream while calls wait for room. The answers that a message's calls get at once go
// together into one message, and so do those that arrive during a write. Repeated lists of keys are cached per stream
// (key_list_cache.h).
//
// Thread-safe. Store and Broadcaster must outlive it, and it must outlive the gRPC server.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/auth/access.h"
#include "server/rpc/key_list_cache.h"
#include "server/rpc/shared_values.h"

namespace lodestone::server {

class Broadcaster;
class CallMemory;
class ExchangeStream;
class Store;

class Exchange {
 public:
  // `incarnation`: of this ps process, for EnsureTables. `name`: of this ps (common/wire/ps_name.h); a stream that
  // means another ps is ended with UNAVAILABLE before anything is read from it. `access`: authorizes callers; null:
  // every call is allowed. It must outlive the gRPC server. `shared_use`: the policy for memory that clients offer,
  // asked for each message; null: it is refused. `memory`: what all calls may take; null: the streams' own bounds only.
  Exchange(Store* store, Broadcaster* broadcaster, Incarnation incarnation, std::string name = "",
           Access* access = nullptr, std::function<SharedUse()> shared_use = nullptr, CallMemory* memory = nullptr)
      : store_(store),
        broadcaster_(broadcaster),
        incarnation_(incarnation),
        name_(std::move(name)),
        access_(access),
        shared_use_(std::move(shared_use)),
        memory_(memory) {}

  // The reactor of a new stream, owned by gRPC.
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Open(grpc::CallbackServerContext* context);
  // About once a second: where calls wait for memory, ends the streams whose clients do not read what they asked for.
  void Tick();
  // Ends all streams and later ones with UNAVAILABLE, each once the calls it has read are answered.
  void Drain();

 private:
  // UNAVAILABLE if the caller means another ps.
  absl::Status CheckMeant(const grpc::CallbackServerContext& context) const;
  // Those that there are.
  std::vector<std::shared_ptr<ExchangeStream>> Streams();

  Store* const store_;
  Broadcaster* const broadcaster_;
  const Incarnation incarnation_;
  const std::string name_;
  Access* const access_;
  const std::function<SharedUse()> shared_use_;
  CallMemory* const memory_;

  // Of the streams' caches; calls may keep a stream longer than this lives.
  const std::shared_ptr<KeyListPool> key_list_pool_ = std::make_shared<KeyListPool>();

  Mutex mu_;
  std::vector<std::weak_ptr<ExchangeStream>> streams_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lodestone::server
