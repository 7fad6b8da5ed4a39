#include "server/store/memory_line.h"

#include "absl/strings/str_cat.h"

namespace lodestone::server {
namespace {

// A line whose waiters this thread lets go on; one of another line may do so within it.
struct Settling {
  const MemoryLine* line;
  const Settling* outer;
};
thread_local const Settling* settling = nullptr;

bool IsSettling(const MemoryLine* line) {
  for (const Settling* each = settling; each != nullptr; each = each->outer) {
    if (each->line == line) return true;
  }
  return false;
}

}  // namespace

bool MemoryLine::Ask(uint64_t bytes) {
  if (waiting_.load() > 0) return false;
  // Never counted in passing: another one would find no room for it, and wait for bytes that nobody gives back.
  uint64_t before = bytes_.load();
  while (before == 0 || before + bytes <= bytes_max()) {
    if (bytes_.compare_exchange_weak(before, before + bytes)) return true;
  }
  return false;
}

void MemoryLine::Await(uint64_t bytes, std::function<void()> go_on, Owner owner) {
  MutexLock lock(&mu_);
  if (owner.has_value()) std::erase_if(waiters_, [](const Waiter& waiter) { return waiter.is_gone(); });
  waiters_.push_back({bytes, time_->NowMs(), std::move(go_on), std::move(owner)});
  waiting_.store(waiters_.size());
}

bool MemoryLine::Fits(uint64_t bytes) const {
  const uint64_t held = bytes_.load();
  return held == 0 || held + bytes <= bytes_max();
}

void MemoryLine::Give(uint64_t bytes) {
  bytes_.fetch_sub(bytes);
  Settle();
}

void MemoryLine::Settle() {
  if (IsSettling(this)) return;  // The caller is a callback: the loop that has called it looks again.
  const Settling here{this, settling};
  settling = &here;
  // A waiter is seen here, or its own Settle sees what was given.
  while (waiting_.load() > 0) {
    Waiter next;
    {
      MutexLock lock(&mu_);
      while (!waiters_.empty() && waiters_.front().is_gone()) waiters_.pop_front();
      waiting_.store(waiters_.size());
      if (waiters_.empty() || !Fits(waiters_.front().bytes)) break;
      next = std::move(waiters_.front());
      waiters_.pop_front();
      waiting_.store(waiters_.size());
      bytes_.fetch_add(next.bytes);
    }
    next.go_on();
  }
  settling = here.outer;
}

int64_t MemoryLine::waited_ms() const {
  if (waiting_.load() == 0) return 0;
  MutexLock lock(&mu_);
  return waiters_.empty() ? 0 : time_->NowMs() - waiters_.front().since_ms;
}

void MemoryLine::FillStatus(const std::string& who, absl::string_view what, v1::StatusResponse* status) const {
  if (waiting() == 0) return;
  v1::WaitStatus* const wait = status->add_waits();
  wait->set_who(who);
  wait->add_targets()->set_kind(v1::WaitTarget::MEMORY);
  wait->set_what(absl::StrCat("room for ", what, ": ", waiting(), " wait while those under way take ", bytes(), " of ",
                              bytes_max(), " bytes"));
  wait->set_seconds(static_cast<double>(waited_ms()) / 1000);
}

}  // namespace lodestone::server
