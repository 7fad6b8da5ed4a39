#include "server/durability/storage.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/numbers_text.h"
#include "common/base/planted_defect.h"
#include "common/base/status.h"
#include "common/config/checkpoint_to_load.h"
#include "common/io/file.h"
#include "common/telemetry/log.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/gone_back.h"
#include "server/durability/recovery.h"
#include "server/store/store.h"

namespace lodestone::server {
namespace {

constexpr size_t kShardRunsMax = 8;  // Named in an error.

double SecondsBetween(int64_t from_ms, int64_t to_ms) { return static_cast<double>(to_ms - from_ms) / 1000; }

std::string GoalOf(const v1::RollbackRequest& request) {
  return request.has_version() ? absl::StrCat("version ", request.version()) : request.checkpoint();
}

}  // namespace

Storage::Storage(const v1::Config& config, const TimeSource* time, EventLog* events, std::unique_ptr<DataDir> dir,
                 FileCalls calls)
    : config_(config),
      load_(ParseCheckpointToLoad(config.checkpoint().load()).value_or(CheckpointToLoad())),
      time_(time),
      events_(events),
      dir_(std::move(dir)),
      calls_(std::move(calls)),
      checkpointer_(config, dir_.get(), time, events),
      rollback_(config, dir_.get(), time, [this](std::string what) { SetWait(std::move(what)); }),
      scheduler_(std::chrono::milliseconds(config.checkpoint().every_ms()),
                 {.checkpoint =
                      [this] { return checkpointer_.Changed() ? checkpointer_.Write("").status() : absl::OkStatus(); },
                  .arrived = [this] { return checkpointer_.WriteArrived(); },
                  .is_due = [this] { return checkpointer_.LogIsLong(); }}),
      scrubber_({.dir = dir_->checkpoint_dir(),
                 .cluster = config.cluster().name(),
                 .server = config.server().index(),
                 .period = std::chrono::milliseconds(config.checkpoint().scrub_every_ms())},
                [this](const std::vector<std::string>& damaged) {
                  return scheduler_.Run([&] { return checkpointer_.Replace(damaged); });
                }) {}

Storage::~Storage() {
  Stop();
  Close();
}

absl::StatusOr<std::unique_ptr<Storage>> Storage::Open(const v1::Config& config, const TimeSource* time,
                                                       EventLog* events, FileCalls calls) {
  if (!IsWanted(config)) return nullptr;
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<DataDir> dir, DataDir::Open(config));
  return std::unique_ptr<Storage>(new Storage(config, time, events, std::move(dir), std::move(calls)));
}

RecoveryOptions Storage::OptionsOfRecovery() {
  const bool goes_back = dir_->goes_back();
  RecoveryOptions options;
  options.cluster = dir_->Header();
  options.log_dir = dir_->log_dir();
  options.checkpoint_dir = dir_->checkpoint_dir();
  options.checkpoint = goes_back ? load_.name : "";
  options.use_log = !goes_back;
  options.has_followers = config_.cluster().replicas() > 1 || dir_->has_followed();
  options.servers_changed = dir_->servers() != 0 && dir_->servers() != config_.cluster().servers();
  options.cut_damaged_log = config_.server().cut_damaged_log();
  options.sealed_generation = dir_->sealed_generation();
  options.unsynced_boot = dir_->unsynced_boot();
  options.begun = dir_->generation();
  options.seal = &calls_;
  if (!goes_back && !dir_->path().empty()) options.former_log_dirs = dir_->FormerLogs();
  options.stop = &stop_;
  options.progress = [this](const std::string& what) { SetWait(what); };
  return options;
}

absl::Status Storage::Recover(Store* store, const std::vector<ShardId>& shards, const std::vector<ShardId>& copies) {
  const int64_t start_ms = time_->NowMs();
  std::vector<ShardId> all = shards;
  all.insert(all.end(), copies.begin(), copies.end());
  std::sort(all.begin(), all.end());
  store->shards().Adopt(all);
  for (const ShardId shard : copies) store->shards().SetRole(shard, ShardRole::kFollows);
  const std::string& load = config_.checkpoint().load();
  LODESTONE_RETURN_IF_ERROR(SettleGoingBack(shards));
  const bool goes_back = dir_->goes_back();
  if (!load.empty() && !goes_back) {
    LODESTONE_LOG(
        INFO, "storage",
        "checkpoint={} was loaded before; goes on from the newest state (checkpoint.load: {}#{} would go back "
        "to it again)",
        load, load_.name, load_.time + 1);
  }
  LODESTONE_ASSIGN_OR_RETURN(const RecoveryReport report, lodestone::server::Recover(OptionsOfRecovery(), store));
  for (const std::string& note : report.notes) LODESTONE_LOG(WARN, "storage", "{}", note);
  LODESTONE_RETURN_IF_ERROR(BeginLife(report, store));
  LODESTONE_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<ShardLog>> logs,
                             dir_->OpenLogs(store->shards().executors().size(), calls_));
  if (!goes_back) checkpointer_.StartFrom(report.base_versions, report.base_generation, report.record_bytes);
  const double seconds = SecondsBetween(start_ms, time_->NowMs());
  if (report.shards_from_checkpoints > 0 || report.records > 0) {
    LODESTONE_LOG(INFO, "storage", "is back shards_from_checkpoints={} log_records={} log_bytes={} seconds={:.2f}",
                  report.shards_from_checkpoints, report.records, report.record_bytes, seconds);
  }
  if (!logs.empty()) {
    updates_ = std::make_unique<UpdateLog>(dir_->log_dir(), dir_->Header(), report.newest);
    checkpointer_.KeepHeldSegmentsOf(updates_.get());
    open_updates_.store(updates_.get(), std::memory_order_release);  // Before followers can ask for anything.
  }
  shared_.store(dir_->has_followed(), std::memory_order_release);  // It is saved, as is the generation.
  generation_.store(dir_->generation(), std::memory_order_release);
  store->Serve(std::move(logs));
  SetWait("");
  {
    MutexLock lock(&mu_);
    store_ = store;
    replayed_records_ = report.records;
    recovery_seconds_ = seconds;
  }
  scheduler_.Start();
  scrubber_.Start();
  return absl::OkStatus();
}

absl::Status Storage::BeginLife(const RecoveryReport& report, Store* store) {
  const std::string& load = config_.checkpoint().load();
  const bool goes_back = dir_->goes_back();
  const uint64_t generation = std::max(dir_->generation(), report.generation);
  // What goes back has not looked at the logs.
  if (!goes_back) dir_->SetSealed(generation);
  dir_->SetGeneration(generation + 1);
  LODESTONE_RETURN_IF_ERROR(BeginLineages(goes_back, report, store));
  // The state is saved before there are logs of the generation, and names the checkpoint that was gone back to only
  // once the first one of the new lineages is written: until then, a crash goes back again.
  LODESTONE_RETURN_IF_ERROR(checkpointer_.Open(store));
  const bool keeps_gone_back = goes_back && !dir_->path().empty();
  if (keeps_gone_back || (dir_->has_log() && report.newest_damaged) || report.cut_damage) {
    // First the state: a start after one that was killed here takes the next generation, and not the one after.
    LODESTONE_RETURN_IF_ERROR(dir_->SaveState());
    SetWait(goes_back ? absl::StrCat("a first checkpoint after loading ", load)
                      : std::string("a checkpoint in place of what is damaged"));
    LODESTONE_RETURN_IF_ERROR(checkpointer_.Write("").status());
  }
  // What is superseded goes before it is noted that the ps has gone back: a start after that finds nothing of what it
  // left in the logs.
  if (report.cut_damage || keeps_gone_back) {
    LODESTONE_RETURN_IF_ERROR(dir_->RemoveLogsBefore(dir_->generation()));
    LODESTONE_RETURN_IF_ERROR(SyncFolder(dir_->log_dir()));
  }
  if (keeps_gone_back) LODESTONE_RETURN_IF_ERROR(NoteOwnedGoneBack(*store));
  if (goes_back) dir_->SetLoaded(load);
  dir_->SetServers();
  dir_->SetBegun();
  return dir_->SaveState();
}

absl::Status Storage::SettleGoingBack(const std::vector<ShardId>& shards) {
  if (!dir_->goes_back() || dir_->path().empty() || shards.empty()) return absl::OkStatus();
  const std::string& load = config_.checkpoint().load();
  LODESTONE_ASSIGN_OR_RETURN(const GoneBack noted, FindGoneBack(dir_->checkpoint_dir(), load_));
  if (noted.empty()) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(const CheckpointReader all, CheckpointReader::Open(dir_->checkpoint_dir()));
  std::vector<ShardId> gone_back, others;
  for (const ShardId shard : shards) {
    const auto found = noted.find(shard);
    const std::vector<CheckpointReader::State> states = all.StatesOf(shard);
    const bool still = found != noted.end() && !states.empty() && states[0].files.lineage <= found->second;
    (still ? gone_back : others).push_back(shard);
  }
  if (gone_back.empty()) return absl::OkStatus();
  if (!others.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("of the shards of this ps, ", NumbersText(gone_back, kShardRunsMax),
                     " have gone back to checkpoint `", load, "` before, and ", NumbersText(others, kShardRunsMax),
                     " have not: start it without checkpoint.load to go on from the newest states"));
  }
  dir_->SetLoaded(load);
  return absl::OkStatus();
}

absl::Status Storage::NoteOwnedGoneBack(const Store& store) const {
  GoneBack shards;
  for (const ShardId shard : store.shards().adopted()) {
    if (store.shards().RoleOf(shard) == ShardRole::kOwns) shards[shard] = store.shards().Get(shard)->lineage();
  }
  if (shards.empty()) return absl::OkStatus();
  return NoteGoneBack(dir_->checkpoint_dir(), load_, config_.server().index(), shards);
}

absl::Status Storage::BeginLineages(bool goes_back, const RecoveryReport& report, Store* store) {
  std::vector<uint64_t> lineages = report.lineages;
  if (goes_back) {
    LODESTONE_ASSIGN_OR_RETURN(const CheckpointReader all, CheckpointReader::Open(dir_->checkpoint_dir()));
    for (ShardId shard = 0; shard < lineages.size(); ++shard) {
      const std::vector<CheckpointReader::State> states = all.StatesOf(shard);
      lineages[shard] = states.empty() ? 0 : states[0].files.lineage;
    }
  }
  uint64_t greatest = dir_->lineage();
  for (const ShardId shard : store->shards().adopted()) {
    // That of a copy is its owner's.
    if (store->shards().RoleOf(shard) != ShardRole::kOwns) continue;
    // What goes back ranks above all that was written of it, by any ps that writes into the folder.
    if (goes_back && !Planted(Defect::kLineageKept)) lineages[shard] = std::max(lineages[shard], dir_->lineage()) + 1;
    if (lineages[shard] == 0) lineages[shard] = dir_->lineage();  // Nothing was there.
  }
  for (const uint64_t lineage : lineages) greatest = std::max(greatest, lineage);
  dir_->SetLineage(greatest);
  store->shards().SetLineages(std::move(lineages));
  return absl::OkStatus();
}

absl::Status Storage::NoteShared() {
  if (shared_.load(std::memory_order_acquire)) return absl::OkStatus();
  MutexLock lock(&mu_);
  if (store_ == nullptr) return absl::UnavailableError("the ps is not back yet");
  dir_->SetShared();
  LODESTONE_RETURN_IF_ERROR(dir_->SaveState());
  shared_.store(true, std::memory_order_release);
  return absl::OkStatus();
}

absl::StatusOr<v1::CheckpointResponse> Storage::Checkpoint(const std::string& name) {
  v1::CheckpointResponse response;
  LODESTONE_RETURN_IF_ERROR(scheduler_.Run([&]() -> absl::Status {
    LODESTONE_ASSIGN_OR_RETURN(response, checkpointer_.Write(name));
    return absl::OkStatus();
  }));
  return response;
}

absl::Status Storage::RemoveCheckpoint(const std::string& name) {
  return scheduler_.Run([&] { return checkpointer_.Remove(name); });
}

void Storage::WriteArrivedSoon() {
  if (!dir_->path().empty()) scheduler_.Soon();
}

absl::StatusOr<v1::RollbackResponse> Storage::Rollback(const v1::RollbackRequest& request) {
  v1::RollbackResponse response;
  LODESTONE_RETURN_IF_ERROR(scheduler_.Run([&]() -> absl::Status {
    Store* store = nullptr;
    {
      MutexLock lock(&mu_);
      store = store_;
    }
    absl::StatusOr<v1::RollbackResponse> done = rollback_.Run(request, store);
    SetWait("");
    if (!done.ok()) {
      LODESTONE_LOG(ERROR, "storage", "a rollback failed table={}: {}", request.table(), done.status().ToString());
      return done.status();
    }
    response = *std::move(done);
    LODESTONE_LOG(INFO, "storage", "a table has gone back table={} shards={} seconds={:.2f}", request.table(),
                  response.shards_size(), response.seconds());
    if (events_ != nullptr) {
      events_->Add(
          "rolled back", absl::StrCat("ps ", config_.server().index()),
          absl::StrCat("table ", request.table(), " to ", GoalOf(request), ": ", response.shards_size(), " shards"));
    }
    return absl::OkStatus();
  }));
  return response;
}

void Storage::Stop() {
  rollback_.Stop();
  stop_.store(true);
  checkpointer_.Stop();
}

void Storage::Close() {
  rollback_.Stop();
  const bool ends = scheduler_.Close();
  scrubber_.Stop();  // What it wants replaced is refused by now.
  if (!ends || stop_.load()) return;
  if (config_.checkpoint().at_exit() && checkpointer_.Changed()) {
    checkpointer_.Write("").IgnoreError();  // Has been logged.
  }
  if (absl::Status closed = dir_->NoteClosed(); !closed.ok()) {
    LODESTONE_LOG(WARN, "storage", "its end is not noted: {}", closed.ToString());
  }
}

absl::Status Storage::health() const {
  const Store* store = nullptr;
  {
    MutexLock lock(&mu_);
    store = store_;
  }
  return store == nullptr ? absl::OkStatus() : store->log().health();
}

void Storage::FillStatus(v1::StatusResponse* status) const {
  v1::StorageStatus* const storage = status->mutable_storage();
  storage->set_dir(dir_->path().empty() ? dir_->checkpoint_dir() : dir_->path());
  storage->set_durability(absl::AsciiStrToLower(v1::ClusterConfig::Durability_Name(dir_->durability())));
  checkpointer_.FillStatus(storage);
  scrubber_.FillStatus(storage);
  const int64_t now_ms = time_->NowMs();
  MutexLock lock(&mu_);
  if (!wait_.empty()) {
    v1::WaitStatus* const wait = status->add_waits();
    wait->set_who(absl::StrCat("ps ", config_.server().index()));
    wait->set_what(wait_);
    wait->set_seconds(SecondsBetween(wait_since_ms_, now_ms));
  }
  if (store_ == nullptr) return;
  storage->set_replayed_records(replayed_records_);
  storage->set_recovery_seconds(recovery_seconds_);
  store_->log().FillStatus(storage);
}

void Storage::SetWait(std::string what) {
  const int64_t now_ms = time_->NowMs();
  MutexLock lock(&mu_);
  if (wait_.empty()) wait_since_ms_ = now_ms;
  wait_ = std::move(what);
}

}  // namespace lodestone::server
