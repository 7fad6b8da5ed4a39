// The wait of a ps that has joined without what some of its shards held (another data folder, another copy of it, or
// none): until the shard map says that it has lost none, because an operator has decided, or because it does not own
// them any more.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/wire/shard_map.h"
#include "proto/admin.pb.h"
#include "server/store/serving_gate.h"

namespace lodestone::server {

class LostShardsWait {
 public:
  // Of the ps with that index. While it waits, `gate` says why. Both must outlive this.
  LostShardsWait(uint32_t index, const TimeSource* time, ServingGate* gate);

  // There is a newer map.
  void SetMap(const ShardMap& map);
  // The newest map from `map` on that says of no shard that this ps has lost it. `cut_short`: the ps has its folder,
  // but may lack the end of what was in it. CANCELLED if Stop comes first.
  absl::StatusOr<ShardMap> Await(ShardMap map, bool cut_short);
  void Stop();

  // Adds what it waits for.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  void NoteLost(const ShardMap& map, size_t lost, bool cut_short);

  // Constant after construction.
  const uint32_t index_;
  const std::string name_;  // "ps 1".
  const TimeSource* const time_;
  ServingGate* const gate_;

  mutable Mutex mu_;
  CondVar changed_;
  std::optional<ShardMap> newest_ ABSL_GUARDED_BY(mu_);
  std::string waits_for_ ABSL_GUARDED_BY(mu_);  // Empty: nothing.
  int64_t since_ms_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lodestone::server
