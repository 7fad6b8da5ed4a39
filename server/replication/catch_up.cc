#include "server/replication/catch_up.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "server/replication/copy_pace.h"
#include "server/replication/logged_positions.h"
#include "server/replication/newest_updates.h"
#include "server/replication/replicator.h"
#include "server/shard/shard.h"
#include "server/store/store.h"

namespace lodestone::server {
namespace {

// Each goes twice as fast as the one before: so they come to an end if the link is faster than updates come.
constexpr int kRoundsMax = 16;

CounterMetric shards_metric("lodestone_ps_replication_caught_up_shards_total",
                            "Shards whose followers got the updates that they lacked, and no state.");
CounterMetric updates_metric("lodestone_ps_replication_caught_up_records_total",
                             "Records of the log on the disk that followers got because they lacked them.");

absl::Status EndedStream() { return absl::UnavailableError("the stream has ended"); }

}  // namespace

CatchUp::CatchUp(const Bootstrap::Sources& sources, UpdateLog* log, std::shared_ptr<FollowStream> stream)
    : sources_(sources),
      log_(log),
      stream_(std::move(stream)),
      sent_bytes_max_(std::max(limits::kFollowBytesAhead, sources.store->tables().totals().second)) {
  if (log_ == nullptr) return;
  hold_.emplace(log_);
  // A log that is longer than what is held is no shorter way than the state.
  missed_.emplace(log_, std::max(limits::kCatchUpLookBytes, sources_.store->tables().totals().second));
}

Version CatchUp::VersionNow(const v1::ShardPosition& position) const {
  const bool found = missed_.has_value() && missed_->Has(position.shard());
  return found ? missed_->VersionOf(position.shard()) : position.version();
}

bool CatchUp::IsPast(const v1::ShardPosition& position) {
  if (missed_.has_value() && missed_->Has(position.shard())) return true;
  // What was the newest once is the past for ever. In a later term, which came without an update, the next one follows
  // on a term that the copy does not know.
  uint64_t term = 0;
  sources_.store->shards().Run(position.shard(), [&term](const Shard* shard) { term = shard->term(); });
  const bool was_newest = sources_.newest->MarkAt(position.shard(), position.version()) == position.mark();
  if (was_newest && position.term() >= term) past_.insert(position.shard());
  return past_.contains(position.shard());
}

absl::StatusOr<std::vector<v1::ShardPosition>> CatchUp::Run(const std::vector<v1::ShardPosition>& positions) {
  for (const v1::ShardPosition& position : positions) {
    v1::FollowItem item;
    *item.mutable_catch_up_begins() = position;
    stream_->Send(MakePiece(std::move(item)));
  }
  LODESTONE_RETURN_IF_ERROR(RunRounds(positions));
  std::vector<v1::ShardPosition> rest;
  std::vector<std::pair<v1::ShardPosition, Version>> attached;  // What is kept begins behind the version.
  Versions upto;
  for (const v1::ShardPosition& position : positions) {
    if (!IsPast(position)) {
      rest.push_back(position);
      continue;
    }
    LODESTONE_ASSIGN_OR_RETURN(const Replicator::Attached now,
                               sources_.replicator->Attach(stream_, position, Replicator::Wanted::kUpdates));
    if (now.resumes) {
      LODESTONE_RETURN_IF_ERROR(sources_.replicator->FinishUpdates(stream_, position.shard()));
      continue;
    }
    attached.emplace_back(position, now.version);
    if (now.version != VersionNow(position)) upto[position.shard()] = now.version;
  }
  LODESTONE_RETURN_IF_ERROR(Send(positions, upto));
  for (const auto& [position, version] : attached) {
    if (VersionNow(position) != version || !IsPast(position)) {
      rest.push_back(position);
      continue;
    }
    LODESTONE_RETURN_IF_ERROR(sources_.replicator->FinishUpdates(stream_, position.shard()));
    shards_metric.Add(1);
  }
  return rest;
}

absl::Status CatchUp::RunRounds(const std::vector<v1::ShardPosition>& positions) {
  if (log_ == nullptr) return absl::OkStatus();
  for (int round = 0; round < kRoundsMax; ++round, hurry_ *= 2) {
    Versions upto;
    for (const v1::ShardPosition& position : positions) {
      Version newest = 0;  // Asked on its executor, which has appended to the log what made it.
      sources_.store->shards().Run(position.shard(), [&newest](const Shard* shard) { newest = shard->version(); });
      const bool sought = round == 0 || IsPast(position);
      if (sought && (VersionNow(position) < newest || !IsPast(position))) upto[position.shard()] = newest;
    }
    const uint64_t before = sent_bytes_;
    LODESTONE_RETURN_IF_ERROR(Send(positions, upto));
    if (sent_bytes_ - before <= limits::kFollowBytesAhead) break;
  }
  return absl::OkStatus();
}

absl::Status CatchUp::Send(const std::vector<v1::ShardPosition>& positions, const Versions& upto) {
  if (upto.empty() || log_ == nullptr) return absl::OkStatus();
  const auto send = [&]() -> absl::Status {
    // What is up to there is in segments that are closed then.
    sources_.store->log().Roll();
    LODESTONE_RETURN_IF_ERROR(AwaitLogs(sources_.store));
    std::vector<MissedUpdates::Copy> copies;
    for (const v1::ShardPosition& position : positions) {
      if (missed_->Has(position.shard())) continue;
      const uint64_t lineage = sources_.store->shards().Get(position.shard())->lineage();
      copies.push_back({position.shard(), lineage, position.term(), {position.version(), position.mark()}});
    }
    LODESTONE_RETURN_IF_ERROR(missed_->Find(copies, upto));
    Versions of_found = upto;
    std::erase_if(of_found, [this](const auto& entry) { return !missed_->Has(entry.first); });
    return missed_->Read(of_found,
                         [this](const auto& record, const auto& payload) { return SendRecord(record, payload); });
  };
  const absl::Status status = send();
  if (stream_->ended()) return EndedStream();
  if (!status.ok()) {
    LODESTONE_LOG(WARN, "replication", "a follower gets states: the log does not give what it lacks ps={} reason={}",
                  stream_->server(), status.ToString());
    missed_.emplace(log_, 0);  // Nothing is found any more.
  }
  return absl::OkStatus();
}

absl::Status CatchUp::SendRecord(const v1::LogRecord& record, const ByteView& payload) {
  FollowPieceRef piece = MakePiece(record, {&payload, 1}, nullptr);
  // Where updates come faster than the link takes them, each round sends more than the one before, without an end.
  if (sent_bytes_ + piece->bytes > sent_bytes_max_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it lacks more than ", sent_bytes_max_, " bytes by now: the states are shorter"));
  }
  sent_bytes_ += piece->bytes;
  updates_metric.Add(1);
  if (!sources_.pace->Await(*stream_, piece->bytes, hurry_)) return EndedStream();
  if (!stream_->WaitForRoom(sources_.stalled_ms_max)) return EndedStream();
  stream_->Send(std::move(piece));
  return absl::OkStatus();
}

}  // namespace lodestone::server
