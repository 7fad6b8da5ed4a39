#include "server/store/replayer.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/planted_defect.h"
#include "common/base/status.h"
#include "common/config/table_check.h"
#include "server/shard/shard.h"
#include "server/store/catalog.h"
#include "server/store/commit_log.h"
#include "server/store/commit_wait.h"
#include "server/store/logged_evictions.h"
#include "server/store/request_view.h"
#include "server/store/serving_gate.h"
#include "server/store/sessions.h"
#include "server/store/shard_set.h"

namespace lodestone::server {
namespace {

std::span<const uint8_t> BytesOf(const std::string& payload) {
  return {reinterpret_cast<const uint8_t*>(payload.data()), payload.size()};
}

// What the log keeps of it, but for the version and the clock.
std::vector<ShardLog::Record> RecordsOf(ShardId shard, const TablePart& part) {
  std::vector<ShardLog::Record> records(std::max<size_t>(1, part.records.size()));
  for (size_t i = 0; i < records.size(); ++i) {
    records[i].message.set_shard(shard);
    v1::RestoredTable& piece = *records[i].message.mutable_restored();
    piece.set_table(part.table);
    piece.set_piece(i);
    if (i >= part.records.size()) continue;
    *piece.mutable_record() = part.records[i].message;
    const std::span<const uint8_t> payload = BytesOf(part.records[i].payload);
    if (!payload.empty()) records[i].payload.emplace_back(payload.data(), payload.size());
  }
  records.back().message.mutable_restored()->set_last(true);
  return records;
}

absl::Status Apply(const TablePart& part, Version version, uint64_t now_ms, Shard* shard) {
  for (const TablePart::Record& record : part.records) {
    LODESTONE_RETURN_IF_ERROR(shard->rollback().Stage(record.message, BytesOf(record.payload)));
  }
  return shard->rollback().Commit(part.table, version, now_ms);
}

}  // namespace

absl::StatusOr<bool> Replayer::Replay(const v1::LogRecord& record, ByteView payload) {
  switch (record.what_case()) {
    case v1::LogRecord::kTable:
      if (record.table_known()) LODESTONE_RETURN_IF_ERROR(CheckKnown(record.table()));
      LODESTONE_RETURN_IF_ERROR(catalog_->Restore(record.table()));
      return true;
    case v1::LogRecord::kSessionOpened:
      sessions_->Restore(record.session_opened(), time_->NowMs());
      return true;
    case v1::LogRecord::kSessionForgotten:
      if (record.session_ended()) {
        sessions_->End(record.session_forgotten());
      } else {
        sessions_->RestoreForgotten(record.session_forgotten());
      }
      for (const ShardId shard : shards_->adopted()) {
        shards_->Run(shard, [&](Shard* owned) { owned->ForgetWorker(record.session_forgotten()); });
      }
      return true;
    case v1::LogRecord::kPush:
    case v1::LogRecord::kExpiry:
    case v1::LogRecord::kRestored:
    case v1::LogRecord::kSettings:
    case v1::LogRecord::kClosed:
      break;
    case v1::LogRecord::WHAT_NOT_SET:
      return absl::UnimplementedError("the log holds a record of a kind that this program does not know");
  }
  LODESTONE_ASSIGN_OR_RETURN(const bool next, IsNext(record));
  return next ? ReplayUpdate(record, payload) : false;
}

absl::StatusOr<bool> Replayer::IsNext(const v1::LogRecord& record) const {
  if (shards_->RoleOf(record.shard()) == ShardRole::kNone) return false;
  const Shard& shard = *shards_->Get(record.shard());
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

absl::StatusOr<bool> Replayer::ReplayUpdate(const v1::LogRecord& record, ByteView payload) {
  bool whole = true;
  if (record.has_push()) {
    LODESTONE_RETURN_IF_ERROR(ReplayPush(record, payload));
  } else if (record.has_restored()) {
    LODESTONE_ASSIGN_OR_RETURN(whole, ReplayRestored(record, payload));
  } else if (record.has_settings()) {
    LODESTONE_RETURN_IF_ERROR(ReplaySettings(record));
  } else if (record.has_closed()) {
    const v1::ClosedStep& closed = record.closed();
    Evictions evictions(FromProto(closed.evicted()));
    absl::Status status;
    shards_->Run(record.shard(), [&](Shard* shard) {
      status = shard->ReplayCloseStep(record.version(), {closed.table(), closed.step()}, closed.ends_steps(),
                                      record.now_ms(), &evictions);
    });
    LODESTONE_RETURN_IF_ERROR(status);
  } else {
    absl::Status status;
    const std::vector<EvictedKeys> evicted = FromProto(record.expiry().evicted());
    shards_->Run(record.shard(), [&](Shard* shard) { status = shard->ReplayExpiry(record.version(), evicted); });
    LODESTONE_RETURN_IF_ERROR(status);
  }
  if (whole && record.term() > shards_->Get(record.shard())->term()) {
    shards_->Run(record.shard(), [&](Shard* shard) { shard->BeginTerm(record.term()); });
  }
  return whole;
}

absl::Status Replayer::ReplayPush(const v1::LogRecord& record, ByteView payload) {
  const v1::LoggedPush& push = record.push();
  const std::shared_ptr<const TableMap> map = catalog_->tables();
  auto views =
      ViewParts(PartKind::kPush, push.parts(), payload, std::nullopt, *map, shards_->roles(), ShardRole::kFollowing);
  if (!views.ok()) {
    return Annotate(views.status(), absl::StrCat("shard ", record.shard(), " version ", record.version()));
  }
  for (PartView& view : *views) {
    view.takes_new = absl::c_find(push.full_tables(), view.table->id()) == push.full_tables().end();
    if (view.shard != record.shard()) {
      return absl::DataLossError(absl::StrCat("shard ", record.shard(), " version ", record.version(),
                                              ": the record holds a part of shard ", view.shard));
    }
  }
  Evictions evictions(FromProto(push.evicted()));
  absl::Status status;
  shards_->Run(record.shard(), [&](Shard* shard) {
    status = shard->ReplayPush(record.version(), push.worker(), push.sequence(), *views, record.now_ms(), &evictions,
                               push.has_contribution() ? &push.contribution() : nullptr);
  });
  return status;
}

absl::Status Replayer::ReplaySettings(const v1::LogRecord& record) {
  if (record.table_known()) LODESTONE_RETURN_IF_ERROR(CheckKnown(record.settings()));
  // The owner may have ended before it said that all shards have them. First the table, which may fail for want of the
  // log: the shard is as it was then, and the record comes again.
  LODESTONE_RETURN_IF_ERROR(Annotate(catalog_->Restore(record.settings()),
                                     absl::StrCat("shard ", record.shard(), " version ", record.version())));
  absl::Status status;
  shards_->Run(record.shard(),
               [&](Shard* shard) { status = shard->ReplaySettings(record.version(), record.settings()); });
  return status;
}

absl::StatusOr<bool> Replayer::ReplayRestored(const v1::LogRecord& record, ByteView payload) {
  const v1::RestoredTable& piece = record.restored();
  std::string copy;
  const uint8_t* bytes = payload.contiguous();
  if (bytes == nullptr) {
    copy.resize(payload.size());
    payload.CopyTo(reinterpret_cast<uint8_t*>(copy.data()));
    bytes = reinterpret_cast<const uint8_t*>(copy.data());
  }
  absl::Status status;
  shards_->Run(record.shard(), [&](Shard* shard) {
    if (piece.piece() == 0) shard->rollback().Drop();
    if (shard->rollback().staged() != piece.piece()) {
      status = absl::DataLossError(absl::StrCat("piece ", piece.piece(), " of table id ", piece.table(),
                                                " follows on piece ", shard->rollback().staged(), " of those before"));
    }
    if (status.ok() && piece.has_record()) {
      status = shard->rollback().Stage(piece.record(), std::span(bytes, payload.size()));
    }
    if (status.ok() && piece.last()) {
      status = shard->rollback().Commit(piece.table(), record.version(), record.now_ms());
    }
  });
  if (status.ok()) return piece.last();
  return absl::DataLossError(
      absl::StrCat("shard ", record.shard(), " version ", record.version(), ": ", status.message()));
}

bool Replayer::KeepSession(Incarnation worker) {
  return sessions_->IsOpen(worker) || sessions_->Adopt(worker, time_->NowMs());
}

void Replayer::RestoreSessions(std::span<const Incarnation> open, Incarnation forgotten_max,
                               std::span<const Incarnation> ended) {
  const int64_t now_ms = time_->NowMs();
  sessions_->RestoreEnded(ended);
  for (const Incarnation worker : open) sessions_->Restore(worker, now_ms);
  // Another ps may have forgotten the newest worker, which had a session here.
  if (std::find(open.begin(), open.end(), forgotten_max) != open.end()) return sessions_->RaiseForgotten(forgotten_max);
  sessions_->RestoreForgotten(forgotten_max);
}

absl::Status Replayer::Follow(ShardId shard) {
  if (shards_->RoleOf(shard) != ShardRole::kNone) {
    shards_->Disown(shard, /*whole=*/false);
    return absl::OkStatus();
  }
  return Annotate(catalog_->AddShard(shard), absl::StrCat("shard ", shard, ", to be followed"));
}

void Replayer::Unfollow(ShardId shard) { catalog_->RemoveShard(shard); }

void Replayer::ClearState(ShardId shard, uint64_t lineage) {
  shards_->Run(shard, [&](Shard* followed) {
    shards_->BeginState(shard);
    followed->Reset(time_->NowMs());
    if (!Planted(Defect::kLineageStays)) followed->RaiseLineage(lineage);
  });
}

absl::Status Replayer::RestoreRecord(ShardId shard, const v1::CheckpointRecord& record,
                                     std::span<const uint8_t> payload) {
  absl::Status status;
  shards_->Run(shard, [&](Shard* followed) { status = followed->restore().Record(record, payload); });
  return Annotate(status, absl::StrCat("shard ", shard));
}

absl::Status Replayer::FinishState(ShardId shard, Version version, uint64_t term) {
  absl::Status status;
  shards_->Run(shard, [&](Shard* followed) {
    status = followed->restore().Finish(version);
    if (!status.ok()) return followed->restore().Abandon();
    followed->RestoreTerm(term);
    shards_->SetRole(shard, ShardRole::kFollows);
  });
  return Annotate(status, absl::StrCat("shard ", shard));
}

absl::Status Replayer::ReplayFollowed(const v1::LogRecord& record, const Payload& payload) {
  const int64_t now_ms = time_->NowMs();
  switch (record.what_case()) {
    case v1::LogRecord::kTable:
      LODESTONE_RETURN_IF_ERROR(CheckKnown(record.table()));
      return catalog_->Restore(record.table());  // Which logs it, if it is new.
    case v1::LogRecord::kSessionOpened:
      AddSessions({{record.session_opened()}}, 0, {});
      return absl::OkStatus();
    case v1::LogRecord::kSessionForgotten:
      // One that was silent there may be open here. The windows of the shards that are followed are the caller's to see
      // to. The followers of this ps hear of it here: when the coordinator says it too, it is known.
      if (record.session_ended() && sessions_->End(record.session_forgotten())) log_->AppendToOneUnawaited(record);
      return absl::OkStatus();
    case v1::LogRecord::kPush:
      sessions_->Contact(record.push().worker(), now_ms);
      break;
    case v1::LogRecord::kExpiry:
    case v1::LogRecord::kRestored:
    case v1::LogRecord::kSettings:
    case v1::LogRecord::kClosed:
      break;
    case v1::LogRecord::WHAT_NOT_SET:
      return absl::UnimplementedError("the owner sent an update of a kind that this program does not know");
  }
  if (shards_->RoleOf(record.shard()) != ShardRole::kFollows) {
    return absl::FailedPreconditionError(absl::StrCat("shard ", record.shard(), " is not followed here"));
  }
  // Not whether the followers of this ps keep up: it may be one of them that sends this, and waits for this ps.
  LODESTONE_RETURN_IF_ERROR(log_->log_health());
  LODESTONE_ASSIGN_OR_RETURN(const bool next, IsNext(record));
  if (!next) return absl::OkStatus();
  LODESTONE_RETURN_IF_ERROR(ReplayUpdate(record, payload.bytes()).status());
  ShardLog* const log = log_->LogOf(shards_->ExecutorOf(record.shard()));
  if (log == nullptr) return absl::OkStatus();
  const ByteView pieces[] = {payload.bytes()};
  const uint64_t lineage = shards_->Get(record.shard())->lineage();
  std::optional<v1::LogRecord> relabelled;
  if (record.lineage() != lineage) relabelled.emplace(record).set_lineage(lineage);
  log->Append(relabelled.has_value() ? *relabelled : record, pieces, std::make_shared<Payload>(payload), nullptr);
  return absl::OkStatus();
}

void Replayer::AddSessions(std::span<const Incarnation> open, Incarnation forgotten_max,
                           std::span<const Incarnation> ended) {
  const int64_t now_ms = time_->NowMs();
  v1::LogRecord record;
  // First: many ends, with those that were heard of here, may be more than are remembered one by one, and a worker of
  // before them would be taken for one that was forgotten.
  for (const Incarnation worker : open) {
    if (!sessions_->Adopt(worker, now_ms)) continue;
    record.set_session_opened(worker);
    log_->AppendToOneUnawaited(record);  // For this ps's own followers, too: the worker may push here from now on.
  }
  record.Clear();
  for (const Incarnation worker : ended) {
    if (sessions_->IsOver(worker)) continue;  // It was heard of before.
    sessions_->End(worker);
    record.set_session_forgotten(worker);
    record.set_session_ended(true);
    log_->AppendToOneUnawaited(record);
  }
  sessions_->RaiseForgotten(forgotten_max);
}

absl::StatusOr<Version> Replayer::RollBack(ShardId shard, std::shared_ptr<const TablePart> part) {
  LODESTONE_RETURN_IF_ERROR(gate_->CheckReady());
  LODESTONE_RETURN_IF_ERROR(gate_->CheckServing());
  ShardLog* const log = log_->LogOf(shards_->ExecutorOf(shard));
  // That much waits for the log is no reason not to wait too.
  if (log != nullptr && absl::IsUnavailable(log->health())) return log->health();
  std::vector<ShardLog::Record> records = RecordsOf(shard, *part);
  CommitWait wait(log_->ends());
  Version version = 0;
  absl::Status status;
  shards_->Run(shard, [&](Shard* owned) {
    if (!shards_->Owns(shard)) {
      status = NotOwned(shard);
      return;
    }
    const uint64_t now_ms = time_->NowMs();
    version = owned->version() + 1;
    status = Apply(*part, version, now_ms, owned);
    if (!status.ok()) return;
    shards_->TellChanged(shard);
    log_->Stamp(owned, now_ms, records);
    const ReplicaSink::Position position = {shard, version};
    log_->Append(shards_->ExecutorOf(shard), records, {&position, 1}, part,
                 [&wait](CommitEnd, const absl::Status& done) { wait.Done(done); });
  });
  if (!status.ok()) return status;
  LODESTONE_RETURN_IF_ERROR(Annotate(wait.Wait(), absl::StrCat("shard ", shard, " has gone back, but may forget it")));
  return version;
}

}  // namespace lodestone::server
