#include "worker/capi/followed_shards.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/capi/wait_deadline.h"

namespace lodestone::worker {

void FollowedShards::Want(ShardId shard) {
  if (!wanted_[shard]) ++missing_;
  wanted_[shard] = true;
}

void FollowedShards::BeginAnchor(ShardId shard) {
  if (shard < anchoring_.size()) anchoring_[shard] = true;
}

void FollowedShards::NoteShard(ShardId shard, Version version, bool news) {
  if (shard >= versions_.size()) return;
  versions_[shard] = anchoring_[shard] ? version : std::max(versions_[shard], version);
  anchoring_[shard] = false;
  if (!come_[shard]) {
    if (wanted_[shard]) --missing_;
    come_[shard] = true;
    news = true;
  }
  if (!news) return;
  ++stamp_;
  changed_.NotifyAll();
}

absl::Status FollowedShards::CheckComplete() const {
  if (missing_ == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the values of ", missing_, " shards have not come yet"));
}

uint64_t FollowedShards::Wait(uint64_t stamp, int64_t timeout_ms) {
  const auto deadline = WaitDeadline(timeout_ms);
  MutexLock lock(&mu_);
  while (missing_ > 0 || stamp_ <= stamp) {
    if (!deadline.has_value()) {
      changed_.Wait(&mu_);
    } else if (!changed_.WaitUntil(&mu_, *deadline)) {
      break;
    }
  }
  return missing_ > 0 ? 0 : stamp_;
}

}  // namespace lodestone::worker
