#include "server/store/catalog.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/config/table_check.h"
#include "common/telemetry/figures.h"
#include "common/telemetry/log.h"
#include "server/shard/shard.h"
#include "server/store/commit_log.h"
#include "server/store/held_settings.h"
#include "server/store/serving_gate.h"
#include "server/store/shard_set.h"
#include "server/store/table_entry.h"

namespace lodestone::server {
namespace {

constexpr size_t kDifferencesShownBytes = 300;
constexpr int kRevisionBitsOfWorkers = 32;
constexpr char kGoOnOrElsewhere[] =
    "; to go on with the model that is here, configure it as it was trained (psctl tables lists the tables); for "
    "another "
    "one, start the servers with another server.data_dir";

// What `wanted` makes of a table that exists: its shape, initializer, what an operator holds and, unless it has one,
// its model stay.
v1::TableSpec Continued(const v1::TableSpec& existing, const v1::TableSpec& wanted) {
  v1::TableSpec spec = wanted;
  spec.set_revision(existing.revision());
  *spec.mutable_initializer() = existing.initializer();
  if (!existing.has_initializer()) spec.clear_initializer();
  if (spec.has_dense()) *spec.mutable_dense() = existing.dense();
  if (!spec.has_model() && existing.has_model()) *spec.mutable_model() = existing.model();
  KeepHeld(existing, &spec);
  return spec;
}

// ALREADY_EXISTS if the specification is of another table or model than the one that exists.
absl::Status CheckSameTable(const Table& existing, const v1::TableSpec& wanted) {
  if (const std::string other = existing.OtherTable(wanted); !other.empty()) {
    return absl::AlreadyExistsError(
        absl::StrCat("table `", wanted.name(), "` exists as another one: ", other, kGoOnOrElsewhere));
  }
  const v1::TableSpec& spec = existing.spec();
  if (!spec.has_model() || !wanted.has_model()) return absl::OkStatus();
  const std::string differences = Differences(spec.model(), wanted.model());
  if (differences.empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("table `", wanted.name(), "` is of a model that was made otherwise: ",
                                               differences.substr(0, kDifferencesShownBytes), kGoOnOrElsewhere));
}

// The table of the name; null if there is none.
absl::StatusOr<std::shared_ptr<const TableEntry>> FindIn(const TableMap& map, const v1::TableSpec& spec) {
  const auto found = map.find(TableIdOf(spec.name()));
  if (found == map.end()) return nullptr;
  if (found->second->table->name() != spec.name()) {
    return absl::AlreadyExistsError(absl::StrCat("the name `", spec.name(), "` hashes to the same id as table `",
                                                 found->second->table->name(), "`; choose another name"));
  }
  return found->second;
}

absl::Status CheckConsistency(const v1::TableSpec& spec) {
  if (spec.consistency().has_sync() && spec.guard().norm_max_factor() > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table `", spec.name(), "` has a guard, which may refuse a batch that a synchronous step then waits for: ",
        "clear guard.norm_max_factor, or take another consistency than sync"));
  }
  return Annotate(StepCollector::Check(spec.consistency()), absl::StrCat("table `", spec.name(), "`"));
}

// FAILED_PRECONDITION if steps would begin or end, by which workers take their samples, while they train.
absl::Status CheckConsistencyChange(const v1::TableSpec& from, const v1::TableSpec& to) {
  if (!StepCollector::Collects(from.consistency()) && !StepCollector::Collects(to.consistency())) {
    return absl::OkStatus();
  }
  if (Differences(from.consistency(), to.consistency()).empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the consistency of table `", from.name(),
                                                    "` is sync or tokens, or would be, by which workers take ",
                                                    "their samples: they have to pause for that (Admin.PauseTraining, "
                                                    "SetTableRequest.orders), as psctl set of this ",
                                                    "version has them do"));
}

// FAILED_PRECONDITION if a worker wants steps, or none, or others, and an operator holds it otherwise: it would train
// by rules that the table does not have.
absl::Status CheckHeldConsistency(const v1::TableSpec& wanted, const v1::TableSpec& continued) {
  if (StepsGoOn(wanted.consistency(), continued.consistency())) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the worker wants another consistency of table `", wanted.name(),
                                                    "` than an operator holds, and one of them has ",
                                                    "steps (sync, tokens): set another one first (psctl set ",
                                                    wanted.name(), " consistency=…)"));
}

// FAILED_PRECONDITION if a consistency with steps is to be held no more: the next worker that joins with another one
// would end them while others train by them.
absl::Status CheckReleased(const v1::TableSpec& spec, const v1::SetTableRequest& request) {
  if (!StepCollector::Collects(spec.consistency())) return absl::OkStatus();
  for (const std::string& path : request.released()) {
    if (!absl::StartsWith(path, "consistency")) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "the consistency of table `", spec.name(), "` has steps, and a worker that brings another one would ",
        "end them while others train: set it to async first, then release it"));
  }
  return absl::OkStatus();
}

// Says what of a worker's settings counts for nothing, as an operator holds it.
void LogHeld(const v1::TableSpec& wanted, const v1::TableSpec& continued) {
  if (continued.held().empty()) return;
  v1::TableSpec of_worker = wanted, of_table = continued;
  if (of_worker.has_dense()) *of_worker.mutable_dense() = continued.dense();
  for (v1::TableSpec* const spec : {&of_worker, &of_table}) {  // What is the table's in any case.
    spec->clear_revision();
    spec->clear_held();
    spec->clear_initializer();
    spec->clear_model();
  }
  const std::string differences = Differences(of_worker, of_table);
  if (differences.empty()) return;
  LODESTONE_LOG(WARN, "store",
                "an operator holds other settings of a table than a worker brings (psctl set) table={} held={} "
                "changes={}",
                wanted.name(), absl::StrJoin(continued.held(), ","), absl::StrReplaceAll(differences, {{"\n", "; "}}));
}

// What a request says is no more, so that revisions do not begin again at 0.
constexpr uint64_t kSentRevisionMax = uint64_t{1} << 63;

// The revision after an operator has set something: above all that workers have made, on other ps too that had not been
// there, or had not been asked. `sent`: of the request.
uint64_t NextSetRevision(uint64_t newest, uint64_t sent) {
  const uint64_t above = std::max(newest, std::min(sent, kSentRevisionMax));
  return ((above >> kRevisionBitsOfWorkers) + 1) << kRevisionBitsOfWorkers;
}

// The revision after a worker has brought something. UNAVAILABLE while an operator's change has ended on some shards
// only, which what a worker brings must not pass.
absl::StatusOr<uint64_t> NextRevision(const Table& table) {
  const uint64_t newest = table.newest_revision();
  if (newest >> kRevisionBitsOfWorkers == table.spec().revision() >> kRevisionBitsOfWorkers) return newest + 1;
  return absl::UnavailableError(absl::StrCat("a change of table `", table.name(),
                                             "` by psctl set has not ended here, and ",
                                             "a worker brings other settings: run psctl set again"));
}

// Has contributions to the steps of a table refused while it lives.
class StepsHeld {
 public:
  explicit StepsHeld(Table* table) : table_(table) { table_->counters().steps_held.store(true); }
  ~StepsHeld() { table_->counters().steps_held.store(false); }
  StepsHeld(const StepsHeld&) = delete;
  StepsHeld& operator=(const StepsHeld&) = delete;

 private:
  Table* const table_;
};

// By how much a shard's rows may be fewer than those of others.
constexpr uint64_t kUnevenShare = 4;

// A dense table of fewer elements is made by one thread, which takes a millisecond.
constexpr uint64_t kElementsPerThread = 1 << 18;

}  // namespace

std::shared_ptr<const TableMap> Catalog::tables() const {
  MutexLock lock(&mu_);
  return tables_;
}

absl::StatusOr<std::shared_ptr<TableEntry>> Catalog::Create(const v1::TableSpec& spec, absl::Status* logged) {
  auto table = Table::Create(spec, options_.cluster_seed, shards_->size());
  if (!table.ok()) return table.status();
  auto entry = std::make_shared<TableEntry>();
  entry->table = *std::move(table);
  entry->table->counters().totals = &totals_;
  entry->guard = std::make_unique<NormGuard>(spec.guard().norm_max_factor());
  uint64_t bytes = 0;
  MemoryReservation room(&budget_);
  if (entry->table->is_dense()) {
    entry->dense.resize(shards_->size(), nullptr);
    for (const ShardId shard : shards_->adopted()) bytes += DenseTable::BytesNeeded(*entry->table, shard);
    LODESTONE_RETURN_IF_ERROR(room.Add(entry->table.get(), bytes));
  }
  *logged = Log(entry->table->spec());
  AddToShards(entry.get());
  entry->table->counters().AddBytes(bytes);
  return entry;
}

void Catalog::SetLogged(std::optional<v1::TableSpec> spec) {
  MutexLock lock(&mu_);
  logged_ = std::move(spec);
}

absl::Status Catalog::Log(const v1::TableSpec& spec) {
  SetLogged(spec);
  v1::LogRecord record;
  *record.mutable_table() = spec;
  record.set_table_known(true);
  return log_->AppendToAll(record);
}

void Catalog::AddToShards(TableEntry* entry) {
  const std::vector<ShardId> shards = shards_->adopted();
  std::vector<std::unique_ptr<DenseTable>> parts = MakeParts(entry->table.get(), shards);
  const uint64_t now_ms = options_.time->NowMs();
  Countdown added(static_cast<int64_t>(shards.size()));
  for (size_t i = 0; i < shards.size(); ++i) {
    shards_->executors()[shards_->ExecutorOf(shards[i])].Submit([&, i] {
      const DenseTable* dense = shards_->Get(shards[i])->AddTable(entry->table.get(), now_ms, std::move(parts[i]));
      if (dense != nullptr) entry->dense[shards[i]] = dense;
      added.CountDown();
    });
  }
  added.Wait();
}

std::vector<std::unique_ptr<DenseTable>> Catalog::MakeParts(Table* table, std::span<const ShardId> shards) const {
  std::vector<std::unique_ptr<DenseTable>> parts(shards.size());
  if (!table->is_dense()) return parts;
  std::atomic<size_t> next{0};
  const auto make = [&] {
    for (size_t i = next++; i < shards.size(); i = next++) parts[i] = std::make_unique<DenseTable>(table, shards[i]);
  };
  std::vector<std::thread> threads;
  const size_t wanted = table->layout().elements < kElementsPerThread ? 1 : shards_->executors().size();
  while (threads.size() + 1 < std::min(wanted, shards.size())) threads.emplace_back(make);
  make();
  for (std::thread& thread : threads) thread.join();
  return parts;
}

absl::StatusOr<std::shared_ptr<const TableEntry>> Catalog::Find(const v1::TableSpec& spec, bool keep_settings) const {
  LODESTONE_RETURN_IF_ERROR(CheckKnown(spec));
  LODESTONE_ASSIGN_OR_RETURN(std::shared_ptr<const TableEntry> found, FindIn(*tables(), spec));
  if (found == nullptr) return found;
  const Table& table = *found->table;
  LODESTONE_RETURN_IF_ERROR(CheckSameTable(table, spec));
  if (keep_settings) return found;
  const v1::TableSpec continued = Continued(table.spec(), spec);
  LODESTONE_RETURN_IF_ERROR(CheckHeldConsistency(spec, continued));
  if (!Differences(table.spec(), continued).empty()) return nullptr;
  LogHeld(spec, continued);
  return found;
}

absl::StatusOr<std::shared_ptr<const TableEntry>> Catalog::Ensure(const v1::TableSpec& spec, bool keep_settings) {
  LODESTONE_RETURN_IF_ERROR(CheckKnown(spec));
  v1::TableSpec made = spec;
  made.clear_revision();
  made.clear_held();
  return FindOrCreate(made, keep_settings ? Origin::kObserver : Origin::kWorker);
}

absl::StatusOr<v1::SetTableResponse> Catalog::Set(const v1::SetTableRequest& request) {
  MutexLock create_lock(&create_mu_);
  const std::shared_ptr<const TableMap> map = tables();
  const auto found = map->find(TableIdOf(request.table()));
  if (found == map->end() || found->second->table->name() != request.table()) {
    if (shards_->owned().empty()) {
      v1::SetTableResponse none;
      none.set_absent(true);
      return none;
    }
    return absl::NotFoundError(absl::StrCat("there is no table `", request.table(), "` (psctl tables lists them)"));
  }
  const Table& table = *found->second->table;
  LODESTONE_RETURN_IF_ERROR(CheckReleased(table.spec(), request));
  LODESTONE_ASSIGN_OR_RETURN(v1::TableSpec spec, WithSettings(table.spec(), request));
  const bool at_rest = request.orders() > 0;
  v1::SetTableResponse response;
  response.set_changed(!Differences(table.spec(), spec).empty());
  if (response.changed()) {
    LODESTONE_RETURN_IF_ERROR(CheckKnown(spec));
    if (const std::string other = table.OtherTable(spec); !other.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("that cannot change while table `", table.name(), "` lives: ", other));
    }
    LODESTONE_RETURN_IF_ERROR(CheckTableSpec(spec));
    LODESTONE_RETURN_IF_ERROR(CheckConsistency(spec));
    if (!at_rest) LODESTONE_RETURN_IF_ERROR(CheckConsistencyChange(table.spec(), spec));
    spec.set_revision(NextSetRevision(table.newest_revision(), request.settings().revision()));
    LODESTONE_RETURN_IF_ERROR(Change(*found->second, spec, at_rest));
  } else if (at_rest) {
    // Another ps may have told the table what its shards here do not have yet.
    LODESTONE_RETURN_IF_ERROR(updates_.Bring(table, &table.settings(), shards_->held()));
    LODESTONE_RETURN_IF_ERROR(updates_.ApplyCompleteSteps(table));
  }
  *response.mutable_settings() = table.spec();
  response.mutable_settings()->set_revision(table.newest_revision());
  return response;
}

absl::Status Catalog::Restore(v1::TableSpec spec) {
  spec.DiscardUnknownFields();
  return FindOrCreate(spec, Origin::kAcceptedBefore).status();
}

absl::StatusOr<std::shared_ptr<const TableEntry>> Catalog::FindOrCreate(const v1::TableSpec& spec, Origin origin) {
  MutexLock create_lock(&create_mu_);
  const std::shared_ptr<const TableMap> map = tables();
  LODESTONE_ASSIGN_OR_RETURN(std::shared_ptr<const TableEntry> found, FindIn(*map, spec));
  if (found != nullptr && origin == Origin::kWorker) {
    const Table& table = *found->table;
    LODESTONE_RETURN_IF_ERROR(CheckSameTable(table, spec));
    v1::TableSpec continued = Continued(table.spec(), spec);
    LODESTONE_RETURN_IF_ERROR(CheckHeldConsistency(spec, continued));
    if (Differences(table.spec(), continued).empty()) return found;
    LODESTONE_RETURN_IF_ERROR(CheckTableSpec(spec));
    LODESTONE_RETURN_IF_ERROR(CheckConsistency(continued));
    if (!continued.held().empty()) LODESTONE_RETURN_IF_ERROR(CheckTableSpec(continued));
    LogHeld(spec, continued);
    LODESTONE_ASSIGN_OR_RETURN(const uint64_t revision, NextRevision(table));
    continued.set_revision(revision);
    LODESTONE_RETURN_IF_ERROR(Change(*found, continued, /*at_rest=*/false));
    return found;
  }
  if (found != nullptr) {
    LODESTONE_RETURN_IF_ERROR(CheckSameTable(*found->table, spec));
    if (spec.revision() > found->table->spec().revision()) {
      LODESTONE_RETURN_IF_ERROR(UseSettings(*found, spec));
      auto changed = std::make_shared<TableMap>();
      changed->insert(*map->find(found->table->id()));
      updates_.BringLater(std::move(changed));
    }
    return found;
  }
  if (origin != Origin::kAcceptedBefore) {
    LODESTONE_RETURN_IF_ERROR(CheckTableSpec(spec));
    LODESTONE_RETURN_IF_ERROR(CheckConsistency(spec));
    LODESTONE_RETURN_IF_ERROR(log_->log_health());
  }
  if (map->size() >= limits::kTablesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("this ps has ", map->size(), " tables, its limit"));
  }
  const absl::Cleanup known = [this] { SetLogged(std::nullopt); };
  absl::Status logged;
  LODESTONE_ASSIGN_OR_RETURN(const std::shared_ptr<TableEntry> entry, Create(spec, &logged));
  auto extended = std::make_shared<TableMap>(*map);
  extended->emplace(entry->table->id(), entry);
  {
    MutexLock lock(&mu_);
    tables_ = std::move(extended);
  }
  CountRevisions();
  // What could not be written yet stays in the logs' queues, and is with the followers: the table is there.
  LODESTONE_RETURN_IF_ERROR(logged);
  return entry;
}

void Catalog::CountRevisions() {
  const std::shared_ptr<const TableMap> map = tables();
  uint64_t sum = 0;
  for (const auto& [id, entry] : *map) sum += entry->table->spec().revision();
  settings_revision_.store(sum, std::memory_order_release);
}

absl::Status Catalog::Change(const TableEntry& entry, const v1::TableSpec& spec, bool at_rest) {
  const Table& table = *entry.table;
  LODESTONE_LOG(INFO, "store", "other settings of a table table={} revision={} changes={}", table.name(),
                spec.revision(), absl::StrReplaceAll(Differences(table.spec(), spec), {{"\n", "; "}}));
  LODESTONE_RETURN_IF_ERROR(log_->health());
  LODESTONE_ASSIGN_OR_RETURN(const TableSettings* const settings, table.Keep(spec));
  std::optional<StepsHeld> held;
  if (!StepsGoOn(table.spec().consistency(), spec.consistency())) {
    held.emplace(entry.table.get());
    if (!at_rest) LODESTONE_RETURN_IF_ERROR(updates_.CheckNothingWaits(table));
  }
  LODESTONE_RETURN_IF_ERROR(updates_.Bring(table, settings, shards_->roles().AtLeast(ShardRole::kGivesUp)));
  LODESTONE_RETURN_IF_ERROR(UseSettings(entry, spec));
  // A shard that became owned before that was prepared with the former settings. It was followed until then.
  return updates_.Bring(table, settings, shards_->held());
}

absl::Status Catalog::UseSettings(const TableEntry& entry, const v1::TableSpec& spec) {
  LODESTONE_ASSIGN_OR_RETURN(const TableSettings* const settings, entry.table->Keep(spec));
  const absl::Cleanup known = [this] { SetLogged(std::nullopt); };
  LODESTONE_RETURN_IF_ERROR(Log(spec));
  if (!StepsGoOn(entry.table->spec().consistency(), spec.consistency())) entry.table->counters().steps.store(0);
  entry.table->Use(settings);
  entry.guard->SetFactor(spec.guard().norm_max_factor());
  CountRevisions();
  return absl::OkStatus();
}

absl::Status Catalog::AddShard(ShardId shard) {
  MutexLock create_lock(&create_mu_);
  const std::shared_ptr<const TableMap> map = tables();
  MemoryReservation room(&budget_);
  const uint64_t whole = shards_->whole().size();
  const uint64_t lacking = shards_->adopted().size() - whole + 1;
  for (const auto& [id, entry] : *map) {
    // A shard has about as many rows as any other, and those that came before it and are not whole are still to grow.
    const uint64_t rows_bytes = whole == 0 ? 0 : entry->table->counters().bytes.load() / whole * lacking;
    const uint64_t bytes = entry->table->is_dense() ? DenseTable::BytesNeeded(*entry->table, shard)
                                                    : rows_bytes - rows_bytes / kUnevenShare;
    LODESTONE_RETURN_IF_ERROR(room.Add(entry->table.get(), bytes));
  }
  shards_->Make(shard);
  const uint64_t now_ms = options_.time->NowMs();
  for (const auto& [id, entry] : *map) {
    shards_->Run(shard, [&, table = entry.get()](Shard* fresh) {
      const DenseTable* dense = fresh->AddTable(table->table.get(), now_ms);
      if (dense != nullptr) table->dense[shard] = dense;
    });
    if (!entry->table->is_dense()) continue;
    entry->table->counters().AddBytes(DenseTable::BytesNeeded(*entry->table, shard));
  }
  shards_->SetRole(shard, ShardRole::kFollowing);
  return absl::OkStatus();
}

void Catalog::RemoveShard(ShardId shard) {
  MutexLock create_lock(&create_mu_);
  const uint64_t now_ms = options_.time->NowMs();
  shards_->Run(shard, [&](Shard* gone) {
    shards_->SetRole(shard, ShardRole::kNone);
    shards_->Spoil(shard);
    gone->Free(now_ms);
  });
  const std::shared_ptr<const TableMap> map = tables();
  for (const auto& [id, entry] : *map) {
    if (!entry->table->is_dense()) continue;
    entry->table->counters().AddBytes(-DenseTable::BytesNeeded(*entry->table, shard));
  }
}

std::vector<v1::TableSpec> Catalog::specs() const {
  std::shared_ptr<const TableMap> map;
  std::vector<v1::TableSpec> specs;
  {
    MutexLock lock(&mu_);
    map = tables_;
    if (logged_.has_value()) specs.push_back(*logged_);
  }
  for (const auto& [id, entry] : *map) {
    const TableSettings& now = entry->table->settings();
    specs.push_back(entry->table->made().spec);
    if (now.changed() && &now != &entry->table->made()) specs.push_back(now.spec);
  }
  const auto key = [](const v1::TableSpec& spec) { return std::pair(absl::string_view(spec.name()), spec.revision()); };
  std::sort(specs.begin(), specs.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  // What was logged may be in use by now.
  specs.erase(std::unique(specs.begin(), specs.end(), [&](const auto& a, const auto& b) { return key(a) == key(b); }),
              specs.end());
  return specs;
}

std::optional<v1::TableSpec> Catalog::SpecOf(const std::string& name) const {
  const std::shared_ptr<const TableMap> map = tables();
  const auto found = map->find(TableIdOf(name));
  if (found == map->end() || found->second->table->name() != name) return std::nullopt;
  return found->second->table->spec();
}

absl::StatusOr<std::string> Catalog::NameOf(TableId table) const {
  LODESTONE_RETURN_IF_ERROR(gate_->CheckReady());
  const std::shared_ptr<const TableMap> map = tables();
  const auto found = map->find(table);
  return found == map->end() ? UnknownTable(table) : absl::StatusOr<std::string>(found->second->table->name());
}

absl::Status Catalog::UnknownTable(TableId table) const {
  if (!shards_->owned().empty()) return absl::NotFoundError(absl::StrCat("unknown table id ", table));
  return absl::UnavailableError("this ps owns no shards now, and does not know the tables");
}

std::optional<v1::Broadcast> Catalog::BroadcastOf(TableId table) const {
  const std::shared_ptr<const TableMap> map = tables();
  const auto found = map->find(table);
  if (found == map->end()) return std::nullopt;
  return found->second->table->spec().broadcast();
}

void Catalog::FillStatus(v1::StatusResponse* status) const {
  status->mutable_server()->set_table_bytes(totals().second);
  status->mutable_server()->set_table_bytes_max(budget_.tables_bytes_max());
  const std::shared_ptr<const TableMap> map = tables();
  for (const auto& [id, entry] : *map) {
    const Table& table = *entry->table;
    v1::TableStatus* out = status->add_tables();
    out->set_name(table.name());
    out->set_id(table.id());
    out->set_shape(table.ShapeText());
    out->set_optimizer(table.optimizer().name());
    out->set_bytes_max(table.spec().memory_max_bytes());
    table.counters().ForEachFigure([out](const char* name, uint64_t value) { SetFigure(name, value, out); });
  }
  std::sort(status->mutable_tables()->begin(), status->mutable_tables()->end(),
            [](const auto& a, const auto& b) { return a.name() < b.name(); });
}

}  // namespace lodestone::server
