#include "server/coordinator/followers.h"

#include <algorithm>

namespace lodestone::server {

Followers::Followers(uint32_t shards, uint32_t wanted)
    : wanted_(wanted), firsts_(shards), in_sync_(shards), seconds_(shards), second_in_sync_(shards) {}

std::vector<uint32_t> Followers::Of(ShardId shard) const {
  std::vector<uint32_t> servers;
  for (const uint32_t server : {firsts_[shard], seconds_[shard]}) {
    if (server > 0) servers.push_back(server - 1);
  }
  return servers;
}

bool Followers::any() const {
  return std::any_of(firsts_.begin(), firsts_.end(), [](uint32_t server) { return server > 0; });
}

bool Followers::AreInSync(ShardId shard) const {
  return in_sync_[shard] && (seconds_[shard] == 0 || second_in_sync_[shard]);
}

bool Followers::IsComplete(ShardId shard) const { return AreInSync(shard) && (wanted_ < 2 || seconds_[shard] > 0); }

void Followers::SetInSync(uint32_t server, ShardId shard, bool in_sync) {
  if (firsts_[shard] == server + 1) in_sync_[shard] = in_sync;
  if (seconds_[shard] == server + 1) second_in_sync_[shard] = in_sync;
  if (!in_sync_[shard] && second_in_sync_[shard]) Swap(shard);
}

void Followers::Replace(uint32_t before, uint32_t server, ShardId shard) {
  if (seconds_[shard] == before + 1) {
    seconds_[shard] = server + 1;
    second_in_sync_[shard] = false;
    return;
  }
  SetFirst(shard, server + 1);
}

void Followers::SetFirst(ShardId shard, uint32_t server) {
  firsts_[shard] = server;
  in_sync_[shard] = false;
}

void Followers::PutFirst(uint32_t server, ShardId shard) {
  if (firsts_[shard] == server + 1) return;
  if (seconds_[shard] == server + 1) return Swap(shard);
  SetFirst(shard, server + 1);
}

void Followers::Swap(ShardId shard) {
  std::swap(firsts_[shard], seconds_[shard]);
  const bool in_sync = in_sync_[shard];
  in_sync_[shard] = second_in_sync_[shard];
  second_in_sync_[shard] = in_sync;
}

void Followers::ClearSecond(ShardId shard) {
  seconds_[shard] = 0;
  second_in_sync_[shard] = false;
}

void Followers::Promote(ShardId shard, uint32_t former) {
  in_sync_[shard] = second_in_sync_[shard] = false;
  if (wanted_ == 0) {
    firsts_[shard] = 0;
  } else if (seconds_[shard] > 0) {
    firsts_[shard] = seconds_[shard];
    seconds_[shard] = former + 1;
  } else {
    firsts_[shard] = former + 1;
  }
}

void Followers::FillRoute(v1::RouteResponse* route) const {
  if (wanted_ == 0 && !any()) return;
  route->mutable_followers()->Add(firsts_.begin(), firsts_.end());
  route->mutable_in_sync()->Add(in_sync_.begin(), in_sync_.end());
  if (wanted_ < 2) return;
  route->mutable_second_followers()->Add(seconds_.begin(), seconds_.end());
  route->mutable_second_in_sync()->Add(second_in_sync_.begin(), second_in_sync_.end());
}

void Followers::Save(v1::CoordinatorState* state) const {
  state->mutable_followers()->Add(firsts_.begin(), firsts_.end());
  state->mutable_in_sync()->Add(in_sync_.begin(), in_sync_.end());
  if (wanted_ < 2) return;
  state->mutable_second_followers()->Add(seconds_.begin(), seconds_.end());
  state->mutable_second_in_sync()->Add(second_in_sync_.begin(), second_in_sync_.end());
}

bool Followers::Restore(const v1::CoordinatorState& state) {
  firsts_.assign(state.followers().begin(), state.followers().end());
  if (!state.in_sync().empty()) in_sync_.assign(state.in_sync().begin(), state.in_sync().end());
  if (state.second_followers().empty()) return wanted_ == 2;
  seconds_.assign(state.second_followers().begin(), state.second_followers().end());
  if (!state.second_in_sync().empty()) {
    second_in_sync_.assign(state.second_in_sync().begin(), state.second_in_sync().end());
  }
  for (ShardId shard = 0; wanted_ < 2 && shard < firsts_.size(); ++shard) {
    ClearSecond(shard);  // If one is in sync, the first one is.
  }
  return wanted_ < 2;
}

void Followers::DropImpossible(const std::vector<uint32_t>& owners) {
  for (ShardId shard = 0; shard < owners.size(); ++shard) {
    if (firsts_[shard] == owners[shard] + 1) SetFirst(shard, 0);
    if (seconds_[shard] == owners[shard] + 1 || seconds_[shard] == firsts_[shard]) ClearSecond(shard);
  }
}

}  // namespace lodestone::server
