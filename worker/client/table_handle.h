// A worker's handle of a table: its id and shape.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/types.h"
#include "common/wire/shard_map.h"
#include "proto/table.pb.h"

namespace lodestone::worker {

// A table that exists on all servers.
struct TableHandle {
  TableId id = 0;
  v1::TableSpec spec;  // As the servers had it when the handle was made.
  BlockLayout layout;  // Dense tables.
  uint32_t dim = 0;    // Embedding tables.
};

// Whether the table has steps: its consistency is sync or tokens.
inline bool HasSteps(const v1::TableSpec& table) {
  return table.consistency().has_sync() || table.consistency().has_tokens();
}
inline bool HasSteps(const TableHandle& table) { return HasSteps(table.spec); }

inline std::vector<v1::TableSpec> SpecsOf(const std::vector<TableHandle>& tables) {
  std::vector<v1::TableSpec> specs;
  for (const TableHandle& table : tables) specs.push_back(table.spec);
  return specs;
}

// Whether the table's learning rate is divided by the delay of gradients.
inline bool DividesRateByDelay(const TableHandle& table) {
  return table.spec.consistency().async().rate() == v1::Consistency::Async::BY_DELAY;
}

}  // namespace lodestone::worker
