// How a store comes back: tables, sessions and logged updates that an earlier life of the ps left.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/store/store_impl.h"

namespace lodestone::server {
namespace {

std::vector<EvictedKeys> FromProto(const google::protobuf::RepeatedPtrField<v1::EvictedRows>& groups) {
  std::vector<EvictedKeys> result;
  for (const v1::EvictedRows& group : groups) {
    result.push_back({group.table(), {group.keys().begin(), group.keys().end()}});
  }
  return result;
}

}  // namespace

v1::EvictedRows ToProto(const EvictedKeys& group) {
  v1::EvictedRows proto;
  proto.set_table(group.table);
  proto.mutable_keys()->Add(group.keys.begin(), group.keys.end());
  return proto;
}

absl::Status Store::Impl::AddTable(const v1::TableSpec& spec) { return EnsureTable(spec).status(); }

void Store::Impl::UseShard(ShardId shard, const std::function<void(Shard*)>& use) {
  (void)roles_.Of(shard);  // Whoever gave it one had made it before.
  executors_[ExecutorOf(shard)]->SubmitAndWait([&] { use(shards_[shard].get()); });
}

void Store::Impl::RestoreSessions(std::span<const Incarnation> open, Incarnation forgotten_max) {
  const int64_t now_ms = options_.time->NowMs();
  for (const Incarnation worker : open) sessions_.Restore(worker, now_ms);
  sessions_.RestoreForgotten(forgotten_max);
}

absl::StatusOr<bool> Store::Impl::Replay(const v1::LogRecord& record, ByteView payload) {
  switch (record.what_case()) {
    case v1::LogRecord::kTable:
      LODESTONE_RETURN_IF_ERROR(AddTable(record.table()));
      return true;
    case v1::LogRecord::kSessionOpened:
      sessions_.Restore(record.session_opened(), options_.time->NowMs());
      return true;
    case v1::LogRecord::kSessionForgotten:
      sessions_.RestoreForgotten(record.session_forgotten());
      for (const ShardId shard : adopted_shards()) {
        UseShard(shard, [&](Shard* owned) { owned->ForgetWorker(record.session_forgotten()); });
      }
      return true;
    case v1::LogRecord::kPush:
    case v1::LogRecord::kExpiry:
    case v1::LogRecord::kRestored:
      break;
    case v1::LogRecord::WHAT_NOT_SET:
      return absl::UnimplementedError("the log holds a record of a kind that this program does not know");
  }
  LODESTONE_ASSIGN_OR_RETURN(const bool next, IsNext(record));
  return next ? ReplayUpdate(record, payload) : false;
}

absl::StatusOr<bool> Store::Impl::IsNext(const v1::LogRecord& record) const {
  if (roles_.Of(record.shard()) == ShardRole::kNone) return false;
  const Shard& shard = *shards_[record.shard()];
  if (record.term() < shard.term())
    return false;  // Of an owner's that was replaced before the shard's state was taken.
  if (record.term() == shard.term()) return record.version() > shard.version();
  const uint64_t former = record.has_previous_term() ? record.previous_term() : record.term();
  if (former == shard.term()) return true;
  return absl::DataLossError(absl::StrCat("shard ", record.shard(), " is at version ", shard.version(), " of term ",
                                          shard.term(), ", and the log goes on with version ", record.version(),
                                          " of term ", record.term(),
                                          ": the state in between, which was taken over from another ps, is not here"));
}

absl::StatusOr<bool> Store::Impl::ReplayUpdate(const v1::LogRecord& record, ByteView payload) {
  bool whole = true;
  if (record.has_push()) {
    LODESTONE_RETURN_IF_ERROR(ReplayPush(record, payload));
  } else if (record.has_restored()) {
    LODESTONE_ASSIGN_OR_RETURN(whole, ReplayRestored(record, payload));
  } else {
    absl::Status status;
    const std::vector<EvictedKeys> evicted = FromProto(record.expiry().evicted());
    UseShard(record.shard(), [&](Shard* shard) { status = shard->ReplayExpiry(record.version(), evicted); });
    LODESTONE_RETURN_IF_ERROR(status);
  }
  if (whole && record.term() > shards_[record.shard()]->term()) {
    UseShard(record.shard(), [&](Shard* shard) { shard->BeginTerm(record.term()); });
  }
  return whole;
}

absl::Status Store::Impl::ReplayPush(const v1::LogRecord& record, ByteView payload) {
  const v1::LoggedPush& push = record.push();
  const std::shared_ptr<const TableMap> map = tables();
  auto views = ViewParts(PartKind::kPush, push.parts(), payload, *map, roles_, ShardRole::kFollowing);
  if (!views.ok()) {
    return Annotate(views.status(), absl::StrCat("shard ", record.shard(), " version ", record.version()));
  }
  std::vector<Shard::PushPart> parts;
  for (const PartView& view : *views) {
    if (view.shard != record.shard()) {
      return absl::DataLossError(absl::StrCat("shard ", record.shard(), " version ", record.version(),
                                              ": the record holds a part of shard ", view.shard));
    }
    parts.push_back({view.entry->table.get(), view.blocks, view.keys, view.row_count, view.gradients});
  }
  Evictions evictions(FromProto(push.evicted()));
  absl::Status status;
  UseShard(record.shard(), [&](Shard* shard) {
    status = shard->ReplayPush(record.version(), push.worker(), push.sequence(), parts, record.now_ms(), &evictions);
  });
  return status;
}

std::vector<v1::TableSpec> Store::Impl::table_specs() const {
  const std::shared_ptr<const TableMap> map = tables();
  std::vector<v1::TableSpec> specs;
  for (const auto& [id, entry] : *map) specs.push_back(entry->table->spec());
  std::sort(specs.begin(), specs.end(), [](const auto& a, const auto& b) { return a.name() < b.name(); });
  return specs;
}

std::vector<uint64_t> Store::Impl::RollLogs() {
  std::vector<uint64_t> marks;
  for (const auto& log : logs_) marks.push_back(log->Roll());
  return marks;
}

void Store::Impl::DropLogsBefore(std::span<const uint64_t> marks) {
  for (size_t i = 0; i < marks.size(); ++i) logs_[i]->DropBefore(marks[i]);
}

void Store::Impl::FillLogStatus(v1::StorageStatus* status) const {
  for (const auto& log : logs_) {
    const ShardLog::Stats stats = log->stats();
    status->set_log_bytes(status->log_bytes() + stats.bytes);
    status->set_log_records(status->log_records() + stats.records);
    status->set_log_commits(status->log_commits() + stats.commits);
  }
  if (const absl::Status health = CheckLogs(); !health.ok()) status->set_log_error(health.ToString());
}

}  // namespace lodestone::server
