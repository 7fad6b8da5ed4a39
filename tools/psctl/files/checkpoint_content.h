// Contents of the tables of a checkpoint, collected from the files of all servers and shards.
//
// Not thread-safe. The files must stay while it lives. Memory: a table's places, and of one table at a time its rows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "common/io/file.h"
#include "proto/checkpoint.pb.h"
#include "server/checkpoint/shard_file.h"
#include "server/table/table.h"

namespace lodestone::psctl {

class CheckpointContent {
 public:
  // Reads all of a checkpoint, or of the newest states in a folder of them, and checks it. DATA_LOSS, naming file and
  // offset, for damage; FAILED_PRECONDITION if shards are missing.
  static absl::StatusOr<std::unique_ptr<CheckpointContent>> Open(const std::string& path);

  // A table with where its blocks or pages lie.
  struct TableContent {
    std::unique_ptr<server::Table> table;
    uint64_t rows = 0;  // Of an embedding table.

   private:
    friend class CheckpointContent;
    struct Place {
      uint32_t file = UINT32_MAX;  // UINT32_MAX: nowhere, the block is as it was made.
      uint64_t offset = 0;
    };
    std::vector<Place> blocks;
    std::vector<Place> pages;
  };
  // By name.
  const std::vector<TableContent>& tables() const { return tables_; }

  // Of the cluster that wrote it: name, shards, seed, tables.
  const v1::ServerManifest& cluster() const { return cluster_; }

  // A dense table's block: its values, then its state.
  absl::StatusOr<std::vector<float>> ReadBlock(const TableContent& content, BlockIndex block) const;

  // All rows of an embedding table.
  struct Rows {
    std::vector<Key> keys;      // In no order.
    size_t row_floats = 0;      // Of a row in `floats`.
    std::vector<float> floats;  // Values, and the state behind each row's values if it was asked for.
  };
  absl::StatusOr<Rows> ReadRows(const TableContent& content, bool with_state) const;

 private:
  absl::Status Index(const server::ShardFiles& files);
  absl::Status IndexRecord(TableContent::Place place, const server::ShardRecord& record, TableContent* content);
  absl::Status ReadAt(const TableContent::Place& place, size_t bytes, void* to) const;

  v1::ServerManifest cluster_;
  std::vector<TableContent> tables_;
  std::vector<std::string> files_;
  mutable std::unique_ptr<File> open_;  // The one that was read last.
};

}  // namespace lodestone::psctl
