#include "tools/psctl/files/checkpoint_content.h"

#include <fcntl.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/numbers_text.h"
#include "common/base/status.h"
#include "common/wire/message.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/manifest.h"
#include "server/table/embedding_table.h"
#include "tools/psctl/files/checkpoint_folder.h"

namespace lodestone::psctl {

absl::StatusOr<std::unique_ptr<CheckpointContent>> CheckpointContent::Open(const std::string& path) {
  LODESTONE_ASSIGN_OR_RETURN(const CheckpointFolder folder, FindCheckpointFolder(path));
  LODESTONE_ASSIGN_OR_RETURN(const server::CheckpointReader reader,
                             server::CheckpointReader::Open(folder.dir, folder.name));
  if (!reader.problems().empty()) return absl::DataLossError(reader.problems().front());
  if (reader.manifests().empty()) return absl::NotFoundError(absl::StrCat(path, " holds no checkpoint"));
  auto content = std::unique_ptr<CheckpointContent>(new CheckpointContent);
  const v1::ServerManifest& first = *reader.manifests().front().manifest;
  LODESTONE_RETURN_IF_ERROR(reader.CheckCluster(first.cluster(), first.shards(), first.seed()));
  content->cluster_.set_cluster(first.cluster());
  content->cluster_.set_shards(first.shards());
  content->cluster_.set_seed(first.seed());
  std::vector<ShardId> shards(first.shards());
  std::iota(shards.begin(), shards.end(), 0u);
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<v1::TableSpec> specs, reader.Tables(shards));
  for (const v1::TableSpec& spec : specs) {
    if (spec.revision() > 0 && !content->tables_.empty() && content->tables_.back().table->name() == spec.name()) {
      // The settings that the table came to.
      v1::TableSpec& noted = *content->cluster_.mutable_tables(content->cluster_.tables_size() - 1);
      noted = spec;
      noted.clear_revision();
      LODESTONE_ASSIGN_OR_RETURN(const server::TableSettings* const settings,
                                 content->tables_.back().table->Keep(spec));
      content->tables_.back().table->Use(settings);
      continue;
    }
    *content->cluster_.add_tables() = spec;
    TableContent& table = content->tables_.emplace_back();
    LODESTONE_ASSIGN_OR_RETURN(table.table, server::Table::Create(spec, first.seed(), first.shards()));
    if (table.table->is_dense()) table.blocks.resize(table.table->layout().block_count());
  }
  std::vector<uint32_t> missing;
  for (const ShardId shard : shards) {
    const std::vector<server::CheckpointReader::State> states = reader.StatesOf(shard);
    if (states.empty()) {
      missing.push_back(shard);
    } else if (missing.empty()) {
      LODESTONE_RETURN_IF_ERROR(content->Index(states.front().files));
    }
  }
  if (missing.empty()) return content;
  return absl::FailedPreconditionError(absl::StrCat(
      path, " lacks shards ", NumbersText(missing), " of ", first.shards(),
      server::IsPeriodic(folder.name)
          ? "; all periodic ones together are the folder above"
          : "; each ps writes its own shards: copy what the others have, on their machines, into this folder"));
}

absl::Status CheckpointContent::Index(const server::ShardFiles& files) {
  const size_t first = files_.size();
  for (const server::ShardFiles::Piece& piece : files.pieces) files_.push_back(piece.path);
  return server::ReadShardFiles(files, [&](const server::ShardRecord& record) -> absl::Status {
    const v1::CheckpointRecord& message = record.message;
    if (!message.has_block() && !message.has_page()) return absl::OkStatus();
    const TableId id = message.has_block() ? message.block().table() : message.page().table();
    const auto content = std::find_if(tables_.begin(), tables_.end(),
                                      [&](const TableContent& table) { return table.table->id() == id; });
    if (content == tables_.end() || content->table->is_dense() != message.has_block()) {
      return absl::DataLossError(absl::StrCat("there is no such table with id ", id));
    }
    return IndexRecord({static_cast<uint32_t>(first + record.piece), record.offset}, record, &*content);
  });
}

absl::Status CheckpointContent::IndexRecord(TableContent::Place place, const server::ShardRecord& record,
                                            TableContent* content) {
  const server::Table& table = *content->table;
  if (table.is_dense()) {
    const BlockIndex block = record.message.block().block();
    if (block >= content->blocks.size()) return absl::DataLossError(absl::StrCat("there is no block ", block));
    const size_t n = table.layout().ElementsOf(block);
    if (record.payload.size() != (n + table.state_layout().FloatsFor(n)) * sizeof(float)) {
      return absl::DataLossError(absl::StrCat("block ", block, " has ", record.payload.size(), " bytes"));
    }
    content->blocks[block] = place;
    return absl::OkStatus();
  }
  const server::PageLayout layout(table);
  if (record.payload.size() < layout.bytes()) {
    return absl::DataLossError(
        absl::StrCat("page ", record.message.page().page(), " has ", record.payload.size(), " bytes"));
  }
  const auto* const changed = record.payload.data() + layout.rows() * sizeof(Key);
  for (uint32_t i = 0; i < layout.rows(); ++i) content->rows += LoadAt<uint32_t>(changed, i) != 0;
  content->pages.push_back(place);
  return absl::OkStatus();
}

absl::Status CheckpointContent::ReadAt(const TableContent::Place& place, size_t bytes, void* to) const {
  if (open_ == nullptr || open_->path() != files_[place.file]) {
    LODESTONE_ASSIGN_OR_RETURN(File file, File::Open(files_[place.file], O_RDONLY));
    open_ = std::make_unique<File>(std::move(file));
  }
  LODESTONE_ASSIGN_OR_RETURN(const size_t read, open_->ReadAt(place.offset, to, bytes));
  if (read == bytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(files_[place.file], ": ends inside of what was there before"));
}

absl::StatusOr<std::vector<float>> CheckpointContent::ReadBlock(const TableContent& content, BlockIndex block) const {
  const server::Table& table = *content.table;
  const size_t n = table.layout().ElementsOf(block);
  std::vector<float> floats(n + table.state_layout().FloatsFor(n));
  const TableContent::Place& place = content.blocks[block];
  if (place.file != UINT32_MAX) {
    LODESTONE_RETURN_IF_ERROR(ReadAt(place, floats.size() * sizeof(float), floats.data()));
    return floats;
  }
  table.InitializeDense(uint64_t{block} * table.layout().block_elements, n, floats.data());
  if (floats.size() > n) table.optimizer().InitializeState(floats.data() + n, n);
  return floats;
}

absl::StatusOr<CheckpointContent::Rows> CheckpointContent::ReadRows(const TableContent& content,
                                                                    bool with_state) const {
  const server::PageLayout layout(*content.table);
  Rows rows;
  rows.row_floats = with_state ? layout.row_floats : content.table->dim();
  rows.keys.reserve(content.rows);
  rows.floats.reserve(content.rows * rows.row_floats);
  server::BufferRef page = server::BufferRef::New(layout.bytes());
  for (const TableContent::Place& place : content.pages) {
    LODESTONE_RETURN_IF_ERROR(ReadAt(place, layout.bytes(), page->bytes()));
    for (uint32_t i = 0; i < layout.rows(); ++i) {
      if (layout.Changed(page)[i] == 0) continue;
      rows.keys.push_back(layout.Keys(page)[i]);
      rows.floats.insert(rows.floats.end(), layout.Row(page, i), layout.Row(page, i) + rows.row_floats);
    }
  }
  return rows;
}

}  // namespace lodestone::psctl
