// A gRPC server, for tests, that takes any method and gives each call to a function, which may answer it when and how
// it likes.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/mutex.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace lodestone {

// One call. What is done to a call that the client has given up has no effect.
class FakeCall {
 public:
  FakeCall(std::string method, std::string peer) : method_(std::move(method)), peer_(std::move(peer)) {}

  const std::string& method() const { return method_; }  // "Push".
  const std::string& peer() const { return peer_; }      // The client's address and port.
  const grpc::ByteBuffer& request() const { return request_; }
  bool over() const;  // Answered, or given up by the client.

  void Write(grpc::ByteBuffer message);
  void Write(const google::protobuf::MessageLite& message);
  void Finish(const grpc::Status& status);
  // Write, then Finish.
  void Reply(grpc::ByteBuffer message);
  void Reply(const google::protobuf::MessageLite& message);

 private:
  friend class FakeReactor;

  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string method_;
  const std::string peer_;
  grpc::ByteBuffer request_;

  mutable Mutex mu_;
  grpc::ServerGenericBidiReactor* reactor_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::deque<grpc::ByteBuffer> queue_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<grpc::Status> status_ ABSL_GUARDED_BY(mu_);
};

class FakeServer final : public grpc::CallbackGenericService {
 public:
  using Handler = std::function<void(std::shared_ptr<FakeCall>)>;
  // Listens on 127.0.0.1 at `port`, 0: a free one. Messages longer than `message_max_bytes` are refused.
  explicit FakeServer(Handler handler, int port = 0, uint32_t message_max_bytes = 64 << 20);
  // Cancels all calls.
  ~FakeServer() override;

  int port() const { return port_; }
  std::string address() const;

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

  const Handler handler_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace lodestone
