// A gRPC server, for tests, that takes any method and gives each call to a function, which may answer it when and how
// it likes. The calls of a stream Exchange come one by one, as if each were the unary method of its name.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/base/mutex.h"
#include "common/wire/message.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"
#include "proto/parameter_server.pb.h"
#include "server/rpc/key_list_cache.h"

namespace lodestone::worker {

// What a server does with lists of keys and parts of several shards, and what it has seen of lists.
struct FakeLists {
  std::atomic<bool> known{true};           // false: it is of a time before them.
  std::atomic<bool> several_shards{true};  // false: it is of a time before parts of several, and before brief answers.
  std::atomic<int> parts_of_several{0};    // That came.
  std::atomic<int> forgettings{0};         // Each time this changes, it forgets all.
  std::atomic<int> in_parts{0};
  std::atomic<int> first{0};
  std::atomic<int> remembered{0};
  std::atomic<int> forgotten{0};  // Of `remembered`.
  const std::shared_ptr<server::KeyListPool> pool = std::make_shared<server::KeyListPool>();
};

// One call. What is done to a call that the client has given up has no effect.
class FakeCall {
 public:
  // Where answers go.
  class Sink {
   public:
    virtual ~Sink() = default;
    virtual void Write(FakeCall* call, grpc::ByteBuffer message) = 0;
    virtual void Finish(FakeCall* call, const grpc::Status& status) = 0;
  };
  FakeCall(std::string method, std::string peer, std::string meant, uint64_t id, std::shared_ptr<Sink> sink)
      : method_(std::move(method)), peer_(std::move(peer)), meant_(std::move(meant)), id_(id), sink_(std::move(sink)) {}

  const std::string& method() const { return method_; }  // "Push".
  const std::string& peer() const { return peer_; }      // The client's address and port.
  const std::string& meant() const { return meant_; }    // The ps that its stream means (common/wire/ps_name.h).
  uint64_t id() const { return id_; }                    // Within a stream Exchange.
  const grpc::ByteBuffer& request() const { return request_; }
  // The keys of all rows parts, if they are not in the request.
  const std::optional<Payload>& keys() const { return keys_; }
  v1::Answer::Keys keys_outcome() const { return keys_outcome_; }
  bool over() const;  // Answered, or given up by the client.

  void Write(grpc::ByteBuffer message);
  void Write(const google::protobuf::MessageLite& message);
  void Finish(const grpc::Status& status);
  // Write, then Finish.
  void Reply(grpc::ByteBuffer message);
  void Reply(const google::protobuf::MessageLite& message);

 private:
  friend class FakeReactor;

  // The client has given it up.
  void Abandon();

  const std::string method_;
  const std::string peer_;
  const std::string meant_;
  const uint64_t id_;
  grpc::ByteBuffer request_;
  std::optional<Payload> keys_;
  v1::Answer::Keys keys_outcome_ = v1::Answer::NO_LIST;

  mutable Mutex mu_;
  std::shared_ptr<Sink> sink_ ABSL_GUARDED_BY(mu_);  // Null once it is over.
};

class FakeServer final : public grpc::CallbackGenericService {
 public:
  using Handler = std::function<void(std::shared_ptr<FakeCall>)>;
  // Listens on 127.0.0.1 at `port`, 0: a free one. Messages longer than `message_max_bytes` are refused. `lists`, which
  // must outlive this: null if it knows of none.
  explicit FakeServer(Handler handler, int port = 0, uint32_t message_max_bytes = 64 << 20, FakeLists* lists = nullptr);
  // Cancels all calls.
  ~FakeServer() override;

  int port() const { return port_; }
  std::string address() const;

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

  const Handler handler_;
  FakeLists* const lists_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace lodestone::worker
