#include "server/replication/replicator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "server/shard/shard.h"
#include "server/store/store.h"

namespace lodestone::server {
namespace {

constexpr int64_t kLookEveryMs = 20;  // At what time brings, while there is a follower.
constexpr int64_t kReportPauseMs = 100;
constexpr int64_t kAttachPauseMs = 100;

absl::Status Moved(ShardId shard) {
  return absl::AbortedError(absl::StrCat("shard ", shard, " has another owner now: the shard map says which"));
}

}  // namespace

Replicator::Replicator(Options options, Store* store, NewestUpdates* newest)
    : options_(std::move(options)),
      store_(store),
      newest_(newest),
      engaged_(options_.replicated),
      unconfirmed_{.others_max = options_.queue_bytes_max / 2},
      pace_(options_.copy_bytes_per_second),
      verifier_(store, [this](ShardId shard, v1::FollowItem item) { return AskFollowers(shard, std::move(item)); }),
      streams_(OptionsOfStreams(), this, store),
      shards_(options_.shards,
              {options_.patience_ms, options_.stalled_ms_max, options_.queue_bytes_max, options_.in_sync_min,
               options_.replicas},
              &unconfirmed_) {
  reports_ = Thread([this] { RunReports(); });
}

FollowStreams::Options Replicator::OptionsOfStreams() {
  FollowStreams::Options options;
  options.cluster = options_.cluster;
  options.shards = options_.shards;
  options.seed = options_.seed;
  options.server = options_.server;
  options.access = options_.access;
  options.sources = {.replicator = this,
                     .store = store_,
                     .newest = newest_,
                     .pace = &pace_,
                     .stalled_ms_max = options_.stalled_ms_max,
                     .updates = options_.updates};
  return options;
}

Replicator::~Replicator() { Shutdown(); }

void Replicator::Own(ShardId shard, uint64_t term) {
  MutexLock lock(&mu_);
  shards_[shard].Reset(/*owned=*/true, term, time_.NowMs());
}

void Replicator::Disown(ShardId shard) {
  engaged_.store(true, std::memory_order_release);
  SettledAcks settled;
  MutexLock lock(&mu_);
  OwnedShard& owned = shards_[shard];
  owned.SettleAll(Moved(shard), &settled);
  owned.EndStreams(Moved(shard));
  owned.Reset(/*owned=*/false, /*term=*/0, time_.NowMs());
  changed_.NotifyAll();
}

void Replicator::GiveUp(ShardId shard, uint64_t handover) {
  const Version version = store_->shards().VersionOf(shard);
  MutexLock lock(&mu_);
  OwnedShard& owned = shards_[shard];
  owned.SetAppended(std::max(owned.appended(), version));
  owned.GiveUp(handover, time_.NowMs());
  changed_.NotifyAll();
}

bool Replicator::NextOwnerHasAll(ShardId shard, uint32_t owner) const {
  MutexLock lock(&mu_);
  return shards_[shard].NextOwnerHasAll(owner);
}

uint64_t Replicator::TermOf(ShardId shard) const {
  MutexLock lock(&mu_);
  return shards_[shard].term();
}

void Replicator::SetMap(const ShardMap& map) {
  size_t released = 0;
  SettledAcks settled;
  MutexLock lock(&mu_);
  for (ShardId shard = 0; shard < shards_.size(); ++shard) {
    if (!shards_[shard].owned() || map.OwnerOf(shard) != options_.server) continue;
    released += shards_.SetMap(map, shard, time_.NowMs(), &settled);
    for (const uint32_t server : map.FollowersOf(shard)) streams_.EndDropped(server, shard);
    if (map.LearnerOf(shard).has_value()) streams_.EndDropped(*map.LearnerOf(shard), shard);
  }
  if (released == 0) return;
  changed_.NotifyAll();
  LODESTONE_LOG(INFO, "replication", "followers count no more, says the coordinator shards={} epoch={}", released,
                map.epoch());
}

void Replicator::Append(std::span<const ShardLog::Record> records, const std::shared_ptr<const void>& keep) {
  QueuedSends sends;
  if (!records.empty()) pace_.NoteUpdate();  // Reads that wait to be durable append nothing.
  for (const ShardLog::Record& record : records) {
    if (record.message.version() == 0) {
      if (!streams_.empty()) streams_.Queue(MakePiece(record.message, record.payload, keep), &sends);
      continue;
    }
    const ShardId shard = record.message.shard();
    newest_->Set(shard, {record.message.version(), MarkOf(record.message)});
    bool wanted = false;
    {
      MutexLock lock(&mu_);
      shards_[shard].SetAppended(record.message.version());
      wanted = shards_[shard].KeepsUpdates();
    }
    // A stream gets a shard's updates from a moment on that is on the shard's executor, as this is.
    if (!wanted) continue;
    const FollowPieceRef piece = MakePiece(record.message, record.payload, keep);
    MutexLock lock(&mu_);
    shards_[shard].Append(piece, &sends);
  }
}

void Replicator::Await(std::span<const Position> positions, Done done) {
  PendingAckRef ack;  // Null until there is something to wait for.
  absl::Status status;
  {
    MutexLock lock(&mu_);
    if (shut_down_) status = absl::UnavailableError("the ps shuts down");
    for (const Position& position : positions) {
      if (!status.ok()) break;
      OwnedShard& owned = shards_[position.shard];
      if (!owned.owned()) {
        status = Moved(position.shard);
      } else {
        status = shards_.CheckHeld(position.shard, position.version);
        if (!status.ok() || !owned.HoldsUp(position.version)) continue;
        if (ack == nullptr) ack = std::make_shared<PendingAck>();
        owned.Await(position.version, time_.NowMs(), ack);
      }
    }
    if (ack != nullptr) ack->SetDone(std::move(done));  // None is settled before the lock is let go of.
  }
  if (ack != nullptr) return ack->Settle(status);
  done(status);
}

absl::Status Replicator::CheckCopies(ShardId shard) {
  if (options_.in_sync_min <= 1) return absl::OkStatus();
  MutexLock lock(&mu_);
  return shards_.CheckCopies(shard);
}

absl::Status Replicator::health() const {
  const uint64_t bytes = unconfirmed_.counting.load(std::memory_order_relaxed);
  // An update counts once for each follower, though they share its memory.
  if (bytes <= options_.queue_bytes_max * std::max(1u, options_.replicas - 1)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("followers are behind: ", bytes, " bytes of updates are not confirmed yet; try again later"));
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Replicator::Open(grpc::CallbackServerContext* context) {
  engaged_.store(true, std::memory_order_release);
  auto* const stream = streams_.Open(context);
  MutexLock lock(&mu_);
  changed_.NotifyAll();  // It may never start.
  return stream;
}

std::shared_ptr<FollowStream> Replicator::Open(FollowStream::Wire* wire) {
  engaged_.store(true, std::memory_order_release);
  std::shared_ptr<FollowStream> stream = streams_.Open(wire);
  MutexLock lock(&mu_);
  changed_.NotifyAll();  // It may never start.
  return stream;
}

absl::Status Replicator::OnStart(const std::shared_ptr<FollowStream>& stream, const v1::FollowStart& start) {
  return streams_.OnStart(stream, start);
}

absl::StatusOr<ShardFollower*> Replicator::FollowerOf(const FollowStream& stream, ShardId shard) {
  if (shut_down_ || stream.ended()) return absl::UnavailableError("the stream has ended");
  if (!shards_[shard].owned()) {
    return absl::UnavailableError(absl::StrCat("shard ", shard, " is no longer owned here"));
  }
  absl::StatusOr<ShardFollower*> one = shards_[shard].Begin(stream.server());
  if (one.ok()) return one;
  return absl::UnavailableError(
      absl::StrCat("shard ", shard, " ", one.status().message(), ", by the map of ps ", options_.server));
}

absl::StatusOr<bool> Replicator::Resume(const std::shared_ptr<FollowStream>& stream,
                                        const v1::ShardPosition& position) {
  absl::StatusOr<bool> resumed = TryResume(stream, position);
  if (!resumed.ok()) options_.ask_route();  // This ps's map may be the old one.
  return resumed;
}

absl::StatusOr<bool> Replicator::TryResume(const std::shared_ptr<FollowStream>& stream,
                                           const v1::ShardPosition& position) {
  {
    MutexLock lock(&mu_);
    LODESTONE_ASSIGN_OR_RETURN(ShardFollower* const one, FollowerOf(*stream, position.shard()));
    if (!one->Resumes(stream->incarnation(), position.version())) {
      if (!one->sync().counts() || one->sync().state() == ShardSync::State::kLeaving) return false;
      shards_.Leave(one, "another copy begins");
      changed_.NotifyAll();
      return false;
    }
  }
  // It might resume no more: then what it lacks follows all the same, as a state.
  absl::StatusOr<std::optional<Attached>> attached;
  store_->shards().Run(position.shard(),
                       [&](Shard* shard) { attached = TryAttach(stream, position, Wanted::kUpdates, *shard); });
  LODESTONE_RETURN_IF_ERROR(attached.status());
  return attached->has_value() && (*attached)->resumes;
}

absl::StatusOr<Replicator::Attached> Replicator::Attach(const std::shared_ptr<FollowStream>& stream,
                                                        const v1::ShardPosition& position, Wanted wanted) {
  for (;;) {
    absl::StatusOr<std::optional<Attached>> attached;
    store_->shards().Run(position.shard(),
                         [&](Shard* shard) { attached = TryAttach(stream, position, wanted, *shard); });
    LODESTONE_RETURN_IF_ERROR(attached.status());
    if (attached->has_value()) return **std::move(attached);
    MutexLock lock(&mu_);
    const OwnedShard& owned = shards_[position.shard()];
    const auto counts = [&] {
      const ShardFollower* const before = owned.Of(stream->server());
      return before != nullptr && before->sync().counts();
    };
    while (!shut_down_ && !stream->ended() && owned.owned() && counts()) changed_.WaitForMs(&mu_, kAttachPauseMs);
  }
}

absl::StatusOr<std::optional<Replicator::Attached>> Replicator::TryAttach(const std::shared_ptr<FollowStream>& stream,
                                                                          const v1::ShardPosition& position,
                                                                          Wanted wanted, const Shard& shard) {
  SettledAcks settled;
  QueuedSends sends;
  MutexLock lock(&mu_);
  LODESTONE_ASSIGN_OR_RETURN(ShardFollower* const one, FollowerOf(*stream, shard.id()));
  OwnedShard& owned = shards_[shard.id()];
  owned.SetAppended(std::max(owned.appended(), shard.version()));
  const ShardSync::Attached how = one->Attach(stream, position.version(), time_.NowMs(), &settled, &sends);
  changed_.NotifyAll();
  if (how == ShardSync::Attached::kCountsStill) {
    if (one->sync().state() != ShardSync::State::kLeaving) shards_.Leave(one, "another copy begins");
    return std::nullopt;
  }
  Attached attached;
  attached.resumes = how == ShardSync::Attached::kResumes;
  attached.version = shard.version();
  attached.mark = newest_->MarkAt(shard.id(), shard.version());
  if (!attached.resumes && wanted == Wanted::kState) {
    attached.state = shard.CollectState(nullptr);
    // All of it counts as this owner's: what the follower logged before, under a former one, may have been lost with
    // it.
    attached.state->term = std::max(attached.state->term, store_->shards().OwnTermOf(shard.id()));
  }
  return attached;
}

absl::Status Replicator::FinishState(const std::shared_ptr<FollowStream>& stream, ShardId shard, FollowPieceRef end) {
  QueuedSends sends;
  MutexLock lock(&mu_);
  ShardFollower* const one = shards_[shard].With(stream.get());
  if (one == nullptr) return absl::UnavailableError("the follower has another stream now");
  one->FinishState(std::move(end), &sends);
  return absl::OkStatus();
}

absl::Status Replicator::FinishUpdates(const std::shared_ptr<FollowStream>& stream, ShardId shard) {
  absl::Status status;
  store_->shards().Run(shard, [&](Shard* held) {
    const Version version = held->version();
    v1::FollowItem item;
    v1::FollowItem::CaughtUp& caught_up = *item.mutable_caught_up();
    caught_up.mutable_position()->set_shard(shard);
    caught_up.mutable_position()->set_term(held->term());
    caught_up.mutable_position()->set_version(version);
    caught_up.mutable_position()->set_mark(newest_->MarkAt(shard, version));
    for (const auto& [worker, window] : held->CollectState(&version).windows) caught_up.add_workers(worker);
    QueuedSends sends;
    MutexLock lock(&mu_);
    ShardFollower* const one = shards_[shard].With(stream.get());
    if (one != nullptr) return one->FinishUpdates(MakePiece(std::move(item)), &sends);
    status = absl::UnavailableError("the follower has another stream now");
  });
  return status;
}

absl::Status Replicator::OnAcks(FollowStream* stream, const v1::FollowAcks& acks) {
  if (stream->incarnation() == 0) return absl::InvalidArgumentError("a stream's first message is its start");
  for (const auto& answer : acks.checksums()) verifier_.OnAnswer(stream, answer);
  SettledAcks settled;
  MutexLock lock(&mu_);
  const int64_t now_ms = time_.NowMs();
  for (const v1::ShardPosition& applied : acks.applied()) {
    if (applied.shard() >= shards_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("there is no shard ", applied.shard()));
    }
    ShardFollower* const one = shards_[applied.shard()].With(stream);
    if (one == nullptr || one->sync().sending_state()) continue;
    if (applied.version() > one->sync().appended()) {
      return absl::InvalidArgumentError(absl::StrCat("shard ", applied.shard(), " is at version ",
                                                     one->sync().appended(), " here, and its follower says ",
                                                     applied.version()));
    }
    one->Confirm(applied.version(), now_ms, &settled);
    if (one->sync().ReadyToJoin() || one->sync().ReadyToGiveUp()) changed_.NotifyAll();
  }
  return absl::OkStatus();
}

void Replicator::OnClosed(FollowStream* stream) {
  streams_.OnClosed(stream);
  {
    MutexLock lock(&mu_);
    shards_.Detach(stream, time_.NowMs());
    changed_.NotifyAll();
  }
  verifier_.OnClosed(stream);
}

std::vector<ReplicaVerifier::Asked> Replicator::AskFollowers(ShardId shard, v1::FollowItem item) {
  std::vector<ReplicaVerifier::Asked> asked;
  const FollowPieceRef piece = MakePiece(std::move(item));
  QueuedSends sends;
  MutexLock lock(&mu_);
  if (!shards_[shard].owned()) return asked;
  for (const auto& one : shards_[shard].followers()) {
    if (one->stream() == nullptr || one->sync().sending_state()) continue;
    sends.Queue(one->stream(), piece);
    asked.push_back({one->server(), one->stream().get()});
  }
  for (const uint32_t server : shards_[shard].named()) {
    const auto is_it = [server](const ReplicaVerifier::Asked& one) { return one.server == server; };
    if (std::none_of(asked.begin(), asked.end(), is_it)) asked.push_back({server, nullptr});
  }
  return asked;
}

void Replicator::RunReports() {
  mu_.Lock();
  while (!shut_down_) {
    SettledAcks settled;
    v1::ReportSyncRequest request;
    streams_.EndSilent(options_.stalled_ms_max);
    shards_.CheckTime(time_.NowMs(), options_.may_serve ? options_.may_serve() : absl::OkStatus(), &settled);
    shards_.LogLeaving();
    const bool reports = shards_.CollectReports(&request);
    if (!settled.empty() || reports) {
      mu_.Unlock();
      settled.Run();
      const bool well = !reports || Report(request);
      mu_.Lock();
      if (!well && !shut_down_) changed_.WaitForMs(&mu_, kReportPauseMs);
    } else if (streams_.empty() && !shards_.KeepUpdates()) {
      changed_.Wait(&mu_);
    } else {
      changed_.WaitForMs(&mu_, kLookEveryMs);
    }
  }
  mu_.Unlock();
}

bool Replicator::Report(const v1::ReportSyncRequest& request) {
  absl::StatusOr<v1::ReportSyncResponse> response = options_.report(request);
  if (response.ok() && response->accepted_size() != request.reports_size()) {
    response = absl::InternalError("the coordinator's answer has another number of reports than the request");
  }
  bool all = response.ok();
  bool gave_up = false;
  SettledAcks settled;
  {
    MutexLock lock(&mu_);
    report_error_ = response.ok() ? "" : response.status().ToString();
    bool released = false;
    for (int i = 0; i < request.reports_size(); ++i) {
      if (response.ok()) {
        all = all && response->accepted(i);
        gave_up = gave_up || request.reports(i).gives_up() > 0;
        released |= shards_.TakeOutcome(request.reports(i), response->accepted(i), response->route_epoch(),
                                        time_.NowMs(), &settled);
      } else {
        ShardFollower* const one = shards_[request.reports(i).shard()].OfLife(request.reports(i).follower());
        if (one != nullptr) one->sync().OnReportFailed();
      }
    }
    if (released) changed_.NotifyAll();
  }
  if (!all || gave_up) options_.ask_route();
  return all;
}

void Replicator::Shutdown() {
  SettledAcks settled;
  {
    MutexLock lock(&mu_);
    shut_down_ = true;
    shards_.SettleAll(absl::UnavailableError("the ps shuts down"), &settled);
    changed_.NotifyAll();
  }
  verifier_.Shutdown();
  streams_.Shutdown();
  settled.Run();
  streams_.Join();
  if (reports_.joinable()) reports_.join();
}

void Replicator::FillStatus(v1::StatusResponse* status) const {
  const int64_t now_ms = time_.NowMs();
  MutexLock lock(&mu_);
  shards_.FillStatus(status->mutable_replication());
  shards_.FillWait(absl::StrCat("ps ", options_.server), now_ms, status);
  const auto oldest = shards_.OldestWait();
  if (!oldest.has_value() && report_error_.empty()) return;
  v1::WaitStatus* const wait = status->add_waits();
  wait->set_who(absl::StrCat("ps ", options_.server));
  wait->set_what(report_error_.empty()
                     ? absl::StrCat("ps ", oldest->server, " to confirm updates that it follows")
                     : absl::StrCat("the coordinator to hear which followers count: ", report_error_));
  wait->set_seconds(oldest.has_value() ? static_cast<double>(now_ms - oldest->since_ms) / 1000 : 0);
  v1::WaitTarget* const target = wait->add_targets();
  if (!report_error_.empty()) return target->set_kind(v1::WaitTarget::COORDINATOR);
  target->set_kind(v1::WaitTarget::SERVER);
  target->set_index(oldest->server);
  target->add_shards(oldest->shard);
  wait->add_shards(oldest->shard);
}

}  // namespace lodestone::server
