#include "server/replication/replicator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "server/auth/authorized_caller.h"
#include "server/replication/bootstrap.h"
#include "server/shard/shard.h"
#include "server/store/store.h"

namespace lodestone::server {
namespace {

constexpr std::chrono::milliseconds kLookEvery(20);  // At what time brings, while there is a follower.
constexpr std::chrono::milliseconds kReportPause(100);
constexpr std::chrono::milliseconds kAttachPause(100);

absl::Status Moved(ShardId shard) {
  return absl::AbortedError(absl::StrCat("shard ", shard, " has another owner now: the shard map says which"));
}

// Whether the caller that opens `stream` may follow; the stream ends once it may not any more. `access` may be null.
absl::Status CheckCaller(Access* access, const grpc::CallbackServerContext& context,
                         const std::shared_ptr<FollowStream>& stream) {
  if (access == nullptr) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(const std::shared_ptr<Caller> caller, access->Identify(CallOf(context)));
  // It was an admin when the call was let in, and may not be one any more.
  LODESTONE_RETURN_IF_ERROR(caller->CheckRole(v1::Identity::ADMIN, "/lodestone.v1.Replication/Follow", "Follow"));
  access->Watch(caller, stream);
  return absl::OkStatus();
}

}  // namespace

Replicator::Replicator(Options options, Store* store)
    : options_(std::move(options)),
      store_(store),
      verifier_(store, [this](ShardId shard, v1::FollowItem item) { return AskFollower(shard, std::move(item)); }) {
  unconfirmed_.others_max = options_.queue_bytes_max / 2;
  {
    MutexLock lock(&mu_);
    shards_.reserve(options_.shards);
    for (uint32_t shard = 0; shard < options_.shards; ++shard) shards_.emplace_back(&unconfirmed_);
  }
  reports_ = std::thread([this] { RunReports(); });
}

Replicator::~Replicator() {
  Shutdown();
  std::vector<std::unique_ptr<Bootstrap>> bootstraps;  // They end without the lock, which they may wait for.
  MutexLock lock(&mu_);
  bootstraps.swap(bootstraps_);
}

void Replicator::Own(ShardId shard) {
  MutexLock lock(&mu_);
  shards_[shard].Reset(/*owned=*/true);
}

void Replicator::Disown(ShardId shard) {
  SettledAcks settled;
  MutexLock lock(&mu_);
  OwnedShard& owned = shards_[shard];
  owned.SettleAll(Moved(shard), &settled);
  owned.EndStream(Moved(shard));
  owned.Reset(/*owned=*/false);
  changed_.NotifyAll();
}

void Replicator::SetMap(const ShardMap& map) {
  size_t released = 0;
  SettledAcks settled;
  MutexLock lock(&mu_);
  for (ShardId shard = 0; shard < shards_.size(); ++shard) {
    OwnedShard& owned = shards_[shard];
    if (!owned.owned() || map.OwnerOf(shard) != options_.server || map.InSync(shard)) continue;
    if (!owned.sync().OnMapWithoutFollower(map.epoch())) continue;
    owned.OnReleased(&settled);
    ++released;
  }
  if (released == 0) return;
  changed_.NotifyAll();
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
        ShardSync& sync = shards_[record.message.shard()].sync();
        sync.SetAppended(record.message.version());
        wanted = sync.KeepsUpdates();
      }
    }
    // A stream gets a shard's updates from a moment on that is on the shard's executor, as this is.
    if (!wanted) continue;
    const FollowPieceRef piece = MakePiece(record, keep);
    MutexLock lock(&mu_);
    if (of_all) {
      for (const auto& stream : streams_) {
        if (stream->incarnation() != 0) stream->Send(piece);
      }
      continue;
    }
    OwnedShard& owned = shards_[record.message.shard()];
    if (owned.sync().KeepsUpdates()) owned.Append(piece);
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
      } else if (owned.sync().HoldsUp(position.version)) {
        if (ack == nullptr) ack = std::make_shared<PendingAck>();
        ack->Add();
        owned.Await(position.version, time_.NowMs(), ack);
      }
    }
    if (ack != nullptr) ack->SetDone(std::move(done));  // None is settled before the lock is let go of.
  }
  if (ack != nullptr) return ack->Settle(status);
  done(status);
}

absl::Status Replicator::health() const {
  const uint64_t bytes = unconfirmed_.counting.load(std::memory_order_relaxed);
  if (bytes <= options_.queue_bytes_max) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("followers are behind: ", bytes, " bytes of updates are not confirmed yet; try again later"));
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Replicator::Open(grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<FollowStream>(this, context);
  absl::Status end = CheckCaller(options_.access, *context, stream);
  {
    MutexLock lock(&mu_);
    streams_.push_back(stream);
    if (shut_down_) end = absl::UnavailableError("the ps shuts down");
  }
  stream->Start(end);
  return stream.get();
}

absl::Status Replicator::CheckStart(const FollowStream& stream, const v1::FollowStart& start) const {
  const auto other = [](const char* what, const auto& there, const auto& here) {
    return absl::FailedPreconditionError(
        absl::StrCat("the follower is of another cluster: its ", what, " is ", there, ", and here it is ", here));
  };
  if (start.cluster() != options_.cluster) return other("cluster.name", start.cluster(), options_.cluster);
  if (start.shards() != options_.shards) return other("cluster.shards", start.shards(), options_.shards);
  if (start.seed() != options_.seed) return other("cluster.seed", start.seed(), options_.seed);
  if (start.owner() != options_.server) {
    return absl::UnavailableError(absl::StrCat("this is ps ", options_.server, ", not ps ", start.owner()));
  }
  if (stream.incarnation() != 0 || start.incarnation() == 0) {
    return absl::InvalidArgumentError("a stream starts once, with the follower's incarnation");
  }
  const std::vector<ShardId> owned = store_->shards().owned();  // None before this ps has brought them back.
  for (const v1::ShardPosition& position : start.follows()) {
    if (!std::binary_search(owned.begin(), owned.end(), position.shard())) {
      return absl::UnavailableError(
          absl::StrCat("shard ", position.shard(), " is not owned by ps ", options_.server, " (yet, or any more)"));
    }
  }
  return absl::OkStatus();
}

absl::Status Replicator::OnStart(const std::shared_ptr<FollowStream>& stream, const v1::FollowStart& start) {
  LODESTONE_RETURN_IF_ERROR(CheckStart(*stream, start));
  stream->SetFollower(start.server(), start.incarnation());
  MutexLock lock(&mu_);
  if (shut_down_) return absl::UnavailableError("the ps shuts down");
  std::erase_if(bootstraps_, [](const auto& bootstrap) { return bootstrap->done(); });
  bootstraps_.push_back(std::make_unique<Bootstrap>(this, store_, stream, start));
  return absl::OkStatus();
}

absl::Status Replicator::Attach(const std::shared_ptr<FollowStream>& stream, const v1::ShardPosition& position,
                                std::optional<Shard::State>* state) {
  for (;;) {
    absl::StatusOr<bool> attached;
    store_->shards().Run(position.shard(),
                         [&](Shard* shard) { attached = TryAttach(stream, position, *shard, state); });
    LODESTONE_RETURN_IF_ERROR(attached.status());
    if (*attached) return absl::OkStatus();
    MutexLock lock(&mu_);
    const OwnedShard& owned = shards_[position.shard()];
    while (!shut_down_ && !stream->ended() && owned.owned() && owned.sync().counts()) {
      changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + kAttachPause);
    }
  }
}

absl::StatusOr<bool> Replicator::TryAttach(const std::shared_ptr<FollowStream>& stream,
                                           const v1::ShardPosition& position, const Shard& shard,
                                           std::optional<Shard::State>* state) {
  SettledAcks settled;
  MutexLock lock(&mu_);
  OwnedShard& owned = shards_[shard.id()];
  if (shut_down_ || stream->ended()) return absl::UnavailableError("the stream has ended");
  if (!owned.owned()) return absl::UnavailableError(absl::StrCat("shard ", shard.id(), " is no longer owned here"));
  owned.sync().SetAppended(std::max(owned.sync().appended(), shard.version()));
  const ShardSync::Attached attached = owned.Attach(stream, position.version(), &settled);
  changed_.NotifyAll();
  if (attached == ShardSync::Attached::kCountsStill) {
    if (owned.sync().state() != ShardSync::State::kLeaving) Leave(&owned, "another copy begins");
    return false;
  }
  if (attached == ShardSync::Attached::kResumes) return true;
  *state = shard.CollectState(nullptr);
  // All of it counts as this owner's: what the follower logged before, under a former one, may have been lost with it.
  (*state)->term = std::max((*state)->term, store_->shards().OwnTermOf(shard.id()));
  return true;
}

absl::Status Replicator::FinishState(const std::shared_ptr<FollowStream>& stream, ShardId shard,
                                     const FollowPieceRef& end) {
  MutexLock lock(&mu_);
  if (shards_[shard].stream() != stream) return absl::UnavailableError("the follower has another stream now");
  shards_[shard].FinishState(end);
  return absl::OkStatus();
}

absl::Status Replicator::OnAcks(FollowStream* stream, const v1::FollowAcks& acks) {
  if (stream->incarnation() == 0) return absl::InvalidArgumentError("a stream's first message is its start");
  for (const auto& answer : acks.checksums()) verifier_.OnAnswer(stream, answer.id(), answer.checksum());
  SettledAcks settled;
  MutexLock lock(&mu_);
  for (const v1::ShardPosition& applied : acks.applied()) {
    if (applied.shard() >= shards_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("there is no shard ", applied.shard()));
    }
    OwnedShard& owned = shards_[applied.shard()];
    if (owned.stream().get() != stream || owned.sync().sending_state()) continue;
    if (applied.version() > owned.sync().appended()) {
      return absl::InvalidArgumentError(absl::StrCat("shard ", applied.shard(), " is at version ",
                                                     owned.sync().appended(), " here, and its follower says ",
                                                     applied.version()));
    }
    owned.Confirm(applied.version(), &settled);
    if (owned.sync().ReadyToJoin()) changed_.NotifyAll();
  }
  return absl::OkStatus();
}

void Replicator::OnClosed(FollowStream* stream) {
  {
    MutexLock lock(&mu_);
    for (OwnedShard& owned : shards_) {
      if (owned.stream().get() == stream) owned.Detach(time_.NowMs());
    }
    std::erase_if(streams_, [stream](const auto& one) { return one.get() == stream; });
    changed_.NotifyAll();
  }
  verifier_.OnClosed(stream);
}

std::optional<ReplicaVerifier::Asked> Replicator::AskFollower(ShardId shard, v1::FollowItem item) {
  MutexLock lock(&mu_);
  const OwnedShard& owned = shards_[shard];
  if (!owned.owned() || owned.stream() == nullptr || owned.sync().sending_state()) return std::nullopt;
  owned.stream()->Send(MakePiece(std::move(item)));
  return ReplicaVerifier::Asked{owned.sync().server(), owned.stream().get()};
}

void Replicator::Leave(OwnedShard* owned, const char* why) {
  owned->sync().Leave();
  leaving_[{owned->sync().server(), why}] += 1;
}

void Replicator::LogLeaving() {
  for (const auto& [of, shards] : std::exchange(leaving_, {})) {
    LODESTONE_LOG(WARN, "replication", "a follower is to count no more ps={} shards={} reason={}", of.first, shards,
                  of.second);
  }
}

void Replicator::CheckTime(SettledAcks* settled) {
  const int64_t now_ms = time_.NowMs();
  for (const auto& stream : streams_) {
    if (stream->SilentMs() <= options_.stalled_ms_max) continue;
    stream->End(absl::DeadlineExceededError("the stream did not start in time"), /*now=*/true);
  }
  const absl::Status may_serve = options_.may_serve ? options_.may_serve() : absl::OkStatus();
  for (OwnedShard& owned : shards_) {
    if (!owned.owned()) continue;
    if (owned.IsHopeless(options_.stalled_ms_max, options_.queue_bytes_max)) {
      owned.EndStream(absl::UnavailableError("the follower is too far behind; it is to begin again"), /*now=*/true);
      owned.Detach(now_ms);
    }
    if (!owned.sync().counts()) continue;
    if (!may_serve.ok()) owned.SettleAll(may_serve, settled);
    const char* const why = owned.sync().WhyLate(now_ms, owned.waiting_since_ms(), options_.patience_ms);
    if (why != nullptr) Leave(&owned, why);
  }
}

bool Replicator::CollectReports(v1::ReportSyncRequest* request) {
  for (ShardId shard = 0; shard < shards_.size(); ++shard) {
    if (!shards_[shard].owned()) continue;
    const std::optional<ShardSync::Report> taken = shards_[shard].sync().TakeReport();
    if (!taken.has_value()) continue;
    auto* const report = request->add_reports();
    report->set_shard(shard);
    report->set_in_sync(taken->in_sync);
    report->set_follower(taken->follower);
  }
  return request->reports_size() > 0;
}

void Replicator::TakeOutcome(const v1::ReportSyncRequest::Report& report, bool accepted, uint64_t epoch,
                             SettledAcks* settled) {
  OwnedShard& owned = shards_[report.shard()];
  switch (owned.sync().OnReport(report.in_sync(), accepted, epoch)) {
    case ShardSync::Outcome::kNothing:
      return;
    case ShardSync::Outcome::kReleased:
      owned.OnReleased(settled);
      changed_.NotifyAll();
      return;
    case ShardSync::Outcome::kRejected:  // The map says which follower or owner it is.
      owned.EndStream(absl::UnavailableError("the coordinator does not know this ps as the shard's follower"));
      if (owned.sync().state() == ShardSync::State::kJoining) Leave(&owned, "the coordinator knows another");
      return;
  }
}

bool Replicator::IsIdle() const {
  return streams_.empty() && std::none_of(shards_.begin(), shards_.end(),
                                          [](const OwnedShard& owned) { return owned.sync().KeepsUpdates(); });
}

void Replicator::RunReports() {
  mu_.Lock();
  while (!shut_down_) {
    SettledAcks settled;
    v1::ReportSyncRequest request;
    CheckTime(&settled);
    LogLeaving();
    const bool reports = CollectReports(&request);
    if (!settled.empty() || reports) {
      mu_.Unlock();
      settled.Run();
      const bool well = !reports || Report(request);
      mu_.Lock();
      if (!well && !shut_down_) changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + kReportPause);
    } else if (IsIdle()) {
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
    response = absl::InternalError("the coordinator's answer has another number of reports than the request");
  }
  bool all = response.ok();
  SettledAcks settled;
  {
    MutexLock lock(&mu_);
    report_error_ = response.ok() ? "" : response.status().ToString();
    for (int i = 0; i < request.reports_size(); ++i) {
      if (response.ok()) {
        all = all && response->accepted(i);
        TakeOutcome(request.reports(i), response->accepted(i), response->route_epoch(), &settled);
      } else {
        shards_[request.reports(i).shard()].sync().OnReportFailed();
      }
    }
  }
  if (!all) options_.ask_route();
  return all;
}

void Replicator::Shutdown() {
  SettledAcks settled;
  std::vector<std::shared_ptr<FollowStream>> streams;
  {
    MutexLock lock(&mu_);
    shut_down_ = true;
    for (OwnedShard& owned : shards_) owned.SettleAll(absl::UnavailableError("the ps shuts down"), &settled);
    streams = streams_;
    changed_.NotifyAll();
  }
  verifier_.Shutdown();
  for (const auto& stream : streams) stream->End(absl::UnavailableError("the ps shuts down"));
  settled.Run();
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
    if (!owned.owned()) continue;
    const ShardSync& sync = owned.sync();
    out->set_shards_in_sync(out->shards_in_sync() + (sync.state() == ShardSync::State::kInSync));
    out->set_shards_alone(out->shards_alone() +
                          (sync.state() == ShardSync::State::kAlone || sync.state() == ShardSync::State::kLeaving));
    if (owned.waiting_since_ms().value_or(now_ms) < waiting_since_ms) {
      waiting_since_ms = *owned.waiting_since_ms();
      waiting_for = sync.server();
    }
    if (owned.stream() == nullptr) continue;
    v1::FollowerStatus& follower = followers[sync.server()];
    follower.set_server(sync.server());
    follower.set_shards(follower.shards() + 1);
    follower.set_shards_in_sync(follower.shards_in_sync() + (sync.state() == ShardSync::State::kInSync));
    follower.set_lag_records(follower.lag_records() + owned.unconfirmed());
    follower.set_lag_bytes(follower.lag_bytes() + owned.unconfirmed_bytes());
    follower.set_bytes(owned.stream()->sent_bytes());
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
