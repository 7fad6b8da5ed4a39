#include "server/replication/follow_link.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/retry.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "server/optimizer/arithmetic.h"
#include "server/shard/content_checksum.h"
#include "server/shard/shard.h"
#include "server/wal/update_log.h"

namespace lodestone::server {
namespace {

constexpr int64_t kLogEveryMs = 3'000;  // A link that stays broken is spoken of this often.

// Bytes of `view`, which are in `*copy` if they do not lie together.
std::span<const uint8_t> Together(const ByteView& view, std::vector<uint8_t>* copy) {
  if (view.contiguous() != nullptr || view.empty()) return {view.contiguous(), view.size()};
  copy->resize(view.size());
  view.CopyTo(copy->data());
  return *copy;
}

}  // namespace

void Follower::Link::Run() {
  Backoff backoff(owner_incarnation_ ^ options_.server);
  int64_t logged_ms = 0;
  for (;;) {
    const int64_t start_ms = time_.NowMs();
    const absl::Status status = RunStream();
    const int64_t now_ms = time_.NowMs();
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
      if (broken_.empty()) broken_since_ms_ = now_ms;
      broken_ = status.ToString();
    }
    if (logged_ms == 0 || now_ms - logged_ms >= kLogEveryMs || absl::IsDataLoss(status)) {
      logged_ms = now_ms;
      LODESTONE_LOG(WARN, "replication", "does not hear from the owner ps={} address={} shards={} reason={}", owner_,
                    address_, shards_.size(), status.ToString());
    }
    if (now_ms - start_ms > 1000) backoff.Reset();
    options_.ask_route();
    place_->Reconnect();
    if (!Pause(std::min<int64_t>(backoff.NextMs(), 500))) return;
  }
}

bool Follower::Link::Pause(int64_t ms) {
  const int64_t until_ms = time_.NowMs() + ms;
  MutexLock lock(&mu_);
  while (!stopping_ && time_.NowMs() < until_ms) changed_.WaitForMs(&mu_, until_ms - time_.NowMs());
  return !stopping_;
}

absl::Status Follower::Link::RunStream() {
  logged_->Begin();
  LODESTONE_RETURN_IF_ERROR(AwaitLogs(store_));  // What is said to be here at the start counts as confirmed.
  const std::unique_ptr<FollowCall> call = place_->Call();
  {
    MutexLock lock(&mu_);
    call_ = call.get();
    if (stopping_) call->TryCancel();
  }
  state_of_.reset();
  catching_up_.clear();
  v1::FollowRequest request;
  v1::FollowStart& start = *request.mutable_start();
  start.set_cluster(options_.cluster);
  start.set_shards(options_.shards);
  start.set_seed(options_.seed);
  start.set_server(options_.server);
  start.set_incarnation(incarnation_);
  start.set_owner(owner_);
  start.set_arithmetic(ArithmeticFingerprint());
  start.set_machine(ArithmeticName());
  if (const UpdateLog* const log = options_.updates ? options_.updates() : nullptr; log != nullptr) {
    start.set_lineage(log->header().lineage());
  }
  for (const ShardId shard : shards_) *start.add_follows() = PositionOf(shard);
  start.mutable_learns()->Add(learns_.begin(), learns_.end());
  absl::Status status;
  {
    MutexLock lock(&write_mu_);
    not_on_disk_.clear();
    stream_ = call->Write(BuildMessage(request, {})) ? call.get() : nullptr;
  }
  grpc::ByteBuffer message;
  // To the end, also when nothing can be confirmed any more: Finish waits for ever while there is something to read.
  while (status.ok() && call->Read(&message)) {
    {
      MutexLock lock(&mu_);
      broken_.clear();
    }
    v1::FollowRequest answer;
    status = TakeMessage(message, answer.mutable_acks());
    if (!status.ok()) break;
    const LoggedPositions::Positions positions = PositionsOf(touched_);
    MutexLock lock(&write_mu_);
    AddPositions(positions, answer.mutable_acks());
    if (answer.acks().applied_size() + answer.acks().checksums_size() > 0) Write(answer);
  }
  {
    MutexLock lock(&write_mu_);
    stream_ = nullptr;
  }
  if (!status.ok()) call->TryCancel();
  const absl::Status ended = call->Finish();
  MutexLock lock(&mu_);
  call_ = nullptr;
  if (!status.ok()) return status;
  return ended.ok() ? absl::UnavailableError("the owner ended the stream") : ended;
}

LoggedPositions::Positions Follower::Link::PositionsOf(std::span<const ShardId> shards) const {
  LoggedPositions::Positions positions;
  for (const ShardId shard : shards) {
    if (catching_up_.contains(shard)) continue;
    if (store_->shards().RoleOf(shard) == ShardRole::kFollows) positions.push_back(PositionOf(shard));
  }
  return positions;
}

void Follower::Link::AddPositions(const LoggedPositions::Positions& positions, v1::FollowAcks* acks) {
  LoggedPositions::Positions on_disk;
  for (const v1::ShardPosition& position : positions) {
    if (OnDisk(position.shard())) {
      on_disk.push_back(position);
    } else {
      not_on_disk_[position.shard()] = position;
    }
  }
  if (on_disk.empty()) return;
  const auto logged = logged_->Await(std::move(on_disk), store_);
  if (logged.has_value()) acks->mutable_applied()->Add(logged->begin(), logged->end());
}

void Follower::Link::ConfirmLogged() {
  while (logged_->AwaitReady()) {
    MutexLock lock(&write_mu_);
    const LoggedPositions::Positions ready = logged_->TakeReady();
    v1::FollowRequest answer;
    answer.mutable_acks()->mutable_applied()->Add(ready.begin(), ready.end());
    if (!ready.empty()) Write(answer);
  }
}

void Follower::Link::Write(const v1::FollowRequest& request) {
  if (stream_ != nullptr && !stream_->Write(BuildMessage(request, {}))) stream_ = nullptr;
}

void Follower::Link::ConfirmOnDisk() {
  MutexLock lock(&write_mu_);
  if (stream_ == nullptr || not_on_disk_.empty()) return;
  LoggedPositions::Positions waiting;
  for (const auto& [shard, position] : std::exchange(not_on_disk_, {})) waiting.push_back(position);
  v1::FollowRequest answer;
  AddPositions(waiting, answer.mutable_acks());
  if (!answer.acks().applied().empty()) Write(answer);
}

v1::ShardPosition Follower::Link::PositionOf(ShardId shard) const {
  v1::ShardPosition position;
  position.set_shard(shard);
  if (store_->shards().RoleOf(shard) != ShardRole::kFollows || whole_state_.contains(shard)) return position;
  store_->shards().Run(shard, [&position](Shard* followed) {
    position.set_term(followed->term());
    position.set_version(followed->version());
    position.set_lineage(followed->lineage());
  });
  position.set_mark(newest_->MarkAt(shard, position.version()));
  return position;
}

absl::Status Follower::Link::CheckFollowed(ShardId shard) const {
  if (std::binary_search(shards_.begin(), shards_.end(), shard)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("ps ", owner_, " sends shard ", shard, ", which was not asked for"));
}

absl::Status Follower::Link::TakeMessage(const grpc::ByteBuffer& message, v1::FollowAcks* acks) {
  v1::FollowResponse header;
  Payload payload;
  LODESTONE_RETURN_IF_ERROR(ParseMessage(message, &header, &payload));
  touched_.clear();
  for (const v1::FollowItem& item : header.items()) {
    if (item.payload_bytes() > payload.size()) {
      return absl::InternalError("the payload of a message is shorter than its items say");
    }
    LODESTONE_RETURN_IF_ERROR(TakeItem(item, payload.Take(item.payload_bytes()), acks));
  }
  std::sort(touched_.begin(), touched_.end());
  touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
  return absl::OkStatus();
}

absl::Status Follower::Link::TakeItem(const v1::FollowItem& item, const Payload& payload, v1::FollowAcks* acks) {
  switch (item.what_case()) {
    case v1::FollowItem::kRecord:
      return TakeRecord(item.record(), payload);
    case v1::FollowItem::kStateBegins:
      LODESTONE_RETURN_IF_ERROR(CheckFollowed(item.state_begins().shard()));
      store_->replayer().ClearState(item.state_begins().shard(), item.state_begins().lineage());
      whole_state_.erase(item.state_begins().shard());
      catching_up_.erase(item.state_begins().shard());
      state_of_ = item.state_begins().shard();
      return absl::OkStatus();
    case v1::FollowItem::kState:
      if (!state_of_.has_value()) return absl::InternalError("a piece of a state that has not begun");
      return store_->replayer().RestoreRecord(*state_of_, item.state(), Together(payload.bytes(), &copy_));
    case v1::FollowItem::kStateEnds:
      return EndState(item.state_ends());
    case v1::FollowItem::kCatchUpBegins:
      LODESTONE_RETURN_IF_ERROR(CheckFollowed(item.catch_up_begins().shard()));
      catching_up_.insert(item.catch_up_begins().shard());
      return absl::OkStatus();
    case v1::FollowItem::kCaughtUp:
      return TakeCaughtUp(item.caught_up());
    case v1::FollowItem::kSessions: {
      const std::vector<Incarnation> open(item.sessions().open().begin(), item.sessions().open().end());
      const std::vector<Incarnation> ended(item.sessions().ended().begin(), item.sessions().ended().end());
      store_->replayer().AddSessions(open, item.sessions().forgotten_max(), ended);
      return absl::OkStatus();
    }
    case v1::FollowItem::kTable: {
      v1::LogRecord record;
      *record.mutable_table() = item.table();
      return store_->replayer().ReplayFollowed(record, Payload());
    }
    case v1::FollowItem::kChecksum:
      LODESTONE_RETURN_IF_ERROR(CheckFollowed(item.checksum().shard()));
      TakeChecksum(item.checksum(), acks);
      return absl::OkStatus();
    case v1::FollowItem::WHAT_NOT_SET:
      break;
  }
  return absl::UnimplementedError("the owner sends what this program does not know");
}

absl::Status Follower::Link::EndState(const v1::ShardPosition& end) {
  if (state_of_ != end.shard()) return absl::InternalError("the state of a shard ends that has not begun");
  state_of_.reset();
  LODESTONE_RETURN_IF_ERROR(store_->replayer().FinishState(end.shard(), end.version(), end.term()));
  newest_->Set(end.shard(), {end.version(), end.mark()});
  if (options_.on_state) options_.on_state(end.shard());
  touched_.push_back(end.shard());
  return absl::OkStatus();
}

absl::Status Follower::Link::TakeCaughtUp(const v1::FollowItem::CaughtUp& caught_up) {
  const v1::ShardPosition& wanted = caught_up.position();
  LODESTONE_RETURN_IF_ERROR(CheckFollowed(wanted.shard()));
  const v1::ShardPosition here = PositionOf(wanted.shard());
  if (here.version() != wanted.version() || here.mark() != wanted.mark()) {
    whole_state_.insert(wanted.shard());
    return absl::DataLossError(absl::StrCat("shard ", wanted.shard(), " is at version ", here.version(), " of term ",
                                            here.term(), ", and should have been brought up to version ",
                                            wanted.version(), " of term ", wanted.term()));
  }
  const absl::flat_hash_set<Incarnation> workers(caught_up.workers().begin(), caught_up.workers().end());
  store_->shards().Run(wanted.shard(), [&workers](Shard* followed) {
    followed->ForgetWorkersIf([&workers](Incarnation worker) { return !workers.contains(worker); });
  });
  catching_up_.erase(wanted.shard());
  touched_.push_back(wanted.shard());
  return absl::OkStatus();
}

void Follower::Link::TakeChecksum(const v1::FollowItem::ChecksumRequest& question, v1::FollowAcks* acks) {
  Shard::State state;
  store_->shards().Run(question.shard(), [&state](Shard* shard) { state = shard->CollectState(nullptr); });
  v1::FollowAcks::Checksum* const answer = acks->add_checksums();
  answer->set_id(question.id());
  answer->set_shard(state.shard);
  answer->set_version(state.version);
  std::vector<Incarnation> workers(question.workers().begin(), question.workers().end());
  std::erase_if(workers, [&](Incarnation worker) {
    if (!store_->sessions().IsOver(worker)) return false;
    answer->add_over(worker);
    return true;
  });
  answer->set_by_workers(question.has_workers());
  answer->set_checksum(ValuesChecksum(state) + WindowsChecksum(state, question.has_workers() ? &workers : nullptr));
}

absl::Status Follower::Link::TakeRecord(const v1::LogRecord& record, const Payload& payload) {
  if (record.has_session_forgotten()) {
    // The session first: while it is open here, this ps, as the owner, would take pushes again whose marks are gone.
    LODESTONE_RETURN_IF_ERROR(store_->replayer().ReplayFollowed(record, payload));
    for (const ShardId shard : shards_) {
      store_->shards().Run(shard, [&](Shard* followed) { followed->ForgetWorker(record.session_forgotten()); });
    }
    return absl::OkStatus();
  }
  if (record.version() == 0) return store_->replayer().ReplayFollowed(record, payload);
  LODESTONE_RETURN_IF_ERROR(CheckFollowed(record.shard()));
  touched_.push_back(record.shard());
  const Version before = store_->shards().VersionOf(record.shard());
  absl::Status status = store_->replayer().ReplayFollowed(record, payload);
  if (status.ok() && record.version() > before) newest_->Set(record.shard(), {record.version(), MarkOf(record)});
  if (status.ok() || absl::IsUnavailable(status) || absl::IsResourceExhausted(status)) return status;
  // Whatever went wrong with its content: the next stream brings all of it again. What is here is whole still, and may
  // be all that there is, unless some of the update was applied.
  whole_state_.insert(record.shard());
  if (before != store_->shards().VersionOf(record.shard()))
    LODESTONE_RETURN_IF_ERROR(store_->replayer().Follow(record.shard()));
  return absl::DataLossError(status.message());
}

void Follower::Link::FillStatus(v1::StatusResponse* status) const {
  v1::ReplicationStatus* const out = status->mutable_replication();
  for (const ShardId shard : shards_) {
    out->set_shards_following(out->shards_following() + 1);
    out->set_shards_followed(out->shards_followed() + (store_->shards().RoleOf(shard) == ShardRole::kFollows));
  }
  MutexLock lock(&mu_);
  if (broken_.empty()) return;
  v1::WaitStatus* const wait = status->add_waits();
  wait->set_who(absl::StrCat("ps ", options_.server));
  v1::WaitTarget* const target = wait->add_targets();
  target->set_kind(v1::WaitTarget::SERVER);
  target->set_index(owner_);
  wait->set_background(true);
  wait->set_what(absl::StrCat("ps ", owner_, " at ", address_, ", to follow ", shards_.size(), " shards: ", broken_));
  wait->set_seconds(static_cast<double>(time_.NowMs() - broken_since_ms_) / 1000);
}

}  // namespace lodestone::server
