// The lineages (LogRecord.lineage) of shards that go back to a checkpoint: what becomes of each from there on ranks
// above all that was written of it before, by any ps that writes into the same folder.
//
// The ps of a cluster go back one after the other. What the first ones have written since then counts as nothing to the
// next, so that the copies of a shard come to the same lineage.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/log.pb.h"

namespace lodestone::server {

// By shard. `ps`: what its files bear, the lineage that of its life before. `checkpoint_dir`: the folder of all
// checkpoints. `load`: the checkpoint. The errors of files; manifests that cannot be read count as nothing.
absl::StatusOr<std::vector<uint64_t>> LineagesGoneBack(const v1::SegmentHeader& ps, const std::string& checkpoint_dir,
                                                       const std::string& load);

}  // namespace lodestone::server
