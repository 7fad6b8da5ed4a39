#include "common/telemetry/hot_shards.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/limits.h"

namespace lodestone {
namespace {

constexpr double kHotShareMin = 0.1;
constexpr double kHotRatioMin = 8;
constexpr double kHotBytesPerSecondMin = 64 << 10;  // Of the cluster; below it nothing is hot.

struct OwnedLoad {
  const v1::MemberStatus* owner = nullptr;
  const v1::ShardLoad* load = nullptr;
  double bytes_per_second = 0;
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

// Adds those of which this is the greater part: what is done in words, and how much of it comes to a shard.
void AddHot(const v1::ClusterStatus& cluster, const char* done, double (*bytes_of)(const v1::ShardLoad&),
            std::map<uint32_t, v1::HotShard>* hot) {
  std::vector<OwnedLoad> loads;
  double total = 0;
  for (const v1::MemberStatus& server : cluster.servers()) {
    for (const v1::ShardLoad& load : server.server().shards()) {
      const double bytes = bytes_of(load);
      if (!server.alive() || bytes <= 0) continue;
      loads.push_back({&server, &load, bytes});
      total += bytes;
    }
  }
  if (loads.size() < 2 || total < kHotBytesPerSecondMin) return;
  std::sort(loads.begin(), loads.end(),
            [](const OwnedLoad& a, const OwnedLoad& b) { return a.bytes_per_second > b.bytes_per_second; });
  const double median = loads[loads.size() / 2].bytes_per_second;
  for (const OwnedLoad& load : loads) {
    const double share = load.bytes_per_second / total, ratio = load.bytes_per_second / median;
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

void FindHotShards(v1::StatusResponse* status) {
  if (!status->has_cluster()) return;
  const std::vector<v1::HotShard> hot = HotShardsOf(status->cluster());
  status->mutable_cluster()->mutable_hot_shards()->Assign(hot.begin(), hot.end());
}

}  // namespace lodestone
