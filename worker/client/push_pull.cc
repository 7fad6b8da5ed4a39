#include "worker/client/push_pull.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <utility>

#include "common/base/status.h"
#include "worker/client/pull_values.h"

namespace lodestone::worker {
namespace {

// Whether `message` has just what `part` reads.
bool HasPart(const RoutedMessage& message, const RoutedPart& part, const SameKeys& same_keys) {
  return std::any_of(message.parts.begin(), message.parts.end(), [&](const RoutedPart& other) {
    return other.dense == part.dense && other.shard == part.shard && other.table->id == part.table->id &&
           std::equal(other.items.begin(), other.items.end(), part.items.begin(), part.items.end()) &&
           (part.dense || same_keys(other.source, part.source));
  });
}

}  // namespace

std::vector<const RoutedMessage*> PairMessages(const Routing& push, const Routing& pull, uint32_t shards,
                                               const SameKeys& same_keys) {
  // The messages of a server take each other in order, and the first and the last one that push to each shard.
  std::map<uint32_t, std::vector<size_t>> of_server;
  std::vector<std::pair<size_t, size_t>> pushers(shards, {SIZE_MAX, 0});
  for (size_t m = 0; m < push.messages.size(); ++m) {
    of_server[push.messages[m].server].push_back(m);
    for (const RoutedPart& part : push.messages[m].parts) {
      auto& [first, last] = pushers[part.shard];
      first = std::min(first, m);
      last = std::max(last, m);
    }
  }
  std::vector<const RoutedMessage*> pairs(push.messages.size(), nullptr);
  std::map<uint32_t, size_t> taken;
  for (const RoutedMessage& message : pull.messages) {
    const std::vector<size_t>& pushes = of_server[message.server];
    const size_t turn = taken[message.server]++;
    if (turn >= pushes.size()) return {};
    const size_t with = pushes[turn];
    for (const RoutedPart& part : message.parts) {
      const auto& [first, last] = pushers[part.shard];
      const bool alone = first == SIZE_MAX || (first == with && last == with);
      if (!alone && !HasPart(push.messages[with], part, same_keys)) return {};
    }
    pairs[with] = &message;
  }
  return pairs;
}

struct PushPuller::Operation {
  Operation(std::vector<DensePull> dense, std::vector<RowPull> rows, uint32_t shards)
      : values(std::move(dense), std::move(rows), shards) {}

  PullValues values;  // Synchronises itself.
  Routing pull;       // Constant: what riders ask for.
  std::function<void(Client::PushResult, ShardVersions)> done;
  std::atomic<size_t> left{1};  // Messages of the pull that have not been answered.
};

absl::Status PushPuller::PushPull(Clock clock, const PushWork& work, std::vector<DensePull> dense,
                                  std::vector<RowPull> rows,
                                  std::function<void(Client::PushResult, ShardVersions)> done) {
  const std::shared_ptr<const ShardMap> map = servers_.map();
  const auto operation = std::make_shared<Operation>(std::move(dense), std::move(rows), map->shards());
  operation->done = std::move(done);
  LODESTONE_ASSIGN_OR_RETURN(const Routing push, RouteBy(*map, work, servers_.limits));
  LODESTONE_ASSIGN_OR_RETURN(operation->pull, operation->values.RouteBy(*map, servers_.limits));
  Pusher::Riders riders;
  const auto same_keys = [&](size_t push_source, size_t pull_source) {
    const std::span<const Key> pushed = work.rows[push_source].keys;
    const std::span<const Key> pulled = operation->values.rows()[pull_source].keys;
    return std::equal(pushed.begin(), pushed.end(), pulled.begin(), pulled.end());
  };
  const std::vector<const RoutedMessage*> pairs = PairMessages(push, operation->pull, map->shards(), same_keys);
  if (!pairs.empty() || operation->pull.messages.empty()) operation->left.store(operation->pull.messages.size());
  for (const RoutedMessage* message : pairs) {
    if (message == nullptr) {
      riders.push_back(nullptr);
      continue;
    }
    const auto rider = std::make_shared<PullRider>();
    rider->request.set_worker_incarnation(servers_.incarnation);
    rider->answer_bytes = operation->values.AddParts(*message, &rider->request, &rider->parts);
    rider->copy_keys = [operation, message](uint8_t* to) { return operation->values.CopyKeys(*message, to); };
    rider->take = [operation, message](const v1::PullResponse& response, const Payload& payload) {
      absl::Status status = operation->values.Take(response, payload, *message);
      if (status.ok()) operation->left.fetch_sub(1);
      return status;
    };
    riders.push_back(rider);
  }
  return pusher_->Push(clock, work, *map, push, riders, [this, operation](Client::PushResult result) {
    if (!result.status.ok() || operation->left.load() == 0) {
      return operation->done(std::move(result), operation->values.versions());
    }
    // Some had to be left behind.
    puller_->Pull(operation->values.dense(), operation->values.rows(),
                  [operation, result = std::move(result)](absl::Status status, ShardVersions versions) {
                    operation->done({std::move(status), result.staleness_pushes}, std::move(versions));
                  });
  });
}

}  // namespace lodestone::worker
