#include "server/replication/newest_updates.h"

#include "server/wal/update_log.h"

namespace lodestone::server {

uint64_t NewestUpdates::MarkAt(ShardId shard, Version version) const {
  {
    MutexLock lock(&mu_);
    if (of_[shard].version > 0) return of_[shard].version == version ? of_[shard].mark : 0;
  }
  const UpdateLog* const log = updates_ ? updates_() : nullptr;
  if (log == nullptr || version == 0) return 0;
  return log->newest()[shard].version == version ? log->newest()[shard].mark : 0;
}

}  // namespace lodestone::server
