#include "server/replication/owned_shard.h"

#include <algorithm>
#include <utility>

namespace lodestone::server {

void OwnedShard::Reset(bool owned, uint64_t term, int64_t now_ms) {
  owned_ = owned;
  term_ = term;
  alone_ms_ = now_ms;
  named_.reset();
  named_epoch_ = 0;
  for (ShardFollower* const one : both()) one->Reset();
}

ShardFollower& OwnedShard::Of(const FollowStream& stream, ShardId shard) {
  const auto knows = [&stream](const ShardFollower& one) {
    return one.sync().follower() != 0 && one.sync().server() == stream.server();
  };
  if (knows(follower_)) return follower_;
  return knows(learner_) || stream.Learns(shard) ? learner_ : follower_;
}

void OwnedShard::SetNamed(uint32_t follower, uint64_t epoch) {
  if (epoch < named_epoch_) return;
  named_ = follower;
  named_epoch_ = epoch;
}

bool OwnedShard::WouldOust(const FollowStream& stream, ShardId shard) {
  const ShardFollower& one = Of(stream, shard);
  return &one == &follower_ && one.sync().counts() && one.sync().server() != stream.server() && named_.has_value() &&
         *named_ != stream.server() + 1;
}

ShardFollower* OwnedShard::With(const FollowStream* stream) {
  for (ShardFollower* const one : both()) {
    if (one->stream().get() == stream) return one;
  }
  return nullptr;
}

ShardFollower& OwnedShard::ReportedOf(Incarnation follower) {
  return follower != 0 && learner_.sync().follower() == follower ? learner_ : follower_;
}

std::optional<OwnedShard::Waiting> OwnedShard::OldestWait() const {
  std::optional<Waiting> oldest;
  for (const ShardFollower* const one : both()) {
    const std::optional<int64_t> since_ms = one->waiting_since_ms();
    if (!since_ms.has_value() || (oldest.has_value() && oldest->since_ms <= *since_ms)) continue;
    oldest = Waiting{*since_ms, one->sync().server()};
  }
  return oldest;
}

void OwnedShard::SetAppended(Version version) {
  for (ShardFollower* const one : both()) one->sync().SetAppended(version);
}

void OwnedShard::Append(const FollowPieceRef& piece, QueuedSends* sends) {
  for (ShardFollower* const one : both()) {
    if (one->sync().KeepsUpdates()) one->Append(piece, sends);
  }
}

void OwnedShard::Await(Version version, int64_t now_ms, const PendingAckRef& ack) {
  for (ShardFollower* const one : both()) {
    if (!one->sync().HoldsUp(version) || (one == &learner_ && Planted(Defect::kLearnerNotAwaited))) continue;
    ack->Add();
    one->Await(version, now_ms, ack);
  }
}

void OwnedShard::SettleAll(const absl::Status& status, SettledAcks* settled) {
  for (ShardFollower* const one : both()) one->SettleAll(status, settled);
}

void OwnedShard::EndStreams(const absl::Status& status) {
  for (ShardFollower* const one : both()) one->EndStream(status);
}

void OwnedShard::OnReleased(const absl::Status& end, int64_t now_ms, SettledAcks* settled) {
  alone_ms_ = now_ms;
  follower_.OnReleased(end, settled);
}

void OwnedShard::LearnerFollows(ShardId shard, uint64_t epoch, SettledAcks* settled) {
  SetNamed(learner_.sync().server() + 1, epoch);
  if (follower_.stream() != nullptr) follower_.stream()->Drop(shard);
  learner_.sync().TakeHandover(follower_.sync());
  follower_.SettleAll(absl::OkStatus(), settled);
  follower_.Reset();
  std::swap(follower_, learner_);
}

}  // namespace lodestone::server
