#include "tools/bench/load/disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/file.h"

namespace lodestone::bench {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = 1 << 20;

// Not zeros: nothing on the way may take a short cut.
std::string Piece(size_t bytes) {
  std::string piece(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) piece[i] = static_cast<char>(i * 2654435761u >> 24);
  return piece;
}

class Appends final : public Load {
 public:
  explicit Appends(File file) : file_(std::move(file)) {}

  absl::StatusOr<Outcome> Run(const Order& order) override {
    LODESTONE_RETURN_IF_ERROR(file_.Truncate(0));
    const std::string group = Piece(order.request_bytes * order.depth);
    Outcome outcome;
    for (int64_t begin = NowNs(); begin < order.end_ns;) {
      LODESTONE_RETURN_IF_ERROR(file_.Write(group));
      LODESTONE_RETURN_IF_ERROR(file_.Sync());
      const int64_t end = NowNs();
      if (end >= order.start_ns && end < order.end_ns) {
        outcome.operations += order.depth;
        outcome.latencies_us.insert(outcome.latencies_us.end(), order.depth, 1e-3f * static_cast<float>(end - begin));
      }
      begin = end;
    }
    return outcome;
  }

 private:
  File file_;
};

// The sample of what `work` does, which returns bytes.
template <typename Work>
absl::StatusOr<Sample> Timed(const Work& work) {
  const double cpu = CpuSeconds(getpid());
  const int64_t begin = NowNs();
  LODESTONE_ASSIGN_OR_RETURN(const uint64_t bytes, work());
  Sample sample;
  sample.seconds = 1e-9 * static_cast<double>(NowNs() - begin);
  sample.operations = static_cast<double>(bytes);
  sample.client_cpu_seconds = CpuSeconds(getpid()) - cpu;
  return sample;
}

absl::StatusOr<std::vector<std::string>> FilesBelow(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->is_regular_file(error)) paths.push_back(entry->path().string());
  }
  if (error) return absl::UnavailableError(absl::StrCat(folder, ": ", error.message()));
  return paths;
}

}  // namespace

Peer::MakeLoad AppendLoad(const std::string& path) {
  return [path]() -> absl::StatusOr<std::unique_ptr<Load>> {
    LODESTONE_ASSIGN_OR_RETURN(File file, File::Open(path, O_WRONLY | O_CREAT | O_APPEND));
    return std::unique_ptr<Load>(std::make_unique<Appends>(std::move(file)));
  };
}

absl::StatusOr<Sample> WriteFile(const std::string& path, uint64_t bytes) {
  const std::string piece = Piece(kPieceBytes);
  absl::StatusOr<Sample> sample = Timed([&]() -> absl::StatusOr<uint64_t> {
    LODESTONE_ASSIGN_OR_RETURN(File file, File::Open(path, O_WRONLY | O_CREAT | O_TRUNC));
    for (uint64_t left = bytes; left > 0;) {
      const size_t size = std::min<uint64_t>(left, kPieceBytes);
      LODESTONE_RETURN_IF_ERROR(file.Write(std::string_view(piece).substr(0, size)));
      left -= size;
    }
    LODESTONE_RETURN_IF_ERROR(file.Sync());
    return bytes;
  });
  LODESTONE_RETURN_IF_ERROR(RemoveFile(path));
  return sample;
}

absl::StatusOr<Sample> ReadFiles(const std::string& folder) {
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<std::string> paths, FilesBelow(folder));
  std::string piece(kPieceBytes, '\0');
  return Timed([&]() -> absl::StatusOr<uint64_t> {
    uint64_t bytes = 0;
    for (const std::string& path : paths) {
      LODESTONE_ASSIGN_OR_RETURN(const File file, File::Open(path, O_RDONLY));
      for (uint64_t offset = 0;;) {
        LODESTONE_ASSIGN_OR_RETURN(const size_t read, file.ReadAt(offset, piece.data(), piece.size()));
        offset += read;
        bytes += read;
        if (read < piece.size()) break;
      }
    }
    return bytes;
  });
}

absl::StatusOr<uint64_t> Chill(const std::string& folder) {
  LODESTONE_ASSIGN_OR_RETURN(const File top, File::Open(folder, O_RDONLY | O_DIRECTORY));
  if (syncfs(top.fd()) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(folder, ": syncfs"));
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<std::string> paths, FilesBelow(folder));
  uint64_t bytes = 0;
  for (const std::string& path : paths) {
    LODESTONE_ASSIGN_OR_RETURN(const File file, File::Open(path, O_RDONLY));
    LODESTONE_ASSIGN_OR_RETURN(const uint64_t size, file.Size());
    if (const int error = posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED); error != 0) {
      return absl::ErrnoToStatus(error, absl::StrCat(path, ": posix_fadvise"));
    }
    bytes += size;
  }
  return bytes;
}

}  // namespace lodestone::bench
