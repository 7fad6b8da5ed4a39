// The catching up of one follower by the log of its owner: of the shards whose copies there are known to be this ps's
// past, it is sent the updates that they lack, as they are in the log's segments on the disk, and then those that come.
//
// In rounds: each closes the segments that are being written, and reads what was appended since the one before; that
// costs no memory, however long the follower takes. When a round had little to send, updates are kept in memory from a
// moment on, the log is read up to that moment, and what was kept follows.
//
// Not thread-safe: belongs to a Bootstrap, and runs on its thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "proto/replication.pb.h"
#include "server/replication/bootstrap.h"
#include "server/replication/follow_stream.h"
#include "server/wal/update_log.h"

namespace lodestone::server {

class CatchUp {
 public:
  // `log`: null if this ps keeps none: then only what lacks nothing is brought up.
  CatchUp(const Bootstrap::Sources& sources, UpdateLog* log, std::shared_ptr<FollowStream> stream);

  // Brings the copies that are at `positions` up, and returns those that need the state instead. UNAVAILABLE if the
  // stream has ended.
  absl::StatusOr<std::vector<v1::ShardPosition>> Run(const std::vector<v1::ShardPosition>& positions);

 private:
  using Versions = std::map<ShardId, Version>;

  // Where the copy that was at `position` is now.
  Version VersionNow(const v1::ShardPosition& position) const;
  // Whether the copy is this ps's past as far as is known.
  bool IsPast(const v1::ShardPosition& position);
  // Sends what the copies lack that are behind, as long as that is much.
  absl::Status RunRounds(const std::vector<v1::ShardPosition>& positions);
  // Sends what the copies lack up to `upto`. What goes wrong with the log is logged, and leaves them where they are.
  absl::Status Send(const std::vector<v1::ShardPosition>& positions, const Versions& upto);
  absl::Status SendRecord(const v1::LogRecord& record, const ByteView& payload);

  const Bootstrap::Sources& sources_;
  UpdateLog* const log_;
  const std::shared_ptr<FollowStream> stream_;
  const uint64_t sent_bytes_max_;  // Of the log; what is held is no more to send.
  std::optional<UpdateLog::Hold> hold_;
  std::optional<MissedUpdates> missed_;
  std::set<ShardId> past_;  // Whose copies were at the newest update when they were looked at.
  uint64_t sent_bytes_ = 0;
  uint64_t hurry_ = 1;  // Of the usual pace.
};

}  // namespace lodestone::server
