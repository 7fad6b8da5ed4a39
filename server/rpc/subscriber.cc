#include "server/rpc/subscriber.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/limits.h"
#include "server/rpc/broadcast_queue.h"
#include "server/rpc/shared_snapshots.h"
#include "server/store/broadcast_memory.h"
#include "server/store/dense_snapshot.h"
#include "server/store/store.h"

namespace lodestone::server {
namespace {

std::atomic<uint64_t> last_id{0};

}  // namespace

Subscriber::Subscriber(Options options, Store* store, DeltaSink* sink, std::shared_ptr<BroadcastQueue> queue,
                       std::shared_ptr<SharedSnapshots> snapshots, std::shared_ptr<BroadcastBytes> bytes_total)
    : id_(++last_id),
      options_(std::move(options)),
      store_(store),
      sink_(sink),
      queue_(std::move(queue)),
      snapshots_(std::move(snapshots)),
      bytes_total_(std::move(bytes_total)) {
  for (const DeltaPath::Subscription::Table& table : options_.subscription.tables) tables_.push_back(table.id);
  std::sort(tables_.begin(), tables_.end());
  MutexLock lock(&mu_);
  held_ = options_.held;
  held_.resize(options_.shards.size());
  checked_.resize(options_.shards.size());
  for (const ShardId shard : options_.shards) {
    dense_bytes_.push_back(store_->deltas().DenseBytesOf(options_.subscription, shard));
  }
}

void Subscriber::Start() {
  {
    MutexLock lock(&mu_);
    started_ = true;
    due_since_ = snapshots_->Now();
  }
  Post();
}

void Subscriber::Serve() {
  {
    MutexLock lock(&mu_);
    if (due_ && started_) ++skipped_;
    due_ = true;
    due_since_ = snapshots_->Now();
  }
  Post();
}

void Subscriber::OnWritten(bool ok) {
  {
    MutexLock lock(&mu_);
    writing_ = false;
    if (!ok && !end_.has_value()) end_ = absl::CancelledError("the subscriber has disconnected");
  }
  Post();
}

void Subscriber::EndIfUnread(int64_t now_ms) {
  MutexLock lock(&mu_);
  if (writing_ && !finished_) sink_->EndIfUnread(now_ms);
}

void Subscriber::Cancel(absl::Status status) {
  {
    MutexLock lock(&mu_);
    if (!end_.has_value()) end_ = std::move(status);
  }
  Post();
}

bool Subscriber::SubscribedToAny(std::span<const TableId> tables) const {
  auto mine = tables_.begin();
  for (const TableId table : tables) {
    mine = std::lower_bound(mine, tables_.end(), table);
    if (mine == tables_.end()) return false;
    if (*mine == table) return true;
  }
  return false;
}

bool Subscriber::finished() const {
  MutexLock lock(&mu_);
  return finished_;
}

void Subscriber::FillStatus(v1::SubscriberStatus* status) const {
  status->set_worker_incarnation(options_.worker);
  status->set_peer(options_.peer);
  MutexLock lock(&mu_);
  status->set_deltas(deltas_);
  status->set_skipped(skipped_);
  status->set_bytes(bytes_);
}

void Subscriber::Post() {
  {
    MutexLock lock(&mu_);
    if (std::exchange(posted_, true)) return;
  }
  queue_->Run(shared_from_this());
}

// Steps are decided under the lock and taken without it, because the store and the sink may call back from within. Only
// one thread takes steps at a time: other threads record their events in the fields, which the next decision reads.
void Subscriber::Run() {
  const std::shared_ptr<Subscriber> self = shared_from_this();
  {
    MutexLock lock(&mu_);
    posted_ = false;
    if (running_) return;
    running_ = true;
  }
  while (RunStep()) {
  }
}

bool Subscriber::RunStep() {
  Dropped dropped;
  Action action;
  size_t shard_index = 0;
  uint64_t since = 0;
  uint64_t room_bytes = 0;
  std::optional<DeltaPath::Held> from;
  bool checked = false, at_once = false;
  v1::Delta delta;
  std::vector<grpc::Slice> payload;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    action = NextAction(&dropped);
    shard_index = next_shard_;
    since = round_since_;
    switch (action) {
      case Action::kNothing:
        running_ = false;
        break;
      case Action::kAwaitRoom:
        room_bytes = NextChangeBytes();
        break;
      case Action::kCollect:
        from = held_[shard_index];
        checked = checked_[shard_index];
        at_once = kept_bytes_ > 0;
        ++next_shard_;
        break;
      case Action::kWrite:
        delta.Swap(&message_);
        payload.swap(message_payload_);
        message_bytes_ = 0;
        break;
      case Action::kFinish:
        status = *end_;
        break;
    }
  }
  dropped.clear();
  switch (action) {
    case Action::kNothing:
      return false;
    case Action::kAwaitRoom:
      AwaitRoom(room_bytes);
      return true;
    case Action::kCollect:
      Collect(shard_index, from, checked, since, at_once);
      return true;
    case Action::kWrite:
      sink_->Write(std::move(delta), std::move(payload));
      return true;
    case Action::kFinish:
      sink_->Finish(std::move(status));
      return true;
  }
  return false;
}

Subscriber::Action Subscriber::NextAction(Dropped* dropped) {
  if (!started_ || finished_ || writing_) return Action::kNothing;
  if (message_.shards_size() == 0) {  // What they were packed in is written.
    DropPacked(dropped);
    if (change_ == nullptr) kept_bytes_ = 0;
  }
  if (end_.has_value()) {
    finished_ = true;
    DropPacked(dropped);
    dropped->push_back(std::move(change_));
    dropped->push_back(std::move(room_));
    message_payload_.clear();
    return Action::kFinish;
  }
  if (collecting_) return Action::kNothing;
  if (!round_active_) {
    if (!due_) return Action::kNothing;
    due_ = false;
    round_since_ = due_since_;
    round_active_ = true;
    next_shard_ = 0;
    if (!options_.dense) row_bytes_ = store_->deltas().RowBytesOf(options_.subscription);
  }
  PackMessage();
  const bool full = message_bytes_ >= limits::kDeltaBytesTarget;
  if (!full && change_ == nullptr && FindNextShard()) {
    if (TakeRoom()) {
      collecting_ = true;
      return Action::kCollect;
    }
    // One that waits keeps nothing: what there is goes out before.
    if (message_.shards_size() == 0) return std::exchange(awaits_room_, true) ? Action::kNothing : Action::kAwaitRoom;
  }
  if (message_.shards_size() > 0) {
    writing_ = true;
    ++deltas_;
    bytes_ += message_bytes_;
    bytes_total_->fetch_add(message_bytes_, std::memory_order_relaxed);
    return Action::kWrite;
  }
  round_active_ = false;
  dropped->push_back(std::move(room_));
  return due_ ? NextAction(dropped) : Action::kNothing;
}

void Subscriber::DropPacked(Dropped* dropped) {
  dropped->insert(dropped->end(), std::make_move_iterator(packed_.begin()), std::make_move_iterator(packed_.end()));
  packed_.clear();
}

uint64_t Subscriber::NextChangeBytes() const {
  const uint64_t dense = dense_bytes_[next_shard_];
  // Of rows that is known before for an anchor alone. What this ps has not sent yet may become one.
  if (!checked_[next_shard_] || !last_row_bytes_.has_value()) return dense + row_bytes_;
  return dense + std::min(row_bytes_, 2 * *last_row_bytes_);
}

bool Subscriber::TakeRoom() {
  if (room_ != nullptr) return true;
  if (awaits_room_) return false;
  BroadcastMemory& memory = *store_->deltas().memory();
  const uint64_t bytes = NextChangeBytes();
  if (kept_bytes_ + bytes <= limits::kSmallChangesBytes) return true;
  const bool shares = SharesSnapshot(held_[next_shard_], checked_[next_shard_]);
  if (kept_bytes_ == 0 && (shares || !BroadcastMemory::IsLarge(bytes))) return true;
  // More than a little only where there is room: what is kept is sent first, so that nobody waits for it.
  if (kept_bytes_ > 0 && !memory.has_room()) return false;
  if (!BroadcastMemory::IsLarge(bytes)) return true;
  if (shares) return OthersKeepNext();
  room_ = memory.Ask(bytes);
  return room_ != nullptr;
}

bool Subscriber::OthersKeepNext() const {
  return snapshots_->Has(options_.shards[next_shard_], options_.subscription, round_since_,
                         /*any=*/!held_[next_shard_].has_value());
}

void Subscriber::AwaitRoom(uint64_t bytes) {
  const auto go_on = [weak = weak_from_this()](BroadcastMemory::Room room) {
    if (const auto self = weak.lock(); self != nullptr) self->OnRoom(std::move(room));
  };
  store_->deltas().memory()->Await(bytes, weak_from_this(), go_on);
}

void Subscriber::OnRoom(std::shared_ptr<PinnedBytes> room) {
  {
    MutexLock lock(&mu_);
    awaits_room_ = false;
    if (!finished_) room_ = std::move(room);
  }
  Post();
}

bool Subscriber::SharesSnapshot(const std::optional<DeltaPath::Held>& from, bool checked) const {
  return options_.dense && (checked || !from.has_value());
}

bool Subscriber::FindNextShard() {
  for (; next_shard_ < options_.shards.size(); ++next_shard_) {
    const std::optional<DeltaPath::Held>& held = held_[next_shard_];
    if (!held.has_value() || !checked_[next_shard_]) return true;
    if (store_->shards().VersionOf(options_.shards[next_shard_]) != held->version) return true;
  }
  return false;
}

void Subscriber::PackMessage() {
  while (change_ != nullptr) {
    const ShardChange::Piece& piece = change_->pieces[next_piece_];
    if (message_bytes_ > 0 && message_bytes_ + piece.payload_bytes > limits::kDeltaBytesTarget) return;
    const int last = message_.shards_size() - 1;
    if (last >= 0 && message_.shards(last).shard() == piece.delta.shard()) {
      v1::Delta::ShardDelta* const delta = message_.mutable_shards(last);  // The same change goes on: one more part.
      delta->set_complete(piece.delta.complete());
      delta->mutable_parts()->MergeFrom(piece.delta.parts());
    } else {
      *message_.add_shards() = piece.delta;
    }
    message_payload_.insert(message_payload_.end(), piece.payload.begin(), piece.payload.end());
    message_bytes_ += piece.payload_bytes;
    if (packed_.empty() || packed_.back() != change_) packed_.push_back(change_);
    if (++next_piece_ == change_->pieces.size()) change_.reset();
  }
}

void Subscriber::Collect(size_t shard_index, const std::optional<DeltaPath::Held>& from, bool checked, uint64_t since,
                         bool at_once) {
  const ShardId shard = options_.shards[shard_index];
  const std::shared_ptr<Subscriber> self = shared_from_this();
  if (SharesSnapshot(from, checked)) {
    // An anchor may be the one that another subscriber is being sent already; the next round brings what came since.
    return snapshots_->Get(shard, options_.subscription, since, /*any=*/!from.has_value(), dense_bytes_[shard_index],
                           at_once,
                           [self, shard_index](absl::StatusOr<DeltaPath::SharedSnapshot> snapshot, bool newer) {
                             if (!snapshot.ok()) return self->OnCollectFailed(snapshot.status());
                             self->OnSnapshot(shard_index, *snapshot, newer);
                           });
  }
  store_->deltas().Collect(shard, options_.subscription, from, [self, shard_index](absl::StatusOr<ShardChange> change) {
    if (!change.ok()) return self->OnCollectFailed(change.status());
    struct Pinned {
      ShardChange change;
      PinnedBytes bytes;
    };
    uint64_t bytes = 0;
    for (const ShardChange::Piece& piece : change->pieces) bytes += piece.payload_bytes;
    const auto pinned =
        std::shared_ptr<const Pinned>(new Pinned{*std::move(change), {self->store_->deltas().memory(), bytes}});
    self->OnChange(shard_index, {pinned, &pinned->change}, bytes);
  });
}

void Subscriber::OnCollectFailed(const absl::Status& status) {
  // That a shard moved ends the stream, as it does all others; the subscriber comes again, to its new owner.
  Cancel(absl::IsAborted(status) ? absl::UnavailableError(status.message()) : status);
}

void Subscriber::OnSnapshot(size_t shard_index, const std::shared_ptr<const DenseSnapshot>& snapshot, bool newer) {
  std::optional<Version> from;
  {
    MutexLock lock(&mu_);
    const std::optional<DeltaPath::Held>& held = held_[shard_index];
    if (held.has_value() && held->term == snapshot->term() && held->version <= snapshot->version()) {
      from = held->version;
    }
    if (!newer) {
      due_ = true;
      due_since_ = snapshots_->Now();
    }
  }
  OnChange(shard_index, DenseSnapshot::ChangeSince(snapshot, from), snapshot->bytes());
}

void Subscriber::OnChange(size_t shard_index, std::shared_ptr<const ShardChange> change, uint64_t kept_bytes) {
  std::shared_ptr<PinnedBytes> room;
  {
    MutexLock lock(&mu_);
    room.swap(room_);  // Instead of it, the change itself counts now.
    collecting_ = false;
    held_[shard_index] = {change->term, change->version};
    checked_[shard_index] = true;
    if (!options_.dense && !change->pieces.front().delta.anchor()) last_row_bytes_ = kept_bytes;
    if (!finished_) {
      kept_bytes_ += kept_bytes;
      change_ = std::move(change);
      next_piece_ = 0;
    }
  }
  room.reset();
  Post();
}

}  // namespace lodestone::server
