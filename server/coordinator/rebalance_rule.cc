#include "server/coordinator/rebalance_rule.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"

namespace lodestone::server {
namespace {

constexpr const char* kMeasureNames[] = {"bytes", "traffic"};
constexpr double kMarginOfDifference = 0.25;  // By which a move must be useful.
constexpr double kShardOfMeanMin = 0.125;     // Part of a shard that is worth a move, of a mean shard's.
constexpr double kFollowerPreferred = 1.5;    // Times the gain of a move that needs no copy.

template <typename Parts>
double SumOf(const Parts& parts) {
  double sum = 0;
  for (const double part : parts) sum += part;
  return sum;
}

}  // namespace

const char* ServerParts::NameOf(size_t measure) { return kMeasureNames[measure]; }

std::string ServerParts::Difference::Text() const {
  return absl::StrFormat("ps %u has %.2f times the mean %s, ps %u %.2f", most, most_part, NameOf(measure), least,
                         least_part);
}

ServerParts::ServerParts(const RebalanceRule& rule, std::span<const MeasuredShard> shards,
                         const std::vector<bool>& may_own)
    : rule_(rule), may_own_(may_own), server_parts_(may_own.size()) {
  const double owners = static_cast<double>(std::count(may_own_.begin(), may_own_.end(), true));
  Parts total = {};
  for (const MeasuredShard& shard : shards) {
    if (!may_own_[shard.owner]) continue;
    shards_.push_back(shard);
    shard_parts_.push_back({shard.bytes, shard.traffic_bytes_per_second});
    for (size_t m = 0; m < kMeasures; ++m) total[m] += shard_parts_.back()[m];
  }
  const Parts mean_min = {rule_.bytes_min, rule_.traffic_bytes_per_second_min};
  for (size_t m = 0; m < kMeasures; ++m) {
    const double mean = owners > 0 ? total[m] / owners : 0;
    counts_[m] = mean > 0 && mean >= mean_min[m];
    for (size_t s = 0; s < shards_.size(); ++s) {
      shard_parts_[s][m] = counts_[m] ? shard_parts_[s][m] / mean : 0;
      server_parts_[shards_[s].owner][m] += shard_parts_[s][m];
    }
    if (counts_[m]) shard_part_min_ += kShardOfMeanMin * owners / static_cast<double>(shards_.size());
  }
}

std::optional<ServerParts::Difference> ServerParts::WidestOf(size_t measure) const {
  std::optional<Difference> widest;
  if (!counts_[measure] || std::count(may_own_.begin(), may_own_.end(), true) < 2) return widest;
  for (uint32_t server = 0; server < may_own_.size(); ++server) {
    if (!may_own_[server]) continue;
    const double part = server_parts_[server][measure];
    if (!widest.has_value()) widest = Difference{measure, server, server, part, part};
    if (part > widest->most_part) widest->most = server, widest->most_part = part;
    if (part < widest->least_part) widest->least = server, widest->least_part = part;
  }
  return widest;
}

std::optional<ServerParts::Difference> ServerParts::Widest() const {
  std::optional<Difference> widest;
  for (size_t m = 0; m < kMeasures; ++m) {
    const std::optional<Difference> here = WidestOf(m);
    if (here.has_value() && (!widest.has_value() || here->parts() > widest->parts())) widest = here;
  }
  return widest;
}

std::optional<ServerParts::Difference> ServerParts::Again(const Difference& before) const {
  std::optional<Difference> now = WidestOf(before.measure);
  if (!now.has_value() || !may_own_[before.most]) return std::nullopt;
  now->most = before.most;
  now->most_part = server_parts_[before.most][before.measure];
  return now;
}

double ServerParts::GainOf(const Parts& shard, const Parts& from, const Parts& to) const {
  double less = 0;
  for (size_t m = 0; m < kMeasures; ++m) less += shard[m] * (from[m] - to[m] - shard[m]);
  const double useful = kMarginOfDifference * rule_.difference * SumOf(shard);
  return less > useful ? 2 * less : 0;
}

std::vector<uint32_t> ServerParts::TargetsOf(const std::vector<Parts>& servers) const {
  std::vector<uint32_t> targets;
  for (uint32_t server = 0; server < may_own_.size(); ++server) {
    if (may_own_[server]) targets.push_back(server);
  }
  if (targets.size() <= kTargetsMax) return targets;
  const auto by = [&servers](auto&& part_of) {
    return [&servers, part_of](uint32_t a, uint32_t b) { return part_of(servers[a]) < part_of(servers[b]); };
  };
  for (size_t m = 0; m < kMeasures; ++m) {
    const auto in_measure = by([m](const Parts& parts) { return parts[m]; });
    const auto least = std::min_element(targets.begin() + static_cast<ptrdiff_t>(m), targets.end(), in_measure);
    std::iter_swap(targets.begin() + static_cast<ptrdiff_t>(m), least);
  }
  std::partial_sort(targets.begin() + kMeasures, targets.begin() + kTargetsMax, targets.end(),
                    by([](const Parts& parts) { return SumOf(parts); }));
  targets.resize(kTargetsMax);
  return targets;
}

std::vector<RebalanceMove> ServerParts::ChooseMoves(size_t moves_max) const {
  std::vector<Parts> servers = server_parts_;
  std::vector<bool> moved(shards_.size());
  std::vector<RebalanceMove> moves;
  while (moves.size() < moves_max) {
    const std::vector<uint32_t> targets = TargetsOf(servers);
    double best_worth = 0;
    size_t best = 0;
    uint32_t best_to = 0;
    for (size_t s = 0; s < shards_.size(); ++s) {
      if (moved[s] || shards_[s].rests || SumOf(shard_parts_[s]) < shard_part_min_) continue;
      for (const uint32_t to : targets) {
        const double gain = GainOf(shard_parts_[s], servers[shards_[s].owner], servers[to]);
        const double worth = absl::c_linear_search(shards_[s].followers, to) ? kFollowerPreferred * gain : gain;
        if (to == shards_[s].owner || worth <= best_worth) continue;
        best_worth = worth, best = s, best_to = to;
      }
    }
    if (best_worth == 0) break;
    const uint32_t from = shards_[best].owner;
    for (size_t m = 0; m < kMeasures; ++m) {
      servers[from][m] -= shard_parts_[best][m];
      servers[best_to][m] += shard_parts_[best][m];
    }
    moved[best] = true;
    moves.push_back({shards_[best].shard, from, best_to});
  }
  return moves;
}

}  // namespace lodestone::server
