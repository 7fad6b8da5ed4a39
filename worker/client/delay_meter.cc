#include "worker/client/delay_meter.h"

#include <algorithm>

namespace lodestone::worker {
namespace {

// Versions of ours that are remembered per shard: those between a reading and the push that followed it.
constexpr size_t kOwnVersionsMax = 1024;

}  // namespace

void DelayMeter::Record(ShardId shard, Version version) {
  MutexLock lock(&mu_);
  std::vector<Version>& own = own_[shard];
  if (own.size() >= 2 * kOwnVersionsMax) own.erase(own.begin(), own.begin() + kOwnVersionsMax);
  // Nearly always the newest.
  const auto at = own.empty() || own.back() < version ? own.end() : std::lower_bound(own.begin(), own.end(), version);
  if (at == own.end() || *at != version) own.insert(at, version);
}

std::optional<Delay> DelayMeter::Measure(std::span<const ShardId> of, std::span<const Applied> applied,
                                         std::span<const Version> read) const {
  uint64_t all = 0, own = 0, shards = 0;
  auto push = applied.begin();
  MutexLock lock(&mu_);
  for (const ShardId shard : of) {
    while (push != applied.end() && push->shard < shard) ++push;
    if (push == applied.end()) break;
    if (push->shard != shard || shard >= read.size() || read[shard] == 0) continue;
    ++shards;
    // The answer to a duplicate may be older than a reading.
    if (push->version <= read[shard] + push->messages) continue;
    uint64_t ours = 0;
    for (auto version = own_[shard].rbegin(); version != own_[shard].rend() && *version > read[shard]; ++version) {
      ours += *version <= push->version;
    }
    all += push->version - read[shard] - push->messages;
    own += ours - std::min<uint64_t>(ours, push->messages);
  }
  if (shards == 0) return std::nullopt;
  const auto mean = [shards](uint64_t sum) { return static_cast<double>(sum) / static_cast<double>(shards); };
  return Delay{.own = mean(own), .others = mean(all - std::min(all, own))};
}

}  // namespace lodestone::worker
