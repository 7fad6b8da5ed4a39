#include "common/telemetry/hot_shards.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/limits.h"

namespace lodestone {
namespace {

constexpr double kHotShareMin = 0.1;
constexpr double kHotRatioMin = 8;
constexpr double kHotBytesPerSecondMin = 64 << 10;  // Of the cluster; below it nothing is hot,
constexpr double kSlowMsPerSecondMin = 100;         // nor slow below this,
constexpr double kSlowTimesMin = 2;                 // or with less than so many times the median time.

struct OwnedLoad {
  const v1::MemberStatus* owner = nullptr;
  const v1::ShardLoad* load = nullptr;
  double value = 0;  // Of what is compared.
};

// "; key 42 of table emb is about 38 % of its keys", of its most frequent key; empty: none is.
std::string KeyText(const OwnedLoad& of) {
  for (const v1::HotKey& key : of.owner->server().hot_keys()) {
    if (key.shard() != of.load->shard()) continue;
    return absl::StrFormat("; key %d of table %s is about %.0f %% of its keys", key.key(), key.table(),
                           100 * key.share());
  }
  return "";
}

// Each live owner's shards of which `of` says more than nothing, and what it says.
std::vector<OwnedLoad> Loads(const v1::ClusterStatus& cluster, double (*of)(const v1::ShardLoad&)) {
  std::vector<OwnedLoad> loads;
  for (const v1::MemberStatus& server : cluster.servers()) {
    for (const v1::ShardLoad& load : server.server().shards()) {
      const double value = of(load);
      if (server.alive() && value > 0) loads.push_back({&server, &load, value});
    }
  }
  return loads;
}

// Sorts the greatest first, and returns the median.
double SortedMedian(std::vector<OwnedLoad>* loads) {
  std::sort(loads->begin(), loads->end(), [](const OwnedLoad& a, const OwnedLoad& b) { return a.value > b.value; });
  return (*loads)[loads->size() / 2].value;
}

double Sum(const std::vector<OwnedLoad>& loads) {
  return std::accumulate(loads.begin(), loads.end(), 0.0,
                         [](double sum, const OwnedLoad& load) { return sum + load.value; });
}

// Adds those of which this is the greater part: what is done in words, and how much of it comes to a shard.
void AddHot(const v1::ClusterStatus& cluster, const char* done, double (*bytes_of)(const v1::ShardLoad&),
            std::map<uint32_t, v1::HotShard>* hot) {
  std::vector<OwnedLoad> loads = Loads(cluster, bytes_of);
  const double total = Sum(loads);
  if (loads.size() < 2 || total < kHotBytesPerSecondMin) return;
  const double median = SortedMedian(&loads);
  for (const OwnedLoad& load : loads) {
    const double share = load.value / total, ratio = load.value / median;
    if (share < kHotShareMin || ratio < kHotRatioMin) break;
    v1::HotShard& shard = (*hot)[load.load->shard()];
    if (shard.share() >= share) continue;
    shard.set_shard(load.load->shard());
    shard.set_server(load.owner->index());
    shard.set_share(share);
    shard.set_ratio(ratio);
    shard.set_text(absl::StrFormat("shard %d on ps %d takes %.0f %% of the bytes %s, %.0f times the median of all%s",
                                   shard.shard(), shard.server(), 100 * share, done, ratio, KeyText(load)));
  }
}

double PushMs(const v1::ShardLoad& load) { return load.push_ms_per_second(); }
double PushMsPerByte(const v1::ShardLoad& load) {
  return load.push_bytes_per_second() > 0 ? load.push_ms_per_second() / load.push_bytes_per_second() : 0;
}

}  // namespace

std::vector<v1::HotShard> HotShardsOf(const v1::ClusterStatus& cluster) {
  std::map<uint32_t, v1::HotShard> by_shard;
  AddHot(
      cluster, "pushed", [](const v1::ShardLoad& load) { return double{load.push_bytes_per_second()}; }, &by_shard);
  AddHot(
      cluster, "pulled", [](const v1::ShardLoad& load) { return double{load.pull_bytes_per_second()}; }, &by_shard);
  std::vector<v1::HotShard> hot;
  for (auto& [shard, of] : by_shard) hot.push_back(std::move(of));
  std::stable_sort(hot.begin(), hot.end(),
                   [](const v1::HotShard& a, const v1::HotShard& b) { return a.share() > b.share(); });
  if (hot.size() > limits::kHotShardsMax) hot.resize(limits::kHotShardsMax);
  return hot;
}

std::vector<v1::SlowShard> SlowShardsOf(const v1::ClusterStatus& cluster) {
  std::vector<v1::SlowShard> slow;
  std::vector<OwnedLoad> per_byte = Loads(cluster, PushMsPerByte);
  std::vector<OwnedLoad> times = Loads(cluster, PushMs);
  const double total_ms = Sum(times);
  if (per_byte.size() < 2 || total_ms < kSlowMsPerSecondMin) return slow;
  const double median_ms = SortedMedian(&times);
  const double median_per_byte = SortedMedian(&per_byte);
  for (const OwnedLoad& load : per_byte) {
    const double ms = PushMs(*load.load), share = ms / total_ms, ratio = load.value / median_per_byte;
    if (ratio < kHotRatioMin || slow.size() == limits::kHotShardsMax) break;
    if (share < kHotShareMin || ms < kSlowTimesMin * median_ms) continue;
    v1::SlowShard& shard = slow.emplace_back();
    shard.set_shard(load.load->shard());
    shard.set_server(load.owner->index());
    shard.set_share(share);
    shard.set_ratio(ratio);
    shard.set_text(
        absl::StrFormat("shard %d on ps %d takes %.0f %% of the time that pushes take, %.0f times the median of all "
                        "for each byte",
                        shard.shard(), shard.server(), 100 * share, ratio));
  }
  return slow;
}

void FindHotAndSlowShards(v1::StatusResponse* status) {
  if (!status->has_cluster()) return;
  v1::ClusterStatus* const cluster = status->mutable_cluster();
  const std::vector<v1::HotShard> hot = HotShardsOf(*cluster);
  cluster->mutable_hot_shards()->Assign(hot.begin(), hot.end());
  const std::vector<v1::SlowShard> slow = SlowShardsOf(*cluster);
  cluster->mutable_slow_shards()->Assign(slow.begin(), slow.end());
}

}  // namespace lodestone
