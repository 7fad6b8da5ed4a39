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
      shard.followers = shards_.copies().Of(load.shard());
      shard.bytes = static_cast<double>(load.bytes());
      shard.traffic_bytes_per_second = double{load.push_bytes_per_second()} + load.pull_bytes_per_second();
      const std::optional<int64_t> rested = rested_[load.shard()];
      shard.rests = rested.has_value() && now_ms - *rested < options_.rebalance.shard_rest_ms;
    }
  }
  std::vector<MeasuredShard> all;
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (!measured[shard].has_value()) {
      const uint32_t owner = shards_.owners()[shard];
      *missing = members_.servers()[owner].server.shards().empty()
                     ? absl::StrCat("ps ", owner, " does not report its shards: it has not measured them yet, or they ",
                                    "take more than a quarter of its server.message_max_bytes")
                     : absl::StrCat("waits until ps ", owner, " has measured its shards");
      return std::nullopt;
    }
    all.push_back(*measured[shard]);
  }
  return all;
}

std::vector<RebalanceMove> Rebalancer::Judge(const Plan& plan) {
  const int64_t now_ms = options_.time->NowMs();
  if (!options_.rebalance.automatic || !shards_.mapped()) return {};
  if (judged_ms_.has_value() && now_ms - *judged_ms_ < kJudgeEveryMs) return {};
  judged_ms_ = now_ms;
  NoteMoved(now_ms);
  std::string obstacle = AwayIn(plan);
  const bool given_up = !plan.any && std::any_of(planned_.begin(), planned_.end(), [this](const RebalanceMove& move) {
    return owners_[move.shard] != move.to;
  });
  moves_ = moves_ && obstacle.empty() && !given_up;
  if (obstacle.empty()) obstacle = plan.why_not;
  if (obstacle.empty()) obstacle = PlannedIn(plan);
  std::optional<std::vector<MeasuredShard>> measured;
  if (obstacle.empty()) measured = Measured(now_ms, &obstacle);
  if (!measured.has_value()) {
    since_.reset();
    does_ = std::move(obstacle);
    return {};
  }
  std::vector<bool> may_own = plan.draining;
  may_own.flip();
  return JudgeMeasured(ServerParts(options_.rebalance.rule, *measured, may_own), now_ms);
}

std::string Rebalancer::PauseIn(const ServerParts& parts, int64_t now_ms) {
  std::string pause;
  for (size_t m = 0; m < ServerParts::kMeasures; ++m) {
    if (parts.Counts(m)) counted_ms_[m] = now_ms;
    if (!counted_ms_[m].has_value()) continue;
    const int64_t ago_ms = now_ms - *counted_ms_[m], rest_ms = options_.rebalance.shard_rest_ms;
    if (ago_ms == 0 || ago_ms >= rest_ms) continue;
    pause = absl::StrFormat(
        "waits: the mean %s is below its minimum, and was not %.0f s ago; it is left out after %.0f s",
        ServerParts::NameOf(m), 1e-3 * static_cast<double>(ago_ms), 1e-3 * static_cast<double>(rest_ms));
  }
  return pause;
}

bool Rebalancer::Sustained(const ServerParts& parts, const ServerParts::Difference& widest, int64_t now_ms) {
  const std::optional<ServerParts::Difference> still =
      since_.has_value() ? parts.Again(since_->difference) : std::nullopt;
  if (still.has_value() && still->parts() > options_.rebalance.rule.difference) {
    since_->difference = *still;
  } else {
    since_ = Since{now_ms, widest};
  }
  const int64_t left_ms = since_->ms + options_.rebalance.sustained_ms - now_ms;
  if (left_ms <= 0) return true;
  does_ = absl::StrFormat("%s; moves begin in %.0f s if that stays so", since_->difference.Text(),
                          1e-3 * static_cast<double>(left_ms));
  return false;
}

std::vector<RebalanceMove> Rebalancer::JudgeMeasured(const ServerParts& parts, int64_t now_ms) {
  std::optional<ServerParts::Difference> widest = parts.Widest();
  const double begins = options_.rebalance.rule.difference;
  std::string pause = PauseIn(parts, now_ms);
  std::vector<RebalanceMove> moves;
  if (!pause.empty()) {
    does_ = std::move(pause);
  } else if (!widest.has_value()) {
    does_ = "compares nothing: there are too few bytes and too little traffic, or no two ps that may own shards";
  } else if (!moves_ && widest->parts() <= begins) {
    does_ = absl::StrFormat("balanced: %s; moves begin at a difference of %.2f", widest->Text(), begins);
  } else if (moves = parts.ChooseMoves(kMovesAtOnce); moves.empty()) {
    does_ = absl::StrCat(widest->Text(), "; no shard that may move now would bring them nearer");
  } else if (!moves_) {
    if (!Sustained(parts, *widest, now_ms)) return {};
    widest = since_->difference;
  }
  since_.reset();
  moves_ = !moves.empty();
  if (!moves_) return {};
  does_ = absl::StrCat("moves shards: ", widest->Text());
  planned_ = moves;
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
