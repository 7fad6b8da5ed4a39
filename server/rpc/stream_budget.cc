#include "server/rpc/stream_budget.h"

#include <algorithm>
#include <utility>

#include "common/base/limits.h"

namespace lodestone::server {

void StreamBudget::Settle(const Settlement& settlement, CallMemory* memory) {
  if (settlement.bytes > 0) {
    memory->Give(settlement.bytes);
  } else if (settlement.asked) {
    memory->Settle();
  }
  if (settlement.large_bytes > 0) {
    memory->large_answers().Give(settlement.large_bytes);
  } else if (settlement.asked) {
    memory->large_answers().Settle();
  }
}

StreamBudget::Turn StreamBudget::TurnFor(const Call& call) {
  return call.bytes > limits::kSmallAnswerBytes ? Turn::kLargeAnswer : Turn::kAnswer;
}

MemoryLine& StreamBudget::LineOf(Turn turn, CallMemory* memory) {
  return turn == Turn::kLargeAnswer ? memory->large_answers() : *memory;
}

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
    if (bytes > limits::kSmallAnswerBytes) {
      if (!calls_.empty() || !memory_->large_answers().Ask(bytes)) return false;
      counted_large_bytes_ += bytes;
      large_bytes_ += bytes;
    } else {
      if (flow_->answer_bytes() == 0) {
        memory_->Take(bytes);
      } else if (!calls_.empty() || !memory_->Ask(bytes)) {
        return false;
      }
      counted_bytes_ += bytes;
    }
  }
  flow_->Expect(static_cast<int64_t>(bytes));
  return true;
}

bool StreamBudget::Await(size_t bytes, Run run) {
  if (closed_) return false;
  calls_.push_back({bytes, std::move(run)});
  QueueFirst();
  return true;
}

void StreamBudget::Queue(Turn turn, size_t bytes) {
  if (std::exchange(queued_[static_cast<size_t>(turn)], true)) return;
  asked_ = true;
  LineOf(turn, memory_).Await(bytes, [on_turn = on_turn_, turn, bytes] { on_turn(turn, bytes); });
}

StreamBudget::Run StreamBudget::TakeFirst() {
  Call first = std::move(calls_.front());
  calls_.pop_front();
  flow_->Expect(static_cast<int64_t>(first.bytes));
  return std::move(first.run);
}

StreamBudget::Run StreamBudget::TakeAlone() {
  if (calls_.empty() || flow_->answer_bytes() > 0 || TurnFor(calls_.front()) != Turn::kAnswer) return nullptr;
  Run run = TakeFirst();
  if (!calls_.empty()) QueueFirst();  // It may be of the other line.
  return run;
}

std::vector<StreamBudget::Run> StreamBudget::Close() {
  closed_ = true;
  std::vector<Run> runs;
  for (Call& call : std::exchange(calls_, {})) runs.push_back(std::move(call.run));
  return runs;
}

StreamBudget::Run StreamBudget::OnTurn(Turn turn, size_t bytes) {
  queued_[static_cast<size_t>(turn)] = false;
  // What is not used is given back by Count.
  (turn == Turn::kLargeAnswer ? counted_large_bytes_ : counted_bytes_) += bytes;
  if (turn == Turn::kRead) {
    // It may have read meanwhile, because all that it held had gone: then nothing is left to wait for.
    if (!std::exchange(waits_to_read_, false)) return nullptr;
    may_read_ = true;
    read_bytes_ = bytes;
    return nullptr;
  }
  Run run;
  // The place may be that of a call before, which was shorter, or of another kind.
  if (!calls_.empty() && TurnFor(calls_.front()) == turn && calls_.front().bytes <= bytes) {
    if (turn == Turn::kLargeAnswer) large_bytes_ += calls_.front().bytes;
    run = TakeFirst();
  }
  if (!calls_.empty()) QueueFirst();
  return run;
}

StreamBudget::Settlement StreamBudget::Count() {
  if (memory_ == nullptr) return {};
  // A stream that holds nothing may be read without room for it.
  if (flow_->held_bytes() == 0) read_bytes_ = 0;
  // Which of its answers are written first is not looked at: the large ones count as the last.
  large_bytes_ = ended_ ? 0 : std::min<uint64_t>(large_bytes_, flow_->answer_bytes());
  const uint64_t held = ended_ ? 0 : flow_->held_bytes() - large_bytes_ + read_bytes_;
  const uint64_t counted = std::exchange(counted_bytes_, held);
  if (held > counted) memory_->Take(held - counted);
  const uint64_t counted_large = std::exchange(counted_large_bytes_, large_bytes_);
  return {held < counted ? counted - held : 0, counted_large - large_bytes_, std::exchange(asked_, false)};
}

StreamBudget::Settlement StreamBudget::End() {
  ended_ = true;
  waits_to_read_ = false;
  return Count();
}

}  // namespace lodestone::server
