// The dense tables of a running cluster, as a pull has read them first and broadcasts have changed them since.
//
// Thread-safe.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/types.h"
#include "tools/psctl/model/parameter_source.h"
#include "worker/client/types.h"

namespace lodestone::psctl {

class DenseFollower {
 public:
  // `values`: of `tables`, as they were pulled.
  DenseFollower(const std::vector<const worker::TableHandle*>& tables, DenseTables values);

  // A block that a broadcast brought. One that is older than what is held, but for blocks of an anchor, or of a wrong
  // size, changes nothing.
  void OnBlock(const worker::BlockUpdate& update);
  // The blocks that come replace all of the shard, until OnShard, which returns whether they did.
  void OnAnchor(ShardId shard);
  bool OnShard(ShardId shard);

  // The newest values. Copies them if broadcasts have brought anything since the last call.
  std::shared_ptr<const DenseTables> Newest();

 private:
  struct Table {
    TableId id = 0;
    BlockLayout layout;
    std::vector<Version> versions;  // By block; 0: as pulled.
  };

  Mutex mu_;
  std::vector<Table> tables_ ABSL_GUARDED_BY(mu_);
  DenseTables values_ ABSL_GUARDED_BY(mu_);
  std::set<ShardId> anchoring_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const DenseTables> newest_ ABSL_GUARDED_BY(mu_);  // Null: values_ have changed.
};

}  // namespace lodestone::psctl
