// The division of a push that was turned back among the servers that own its shards now.
//
// Thread safety: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/wire/shard_map.h"
#include "worker/rpc/server_channel.h"

namespace lodestone::worker {

// The parts of a push that `server` owns, as a request of their own.
struct PushSplit {
  uint32_t server = 0;
  ServerChannel::Request request;
};

// Splits a push by the owners of `map`; of a push and a pull in one call, the push alone. Each request is a copy of the
// whole, but for its parts and their payload: it keeps the sequence, and every other field of the header. Values are
// referenced, keys copied.
std::vector<PushSplit> SplitPush(const ShardMap& map, ServerChannel::Request request);

}  // namespace lodestone::worker
