#include "server/replication/owned_shard.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lodestone::server {
namespace {

// Two followers, a learner, and one by an old map.
constexpr size_t kFollowersMax = 4;

}  // namespace

void OwnedShard::Reset(bool owned, uint64_t term, int64_t now_ms) {
  owned_ = owned;
  term_ = term;
  lacks_since_ms_ = now_ms;
  appended_ = 0;
  map_epoch_ = 0;
  named_.reset();
  named_learner_.reset();
  followers_.clear();
}

ShardFollower* OwnedShard::Of(uint32_t server) const {
  for (const auto& one : followers_) {
    if (one->server() == server) return one.get();
  }
  return nullptr;
}

ShardFollower* OwnedShard::With(const FollowStream* stream) const {
  for (const auto& one : followers_) {
    if (one->stream().get() == stream) return one.get();
  }
  return nullptr;
}

ShardFollower* OwnedShard::OfLife(Incarnation follower) const {
  for (const auto& one : followers_) {
    if (one->sync().follower() == follower) return one.get();
  }
  return nullptr;
}

bool OwnedShard::IsNamed(uint32_t server) const {
  return named_learner_ == server || (named_.has_value() && absl::c_linear_search(*named_, server));
}

absl::StatusOr<ShardFollower*> OwnedShard::Begin(uint32_t server) {
  if (ShardFollower* const known = Of(server); known != nullptr) return known;
  std::erase_if(followers_, [this](const auto& one) {
    return !IsNamed(one->server()) && !one->sync().counts() && one->stream() == nullptr;
  });
  const bool counts = absl::c_any_of(followers_, [](const auto& one) { return one->sync().counts(); });
  if ((named_.has_value() && !IsNamed(server) && counts) || followers_.size() >= kFollowersMax) {
    const auto name = [](std::string* out, const auto& one) { absl::StrAppend(out, one->server()); };
    const std::string names = absl::StrJoin(followers_, ", ", name);
    return absl::UnavailableError(absl::StrCat("is followed by ps ", names, ", and not by ps ", server));
  }
  followers_.push_back(std::make_unique<ShardFollower>(server, all_));
  followers_.back()->sync().SetAppended(appended_);
  return followers_.back().get();
}

size_t OwnedShard::SetMap(const ShardMap& map, ShardId shard, uint32_t in_sync_min, const absl::Status& end,
                          int64_t now_ms, SettledAcks* settled) {
  map_epoch_ = map.epoch();
  named_ = map.FollowersOf(shard);
  named_learner_ = map.LearnerOf(shard);
  size_t released = 0;
  for (const auto& one : followers_) {
    if (map.InSync(shard, one->server())) continue;
    if (!one->sync().OnMapWithoutFollower(map.epoch(), IsNamed(one->server()))) continue;
    OnReleased(one.get(), in_sync_min, end, now_ms, settled);
    ++released;
  }
  std::erase_if(followers_, [&](const auto& one) {
    if (IsNamed(one->server()) || one->sync().counts()) return false;
    if (one->stream() != nullptr) one->stream()->Drop(shard);
    return true;
  });
  return released;
}

void OwnedShard::GiveUp(uint64_t handover, int64_t now_ms) {
  for (const auto& one : followers_) {
    const bool owns_next = named_.has_value() && !named_->empty() && named_->front() == one->server();
    one->sync().GiveUp(owns_next ? handover : 0, now_ms);
  }
}

bool OwnedShard::NextOwnerHasAll(uint32_t server) const {
  return absl::c_any_of(followers_,
                        [server](const auto& one) { return one->server() == server && one->sync().NextOwnerHasAll(); });
}

uint32_t OwnedShard::copies_in_sync() const {
  return 1 + static_cast<uint32_t>(absl::c_count_if(
                 followers_, [](const auto& one) { return one->sync().state() == ShardSync::State::kInSync; }));
}

uint32_t OwnedShard::CopiesOf(Version version) const {
  return 1 + static_cast<uint32_t>(absl::c_count_if(followers_, [&](const auto& one) {
           return one->sync().counts() || version <= one->sync().confirmed();
         }));
}

std::optional<OwnedShard::Waiting> OwnedShard::OldestWait() const {
  std::optional<Waiting> oldest;
  for (const auto& one : followers_) {
    const std::optional<int64_t> since_ms = one->waiting_since_ms();
    if (!since_ms.has_value() || (oldest.has_value() && oldest->since_ms <= *since_ms)) continue;
    oldest = Waiting{*since_ms, one->server()};
  }
  return oldest;
}

void OwnedShard::SetAppended(Version version) {
  appended_ = version;
  for (const auto& one : followers_) one->sync().SetAppended(version);
}

bool OwnedShard::KeepsUpdates() const {
  return absl::c_any_of(followers_, [](const auto& one) { return one->sync().KeepsUpdates(); });
}

void OwnedShard::Append(const FollowPieceRef& piece, QueuedSends* sends) {
  for (const auto& one : followers_) {
    if (one->sync().KeepsUpdates()) one->Append(piece, sends);
  }
}

bool OwnedShard::IsAwaited(const ShardFollower& one, Version version) const {
  if (!one.sync().HoldsUp(version)) return false;
  return !Planted(Defect::kLearnerNotAwaited) || &one == followers_.front().get();
}

bool OwnedShard::HoldsUp(Version version) const {
  return absl::c_any_of(followers_, [&](const auto& one) { return IsAwaited(*one, version); });
}

void OwnedShard::Await(Version version, int64_t now_ms, const PendingAckRef& ack) {
  for (const auto& one : followers_) {
    if (!IsAwaited(*one, version)) continue;
    ack->Add();
    one->Await(version, now_ms, ack);
  }
}

void OwnedShard::SettleAll(const absl::Status& status, SettledAcks* settled) {
  for (const auto& one : followers_) one->SettleAll(status, settled);
}

void OwnedShard::EndStreams(const absl::Status& status) {
  for (const auto& one : followers_) one->EndStream(status);
}

void OwnedShard::OnReleased(ShardFollower* one, uint32_t in_sync_min, const absl::Status& end, int64_t now_ms,
                            SettledAcks* settled) {
  // What waits for it waits for the others that count too, or these have it.
  const bool held = in_sync_min <= 1 || copies_in_sync() >= in_sync_min;
  one->OnReleased(held ? absl::OkStatus() : end, settled);
  if (!held || copies_in_sync() == 1) lacks_since_ms_ = now_ms;
}

}  // namespace lodestone::server
