// The checksum of a shard's contents: equal for an owner, its replay and its follower.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/types.h"
#include "server/shard/shard.h"

namespace lodestone::server {

// Of the version, the blocks and rows with their state, updates and versions, the keys that wait for admission and the
// windows of `workers` (ascending); of all, if it is null. Not of where rows lie, nor of when and how often they were
// used: pulls count as uses and are not logged. Thread-safe. REQUIRES: the state is whole.
uint64_t ContentChecksum(const Shard::State& state, const std::vector<Incarnation>* workers = nullptr);

}  // namespace lodestone::server
