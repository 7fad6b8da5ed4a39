// The choice of followers: of another zone than the other copies, the server that owns and follows the fewest shards.
//
// Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "server/coordinator/followers.h"
#include "server/coordinator/member_table.h"

namespace lodestone::server {

// Finds live followers for each shard that has fewer than are wanted, or dead ones; one that is dead and in sync has
// not been taken out yet, and stays. `draining`, by server or empty, are chosen only where there is no other; of the
// others, servers of a zone that has a copy already only where none is of another one. Returns whether one is new.
bool ChooseFollowers(const MemberTable& members, const std::vector<uint32_t>& owners, const std::vector<bool>& draining,
                     Followers* followers);

}  // namespace lodestone::server
