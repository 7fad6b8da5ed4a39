#include "server/replication/shard_follower.h"

#include <algorithm>
#include <utility>

#include "server/shard/shard.h"

namespace lodestone::server {

std::optional<int64_t> ShardFollower::waiting_since_ms() const {
  if (waits_.empty()) return std::nullopt;
  return waits_.front().since_ms;
}

std::optional<int64_t> ShardFollower::silent_since_ms(int64_t patience_ms) const {
  if (waits_.empty()) return std::nullopt;
  const int64_t oldest_ms = waits_.front().since_ms;
  return std::clamp(confirmed_ms_, oldest_ms, oldest_ms + patience_ms);
}

void ShardFollower::Append(const FollowPieceRef& piece, QueuedSends* sends) {
  unconfirmed_.push_back(piece);
  unconfirmed_bytes_ += piece->bytes;
  BytesOfAll().fetch_add(piece->bytes, std::memory_order_relaxed);
  if (sync_.sending_state()) return;  // FinishState sends it.
  if (stream_ != nullptr) sends->Queue(stream_, piece);
  if (!sync_.counts() && all_->others.load(std::memory_order_relaxed) > all_->others_max) DropUnconfirmed(UINT64_MAX);
}

void ShardFollower::Await(Version version, int64_t now_ms, PendingAckRef ack) {
  waits_.push_back({version, now_ms, std::move(ack)});
}

void ShardFollower::Confirm(Version version, int64_t now_ms, SettledAcks* settled) {
  if (version > sync_.confirmed()) confirmed_ms_ = now_ms;
  sync_.Confirm(version);
  Recount();
  DropUnconfirmed(sync_.confirmed());
  while (!waits_.empty() && waits_.front().version <= sync_.confirmed()) {
    settled->Add(std::move(waits_.front().ack), absl::OkStatus());
    waits_.pop_front();
  }
}

void ShardFollower::SettleAll(const absl::Status& status, SettledAcks* settled) {
  for (Wait& wait : waits_) settled->Add(std::move(wait.ack), status);
  waits_.clear();
}

void ShardFollower::OnReleased(const absl::Status& end, SettledAcks* settled) {
  Recount();
  SettleAll(end, settled);
  if (stream_ == nullptr) DropUnconfirmed(UINT64_MAX);
}

std::optional<Version> ShardFollower::oldest_kept() const {
  if (unconfirmed_.empty()) return std::nullopt;
  return unconfirmed_.front()->version;
}

bool ShardFollower::Resumes(Incarnation follower, Version position) const {
  return sync_.Resumes(follower, position, oldest_kept());
}

ShardSync::Attached ShardFollower::Attach(const std::shared_ptr<FollowStream>& stream, Version position, int64_t now_ms,
                                          SettledAcks* settled, QueuedSends* sends) {
  const ShardSync::Attached attached = sync_.Attach(stream->incarnation(), position, oldest_kept());
  if (attached == ShardSync::Attached::kCountsStill) return attached;
  if (stream_ != stream) EndStream(absl::UnavailableError("the follower has another stream now"));
  stream_ = stream;
  if (attached == ShardSync::Attached::kNeedsState) {
    DropUnconfirmed(UINT64_MAX);
    return attached;
  }
  // What it confirmed last may have been lost with the former stream, and nothing need follow.
  Confirm(position, now_ms, settled);
  for (const FollowPieceRef& piece : unconfirmed_) {
    if (piece->version > position) sends->Queue(stream, piece);
  }
  return attached;
}

void ShardFollower::FinishState(FollowPieceRef end, QueuedSends* sends) {
  sends->Queue(stream_, std::move(end));
  for (const FollowPieceRef& piece : unconfirmed_) sends->Queue(stream_, piece);
  sync_.StateSent();
}

void ShardFollower::FinishUpdates(FollowPieceRef end, QueuedSends* sends) {
  for (const FollowPieceRef& piece : unconfirmed_) sends->Queue(stream_, piece);
  sends->Queue(stream_, std::move(end));
  sync_.StateSent();
}

void ShardFollower::Detach(int64_t now_ms) {
  stream_.reset();
  sync_.Detach(now_ms);
  if (!sync_.counts()) DropUnconfirmed(UINT64_MAX);
}

void ShardFollower::EndStream(const absl::Status& status, bool now) {
  if (stream_ != nullptr) stream_->End(status, now);
}

bool ShardFollower::IsHopeless(int64_t stalled_ms_max, uint64_t bytes_max) const {
  if (stream_ == nullptr || sync_.counts()) return false;
  if (stream_->WritingMs() > stalled_ms_max) return true;
  // What comes while a state is being sent cannot be forgotten.
  if (sync_.sending_state() && unconfirmed_bytes_ > all_->others_max) return true;
  return stream_->waiting_bytes() > bytes_max;
}

void ShardFollower::DropUnconfirmed(Version up_to) {
  while (!unconfirmed_.empty() && unconfirmed_.front()->version <= up_to) {
    unconfirmed_bytes_ -= unconfirmed_.front()->bytes;
    BytesOfAll().fetch_sub(unconfirmed_.front()->bytes, std::memory_order_relaxed);
    unconfirmed_.pop_front();
  }
}

void ShardFollower::Recount() {
  if (counted_ == sync_.counts()) return;
  BytesOfAll().fetch_sub(unconfirmed_bytes_, std::memory_order_relaxed);
  counted_ = sync_.counts();
  BytesOfAll().fetch_add(unconfirmed_bytes_, std::memory_order_relaxed);
}

}  // namespace lodestone::server
