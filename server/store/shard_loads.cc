#include "server/store/shard_loads.h"

namespace lodestone::server {

ShardLoads::Counted ShardLoads::CountedOf(ShardId shard) const {
  const Counters& counters = counters_[shard];
  Counted counted;
  counted.pushes = counters.pushes.load(std::memory_order_relaxed);
  counted.push_bytes = counters.push_bytes.load(std::memory_order_relaxed);
  counted.push_ns = counters.push_ns.load(std::memory_order_relaxed);
  counted.pulls = counters.pulls.load(std::memory_order_relaxed) + counters.block_pulls.load(std::memory_order_relaxed);
  counted.pull_bytes =
      counters.pull_bytes.load(std::memory_order_relaxed) + counters.block_pull_bytes.load(std::memory_order_relaxed);
  return counted;
}

void ShardLoads::Sample(int64_t now_ms, std::span<const ShardId> owned) {
  MutexLock lock(&mu_);
  auto next = owned.begin();
  for (ShardId shard = 0; shard < windows_.size(); ++shard) {
    Window& window = windows_[shard];
    const bool owns = next != owned.end() && *next == shard;
    if (owns) ++next;
    if (!owns || !window.owned) {
      window.measured = false;
      window.owned = owns;
      if (owns) window.begin_ms = now_ms, window.begin = CountedOf(shard);
      continue;
    }
    const int64_t ms = now_ms - window.begin_ms;
    if (ms < kWindowMs) continue;
    const Counted counted = CountedOf(shard);
    const auto per_second = [ms](uint64_t begin, uint64_t end) {
      return static_cast<float>(1000.0 * static_cast<double>(end - begin) / static_cast<double>(ms));
    };
    window.rates.set_pushes_per_second(per_second(window.begin.pushes, counted.pushes));
    window.rates.set_push_bytes_per_second(per_second(window.begin.push_bytes, counted.push_bytes));
    window.rates.set_push_ms_per_second(1e-6f * per_second(window.begin.push_ns, counted.push_ns));
    window.rates.set_pulls_per_second(per_second(window.begin.pulls, counted.pulls));
    window.rates.set_pull_bytes_per_second(per_second(window.begin.pull_bytes, counted.pull_bytes));
    window.measured = true;
    window.begin_ms = now_ms;
    window.begin = counted;
  }
}

void ShardLoads::FillStatus(v1::StatusResponse* status) const {
  MutexLock lock(&mu_);
  for (ShardId shard = 0; shard < windows_.size(); ++shard) {
    if (!windows_[shard].measured) continue;
    v1::ShardLoad* const load = status->add_shards();
    *load = windows_[shard].rates;
    load->set_shard(shard);
    load->set_bytes(counters_[shard].bytes.load(std::memory_order_relaxed));
  }
}

}  // namespace lodestone::server
