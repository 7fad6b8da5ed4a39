// What a running ps does beside pushes and pulls: checkpoints and rollbacks, one after the other, and what of a shard
// goes into a checkpoint.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "common/wire/shard_map.h"
#include "server/durability/data_dir.h"
#include "server/durability/recovery.h"

namespace lodestone::server {
namespace {

// CheckpointSoon waits for so long for more to come: states come one shard after the other.
constexpr std::chrono::milliseconds kSoon(100);
// Checkpoints whose log is kept: if the newest turns out to be damaged, the one before and the log since then will do.
constexpr size_t kCheckpointsWithLog = 2;

HistogramMetric checkpoint_metric("lodestone_ps_checkpoint_duration_seconds",
                                  "How long it takes to write a checkpoint.");

std::string GoalOf(const v1::RollbackRequest& request) {
  return request.has_version() ? absl::StrCat("version ", request.version()) : request.checkpoint();
}

}  // namespace

absl::StatusOr<v1::CheckpointResponse> Storage::Checkpoint(const std::string& name) {
  v1::CheckpointResponse response;
  LODESTONE_RETURN_IF_ERROR(RunJob([&]() -> absl::Status {
    LODESTONE_ASSIGN_OR_RETURN(response, WriteCheckpoint(name));
    return absl::OkStatus();
  }));
  return response;
}

absl::Status Storage::RunJob(std::function<absl::Status()> run) {
  Job job{std::move(run), std::nullopt};
  MutexLock lock(&mu_);
  if (!recovered_ || closing_) {
    return absl::UnavailableError("this ps has not brought its shards back yet, or ends");
  }
  jobs_.push_back(&job);
  changed_.NotifyAll();
  while (!job.result.has_value()) changed_.Wait(&mu_);
  return *std::move(job.result);
}

absl::StatusOr<v1::CheckpointResponse> Storage::WriteCheckpoint(const std::string& name) {
  // Whatever is in a segment before these marks is in the checkpoint.
  const std::vector<uint64_t> rolled = store_->log().Roll();
  CheckpointWriter::Source source;
  source.shards = store_->shards().held();
  source.collect = [this](ShardId shard, const Version* after) { return Collect(shard, after); };
  source.describe = [this](v1::ServerManifest* manifest) {
    manifest->set_servers(config_.cluster().servers());
    manifest->set_shards(config_.cluster().shards());
    manifest->set_seed(config_.cluster().seed());
    manifest->set_lineage(state_.lineage());
    manifest->set_generation(state_.generation());
    for (v1::TableSpec& spec : store_->tables().specs()) *manifest->add_tables() = std::move(spec);
    const Sessions::Known sessions = store_->sessions().known();
    manifest->mutable_sessions()->Add(sessions.open.begin(), sessions.open.end());
    manifest->set_forgotten_max(sessions.forgotten_max);
    if (coordinator_) manifest->set_coordinator(coordinator_().SerializeAsString());
  };
  const absl::StatusOr<CheckpointWriter::Result> result = writer_->Write(name, source);
  if (!result.ok()) {
    LODESTONE_LOG(ERROR, "storage", "a checkpoint failed name={}: {}", name, result.status().ToString());
    // Whoever asked for a named one is told. Others are tried again and again, and of a row of failures the first is
    // news.
    if (name.empty() && !std::exchange(failure_told_, true)) {
      Tell("disk", absl::StrCat("a checkpoint failed: ", result.status().message()));
    }
    MutexLock lock(&mu_);
    checkpoints_.set_checkpoint_error(result.status().ToString());
    return result.status();
  }
  // A named one is nothing to build on.
  for (const auto& entry : result->manifest.contents()) {
    written_versions_[entry.shard()] = entry.version();
    if (name.empty()) written_states_[entry.shard()] = collected_states_[entry.shard()];
  }
  if (name.empty()) failure_told_ = false;
  if (name.empty() && checkpoint_listener_) checkpoint_listener_();
  // A named one may be deleted by hand at any time, so the log is kept for periodic ones.
  if (name.empty()) DropSegments(rolled);
  v1::CheckpointResponse response;
  response.set_path(result->path);
  response.set_shards(static_cast<uint32_t>(result->manifest.contents_size()));
  response.set_bytes(result->bytes);
  response.set_seconds(result->seconds);
  checkpoint_metric.ObserveNs(static_cast<int64_t>(result->seconds * 1e9));
  LODESTONE_LOG(INFO, "storage", "checkpoint={} shards={} bytes={} seconds={:.2f}", response.path(), response.shards(),
                response.bytes(), response.seconds());
  Tell("checkpointed",
       absl::StrFormat("%s: %u shards, %u bytes in %.2f s", response.path().substr(response.path().rfind('/') + 1),
                       response.shards(), response.bytes(), response.seconds()));
  MutexLock lock(&mu_);
  checkpoints_.set_checkpoint(response.path());
  checkpoints_.set_checkpoint_seconds(response.seconds());
  checkpoints_.set_checkpoint_bytes(response.bytes());
  checkpoints_.clear_checkpoint_error();
  checkpoint_ms_ = time_->NowMs();
  return response;
}

void Storage::DropSegments(std::vector<uint64_t> rolled) {
  rolled_.push_back(std::move(rolled));
  uint64_t keep_from = base_generation_;  // The checkpoint before this one was written in an earlier start.
  if (rolled_.size() == kCheckpointsWithLog) {
    store_->log().DropBefore(rolled_.front());
    rolled_.pop_front();
    keep_from = state_.generation();
  }
  if (dir_.empty() || keep_from == 0) return;
  const absl::Status status = RemoveSegmentsBefore(dir_ + "/log", keep_from);
  if (!status.ok()) LODESTONE_LOG(WARN, "storage", "old log segments stay: {}", status.ToString());
}

absl::StatusOr<v1::RollbackResponse> Storage::Rollback(const v1::RollbackRequest& request) {
  v1::RollbackResponse response;
  LODESTONE_RETURN_IF_ERROR(RunJob([&]() -> absl::Status {
    absl::StatusOr<v1::RollbackResponse> done = RollBackTable(request);
    SetWait("");
    if (!done.ok()) {
      LODESTONE_LOG(ERROR, "storage", "a rollback failed table={}: {}", request.table(), done.status().ToString());
      return done.status();
    }
    response = *std::move(done);
    LODESTONE_LOG(INFO, "storage", "a table has gone back table={} shards={} seconds={:.2f}", request.table(),
                  response.shards_size(), response.seconds());
    Tell("rolled back",
         absl::StrCat("table ", request.table(), " to ", GoalOf(request), ": ", response.shards_size(), " shards"));
    return absl::OkStatus();
  }));
  return response;
}

absl::StatusOr<PastParts> Storage::OpenPast(const v1::RollbackRequest& request, const v1::TableSpec& table) {
  const std::vector<ShardId> shards = store_->shards().owned();
  if (!request.has_version()) {
    return PartsInCheckpoint(checkpoint_dir_, request.checkpoint(), Header(), table, shards);
  }
  if (dir_.empty() || durability_ == v1::ClusterConfig::MEMORY) {
    return absl::FailedPreconditionError(
        "this ps keeps no log to find a version in: name a checkpoint, or set server.data_dir and start it again");
  }
  RecoveryOptions options;
  options.cluster = Header();
  options.log_dir = dir_ + "/log";
  options.checkpoint_dir = checkpoint_dir_;
  options.lineage = state_.lineage();
  options.until = request.version();
  options.has_followers = config_.cluster().replicas() > 1;
  options.stop = &stop_rollback_;
  return PartsAtVersion(options, store_->shards().executors().size(), time_, table, shards);
}

absl::StatusOr<v1::RollbackResponse> Storage::RollBackTable(const v1::RollbackRequest& request) {
  const int64_t start_ms = time_->NowMs();
  const std::vector<v1::TableSpec> specs = store_->tables().specs();
  const auto spec =
      std::find_if(specs.begin(), specs.end(), [&](const v1::TableSpec& one) { return one.name() == request.table(); });
  if (spec == specs.end()) return absl::NotFoundError(absl::StrCat("there is no table `", request.table(), "`"));
  SetWait(absl::StrCat("what table `", request.table(), "` held, to go back to it"));
  LODESTONE_ASSIGN_OR_RETURN(const PastParts past, OpenPast(request, *spec));
  v1::RollbackResponse response;
  const auto failed = [&](const absl::Status& status) {
    return Annotate(status, absl::StrCat(response.shards_size(), " shards of this ps have gone back"));
  };
  for (const ShardId shard : store_->shards().owned()) {
    if (stop_rollback_.load()) return failed(absl::CancelledError("the ps ends"));
    bool holds = false;
    store_->shards().Run(shard, [&](Shard* owned) { holds = owned->Holds(TableIdOf(request.table())); });
    if (!holds) continue;
    SetWait(absl::StrCat("shard ", shard, " of table `", request.table(), "` to go back"));
    const absl::StatusOr<std::shared_ptr<const TablePart>> part = past(shard);
    if (!part.ok()) return failed(part.status());
    if (*part == nullptr) continue;
    const absl::StatusOr<Version> version = store_->replayer().RollBack(shard, *part);
    if (!version.ok()) return failed(version.status());
    v1::RollbackResponse::ShardRollback* const out = response.add_shards();
    out->set_shard(shard);
    out->set_version_before(*version - 1);
    out->set_version_after(*version);
    out->set_version_restored((*part)->version);
  }
  response.set_seconds(static_cast<double>(time_->NowMs() - start_ms) / 1000);
  return response;
}

bool Storage::Changed() const {
  for (const ShardId shard : store_->shards().held()) {
    if (store_->shards().VersionOf(shard) != written_versions_[shard]) return true;
    if (store_->shards().StateGeneration(shard) != written_states_[shard]) return true;
  }
  return false;
}

absl::StatusOr<Shard::State> Storage::Collect(ShardId shard, const Version* after) {
  std::optional<Shard::State> state;
  store_->shards().Run(shard, [&](Shard* held) {
    if (store_->shards().RoleOf(shard) < ShardRole::kFollows) return;
    // What was written of a shard before its state was taken from another ps is no base for what it holds now.
    const bool builds = store_->shards().StateGeneration(shard) == written_states_[shard];
    collected_states_[shard] = store_->shards().StateGeneration(shard);
    state = held->CollectState(builds ? after : nullptr);
  });
  if (state.has_value()) return *std::move(state);
  return absl::NotFoundError(absl::StrCat("shard ", shard, " is being taken from its owner anew"));
}

bool Storage::HoldsStateOf(ShardId shard) const {
  return !HasLog() || store_->shards().StateGeneration(shard) == written_states_[shard].load(std::memory_order_acquire);
}

void Storage::CheckpointSoon() {
  if (dir_.empty()) return;
  MutexLock lock(&mu_);
  if (soon_at_.has_value()) return;
  soon_at_ = std::chrono::steady_clock::now() + kSoon;
  changed_.NotifyAll();
}

absl::Status Storage::health() const {
  {
    MutexLock lock(&mu_);
    if (!recovered_) return absl::OkStatus();
  }
  return store_->log().health();
}

void Storage::Tell(absl::string_view kind, absl::string_view text) const {
  if (events_ != nullptr) events_->Add(kind, absl::StrCat("ps ", config_.server().index()), text);
}

void Storage::SetWait(std::string what) {
  const int64_t now_ms = time_->NowMs();
  MutexLock lock(&mu_);
  if (wait_.empty()) wait_since_ms_ = now_ms;
  wait_ = std::move(what);
}

}  // namespace lodestone::server
