#include "server/durability/lineage.h"

#include <algorithm>

#include "common/base/status.h"
#include "server/checkpoint/manifest.h"

namespace lodestone::server {

absl::StatusOr<std::vector<uint64_t>> LineagesGoneBack(const v1::SegmentHeader& ps, const std::string& checkpoint_dir,
                                                       const std::string& load) {
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<FoundManifest> found, FindManifests(checkpoint_dir));
  std::vector<uint64_t> before(ps.shards(), ps.lineage());
  uint64_t before_all = 0;
  for (const FoundManifest& each : found) {
    if (!each.manifest.ok()) continue;
    if (each.manifest->cluster() != ps.cluster() || each.manifest->shards() != ps.shards()) continue;
    if (each.manifest->loaded() == load) {
      // If this ps wrote it, it goes there once more: its folder is another one, or does not know of it yet.
      if (each.server == ps.server()) before_all = std::max(before_all, each.manifest->lineage());
      continue;
    }
    for (const auto& entry : each.manifest->contents()) {
      uint64_t& newest = before.at(entry.shard());
      newest = std::max(newest, LineageOf(*each.manifest, entry));
    }
  }
  for (uint64_t& lineage : before) lineage = std::max(lineage, before_all) + 1;
  return before;
}

}  // namespace lodestone::server
