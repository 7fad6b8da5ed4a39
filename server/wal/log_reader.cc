#include "server/wal/log_reader.h"

#include <fcntl.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/file.h"

namespace lodestone::server {
namespace {

using Outcome = RecordReader::Outcome;

constexpr size_t kMarkMessageBytesMax = 256;

// The error if a header's field is not what is expected.
template <typename T>
absl::Status CheckField(const std::string& path, absl::string_view name, const T& is, const T& expected) {
  if (is == expected) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path, ": was written with ", name, " ", is, ", not ", expected));
}

}  // namespace

absl::StatusOr<std::vector<LogSegments>> ListLogs(const std::string& dir) {
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(dir));
  std::vector<SegmentId> ids;
  for (const std::string& name : names) {
    if (const std::optional<SegmentId> id = ParseSegmentName(name)) ids.push_back(*id);
  }
  std::sort(ids.begin(), ids.end());
  std::vector<LogSegments> logs;
  for (const SegmentId& id : ids) {
    if (logs.empty() || logs.back()[0].generation != id.generation || logs.back()[0].log != id.log) {
      logs.emplace_back();
    }
    logs.back().push_back(id);
  }
  return logs;
}

absl::StatusOr<std::unique_ptr<LogReader>> LogReader::Open(Options options, const LogSegments& log) {
  auto reader = std::unique_ptr<LogReader>(new LogReader(std::move(options)));
  reader->segments_ = log;
  for (const SegmentId& id : log) reader->files_.push_back(SegmentPath(reader->options_.dir, id));
  for (size_t i = 0; i < log.size(); ++i) {
    if (i > 0 && log[i].segment != log[i - 1].segment + 1) {
      const SegmentId missing = {log[i].generation, log[i].log, log[i - 1].segment + 1};
      const std::string reason = absl::StrCat(SegmentPath(reader->options_.dir, missing), ": is missing, but ",
                                              reader->files_[i], " is there");
      LODESTONE_RETURN_IF_ERROR(reader->CutAt(reader->files_[i], 0, /*torn=*/false, /*readable=*/true, reason));
      break;
    }
    LODESTONE_ASSIGN_OR_RETURN(const bool added, reader->AddPart(log[i], i + 1 == log.size()));
    if (!added) break;
  }
  return reader;
}

absl::StatusOr<bool> LogReader::AddPart(const SegmentId& id, bool last) {
  const std::string path = SegmentPath(options_.dir, id);
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<RecordReader> reader, RecordReader::Open(path));
  v1::SegmentHeader header;
  ByteView payload;
  const Outcome outcome = reader->Next(&header, &payload);
  std::string reason(reader->error().message());
  if (outcome == Outcome::kRecord) {
    LODESTONE_RETURN_IF_ERROR(CheckHeader(path, id, header));
    if (parts_.empty() || header.previous_bytes() > 0) {
      if (parts_.empty()) header_ = header;
      if (!parts_.empty()) parts_.back().bytes = header.previous_bytes();
      parts_.push_back({path});
      return true;
    }
    reason = absl::StrCat(path, ": counts no bytes of the segment before it");
  } else if (outcome == Outcome::kEnd) {
    reason = absl::StrCat(path, ": is empty");
  }
  const bool torn = last && (outcome == Outcome::kEnd || outcome == Outcome::kTorn);
  LODESTONE_RETURN_IF_ERROR(CutAt(path, 0, torn, !reader->unreadable(), reason));
  return false;
}

absl::Status LogReader::CheckHeader(const std::string& path, const SegmentId& id,
                                    const v1::SegmentHeader& header) const {
  const v1::SegmentHeader& expected = options_.expected;
  const auto check = [&](absl::string_view name, const auto& is, const auto& wanted) {
    return CheckField(path, name, is, wanted);
  };
  LODESTONE_RETURN_IF_ERROR(check("format", header.format(), kSegmentFormat));
  LODESTONE_RETURN_IF_ERROR(check("cluster.name", header.cluster(), expected.cluster()));
  LODESTONE_RETURN_IF_ERROR(check("cluster.shards", header.shards(), expected.shards()));
  LODESTONE_RETURN_IF_ERROR(check("cluster.seed", header.seed(), expected.seed()));
  LODESTONE_RETURN_IF_ERROR(check("server.index", header.server(), expected.server()));
  if (!parts_.empty()) LODESTONE_RETURN_IF_ERROR(check("lineage", header.lineage(), header_.lineage()));
  const SegmentId written = {header.generation(), header.log(), header.segment()};
  if (written == id) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path, ": was renamed, it is ", SegmentName(written)));
}

absl::StatusOr<bool> LogReader::Next(v1::LogRecord* record, ByteView* payload) {
  while (!ended_) {
    if (reader_ == nullptr) {
      if (opened_ == parts_.size()) break;
      LODESTONE_RETURN_IF_ERROR(OpenPart());
    }
    const Outcome outcome = reader_->Next(record, payload);
    if (outcome == Outcome::kRecord) {
      if (record->has_mark()) continue;
      return true;
    }
    const uint64_t counted = parts_[opened_ - 1].bytes;
    const bool last = counted == UINT64_MAX;
    if (outcome == Outcome::kEnd && (last || reader_->offset() == counted)) {
      reader_.reset();
      continue;
    }
    std::string reason(reader_->error().message());
    if (outcome == Outcome::kEnd) {
      reason = absl::StrCat(reader_->path(), ": ends at offset ", reader_->offset(),
                            ", but the segment after it counts ", counted, " bytes of it");
    }
    LODESTONE_RETURN_IF_ERROR(
        CutAt(reader_->path(), reader_->offset(), last && outcome == Outcome::kTorn, !reader_->unreadable(), reason));
    ended_ = true;
  }
  return false;
}

absl::Status LogReader::OpenPart() {
  LODESTONE_ASSIGN_OR_RETURN(reader_, RecordReader::Open(parts_[opened_].path, parts_[opened_].bytes));
  ++opened_;
  v1::SegmentHeader header;
  ByteView payload;
  reader_->Next(&header, &payload);  // If it is no longer what it was, the next record is not one either.
  return absl::OkStatus();
}

std::string LogReader::place() const {
  if (reader_ == nullptr) return options_.dir;
  return absl::StrCat(reader_->path(), ": the record at offset ", reader_->offset());
}

absl::Status LogReader::CutAt(const std::string& path, uint64_t offset, bool torn, bool readable,
                              absl::string_view reason) {
  const auto file = std::find(files_.begin(), files_.end(), path);
  Cut::Kind kind = Cut::Kind::kDamaged;
  if (torn && !options_.sealed) {
    kind = Cut::Kind::kTorn;
  } else if (readable && MayBeUnsynced(file - files_.begin(), offset)) {
    kind = Cut::Kind::kUnsynced;
  } else if (!options_.cut_damaged) {
    return absl::DataLossError(
        absl::StrCat(reason,
                     "; what follows there was acknowledged: bring the file back from a copy of it, or leave the "
                     "shards to the ps that holds their other copy (server.cut_damaged_log=true starts without "
                     "it, and loses it)"));
  }
  uint64_t bytes = 0;
  for (auto left = file; left != files_.end(); ++left) {
    LODESTONE_ASSIGN_OR_RETURN(const File opened, File::Open(*left, O_RDONLY));
    LODESTONE_ASSIGN_OR_RETURN(const uint64_t size, opened.Size());
    bytes += size;
  }
  cuts_.push_back({path, offset, bytes - std::min(bytes, offset), kind, std::string(reason)});
  return absl::OkStatus();
}

bool LogReader::MayBeUnsynced(size_t file, uint64_t offset) const {
  if (options_.sealed) return false;
  v1::SegmentHeader header = header_;
  for (size_t i = 0; parts_.empty() && i < files_.size() && !ReadHeader(i, &header); ++i) {
  }
  if (!header.has_boot() && !options_.unsynced_boot.empty()) header.set_boot(options_.unsynced_boot);
  // Without either nothing is known of the program that wrote it, nor of when.
  if (!header.has_boot() || (!header.boot().empty() && header.boot() == options_.boot)) return false;
  for (size_t i = file; i < files_.size(); ++i) {
    if (SaysSynced(i, i == file ? offset : 0)) return false;
  }
  return true;
}

bool LogReader::ReadHeader(size_t file, v1::SegmentHeader* header) const {
  const auto reader = RecordReader::Open(files_[file]);
  ByteView payload;
  if (!reader.ok() || (*reader)->Next(header, &payload) != Outcome::kRecord) return false;
  return SegmentId{header->generation(), header->log(), header->segment()} == segments_[file];
}

bool LogReader::SaysSynced(size_t file, uint64_t offset) const {
  v1::SegmentHeader header;
  if (offset == 0 && ReadHeader(file, &header) && header.previous_synced()) return true;
  const auto reader = RecordReader::Open(files_[file]);
  if (!reader.ok()) return true;  // It may.
  RecordReader::Record record;
  v1::LogRecord parsed;
  for (uint64_t from = offset; (*reader)->Find(from, &record); from = (*reader)->next_offset()) {
    if (record.message.size() > kMarkMessageBytesMax || record.payload.size() > 0) continue;
    if (!parsed.ParseFromArray(record.message.data(), static_cast<int>(record.message.size()))) continue;
    // A mark speaks of what is before it, wherever its bytes may have come from.
    const v1::LogMark& mark = parsed.mark();
    const SegmentId id = {mark.generation(), mark.log(), mark.segment()};
    if (parsed.has_mark() && id == segments_[file] && mark.offset() == (*reader)->offset()) return true;
  }
  return (*reader)->unreadable();
}

absl::Status LogReader::Seal(const FileCalls* calls) const {
  size_t end = files_.size();
  uint64_t offset = 0;
  for (const Cut& cut : cuts_) {
    const size_t file = std::find(files_.begin(), files_.end(), cut.file) - files_.begin();
    if (file > end) continue;
    end = file;
    offset = cut.offset;
  }
  // From the last one on: whatever happens meanwhile, the log ends there.
  for (size_t i = files_.size(); i-- > 0 && i >= end;) {
    if (i > end || offset == 0) {
      LODESTONE_RETURN_IF_ERROR(RemoveFile(files_[i]));
      continue;
    }
    LODESTONE_ASSIGN_OR_RETURN(File file, File::Open(files_[i], O_WRONLY, calls));
    LODESTONE_RETURN_IF_ERROR(file.Truncate(offset));
  }
  const size_t kept = std::min(files_.size(), offset == 0 ? end : end + 1);
  for (size_t i = 0; i < kept; ++i) {
    LODESTONE_ASSIGN_OR_RETURN(File file, File::Open(files_[i], O_RDONLY, calls));
    LODESTONE_RETURN_IF_ERROR(file.Sync());
  }
  return SyncFolder(options_.dir);
}

}  // namespace lodestone::server
