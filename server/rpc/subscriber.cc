#include "server/rpc/subscriber.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/limits.h"
#include "server/rpc/broadcast_queue.h"
#include "server/store/store.h"

namespace lodestone::server {
namespace {

std::atomic<uint64_t> last_id{0};

}  // namespace

Subscriber::Subscriber(Options options, Store* store, DeltaSink* sink, std::shared_ptr<BroadcastQueue> queue,
                       std::shared_ptr<BroadcastBytes> bytes_total)
    : id_(++last_id),
      options_(std::move(options)),
      store_(store),
      sink_(sink),
      queue_(std::move(queue)),
      bytes_total_(std::move(bytes_total)) {
  for (const DeltaPath::Subscription::Table& table : options_.subscription.tables) tables_.push_back(table.id);
  std::sort(tables_.begin(), tables_.end());
  MutexLock lock(&mu_);
  held_ = options_.held;
  held_.resize(options_.shards.size());
  checked_.resize(options_.shards.size());
}

void Subscriber::Start() {
  {
    MutexLock lock(&mu_);
    started_ = true;
  }
  Post();
}

void Subscriber::Serve() {
  {
    MutexLock lock(&mu_);
    if (due_ && started_) ++skipped_;
    due_ = true;
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
  MutexLock lock(&mu_);
  posted_ = false;
  if (running_) return;
  running_ = true;
  for (Action action = NextAction(); action != Action::kNothing; action = NextAction()) {
    const size_t shard_index = next_shard_;
    std::optional<DeltaPath::Held> from;
    v1::Delta delta;
    std::vector<grpc::Slice> payload;
    absl::Status status;
    if (action == Action::kCollect) {
      from = held_[shard_index];
      ++next_shard_;
    } else if (action == Action::kWrite) {
      delta.Swap(&message_);
      payload.swap(message_payload_);
      message_bytes_ = 0;
    } else {
      status = *end_;
    }
    mu_.Unlock();
    switch (action) {
      case Action::kCollect:
        store_->deltas().Collect(
            options_.shards[shard_index], options_.subscription, from,
            [self, shard_index](ShardChange change) { self->OnCollected(shard_index, std::move(change)); });
        break;
      case Action::kWrite:
        sink_->Write(std::move(delta), std::move(payload));
        break;
      case Action::kFinish:
        sink_->Finish(std::move(status));
        break;
      case Action::kNothing:
        break;
    }
    mu_.Lock();
  }
  running_ = false;
}

Subscriber::Action Subscriber::NextAction() {
  if (!started_ || finished_ || writing_) return Action::kNothing;
  if (end_.has_value()) {
    finished_ = true;
    pending_.clear();
    message_payload_.clear();
    return Action::kFinish;
  }
  if (collecting_) return Action::kNothing;
  if (!round_active_) {
    if (!due_) return Action::kNothing;
    due_ = false;
    round_active_ = true;
    next_shard_ = 0;
  }
  PackMessage();
  const bool full = message_bytes_ >= limits::kDeltaBytesTarget;
  if (!full && pending_.empty() && FindNextShard()) {
    collecting_ = true;
    return Action::kCollect;
  }
  if (message_.shards_size() > 0) {
    writing_ = true;
    ++deltas_;
    bytes_ += message_bytes_;
    bytes_total_->fetch_add(message_bytes_, std::memory_order_relaxed);
    return Action::kWrite;
  }
  round_active_ = false;
  return due_ ? NextAction() : Action::kNothing;
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
  while (!pending_.empty()) {
    ShardChange::Piece& piece = pending_.front();
    if (message_bytes_ > 0 && message_bytes_ + piece.payload_bytes > limits::kDeltaBytesTarget) return;
    const int last = message_.shards_size() - 1;
    v1::Delta::ShardDelta* delta;
    if (last >= 0 && message_.shards(last).shard() == piece.delta.shard()) {
      delta = message_.mutable_shards(last);  // The same change goes on: one entry with one more part.
      delta->set_complete(piece.delta.complete());
      delta->mutable_parts()->MergeFrom(piece.delta.parts());
    } else {
      message_.add_shards()->Swap(&piece.delta);
    }
    std::move(piece.payload.begin(), piece.payload.end(), std::back_inserter(message_payload_));
    message_bytes_ += piece.payload_bytes;
    pending_.pop_front();
  }
}

void Subscriber::OnCollected(size_t shard_index, ShardChange change) {
  {
    MutexLock lock(&mu_);
    collecting_ = false;
    held_[shard_index] = {change.term, change.version};
    checked_[shard_index] = true;
    if (!finished_) pending_ = std::move(change.pieces);
  }
  Post();
}

}  // namespace lodestone::server
