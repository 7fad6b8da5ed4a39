#include "worker/report/results_file.h"

#include <fcntl.h>

#include <algorithm>

#include "common/base/status.h"

namespace lodestone::worker {

absl::StatusOr<ResultsFile> ResultsFile::Open(const std::string& path, const FileCalls* calls) {
  LODESTONE_ASSIGN_OR_RETURN(File file, File::Open(path, O_RDWR | O_CREAT | O_APPEND, calls));
  LODESTONE_ASSIGN_OR_RETURN(const uint64_t size, file.Size());
  return ResultsFile(std::move(file), size);
}

absl::Status ResultsFile::CutPartialLine() {
  constexpr uint64_t kChunkBytes = 4096;
  uint64_t end = size_;
  for (char chunk[kChunkBytes]; end > 0;) {
    const uint64_t begin = end - std::min(end, kChunkBytes);
    LODESTONE_ASSIGN_OR_RETURN(const size_t read, file_.ReadAt(begin, chunk, end - begin));
    const size_t line_end = std::string_view(chunk, read).rfind('\n');
    if (line_end != std::string_view::npos) {
      end = begin + line_end + 1;
      break;
    }
    end = begin;
  }
  if (end == size_) return absl::OkStatus();
  size_ = end;
  return Cut();
}

absl::Status ResultsFile::Append(std::string_view record) {
  if (partial_) LODESTONE_RETURN_IF_ERROR(Cut());
  if (const absl::Status status = file_.Write(record); !status.ok()) {
    Cut().IgnoreError();  // Else the next call tries again.
    return status;
  }
  size_ += record.size();
  return absl::OkStatus();
}

absl::Status ResultsFile::Cut() {
  partial_ = true;
  LODESTONE_RETURN_IF_ERROR(file_.Truncate(size_));
  partial_ = false;
  return absl::OkStatus();
}

}  // namespace lodestone::worker
