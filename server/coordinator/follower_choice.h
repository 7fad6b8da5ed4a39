// The choice of followers: of another zone than the owner, the server that owns and follows the fewest shards.
//
// Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "server/coordinator/member_table.h"

namespace lodestone::server {

// Finds a live follower for each shard that has none, or one that is dead; one that is dead and in sync has not been
// taken out yet, and stays. `draining`, by server or empty, are chosen only where there is no other; of the others,
// servers of the owner's zone only where none is of another one. `followers` has indices plus one, 0 for none. Returns
// whether one is new.
bool ChooseFollowers(const MemberTable& members, const std::vector<uint32_t>& owners, const std::vector<bool>& draining,
                     const std::vector<bool>& in_sync, std::vector<uint32_t>* followers);

}  // namespace lodestone::server
