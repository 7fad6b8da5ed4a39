// The tables of a ps: which there are, and what memory they may take.
//
// Thread-safe. A TableMap that was handed out never changes; new tables appear in the next one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "proto/table.pb.h"
#include "server/store/request_view.h"

namespace lodestone::server {

class Catalog {
 public:
  Catalog(uint64_t cluster_seed, uint32_t shards, uint64_t memory_max_bytes)
      : cluster_seed_(cluster_seed), shards_(shards), memory_max_bytes_(memory_max_bytes) {}

  std::shared_ptr<const TableMap> tables() const;

  // Finds the table of `spec`, or makes it: `add_to_shards` makes its parts on the `owned` shards; the table comes to
  // be only if that succeeds. One table is made at a time. ALREADY_EXISTS, naming the difference, if a table of that
  // name has another specification; INVALID_ARGUMENT; RESOURCE_EXHAUSTED if it does not fit.
  absl::StatusOr<std::shared_ptr<const TableEntry>> Ensure(
      const v1::TableSpec& spec, std::span<const ShardId> owned,
      const std::function<absl::Status(TableEntry*)>& add_to_shards);

  // Makes the parts of all tables on one more shard: `add_to_shard` for each. Nothing is made, and RESOURCE_EXHAUSTED,
  // if that does not fit.
  absl::Status Extend(ShardId shard, const std::function<void(TableEntry*)>& add_to_shard);

  // RESOURCE_EXHAUSTED if `table` may not take `more_bytes` more.
  absl::Status CheckMemory(const Table& table, uint64_t more_bytes) const;

  // Fills tables (but for their versions) and the server's table_bytes.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  absl::StatusOr<std::shared_ptr<TableEntry>> Create(
      const v1::TableSpec& spec, std::span<const ShardId> owned,
      const std::function<absl::Status(TableEntry*)>& add_to_shards) const;
  uint64_t TableBytes() const;

  const uint64_t cluster_seed_;
  const uint32_t shards_;
  const uint64_t memory_max_bytes_;  // Of all tables; 0: no limit.

  Mutex create_mu_;  // Held while a table is made; taken before mu_.
  mutable Mutex mu_;
  std::shared_ptr<const TableMap> tables_ ABSL_GUARDED_BY(mu_) = std::make_shared<TableMap>();
};

}  // namespace lodestone::server
