#include "tests/chaos/disk_damage.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/random.h"
#include "common/base/status.h"

namespace lodestone::chaos {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kHeadBytes = 32;
constexpr uint64_t kEndBytes = 4;
constexpr uint64_t kZerosMax = 9'000;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

absl::Status WriteAt(const std::string& path, uint64_t offset, const std::string& bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  const bool ok = fd >= 0 && pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset)) ==
                                 static_cast<ssize_t>(bytes.size());
  const int error = errno;
  if (fd >= 0) close(fd);
  return ok ? absl::OkStatus() : absl::ErrnoToStatus(error, absl::StrCat("writing to ", path));
}

// The length of the record at `offset`, from its head; 0 if it is not all there. Its last bytes are never zero.
uint64_t RecordBytes(const std::string& text, uint64_t offset) {
  const uint64_t left = text.size() - offset;
  if (left < kHeadBytes) return 0;
  uint32_t message_bytes = 0;
  uint64_t payload_bytes = 0;
  std::memcpy(&message_bytes, text.data() + offset + 4, sizeof(message_bytes));
  std::memcpy(&payload_bytes, text.data() + offset + 8, sizeof(payload_bytes));
  if (message_bytes == 0 || payload_bytes > left) return 0;
  const uint64_t bytes = kHeadBytes + message_bytes + payload_bytes + kEndBytes;
  if (bytes > left || text.substr(offset + bytes - kEndBytes, kEndBytes).find('\0') != std::string::npos) return 0;
  return bytes;
}

// "000003-001-000017.log".
std::optional<SegmentFile> ParseSegment(const fs::path& path) {
  const std::vector<std::string> numbers = absl::StrSplit(path.stem().string(), '-');
  SegmentFile file{.path = path.string()};
  if (path.extension() != ".log" || numbers.size() != 3 || !absl::SimpleAtoi(numbers[0], &file.generation) ||
      !absl::SimpleAtoi(numbers[1], &file.log) || !absl::SimpleAtoi(numbers[2], &file.segment)) {
    return std::nullopt;
  }
  return file;
}

RecordsExtent ExtentIn(const std::string& text) {
  RecordsExtent extent;
  while (const uint64_t bytes = RecordBytes(text, extent.bytes)) {
    extent.last = extent.bytes;
    extent.bytes += bytes;
    ++extent.records;
  }
  extent.clean = text.find_first_not_of('\0', extent.bytes) == std::string::npos;
  return extent;
}

}  // namespace

absl::StatusOr<std::vector<SegmentFile>> NewestSegments(const std::string& folder) {
  std::map<std::pair<uint64_t, uint64_t>, SegmentFile> newest;  // By generation and log.
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::optional<SegmentFile> file = ParseSegment(entry.path());
    if (!file.has_value()) continue;
    SegmentFile& best = newest[{file->generation, file->log}];
    if (best.path.empty() || best.segment < file->segment) best = *file;
  }
  if (newest.empty()) return absl::NotFoundError(absl::StrCat(folder, ": there are no segments of a log"));
  std::vector<SegmentFile> files;
  for (const auto& [id, file] : newest) {
    if (id.first == newest.rbegin()->first.first) files.push_back(file);
  }
  return files;
}

absl::StatusOr<RecordsExtent> ExtentOf(const std::string& path) {
  LODESTONE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ExtentIn(text);
}

absl::StatusOr<std::optional<std::string>> TearTail(const std::string& path, uint64_t random) {
  LODESTONE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const RecordsExtent extent = ExtentIn(text);
  if (!extent.clean || extent.records == 0) return std::optional<std::string>();
  const uint64_t whole = RecordBytes(text, 0);
  const uint64_t bytes = 1 + RandomBits(random, 0) % (whole - 1);
  const uint64_t zeros = RandomBits(random, 1) % 2 == 0 ? 0 : RandomBits(random, 2) % kZerosMax;
  LODESTONE_RETURN_IF_ERROR(WriteAt(path, extent.bytes, text.substr(0, bytes) + std::string(zeros, '\0')));
  return std::optional<std::string>(absl::StrCat(path, ": ", bytes, " bytes of a record of ", whole, " at offset ",
                                                 extent.bytes, ", and ", zeros, " zeros"));
}

absl::StatusOr<FlippedBit> ChooseBit(const std::string& path, uint64_t random) {
  LODESTONE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const RecordsExtent extent = ExtentIn(text);
  if (extent.records == 0) return absl::NotFoundError(absl::StrCat(path, ": there are no records"));
  FlippedBit bit{.path = path,
                 .offset = RandomBits(random, 0) % extent.bytes,
                 .mask = static_cast<uint8_t>(1 << RandomBits(random, 1) % 8)};
  for (uint64_t next = 0; next <= bit.offset; next += RecordBytes(text, next)) bit.record = next;
  return bit;
}

absl::StatusOr<FlippedBit> ChooseBitAnywhere(const std::string& path, uint64_t random) {
  LODESTONE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  if (text.empty()) return absl::NotFoundError(absl::StrCat(path, ": is empty"));
  return FlippedBit{.path = path,
                    .offset = RandomBits(random, 0) % text.size(),
                    .mask = static_cast<uint8_t>(1 << RandomBits(random, 1) % 8)};
}

absl::Status Flip(const FlippedBit& bit) {
  LODESTONE_ASSIGN_OR_RETURN(const std::string text, ReadFile(bit.path));
  if (bit.offset >= text.size()) return absl::NotFoundError(absl::StrCat(bit.path, ": has become too short"));
  return WriteAt(bit.path, bit.offset, std::string(1, static_cast<char>(text[bit.offset] ^ bit.mask)));
}

std::vector<std::string> OtherFiles(const std::string& data_dir, uint32_t server) {
  std::vector<std::string> files;
  std::error_code error;
  const std::string name = absl::StrCat("ps-", server);
  for (fs::recursive_directory_iterator it(data_dir, error), end; !error && it != end; it.increment(error)) {
    const fs::path& path = it->path();
    const std::string parent = path.parent_path().filename().string();
    const bool own = parent == name && path.filename() != "lock";
    const bool in_checkpoint = parent != "log" && absl::StartsWith(path.filename().string(), name + ".");
    if (it->is_regular_file(error) && (own || in_checkpoint)) files.push_back(path.string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace lodestone::chaos
