#include "server/durability/table_rollback.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/wire/shard_map.h"
#include "server/durability/recovery.h"
#include "server/shard/shard.h"
#include "server/store/store.h"

namespace lodestone::server {

absl::StatusOr<PastParts> TableRollback::OpenPast(const v1::RollbackRequest& request, const v1::TableSpec& table,
                                                  const Store& store, const std::vector<ShardId>& shards) const {
  if (!request.has_version()) {
    return PartsInCheckpoint(dir_->checkpoint_dir(), request.checkpoint(), dir_->Header(), table, shards);
  }
  if (!dir_->has_log()) {
    return absl::FailedPreconditionError(
        "this ps keeps no log to find a version in: name a checkpoint, or set server.data_dir and start it again");
  }
  RecoveryOptions options;
  options.cluster = dir_->Header();
  options.log_dir = dir_->log_dir();
  options.checkpoint_dir = dir_->checkpoint_dir();
  options.sealed_generation = dir_->sealed_generation();
  options.until = request.version();
  options.has_followers = config_.cluster().replicas() > 1 || dir_->has_followed();
  options.stop = &stop_;
  return PartsAtVersion(options, store.shards().executors().size(), time_, table, shards);
}

absl::StatusOr<v1::RollbackResponse> TableRollback::Run(const v1::RollbackRequest& request, Store* store) {
  const int64_t start_ms = time_->NowMs();
  const std::vector<v1::TableSpec> specs = store->tables().specs();
  const auto spec =
      std::find_if(specs.begin(), specs.end(), [&](const v1::TableSpec& one) { return one.name() == request.table(); });
  if (spec == specs.end()) return absl::NotFoundError(absl::StrCat("there is no table `", request.table(), "`"));
  std::vector<ShardId> shards;  // One that is given up from here on ends the rollback.
  for (const ShardId shard : store->shards().held()) {
    const ShardRole role = store->shards().RoleOf(shard);
    if (role == ShardRole::kGivesUp) {
      return absl::UnavailableError(absl::StrCat("shard ", shard, " goes to another ps just now: try again"));
    }
    if (role == ShardRole::kOwns) shards.push_back(shard);
  }
  on_wait_(absl::StrCat("what table `", request.table(), "` held, to go back to it"));
  LODESTONE_ASSIGN_OR_RETURN(const PastParts past, OpenPast(request, *spec, *store, shards));
  v1::RollbackResponse response;
  const auto failed = [&](const absl::Status& status) {
    return Annotate(status, absl::StrCat(response.shards_size(), " shards of this ps have gone back"));
  };
  for (const ShardId shard : shards) {
    if (stop_.load()) return failed(absl::CancelledError("the ps shuts down"));
    bool holds = false;
    store->shards().Run(shard, [&](Shard* owned) { holds = owned->Holds(TableIdOf(request.table())); });
    if (!holds) continue;
    on_wait_(absl::StrCat("shard ", shard, " of table `", request.table(), "` to go back"));
    const absl::StatusOr<std::shared_ptr<const TablePart>> part = past(shard);
    if (!part.ok()) return failed(part.status());
    if (*part == nullptr) continue;
    const absl::StatusOr<Version> version = store->replayer().RollBack(shard, *part);
    if (!version.ok()) return failed(version.status());
    v1::RollbackResponse::ShardRollback* const out = response.add_shards();
    out->set_shard(shard);
    out->set_version_before(*version - 1);
    out->set_version_after(*version);
    out->set_version_restored((*part)->version);
  }
  response.set_seconds(static_cast<double>(time_->NowMs() - start_ms) / 1000);
  return response;
}

}  // namespace lodestone::server
