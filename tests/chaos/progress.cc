#include "tests/chaos/progress.h"

#include <algorithm>

#include "common/check.h"

namespace lodestone::chaos {

void Progress::Acknowledged(const std::vector<bool>& by, int64_t sent_ms) {
  LODESTONE_CHECK(by.size() == servers_);
  MutexLock lock(&mu_);
  const int64_t now_ms = NowMs();
  ++acknowledged_;
  NotePause(now_ms);
  last_ms_ = now_ms;
  if (missing_.empty() || sent_ms < watched_ms_) return;
  std::erase_if(missing_, [&](uint32_t server) { return by[server]; });
  if (missing_.empty()) seen_ms_ = now_ms;
}

void Progress::NotePause(int64_t now_ms) {
  if (measuring_) pause_ms_max_ = std::max(pause_ms_max_, now_ms - last_ms_);
}

uint64_t Progress::acknowledged() const {
  MutexLock lock(&mu_);
  return acknowledged_;
}

int64_t Progress::last_ms() const {
  MutexLock lock(&mu_);
  return last_ms_;
}

void Progress::Begin() {
  MutexLock lock(&mu_);
  last_ms_ = NowMs();
  measuring_ = true;
}

void Progress::End() {
  MutexLock lock(&mu_);
  NotePause(NowMs());
  measuring_ = false;
}

int64_t Progress::pause_ms_max() const {
  MutexLock lock(&mu_);
  return pause_ms_max_;
}

void Progress::Watch(const std::vector<uint32_t>& servers) {
  MutexLock lock(&mu_);
  watched_ms_ = seen_ms_ = NowMs();
  missing_ = servers;
}

std::optional<int64_t> Progress::seen_ms() const {
  MutexLock lock(&mu_);
  return missing_.empty() ? std::optional<int64_t>(seen_ms_) : std::nullopt;
}

std::vector<uint32_t> Progress::missing() const {
  MutexLock lock(&mu_);
  return missing_;
}

}  // namespace lodestone::chaos
