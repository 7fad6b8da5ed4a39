#include "server/checkpoint/checkpoint_writer.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <filesystem>
#include <set>
#include <system_error>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/telemetry/log.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/shard_file.h"

namespace lodestone::server {
namespace {

uint64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Whether it is the note of which shards have gone back, or what a kill left of writing it.
bool IsOfNote(uint32_t server, absl::string_view file) { return absl::StartsWith(file, GoneBackName(server)); }

}  // namespace

// One checkpoint on its way to the disk.
class CheckpointWriter::Attempt {
 public:
  // `before`: by shard, what to build on; empty for a full one.
  Attempt(const CheckpointWriter& writer, const std::string& name,
          const absl::flat_hash_map<ShardId, ShardEntry>& before)
      : writer_(writer), name_(name), folder_(writer.FolderOf(name)), before_(before), calls_(writer.options_.calls) {
    calls_.writev = [this](int fd, const iovec* pieces, int count) -> ssize_t {
      room_ = CheckRoom();
      if (room_.ok()) return writer_.options_.calls.writev(fd, pieces, count);
      errno = ENOSPC;
      return -1;
    };
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  absl::Status Run(const Source& source) {
    const absl::Status status = Write(source);
    return room_.ok() ? status : room_;
  }

  // After Run.
  const std::string& folder() const { return folder_; }
  const v1::ServerManifest& manifest() const { return manifest_; }
  uint64_t bytes() const { return bytes_; }

 private:
  // RESOURCE_EXHAUSTED if so little is free that the log may stop for it.
  absl::Status CheckRoom() const {
    const Options& options = writer_.options_;
    if (options.spare_bytes == 0) return absl::OkStatus();
    const absl::StatusOr<VolumeBytes> volume = options.volume(options.dir);
    if (!volume.ok() || volume->free >= options.spare_bytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        "only ", volume->free, " bytes are free on the volume of ", options.dir, ", and ", options.spare_bytes,
        " are kept free for the log: free some, or set checkpoint.dir to another volume"));
  }

  absl::Status Write(const Source& source) {
    const uint64_t created_ms = NowMs();
    LODESTONE_RETURN_IF_ERROR(MakeFolders(folder_));
    std::vector<ShardId> shards = source.shards;
    std::sort(shards.begin(), shards.end());
    for (const ShardId shard : shards) {
      const auto before = before_.find(shard);
      LODESTONE_RETURN_IF_ERROR(WriteShard(source, shard, before == before_.end() ? nullptr : &before->second));
    }
    while (!unsynced_.empty()) LODESTONE_RETURN_IF_ERROR(SyncOldest());
    LODESTONE_RETURN_IF_ERROR(MakeFolders(folder_));  // As OpenNew, if it has no file.
    LODESTONE_RETURN_IF_ERROR(SyncFolder(folder_));
    source.describe(&manifest_);
    manifest_.set_format(kCheckpointFormat);
    manifest_.set_cluster(writer_.options_.cluster);
    manifest_.set_name(name_);
    manifest_.set_server(writer_.options_.server);
    manifest_.set_created_ms(created_ms);
    manifest_.set_program(kVersion);
    manifest_.set_arrived(source.arrived);
    const uint64_t own_lineage = manifest_.lineage();
    std::set<std::string> needs;
    for (ShardEntry& entry : contents_) {
      if (entry.lineage() == 0) entry.set_lineage(own_lineage);
      manifest_.set_lineage(std::max(manifest_.lineage(), entry.lineage()));
      for (const auto& file : entry.files()) {
        if (!file.folder().empty()) needs.insert(file.folder());
      }
      *manifest_.add_contents() = std::move(entry);
    }
    for (const std::string& folder : needs) manifest_.add_needs(folder);
    return WriteManifest(absl::StrCat(folder_, "/", ManifestName(writer_.options_.server)), manifest_);
  }

  absl::StatusOr<File> OpenNew(const std::string& path) {
    absl::StatusOr<File> file = File::Open(path, O_WRONLY | O_CREAT | O_TRUNC, &calls_);
    if (!absl::IsNotFound(file.status())) return file;
    // Another ps that removed its part of that name has taken the empty folder away.
    LODESTONE_RETURN_IF_ERROR(MakeFolders(folder_));
    return File::Open(path, O_WRONLY | O_CREAT | O_TRUNC, &calls_);
  }

  absl::Status WriteShard(const Source& source, ShardId shard, const ShardEntry* before) {
    if (writer_.stop_.load(std::memory_order_relaxed)) return absl::CancelledError("the ps shuts down");
    const Version after = before != nullptr ? before->version() : 0;
    const absl::StatusOr<Shard::State> collected = source.collect(shard, before != nullptr ? &after : nullptr);
    if (absl::IsNotFound(collected.status())) return absl::OkStatus();
    LODESTONE_RETURN_IF_ERROR(collected.status());
    const Shard::State& state = *collected;
    LODESTONE_CHECK(state.shard == shard && (before != nullptr || !state.after.has_value()));
    if (!state.after.has_value()) before = nullptr;  // What was written says nothing of what the shard is now.
    if (before != nullptr && state.version == before->version()) {
      contents_.push_back(*before);
      return absl::OkStatus();
    }
    const std::string file_name = ShardFileName(writer_.options_.server, shard);
    LODESTONE_ASSIGN_OR_RETURN(File file, OpenNew(absl::StrCat(folder_, "/", file_name)));
    LODESTONE_ASSIGN_OR_RETURN(const ShardFileSize size, WriteShardFile(state, writer_.stop_, &file));
    bytes_ += size.bytes;
    unsynced_.push_back(std::move(file));
    if (unsynced_.size() > limits::kCheckpointFilesOpenMax) LODESTONE_RETURN_IF_ERROR(SyncOldest());
    ShardEntry& entry = contents_.emplace_back();
    entry.set_shard(shard);
    entry.set_version(state.version);
    entry.set_term(state.term);
    entry.set_lineage(state.lineage);
    v1::ServerManifest::File& newest = *entry.add_files();
    newest.set_name(file_name);
    newest.set_bytes(size.bytes);
    newest.set_crc32c(size.crc32c);
    if (before != nullptr) entry.mutable_files()->MergeFrom(before->files());
    return absl::OkStatus();
  }

  absl::Status SyncOldest() {
    LODESTONE_RETURN_IF_ERROR(unsynced_.front().Sync());
    unsynced_.pop_front();
    return absl::OkStatus();
  }

  const CheckpointWriter& writer_;
  const std::string name_;
  const std::string folder_;
  const absl::flat_hash_map<ShardId, ShardEntry>& before_;
  FileCalls calls_;    // Of its files: writes leave room for the log.
  absl::Status room_;  // Why a write was not made.

  std::deque<File> unsynced_;  // The disk works on them meanwhile.
  std::vector<ShardEntry> contents_;
  v1::ServerManifest manifest_;
  uint64_t bytes_ = 0;
};

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Open(Options options) {
  LODESTONE_RETURN_IF_ERROR(MakeFolders(options.dir));
  auto writer = std::unique_ptr<CheckpointWriter>(new CheckpointWriter(std::move(options)));
  LODESTONE_RETURN_IF_ERROR(writer->Prepare());
  return writer;
}

absl::Status CheckpointWriter::Prepare() {
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(options_.dir));
  uint64_t newest = 0;
  for (const std::string& name : names) {
    newest = std::max(newest, NumberOfPeriodic(options_.server, name).value_or(0));
    if (!options_.remove_leftovers) continue;
    const std::string folder = FolderOf(name);
    std::error_code error;
    if (!std::filesystem::is_directory(folder, error)) continue;
    if (FileExists(absl::StrCat(folder, "/", ManifestName(options_.server)))) continue;
    // Another server may have made an empty folder just now.
    LODESTONE_ASSIGN_OR_RETURN(const std::vector<std::string> files, ListFolder(folder));
    const bool has_own = std::any_of(files.begin(), files.end(), [this](const std::string& file) {
      return IsFileOf(options_.server, file) && !IsOfNote(options_.server, file);
    });
    if (has_own || NumberOfPeriodic(options_.server, name).has_value()) {
      LODESTONE_RETURN_IF_ERROR(RemovePart(name, /*note=*/false));
    }
  }
  MutexLock lock(&writing_);
  next_number_ = newest + 1;
  return absl::OkStatus();
}

absl::StatusOr<CheckpointWriter::Result> CheckpointWriter::Write(const std::string& name, const Source& source) {
  if (!writing_.TryLock()) {
    return absl::UnavailableError("another checkpoint of this ps is being written; try again when it is done");
  }
  absl::StatusOr<Result> result = WriteLocked(name, source);
  writing_.Unlock();
  return result;
}

absl::StatusOr<CheckpointWriter::Result> CheckpointWriter::WriteLocked(const std::string& name, const Source& source) {
  const auto begin = std::chrono::steady_clock::now();
  LODESTONE_ASSIGN_OR_RETURN(const std::string chosen, ChooseName(name));
  const bool periodic = name.empty();
  const Periodic* const base = periodic && !source.arrived ? Base() : nullptr;
  const Contents nothing;
  Attempt attempt(*this, chosen, base == nullptr ? nothing : base->contents);
  if (const absl::Status status = attempt.Run(source); !status.ok()) {
    if (const absl::Status removed = RemovePart(chosen, /*note=*/false); !removed.ok()) {
      LODESTONE_LOG(WARN, "checkpoint", "cannot remove what was written name={} error={}", chosen, removed.ToString());
    }
    return Annotate(status, absl::StrCat("checkpoint `", chosen, "`"));
  }
  Result result{attempt.folder(), attempt.manifest(), attempt.bytes(), 0, {}};
  if (periodic) {
    if (!source.arrived) NotePeriodic(attempt.manifest(), base == nullptr ? 0 : base->since_full + 1);
    if (const absl::Status removed = RemoveOld(/*damaged_too=*/!source.arrived, &result.stay); !removed.ok()) {
      LODESTONE_LOG(WARN, "checkpoint", "cannot remove old ones error={}", removed.ToString());
    }
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

absl::StatusOr<std::string> CheckpointWriter::ChooseName(const std::string& name) {
  if (name.empty()) {
    std::string chosen;
    do {
      chosen = PeriodicName(options_.server, next_number_++);
    } while (FileExists(FolderOf(chosen)));
    return chosen;
  }
  LODESTONE_RETURN_IF_ERROR(CheckCheckpointName(name));
  const std::string path = absl::StrCat(FolderOf(name), "/", ManifestName(options_.server));
  if (FileExists(path)) return absl::AlreadyExistsError(absl::StrCat("checkpoint `", name, "` exists: ", path));
  return name;
}

const CheckpointWriter::Periodic* CheckpointWriter::Base() const {
  if (newest_.size() < options_.keep || newest_.front().since_full + 1 >= options_.full_every) return nullptr;
  // While one that is damaged would have a later one of its row, all are full: those that are kept share no file.
  for (const Periodic& periodic : newest_) {
    for (const auto& [shard, entry] : periodic.contents) {
      for (const v1::ServerManifest::File& file : entry.files()) {
        if (damaged_.contains(file.folder())) return nullptr;
      }
    }
  }
  // They may have been removed by hand.
  for (const auto& [shard, entry] : newest_.front().contents) {
    for (const v1::ServerManifest::File& file : entry.files()) {
      if (!FileExists(absl::StrCat(FolderOf(file.folder()), "/", file.name()))) return nullptr;
    }
  }
  return &newest_.front();
}

void CheckpointWriter::NotePeriodic(const v1::ServerManifest& manifest, uint32_t since_full) {
  Periodic& noted = newest_.emplace_back();
  noted.since_full = since_full;
  for (ShardEntry entry : manifest.contents()) {
    for (v1::ServerManifest::File& file : *entry.mutable_files()) {
      if (file.folder().empty()) file.set_folder(manifest.name());
    }
    noted.contents.emplace(entry.shard(), std::move(entry));
  }
  if (newest_.size() > options_.keep) newest_.pop_front();
}

bool CheckpointWriter::NoteDamaged(const std::vector<std::string>& names) {
  MutexLock lock(&writing_);
  const size_t known = damaged_.size();
  damaged_.insert(names.begin(), names.end());
  return damaged_.size() > known;
}

absl::Status CheckpointWriter::Remove(const std::string& name) {
  LODESTONE_RETURN_IF_ERROR(CheckCheckpointName(name));
  MutexLock lock(&writing_);
  std::error_code none;
  if (!std::filesystem::exists(FolderOf(name), none)) return absl::OkStatus();
  return RemovePart(name, /*note=*/true);
}

absl::Status CheckpointWriter::RemovePart(const std::string& name, bool note) const {
  const std::string folder = FolderOf(name);
  const absl::StatusOr<std::vector<std::string>> files = ListFolder(folder);
  if (absl::IsNotFound(files.status())) return absl::OkStatus();
  if (!files.ok()) return files.status();
  // The manifest first: without it the rest is nothing, whatever happens now.
  const std::string manifest = ManifestName(options_.server);
  if (std::find(files->begin(), files->end(), manifest) != files->end()) {
    LODESTONE_RETURN_IF_ERROR(RemoveFile(absl::StrCat(folder, "/", manifest)));
    LODESTONE_RETURN_IF_ERROR(SyncFolder(folder));
  }
  for (const std::string& file : *files) {
    if (!IsFileOf(options_.server, file) || (!note && IsOfNote(options_.server, file))) continue;
    LODESTONE_RETURN_IF_ERROR(RemoveFile(absl::StrCat(folder, "/", file)));
  }
  std::error_code not_empty;  // Other servers' files.
  std::filesystem::remove(folder, not_empty);
  return SyncFolder(options_.dir);
}

absl::Status CheckpointWriter::RemoveOld(bool damaged_too, std::vector<std::string>* stay) const {
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<FoundManifest> found, FindManifests(options_.dir));
  std::vector<std::pair<uint64_t, const FoundManifest*>> own;  // By number.
  for (const FoundManifest& each : found) {
    const std::optional<uint64_t> number = NumberOfPeriodic(options_.server, each.name);
    if (!number.has_value() || each.server != options_.server) continue;
    // One that cannot be read at the moment may need any other.
    if (!each.manifest.ok() && !absl::IsDataLoss(each.manifest.status())) return each.manifest.status();
    if (each.manifest.ok() && each.manifest->cluster() != options_.cluster) continue;
    own.emplace_back(*number, &each);
  }
  std::sort(own.begin(), own.end());
  std::set<const FoundManifest*> old;
  uint32_t kept = 0;
  absl::flat_hash_map<ShardId, uint32_t> copies;  // In those that are kept and newer.
  for (auto each = own.rbegin(); each != own.rend(); ++each) {
    const absl::StatusOr<v1::ServerManifest>& manifest = each->second->manifest;
    const auto is_kept_elsewhere = [&](const ShardEntry& entry) { return copies[entry.shard()] >= options_.keep; };
    const bool is_spare = manifest.ok() && manifest->arrived() &&
                          std::all_of(manifest->contents().begin(), manifest->contents().end(), is_kept_elsewhere);
    const bool is_damaged = damaged_.contains(each->second->name);
    if (kept == options_.keep || is_spare || (is_damaged && damaged_too)) {
      old.insert(each->second);
    } else if (manifest.ok() && !is_damaged) {
      if (!manifest->arrived()) ++kept;
      for (const ShardEntry& entry : manifest->contents()) ++copies[entry.shard()];
    }
  }

  std::set<std::string> needed;
  using Rank = std::tuple<uint64_t, uint64_t, Version>;  // Lineage, term and version.
  absl::flat_hash_map<ShardId, Rank> newest;             // In what stays.
  for (const FoundManifest& each : found) {
    if (old.contains(&each) || !each.manifest.ok() || each.manifest->cluster() != options_.cluster) continue;
    needed.insert(each.manifest->needs().begin(), each.manifest->needs().end());
    if (!IsPeriodic(each.name) || damaged_.contains(each.name)) continue;  // The former a user may delete.
    for (const ShardEntry& entry : each.manifest->contents()) {
      Rank& best = newest[entry.shard()];
      best = std::max(best, Rank(LineageOf(*each.manifest, entry), entry.term(), entry.version()));
    }
  }
  const auto is_superseded = [&](const v1::ServerManifest& manifest) {
    return std::all_of(manifest.contents().begin(), manifest.contents().end(), [&](const ShardEntry& entry) {
      const auto best = newest.find(entry.shard());
      return best != newest.end() && best->second >= Rank(LineageOf(manifest, entry), entry.term(), entry.version());
    });
  };
  // The newest first: while one is there, so is what it builds on.
  for (auto last = own.rbegin(); last != own.rend(); ++last) {
    const FoundManifest& each = *last->second;
    if (!old.contains(&each)) continue;
    // A shard that this ps no longer owns may be nowhere else yet.
    const bool is_needed = needed.contains(each.name);
    if (is_needed || (each.manifest.ok() && !is_superseded(*each.manifest))) {
      if (!is_needed) stay->push_back(each.name);
      if (each.manifest.ok()) needed.insert(each.manifest->needs().begin(), each.manifest->needs().end());
      continue;
    }
    LODESTONE_RETURN_IF_ERROR(RemovePart(each.name, /*note=*/true));
  }
  return absl::OkStatus();
}

}  // namespace lodestone::server
