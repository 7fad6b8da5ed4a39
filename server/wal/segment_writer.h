// Writes the segments of one log, one after the other, and goes on after failures in such a way that a reader
// (server/wal/log_reader.h) finds every group of records that was written once, whole and in order.
//
// What may lie behind the good part of a segment after a failed write is cut off before more is written. Where that is
// not possible, and after a failed fdatasync (which may have lost what was written, and succeed the next time), the
// segment is left as it is: the next one's header says how much of it counts.
//
// Where groups are synced, each begins with a mark: what lies before it was on the disk. So a reader distinguishes what
// a machine that went down had not written yet from damage.
//
// Not thread-safe: belongs to the thread that writes the log at the moment.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/io/file.h"
#include "proto/log.pb.h"

namespace lodestone {
class RecordBuilder;
}  // namespace lodestone

namespace lodestone::server {

class SegmentWriter {
 public:
  struct Options {
    std::string dir;           // Must exist.
    v1::SegmentHeader header;  // But for what the writer knows: format, segment and what is said of the one before.
    bool sync = false;         // Wait until the disk has what was written.
    FileCalls calls = FileCalls::System();
  };
  // Begin comes before all else.
  explicit SegmentWriter(Options options) : options_(std::move(options)) {}
  SegmentWriter(const SegmentWriter&) = delete;
  SegmentWriter& operator=(const SegmentWriter&) = delete;

  // Ends the segment, if there is one, and begins the next. The first has number 0.
  absl::Status Begin();
  // Appends a group of records, of `bytes` together, behind a mark if there is one to set. After an error the same
  // group must come again, and nothing else.
  absl::Status Write(std::span<const iovec> pieces, uint64_t bytes);
  // After an error: makes the log such that Write may succeed. Write does this itself; alone, it says whether it can.
  absl::Status Mend();
  // Waits until the disk has what was written to the segment, also without Options::sync, and then has a mark there
  // that says so of the whole log. REQUIRES: the disk has the segments before.
  absl::Status Seal();

  // What Write adds to a group of records.
  uint64_t mark_bytes() const;

  // Of the segment: its number, its header's bytes, what counts of it, and whether it has been begun and has no records
  // yet.
  uint64_t number() const { return number_; }
  uint64_t header_bytes() const { return header_bytes_; }
  uint64_t bytes() const { return bytes_; }
  bool fresh() const { return file_.has_value() && bytes_ == header_bytes_; }

 private:
  // Creates segment number_.
  absl::Status Create();
  // Leaves the segment as it is: the next one is to be created.
  void Leave();
  // A record that says that all before it is on the disk.
  RecordBuilder Mark() const;

  const Options options_;
  std::optional<File> file_;   // Of segment number_; none if it is to be created.
  std::vector<iovec> pieces_;  // Of the group that is being written, and its mark.
  uint64_t number_ = 0;
  uint64_t header_bytes_ = 0;
  uint64_t bytes_ = 0;           // Written and kept: 0 without file_.
  uint64_t previous_bytes_ = 0;  // bytes_ of the segment before.
  bool dirty_ = false;           // There may be more in file_ than bytes_.
  bool remove_ = false;          // What an attempt to create the segment has left must go first.
};

}  // namespace lodestone::server
