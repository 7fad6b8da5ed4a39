// The newest state of each shard in checkpoints. With another number of servers than before, a shard may be another
// server's now, which starts from there: what the logs of its former server hold beyond it would be lost.
//
// Not thread-safe while states are noted; then it is.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "proto/log.pb.h"
#include "server/wal/log_reader.h"

namespace lodestone::server {

class SavedStates {
 public:
  using Rank = std::tuple<uint64_t, uint64_t, Version>;  // Lineage, term and version.

  // Of no checkpoint.
  explicit SavedStates(uint32_t shards) : newest_(shards) {}

  void Note(ShardId shard, const Rank& newest) { newest_[shard] = newest; }

  // FAILED_PRECONDITION if no checkpoint has this update, of a log of that lineage. REQUIRES: there is such a shard.
  absl::Status Check(const v1::LogRecord& record, uint64_t lineage) const;
  // The same of all updates in the logs of a server that the cluster has no more; they are only looked at.
  absl::Status CheckLogs(const LogReader::Options& options) const;

 private:
  std::vector<Rank> newest_;  // By shard.
};

}  // namespace lodestone::server
