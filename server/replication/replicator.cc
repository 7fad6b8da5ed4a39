#include "server/replication/replicator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"

namespace lodestone::server {
namespace {

absl::Status Moved(ShardId shard) {
  return absl::AbortedError(absl::StrCat("shard ", shard, " has another owner now: the shard map says which"));
}

// The record, with its payload where it lies if that is kept.
FollowPieceRef PieceOf(const ShardLog::Record& record, const std::shared_ptr<const void>& keep) {
  v1::FollowItem item;
  *item.mutable_record() = record.message;
  std::vector<grpc::Slice> payload;
  for (ByteView rest : record.payload) {
    while (!rest.empty()) {
      const ByteView::Run run = rest.front();
      rest.Take(run.size);
      if (keep == nullptr) {
        payload.emplace_back(run.data, run.size);
        continue;
      }
      payload.emplace_back(
          const_cast<uint8_t*>(run.data), run.size,
          [](void* kept) { delete static_cast<std::shared_ptr<const void>*>(kept); },
          new std::shared_ptr<const void>(keep));
    }
  }
  return MakePiece(std::move(item), std::move(payload), record.message.version());
}

}  // namespace

Replicator::Replicator(Options options, Store* store) : options_(std::move(options)), store_(store) {
  {
    MutexLock lock(&mu_);
    shards_.resize(options_.shards);
  }
  reports_ = std::thread([this] { RunReports(); });
}

Replicator::~Replicator() {
  Shutdown();
  std::vector<std::unique_ptr<Bootstrap>> bootstraps;
  {
    MutexLock lock(&mu_);
    bootstraps.swap(bootstraps_);
  }
  for (const auto& bootstrap : bootstraps) bootstrap->thread.join();
}

void Replicator::Telling::Run() {
  for (const auto& [waiter, status] : std::exchange(list, {})) Settle(waiter, status);
}

void Replicator::Settle(const WaiterRef& waiter, const absl::Status& status) {
  absl::Status all;
  {
    MutexLock lock(&waiter->mu);
    waiter->status.Update(status);
    all = waiter->status;
  }
  if (waiter->left.fetch_sub(1, std::memory_order_acq_rel) == 1) waiter->done(all);
}

void Replicator::Own(ShardId shard) {
  MutexLock lock(&mu_);
  shards_[shard] = OwnedShard();
  shards_[shard].owned = true;
}

void Replicator::Disown(ShardId shard) {
  Telling telling;
  MutexLock lock(&mu_);
  OwnedShard& owned = shards_[shard];
  Fail(&owned, Moved(shard), &telling);
  if (owned.stream != nullptr) owned.stream->End(Moved(shard));
  DropUnconfirmed(&owned, UINT64_MAX);
  owned = OwnedShard();
  changed_.NotifyAll();
}

void Replicator::SetMap(const ShardMap& map) {
  size_t released = 0;
  Telling telling;
  MutexLock lock(&mu_);
  for (ShardId shard = 0; shard < shards_.size(); ++shard) {
    OwnedShard& owned = shards_[shard];
    if (!owned.owned || map.OwnerOf(shard) != options_.server || map.InSync(shard)) continue;
    // Only this ps can have the coordinator count a follower again, and it has not since.
    const bool newer = owned.in_sync_epoch > 0 && map.epoch() > owned.in_sync_epoch;
    if (!newer || owned.reporting || (owned.sync != Sync::kInSync && owned.sync != Sync::kLeaving)) continue;
    Release(&owned, &telling);
    ++released;
  }
  if (released == 0) return;
  LODESTONE_LOG(INFO, "replication", "followers count no more, says the coordinator shards={} epoch={}", released,
                map.epoch());
}

void Replicator::Append(std::span<const ShardLog::Record> records, const std::shared_ptr<const void>& keep) {
  for (const ShardLog::Record& record : records) {
    const bool of_all = record.message.version() == 0;
    bool wanted = false;
    {
      MutexLock lock(&mu_);
      if (of_all) {
        wanted = !streams_.empty();
      } else {
        OwnedShard& owned = shards_[record.message.shard()];
        owned.appended = record.message.version();
        wanted = owned.stream != nullptr || owned.sync != Sync::kAlone;
      }
    }
    // A stream gets a shard's updates from a moment on that is on the shard's executor, as this is.
    if (!wanted) continue;
    const FollowPieceRef piece = PieceOf(record, keep);
    MutexLock lock(&mu_);
    if (of_all) {
      for (const auto& stream : streams_) {
        if (stream->incarnation() != 0) stream->Send(piece);
      }
      continue;
    }
    OwnedShard& owned = shards_[record.message.shard()];
    if (owned.stream == nullptr && owned.sync == Sync::kAlone) continue;
    owned.unconfirmed.push_back(piece);
    owned.unconfirmed_bytes += piece->bytes;
    unconfirmed_bytes_.fetch_add(piece->bytes, std::memory_order_relaxed);
    if (owned.stream != nullptr && !owned.sending_state) owned.stream->Send(piece);
  }
}

void Replicator::Await(std::span<const Position> positions, Done done) {
  WaiterRef waiter;  // Null until there is something to wait for.
  absl::Status status;
  {
    MutexLock lock(&mu_);
    if (shut_down_) status = absl::UnavailableError("the ps shuts down");
    for (const Position& position : positions) {
      if (!status.ok()) break;
      OwnedShard& owned = shards_[position.shard];
      if (!owned.owned) {
        status = Moved(position.shard);
      } else if (owned.sync != Sync::kAlone && owned.confirmed < position.version) {
        if (waiter == nullptr) waiter = std::make_shared<Waiter>();
        waiter->left.fetch_add(1, std::memory_order_relaxed);
        owned.waits.push_back({position.version, time_.NowMs(), waiter});
      }
    }
    if (waiter != nullptr) waiter->done = std::move(done);  // Nobody settles it before the lock is let go of.
  }
  if (waiter != nullptr) return Settle(waiter, status);
  done(status);
}

absl::Status Replicator::health() const {
  const uint64_t bytes = unconfirmed_bytes_.load(std::memory_order_relaxed);
  if (bytes <= options_.queue_bytes_max) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("followers are behind: ", bytes, " bytes of updates are not confirmed yet; try again later"));
}

absl::Status Replicator::OnAcks(FollowStream* stream, const v1::FollowAcks& acks) {
  if (stream->incarnation() == 0) return absl::InvalidArgumentError("a stream's first message is its start");
  Telling telling;
  MutexLock lock(&mu_);
  for (const auto& answer : acks.checksums()) {
    const auto question = questions_.find(answer.id());
    if (question == questions_.end() || question->second.stream != stream) continue;
    question->second.answer = answer.checksum();
    changed_.NotifyAll();
  }
  for (const v1::ShardPosition& applied : acks.applied()) {
    if (applied.shard() >= shards_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("there is no shard ", applied.shard()));
    }
    OwnedShard& owned = shards_[applied.shard()];
    if (owned.stream.get() != stream || owned.sending_state) continue;
    if (applied.version() > owned.appended) {
      return absl::InvalidArgumentError(absl::StrCat("shard ", applied.shard(), " is at version ", owned.appended,
                                                     " here, and its follower says ", applied.version()));
    }
    Confirm(&owned, applied.version(), &telling);
  }
  return absl::OkStatus();
}

void Replicator::Confirm(OwnedShard* owned, Version version, Telling* telling) {
  owned->confirmed = std::max(owned->confirmed, version);
  DropUnconfirmed(owned, owned->confirmed);
  while (!owned->waits.empty() && owned->waits.front().version <= owned->confirmed) {
    telling->list.emplace_back(std::move(owned->waits.front().waiter), absl::OkStatus());
    owned->waits.pop_front();
  }
  if (owned->sync == Sync::kAlone) {
    owned->sync = Sync::kJoining;
    owned->mark = owned->appended;
    owned->told = false;
  }
  if (owned->sync == Sync::kJoining && !owned->told && owned->confirmed >= owned->mark) changed_.NotifyAll();
}

void Replicator::OnClosed(FollowStream* stream) {
  Telling telling;
  MutexLock lock(&mu_);
  for (OwnedShard& owned : shards_) {
    if (owned.stream.get() == stream) Detach(&owned);
  }
  for (auto& [id, question] : questions_) question.lost |= question.stream == stream;
  std::erase_if(streams_, [stream](const auto& one) { return one.get() == stream; });
  changed_.NotifyAll();
}

void Replicator::Detach(OwnedShard* owned) {
  owned->stream.reset();
  owned->sending_state = false;
  owned->lost_since_ms = time_.NowMs();
  if (owned->sync == Sync::kJoining && !owned->told) owned->sync = Sync::kLeaving;
  if (owned->sync == Sync::kAlone) DropUnconfirmed(owned, UINT64_MAX);
}

void Replicator::DropUnconfirmed(OwnedShard* owned, Version up_to) {
  while (!owned->unconfirmed.empty() && owned->unconfirmed.front()->version <= up_to) {
    owned->unconfirmed_bytes -= owned->unconfirmed.front()->bytes;
    unconfirmed_bytes_.fetch_sub(owned->unconfirmed.front()->bytes, std::memory_order_relaxed);
    owned->unconfirmed.pop_front();
  }
}

void Replicator::Release(OwnedShard* owned, Telling* telling) {
  owned->sync = Sync::kAlone;
  owned->told = false;
  owned->in_sync_epoch = 0;
  Fail(owned, absl::OkStatus(), telling);
  if (owned->stream == nullptr) DropUnconfirmed(owned, UINT64_MAX);
  changed_.NotifyAll();
}

void Replicator::Fail(OwnedShard* owned, const absl::Status& status, Telling* telling) {
  for (Wait& wait : owned->waits) telling->list.emplace_back(std::move(wait.waiter), status);
  owned->waits.clear();
}

void Replicator::Shutdown() {
  Telling telling;
  std::vector<std::shared_ptr<FollowStream>> streams;
  {
    MutexLock lock(&mu_);
    shut_down_ = true;
    for (OwnedShard& owned : shards_) Fail(&owned, absl::UnavailableError("the ps shuts down"), &telling);
    streams = streams_;
    changed_.NotifyAll();
  }
  for (const auto& stream : streams) stream->End(absl::UnavailableError("the ps shuts down"));
  telling.Run();
  if (reports_.joinable()) reports_.join();
}

void Replicator::FillStatus(v1::StatusResponse* status) const {
  const int64_t now_ms = time_.NowMs();
  std::map<uint32_t, v1::FollowerStatus> followers;
  v1::ReplicationStatus* const out = status->mutable_replication();
  MutexLock lock(&mu_);
  int64_t waiting_since_ms = now_ms;
  uint32_t waiting_for = 0;
  for (const OwnedShard& owned : shards_) {
    if (!owned.owned) continue;
    out->set_shards_in_sync(out->shards_in_sync() + (owned.sync == Sync::kInSync));
    out->set_shards_alone(out->shards_alone() + (owned.sync == Sync::kAlone || owned.sync == Sync::kLeaving));
    if (!owned.waits.empty() && owned.waits.front().since_ms < waiting_since_ms) {
      waiting_since_ms = owned.waits.front().since_ms;
      waiting_for = owned.server;
    }
    if (owned.stream == nullptr) continue;
    v1::FollowerStatus& follower = followers[owned.server];
    follower.set_server(owned.server);
    follower.set_shards(follower.shards() + 1);
    follower.set_shards_in_sync(follower.shards_in_sync() + (owned.sync == Sync::kInSync));
    follower.set_lag_records(follower.lag_records() + owned.unconfirmed.size());
    follower.set_lag_bytes(follower.lag_bytes() + owned.unconfirmed_bytes);
    follower.set_bytes(owned.stream->sent_bytes());
  }
  for (auto& [server, follower] : followers) *out->add_followers() = std::move(follower);
  if (waiting_since_ms >= now_ms && report_error_.empty()) return;
  v1::WaitStatus* const wait = status->add_waits();
  wait->set_who(absl::StrCat("ps ", options_.server));
  wait->set_what(report_error_.empty()
                     ? absl::StrCat("ps ", waiting_for, " to confirm updates that it follows")
                     : absl::StrCat("the coordinator to hear which followers count: ", report_error_));
  wait->set_seconds(static_cast<double>(now_ms - waiting_since_ms) / 1000);
}

}  // namespace lodestone::server
