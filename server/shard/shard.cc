#include "server/shard/shard.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/planted_defect.h"
#include "common/base/status.h"

namespace lodestone::server {
namespace {

template <typename Part>
void SortByTable(std::vector<Part>* parts) {
  std::sort(parts->begin(), parts->end(), [](const Part& a, const Part& b) { return a.table->id() < b.table->id(); });
}

}  // namespace

absl::StatusOr<DenseTable*> ShardContents::FindDense(TableId table) const {
  const auto found = dense.find(table);
  if (found != dense.end()) return found->second.get();
  return absl::InvalidArgumentError(absl::StrCat("there is no dense table with id ", table));
}

absl::StatusOr<EmbeddingTable*> ShardContents::FindRows(TableId table) const {
  const auto found = rows.find(table);
  if (found != rows.end()) return found->second.get();
  return absl::InvalidArgumentError(absl::StrCat("there is no embedding table with id ", table));
}

absl::Status ShardContents::SetSettings(const v1::TableSpec& spec) {
  const TableId id = TableIdOf(spec.name());
  const auto part = dense.find(id);
  if (part != dense.end()) {
    LODESTONE_ASSIGN_OR_RETURN(const TableSettings* const settings, part->second->table().Keep(spec));
    part->second->SetSettings(settings);
    AdjustSteps(part->second->mutable_table(), *settings);
    return absl::OkStatus();
  }
  LODESTONE_ASSIGN_OR_RETURN(EmbeddingTable* const table, FindRows(id));
  LODESTONE_ASSIGN_OR_RETURN(const TableSettings* const settings, table->table().Keep(spec));
  table->SetSettings(settings);
  AdjustSteps(table->mutable_table(), *settings);
  return absl::OkStatus();
}

void ShardContents::ResetSettings() {
  steps.clear();
  for (const auto& [id, table] : dense) {
    table->SetSettings(&table->table().made());
    AdjustSteps(table->mutable_table(), table->settings());
  }
  for (const auto& [id, table] : rows) {
    table->SetSettings(&table->table().made());
    AdjustSteps(table->mutable_table(), table->settings());
  }
}

void ShardContents::AdjustSteps(Table* table, const TableSettings& settings) {
  const v1::Consistency& rule = settings.spec.consistency();
  const auto found = steps.find(table->id());
  if (!StepCollector::Collects(rule)) {
    if (found != steps.end()) steps.erase(found);
  } else if (found != steps.end() && found->second->Continues(rule)) {
    found->second->SetRule(rule);
  } else {
    steps[table->id()] = std::make_unique<StepCollector>(table, rule);
  }
}

void ShardContents::Apply(const PartView& part, uint64_t now_ms, Version version, Evictions* evictions) {
  // After a failover the shard may be at an earlier version than the one that was read: the delay is 0 then.
  const Version before = version - 1;
  const uint64_t delay = part.read_version > 0 && part.read_version < before ? before - part.read_version : 0;
  if (!part.table->is_dense()) {
    return rows.find(part.table->id())
        ->second->Apply(part.keys, part.gradients, part.row_count, now_ms, version, evictions, part.takes_new,
                        part.last_for_shard, delay);
  }
  DenseTable& table = *dense.find(part.table->id())->second;
  ByteView gradients = part.gradients;
  for (const BlockIndex block : part.blocks) {
    table.Apply(block, gradients.Take(part.table->layout().ElementsOf(block) * sizeof(float)), version, delay);
  }
}

absl::Status ShardContents::CheckFollows(Version next) const {
  if (next == version.load() + 1) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("shard ", id, " is at version ", version.load(),
                                          " and the log goes on with version ", next,
                                          ": updates between them are missing"));
}

const DenseTable* Shard::AddTable(Table* table, uint64_t now_ms, std::unique_ptr<DenseTable> dense) {
  if (table->is_dense()) {
    // A shard that was freed has its tables still.
    if (const auto there = contents_.dense.find(table->id()); there != contents_.dense.end())
      return there->second.get();
    if (dense == nullptr) dense = std::make_unique<DenseTable>(table, contents_.id);
    contents_.AdjustSteps(table, table->made());
    return contents_.dense.emplace(table->id(), std::move(dense)).first->second.get();
  }
  if (!contents_.rows.contains(table->id())) {
    contents_.rows.emplace(table->id(), std::make_unique<EmbeddingTable>(table, now_ms));
    contents_.AdjustSteps(table, table->made());
  }
  return nullptr;
}

absl::StatusOr<Shard::PushResult> Shard::Push(Incarnation worker, Sequence sequence, std::span<const PartView> parts,
                                              uint64_t now_ms, Evictions* evictions,
                                              const v1::Contribution* contribution) {
  const auto window = contents_.windows.find(worker);
  switch (window == contents_.windows.end() ? SequenceWindow::Verdict::kNew : window->second.Check(sequence)) {
    case SequenceWindow::Verdict::kDuplicate:
      if (Planted(Defect::kDuplicateFilterOff)) break;
      return PushResult{version(), true, false, {}};
    case SequenceWindow::Verdict::kTooOld:
      return absl::OutOfRangeError(absl::StrCat("push sequence ", sequence, " on shard ", contents_.id,
                                                " is older than the window of ", limits::kSequenceWindow,
                                                " before the worker's newest, ", window->second.newest()));
    case SequenceWindow::Verdict::kNew:
      break;
  }
  LODESTONE_ASSIGN_OR_RETURN(const ShardSteps::Judgement judgement, steps_.Judge(parts, contribution));
  if (judgement.duplicate) return PushResult{version(), true, judgement.late, {}};
  PushResult result{version() + 1, false, judgement.late, {}};
  if (judgement.collects) {
    result.applied = steps_.Take(parts, *contribution, now_ms, result.version, evictions);
  } else {
    for (const PartView& part : parts) contents_.Apply(part, now_ms, result.version, evictions);
  }
  (window != contents_.windows.end() ? window->second : contents_.windows[worker]).Mark(sequence);
  contents_.version.store(result.version, std::memory_order_release);
  return result;
}

uint64_t Shard::CloseStep(TableId table, uint64_t now_ms, Evictions* evictions) {
  const Version next = version() + 1;
  const uint64_t step = steps_.Close(table, now_ms, next, evictions);
  contents_.version.store(next, std::memory_order_release);
  return step;
}

bool Shard::HasApplied(Incarnation worker, Sequence sequence) const {
  const auto window = contents_.windows.find(worker);
  return window != contents_.windows.end() && window->second.Check(sequence) == SequenceWindow::Verdict::kDuplicate;
}

void Shard::Prefetch(std::span<const PartView> parts) const {
  for (const PartView& part : parts) {
    if (!part.table->is_dense()) contents_.rows.find(part.table->id())->second->Prefetch(part.keys, part.row_count);
  }
}

void Shard::BeginTerm(uint64_t term) {
  LODESTONE_CHECK(term > term_.load() && version() > 0);
  former_term_ = {term_.load(), version() - 1};
  term_.store(term, std::memory_order_relaxed);
}

void Shard::RestoreTerm(uint64_t term) {
  former_term_.reset();
  term_.store(term, std::memory_order_relaxed);
}

bool Shard::Includes(uint64_t term, Version version) const {
  if (term == this->term()) return version <= this->version();
  return former_term_.has_value() && former_term_->first == term && version <= former_term_->second;
}

absl::Status Shard::ReplayPush(Version logged, Incarnation worker, Sequence sequence, std::span<const PartView> parts,
                               uint64_t now_ms, Evictions* evictions, const v1::Contribution* contribution) {
  rollback_.Drop();
  LODESTONE_RETURN_IF_ERROR(contents_.CheckFollows(logged));
  const std::string what = absl::StrCat("shard ", contents_.id, " version ", logged);
  const absl::StatusOr<PushResult> result = Push(worker, sequence, parts, now_ms, evictions, contribution);
  if (!result.ok()) return Annotate(result.status(), what);
  if (result->duplicate) {
    return absl::DataLossError(
        absl::StrCat(what, ": the push ", sequence, " of worker incarnation ", worker, " is logged twice"));
  }
  return Annotate(evictions->Finish(), what);
}

absl::Status Shard::ReplayCloseStep(Version logged, const AppliedStep& closed, bool ends_steps, uint64_t now_ms,
                                    Evictions* evictions) {
  rollback_.Drop();
  LODESTONE_RETURN_IF_ERROR(contents_.CheckFollows(logged));
  const std::string what = absl::StrCat("shard ", contents_.id, " version ", logged);
  const StepCollector* const collector = steps_.Of(closed.table);
  if (collector == nullptr || collector->steps() != closed.step ||
      !(collector->may_close() || (ends_steps && collector->may_end()))) {
    return absl::DataLossError(absl::StrCat(
        what, ": step ", closed.step, " of table id ", closed.table, " was applied, and here ",
        collector == nullptr ? "the table has no steps"
                             : absl::StrCat("step ", collector->steps(), " is collected, ", collector->Progress())));
  }
  CloseStep(closed.table, now_ms, evictions);
  return Annotate(evictions->Finish(), what);
}

absl::Status Shard::ReplayExpiry(Version logged, std::span<const EvictedKeys> evicted) {
  rollback_.Drop();
  LODESTONE_RETURN_IF_ERROR(contents_.CheckFollows(logged));
  for (const EvictedKeys& group : evicted) {
    const auto table = contents_.rows.find(group.table);
    if (table == contents_.rows.end()) {
      return absl::DataLossError(absl::StrCat("shard ", contents_.id, " version ", logged,
                                              ": rows of the unknown table id ", group.table, " expired"));
    }
    LODESTONE_RETURN_IF_ERROR(table->second->ReplayExpiry(group.keys, logged));
  }
  contents_.version.store(logged, std::memory_order_release);
  return absl::OkStatus();
}

void Shard::ChangeSettings(const Table& of, const TableSettings* settings) {
  const StepCollector* const before = steps_.Of(of.id());
  Table* table = nullptr;
  if (of.is_dense()) {
    DenseTable& part = *contents_.dense.find(of.id())->second;
    part.SetSettings(settings);
    table = part.mutable_table();
  } else {
    EmbeddingTable& part = *contents_.rows.find(of.id())->second;
    part.SetSettings(settings);
    table = part.mutable_table();
  }
  contents_.AdjustSteps(table, *settings);
  // The figure is of the steps that are counted now: not of the last of those before, which have just ended.
  if (before != nullptr && before != steps_.Of(of.id())) table->counters().steps.store(0);
  contents_.version.store(version() + 1, std::memory_order_release);
}

absl::Status Shard::ReplaySettings(Version logged, const v1::TableSpec& spec) {
  rollback_.Drop();
  LODESTONE_RETURN_IF_ERROR(contents_.CheckFollows(logged));
  if (const absl::Status status = contents_.SetSettings(spec); !status.ok()) {
    return absl::DataLossError(
        absl::StrCat("shard ", contents_.id, " version ", logged, ": ", std::string(status.message())));
  }
  contents_.version.store(logged, std::memory_order_release);
  return absl::OkStatus();
}

const TableSettings& Shard::SettingsOf(const Table& table) const {
  return table.is_dense() ? contents_.dense.find(table.id())->second->settings()
                          : contents_.rows.find(table.id())->second->settings();
}

Version Shard::Read(const Table& table, ByteView keys, size_t count, uint64_t now_ms, float* dst) {
  RowsOf(table)->Read(keys, count, now_ms, dst);
  return version();
}

void Shard::ForgetWorkersIf(absl::FunctionRef<bool(Incarnation)> is_forgotten) {
  absl::erase_if(contents_.windows, [&](const auto& window) { return is_forgotten(window.first); });
}

void Shard::BeginOwned() {
  for (auto& [id, table] : contents_.rows) table->BeginOwned();
}

std::vector<SweepShare> Shard::BeginSweep() {
  std::vector<SweepShare> shares;
  for (auto& [id, table] : contents_.rows) {
    if (const size_t rows = table->BeginSweep(); rows > 0) shares.push_back({id, rows});
  }
  return shares;
}

bool Shard::EvictExpired(uint64_t now_ms, std::vector<SweepShare>* left, Evictions* evictions) {
  const Version next = version() + 1;
  bool any = false;
  for (size_t room = kSweepStepRows; room > 0 && !left->empty();) {
    SweepShare& share = left->back();
    const size_t rows = std::min(room, share.rows);
    const auto table = contents_.rows.find(share.table);
    if (table != contents_.rows.end()) any |= table->second->EvictExpired(now_ms, next, evictions, rows);
    room -= rows;
    share.rows -= rows;
    if (share.rows == 0) left->pop_back();
  }
  if (any) contents_.version.store(next, std::memory_order_release);
  return any;
}

std::optional<Shard::Snapshot> Shard::Collect(std::span<const Table* const> tables, const Version* after) const {
  Snapshot snapshot;
  snapshot.shard = contents_.id;
  snapshot.version = version();
  for (const Table* table : tables) {
    if (table->is_dense()) {
      snapshot.dense.push_back({table, contents_.dense.find(table->id())->second->Collect(after)});
    } else {
      const EmbeddingTable& rows = *contents_.rows.find(table->id())->second;
      auto content = rows.Collect(after);
      if (!content.has_value()) return std::nullopt;
      snapshot.rows.push_back({table, rows.layout(), *std::move(content)});
    }
  }
  return snapshot;
}

Shard::State Shard::CollectState(const Version* after) const {
  State state;
  state.shard = contents_.id;
  state.version = version();
  state.term = term();
  state.lineage = lineage();
  if (after != nullptr) state.after = *after;
  for (const auto& [id, table] : contents_.dense) {
    if (table->settings().changed()) state.settings.push_back(&table->settings());
    state.dense.push_back({&table->table(), table->Collect(after)});
  }
  for (const auto& [id, table] : contents_.rows) {
    if (table->settings().changed()) state.settings.push_back(&table->settings());
    state.rows.push_back({&table->table(), table->layout(), table->CollectState(after)});
  }
  SortByTable(&state.dense);
  SortByTable(&state.rows);
  std::sort(state.settings.begin(), state.settings.end(), [](const TableSettings* a, const TableSettings* b) {
    return TableIdOf(a->spec.name()) < TableIdOf(b->spec.name());
  });
  for (const auto& [id, collector] : contents_.steps)
    state.steps.push_back({collector->ToProto(), collector->pending()});
  std::sort(state.steps.begin(), state.steps.end(),
            [](const State::Steps& a, const State::Steps& b) { return a.header.table() < b.header.table(); });
  state.windows.assign(contents_.windows.begin(), contents_.windows.end());
  std::sort(state.windows.begin(), state.windows.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return state;
}

void Shard::Reset(uint64_t now_ms) {
  rollback_.Drop();
  restore_.Abandon();  // Also what is left of a state that did not end.
  for (const auto& [id, table] : contents_.rows) table->CommitRollback(0, now_ms);
  RestoreTerm(0);
  contents_.version.store(0, std::memory_order_release);
}

void Shard::Free(uint64_t now_ms) {
  Reset(now_ms);
  contents_.windows.clear();
  for (const auto& [id, table] : contents_.dense) table->Free();
}

uint64_t Shard::TableBytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, table] : contents_.dense) bytes += DenseTable::BytesNeeded(table->table(), this->id());
  for (const auto& [id, table] : contents_.rows) bytes += table->bytes();
  return bytes;
}

bool Shard::Holds(TableId table) const {
  const auto dense = contents_.dense.find(table);
  return dense != contents_.dense.end() ? !dense->second->empty() : contents_.rows.contains(table);
}

}  // namespace lodestone::server
