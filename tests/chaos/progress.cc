#include "tests/chaos/progress.h"

#include <algorithm>

namespace lodestone::chaos {

void Progress::Acknowledged(const std::vector<ShardId>& shards, int64_t sent_ms) {
  MutexLock lock(&mu_);
  const int64_t now_ms = NowMs();
  ++acknowledged_;
  NotePause(now_ms);
  last_ms_ = now_ms;
  for (const ShardId shard : shards) *AcknowledgedMs(shard) = now_ms;
  if (missing_.empty() || sent_ms < watched_ms_) return;
  std::erase_if(missing_,
                [&](ShardId shard) { return std::find(shards.begin(), shards.end(), shard) != shards.end(); });
  if (!missing_.empty()) return;
  seen_ms_ = now_ms;
  seen_pushes_ = acknowledged_;
}

int64_t* Progress::AcknowledgedMs(ShardId shard) {
  if (acknowledged_ms_.size() <= shard) acknowledged_ms_.resize(shard + 1);
  return &acknowledged_ms_[shard];
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

void Progress::Watch(const std::vector<ShardId>& shards) {
  MutexLock lock(&mu_);
  watched_ms_ = seen_ms_ = NowMs();
  seen_pushes_ = acknowledged_;
  before_ms_ = 0;
  for (const ShardId shard : shards) before_ms_ = std::max(before_ms_, *AcknowledgedMs(shard));
  missing_ = shards;
}

std::optional<int64_t> Progress::seen_ms() const {
  MutexLock lock(&mu_);
  return missing_.empty() ? std::optional<int64_t>(seen_ms_) : std::nullopt;
}

std::optional<uint64_t> Progress::seen_pushes() const {
  MutexLock lock(&mu_);
  return missing_.empty() ? std::optional<uint64_t>(seen_pushes_) : std::nullopt;
}

std::optional<int64_t> Progress::outage_ms() const {
  MutexLock lock(&mu_);
  return missing_.empty() && before_ms_ > 0 ? std::optional<int64_t>(seen_ms_ - before_ms_) : std::nullopt;
}

std::vector<ShardId> Progress::missing() const {
  MutexLock lock(&mu_);
  return missing_;
}

}  // namespace lodestone::chaos
