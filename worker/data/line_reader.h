// The lines of a text file (or gz): LF or CRLF, with or without a byte order mark and a last newline.
//
// Not thread-safe. A line is a view into the reader's buffer and lives until the next call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/byte_source.h"

namespace lodestone::worker {

class LineReader {
 public:
  static absl::StatusOr<LineReader> Open(const std::string& path);
  // The lines that begin at the bytes `begin` to `end` - 1, of a file that is not packed. line_number() counts from
  // there. Whether a byte is within quotes is not known.
  static absl::StatusOr<LineReader> OpenRange(const std::string& path, uint64_t begin, uint64_t end);

  // Gives the next line without its end; false after the last one. INVALID_ARGUMENT, with file and line, if it is
  // longer than limits::kLineBytesMax.
  absl::StatusOr<bool> Next(absl::string_view* line);

  // Lengthens the line given last by its newline and the line after it, as quoted CSV fields need; false, and *line as
  // it was, if there is none.
  absl::StatusOr<bool> Extend(absl::string_view* line);

  // Number of the line given last, from 1 (of its first line, if it was extended).
  uint64_t line_number() const { return first_line_; }
  // Lines that the line given last was made of.
  uint64_t lines_joined() const { return lines_ - first_line_ + 1; }
  uint64_t file_offset() const { return source_->file_offset(); }
  // Bytes of lines that have been given, unpacked.
  uint64_t bytes_parsed() const { return offset_ + next_ - start_; }
  // Where the line given last begins, of a file that is not packed.
  uint64_t line_offset() const { return offset_ + begin_; }
  const std::string& path() const { return source_->path(); }

 private:
  explicit LineReader(std::unique_ptr<ByteSource> source, uint64_t offset = 0, uint64_t stop = UINT64_MAX);

  // Sets line_end_ and next_ for the line that starts at next_; false if there is none.
  absl::StatusOr<bool> FindEnd();
  // Reads more behind end_, moving what is in use to the front of the buffer.
  absl::Status Fill();

  std::unique_ptr<ByteSource> source_;
  std::vector<char> buffer_;
  size_t begin_ = 0;     // Of the current line.
  size_t line_end_ = 0;  // Of the current line, before its newline.
  size_t next_ = 0;      // Where the next line begins.
  size_t end_ = 0;       // Of the bytes read.
  bool at_end_ = false;  // The file has no more bytes.
  bool started_ = false;
  uint64_t offset_;     // In the file, of the buffer.
  uint64_t stop_;       // No line begins here, or behind it.
  uint64_t start_ = 0;  // Where the first line begins.
  uint64_t lines_ = 0;
  uint64_t first_line_ = 0;
};

}  // namespace lodestone::worker
