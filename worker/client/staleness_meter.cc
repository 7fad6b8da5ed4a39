#include "worker/client/staleness_meter.h"

#include <algorithm>

namespace lodestone::worker {
namespace {

// Versions of ours that are remembered per shard: those between a reading and the push that followed it.
constexpr size_t kOwnVersionsMax = 1024;

}  // namespace

void StalenessMeter::Record(ShardId shard, Version version) {
  MutexLock lock(&mu_);
  std::vector<Version>& own = own_[shard];
  if (own.size() >= 2 * kOwnVersionsMax) own.erase(own.begin(), own.begin() + kOwnVersionsMax);
  const auto at = std::lower_bound(own.begin(), own.end(), version);
  if (at == own.end() || *at != version) own.insert(at, version);
}

double StalenessMeter::Measure(std::span<const Applied> applied, std::span<const Version> read_versions) const {
  uint64_t others = 0;
  uint64_t shards = 0;
  MutexLock lock(&mu_);
  for (const Applied& push : applied) {
    const Version read = push.shard < read_versions.size() ? read_versions[push.shard] : 0;
    if (read == 0) continue;
    ++shards;
    if (push.version <= read) continue;
    const std::vector<Version>& own = own_[push.shard];
    const auto ours = static_cast<uint64_t>(std::upper_bound(own.begin(), own.end(), push.version) -
                                            std::upper_bound(own.begin(), own.end(), read));
    others += push.version - read - ours;
  }
  return shards == 0 ? 0 : static_cast<double>(others) / static_cast<double>(shards);
}

}  // namespace lodestone::worker
