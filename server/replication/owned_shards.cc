#include "server/replication/owned_shards.h"

#include <algorithm>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"

namespace lodestone::server {
namespace {

// A push waits at most so much longer for a follower that goes on confirming those before it: over a slow link a
// follower that has just caught up has a queue to work off.
constexpr int64_t kPatiencesOfOneWait = 3;

CounterMetric refused_metric("lodestone_ps_replication_refused_pushes_total",
                             "Pushes refused because fewer copies were in sync than cluster.in_sync_min.");

}  // namespace

OwnedShards::OwnedShards(uint32_t shards, const Limits& limits, UnconfirmedBytes* unconfirmed) : limits_(limits) {
  shards_.reserve(shards);
  for (uint32_t shard = 0; shard < shards; ++shard) shards_.emplace_back(unconfirmed);
}

absl::Status OwnedShards::NotHeld(ShardId shard) const {
  if (limits_.in_sync_min <= 1) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("fewer copies of shard ", shard, " than cluster.in_sync_min (", limits_.in_sync_min,
                   ") have this version: try again when a follower has caught up; a push that is sent again counts "
                   "once"));
}

absl::Status OwnedShards::CheckCopies(ShardId shard) const {
  const uint32_t copies = shards_[shard].copies_in_sync();
  if (copies >= limits_.in_sync_min) return absl::OkStatus();
  refused_metric.Add(1);
  return absl::UnavailableError(absl::StrCat("shard ", shard, " has ", copies, copies == 1 ? " copy" : " copies",
                                             " in sync, and cluster.in_sync_min wants ", limits_.in_sync_min,
                                             ": nothing was applied; try again when a follower has "
                                             "caught up (psctl status says what it waits for)"));
}

absl::Status OwnedShards::CheckHeld(ShardId shard, Version version) const {
  if (limits_.in_sync_min <= 1 || shards_[shard].CopiesOf(version) >= limits_.in_sync_min) return absl::OkStatus();
  return NotHeld(shard);
}

bool OwnedShards::KeepUpdates() const {
  return std::any_of(shards_.begin(), shards_.end(), [](const OwnedShard& owned) { return owned.KeepsUpdates(); });
}

void OwnedShards::CheckTime(int64_t now_ms, const absl::Status& may_serve, SettledAcks* settled) {
  for (ShardId shard = 0; shard < shards_.size(); ++shard) {
    OwnedShard& owned = shards_[shard];
    if (!owned.owned()) continue;
    for (const auto& one : owned.followers()) {
      if (one->IsHopeless(limits_.stalled_ms_max, limits_.queue_bytes_max)) {
        one->EndStream(absl::UnavailableError("the follower is too far behind; it is to begin again"), /*now=*/true);
        one->Detach(now_ms);
      }
      if (!one->sync().counts()) continue;
      if (!may_serve.ok()) one->SettleAll(may_serve, settled);
      const char* const why = one->sync().WhyLate(
          now_ms, one->silent_since_ms(kPatiencesOfOneWait * limits_.patience_ms), limits_.patience_ms);
      if (why != nullptr) Leave(one.get(), why, /*late=*/true);
    }
  }
}

void OwnedShards::Leave(ShardFollower* follower, const char* why, bool late) {
  follower->sync().Leave(late);
  leaving_[{follower->server(), why}] += 1;
}

void OwnedShards::LogLeaving() {
  for (const auto& [of, shards] : std::exchange(leaving_, {})) {
    LODESTONE_LOG(WARN, "replication", "a follower is to count no more ps={} shards={} reason={}", of.first, shards,
                  of.second);
  }
}

void OwnedShards::Detach(const FollowStream* stream, int64_t now_ms) {
  for (OwnedShard& owned : shards_) {
    if (ShardFollower* const one = owned.With(stream); one != nullptr) one->Detach(now_ms);
  }
}

void OwnedShards::SettleAll(const absl::Status& status, SettledAcks* settled) {
  for (OwnedShard& owned : shards_) owned.SettleAll(status, settled);
}

bool OwnedShards::CollectReports(v1::ReportSyncRequest* request) {
  for (ShardId shard = 0; shard < shards_.size(); ++shard) {
    OwnedShard& owned = shards_[shard];
    if (!owned.owned()) continue;
    for (const auto& one : owned.followers()) {
      const std::optional<ShardSync::Report> taken = one->sync().TakeReport();
      if (!taken.has_value()) continue;
      auto* const report = request->add_reports();
      report->set_shard(shard);
      report->set_in_sync(taken->in_sync);
      report->set_follower(taken->follower);
      report->set_term(owned.term());
      report->set_gives_up(taken->gives_up);
    }
  }
  return request->reports_size() > 0;
}

bool OwnedShards::TakeOutcome(const v1::ReportSyncRequest::Report& report, bool accepted, uint64_t epoch,
                              int64_t now_ms, SettledAcks* settled) {
  OwnedShard& owned = shards_[report.shard()];
  ShardFollower* const one = owned.OfLife(report.follower());
  if (one == nullptr) return false;  // It was forgotten meanwhile.
  switch (one->sync().OnReport({report.in_sync(), report.follower(), report.gives_up()}, accepted, epoch)) {
    case ShardSync::Outcome::kNothing:
      // A map from after the coordinator took the report has come before its answer.
      if (one->sync().state() == ShardSync::State::kInSync && owned.IsOutOfMap(*one, epoch)) {
        Leave(one, "a newer map does not name it");
      }
      return false;
    case ShardSync::Outcome::kReleased:
      owned.OnReleased(one, limits_.in_sync_min, NotHeld(report.shard()), now_ms, settled);
      return true;
    case ShardSync::Outcome::kRejected:  // The map says which follower or owner it is.
      one->EndStream(absl::UnavailableError("the coordinator does not know this ps as the shard's follower"));
      if (one->sync().state() == ShardSync::State::kJoining) Leave(one, "the coordinator knows another");
      return false;
  }
  return false;
}

void OwnedShards::FillStatus(v1::ReplicationStatus* status) const {
  std::map<uint32_t, v1::FollowerStatus> followers;
  for (const OwnedShard& owned : shards_) {
    if (!owned.owned()) continue;
    const uint32_t copies = owned.copies_in_sync();
    const bool joins = absl::c_any_of(
        owned.followers(), [](const auto& one) { return one->sync().state() == ShardSync::State::kJoining; });
    status->set_shards_in_sync(status->shards_in_sync() + (copies >= std::max(2u, limits_.replicas)));
    status->set_shards_alone(status->shards_alone() + (copies == 1 && !joins));
    for (const auto& one : owned.followers()) {
      if (one->stream() == nullptr) continue;
      v1::FollowerStatus& follower = followers[one->server()];
      follower.set_server(one->server());
      follower.set_shards(follower.shards() + 1);
      follower.set_shards_in_sync(follower.shards_in_sync() + (one->sync().state() == ShardSync::State::kInSync));
      follower.set_lag_records(follower.lag_records() + one->unconfirmed());
      follower.set_lag_bytes(follower.lag_bytes() + one->unconfirmed_bytes());
      follower.set_bytes(one->stream()->sent_bytes());
    }
  }
  for (auto& [server, follower] : followers) *status->add_followers() = std::move(follower);
}

std::optional<OwnedShards::Waiting> OwnedShards::OldestWait() const {
  std::optional<Waiting> oldest;
  for (ShardId shard = 0; shard < shards_.size(); ++shard) {
    const std::optional<OwnedShard::Waiting> waiting = shards_[shard].OldestWait();
    if (!shards_[shard].owned() || !waiting.has_value()) continue;
    if (!oldest.has_value() || waiting->since_ms < oldest->since_ms) {
      oldest = Waiting{waiting->since_ms, waiting->server, shard};
    }
  }
  return oldest;
}

void OwnedShards::FillWait(const std::string& who, int64_t now_ms, v1::StatusResponse* status) const {
  if (limits_.in_sync_min <= 1) return;
  v1::WaitStatus wait;
  int64_t since_ms = now_ms;
  for (ShardId shard = 0; shard < shards_.size(); ++shard) {
    const OwnedShard& owned = shards_[shard];
    if (!owned.owned() || owned.copies_in_sync() >= limits_.in_sync_min) continue;
    wait.add_shards(shard);
    const bool leaves = absl::c_any_of(
        owned.followers(), [](const auto& one) { return one->sync().state() == ShardSync::State::kLeaving; });
    if (!leaves) since_ms = std::min(since_ms, owned.lacks_since_ms());
  }
  if (wait.shards().empty()) return;
  wait.set_who(who);
  wait.set_what(absl::StrCat("a follower in sync for ", wait.shards_size(),
                             " shards, to which pushes are refused (cluster.in_sync_min: ", limits_.in_sync_min, ")"));
  wait.set_seconds(static_cast<double>(now_ms - since_ms) / 1000);
  *status->add_waits() = std::move(wait);
}

}  // namespace lodestone::server
