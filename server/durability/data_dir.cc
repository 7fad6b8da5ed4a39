#include "server/durability/data_dir.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/nonce.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/io/record_file.h"
#include "common/telemetry/log.h"
#include "server/checkpoint/manifest.h"
#include "server/durability/recovery.h"
#include "server/wal/segment_name.h"

namespace lodestone::server {
namespace {

constexpr uint32_t kFormat = 1;
constexpr uint64_t kFirstLineage = 1;
// Until a checkpoint that somebody waits for is tried again.
constexpr std::chrono::milliseconds kAgain(1000);

double SecondsBetween(int64_t from_ms, int64_t to_ms) { return static_cast<double>(to_ms - from_ms) / 1000; }

}  // namespace

v1::ClusterConfig::Durability DurabilityOf(const v1::Config& config) {
  const v1::ClusterConfig::Durability configured = config.cluster().durability();
  if (configured != v1::ClusterConfig::AUTO) return configured;
  if (config.cluster().replicas() > 1) return v1::ClusterConfig::REPLICA;
  return config.server().data_dir().empty() ? v1::ClusterConfig::MEMORY : v1::ClusterConfig::PROCESS;
}

Storage::Storage(const v1::Config& config, const TimeSource* time)
    : config_(config),
      time_(time),
      durability_(DurabilityOf(config)),
      checkpoint_dir_(config.checkpoint().dir()),
      written_states_(config.cluster().shards()),
      written_versions_(config.cluster().shards()),
      collected_states_(config.cluster().shards()) {
  const std::string& data_dir = config.server().data_dir();
  if (!data_dir.empty()) {
    dir_ = absl::StrCat(data_dir, "/ps-", config.server().index());
    if (checkpoint_dir_.empty()) checkpoint_dir_ = data_dir + "/checkpoints";
  }
}

Storage::~Storage() {
  Stop();
  Close();
}

absl::StatusOr<std::unique_ptr<Storage>> Storage::Open(const v1::Config& config, const TimeSource* time) {
  if (!IsWanted(config)) return nullptr;
  std::unique_ptr<Storage> storage(new Storage(config, time));
  if (!storage->dir_.empty()) {
    LODESTONE_RETURN_IF_ERROR(storage->TakeFolder());
    LODESTONE_RETURN_IF_ERROR(storage->LoadState());
  }
  return storage;
}

absl::Status Storage::TakeFolder() {
  LODESTONE_RETURN_IF_ERROR(MakeFolders(dir_ + "/log"));
  LODESTONE_ASSIGN_OR_RETURN(File lock, File::Open(dir_ + "/lock", O_RDWR | O_CREAT));
  if (flock(lock.fd(), LOCK_EX | LOCK_NB) != 0) {
    return absl::UnavailableError(absl::StrCat(
        "another process holds ", lock.path(), " (",
        errno == EWOULDBLOCK ? "a ps that uses the same server.data_dir and index" : "the file cannot be locked", ")"));
  }
  lock_ = std::move(lock);
  return absl::OkStatus();
}

absl::Status Storage::LoadState() {
  const std::string path = dir_ + "/state";
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(dir_));
  if (std::find(names.begin(), names.end(), "state") == names.end()) {
    state_.set_lineage(kFirstLineage);
    state_.set_member_token(DrawNonce());
    return SaveState();
  }
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<RecordReader> reader, RecordReader::Open(path));
  ByteView payload;
  if (reader->Next(&state_, &payload) != RecordReader::Outcome::kRecord) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: ", reader->error().message(),
                                            "; without it, a checkpoint can be loaded into an empty server.data_dir"));
  }
  const auto differs = [&path](absl::string_view what, auto there, auto here) {
    return absl::FailedPreconditionError(absl::StrCat("server.data_dir belongs to something else: ", path, " says ",
                                                      what, " ", there, ", and the configuration ", here));
  };
  const v1::ClusterConfig& cluster = config_.cluster();
  if (state_.format() != kFormat) return differs("format", state_.format(), kFormat);
  if (state_.cluster() != cluster.name()) return differs("cluster.name", state_.cluster(), cluster.name());
  if (state_.server() != config_.server().index())
    return differs("server.index", state_.server(), config_.server().index());
  if (state_.shards() != cluster.shards()) return differs("cluster.shards", state_.shards(), cluster.shards());
  if (state_.seed() != cluster.seed()) return differs("cluster.seed", state_.seed(), cluster.seed());
  former_token_ = state_.member_token();
  state_.set_member_token(DrawNonce());
  return SaveState();
}

absl::StatusOr<std::optional<v1::CoordinatorState>> Storage::CoordinatorOfCheckpoints() const {
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<FoundManifest> found, FindManifests(checkpoint_dir_));
  const v1::ServerManifest* newest = nullptr;
  for (const FoundManifest& one : found) {
    if (!one.manifest.ok() || one.manifest->coordinator().empty()) continue;
    if (newest == nullptr || one.manifest->created_ms() > newest->created_ms()) newest = &*one.manifest;
  }
  if (newest == nullptr) return std::nullopt;
  v1::CoordinatorState state;
  if (state.ParseFromString(newest->coordinator())) return state;
  return absl::DataLossError(absl::StrCat("the checkpoint ", newest->name(), " in ", checkpoint_dir_,
                                          " holds no state of the coordinator where it should"));
}

absl::Status Storage::SaveState() {
  state_.set_format(kFormat);
  state_.set_cluster(config_.cluster().name());
  state_.set_server(config_.server().index());
  state_.set_servers(config_.cluster().servers());
  state_.set_shards(config_.cluster().shards());
  state_.set_seed(config_.cluster().seed());
  if (dir_.empty()) return absl::OkStatus();
  return ReplaceFile(dir_ + "/state", RecordBuilder(state_, {}).Copy());
}

v1::SegmentHeader Storage::Header() const {
  v1::SegmentHeader header;
  header.set_format(kFormat);
  header.set_cluster(config_.cluster().name());
  header.set_shards(config_.cluster().shards());
  header.set_seed(config_.cluster().seed());
  header.set_server(config_.server().index());
  header.set_lineage(state_.lineage());
  header.set_generation(state_.generation());
  header.set_program(kVersion);
  return header;
}

absl::Status Storage::Recover(Store* store, const std::vector<ShardId>& shards) {
  const int64_t start_ms = time_->NowMs();
  store_ = store;
  store->shards().Adopt(shards);
  const std::string& load = config_.checkpoint().load();
  const bool goes_back = !load.empty() && load != state_.loaded();
  if (!load.empty() && !goes_back) {
    LODESTONE_LOG(INFO, "storage", "checkpoint={} was loaded before; goes on from the newest state", load);
  }
  RecoveryOptions options;
  options.cluster = Header();
  options.log_dir = dir_.empty() ? "" : dir_ + "/log";
  options.checkpoint_dir = checkpoint_dir_;
  options.checkpoint = goes_back ? load : "";
  options.use_log = !goes_back;
  options.has_followers = config_.cluster().replicas() > 1;
  options.lineage = state_.lineage();
  options.cut_damaged_log = config_.server().cut_damaged_log();
  if (!goes_back && !dir_.empty()) options.former_log_dirs = FormerLogs();
  options.stop = &stop_;
  options.progress = [this](const std::string& what) { SetWait(what); };
  LODESTONE_ASSIGN_OR_RETURN(const RecoveryReport report, lodestone::server::Recover(options, store));
  for (const std::string& note : report.notes) LODESTONE_LOG(WARN, "storage", "{}", note);

  state_.set_lineage(std::max(state_.lineage(), report.lineage) + (goes_back ? 1 : 0));
  state_.set_generation(std::max(state_.generation(), report.generation) + 1);
  // The state is saved when the logs of the generation are there, and names the checkpoint that was gone back to only
  // once the first one of the new lineage is written: until then, a crash goes back again.
  LODESTONE_ASSIGN_OR_RETURN(writer_, CheckpointWriter::Open({.dir = checkpoint_dir_,
                                                              .cluster = config_.cluster().name(),
                                                              .server = config_.server().index(),
                                                              .keep = config_.checkpoint().keep(),
                                                              .full_every = config_.checkpoint().full_every()}));
  if ((goes_back && HasLog()) || report.cut_damage) {
    SetWait(goes_back ? absl::StrCat("a first checkpoint after loading ", load)
                      : std::string("a checkpoint in place of the damaged log"));
    LODESTONE_RETURN_IF_ERROR(WriteCheckpoint("").status());
  }
  if (report.cut_damage) LODESTONE_RETURN_IF_ERROR(RemoveSegmentsBefore(options.log_dir, state_.generation()));
  if (goes_back) state_.set_loaded(load);
  LODESTONE_RETURN_IF_ERROR(SaveState());
  LODESTONE_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<ShardLog>> logs, OpenLogs(store->shards().executors().size()));
  replayed_records_ = report.records;
  base_generation_ = goes_back ? 0 : report.base_generation;
  if (!goes_back) written_versions_ = report.base_versions;
  recovery_seconds_ = SecondsBetween(start_ms, time_->NowMs());
  if (report.shards_from_checkpoints > 0 || report.records > 0) {
    LODESTONE_LOG(INFO, "storage", "is back shards_from_checkpoints={} log_records={} log_bytes={} seconds={:.2f}",
                  report.shards_from_checkpoints, report.records, report.record_bytes, recovery_seconds_);
  }
  store->Serve(std::move(logs));
  SetWait("");
  StartCheckpoints();
  return absl::OkStatus();
}

std::vector<std::pair<uint32_t, std::string>> Storage::FormerLogs() const {
  std::vector<std::pair<uint32_t, std::string>> logs;
  const auto names = ListFolder(config_.server().data_dir());
  if (!names.ok()) return logs;
  for (const std::string& name : *names) {
    uint32_t server = 0;
    if (!absl::StartsWith(name, "ps-") || !absl::SimpleAtoi(name.substr(3), &server)) continue;
    const std::string log_dir = absl::StrCat(config_.server().data_dir(), "/", name, "/log");
    if (server >= config_.cluster().servers() && ListFolder(log_dir).ok()) logs.emplace_back(server, log_dir);
  }
  return logs;
}

absl::StatusOr<std::vector<std::unique_ptr<ShardLog>>> Storage::OpenLogs(size_t count) const {
  std::vector<std::unique_ptr<ShardLog>> logs;
  if (!HasLog()) return logs;
  for (size_t i = 0; i < count; ++i) {
    ShardLog::Options options;
    options.segments.dir = dir_ + "/log";
    options.segments.header = Header();
    options.segments.header.set_log(static_cast<uint32_t>(i));
    options.segments.sync = durability_ == v1::ClusterConfig::MACHINE;
    options.segment_bytes_max = config_.server().log_segment_bytes();
    LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<ShardLog> log, ShardLog::Open(std::move(options)));
    logs.push_back(std::move(log));
  }
  return logs;
}

void Storage::StartCheckpoints() {
  MutexLock lock(&mu_);
  recovered_ = true;
  thread_ = std::thread([this] { RunCheckpoints(); });
}

void Storage::RunCheckpoints() {
  const std::chrono::milliseconds period(config_.checkpoint().every_ms());
  auto next = std::chrono::steady_clock::now() + period;
  MutexLock lock(&mu_);
  while (!closing_) {
    std::optional<std::chrono::steady_clock::time_point> wake = soon_at_;
    if (period.count() > 0) wake = std::min(next, wake.value_or(next));
    const bool due = wake.has_value() && std::chrono::steady_clock::now() >= *wake;
    if (jobs_.empty() && !due) {
      if (wake.has_value()) {
        changed_.WaitUntil(&mu_, *wake);
      } else {
        changed_.Wait(&mu_);
      }
      continue;
    }
    Job* job = nullptr;
    const bool soon = soon_at_.has_value();
    if (!jobs_.empty()) {
      job = jobs_.front();
      jobs_.pop_front();
    } else {
      soon_at_.reset();
    }
    mu_.Unlock();
    absl::Status result;
    if (job != nullptr) {
      result = job->run();
    } else if (Changed()) {
      result = WriteCheckpoint("").status();
    }
    mu_.Lock();
    if (job == nullptr && soon && !result.ok()) soon_at_ = std::chrono::steady_clock::now() + kAgain;
    if (job != nullptr) {
      job->result = std::move(result);
      changed_.NotifyAll();
    }
    if (due) next = std::chrono::steady_clock::now() + period;
  }
}

void Storage::Stop() {
  StopRollback();
  stop_.store(true);
  if (writer_ != nullptr) writer_->Stop();
}

void Storage::Close() {
  StopRollback();
  {
    MutexLock lock(&mu_);
    if (closing_ || !recovered_) return;
    closing_ = true;
    for (Job* const job : jobs_) job->result = absl::UnavailableError("this ps ends");
    jobs_.clear();
    changed_.NotifyAll();
  }
  thread_.join();
  if (stop_.load() || !config_.checkpoint().at_exit() || !Changed()) return;
  WriteCheckpoint("").IgnoreError();  // Has been logged.
}

void Storage::FillStatus(v1::StatusResponse* status) const {
  MutexLock lock(&mu_);
  const int64_t now_ms = time_->NowMs();
  if (!wait_.empty()) {
    v1::WaitStatus* const wait = status->add_waits();
    wait->set_who(absl::StrCat("ps ", config_.server().index()));
    wait->set_what(wait_);
    wait->set_seconds(SecondsBetween(wait_since_ms_, now_ms));
  }
  v1::StorageStatus* const storage = status->mutable_storage();
  *storage = checkpoints_;
  storage->set_dir(dir_.empty() ? checkpoint_dir_ : dir_);
  storage->set_durability(absl::AsciiStrToLower(v1::ClusterConfig::Durability_Name(durability_)));
  if (!storage->checkpoint().empty()) storage->set_checkpoint_age_seconds(SecondsBetween(checkpoint_ms_, now_ms));
  if (!recovered_) return;
  storage->set_replayed_records(replayed_records_);
  storage->set_recovery_seconds(recovery_seconds_);
  store_->log().FillStatus(storage);
}

}  // namespace lodestone::server
