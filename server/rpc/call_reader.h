// The reader of the calls on one stream Exchange: takes messages apart and finds the payload of each call.
//
// Not thread-safe; the calls that it returns keep their bytes alive.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "proto/parameter_server.pb.h"
#include "server/rpc/payload_transport.h"
#include "server/store/request_payload.h"

namespace lodestone::server {

// A call as it was received.
struct ReceivedCall {
  v1::Call call;
  absl::StatusOr<RequestPayload> payload;
  AnswerRoute route;
};

class CallReader {
 public:
  // As PayloadTransport.
  CallReader(std::string peer, std::shared_ptr<KeyListPool> key_list_pool, std::function<SharedUse()> shared_use)
      : transport_(std::move(peer), std::move(key_list_pool), std::move(shared_use)) {}

  // The calls of the stream's next message, in their order. INVALID_ARGUMENT if the message is malformed: the stream
  // cannot continue. A call whose payload cannot be found has that error.
  absl::StatusOr<std::vector<ReceivedCall>> Read(const grpc::ByteBuffer& message);

 private:
  PayloadTransport transport_;
};

}  // namespace lodestone::server
