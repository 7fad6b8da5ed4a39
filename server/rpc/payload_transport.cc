#include "server/rpc/payload_transport.h"

#include <utility>

#include "common/base/status.h"
#include "common/wire/outbox.h"

namespace lodestone::server {

void AnswerRoute::Complete(v1::Answer* answer, std::vector<grpc::Slice>* values) const {
  answer->set_id(id_);
  answer->set_keys(keys_);
  answer->set_shared_memory(shared_memory_);
  answer->set_takes_several_shards(true);
  if (answer->code() == 0) answer->set_shared_bytes(room_.Put(values));
  answer->set_payload_bytes(SizeOf(*values));
}

PayloadTransport::PayloadTransport(std::string peer, std::shared_ptr<KeyListPool> key_list_pool,
                                   std::function<SharedUse()> shared_use)
    : shared_use_(std::move(shared_use)), key_lists_(std::move(key_list_pool)), shared_values_(std::move(peer)) {}

void PayloadTransport::BeginMessage() {
  shared_values_.BeginMessage(shared_use_ == nullptr ? SharedUse::kRefused : shared_use_());
}

absl::StatusOr<RequestPayload> PayloadTransport::Receive(const v1::Call& call, Payload in_message, AnswerRoute* route) {
  route->id_ = call.id();
  route->request_bytes_ = in_message.size();
  RequestPayload numbers(std::move(in_message));
  LODESTONE_RETURN_IF_ERROR(Find(call, &numbers, route));
  route->request_bytes_ += shared_values_.CopiedBytes(call);
  return numbers;
}

absl::Status PayloadTransport::Find(const v1::Call& call, RequestPayload* numbers, AnswerRoute* route) {
  if (call.has_shared_memory()) route->shared_memory_ = shared_values_.Accept(call.shared_memory());
  if (call.has_keys()) LODESTONE_RETURN_IF_ERROR(key_lists_.Take(call.keys(), numbers, &route->keys_));
  LODESTONE_RETURN_IF_ERROR(shared_values_.Take(call, numbers));
  return shared_values_.TakeRoom(call, &route->room_);
}

}  // namespace lodestone::server
