// A shard's file of a checkpoint: records as proto/checkpoint.proto says, a header first and an end last.
//
// A file may hold only what has changed since an older one; a shard's state is then in several files, the newest first.
//
// Thread safety: functions; a file is written by one thread and never changed afterwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/byte_view.h"
#include "common/base/types.h"
#include "common/io/file.h"
#include "proto/checkpoint.pb.h"
#include "server/shard/shard.h"

namespace lodestone::server {

// How long a shard's file is, and its checksum.
struct ShardFileSize {
  uint64_t bytes = 0;
  uint32_t crc32c = 0;
};
// Writes `state` to an empty file, from the blocks and pages where they lie. The disk need not have it afterwards.
// CANCELLED once `stop`.
absl::StatusOr<ShardFileSize> WriteShardFile(const Shard::State& state, const std::atomic<bool>& stop, File* file);

// Visits the records that keep one table's part of a state, until a visit is not OK. What it is given is valid within
// the visit.
using RecordVisitor = std::function<absl::Status(const v1::CheckpointRecord&, std::span<const ByteView> payload)>;
absl::Status VisitRecords(const Shard::Snapshot::DensePart& part, const RecordVisitor& visit);
absl::Status VisitRecords(const Shard::State::RowsPart& part, const RecordVisitor& visit);
absl::Status VisitRecords(const Shard::State::Steps& steps, const RecordVisitor& visit);
// The records that keep all of a state, windows as well.
absl::Status VisitState(const Shard::State& state, const RecordVisitor& visit);

// Where a shard's state is.
struct ShardFiles {
  struct Piece {
    std::string path;
    ShardFileSize size;
  };
  ShardId shard = 0;
  Version version = 0;
  std::vector<Piece> pieces;  // The newest first; the last one holds everything.
  uint64_t term = 0;
  uint64_t lineage = 0;
};

// A record of a shard's files that counts.
struct ShardRecord {
  const v1::CheckpointRecord& message;  // Any but a header or an end.
  std::span<const uint8_t> payload;
  // Where the payload lies.
  size_t piece = 0;
  uint64_t offset = 0;
};
// Reads all of a shard's files and visits the records that make up its state: each block, page, table and worker once,
// a table before its pages.
// DATA_LOSS, naming file and offset, if anything is not as it was written, or if `visit` says no; the state is then
// none. Payloads are gone after the visit.
absl::Status ReadShardFiles(const ShardFiles& files, const std::function<absl::Status(const ShardRecord&)>& visit);

// Brings a shard to the state in its files, or leaves it as it is. REQUIRES: it has its tables and has applied nothing.
absl::Status RestoreShard(const ShardFiles& files, Shard* shard);

}  // namespace lodestone::server
