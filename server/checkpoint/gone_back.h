// Which shards have gone back to a named checkpoint (checkpoint.load): a note of each ps beside its part of the
// checkpoint, of the shards that it owned, so that they go back once, whichever ps has them later. A ps with an empty
// folder of its own does not know that otherwise: one that is added, say, while checkpoint.load is still in the
// configuration.
//
// Thread safety: pure functions; a note is written by one process.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "common/config/checkpoint_to_load.h"

namespace lodestone::server {

// By shard, the lineage that it had when it had gone back.
using GoneBack = std::map<ShardId, uint64_t>;

// Notes that `shards`, which ps `server` owns, have gone back to the checkpoint `load` in `dir`, beside those that it
// noted before. OK: the disk has it. DATA_LOSS as FindGoneBack; the errors of files. REQUIRES: the checkpoint is there,
// and so are states of these lineages.
absl::Status NoteGoneBack(const std::string& dir, const CheckpointToLoad& load, uint32_t server,
                          const GoneBack& shards);

// The shards that have, that time or a later one, as all ps noted. None if there is no such checkpoint. DATA_LOSS,
// naming the file, if a note is damaged.
absl::StatusOr<GoneBack> FindGoneBack(const std::string& dir, const CheckpointToLoad& load);

}  // namespace lodestone::server
