#include "worker/client/rerouter.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/base/random.h"
#include "common/wire/part.h"

namespace lodestone::worker {
namespace {

// The longest pause: about as long as a ps needs to learn of a change of owners.
constexpr int64_t kPauseMaxMs = 200;
// The number of doublings of the pause.
constexpr uint32_t kDoublingsMax = 4;
// The shortest pause before a new owner is asked again; as long as it has been known, if that is more.
constexpr int64_t kNewOwnerPauseMinMs = 6;

// "shard 3 of ps 1 at host:port, shard 5 of ps 2 at host:port".
std::string OwnersOf(const v1::Call& call, const ShardMap& map) {
  std::set<ShardId> shards;
  const auto add = [&](const auto& request) {
    for (const v1::Part& part : request.parts()) {
      ForEachShard(part, [&](ShardId shard, uint32_t) { shards.insert(shard); });
    }
  };
  add(call.has_push_pull() ? call.push_pull().push() : call.push());
  add(call.pull());
  std::vector<std::string> names;
  for (ShardId shard : shards) {
    if (shard >= map.shards()) continue;
    const uint32_t owner = map.OwnerOf(shard);
    names.push_back(absl::StrCat("shard ", shard, " of ps ", owner, " at ", map.AddressOf(owner)));
  }
  return absl::StrJoin(names, ", ");
}

// What a request that was turned back waits for: the owner of its first shard.
v1::WaitStatus WaitOfTurnedBack(const absl::Status& error, const ServerChannel::Request& request, const ShardMap& map) {
  v1::WaitStatus wait = WaitOf(request, 0, 0);
  wait.set_what(absl::StrCat(request.what, ", turned back ", request.turned_back, " times: ", error.message()));
  v1::WaitTarget* const target = wait.mutable_targets(0);
  const bool known = !target->shards().empty() && target->shards(0) < map.shards();
  if (known) target->set_index(map.OwnerOf(target->shards(0)));
  if (!known) wait.clear_targets();
  return wait;
}

std::optional<ShardId> FirstShardOf(const v1::Call& call) {
  std::optional<ShardId> first;
  const auto take = [&](const auto& request) {
    if (request.parts().empty() || first.has_value()) return;
    ForEachShard(request.parts(0), [&](ShardId shard, uint32_t) { first = first.value_or(shard); });
  };
  take(call.has_push_pull() ? call.push_pull().push() : call.push());
  take(call.pull());
  return first;
}

absl::Status TimeIsUp(const absl::Status& error, const ServerChannel::Request& request, const ShardMap& map,
                      int64_t ms) {
  return absl::Status(
      error.code(),
      absl::StrFormat("%s; turned back %d times in %.1f s, by the shard map of epoch %d: %s", error.message(),
                      request.turned_back, static_cast<double>(ms) / 1000, map.epoch(), OwnersOf(request.call, map)));
}

}  // namespace

void Rerouter::TurnBack(const absl::Status& error, ServerChannel::Request* request, Resume resume) {
  const std::shared_ptr<const ShardMap> map = options_.map();
  const int64_t elapsed_ms = time_.NowMs() - request->started_ms;
  const int64_t ceiling_ms = PauseMaxMs(*request, map);
  ++request->turned_back;
  const bool newer = map->epoch() > request->epoch;
  if (elapsed_ms + (newer ? 0 : ceiling_ms) > options_.retry_timeout_ms) {
    return resume(TimeIsUp(error, *request, *map, elapsed_ms));
  }
  bool cancelled = false;
  {
    MutexLock lock(&mu_);
    cancelled = cancelled_;
    if (!cancelled && !newer) {
      const uint64_t id = ++last_id_;
      ++running_;
      const int64_t half_ms = ceiling_ms / 2;
      const int64_t pause_ms =
          half_ms + static_cast<int64_t>(RandomUniform(options_.seed, id) * static_cast<double>(half_ms));
      waiting_[id] = {options_.timer->After(pause_ms, [this, id] { OnPauseOver(id); }), std::move(resume),
                      request->started_ms, WaitOfTurnedBack(error, *request, *map)};
    }
  }
  if (cancelled) return resume(absl::CancelledError(absl::StrCat(request->what, ": the client is closing")));
  if (newer) return resume(map);
  // A map that came meanwhile may have found nothing to wake.
  options_.ask_route();
  if (options_.map()->epoch() > map->epoch()) Wake();
}

int64_t Rerouter::PauseMaxMs(const ServerChannel::Request& request, const std::shared_ptr<const ShardMap>& map) {
  const int64_t usual_ms =
      std::min(limits::kRetryBackoffMinMs * 2 << std::min(request.turned_back, kDoublingsMax), kPauseMaxMs);
  const std::optional<ShardId> shard = FirstShardOf(request.call);
  MutexLock lock(&mu_);
  NoteMap(map);
  const auto changed = shard.has_value() ? changed_ms_.find(*shard) : changed_ms_.end();
  if (changed == changed_ms_.end()) return usual_ms;
  return std::clamp(time_.NowMs() - changed->second, kNewOwnerPauseMinMs, usual_ms);
}

void Rerouter::NoteMap(const std::shared_ptr<const ShardMap>& map) {
  if (newest_ != nullptr && map->epoch() <= newest_->epoch()) return;
  const std::shared_ptr<const ShardMap> before = std::exchange(newest_, map);
  for (ShardId shard = 0; before != nullptr && shard < std::min(map->shards(), before->shards()); ++shard) {
    if (map->OwnerOf(shard) != before->OwnerOf(shard)) changed_ms_[shard] = time_.NowMs();
  }
}

void Rerouter::OnPauseOver(uint64_t id) {
  Resume resume;
  {
    MutexLock lock(&mu_);
    const auto found = waiting_.find(id);
    if (found != waiting_.end()) {  // Otherwise it has been woken.
      resume = std::move(found->second.resume);
      waiting_.erase(found);
    }
  }
  if (resume) resume(options_.map());
  resume = nullptr;  // Destroyed before the client may be.
  EndOne();
}

void Rerouter::EndOne() {
  MutexLock lock(&mu_);
  --running_;
  idle_.NotifyAll();
}

void Rerouter::Wake() {
  std::map<uint64_t, Waiting> woken;
  const std::shared_ptr<const ShardMap> map = options_.map();
  {
    MutexLock lock(&mu_);
    if (cancelled_) return;
    NoteMap(map);
    woken.swap(waiting_);
    ++running_;
  }
  for (auto& [id, waiting] : woken) {
    if (options_.timer->Cancel(waiting.pause)) EndOne();
    waiting.resume(options_.map());
  }
  woken.clear();
  EndOne();
}

std::optional<v1::WaitStatus> Rerouter::WaitLongerThan(int64_t ms) const {
  MutexLock lock(&mu_);
  const Waiting* oldest = nullptr;
  for (const auto& [id, waiting] : waiting_) {
    if (oldest == nullptr || waiting.started_ms < oldest->started_ms) oldest = &waiting;
  }
  if (oldest == nullptr || time_.NowMs() - oldest->started_ms <= ms) return std::nullopt;
  v1::WaitStatus wait = oldest->wait;
  wait.set_seconds(static_cast<double>(time_.NowMs() - oldest->started_ms) / 1000);
  return wait;
}

void Rerouter::Cancel() {
  std::map<uint64_t, Waiting> ended;
  {
    MutexLock lock(&mu_);
    cancelled_ = true;
    ended.swap(waiting_);
  }
  for (auto& [id, waiting] : ended) {
    if (options_.timer->Cancel(waiting.pause)) EndOne();
    waiting.resume(absl::CancelledError("the client is closing"));
  }
  ended.clear();
  MutexLock lock(&mu_);
  while (running_ > 0) idle_.Wait(&mu_);
}

}  // namespace lodestone::worker
