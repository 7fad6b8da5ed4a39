// The distinct keys of a list, and where each stands in it.
//
// Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/types.h"

namespace lodestone::worker {

// Fills `distinct` with each key of `keys` once, in the order of their first appearance, and row[i] with the place of
// keys[i] in it. REQUIRES: fewer than 2^32 keys.
void FindDistinct(std::span<const Key> keys, std::vector<Key>* distinct, std::vector<uint32_t>* row);

}  // namespace lodestone::worker
