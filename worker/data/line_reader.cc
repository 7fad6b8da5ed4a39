#include "worker/data/line_reader.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"

namespace lodestone::worker {
namespace {

constexpr size_t kBufferBytes = 1 << 20;
constexpr uint64_t kBehindRangeBytes = 4096;

}  // namespace

LineReader::LineReader(std::unique_ptr<ByteSource> source, uint64_t offset, uint64_t stop)
    : source_(std::move(source)), buffer_(kBufferBytes), offset_(offset), stop_(stop) {}

absl::StatusOr<LineReader> LineReader::Open(const std::string& path) {
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> source, ByteSource::Open(path));
  return LineReader(std::move(source));
}

absl::StatusOr<LineReader> LineReader::OpenRange(const std::string& path, uint64_t begin, uint64_t end) {
  // A line begins here if the byte before ends one.
  const uint64_t from = begin == 0 ? 0 : begin - 1;
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> source, ByteSource::Open(path, from));
  LineReader reader(std::move(source), from, end);
  if (begin == 0) return reader;
  reader.started_ = true;  // A byte order mark is at the file's beginning only.
  LODESTONE_RETURN_IF_ERROR(reader.FindEnd().status());
  reader.lines_ = 0;
  reader.start_ = from + reader.next_;
  return reader;
}

absl::Status LineReader::Fill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    line_end_ -= std::min(line_end_, begin_);
    offset_ += begin_;
    next_ -= begin_;
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ > limits::kLineBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(path(), ":", lines_ + 1, ": the line is longer than ",
                                                   limits::kLineBytesMax, " bytes; is this a text file?"));
  }
  if (end_ == buffer_.size()) buffer_.resize(2 * buffer_.size());
  size_t wanted = buffer_.size() - end_;
  if (stop_ != UINT64_MAX) {  // The last line may go on behind the range.
    const uint64_t at = offset_ + end_;
    wanted = std::min<uint64_t>(wanted, at < stop_ ? stop_ - at : kBehindRangeBytes);
  }
  LODESTONE_ASSIGN_OR_RETURN(const size_t count, source_->Read(buffer_.data() + end_, wanted));
  at_end_ = count < wanted;
  end_ += count;
  if (!started_) {
    started_ = true;
    if (end_ >= 3 && std::memcmp(buffer_.data(), "\xef\xbb\xbf", 3) == 0) begin_ = next_ = line_end_ = 3;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> LineReader::FindEnd() {
  size_t scanned = 0;  // Bytes from next_ on that hold no newline.
  while (true) {
    const size_t from = next_ + scanned;
    const void* newline = from < end_ ? std::memchr(buffer_.data() + from, '\n', end_ - from) : nullptr;
    if (newline != nullptr) {
      line_end_ = static_cast<const char*>(newline) - buffer_.data();
      next_ = line_end_ + 1;
      break;
    }
    if (at_end_) {
      if (next_ == end_) return false;
      line_end_ = next_ = end_;
      break;
    }
    scanned = end_ - next_;
    LODESTONE_RETURN_IF_ERROR(Fill());
  }
  ++lines_;
  return true;
}

absl::StatusOr<bool> LineReader::Next(absl::string_view* line) {
  begin_ = next_;
  if (offset_ + begin_ >= stop_) return false;
  LODESTONE_ASSIGN_OR_RETURN(const bool found, FindEnd());
  if (!found) return false;
  first_line_ = lines_;
  size_t size = line_end_ - begin_;
  if (size > 0 && buffer_[line_end_ - 1] == '\r') --size;
  *line = absl::string_view(buffer_.data() + begin_, size);
  if (size > limits::kLineBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path(), ":", first_line_, ": the line is longer than ", limits::kLineBytesMax, " bytes"));
  }
  return true;
}

absl::StatusOr<bool> LineReader::Extend(absl::string_view* line) {
  const size_t size_before = line->size();
  LODESTONE_ASSIGN_OR_RETURN(const bool found, FindEnd());
  size_t size = found ? line_end_ - begin_ : size_before;
  if (found && buffer_[line_end_ - 1] == '\r') --size;
  *line = absl::string_view(buffer_.data() + begin_, size);
  if (size > limits::kLineBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(path(), ":", first_line_,
                                                   ": the quoted field that begins here is longer than ",
                                                   limits::kLineBytesMax, " bytes; is its quote never closed?"));
  }
  return found;
}

}  // namespace lodestone::worker
