// What the coordinator is told of followers, and what time brings.
#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "server/replication/replicator.h"

namespace lodestone::server {
namespace {

constexpr std::chrono::milliseconds kLookEvery(20);  // At what time brings, while there is a follower.
constexpr std::chrono::milliseconds kReportPause(100);

}  // namespace

void Replicator::Leave(OwnedShard* owned, const char* why) {
  owned->sync = Sync::kLeaving;
  leaving_[{owned->server, why}] += 1;
}

void Replicator::LogLeaving() {
  for (const auto& [of, shards] : std::exchange(leaving_, {})) {
    LODESTONE_LOG(WARN, "replication", "a follower is to count no more ps={} shards={} reason={}", of.first, shards,
                  of.second);
  }
}

// One that does not count must not hold up those that push. While a state is being sent, what comes meanwhile may be
// much, as long as the state gets on.
bool Replicator::IsHopeless(const OwnedShard& owned) const {
  if (owned.stream->WritingMs() > options_.stalled_ms_max) return true;
  if (owned.sending_state) return false;
  return owned.unconfirmed_bytes > options_.queue_bytes_max / 4 ||
         owned.stream->waiting_bytes() > options_.queue_bytes_max / 4;
}

void Replicator::CheckTime(Telling* telling) {
  const int64_t now_ms = time_.NowMs();
  for (const auto& stream : streams_) {
    if (stream->SilentMs() <= options_.stalled_ms_max) continue;
    stream->End(absl::DeadlineExceededError("the stream did not start in time"), /*now=*/true);
  }
  const absl::Status may_serve = options_.may_serve ? options_.may_serve() : absl::OkStatus();
  for (ShardId shard = 0; shard < shards_.size(); ++shard) {
    OwnedShard& owned = shards_[shard];
    if (!owned.owned) continue;
    if (owned.sync == Sync::kAlone) {
      if (owned.stream != nullptr && IsHopeless(owned)) {
        owned.stream->End(absl::UnavailableError("the follower is too far behind; it is to begin anew"), /*now=*/true);
        Detach(&owned);
      }
      continue;
    }
    if (!may_serve.ok()) Fail(&owned, may_serve, telling);
    if (owned.sync == Sync::kLeaving) continue;
    if (!owned.waits.empty() && now_ms - owned.waits.front().since_ms > options_.patience_ms) {
      Leave(&owned, "it does not confirm");
    } else if (owned.stream == nullptr && now_ms - owned.lost_since_ms > options_.patience_ms) {
      Leave(&owned, "its stream is gone");
    }
  }
}

bool Replicator::CollectReports(v1::ReportSyncRequest* request) {
  for (ShardId shard = 0; shard < shards_.size(); ++shard) {
    OwnedShard& owned = shards_[shard];
    if (!owned.owned || owned.reporting) continue;
    const bool joins = owned.sync == Sync::kJoining && !owned.told && owned.confirmed >= owned.mark;
    if (!joins && owned.sync != Sync::kLeaving) continue;
    auto* const report = request->add_reports();
    report->set_shard(shard);
    report->set_in_sync(joins);
    report->set_follower(joins ? owned.follower : 0);
    owned.reporting = true;
    owned.told |= joins;
  }
  return request->reports_size() > 0;
}

void Replicator::TakeOutcome(const v1::ReportSyncRequest::Report& report, bool accepted, uint64_t epoch,
                             Telling* telling) {
  OwnedShard& owned = shards_[report.shard()];
  if (!owned.owned || !owned.reporting) return;  // It was lost meanwhile, and perhaps won again.
  owned.reporting = false;
  if (!report.in_sync()) {
    if (accepted && owned.sync == Sync::kLeaving) Release(&owned, telling);
    return;
  }
  if (accepted) {
    owned.in_sync_epoch = epoch;
    if (owned.sync == Sync::kJoining) owned.sync = Sync::kInSync;
    return;
  }
  // It is not this shard's follower, or the shard is not this ps's: the map tells.
  if (owned.stream != nullptr) {
    owned.stream->End(absl::UnavailableError("the coordinator does not know this ps as the shard's follower"));
  }
  if (owned.sync == Sync::kJoining) Leave(&owned, "the coordinator knows another");
}

void Replicator::RunReports() {
  mu_.Lock();
  while (!shut_down_) {
    Telling telling;
    v1::ReportSyncRequest request;
    CheckTime(&telling);
    LogLeaving();
    const bool reports = CollectReports(&request);
    const bool idle =
        std::all_of(shards_.begin(), shards_.end(),
                    [](const OwnedShard& owned) { return owned.sync == Sync::kAlone && owned.stream == nullptr; }) &&
        streams_.empty();
    if (!telling.list.empty() || reports) {
      mu_.Unlock();
      telling.Run();
      const bool well = !reports || Report(request);
      mu_.Lock();
      if (!well && !shut_down_) changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + kReportPause);
    } else if (idle) {
      changed_.Wait(&mu_);
    } else {
      changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + kLookEvery);
    }
  }
  mu_.Unlock();
}

bool Replicator::Report(const v1::ReportSyncRequest& request) {
  absl::StatusOr<v1::ReportSyncResponse> response = options_.report(request);
  if (response.ok() && response->accepted_size() != request.reports_size()) {
    response = absl::InternalError("the coordinator's answer does not fit to what it was told");
  }
  bool all = response.ok();
  Telling telling;
  {
    MutexLock lock(&mu_);
    report_error_ = response.ok() ? "" : response.status().ToString();
    for (int i = 0; i < request.reports_size(); ++i) {
      OwnedShard& owned = shards_[request.reports(i).shard()];
      if (response.ok()) {
        all = all && response->accepted(i);
        TakeOutcome(request.reports(i), response->accepted(i), response->route_epoch(), &telling);
      } else {
        owned.reporting = false;  // The coordinator may have taken it all the same.
        if (owned.sync == Sync::kJoining) owned.told = false;
      }
    }
  }
  if (!all) options_.ask_route();
  return all;
}

}  // namespace lodestone::server
