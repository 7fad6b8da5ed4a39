// The transport of payload bytes on one stream Exchange, for everything that does not travel in the messages
// themselves: a request's keys may be a list of the stream's cache, its values may lie in shared memory, and so may the
// values of its answer. The rest of the ps sees a RequestPayload and answers with slices.
//
// Not thread-safe; what it returns is, and keeps the bytes alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/wire/message.h"
#include "grpcpp/support/slice.h"
#include "proto/parameter_server.pb.h"
#include "server/rpc/key_list_cache.h"
#include "server/rpc/shared_values.h"
#include "server/store/request_payload.h"

namespace lodestone::server {

// The way back of one call's answer: its id, the reports about the call's list of keys and offered memory, and the room
// for its values. A value; copies share the memory.
class AnswerRoute {
 public:
  AnswerRoute() = default;
  explicit AnswerRoute(uint64_t id) : id_(id) {}

  uint64_t id() const { return id_; }
  // Payload bytes of the request that occupy this ps until the call is answered.
  size_t request_bytes() const { return request_bytes_; }

  // Completes `answer`, which has its result or error: with everything that is true of the call itself, and the place
  // and size of the result's values. `values` is empty afterwards if they went to shared memory.
  void Complete(v1::Answer* answer, std::vector<grpc::Slice>* values) const;

 private:
  friend class PayloadTransport;

  uint64_t id_ = 0;
  v1::Answer::Keys keys_ = v1::Answer::NO_LIST;
  v1::Answer::SharedMemory shared_memory_ = v1::Answer::NO_OFFER;
  size_t request_bytes_ = 0;
  SharedValues::Room room_;
};

class PayloadTransport {
 public:
  // `peer`: the client's name in logs. `key_list_pool`: as KeyListCache. `shared_use`: the policy for shared memory,
  // asked for each message; null: it is refused.
  PayloadTransport(std::string peer, std::shared_ptr<KeyListPool> key_list_pool, std::function<SharedUse()> shared_use);

  // Begins a message, which must be well-formed: its calls follow in their order, and may refer to what earlier ones
  // brought.
  void BeginMessage();
  // The payload of `call`, which has `in_message` in its message. `route` is set also with an error, which is
  // INVALID_ARGUMENT, or FAILED_PRECONDITION for a list of keys that is not cached.
  absl::StatusOr<RequestPayload> Receive(const v1::Call& call, Payload in_message, AnswerRoute* route);

 private:
  absl::Status Find(const v1::Call& call, RequestPayload* numbers, AnswerRoute* route);

  const std::function<SharedUse()> shared_use_;  // May be null.
  KeyListCache key_lists_;
  SharedValues shared_values_;
};

}  // namespace lodestone::server
