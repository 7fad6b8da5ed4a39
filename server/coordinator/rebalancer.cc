#include "server/coordinator/rebalancer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/numbers_text.h"
#include "server/coordinator/cluster_options.h"
#include "server/coordinator/event_queue.h"
#include "server/coordinator/member_table.h"
#include "server/coordinator/shard_assignment.h"

namespace lodestone::server {
namespace {

constexpr size_t kPlannedRunsMax = 16;  // Of shards, named in one event.

}  // namespace

Rebalancer::Rebalancer(const ClusterOptions* options, const MemberTable* members, const ShardAssignment* shards,
                       EventQueue* events)
    : options_(*options), members_(*members), shards_(*shards), events_(events), rested_(options->shards) {}

void Rebalancer::NoteMoved(int64_t now_ms) {
  const std::vector<uint32_t>& owners = shards_.owners();
  for (ShardId shard = 0; shard < owners_.size(); ++shard) {
    if (owners[shard] != owners_[shard]) rested_[shard] = now_ms;
  }
  owners_ = owners;
}

std::string Rebalancer::AwayIn(const Plan& plan) const {
  for (uint32_t server = 0; server < options_.servers; ++server) {
    if (plan.living[server] || plan.draining[server]) continue;
    return absl::StrCat("waits for ps ", server, ", which is away");
  }
  return "";
}

std::string Rebalancer::PlannedIn(const Plan& plan) const {
  if (!plan.any) return "";
  return moves_ ? does_ : "waits until the moves that are planned are done";
}

std::optional<std::vector<MeasuredShard>> Rebalancer::Measured(int64_t now_ms, std::string* missing) const {
  std::vector<std::optional<MeasuredShard>> measured(options_.shards);
  for (const MemberPlace& server : members_.servers()) {
    for (const v1::ShardLoad& load : server.server.shards()) {
      if (load.shard() >= options_.shards || shards_.owners()[load.shard()] != server.index) continue;
      MeasuredShard& shard = measured[load.shard()].emplace();
      shard.shard = load.shard();
      shard.owner = server.index;
      shard.bytes = static_cast<double>(load.bytes());
      shard.traffic_bytes_per_second = double{load.push_bytes_per_second()} + load.pull_bytes_per_second();
      const std::optional<int64_t> rested = rested_[load.shard()];
      shard.rests = rested.has_value() && now_ms - *rested < options_.rebalance.shard_rest_ms;
    }
  }
  std::vector<MeasuredShard> all;
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (!measured[shard].has_value()) {
      *missing = absl::StrCat("waits until ps ", shards_.owners()[shard], " has measured its shards");
      return std::nullopt;
    }
    all.push_back(*measured[shard]);
  }
  return all;
}

std::vector<RebalanceMove> Rebalancer::Judge(const Plan& plan) {
  const int64_t now_ms = options_.time->NowMs();
  if (!options_.rebalance.automatic || options_.replicated() || !shards_.mapped()) return {};
  if (judged_ms_.has_value() && now_ms - *judged_ms_ < kJudgeEveryMs) return {};
  judged_ms_ = now_ms;
  NoteMoved(now_ms);
  std::string obstacle = AwayIn(plan);
  moves_ = moves_ && obstacle.empty();
  if (obstacle.empty()) obstacle = PlannedIn(plan);
  std::optional<std::vector<MeasuredShard>> measured;
  if (obstacle.empty()) measured = Measured(now_ms, &obstacle);
  if (!measured.has_value()) {
    since_ms_.reset();
    does_ = std::move(obstacle);
    return {};
  }
  std::vector<bool> may_own = plan.draining;
  may_own.flip();
  return JudgeMeasured(ServerParts(options_.rebalance.rule, *measured, may_own), now_ms);
}

std::vector<RebalanceMove> Rebalancer::JudgeMeasured(const ServerParts& parts, int64_t now_ms) {
  const std::optional<ServerParts::Difference> widest = parts.Widest();
  const double begins = options_.rebalance.rule.difference;
  std::vector<RebalanceMove> moves;
  if (!widest.has_value()) {
    does_ = "compares nothing: there are too few bytes and too little traffic, or no two ps that may own shards";
  } else if (!moves_ && widest->parts() <= begins) {
    does_ = absl::StrFormat("balanced: %s; moves begin at a difference of %.2f", widest->Text(), begins);
  } else if (moves = parts.ChooseMoves(kMovesAtOnce); moves.empty()) {
    does_ = absl::StrCat(widest->Text(), "; no shard that may move now would bring them nearer");
  } else if (!moves_) {
    if (!since_ms_.has_value()) since_ms_ = now_ms;
    const int64_t left_ms = *since_ms_ + options_.rebalance.sustained_ms - now_ms;
    if (left_ms > 0) {
      does_ = absl::StrFormat("%s; moves begin in %.0f s if that stays so", widest->Text(),
                              1e-3 * static_cast<double>(left_ms));
      return {};
    }
  }
  since_ms_.reset();
  moves_ = !moves.empty();
  if (!moves_) return {};
  does_ = absl::StrCat("moves shards: ", widest->Text());
  for (const RebalanceMove& move : moves) rested_[move.shard] = now_ms;
  NoteEvents(moves, widest->Text());
  return moves;
}

void Rebalancer::NoteEvents(const std::vector<RebalanceMove>& moves, const std::string& reason) {
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> by_pair;
  for (const RebalanceMove& move : moves) by_pair[{move.from, move.to}].push_back(move.shard);
  for (auto& [pair, shards] : by_pair) {
    std::sort(shards.begin(), shards.end());
    events_->Note("rebalanced", members_.servers()[pair.first],
                  absl::StrCat("is to give ", shards.size() == 1 ? "shard " : "shards ",
                               NumbersText(shards, kPlannedRunsMax), " to ps ", pair.second, ": ", reason));
  }
}

void Rebalancer::FillStatus(v1::ClusterStatus* status) const {
  if (!options_.rebalance.automatic) return;
  status->set_rebalance(does_.empty() ? "waits for the shard map" : does_);
}

}  // namespace lodestone::server
