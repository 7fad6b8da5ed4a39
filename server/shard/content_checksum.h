// The checksum of a shard's contents: equal for an owner, its replay and its follower.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/types.h"
#include "server/shard/shard.h"

namespace lodestone::server {

// Of the version, the blocks and rows with their state, updates and versions, and the keys that wait for admission. Not
// of where rows lie, nor of when and how often they were used: pulls count as uses and are not logged. Thread-safe.
// REQUIRES: the state is whole.
uint64_t ValuesChecksum(const Shard::State& state);

// Of the windows of `workers` (ascending; null: of all). Thread-safe.
uint64_t WindowsChecksum(const Shard::State& state, const std::vector<Incarnation>* workers = nullptr);

// Of both: their sum.
inline uint64_t ContentChecksum(const Shard::State& state) { return ValuesChecksum(state) + WindowsChecksum(state); }

}  // namespace lodestone::server
