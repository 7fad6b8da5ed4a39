#include "server/store/hot_keys.h"

#include <algorithm>
#include <utility>

#include "common/base/limits.h"

namespace lodestone::server {
namespace {

// The next state of a xorshift generator (Marsaglia: Xorshift RNGs, 2003).
uint32_t Xorshift(uint32_t state) {
  state ^= state << 13;
  state ^= state >> 17;
  return state ^ (state << 5);
}

}  // namespace

HotKeys::HotKeys(uint32_t shards) : samples_(shards <= limits::kShardLoadsMax), samplers_(shards), hot_(shards) {
  for (uint32_t shard = 0; shard < shards; ++shard) samplers_[shard].random = shard + 1;
}

void HotKeys::Sample(Sampler* sampler, TableId table, ByteView keys, size_t count) const {
  if (!samples_) {
    sampler->next = UINT32_MAX;
    return;
  }
  if (sampler->sketch == nullptr) sampler->sketch = std::make_unique<KeySketch>();
  size_t at = sampler->next;
  while (at < count) {
    sampler->sketch->Add(table, keys.Load<Key>(at));
    sampler->random = Xorshift(sampler->random);
    at += 1 + (sampler->random >> 8) % (2 * kSampledEvery - 1);
  }
  sampler->next = static_cast<uint32_t>(at - count);
}

void HotKeys::Measure(ShardId shard, int64_t now_ms) {
  Sampler& sampler = samplers_[shard];
  if (sampler.sketch == nullptr) return;
  const bool was_away = now_ms - sampler.measured_ms > kWindowMaxMs;
  if (sampler.begin_ms != 0 && was_away) sampler.sketch->Clear();
  if (sampler.begin_ms == 0 || was_away) sampler.begin_ms = now_ms;
  sampler.measured_ms = now_ms;
  const int64_t ms = now_ms - sampler.begin_ms;
  const uint64_t total = sampler.sketch->total();
  if (ms < kWindowMs || (total < kSamplesMin && ms < kWindowMaxMs)) return;
  std::vector<Hot> hot;
  if (total >= kSamplesMin) {
    const auto count_min = static_cast<uint64_t>(kShareMin * static_cast<double>(total));
    for (const KeySketch::Frequent& frequent : sampler.sketch->AtLeast(count_min)) {
      Hot& one = hot.emplace_back();
      one.table = frequent.table;
      one.key.set_key(frequent.key);
      one.key.set_shard(shard);
      one.key.set_share(static_cast<float>(static_cast<double>(frequent.count) / static_cast<double>(total)));
      one.key.set_per_second(
          static_cast<float>(1000.0 * kSampledEvery * static_cast<double>(frequent.count) / static_cast<double>(ms)));
    }
  }
  sampler.sketch->Clear();
  sampler.begin_ms = now_ms;
  MutexLock lock(&mu_);
  hot_[shard] = std::move(hot);
}

void HotKeys::Keep(std::span<const ShardId> owned) {
  MutexLock lock(&mu_);
  auto next = owned.begin();
  for (ShardId shard = 0; shard < hot_.size(); ++shard) {
    if (next != owned.end() && *next == shard) {
      ++next;
    } else {
      hot_[shard].clear();
    }
  }
}

void HotKeys::FillStatus(const std::function<std::string(TableId)>& name_of, v1::StatusResponse* status) const {
  std::vector<Hot> all;
  {
    MutexLock lock(&mu_);
    for (const std::vector<Hot>& of_shard : hot_) all.insert(all.end(), of_shard.begin(), of_shard.end());
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Hot& a, const Hot& b) { return a.key.per_second() > b.key.per_second(); });
  for (Hot& one : all) {
    if (status->hot_keys_size() == static_cast<int>(limits::kHotKeysMax)) break;
    one.key.set_table(name_of(one.table));
    if (!one.key.table().empty()) *status->add_hot_keys() = std::move(one.key);
  }
}

}  // namespace lodestone::server
