#include "server/durability/past_parts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/wire/shard_map.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/shard_file.h"
#include "server/shard/shard.h"
#include "server/store/store.h"
#include "server/table/table.h"

namespace lodestone::server {
namespace {

// What must be the same for the values and state of one table to be those of another.
struct Layout {
  std::string shape;
  uint32_t block_elements = 0;
  v1::Optimizer::KindCase optimizer = v1::Optimizer::KIND_NOT_SET;
  uint32_t state_vectors = 0;
  uint32_t state_scalars = 0;
  bool evicts = false;

  bool operator==(const Layout&) const = default;
};

absl::StatusOr<Layout> LayoutOf(const v1::TableSpec& spec, const v1::SegmentHeader& cluster) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<Table> table, Table::Create(spec, cluster.seed(), cluster.shards()));
  const v1::Eviction& eviction = spec.embedding().eviction();
  const v1::Optimizer::KindCase kind = spec.optimizer().kind_case();
  return Layout{table->ShapeText(),
                table->is_dense() ? table->layout().block_elements : 0,
                kind == v1::Optimizer::KIND_NOT_SET ? v1::Optimizer::kSgd : kind,
                table->state_layout().vectors,
                table->state_layout().scalars,
                eviction.ttl_ms() > 0 || eviction.rows_max() > 0};
}

std::string TextOf(const v1::TableSpec& spec, const Layout& layout) {
  return absl::StrCat(layout.shape,
                      layout.block_elements > 0 ? absl::StrCat(" in blocks of ", layout.block_elements) : "",
                      layout.evicts ? " with eviction" : "", ", optimizer {", spec.optimizer().ShortDebugString(), "}");
}

// NOT_FOUND if `table` is not in `past`, which is of `where`; FAILED_PRECONDITION if it is of another layout there.
template <typename Specs>
absl::Status CheckTable(const v1::TableSpec& table, const v1::SegmentHeader& cluster, const Specs& past,
                        const std::string& where) {
  const auto found =
      std::find_if(past.begin(), past.end(), [&](const v1::TableSpec& spec) { return spec.name() == table.name(); });
  if (found == past.end()) {
    return absl::NotFoundError(absl::StrCat(where, " has no table `", table.name(), "`"));
  }
  LODESTONE_ASSIGN_OR_RETURN(const Layout now, LayoutOf(table, cluster));
  LODESTONE_ASSIGN_OR_RETURN(const Layout then, LayoutOf(*found, cluster));
  if (now == then) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("table `", table.name(), "` is another one in ", where, ": ",
                                                    TextOf(*found, then), ", and here ", TextOf(table, now)));
}

TableId TableOf(const v1::CheckpointRecord& record) {
  if (record.has_block()) return record.block().table();
  if (record.has_rows()) return record.rows().table();
  return record.page().table();
}

absl::StatusOr<std::shared_ptr<const TablePart>> PartIn(const ShardFiles& files, TableId table) {
  auto part = std::make_shared<TablePart>();
  part->table = table;
  part->version = files.version;
  LODESTONE_RETURN_IF_ERROR(ReadShardFiles(files, [&](const ShardRecord& record) {
    const v1::CheckpointRecord& message = record.message;
    const bool of_table = message.has_block() || message.has_rows() || message.has_page();  // And not of its steps.
    if (!of_table || TableOf(message) != table) return absl::OkStatus();
    part->records.push_back({record.message, std::string(record.payload.begin(), record.payload.end())});
    return absl::OkStatus();
  }));
  return part;
}

std::shared_ptr<const TablePart> PartOf(const Shard::State& state, TableId table) {
  auto part = std::make_shared<TablePart>();
  part->table = table;
  part->version = state.version;
  const RecordVisitor add = [&](const v1::CheckpointRecord& message, std::span<const ByteView> payload) {
    TablePart::Record& record = part->records.emplace_back();
    record.message = message;
    for (const ByteView& piece : payload) {
      const size_t at = record.payload.size();
      record.payload.resize(at + piece.size());
      piece.CopyTo(reinterpret_cast<uint8_t*>(record.payload.data() + at));
    }
    return absl::OkStatus();
  };
  for (const auto& dense : state.dense) {
    if (dense.table->id() == table) VisitRecords(dense, add).IgnoreError();  // Is OK.
  }
  for (const auto& rows : state.rows) {
    if (rows.table->id() == table) VisitRecords(rows, add).IgnoreError();
  }
  return part;
}

}  // namespace

absl::StatusOr<PastParts> PartsInCheckpoint(const std::string& dir, const std::string& name,
                                            const v1::SegmentHeader& cluster, const v1::TableSpec& table,
                                            const std::vector<ShardId>& shards) {
  if (!IsPeriodic(name)) LODESTONE_RETURN_IF_ERROR(CheckCheckpointName(name));
  LODESTONE_ASSIGN_OR_RETURN(CheckpointReader opened, CheckpointReader::Open(dir, name));
  const auto reader = std::make_shared<const CheckpointReader>(std::move(opened));
  LODESTONE_RETURN_IF_ERROR(reader->CheckCluster(cluster.cluster(), cluster.shards(), cluster.seed()));
  for (const ShardId shard : shards) {
    const std::vector<CheckpointReader::State> states = reader->StatesOf(shard);
    if (states.empty()) {
      return absl::NotFoundError(absl::StrCat("checkpoint `", name, "` in ", dir, " does not hold shard ", shard));
    }
    LODESTONE_RETURN_IF_ERROR(
        CheckTable(table, cluster, states.front().manifest().tables(), absl::StrCat("checkpoint `", name, "`")));
  }
  return PastParts([reader, id = TableIdOf(table.name())](ShardId shard) {
    return PartIn(reader->StatesOf(shard).front().files, id);
  });
}

absl::StatusOr<PastParts> PartsAtVersion(const RecoveryOptions& recovery, size_t executors, const TimeSource* time,
                                         const v1::TableSpec& table, const std::vector<ShardId>& shards) {
  Store::Options options;
  options.seed = recovery.cluster.seed();
  options.shards = recovery.cluster.shards();
  options.executors = static_cast<uint32_t>(executors);
  options.time = time;
  const auto store = std::make_shared<Store>(options);
  store->shards().Adopt(shards);
  LODESTONE_RETURN_IF_ERROR(Recover(recovery, store.get()).status());
  LODESTONE_RETURN_IF_ERROR(CheckTable(table, recovery.cluster, store->tables().specs(),
                                       absl::StrCat("what led to version ", recovery.until)));
  return PastParts([store, id = TableIdOf(table.name()),
                    version = recovery.until](ShardId shard) -> absl::StatusOr<std::shared_ptr<const TablePart>> {
    std::shared_ptr<const TablePart> part;
    store->shards().Run(shard, [&](Shard* past) {
      if (past->version() == version) part = PartOf(past->CollectState(nullptr), id);
    });
    return part;
  });
}

}  // namespace lodestone::server
