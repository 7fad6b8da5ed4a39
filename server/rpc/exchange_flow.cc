#include "server/rpc/exchange_flow.h"

#include <utility>

namespace lodestone::server {

ExchangeFlow::Actions ExchangeFlow::Next(bool hold, bool may_read, grpc::ByteBuffer* message,
                                         std::vector<uint64_t>* tags) {
  Actions actions;
  if (finished_) return actions;
  hold &= !outbox_.full();
  if (!writing_ && !broken_ && !outbox_.empty() && !hold) {
    actions.write = writing_ = true;
    writing_bytes_ = outbox_.bytes();
    *message = outbox_.Pack(tags);
    packed_ += tags->size();
    writing_bytes_ -= outbox_.bytes();
  }
  if (may_read && WantsRead()) {
    actions.read = reading_ = true;
    ++starting_reads_;
  }
  actions.finish = TakeFinish();
  return actions;
}

std::optional<absl::Status> ExchangeFlow::OnReadStarted() {
  --starting_reads_;
  return TakeFinish();
}

std::optional<absl::Status> ExchangeFlow::TakeFinish() {
  if (finished_ || !idle() || !ending()) return std::nullopt;
  finished_ = true;
  return end_.value_or(absl::OkStatus());
}

bool ExchangeFlow::full() const {
  return calls_ >= limits::kExchangeCallsMax ||
         call_bytes_ + expected_bytes_ + unwritten_bytes() >= limits::kExchangeBytesMax;
}

bool ExchangeFlow::idle() const {
  return calls_ == 0 && subscriptions_ == 0 && starting_reads_ == 0 && !writing_ && (broken_ || outbox_.empty());
}

void ExchangeFlow::OnWritten(bool ok, std::vector<uint64_t>* lost) {
  writing_ = false;
  writing_bytes_ = 0;
  broken_ |= !ok;
  while (!deltas_.empty() && (broken_ || deltas_.front().frame < packed_)) {
    delta_bytes_ -= deltas_.front().bytes;
    deltas_.pop_front();
  }
  if (!broken_) return;
  for (std::vector<uint64_t> tags; !outbox_.empty();) {
    outbox_.Pack(&tags);
    lost->insert(lost->end(), tags.begin(), tags.end());
  }
}

void ExchangeFlow::AddCalls(size_t calls, size_t bytes) {
  calls_ += calls;
  call_bytes_ += bytes;
}

void ExchangeFlow::AddAnswer(Frame frame, size_t request_bytes) {
  --calls_;
  call_bytes_ -= request_bytes;
  if (!broken_) outbox_.Add(std::move(frame));
}

void ExchangeFlow::BeginSubscription() {
  --calls_;
  ++subscriptions_;
}

void ExchangeFlow::EndSubscription() {
  --subscriptions_;
  ++calls_;
}

bool ExchangeFlow::AddDelta(Frame frame) {
  if (broken_) return false;
  const size_t before = outbox_.bytes();
  const uint64_t number = packed_ + outbox_.size();
  outbox_.Add(std::move(frame));
  deltas_.push_back({number, outbox_.bytes() - before});
  delta_bytes_ += deltas_.back().bytes;
  return true;
}

void ExchangeFlow::End(const absl::Status& status) {
  if (!end_.has_value()) end_ = status;
}

}  // namespace lodestone::server
