#include "common/rpc/lease_wait.h"

#include "common/telemetry/log.h"

namespace lodestone {
namespace {

constexpr int64_t kWaitLogMs = 1000;      // Between two logs of waits that differ.
constexpr int64_t kSameWaitLogMs = 5000;  // The same of a wait that stays the same.

}  // namespace

void LeaseWait::Set(const std::string& what, bool has_map) {
  const int64_t now_ms = time_.NowMs();
  bool is_new = false;
  {
    MutexLock lock(&mu_);
    is_new = what_ != what;
    if (is_new && (what_.empty() || what.empty())) since_ms_ = now_ms;
    what_ = what;
  }
  if (what.empty()) {
    if (is_new && logged_ms_ > 0)
      LODESTONE_LOG(INFO, "lease", "{}", has_map ? "the coordinator answers again" : "the wait is over");
    logged_ms_ = 0;
    return;
  }
  if (now_ms - logged_ms_ < (is_new ? kWaitLogMs : kSameWaitLogMs)) return;
  logged_ms_ = now_ms;
  if (has_map) {
    LODESTONE_LOG(WARN, "lease", "{}", what);
  } else {
    LODESTONE_LOG(INFO, "lease", "waiting for={}", what);
  }
}

std::optional<LeaseWait::Wait> LeaseWait::Get() const {
  MutexLock lock(&mu_);
  if (what_.empty()) return std::nullopt;
  return Wait{what_, static_cast<double>(time_.NowMs() - since_ms_) / 1000.0};
}

}  // namespace lodestone
