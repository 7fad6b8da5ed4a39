#include "server/replication/owned_shards.h"

#include <algorithm>
#include <optional>

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

absl::Status NotHeld(ShardId shard) {
  return absl::UnavailableError(
      absl::StrCat("shard ", shard,
                   " is at its owner alone in this version, and cluster.in_sync_min wants another copy in sync: try "
                   "again when a follower has caught up; a push that is sent again counts once"));
}

}  // namespace

OwnedShards::OwnedShards(uint32_t shards, const Limits& limits, UnconfirmedBytes* unconfirmed) : limits_(limits) {
  shards_.reserve(shards);
  for (uint32_t shard = 0; shard < shards; ++shard) shards_.emplace_back(unconfirmed);
}

absl::Status OwnedShards::CheckCopies(ShardId shard) const {
  if (limits_.in_sync_min <= 1 || shards_[shard].follower().sync().state() == ShardSync::State::kInSync) {
    return absl::OkStatus();
  }
  refused_metric.Add(1);
  return absl::UnavailableError(absl::StrCat("shard ", shard, " has 1 copy in sync, and cluster.in_sync_min wants ",
                                             limits_.in_sync_min,
                                             ": nothing was applied; try again when a follower has "
                                             "caught up (psctl status says what it waits for)"));
}

absl::Status OwnedShards::CheckHeld(ShardId shard, Version version) const {
  const ShardSync& sync = shards_[shard].follower().sync();
  const ShardSync& learner = shards_[shard].learner().sync();
  if (limits_.in_sync_min <= 1 || sync.counts() || version <= sync.confirmed()) return absl::OkStatus();
  if (learner.counts() && version <= learner.confirmed()) return absl::OkStatus();
  return NotHeld(shard);
}

void OwnedShards::OnReleased(ShardId shard, int64_t now_ms, SettledAcks* settled) {
  shards_[shard].OnReleased(limits_.in_sync_min > 1 ? NotHeld(shard) : absl::OkStatus(), now_ms, settled);
}

bool OwnedShards::KeepUpdates() const {
  return std::any_of(shards_.begin(), shards_.end(), [](const OwnedShard& owned) { return owned.KeepsUpdates(); });
}

void OwnedShards::CheckTime(int64_t now_ms, const absl::Status& may_serve, SettledAcks* settled) {
  for (ShardId shard = 0; shard < shards_.size(); ++shard) {
    OwnedShard& owned = shards_[shard];
    if (!owned.owned()) continue;
    for (ShardFollower* const one : owned.both()) {
      if (one->IsHopeless(limits_.stalled_ms_max, limits_.queue_bytes_max)) {
        one->EndStream(absl::UnavailableError("the follower is too far behind; it is to begin again"), /*now=*/true);
        one->Detach(now_ms);
      }
      if (!one->sync().counts()) continue;
      if (!may_serve.ok()) one->SettleAll(may_serve, settled);
      const char* const why = one->sync().WhyLate(
          now_ms, one->silent_since_ms(kPatiencesOfOneWait * limits_.patience_ms), limits_.patience_ms);
      if (why != nullptr) Leave(one, why, /*late=*/true);
    }
  }
}

void OwnedShards::Leave(ShardFollower* follower, const char* why, bool late) {
  follower->sync().Leave(late);
  leaving_[{follower->sync().server(), why}] += 1;
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
    for (ShardFollower* const one : owned.both()) {
      const std::optional<ShardSync::Report> taken = one->sync().TakeReport();
      if (!taken.has_value()) continue;
      auto* const report = request->add_reports();
      report->set_shard(shard);
      report->set_in_sync(taken->in_sync);
      report->set_follower(one == &owned.learner() ? one->sync().follower() : taken->follower);
      report->set_term(owned.term());
      report->set_gives_up(taken->gives_up);
    }
  }
  return request->reports_size() > 0;
}

bool OwnedShards::TakeOutcome(const v1::ReportSyncRequest::Report& report, bool accepted, uint64_t epoch,
                              int64_t now_ms, SettledAcks* settled) {
  OwnedShard& owned = shards_[report.shard()];
  ShardFollower& one = owned.ReportedOf(report.follower());
  const bool learns = &one == &owned.learner();
  switch (one.sync().OnReport({report.in_sync(), report.follower(), report.gives_up()}, accepted, epoch)) {
    case ShardSync::Outcome::kNothing:
      if (learns && one.sync().state() == ShardSync::State::kInSync) {
        owned.LearnerFollows(report.shard(), epoch, settled);
      }
      return learns;
    case ShardSync::Outcome::kReleased:
      if (learns) {
        // What waits for it came while the follower counted, and waits for that one too, or while none did.
        const bool held = limits_.in_sync_min <= 1 || owned.follower().sync().state() == ShardSync::State::kInSync;
        one.OnReleased(held ? absl::OkStatus() : NotHeld(report.shard()), settled);
      } else {
        OnReleased(report.shard(), now_ms, settled);
      }
      return true;
    case ShardSync::Outcome::kRejected:  // The map says which follower or owner it is.
      one.EndStream(absl::UnavailableError("the coordinator does not know this ps as the shard's follower"));
      if (one.sync().state() == ShardSync::State::kJoining) Leave(&one, "the coordinator knows another");
      return false;
  }
  return false;
}

void OwnedShards::FillStatus(v1::ReplicationStatus* status) const {
  std::map<uint32_t, v1::FollowerStatus> followers;
  for (const OwnedShard& owned : shards_) {
    if (!owned.owned()) continue;
    const ShardSync::State state = owned.follower().sync().state();
    const bool alone = state == ShardSync::State::kAlone || state == ShardSync::State::kLeaving;
    status->set_shards_in_sync(status->shards_in_sync() + (state == ShardSync::State::kInSync));
    status->set_shards_alone(status->shards_alone() + alone);
    for (const ShardFollower* const one : owned.both()) {
      if (one->stream() == nullptr) continue;
      v1::FollowerStatus& follower = followers[one->sync().server()];
      follower.set_server(one->sync().server());
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
    const ShardSync::State state = owned.follower().sync().state();
    if (!owned.owned() || state == ShardSync::State::kInSync) continue;
    wait.add_shards(shard);
    if (state != ShardSync::State::kLeaving) since_ms = std::min(since_ms, owned.alone_ms());
  }
  if (wait.shards().empty()) return;
  wait.set_who(who);
  wait.set_what(absl::StrCat("a follower in sync for ", wait.shards_size(),
                             " shards, to which pushes are refused (cluster.in_sync_min: ", limits_.in_sync_min, ")"));
  wait.set_seconds(static_cast<double>(now_ms - since_ms) / 1000);
  *status->add_waits() = std::move(wait);
}

}  // namespace lodestone::server
