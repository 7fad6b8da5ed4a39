#include "worker/client/push_pairing.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/status.h"

namespace lodestone::worker {
namespace {

using Part = ShardMessage::Part;

// The parts of a message, by what they are of.
using PartsOf = absl::flat_hash_map<std::tuple<bool, ShardId, TableId>, std::vector<const Part*>>;

std::tuple<bool, ShardId, TableId> KeyOf(const Part& part) { return {part.dense, part.shard, part.table->id}; }

// Whether one of `parts` is exactly what `part` reads.
bool HasPart(const PartsOf& parts, const Part& part, const SameKeys& same_keys) {
  const auto found = parts.find(KeyOf(part));
  if (found == parts.end()) return false;
  return std::any_of(found->second.begin(), found->second.end(), [&](const Part* other) {
    return std::equal(other->items.begin(), other->items.end(), part.items.begin(), part.items.end()) &&
           (part.dense || same_keys(other->source, part.source));
  });
}

}  // namespace

std::vector<int> PairMessages(std::span<const ShardMessage> push, std::span<const ShardMessage> pull, uint32_t shards,
                              const SameKeys& same_keys) {
  // By server its messages in order, and by shard the first and the last message that push to it.
  std::map<uint32_t, std::vector<size_t>> of_server;
  std::vector<std::pair<size_t, size_t>> pushers(shards, {SIZE_MAX, 0});
  for (size_t m = 0; m < push.size(); ++m) {
    of_server[push[m].server].push_back(m);
    for (const ShardMessage::Part& part : push[m].parts) {
      auto& [first, last] = pushers[part.shard];
      first = std::min(first, m);
      last = std::max(last, m);
    }
  }
  std::vector<int> pairs(push.size(), -1);
  std::map<uint32_t, size_t> taken;
  for (size_t p = 0; p < pull.size(); ++p) {
    const ShardMessage& message = pull[p];
    const std::vector<size_t>& pushes = of_server[message.server];
    const size_t turn = taken[message.server]++;
    if (turn >= pushes.size()) return {};
    const size_t with = pushes[turn];
    PartsOf pushed;  // Those of `with`, once they are asked for.
    for (const ShardMessage::Part& part : message.parts) {
      const auto& [first, last] = pushers[part.shard];
      const bool alone = first == SIZE_MAX || (first == with && last == with);
      if (alone) continue;
      if (pushed.empty()) {
        for (const Part& one : push[with].parts) pushed[KeyOf(one)].push_back(&one);
      }
      if (!HasPart(pushed, part, same_keys)) return {};
    }
    pairs[with] = static_cast<int>(p);
  }
  return pairs;
}

absl::Status PairWithPush(const RequestRouter& router, std::span<const ShardMessage> push,
                          std::span<const RowGradients> rows, const std::shared_ptr<PullValues>& pull,
                          std::vector<PullRider>* riders) {
  LODESTONE_ASSIGN_OR_RETURN(std::vector<ShardMessage> messages, pull->Route(router));
  absl::flat_hash_map<std::pair<size_t, size_t>, bool> compared;  // Many parts are of the same two sources.
  const auto same_keys = [&](size_t push_source, size_t pull_source) {
    const auto [at, fresh] = compared.try_emplace({push_source, pull_source}, false);
    if (fresh) at->second = std::ranges::equal(rows[push_source].keys, pull->rows()[pull_source].keys);
    return at->second;
  };
  const std::vector<int> pairs = PairMessages(push, messages, router.map().shards(), same_keys);
  riders->resize(pairs.size());
  for (size_t m = 0; m < pairs.size(); ++m) {
    if (pairs[m] >= 0) (*riders)[m] = {pull, std::move(messages[pairs[m]])};
  }
  return absl::OkStatus();
}

}  // namespace lodestone::worker
