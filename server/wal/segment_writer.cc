#include "server/wal/segment_writer.h"

#include <fcntl.h>

#include <utility>

#include "common/base/status.h"
#include "common/io/record_file.h"
#include "server/wal/segment_name.h"

namespace lodestone::server {

absl::Status SegmentWriter::Begin() {
  if (file_.has_value()) Leave();
  return Create();
}

void SegmentWriter::Leave() {
  file_.reset();
  ++number_;
  previous_bytes_ = std::exchange(bytes_, 0);
  dirty_ = false;
}

absl::Status SegmentWriter::Create() {
  v1::SegmentHeader header = options_.header;
  header.set_format(kSegmentFormat);
  header.set_segment(number_);
  header.set_previous_bytes(previous_bytes_);
  header.set_previous_synced(options_.sync && number_ > 0);
  const std::string path = SegmentPath(options_.dir, {header.generation(), header.log(), number_});
  if (remove_) LODESTONE_RETURN_IF_ERROR(RemoveFile(path));
  remove_ = false;
  LODESTONE_ASSIGN_OR_RETURN(File file, File::Open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND, &options_.calls));
  remove_ = true;
  const std::string record = RecordBuilder(header, {}).Copy();
  LODESTONE_RETURN_IF_ERROR(file.Write(record));
  // What the log is must be known whatever happens to the rest of it.
  if (options_.sync || number_ == 0) {
    LODESTONE_RETURN_IF_ERROR(file.Sync());
    LODESTONE_RETURN_IF_ERROR(SyncFolder(options_.dir));
  }
  remove_ = false;
  file_ = std::move(file);
  header_bytes_ = bytes_ = record.size();
  return absl::OkStatus();
}

absl::Status SegmentWriter::Mend() {
  if (file_.has_value() && dirty_) {
    // The next one's header tells what counts, if it cannot be cut off.
    if (!file_->Truncate(bytes_).ok()) Leave();
    dirty_ = false;
  }
  return file_.has_value() ? absl::OkStatus() : Create();
}

absl::Status SegmentWriter::Write(std::span<const iovec> pieces, uint64_t bytes) {
  LODESTONE_RETURN_IF_ERROR(Mend());
  pieces_.clear();
  // The header of a fresh segment says as much.
  const RecordBuilder mark = options_.sync && !fresh() ? Mark() : RecordBuilder();
  mark.AppendPieces(&pieces_);
  pieces_.insert(pieces_.end(), pieces.begin(), pieces.end());
  dirty_ = true;
  LODESTONE_RETURN_IF_ERROR(file_->Write(pieces_));
  if (options_.sync) {
    if (const absl::Status synced = file_->Sync(); !synced.ok()) {
      // Cutting it off is not needed; it spares a reader that finds no next segment the remains.
      file_->Truncate(bytes_).IgnoreError();
      Leave();
      return synced;
    }
  }
  dirty_ = false;
  bytes_ += mark.bytes() + bytes;
  return absl::OkStatus();
}

RecordBuilder SegmentWriter::Mark() const {
  v1::LogRecord record;
  v1::LogMark& mark = *record.mutable_mark();
  mark.set_generation(options_.header.generation());
  mark.set_log(options_.header.log());
  mark.set_segment(number_);
  mark.set_offset(bytes_);
  return RecordBuilder(record, {});
}

uint64_t SegmentWriter::mark_bytes() const { return options_.sync && !fresh() ? Mark().bytes() : 0; }

absl::Status SegmentWriter::Seal() {
  if (!file_.has_value()) return absl::OkStatus();
  LODESTONE_RETURN_IF_ERROR(Mend());
  LODESTONE_RETURN_IF_ERROR(file_->Sync());
  const RecordBuilder mark = Mark();
  dirty_ = true;
  LODESTONE_RETURN_IF_ERROR(file_->Write(mark.Copy()));
  LODESTONE_RETURN_IF_ERROR(file_->Sync());
  dirty_ = false;
  bytes_ += mark.bytes();
  return absl::OkStatus();
}

}  // namespace lodestone::server
