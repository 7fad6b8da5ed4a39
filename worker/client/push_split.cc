#include "worker/client/push_split.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "worker/rpc/part_expansion.h"

namespace lodestone::worker {
namespace {

// The push of `call`, whose pull, if it has one, is dropped.
v1::PushRequest* PushOf(v1::Call* call) {
  if (call->has_push_pull()) {
    v1::PushRequest push = std::move(*call->mutable_push_pull()->mutable_push());
    *call->mutable_push() = std::move(push);
  }
  return call->mutable_push();
}

}  // namespace

std::vector<PushSplit> SplitPush(const ShardMap& map, ServerChannel::Request request) {
  // What is left in `request` is what all splits begin with: all but the parts and their payload.
  CallPayload payload = std::exchange(request.payload, {});
  v1::PushRequest* const push = PushOf(&request.call);
  const std::vector<CallPayload::PartSizes> whole = std::exchange(payload.parts, {});
  Parts parts = ExpandParts(push->parts(), whole, &payload.parts);
  push->clear_parts();
  request.epoch = map.epoch();

  std::vector<PushSplit> splits;
  std::vector<std::vector<std::pair<size_t, size_t>>> keys;  // Of each split: where they lie in `payload`, and bytes.
  size_t keys_at = 0;
  size_t at = 0;
  size_t offset = 0;
  for (int i = 0; i < parts.size(); ++i) {
    const uint32_t owner = map.OwnerOf(parts[i].shard());
    auto split = std::find_if(splits.begin(), splits.end(), [&](const PushSplit& of) { return of.server == owner; });
    if (split == splits.end()) {
      split = splits.insert(splits.end(), PushSplit{owner, request});
      keys.emplace_back();
    }
    split->request.call.mutable_push()->add_parts()->Swap(&parts[i]);
    const CallPayload::PartSizes& sizes = payload.parts[i];
    CallPayload& to = split->request.payload;
    to.parts.push_back(sizes);
    TakeSlices(sizes.value_bytes, payload.values, &at, &offset, &to.values);
    if (sizes.key_bytes > 0) keys[split - splits.begin()].emplace_back(keys_at, sizes.key_bytes);
    keys_at += sizes.key_bytes;
  }
  for (size_t s = 0; s < splits.size(); ++s) {
    size_t bytes = 0;
    for (const auto& [from, size] : keys[s]) bytes += size;
    const auto copy_keys = [&](uint8_t* to) {
      for (const auto& [from, size] : keys[s]) {
        std::memcpy(to, payload.keys.begin() + from, size);
        to += size;
      }
    };
    SetKeys(bytes, copy_keys, &splits[s].request.payload);
  }
  return splits;
}

}  // namespace lodestone::worker
