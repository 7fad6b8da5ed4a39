#include "server/durability/checkpoint_scrubber.h"

#include <fcntl.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/crc32c.h"
#include "common/io/file.h"
#include "common/telemetry/log.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/shard_file.h"

namespace lodestone::server {
namespace {

constexpr size_t kChunkBytes = 1 << 20;
constexpr int kFirstPassPart = 10;  // Of the period.
constexpr int64_t kBurstUs = 50'000;

}  // namespace

void CheckpointScrubber::Start() {
  if (options_.period.count() > 0) thread_ = Thread([this] { RunThread(); });
}

void CheckpointScrubber::Stop() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void CheckpointScrubber::RunThread() {
  int64_t next_ms = time_.NowMs() + options_.period.count() / kFirstPassPart;
  while (WaitUntil(next_ms)) {
    RunPass();
    next_ms = time_.NowMs() + options_.period.count();
  }
}

void CheckpointScrubber::RunPass() {
  absl::StatusOr<std::vector<Damage>> damage = Pass();
  if (absl::IsCancelled(damage.status())) return;
  if (!damage.ok()) {
    LODESTONE_LOG(WARN, "storage", "the checkpoints cannot be scrubbed: {}", damage.status().ToString());
    return;
  }
  std::set<std::string> periodic;
  for (const Damage& each : *damage) {
    LODESTONE_LOG(ERROR, "storage", "a checkpoint is damaged: {}", each.what);
    if (IsPeriodic(each.checkpoint)) periodic.insert(each.checkpoint);
  }
  {
    MutexLock lock(&mu_);
    damage_ = *std::move(damage);
    ++passes_;
  }
  while (!periodic.empty()) {
    const absl::Status replaced = replace_({periodic.begin(), periodic.end()});
    if (replaced.ok()) return;
    LODESTONE_LOG(WARN, "storage", "damaged checkpoints are not replaced yet: {}", replaced.ToString());
    if (!WaitUntil(time_.NowMs() + options_.again.count())) return;
  }
}

absl::StatusOr<std::vector<CheckpointScrubber::Damage>> CheckpointScrubber::Pass() {
  {
    MutexLock lock(&mu_);
    bytes_ = 0;
  }
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<FoundManifest> found, FindManifests(options_.dir));
  std::vector<Damage> damage;
  std::map<std::string, absl::Status> files;  // That were read: several checkpoints may build on one.
  for (const FoundManifest& each : found) {
    if (each.server != options_.server) continue;
    absl::Status whole = each.manifest.status();
    if (!whole.ok() && !absl::IsDataLoss(whole) && !absl::IsNotFound(whole)) return whole;
    if (whole.ok()) {
      if (each.manifest->cluster() != options_.cluster) continue;
      for (const v1::ServerManifest::ShardEntry& entry : each.manifest->contents()) {
        for (const ShardFiles::Piece& piece : FilesOf(options_.dir, each, entry).pieces) {
          const auto [file, is_new] = files.try_emplace(piece.path);
          if (is_new) file->second = CheckTwice(piece.path, piece.size);
          const bool told = absl::IsDataLoss(file->second) || absl::IsNotFound(file->second);
          if (!file->second.ok() && !told) return file->second;
          whole.Update(file->second);
        }
      }
    }
    // It may have been removed meanwhile.
    if (!whole.ok() && FileExists(each.path)) damage.push_back({each.name, std::string(whole.message())});
  }
  return damage;
}

absl::Status CheckpointScrubber::CheckTwice(const std::string& path, const ShardFileSize& written) {
  const absl::Status first = CheckFile(path, written);
  return first.ok() || absl::IsCancelled(first) ? first : CheckFile(path, written);
}

absl::Status CheckpointScrubber::CheckFile(const std::string& path, const ShardFileSize& written) {
  LODESTONE_ASSIGN_OR_RETURN(const File file, File::Open(path, O_RDONLY));
  LODESTONE_ASSIGN_OR_RETURN(const uint64_t size, file.Size());
  const uint64_t bytes = written.bytes;
  if (size != bytes) {
    return absl::DataLossError(absl::StrCat(path, ": has ", size, " bytes, and ", bytes, " were written"));
  }
  // What the page cache has of it says nothing about the disk; and what is read here is to push nothing else out.
  posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  std::vector<uint8_t> chunk(std::min<uint64_t>(bytes, kChunkBytes));
  uint32_t crc32c = 0;
  for (uint64_t at = 0; at < bytes;) {
    const absl::StatusOr<size_t> result = file.ReadAt(at, chunk.data(), std::min(bytes - at, kChunkBytes));
    if (absl::IsUnknown(result.status()))
      return absl::DataLossError(result.status().message());  // EIO: the disk's word.
    LODESTONE_ASSIGN_OR_RETURN(const size_t read, result);
    if (read == 0) return absl::DataLossError(absl::StrCat(path, ": ends at byte ", at, " of ", bytes));
    crc32c = Crc32c(chunk.data(), read, crc32c);
    posix_fadvise(file.fd(), static_cast<off_t>(at), static_cast<off_t>(read), POSIX_FADV_DONTNEED);
    at += read;
    if (!Count(read)) return absl::CancelledError("the ps shuts down");
  }
  if (crc32c == written.crc32c) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path, ": its content is not what was written: checksum ", crc32c, " instead of ", written.crc32c));
}

void CheckpointScrubber::FillStatus(v1::StorageStatus* status) const {
  std::vector<Damage> damage;
  {
    MutexLock lock(&mu_);
    status->set_scrub_passes(passes_);
    status->set_scrub_bytes(bytes_);
    damage = damage_;
  }
  for (const Damage& each : damage) {
    // It may have been replaced, or deleted by hand. The disk is asked without the lock.
    const std::string manifest = absl::StrCat(options_.dir, "/", each.checkpoint, "/", ManifestName(options_.server));
    if (FileExists(manifest)) status->add_checkpoint_damage(each.what);
  }
}

bool CheckpointScrubber::Count(uint64_t read) {
  int64_t due_us = 0;
  {
    MutexLock lock(&mu_);
    bytes_ += read;
    if (options_.bytes_per_second > 0) {
      // What was missed because the disk was slow is not made up for.
      const int64_t now_us = 1000 * time_.NowMs();
      due_us_ =
          std::max(due_us_, now_us - kBurstUs) + static_cast<int64_t>(read * 1'000'000 / options_.bytes_per_second);
    }
    due_us = due_us_;
  }
  return WaitUntil(due_us / 1000);
}

bool CheckpointScrubber::WaitUntil(int64_t time_ms) {
  MutexLock lock(&mu_);
  while (!stopped_) {
    const int64_t left_ms = time_ms - time_.NowMs();
    if (left_ms <= 0) return true;
    changed_.WaitForMs(&mu_, left_ms);
  }
  return false;
}

}  // namespace lodestone::server
