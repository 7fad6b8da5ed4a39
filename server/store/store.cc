#include "server/store/store.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "server/store/table_entry.h"

namespace lodestone::server {

Store::Store(const Options& options)
    : time_(options.time),
      shards_(options.shards, options.executors, &gate_),
      log_(&gate_, &shards_),
      tables_({options.seed, options.memory_max_bytes, options.time}, &gate_, &shards_, &log_),
      pushes_(options.time, &gate_, &shards_, &log_, &tables_, &sessions_),
      pulls_(options.time, &gate_, &shards_, &tables_, &sessions_),
      deltas_(&gate_, &shards_, &tables_),
      replayer_(options.time, &gate_, &shards_, &log_, &tables_, &sessions_),
      sweeper_(&gate_, &shards_, &log_, &tables_, &sessions_) {}

Store::~Store() {
  shards_.executors().Stop();  // Their last messages may still append to the logs.
  log_.Close();                // Runs what waited to be durable.
}

void Store::Serve(std::vector<std::unique_ptr<ShardLog>> logs) {
  log_.Open(std::move(logs));
  gate_.Open();
}

void Store::OwnShards(const std::vector<ShardId>& shards) {
  shards_.Adopt(shards);
  Serve({});
}

absl::StatusOr<v1::EnsureTablesResponse> Store::EnsureTables(const v1::EnsureTablesRequest& request) {
  LODESTONE_RETURN_IF_ERROR(gate_.CheckReady());
  if (request.worker_incarnation() != 0) {
    LODESTONE_RETURN_IF_ERROR(log_.health());
    LODESTONE_RETURN_IF_ERROR(sessions_.Open(request.worker_incarnation(), time_->NowMs()));
    v1::LogRecord record;
    record.set_session_opened(request.worker_incarnation());
    LODESTONE_RETURN_IF_ERROR(log_.AppendToOne(record));
  }
  v1::EnsureTablesResponse response;
  for (const v1::TableSpec& spec : request.tables()) {
    LODESTONE_ASSIGN_OR_RETURN(const std::shared_ptr<const TableEntry> entry, tables_.Ensure(spec));
    v1::EnsureTablesResponse::Table* out = response.add_tables();
    out->set_id(entry->table->id());
    if (entry->table->is_dense()) {
      out->set_block_elements(entry->table->layout().block_elements);
      out->set_block_count(entry->table->layout().block_count());
    }
  }
  return response;
}

void Store::Tick() {
  const int64_t now_ms = time_->NowMs();
  pushes_.SampleRate(now_ms);
  pulls_.SampleRate(now_ms);
  sweeper_.Tick(now_ms);
}

void Store::FillStatus(v1::StatusResponse* status) const {
  v1::ServerStatus* server = status->mutable_server();
  const std::vector<ShardId> owned = shards_.owned();
  server->set_shards_owned(static_cast<uint32_t>(owned.size()));
  server->set_shards_total(shards_.size());
  pushes_.FillStatus(server);
  pulls_.FillStatus(server);
  tables_.FillStatus(status);
  Version version_max = 0;
  for (const ShardId shard : owned) version_max = std::max(version_max, shards_.VersionOf(shard));
  for (v1::TableStatus& table : *status->mutable_tables()) table.set_version_max(version_max);
  shards_.executors().FillStatus(status);
  sessions_.FillStatus(time_->NowMs(), status);
}

}  // namespace lodestone::server
