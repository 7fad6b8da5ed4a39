#include "server/checkpoint/shard_file.h"

#include <fcntl.h>

#include <deque>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_view.h"
#include "common/base/status.h"
#include "common/io/crc32c.h"
#include "common/io/record_file.h"
#include "server/checkpoint/manifest.h"

namespace lodestone::server {
namespace {

constexpr uint64_t kWriteBytes = 4 << 20;  // Written by one call, or a record that is larger.

ByteView ViewOf(const BufferRef& buffer) { return ByteView(buffer->bytes(), buffer->size_bytes()); }

// Gathers records and writes them in large pieces.
class RecordWriter {
 public:
  RecordWriter(const std::atomic<bool>& stop, File* file) : stop_(stop), file_(file) {}

  absl::Status Add(const v1::CheckpointRecord& message, std::span<const ByteView> payload) {
    const RecordBuilder& record = waiting_.emplace_back(message, payload);
    const size_t first = pieces_.size();
    record.AppendPieces(&pieces_);
    // Now, while the checksum of the record has it all in the cache.
    for (size_t i = first; i < pieces_.size(); ++i) {
      size_.crc32c = Crc32c(pieces_[i].iov_base, pieces_[i].iov_len, size_.crc32c);
    }
    size_.bytes += record.bytes();
    ++records_;
    return size_.bytes - written_ < kWriteBytes ? absl::OkStatus() : Flush();
  }

  absl::Status Flush() {
    if (stop_.load(std::memory_order_relaxed)) return absl::CancelledError("the ps shuts down");
    LODESTONE_RETURN_IF_ERROR(file_->Write(pieces_));
    // The disk begins with it now; what it cannot do is for Sync to tell.
    sync_file_range(file_->fd(), static_cast<off64_t>(written_), static_cast<off64_t>(size_.bytes - written_),
                    SYNC_FILE_RANGE_WRITE);
    written_ = size_.bytes;
    pieces_.clear();
    waiting_.clear();
    return absl::OkStatus();
  }

  uint64_t records() const { return records_; }
  const ShardFileSize& size() const { return size_; }

 private:
  const std::atomic<bool>& stop_;
  File* const file_;
  std::deque<RecordBuilder> waiting_;
  std::vector<iovec> pieces_;
  ShardFileSize size_;
  uint64_t written_ = 0;
  uint64_t records_ = 0;
};

// Reads one shard's files one after the other.
class ShardReader {
 public:
  ShardReader(const ShardFiles& files, const std::function<absl::Status(const ShardRecord&)>& visit)
      : files_(files), visit_(visit) {}

  absl::Status Read() {
    for (piece_ = 0; piece_ < files_.pieces.size(); ++piece_) LODESTONE_RETURN_IF_ERROR(ReadPiece());
    return absl::OkStatus();
  }

 private:
  const std::string& path() const { return files_.pieces[piece_].path; }
  absl::Status Damage(const std::string& what) const { return absl::DataLossError(absl::StrCat(path(), ": ", what)); }
  absl::Status DamageAt(uint64_t offset, absl::string_view what) const {
    return Damage(absl::StrCat("the record at offset ", offset, " ", what));
  }

  absl::Status ReadPiece() {
    const auto reader = RecordReader::Open(path());
    if (!reader.ok()) return absl::DataLossError(reader.status().message());
    const ShardFileSize& size = files_.pieces[piece_].size;
    if ((*reader)->size() != size.bytes) {
      return Damage(absl::StrCat("has ", (*reader)->size(), " bytes; its manifest says ", size.bytes));
    }
    records_ = 0;
    ended_ = false;
    uint32_t crc = 0;
    for (;;) {
      RecordReader::Record raw;
      const RecordReader::Outcome outcome = (*reader)->Next(&raw);
      if (outcome == RecordReader::Outcome::kEnd) break;
      if (outcome != RecordReader::Outcome::kRecord) return (*reader)->error();
      const auto* const begin = reinterpret_cast<const uint8_t*>(raw.message.data()) - kRecordHeadBytes;
      const uint8_t* const payload = raw.payload.contiguous();
      const uint8_t* const end = payload + raw.payload.size() + kRecordEndBytes;
      crc = Crc32c(begin, static_cast<size_t>(end - begin), crc);
      const uint64_t offset = (*reader)->offset();
      if (!message_.ParseFromArray(raw.message.data(), static_cast<int>(raw.message.size()))) {
        return DamageAt(offset, "holds no CheckpointRecord");
      }
      const ShardRecord record{message_, std::span(payload, raw.payload.size()), piece_,
                               offset + static_cast<uint64_t>(payload - begin)};
      if (const absl::Status status = Take(record); !status.ok()) return DamageAt(offset, status.message());
      ++records_;
    }
    if (!ended_) return Damage("has no end");
    if (crc != size.crc32c) return Damage("is another file than its manifest says: the checksums differ");
    return absl::OkStatus();
  }

  // Errors begin with a verb: they are said of the record.
  absl::Status Take(const ShardRecord& record) {
    if (ended_) return absl::DataLossError("comes after the end");
    if (records_ == 0 && !message_.has_header()) return absl::DataLossError("should be a header");
    switch (message_.what_case()) {
      case v1::CheckpointRecord::kHeader:
        return records_ == 0 ? TakeHeader() : absl::DataLossError("is a second header");
      case v1::CheckpointRecord::kBlock:
        return TakePart(message_.block().table(), message_.block().block(), record);
      case v1::CheckpointRecord::kPage:
        return TakePage(record);
      case v1::CheckpointRecord::kRows:
        if (piece_ == 0) pages_[message_.rows().table()] = message_.rows().pages();
        return piece_ == 0 ? Visit(record) : absl::OkStatus();
      case v1::CheckpointRecord::kWindow:
      case v1::CheckpointRecord::kSettings:
      case v1::CheckpointRecord::kSteps:
      case v1::CheckpointRecord::kContribution:
        return piece_ == 0 ? Visit(record) : absl::OkStatus();
      case v1::CheckpointRecord::kEnd:
        ended_ = true;
        if (message_.end().records() == records_) return absl::OkStatus();
        return absl::DataLossError(
            absl::StrCat("ends a file of ", message_.end().records(), " records, and there are ", records_));
      case v1::CheckpointRecord::WHAT_NOT_SET:
        break;
    }
    return absl::DataLossError("is of a kind that this program does not know");
  }

  absl::Status TakeHeader() {
    const v1::ShardFileHeader& header = message_.header();
    if (header.format() != kCheckpointFormat) {
      return absl::DataLossError(
          absl::StrCat("says format ", header.format(), "; this program reads format ", kCheckpointFormat));
    }
    const Version version = piece_ == 0 ? files_.version : wanted_;
    if (header.shard() != files_.shard || header.version() != version) {
      return absl::DataLossError(absl::StrCat("says shard ", header.shard(), " at version ", header.version(),
                                              ", not shard ", files_.shard, " at version ", version));
    }
    const bool last = piece_ + 1 == files_.pieces.size();
    if (header.full() != last) {
      return absl::DataLossError(last ? "says that the file builds on an older one, and there is none"
                                      : "says that the file is full, and there is an older one");
    }
    wanted_ = header.from_version();
    return absl::OkStatus();
  }

  absl::Status TakePage(const ShardRecord& record) {
    const v1::RowsPage& page = message_.page();
    // A table that went back has fewer pages than an older file.
    const auto pages = pages_.find(page.table());
    if (piece_ > 0 && pages != pages_.end() && page.page() >= pages->second) return absl::OkStatus();
    return TakePart(page.table(), page.page(), record);
  }

  absl::Status TakePart(TableId table, uint32_t index, const ShardRecord& record) {
    const auto [seen, inserted] = seen_.try_emplace(uint64_t{table} << 32 | index, piece_);
    if (inserted) return Visit(record);
    if (seen->second != piece_) return absl::OkStatus();  // A newer file has it.
    return absl::DataLossError(absl::StrCat("is a second one for part ", index, " of table id ", table));
  }

  absl::Status Visit(const ShardRecord& record) const {
    const absl::Status status = visit_(record);
    return status.ok() ? status : absl::DataLossError(absl::StrCat("does not fit: ", status.message()));
  }

  const ShardFiles& files_;
  const std::function<absl::Status(const ShardRecord&)>& visit_;
  v1::CheckpointRecord message_;
  absl::flat_hash_map<uint64_t, size_t> seen_;    // Table and index of blocks and pages: the piece that has it.
  absl::flat_hash_map<TableId, uint32_t> pages_;  // That the newest piece says there are.
  Version wanted_ = 0;                            // Of the next piece.
  // Of the piece being read.
  size_t piece_ = 0;
  uint64_t records_ = 0;
  bool ended_ = false;
};

}  // namespace

absl::Status VisitRecords(const Shard::Snapshot::DensePart& part, const RecordVisitor& visit) {
  v1::CheckpointRecord record;
  v1::DenseBlock& message = *record.mutable_block();
  message.set_table(part.table->id());
  for (const DenseTable::BlockState& block : part.blocks) {
    message.set_block(block.block);
    message.set_version(block.version);
    message.set_updates(block.updates);
    message.set_values(static_cast<uint32_t>(block.values->size_bytes() / sizeof(float)));
    message.set_state(block.state ? static_cast<uint32_t>(block.state->size_bytes() / sizeof(float)) : 0);
    const ByteView payload[] = {ViewOf(block.values), block.state ? ViewOf(block.state) : ByteView()};
    LODESTONE_RETURN_IF_ERROR(visit(record, payload));
  }
  return absl::OkStatus();
}

absl::Status VisitRecords(const Shard::State::RowsPart& part, const RecordVisitor& visit) {
  const EmbeddingTable::State& content = part.content;
  v1::CheckpointRecord header;
  v1::RowsTable& table = *header.mutable_rows();
  table.set_table(part.table->id());
  table.set_updates(content.updates);
  table.set_made_ms(content.made_ms);
  table.set_pages(content.pages_total);
  table.set_rows_log2(part.layout.rows_log2);
  table.set_row_floats(static_cast<uint32_t>(part.layout.row_floats));
  for (const auto& [key, count] : content.candidates) {
    table.add_candidate_keys(key);
    table.add_candidate_counts(count);
  }
  LODESTONE_RETURN_IF_ERROR(visit(header, {}));
  v1::CheckpointRecord record;
  v1::RowsPage& message = *record.mutable_page();
  message.set_table(part.table->id());
  for (size_t i = 0; i < content.pages.size(); ++i) {
    const EmbeddingTable::State::Page& page = content.pages[i];
    message.set_page(page.index);
    message.set_version(page.version);
    ByteView usage;
    if (!content.usage.empty()) {
      const EmbeddingTable::Usage* const begin = &content.usage[i * part.layout.rows()];
      usage = ByteView(reinterpret_cast<const uint8_t*>(begin), part.layout.rows() * sizeof(*begin));
    }
    const ByteView payload[] = {ViewOf(page.page), usage};
    LODESTONE_RETURN_IF_ERROR(visit(record, payload));
  }
  return absl::OkStatus();
}

absl::Status VisitRecords(const Shard::State::Steps& steps, const RecordVisitor& visit) {
  v1::CheckpointRecord record;
  *record.mutable_steps() = steps.header;
  LODESTONE_RETURN_IF_ERROR(visit(record, {}));
  for (const auto& pending : steps.pending) {
    v1::PendingContribution& message = *record.mutable_contribution();
    message.Clear();
    message.set_table(steps.header.table());
    message.mutable_contribution()->set_step(pending->step);
    message.mutable_contribution()->set_batch(pending->batch);
    message.mutable_contribution()->set_samples(pending->samples);
    message.set_now_ms(pending->now_ms);
    message.mutable_blocks()->Add(pending->blocks.begin(), pending->blocks.end());
    message.set_row_count(static_cast<uint32_t>(pending->keys.size()));
    message.set_table_full(!pending->takes_new);
    const auto bytes = [](const auto& values) {
      return ByteView(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(values[0]));
    };
    const ByteView payload[] = {bytes(pending->keys), bytes(pending->gradients)};
    LODESTONE_RETURN_IF_ERROR(visit(record, payload));
  }
  return absl::OkStatus();
}

absl::Status VisitState(const Shard::State& state, const RecordVisitor& visit) {
  for (const Shard::Snapshot::DensePart& part : state.dense) LODESTONE_RETURN_IF_ERROR(VisitRecords(part, visit));
  for (const Shard::State::RowsPart& part : state.rows) LODESTONE_RETURN_IF_ERROR(VisitRecords(part, visit));
  v1::CheckpointRecord record;
  for (const TableSettings* const settings : state.settings) {
    *record.mutable_settings() = settings->spec;
    LODESTONE_RETURN_IF_ERROR(visit(record, {}));
  }
  for (const Shard::State::Steps& steps : state.steps) LODESTONE_RETURN_IF_ERROR(VisitRecords(steps, visit));
  for (const auto& [worker, window] : state.windows) {
    v1::Window& message = *record.mutable_window();
    message.set_worker(worker);
    message.set_newest(window.newest());
    message.set_applied(window.AppliedBits());
    LODESTONE_RETURN_IF_ERROR(visit(record, {}));
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardFileSize> WriteShardFile(const Shard::State& state, const std::atomic<bool>& stop, File* file) {
  RecordWriter writer(stop, file);
  v1::CheckpointRecord record;
  v1::ShardFileHeader& header = *record.mutable_header();
  header.set_format(kCheckpointFormat);
  header.set_shard(state.shard);
  header.set_version(state.version);
  header.set_from_version(state.after.value_or(0));
  header.set_full(!state.after.has_value());
  LODESTONE_RETURN_IF_ERROR(writer.Add(record, {}));
  const RecordVisitor add = [&writer](const v1::CheckpointRecord& message, std::span<const ByteView> payload) {
    return writer.Add(message, payload);
  };
  LODESTONE_RETURN_IF_ERROR(VisitState(state, add));
  record.mutable_end()->set_records(writer.records());
  LODESTONE_RETURN_IF_ERROR(writer.Add(record, {}));
  LODESTONE_RETURN_IF_ERROR(writer.Flush());
  return writer.size();
}

absl::Status ReadShardFiles(const ShardFiles& files, const std::function<absl::Status(const ShardRecord&)>& visit) {
  return ShardReader(files, visit).Read();
}

absl::Status RestoreShard(const ShardFiles& files, Shard* shard) {
  absl::Status status = ReadShardFiles(
      files, [shard](const ShardRecord& record) { return shard->restore().Record(record.message, record.payload); });
  if (status.ok()) {
    status = shard->restore().Finish(files.version);
    if (status.ok()) shard->RestoreTerm(files.term);
    if (!status.ok()) status = absl::DataLossError(absl::StrCat(files.pieces.front().path, ": ", status.message()));
  }
  if (!status.ok()) shard->restore().Abandon();
  return status;
}

}  // namespace lodestone::server
