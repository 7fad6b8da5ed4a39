// The writing of a checkpoint by all servers of a cluster, as a worker asks for it.
//
// Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/security/credentials.h"
#include "common/wire/shard_map.h"

namespace lodestone::worker {

// Has every ps of `map` that owns a shard write its part of checkpoint `name`, at the same time, after it has removed
// its part of `removes` (empty: none). Blocks until all have, or one cannot: the error, which names the ps, is the
// first one's. A ps that writes another checkpoint is asked again for a while.
absl::Status WriteCheckpoints(const ShardMap& map, uint32_t message_max_bytes, const CredentialsRef& credentials,
                              const std::string& name, const std::string& removes);

}  // namespace lodestone::worker
