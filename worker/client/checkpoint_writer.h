// The writing of a checkpoint by all servers of a cluster, as a worker asks for it.
//
// Thread safety: any number of calls at a time, of different names.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/security/credentials.h"
#include "common/wire/shard_map.h"

namespace lodestone::worker {

// Has every ps that owns a shard by `newest_map` write its part of checkpoint `name`, at the same time, after it has
// removed its part of `removes` (empty: none), which must not be the newest that is complete. Blocks until all have, or
// one cannot: the error, which names the ps, is the first one's. A ps that writes another checkpoint is asked again for
// a while. If shards moved meanwhile and are in no part, all parts are replaced, by a newer map, twice at most; after
// that ABORTED, naming the shards.
absl::Status WriteCheckpoints(const std::function<std::shared_ptr<const ShardMap>()>& newest_map,
                              uint32_t message_max_bytes, const CredentialsRef& credentials, const std::string& name,
                              const std::string& removes);

}  // namespace lodestone::worker
