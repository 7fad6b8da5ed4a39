// A table with its parts on this ps.
//
// Thread safety: constant once it is in a TableMap, but for the parts of a shard that is made later, which are set
// before the shard gets a role. The table, its parts and its guard say themselves what may be used by whom.
// Ownership: owns the table and its guard; the parts are the shards'.
#pragma once

#include <memory>
#include <vector>

#include "server/table/dense_table.h"
#include "server/table/norm_guard.h"
#include "server/table/table.h"

namespace lodestone::server {

struct TableEntry {
  std::unique_ptr<Table> table;
  std::vector<const DenseTable*> dense;  // By shard; null where the shard is not here. Empty for embedding tables.
  std::unique_ptr<NormGuard> guard;      // Null or off: the table has none.
};

}  // namespace lodestone::server
