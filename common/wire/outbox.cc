#include "common/wire/outbox.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/wire/message.h"

namespace lodestone {

Outbox::Item::Item(const google::protobuf::MessageLite& message, std::vector<grpc::Slice> payload, uint64_t tag,
                   size_t shared_memory_bytes)
    : payload_(std::move(payload)), payload_bytes_(SizeOf(payload_)), shared_memory_bytes_(shared_memory_bytes), tag_(tag) {
  AppendField(1, message, &field_);
}

void Outbox::Add(Item item) {
  bytes_ += item.bytes();
  weight_ += item.weight();
  items_.push_back(std::move(item));
}

bool Outbox::full() const { return weight_ >= pack_bytes_ || items_.size() >= limits::kExchangeCallsMax; }

void Outbox::Clear() {
  items_.clear();
  bytes_ = 0;
  weight_ = 0;
}

grpc::ByteBuffer Outbox::Pack(std::vector<uint64_t>* tags) {
  LODESTONE_CHECK(!items_.empty());
  tags->clear();
  std::string head;
  std::vector<grpc::Slice> payload;
  size_t weight = 0;
  do {
    Item& item = items_.front();
    weight += item.weight();
    bytes_ -= item.bytes();
    weight_ -= item.weight();
    tags->push_back(item.tag_);
    if (tags->size() == 1) {
      head = std::move(item.field_);
      payload = std::move(item.payload_);
    } else {
      head.append(item.field_);
      for (grpc::Slice& slice : item.payload_) payload.push_back(std::move(slice));
    }
    items_.pop_front();
  } while (!items_.empty() && tags->size() < limits::kExchangeCallsMax &&
           weight + items_.front().weight() <= pack_bytes_);
  return BuildMessage(std::move(head), payload);
}

size_t SizeOf(const std::vector<grpc::Slice>& slices) {
  size_t bytes = 0;
  for (const grpc::Slice& slice : slices) bytes += slice.size();
  return bytes;
}

}  // namespace lodestone
