// Reads what ShardLog wrote: the records of one log of one generation, over its segments.
//
// A log may end inside a record, or right after it began a segment: that was never acknowledged and is left out, and
// cuts() lists it. So is what the disk did not have when the machine went down: where the log was written in an earlier
// boot, what is behind its last mark (v1.LogMark) may be missing in any order. Anything else that is not as it was
// written is an error, which names file and offset.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/byte_view.h"
#include "common/io/boot_id.h"
#include "common/io/file.h"
#include "common/io/record_file.h"
#include "proto/log.pb.h"
#include "server/wal/segment_name.h"

namespace lodestone::server {

// The segments of one log of one generation, ascending; at least one.
using LogSegments = std::vector<SegmentId>;

// All logs in a folder, by generation and log. Files that are not named as segments are left out.
absl::StatusOr<std::vector<LogSegments>> ListLogs(const std::string& dir);

class LogReader {
 public:
  struct Options {
    std::string dir;
    // The log's cluster, shards, seed and server must be these; the other fields are not looked at.
    v1::SegmentHeader expected;
    // End at damage, or at a missing segment, as if nothing followed, and tell in cuts(). server.cut_damaged_log
    bool cut_damaged = false;
    std::string boot = BootId();  // The one that now is.
    bool sealed = false;          // Seal has been called of the log: it ends where it counts.
    // The boot in which the log was begun, if it was not synced; it counts where no header is left. Empty: not known.
    std::string unsynced_boot = {};
  };
  // DATA_LOSS if the log is damaged so early; FAILED_PRECONDITION if it is another cluster's, server's or program's.
  static absl::StatusOr<std::unique_ptr<LogReader>> Open(Options options, const LogSegments& log);
  LogReader(const LogReader&) = delete;
  LogReader& operator=(const LogReader&) = delete;

  // The header of the log's first segment; null if it ended before that was written.
  const v1::SegmentHeader* header() const { return parts_.empty() ? nullptr : &header_; }

  // The next record; false at the end. The payload is valid until the next call. DATA_LOSS if it is damaged.
  absl::StatusOr<bool> Next(v1::LogRecord* record, ByteView* payload);
  // The lineage of a record that was read: its own, or that of the log.
  uint64_t LineageOf(const v1::LogRecord& record) const {
    return header_.record_lineages() && record.lineage() != 0 ? record.lineage() : header_.lineage();
  }
  // Where the last record lies, for messages; and its segment. REQUIRES for that: there was one.
  std::string place() const;
  const SegmentId& segment() const { return segments_[opened_ - 1]; }

  // What was left out at the log's end.
  struct Cut {
    enum class Kind {
      kTorn,      // Was not written to its end.
      kUnsynced,  // Was not on the disk yet when the machine went down.
      kDamaged,   // Some of it may have been acknowledged and synced.
    };
    std::string file;
    uint64_t offset = 0;
    uint64_t bytes = 0;  // From there on, in this file and those after it.
    Kind kind = Kind::kTorn;
    std::string reason;
  };
  const std::vector<Cut>& cuts() const { return cuts_; }

  // Deletes what was left out, and waits until the disk has all the rest: whatever is amiss with the log from now on is
  // damage. REQUIRES: the log was read to its end, and none of cuts() is kDamaged.
  absl::Status Seal(const FileCalls* calls) const;

 private:
  // A segment to be read.
  struct Part {
    std::string path;
    uint64_t bytes = UINT64_MAX;  // That count of it; the last one is read as far as it goes.
  };

  explicit LogReader(Options options) : options_(std::move(options)) {}

  // Reads the header of the segment `id` and adds it to parts_. False if the log ends before it.
  absl::StatusOr<bool> AddPart(const SegmentId& id, bool last);
  absl::Status CheckHeader(const std::string& path, const SegmentId& id, const v1::SegmentHeader& header) const;
  // Goes on in the next part. REQUIRES: there is one.
  absl::Status OpenPart();
  // The log ends at `offset` of `path`, for `reason`. DATA_LOSS if that is damage, unless options_.cut_damaged. `torn`:
  // a writer that was killed leaves the like. `readable`: what is there instead of what was written is known.
  absl::Status CutAt(const std::string& path, uint64_t offset, bool torn, bool readable, absl::string_view reason);
  // Whether the machine that wrote the log has gone down since, as far as is known, and nothing says that the disk had
  // what should be at `offset` of files_[file].
  bool MayBeUnsynced(size_t file, uint64_t offset) const;
  // The header of files_[file], if it can be read and is of this log.
  bool ReadHeader(size_t file, v1::SegmentHeader* header) const;
  // Whether a mark or a header in files_[file], behind `offset`, says that the disk had what should be there.
  bool SaysSynced(size_t file, uint64_t offset) const;

  const Options options_;
  LogSegments segments_;            // Of the log, also those that are not read.
  std::vector<std::string> files_;  // Their paths.
  v1::SegmentHeader header_;
  std::vector<Part> parts_;
  size_t opened_ = 0;  // Parts that were.
  bool ended_ = false;
  std::unique_ptr<RecordReader> reader_;  // Of the part before opened_; null: none is being read.
  std::vector<Cut> cuts_;
};

}  // namespace lodestone::server
