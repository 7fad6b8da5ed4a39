#include "common/wire/outbox.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/wire/message.h"

namespace lodestone {

void Outbox::Add(Frame frame) {
  bytes_ += frame.bytes();
  weight_ += frame.weight();
  frames_.push_back(std::move(frame));
}

bool Outbox::full() const { return weight_ >= pack_bytes_ || frames_.size() >= limits::kExchangeCallsMax; }

void Outbox::Clear() {
  frames_.clear();
  bytes_ = 0;
  weight_ = 0;
}

grpc::ByteBuffer Outbox::Pack(std::vector<uint64_t>* tags) {
  LODESTONE_CHECK(!frames_.empty());
  tags->clear();
  std::string head;
  std::vector<grpc::Slice> payload;
  size_t weight = 0;
  do {
    Frame& frame = frames_.front();
    weight += frame.weight();
    bytes_ -= frame.bytes();
    weight_ -= frame.weight();
    tags->push_back(frame.tag_);
    if (tags->size() == 1) {
      head = std::move(frame.field_);
      payload = std::move(frame.payload_);
    } else {
      head.append(frame.field_);
      for (grpc::Slice& slice : frame.payload_) payload.push_back(std::move(slice));
    }
    frames_.pop_front();
  } while (!frames_.empty() && tags->size() < limits::kExchangeCallsMax &&
           weight + frames_.front().weight() <= pack_bytes_);
  return BuildMessage(std::move(head), payload);
}

}  // namespace lodestone
