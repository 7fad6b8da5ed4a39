#include "server/replication/follower.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "server/replication/follow_link.h"

namespace lodestone::server {

Follower::Follower(Options options, Store* store, NewestUpdates* newest)
    : options_(std::move(options)), store_(store), newest_(newest) {}

Follower::~Follower() { Stop(); }

std::map<uint32_t, std::vector<ShardId>> Follower::WantedBy(const ShardMap& map) const {
  std::map<uint32_t, std::vector<ShardId>> wanted;
  for (const ShardId shard : map.FollowedBy(options_.server)) wanted[map.OwnerOf(shard)].push_back(shard);
  return wanted;
}

std::vector<ShardId> Follower::LearntOf(std::vector<ShardId> shards, const ShardMap& map) const {
  std::erase_if(shards, [&](ShardId shard) { return map.LearnerOf(shard) != options_.server; });
  return shards;
}

void Follower::StopFollowing(const ShardMap& map) {
  const std::map<uint32_t, std::vector<ShardId>> wanted = WantedBy(map);
  for (const auto& [owner, link] : links_by_owner()) {
    const auto shards = wanted.find(owner);
    if (shards != wanted.end() &&
        link->Is(map.AddressOf(owner), map.IncarnationOf(owner), shards->second, LearntOf(shards->second, map))) {
      continue;
    }
    link->Stop();
    MutexLock lock(&mu_);
    links_.erase(owner);
  }
}

void Follower::Follow(const ShardMap& map, const std::function<bool()>& superseded) {
  const std::map<uint32_t, std::shared_ptr<Link>> links = links_by_owner();
  std::string problem;
  for (auto& [owner, shards] : WantedBy(map)) {
    if (links.contains(owner)) continue;  // As StopFollowing left it, it is of this map.
    for (const ShardId shard : shards) {
      if (superseded()) return;
      // One that is followed already is whole, and may stay so with another owner: that one knows.
      if (store_->shards().RoleOf(shard) == ShardRole::kFollows ||
          store_->shards().RoleOf(shard) == ShardRole::kFollowing)
        continue;
      const absl::Status status = store_->replayer().Follow(shard);
      if (!status.ok()) problem = status.ToString();
    }
    std::erase_if(shards, [this](ShardId shard) { return store_->shards().RoleOf(shard) < ShardRole::kFollowing; });
    auto fresh = std::make_shared<Link>(options_, store_, newest_, owner, map.AddressOf(owner),
                                        map.IncarnationOf(owner), shards, LearntOf(shards, map));
    MutexLock lock(&mu_);
    links_[owner] = std::move(fresh);
  }
  if (!problem.empty()) LODESTONE_LOG(ERROR, "replication", "cannot follow all that it should: {}", problem);
  MutexLock lock(&mu_);
  problem_ = std::move(problem);
}

void Follower::Stop() {
  std::map<uint32_t, std::shared_ptr<Link>> links;
  {
    MutexLock lock(&mu_);
    links.swap(links_);
  }
  for (auto& [owner, link] : links) link->Stop();
}

std::map<uint32_t, std::shared_ptr<Follower::Link>> Follower::links_by_owner() const {
  MutexLock lock(&mu_);
  return links_;
}

std::vector<std::shared_ptr<Follower::Link>> Follower::links() const {
  std::vector<std::shared_ptr<Link>> links;
  MutexLock lock(&mu_);
  for (const auto& [owner, link] : links_) links.push_back(link);
  return links;
}

bool Follower::follows() const {
  MutexLock lock(&mu_);
  return !links_.empty() || !problem_.empty();
}

void Follower::ConfirmOnDisk() {
  for (const auto& link : links()) link->ConfirmOnDisk();
}

void Follower::FillStatus(v1::StatusResponse* status) const {
  {
    MutexLock lock(&mu_);
    if (!problem_.empty()) {
      v1::WaitStatus* const wait = status->add_waits();
      wait->set_who(absl::StrCat("ps ", options_.server));
      wait->set_what(absl::StrCat("room to follow shards: ", problem_));
      wait->add_targets()->set_kind(v1::WaitTarget::MEMORY);
      wait->set_background(true);
    }
  }
  for (const auto& link : links()) link->FillStatus(status);
}

}  // namespace lodestone::server
