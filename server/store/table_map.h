// The tables of a ps at one time. A map that was handed out never changes.
#pragma once

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "common/base/types.h"

namespace lodestone::server {

struct TableEntry;  // table_entry.h

using TableMap = absl::flat_hash_map<TableId, std::shared_ptr<TableEntry>>;

}  // namespace lodestone::server
