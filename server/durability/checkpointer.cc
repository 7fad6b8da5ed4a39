#include "server/durability/checkpointer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "server/checkpoint/checkpoint_writer.h"
#include "server/checkpoint/manifest.h"
#include "server/durability/recovery.h"
#include "server/shard/shard.h"
#include "server/store/store.h"

namespace lodestone::server {
namespace {

// Checkpoints whose log is kept: if the newest turns out to be damaged, the one before and the log since then will do.
constexpr size_t kCheckpointsWithLog = 2;

HistogramMetric checkpoint_metric("lodestone_ps_checkpoint_duration_seconds",
                                  "How long it takes to write a checkpoint.");

// What checkpoints leave free of a volume on which the log lies too: without room it stops, and pushes with it. The
// folders are there.
uint64_t SpareBytes(const DataDir& dir) {
  if (!dir.has_log() || !OnOneVolume(dir.checkpoint_dir(), dir.path())) return 0;
  const absl::StatusOr<VolumeBytes> volume = VolumeBytesAt(dir.checkpoint_dir());
  return volume.ok() ? std::min(volume->total / limits::kCheckpointSpareParts, limits::kCheckpointSpareBytesMax) : 0;
}

}  // namespace

uint64_t LogBytesBetweenCheckpoints(uint64_t table_bytes, uint64_t volume_bytes) {
  const uint64_t bytes = std::max(limits::kCheckpointLogBytes, 2 * table_bytes);
  return volume_bytes == 0 ? bytes : std::min(bytes, volume_bytes / limits::kCheckpointLogParts);
}

Checkpointer::Checkpointer(const v1::Config& config, const DataDir* dir, const TimeSource* time, EventLog* events)
    : config_(config),
      dir_(dir),
      time_(time),
      events_(events),
      written_states_(config.cluster().shards()),
      written_versions_(config.cluster().shards()),
      collected_states_(config.cluster().shards()),
      collected_(config.cluster().shards()) {}

Checkpointer::~Checkpointer() = default;

absl::StatusOr<std::optional<v1::CoordinatorState>> Checkpointer::CoordinatorInCheckpoints() const {
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<FoundManifest> found, FindManifests(dir_->checkpoint_dir()));
  const v1::ServerManifest* newest = nullptr;
  for (const FoundManifest& one : found) {
    if (!one.manifest.ok() || one.manifest->coordinator().empty()) continue;
    if (newest == nullptr || one.manifest->created_ms() > newest->created_ms()) newest = &*one.manifest;
  }
  if (newest == nullptr) return std::nullopt;
  v1::CoordinatorState state;
  if (state.ParseFromString(newest->coordinator())) return state;
  return absl::DataLossError(absl::StrCat("the checkpoint ", newest->name(), " in ", dir_->checkpoint_dir(),
                                          " holds no state of the coordinator where it should"));
}

absl::Status Checkpointer::Open(Store* store) {
  store_ = store;
  LODESTONE_RETURN_IF_ERROR(MakeFolders(dir_->checkpoint_dir()));
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointWriter> writer,
                             CheckpointWriter::Open({.dir = dir_->checkpoint_dir(),
                                                     .cluster = config_.cluster().name(),
                                                     .server = config_.server().index(),
                                                     .keep = config_.checkpoint().keep(),
                                                     .full_every = config_.checkpoint().full_every(),
                                                     .spare_bytes = SpareBytes(*dir_)}));
  MutexLock lock(&mu_);
  if (stopped_) writer->Stop();
  writer_ = std::move(writer);
  return absl::OkStatus();
}

void Checkpointer::StartFrom(std::vector<Version> versions, uint64_t base_generation, uint64_t log_bytes) {
  former_log_bytes_ = log_bytes;
  written_versions_ = std::move(versions);
  base_generation_ = base_generation;
}

absl::StatusOr<v1::CheckpointResponse> Checkpointer::Write(const std::string& name) {
  const bool periodic = name.empty();
  // Whatever is in a segment before these marks is in the checkpoint.
  const uint64_t logged_bytes = store_->log().written_bytes();
  std::vector<uint64_t> rolled = store_->log().Roll();
  // A named one is of what counts. The others let the log go, and so have all that may be needed of it.
  LODESTONE_ASSIGN_OR_RETURN(v1::CheckpointResponse response,
                             WriteShards(periodic ? Kind::kPeriodic : Kind::kNamed, name,
                                         periodic ? store_->shards().whole() : store_->shards().held()));
  if (periodic) {
    former_log_bytes_ = 0;
    logged_bytes_ = logged_bytes;
    arrived_ = 0;
    if (listener_) listener_();
    // A named one may be deleted by hand at any time, so the log is kept for periodic ones.
    DropSegments(std::move(rolled));
  }
  MutexLock lock(&mu_);
  status_.set_checkpoint(response.path());
  status_.set_checkpoint_seconds(response.seconds());
  status_.set_checkpoint_bytes(response.bytes());
  written_ms_ = time_->NowMs();
  return response;
}

absl::Status Checkpointer::WriteArrived() {
  std::vector<ShardId> shards = store_->shards().whole();
  std::erase_if(shards, [this](ShardId shard) { return IsStateWritten(shard); });
  if (shards.empty()) {
    MutexLock lock(&mu_);
    ErrorOf(Kind::kArrived).clear();  // Those that could not be written have left.
    return absl::OkStatus();
  }
  // Without room for one of all they still go on coming: a move waits for each.
  if (arrived_ >= limits::kCheckpointsArrivedMax && !failing_ && Write("").ok()) return absl::OkStatus();
  LODESTONE_RETURN_IF_ERROR(WriteShards(Kind::kArrived, "", std::move(shards)).status());
  ++arrived_;
  if (listener_) listener_();
  return absl::OkStatus();
}

absl::StatusOr<v1::CheckpointResponse> Checkpointer::WriteShards(Kind kind, const std::string& name,
                                                                 std::vector<ShardId> shards) {
  collected_.assign(collected_.size(), {});
  CheckpointWriter::Source source;
  source.shards = std::move(shards);
  source.arrived = kind == Kind::kArrived;
  source.collect = [this, kind](ShardId shard, const Version* after) -> absl::StatusOr<Shard::State> {
    std::optional<Shard::State> state;
    store_->shards().Run(shard, [&](Shard* held) {
      const bool counts = store_->shards().RoleOf(shard) >= ShardRole::kFollows;
      if (!counts && (kind == Kind::kNamed || !store_->shards().IsWhole(shard))) return;
      // What was written of a shard before its state was taken from another ps is no base for what it holds now.
      const bool builds =
          !base_states_.empty() && store_->shards().StateGeneration(shard) == base_states_.front()[shard];
      collected_states_[shard] = store_->shards().StateGeneration(shard);
      collected_[shard] = {held->version(), mark_at_ ? mark_at_(shard, held->version()) : 0};
      state = held->CollectState(builds ? after : nullptr);
    });
    if (state.has_value()) return *std::move(state);
    return absl::NotFoundError(absl::StrCat("shard ", shard, " is being copied from its owner"));
  };
  source.describe = [this](v1::ServerManifest* manifest) { Describe(manifest); };
  const absl::StatusOr<CheckpointWriter::Result> result = writer_->Write(name, source);
  if (!result.ok()) {
    NoteFailure(kind, name, result.status());
    return result.status();
  }
  NoteWritten(result->manifest, kind);
  if (kind == Kind::kPeriodic) failing_ = false;
  if (kind == Kind::kPeriodic) LogStay(result->stay);
  v1::CheckpointResponse response;
  response.set_path(result->path);
  response.set_shards(static_cast<uint32_t>(result->manifest.contents_size()));
  for (const auto& entry : result->manifest.contents()) response.add_shard_ids(entry.shard());
  response.set_shards_of_cluster(config_.cluster().shards());
  response.set_bytes(result->bytes);
  response.set_seconds(result->seconds);
  if (kind != Kind::kArrived) checkpoint_metric.ObserveNs(static_cast<int64_t>(result->seconds * 1e9));
  LODESTONE_LOG(INFO, "storage", "checkpoint={} shards={} bytes={} seconds={:.2f}", response.path(), response.shards(),
                response.bytes(), response.seconds());
  AddEvent("checkpointed", absl::StrFormat("%s: %u shards%s, %u bytes in %.2f s",
                                           response.path().substr(response.path().rfind('/') + 1), response.shards(),
                                           kind == Kind::kArrived ? " that came from other ps" : "", response.bytes(),
                                           response.seconds()));
  MutexLock lock(&mu_);
  ErrorOf(kind).clear();
  return response;
}

absl::Status Checkpointer::Replace(const std::vector<std::string>& damaged) {
  const bool is_new = writer_->NoteDamaged(damaged);
  if (!is_new && !replacing_) return absl::OkStatus();
  replacing_ = true;
  LODESTONE_RETURN_IF_ERROR(Write("").status());
  AddEvent("disk",
           absl::StrCat("a checkpoint was written in the place of damaged ones: ", absl::StrJoin(damaged, ", ")));
  return absl::OkStatus();
}

absl::Status Checkpointer::Remove(const std::string& name) { return writer_->Remove(name); }

void Checkpointer::Describe(v1::ServerManifest* manifest) const {
  manifest->set_servers(config_.cluster().servers());
  manifest->set_shards(config_.cluster().shards());
  manifest->set_seed(config_.cluster().seed());
  manifest->set_lineage(dir_->lineage());
  manifest->set_generation(dir_->generation());
  for (v1::TableSpec& spec : store_->tables().specs()) *manifest->add_tables() = std::move(spec);
  manifest->set_tables_known(true);
  const Sessions::Known sessions = store_->sessions().known();
  manifest->mutable_sessions()->Add(sessions.open.begin(), sessions.open.end());
  manifest->set_forgotten_max(sessions.forgotten_max);
  manifest->mutable_ended_sessions()->Add(sessions.ended.begin(), sessions.ended.end());
  for (ShardId shard = 0; shard < collected_.size(); ++shard) {
    if (collected_[shard].mark == 0) continue;
    v1::ServerManifest::NewestUpdate& newest = *manifest->add_newest_updates();
    newest.set_shard(shard);
    newest.set_version(collected_[shard].version);
    newest.set_mark(collected_[shard].mark);
  }
  if (coordinator_) manifest->set_coordinator(coordinator_().SerializeAsString());
}

void Checkpointer::NoteWritten(const v1::ServerManifest& manifest, Kind kind) {
  if (kind == Kind::kNamed) return;  // It may be deleted by hand at any time.
  for (const auto& entry : manifest.contents()) {
    written_versions_[entry.shard()] = entry.version();
    written_states_[entry.shard()] = collected_states_[entry.shard()];
  }
  if (kind != Kind::kPeriodic) return;  // Nothing to build on.
  base_states_.push_back(collected_states_);
  if (base_states_.size() > config_.checkpoint().keep()) base_states_.pop_front();
}

void Checkpointer::LogStay(const std::vector<std::string>& stay) {
  if (stay == stay_) return;
  stay_ = stay;
  if (stay.empty()) return;
  LODESTONE_LOG(WARN, "storage",
                "older checkpoints stay, as shards in them have left this ps and are in no newer one here: once a "
                "checkpoint of psctl is complete, they may be deleted folder={} names={}",
                dir_->checkpoint_dir(), absl::StrJoin(stay, ","));
}

void Checkpointer::NoteFailure(Kind kind, const std::string& name, const absl::Status& status) {
  LODESTONE_LOG(ERROR, "storage", "a checkpoint failed name={}: {}", name, status.ToString());
  MutexLock lock(&mu_);
  // The caller that asked for a named one gets the error. The others are tried again and again: the first of a row of
  // failures is an event.
  const bool is_first = kind == Kind::kPeriodic ? !std::exchange(failing_, true) : arrived_error_.empty();
  if (kind != Kind::kNamed && is_first) AddEvent("disk", absl::StrCat("a checkpoint failed: ", status.message()));
  ErrorOf(kind) = status.ToString();
}

std::string& Checkpointer::ErrorOf(Kind kind) { return kind == Kind::kArrived ? arrived_error_ : error_; }

void Checkpointer::DropSegments(std::vector<uint64_t> rolled) {
  if (std::exchange(replacing_, false)) {
    // What is whole may be older than the last two, and has to be brought forward by the log if this one is damaged.
    rolled_.assign(1, std::move(rolled));
    return;
  }
  rolled_.push_back(std::move(rolled));
  v1::StorageStatus status;
  store_->log().FillStatus(&status);
  const bool held = updates_ != nullptr && updates_->Held(status.log_bytes());
  uint64_t keep_from = base_generation_;  // The checkpoint before this one was written in an earlier start.
  if (rolled_.size() == kCheckpointsWithLog) {
    // The next checkpoint drops those too.
    if (!held) store_->log().DropBefore(rolled_.front());
    rolled_.pop_front();
    keep_from = dir_->generation();
  }
  if (held || dir_->path().empty() || keep_from == 0) return;
  const absl::Status status_of_files = dir_->RemoveLogsBefore(std::min(keep_from, dir_->generation()));
  if (!status_of_files.ok()) LODESTONE_LOG(WARN, "storage", "old log segments stay: {}", status_of_files.ToString());
}

bool Checkpointer::LogIsLong() const {
  if (!dir_->has_log() || store_ == nullptr) return false;
  const uint64_t grown = former_log_bytes_ + store_->log().written_bytes() - logged_bytes_;
  if (grown == 0) return false;
  if (config_.checkpoint().every_log_bytes() > 0) return grown >= config_.checkpoint().every_log_bytes();
  const absl::StatusOr<VolumeBytes> volume = VolumeBytesAt(dir_->path());
  return grown >= LogBytesBetweenCheckpoints(store_->tables().totals().second, volume.ok() ? volume->total : 0);
}

bool Checkpointer::Changed() const {
  if (replacing_) return true;
  for (const ShardId shard : store_->shards().whole()) {
    if (store_->shards().VersionOf(shard) != written_versions_[shard]) return true;
    if (!IsStateWritten(shard)) return true;
  }
  return false;
}

bool Checkpointer::HoldsStateOf(ShardId shard) const { return !dir_->has_log() || IsStateWritten(shard); }

bool Checkpointer::IsStateWritten(ShardId shard) const {
  return store_->shards().StateGeneration(shard) == written_states_[shard].load(std::memory_order_acquire);
}

void Checkpointer::Stop() {
  MutexLock lock(&mu_);
  stopped_ = true;
  if (writer_ != nullptr) writer_->Stop();
}

void Checkpointer::FillStatus(v1::StorageStatus* status) const {
  MutexLock lock(&mu_);
  status->MergeFrom(status_);
  if (const std::string& error = error_.empty() ? arrived_error_ : error_; !error.empty()) {
    status->set_checkpoint_error(error);
  }
  if (status_.checkpoint().empty()) return;
  status->set_checkpoint_age_seconds(static_cast<double>(time_->NowMs() - written_ms_) / 1000);
}

void Checkpointer::AddEvent(absl::string_view kind, absl::string_view text) const {
  if (events_ != nullptr) events_->Add(kind, absl::StrCat("ps ", config_.server().index()), text);
}

}  // namespace lodestone::server
