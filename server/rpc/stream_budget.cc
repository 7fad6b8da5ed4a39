#include "server/rpc/stream_budget.h"

#include <utility>

namespace lodestone::server {

bool StreamBudget::MayRead() {
  if (memory_ == nullptr) return true;
  if (!flow_->WantsRead()) return false;
  if (std::exchange(may_read_, false) || flow_->held_bytes() == 0) {
    waits_to_read_ = false;
    return true;
  }
  if (waits_to_read_) return false;
  if (memory_->Ask(message_bytes_)) {
    read_bytes_ = message_bytes_;
    counted_bytes_ += read_bytes_;
    return true;
  }
  waits_to_read_ = true;
  Queue(Turn::kRead, message_bytes_);
  return false;
}

void StreamBudget::OnRead(size_t bytes) {
  read_bytes_ = 0;
  message_bytes_ = bytes;
}

bool StreamBudget::Admit(size_t bytes) {
  if (memory_ != nullptr) {
    if (flow_->answer_bytes() == 0) {
      memory_->Take(bytes);
    } else if (!calls_.empty() || !memory_->Ask(bytes)) {
      return false;
    }
    counted_bytes_ += bytes;
  }
  flow_->Expect(static_cast<int64_t>(bytes));
  return true;
}

bool StreamBudget::Await(size_t bytes, Run run) {
  if (closed_) return false;
  calls_.push_back({bytes, std::move(run)});
  Queue(Turn::kAnswer, calls_.front().bytes);
  return true;
}

void StreamBudget::Queue(Turn turn, size_t bytes) {
  if (std::exchange(queued_[static_cast<size_t>(turn)], true)) return;
  asked_ = true;
  memory_->Await(bytes, [on_turn = on_turn_, turn, bytes] { on_turn(turn, bytes); });
}

StreamBudget::Run StreamBudget::TakeFirst() {
  Call first = std::move(calls_.front());
  calls_.pop_front();
  flow_->Expect(static_cast<int64_t>(first.bytes));
  return std::move(first.run);
}

StreamBudget::Run StreamBudget::TakeAlone() {
  if (calls_.empty() || flow_->answer_bytes() > 0) return nullptr;
  return TakeFirst();
}

std::vector<StreamBudget::Run> StreamBudget::Close() {
  closed_ = true;
  std::vector<Run> runs;
  for (Call& call : std::exchange(calls_, {})) runs.push_back(std::move(call.run));
  return runs;
}

StreamBudget::Run StreamBudget::OnTurn(Turn turn, size_t bytes) {
  queued_[static_cast<size_t>(turn)] = false;
  counted_bytes_ += bytes;  // What is not used is given back by Count.
  if (turn == Turn::kRead) {
    // It may have read meanwhile, because all that it held had gone: then nothing is left to wait for.
    if (!std::exchange(waits_to_read_, false)) return nullptr;
    may_read_ = true;
    read_bytes_ = bytes;
    return nullptr;
  }
  Run run;
  // The place may be that of a call before, which was shorter.
  if (!calls_.empty() && calls_.front().bytes <= bytes) run = TakeFirst();
  if (!calls_.empty()) Queue(Turn::kAnswer, calls_.front().bytes);
  return run;
}

size_t StreamBudget::Count() {
  if (memory_ == nullptr) return 0;
  // A stream that holds nothing may be read without room for it.
  if (flow_->held_bytes() == 0) read_bytes_ = 0;
  const uint64_t held = ended_ ? 0 : flow_->held_bytes() + read_bytes_;
  const uint64_t counted = std::exchange(counted_bytes_, held);
  if (held > counted) memory_->Take(held - counted);
  return held < counted ? counted - held : 0;
}

size_t StreamBudget::End() {
  ended_ = true;
  waits_to_read_ = false;
  return Count();
}

}  // namespace lodestone::server
