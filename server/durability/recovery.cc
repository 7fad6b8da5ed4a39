#include "server/durability/recovery.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "common/io/file.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/manifest.h"
#include "server/durability/saved_states.h"
#include "server/durability/shard_history.h"
#include "server/shard/shard.h"
#include "server/store/store.h"
#include "server/wal/log_reader.h"

namespace lodestone::server {
namespace {

constexpr size_t kDamageTold = 4;          // Notes in one error.
constexpr uint64_t kRecordsPerLook = 256;  // At the stop flag.

std::string NoteOf(const LogReader::Cut& cut) {
  const char* what = "";
  switch (cut.kind) {
    case LogReader::Cut::Kind::kTorn:
      what = "the end of the log was not written whole and is left out";
      break;
    case LogReader::Cut::Kind::kUnsynced:
      what = "the end of the log was not on the disk yet when the machine went down, and is left out";
      break;
    case LogReader::Cut::Kind::kDamaged:
      what = "the log is damaged, and what follows is left out";
      break;
  }
  return absl::StrCat(what, ": ", cut.file, " offset ", cut.offset, ", ", cut.bytes, " bytes: ", cut.reason);
}

class RecoveryRun {
 public:
  RecoveryRun(const RecoveryOptions& options, Store* store)
      : options_(options),
        store_(store),
        adopted_(options.cluster.shards()),
        saved_(options.cluster.shards()),
        shards_(options.cluster.shards()) {
    for (const ShardId shard : store->shards().adopted()) adopted_[shard] = shards_[shard].replays = true;
    MutexLock lock(&mu_);
    report_.base_versions.resize(options.cluster.shards());
  }

  absl::StatusOr<RecoveryReport> Run() {
    LODESTONE_RETURN_IF_ERROR(LoadCheckpoints());
    for (const auto& [server, dir] : options_.former_log_dirs) {
      v1::SegmentHeader expected = options_.cluster;
      expected.set_server(server);
      LODESTONE_RETURN_IF_ERROR(saved_.CheckLogs({dir, expected, options_.cut_damaged_log}));
    }
    LODESTONE_RETURN_IF_ERROR(WithDamage(ReplayLogs()));
    while (BeginAgain()) {
      LODESTONE_RETURN_IF_ERROR(LoadShards());
      LODESTONE_RETURN_IF_ERROR(WithDamage(ReplayLogs()));
    }
    LODESTONE_RETURN_IF_ERROR(CheckReached());
    ForgetRemains();
    NoteBases();
    MutexLock lock(&mu_);
    return std::move(report_);
  }

 private:
  struct ShardState {
    ShardHistory history;
    bool replays = false;  // In this pass over the logs.
    uint64_t lineage = 0;  // The greatest that was found.
    MarkedVersion newest;  // In the logs, of its history.
    // The start of this ps that wrote its checkpoint; 0: the checkpoint is another ps's, or named.
    std::optional<uint64_t> base_generation;
  };

  absl::Status LoadCheckpoints();
  // Restores the shards that are replayed.
  absl::Status LoadShards();
  absl::Status LoadShard(ShardId shard);
  // Empties the shards that were brought back to a history that ended, and has them alone replayed. False: there are
  // none.
  bool BeginAgain();
  // Adds what was passed over to an error: a log does not fit to a checkpoint because a newer one is damaged.
  absl::Status WithDamage(const absl::Status& status);
  absl::Status ReplayLogs();
  // Replays the logs of one generation side by side: each shard's records are all in one of them.
  absl::Status ReplayGeneration(const std::vector<LogSegments>& logs);
  absl::Status ReplayLog(const LogSegments& log);
  // Whether the record belongs to what the shard started from, or an error if the shard lacks that. One that started
  // from nothing is of the lineage of its first record.
  absl::StatusOr<bool> Belongs(const v1::LogRecord& record, uint64_t lineage);
  // OK instead of `status`, which is about a shard, if the shard is a copy of another's: that copy does not count then.
  absl::Status UnlessCopy(ShardId shard, const absl::Status& status);
  // Whether a record that belongs is applied in this pass.
  bool IsReplayed(const v1::LogRecord& record);
  // Remembers the record as the shard's newest update, if it is.
  void NoteNewest(const v1::LogRecord& record);
  // FAILED_PRECONDITION if a shard that has come beyond options_.until could not be brought to it.
  absl::Status CheckReached() const;
  // Windows of workers whose sessions ended, which a replay may have made again; and rollbacks whose end was not
  // logged. A window of a worker that is not known is kept, and so is its session: that was logged elsewhere, and may
  // have been lost with the end of that log.
  void ForgetRemains();
  void NoteBases();

  bool stopped() const { return options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed); }
  void Tell(const std::string& what) const {
    if (options_.progress) options_.progress(what);
  }

  const RecoveryOptions& options_;
  Store* const store_;
  std::optional<CheckpointReader> reader_;
  std::vector<bool> adopted_;  // By shard.
  SavedStates saved_;
  std::vector<ShardState> shards_;  // Each is changed by the thread alone that loads it or replays its log.
  bool first_pass_ = true;

  Mutex mu_;
  RecoveryReport report_ ABSL_GUARDED_BY(mu_);
};

absl::Status RecoveryRun::LoadCheckpoints() {
  if (options_.checkpoint_dir.empty()) return absl::OkStatus();
  Tell("checkpoints are looked through");
  LODESTONE_ASSIGN_OR_RETURN(reader_, CheckpointReader::Open(options_.checkpoint_dir, options_.checkpoint));
  const v1::SegmentHeader& cluster = options_.cluster;
  LODESTONE_RETURN_IF_ERROR(reader_->CheckCluster(cluster.cluster(), cluster.shards(), cluster.seed()));
  for (ShardId shard = 0; shard < shards_.size(); ++shard) {
    const std::vector<CheckpointReader::State> states = reader_->StatesOf(shard);
    if (states.empty()) continue;
    if (states[0].files.version > options_.until) shards_[shard].history.LeaveOutNewest(states[0].files.term);
    saved_.Note(shard, {states[0].files.lineage, states[0].files.term, states[0].files.version});
    shards_[shard].lineage = states[0].files.lineage;
  }
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<v1::TableSpec> tables,
                             reader_->Tables(store_->shards().adopted(), options_.until));
  for (const v1::TableSpec& table : tables) LODESTONE_RETURN_IF_ERROR(store_->tables().Restore(table));
  {
    MutexLock lock(&mu_);
    report_.notes = reader_->problems();
  }
  return LoadShards();
}

absl::Status RecoveryRun::LoadShards() {
  if (!reader_.has_value()) return absl::OkStatus();
  std::vector<ShardId> shards;
  for (ShardId shard = 0; shard < shards_.size(); ++shard) {
    if (shards_[shard].replays) shards.push_back(shard);
  }
  std::vector<absl::Status> status(store_->shards().executors().size());
  std::vector<std::thread> threads;
  std::atomic<size_t> next{0};
  for (absl::Status& of_thread : status) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < shards.size() && of_thread.ok(); i = next++) {
        if (stopped()) of_thread = absl::CancelledError("the ps ends");
        if (of_thread.ok()) of_thread = LoadShard(shards[i]);
        Tell(absl::StrCat("its checkpoint: ", i + 1, " of ", shards.size(), " shards are read"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& of_thread : status) LODESTONE_RETURN_IF_ERROR(of_thread);
  return absl::OkStatus();
}

absl::Status RecoveryRun::LoadShard(ShardId shard) {
  std::vector<std::string> damage;
  absl::StatusOr<std::optional<CheckpointReader::State>> state;
  store_->shards().Run(shard, [&](Shard* owned) {
    state = reader_->Restore(owned, &damage, options_.until, [&](const CheckpointReader::State& one) {
      return !shards_[shard].history.HasEnded(one.files.term, one.files.version);
    });
  });
  MutexLock lock(&mu_);
  report_.notes.insert(report_.notes.end(), damage.begin(), damage.end());
  if (!state.ok()) return UnlessCopy(shard, state.status());
  if (!state->has_value()) return absl::OkStatus();
  const v1::ServerManifest& manifest = (*state)->manifest();
  shards_[shard].history.StartFrom((*state)->files.lineage);
  report_.base_versions[shard] = (*state)->files.version;
  for (const auto& update : manifest.newest_updates()) {
    const bool made = update.shard() == shard && update.version() == (*state)->files.version;
    if (made) shards_[shard].newest = {update.version(), update.mark()};
  }
  // A named one may be deleted by hand: then the periodic one before it counts again, and the log since then.
  const bool own = manifest.server() == options_.cluster.server() && IsPeriodic(manifest.name());
  shards_[shard].base_generation = own ? manifest.generation() : 0;
  const std::vector<Incarnation> sessions(manifest.sessions().begin(), manifest.sessions().end());
  const std::vector<Incarnation> ended(manifest.ended_sessions().begin(), manifest.ended_sessions().end());
  store_->replayer().RestoreSessions(sessions, manifest.forgotten_max(), ended);
  return absl::OkStatus();
}

absl::Status RecoveryRun::WithDamage(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (!absl::IsDataLoss(status) || report_.notes.empty()) return status;
  const size_t told = std::min(report_.notes.size(), kDamageTold);
  return absl::DataLossError(absl::StrCat(
      status.message(), "; before that: ", absl::StrJoin(report_.notes.begin(), report_.notes.begin() + told, "; "),
      told < report_.notes.size() ? absl::StrCat("; and ", report_.notes.size() - told, " more") : ""));
}

absl::Status RecoveryRun::ReplayLogs() {
  if (options_.log_dir.empty()) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<LogSegments> logs, ListLogs(options_.log_dir));
  std::map<uint64_t, std::vector<LogSegments>> generations;
  for (const LogSegments& log : logs) generations[log.front().generation].push_back(log);
  if (!generations.empty()) {
    MutexLock lock(&mu_);
    report_.generation = generations.rbegin()->first;
  }
  if (!options_.use_log) return absl::OkStatus();
  size_t done = 0;
  for (const auto& [generation, of_generation] : generations) {
    Tell(absl::StrCat("its log: ", done++, " of ", generations.size(), " runs are replayed"));
    LODESTONE_RETURN_IF_ERROR(ReplayGeneration(of_generation));
  }
  return absl::OkStatus();
}

absl::Status RecoveryRun::ReplayGeneration(const std::vector<LogSegments>& logs) {
  std::vector<absl::Status> status(logs.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < logs.size(); ++i) {
    threads.emplace_back([&, i] { status[i] = ReplayLog(logs[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& one : status) LODESTONE_RETURN_IF_ERROR(one);
  return absl::OkStatus();
}

absl::Status RecoveryRun::ReplayLog(const LogSegments& log) {
  const std::string boot = log.front().generation == options_.begun ? options_.unsynced_boot : "";
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<LogReader> reader,
                             LogReader::Open({.dir = options_.log_dir,
                                              .expected = options_.cluster,
                                              .cut_damaged = options_.cut_damaged_log,
                                              .sealed = log.front().generation <= options_.sealed_generation,
                                              .unsynced_boot = boot},
                                             log));
  v1::LogRecord record;
  ByteView payload;
  uint64_t seen = 0, applied = 0, bytes = 0;
  while (true) {
    if (++seen % kRecordsPerLook == 0 && stopped()) return absl::CancelledError("the ps ends");
    LODESTONE_ASSIGN_OR_RETURN(const bool there, reader->Next(&record, &payload));
    if (!there) break;
    const uint64_t lineage = reader->LineageOf(record);
    const absl::StatusOr<bool> belongs = Belongs(record, lineage);
    if (!belongs.ok()) {
      LODESTONE_RETURN_IF_ERROR(UnlessCopy(record.shard(), belongs.status()));
      continue;
    }
    if (!*belongs) {
      ShardHistory& history = shards_[record.shard()].history;
      const bool beyond = record.version() > options_.until && lineage >= history.lineage();
      if (beyond) history.LeaveOut(record, *store_->shards().Get(record.shard()));
      continue;
    }
    if (record.version() > 0 && !adopted_[record.shard()]) {
      if (!options_.has_followers || options_.servers_changed) {
        LODESTONE_RETURN_IF_ERROR(Annotate(saved_.Check(record, lineage), reader->place()));
      }
      continue;
    }
    if (!IsReplayed(record)) continue;
    const absl::StatusOr<bool> replayed = store_->replayer().Replay(record, payload);
    if (!replayed.ok()) {
      LODESTONE_RETURN_IF_ERROR(Annotate(
          record.version() > 0 ? UnlessCopy(record.shard(), replayed.status()) : replayed.status(), reader->place()));
      continue;
    }
    if (record.version() == 0) continue;
    NoteNewest(record);
    if (!*replayed) continue;
    ++applied;
    bytes += payload.size();
  }
  const std::vector<LogReader::Cut>& cuts = reader->cuts();
  const bool damaged = std::any_of(
      cuts.begin(), cuts.end(), [](const LogReader::Cut& cut) { return cut.kind == LogReader::Cut::Kind::kDamaged; });
  // What is damaged is superseded by a checkpoint, and goes.
  if (options_.seal != nullptr && !damaged) LODESTONE_RETURN_IF_ERROR(reader->Seal(options_.seal));
  MutexLock lock(&mu_);
  report_.records += applied;
  report_.record_bytes += bytes;
  if (!first_pass_) return absl::OkStatus();  // What is amiss has been noted.
  report_.cut_damage |= damaged;
  for (const LogReader::Cut& cut : cuts) report_.notes.push_back(NoteOf(cut));
  return absl::OkStatus();
}

bool RecoveryRun::BeginAgain() {
  first_pass_ = false;
  bool any = false;
  for (ShardId shard = 0; shard < shards_.size(); ++shard) {
    ShardState& state = shards_[shard];
    state.replays = state.history.forked();
    if (!state.replays) continue;
    any = true;
    state.base_generation.reset();
    state.newest = {};
    MutexLock lock(&mu_);
    report_.base_versions[shard] = 0;
    report_.notes.push_back(absl::StrCat("shard ", shard, ": ", state.history.BeginAgain()));
    store_->shards().Run(shard, [](Shard* owned) { owned->Reset(static_cast<uint64_t>(AnchoredTime().NowMs())); });
  }
  return any;
}

absl::StatusOr<bool> RecoveryRun::Belongs(const v1::LogRecord& record, uint64_t lineage) {
  if (record.version() == 0) return true;
  if (record.shard() >= shards_.size()) {
    return absl::DataLossError(absl::StrCat("the log names shard ", record.shard(), " of ", shards_.size()));
  }
  ShardState& state = shards_[record.shard()];
  state.lineage = std::max(state.lineage, lineage);
  if (!adopted_[record.shard()]) return true;
  ShardHistory& history = state.history;
  if (history.lineage() == 0) history.StartFrom(lineage);
  const uint64_t started_from = history.lineage();
  if (record.version() > options_.until || lineage < started_from) return false;
  if (lineage == started_from) return true;
  return absl::DataLossError(absl::StrCat(
      "the log of shard ", record.shard(), " goes on from a checkpoint that is not there (lineage ", lineage,
      ", and the newest that can be read has ", started_from, "); checkpoint.load starts from an older one"));
}

bool RecoveryRun::IsReplayed(const v1::LogRecord& record) {
  if (record.version() == 0) return first_pass_;
  ShardState& state = shards_[record.shard()];
  return state.replays && state.history.Takes(record, *store_->shards().Get(record.shard()));
}

void RecoveryRun::NoteNewest(const v1::LogRecord& record) {
  const Shard& shard = *store_->shards().Get(record.shard());
  if (record.version() != shard.version() || record.term() > shard.term()) return;
  shards_[record.shard()].newest = {record.version(), MarkOf(record)};
}

absl::Status RecoveryRun::UnlessCopy(ShardId shard, const absl::Status& status) {
  const ShardRole role = store_->shards().RoleOf(shard);
  if (absl::IsCancelled(status) || role == ShardRole::kNone || role == ShardRole::kOwns) return status;
  store_->shards().SetRole(shard, ShardRole::kFollowing);
  return absl::OkStatus();
}

absl::Status RecoveryRun::CheckReached() const {
  for (const ShardId shard : store_->shards().adopted()) {
    LODESTONE_RETURN_IF_ERROR(shards_[shard].history.CheckReached(*store_->shards().Get(shard), options_.until));
  }
  return absl::OkStatus();
}

void RecoveryRun::NoteBases() {
  MutexLock lock(&mu_);
  std::optional<uint64_t> oldest;
  for (const ShardId shard : store_->shards().adopted()) {
    const std::optional<uint64_t>& base = shards_[shard].base_generation;
    report_.shards_from_checkpoints += base.has_value();
    oldest = std::min(oldest.value_or(std::numeric_limits<uint64_t>::max()), base.value_or(0));
    report_.generation = std::max(report_.generation, base.value_or(0));
  }
  for (const ShardState& state : shards_) {
    report_.newest.push_back(state.newest);
    report_.lineages.push_back(state.lineage);
    report_.newest_damaged |= state.history.lineage() != 0 && state.history.lineage() < state.lineage;
  }
  // Without shards too: what is followed from now on has its log in this start's.
  report_.base_generation = oldest.value_or(0);
}

void RecoveryRun::ForgetRemains() {
  for (const ShardId shard : store_->shards().adopted()) {
    store_->shards().Run(shard, [&](Shard* owned) {
      owned->ForgetWorkersIf([&](Incarnation worker) { return !store_->replayer().KeepSession(worker); });
      owned->rollback().Drop();
    });
  }
}

}  // namespace

absl::StatusOr<RecoveryReport> Recover(const RecoveryOptions& options, Store* store) {
  return RecoveryRun(options, store).Run();
}

}  // namespace lodestone::server
