// The stream Exchange: the calls of ParameterServer, many at a time over one connection. The same work as the unary
// methods (service.h) for a fraction of their CPU time.
//
// A stream is read on while its calls run, until limits::kExchangeCallsMax of them or limits::kExchangeBytesMax are
// unanswered; then the connection's flow control holds the client back. The answers that a message's calls get at once
// go together into one message, and so do those that come while one is being written. (The rows that a pull copies
// count once they are copied: what the executors are at work on comes on top, at most kExchangeCallsMax answers of
// limits::kPullBytesMax.) Lists of keys that repeat are remembered, stream by stream (key_lists.h).
//
// Thread-safe. Store and Broadcaster must outlive it, and it must outlive the gRPC server.
#pragma once

#include <atomic>
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
#include "server/rpc/broadcaster.h"
#include "server/rpc/shared_values.h"
#include "server/store/store.h"

namespace lodestone::server {

class ExchangeStream;

class Exchange {
 public:
  // `incarnation`: what EnsureTables tells of this ps process. `name`: what it is called (common/wire/ps_name.h); a
  // stream that means another ps is ended with UNAVAILABLE before anything is read from it. `access`: who may make
  // which calls; null: everybody all. It must outlive the gRPC server. `shared_use`: what becomes of memory that
  // clients offer and of what lies in it, asked for each message; null: it is refused.
  Exchange(Store* store, Broadcaster* broadcaster, Incarnation incarnation, std::string name = "",
           Access* access = nullptr, std::function<SharedUse()> shared_use = nullptr)
      : store_(store),
        broadcaster_(broadcaster),
        incarnation_(incarnation),
        name_(std::move(name)),
        access_(access),
        shared_use_(std::move(shared_use)) {}

  // A new stream's end here, which is gRPC's.
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Open(grpc::CallbackServerContext* context);
  // Ends all streams, and those to come, with UNAVAILABLE, each once the calls it has read are answered.
  void Drain();

 private:
  friend class ExchangeStream;

  absl::Status CheckMeant(const grpc::CallbackServerContext& context) const;

  Store* const store_;
  Broadcaster* const broadcaster_;
  const Incarnation incarnation_;
  const std::string name_;
  Access* const access_;
  const std::function<SharedUse()> shared_use_;

  // That streams remember; calls may keep one of them for longer than this lives.
  const std::shared_ptr<std::atomic<size_t>> key_list_bytes_ = std::make_shared<std::atomic<size_t>>(0);

  Mutex mu_;
  std::vector<std::weak_ptr<ExchangeStream>> streams_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lodestone::server
