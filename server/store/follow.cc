// How a store follows shards of other ps, and takes them over.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/store/store_impl.h"

namespace lodestone::server {

void Store::Impl::SetReplicas(ReplicaSink* sink, std::function<absl::Status()> may_serve) {
  replicas_ = sink;
  may_serve_ = std::move(may_serve);
}

absl::Status Store::Impl::Follow(ShardId shard) {
  MutexLock lock(&adopt_mu_);
  if (roles_.Of(shard) != ShardRole::kNone) {
    UseShard(shard, [&](Shard*) { roles_.Set(shard, ShardRole::kFollowing); });
    return absl::OkStatus();
  }
  if (shards_[shard] == nullptr) {
    shards_[shard] = std::make_unique<Shard>(shard);
    executor_of_[shard] = adopted_++ % executors_.size();
  }
  const uint64_t now_ms = options_.time->NowMs();
  LODESTONE_RETURN_IF_ERROR(Annotate(catalog_.Extend(shard,
                                                     [&](TableEntry* entry) {
                                                       UseShard(shard, [&](Shard* fresh) {
                                                         const auto* dense =
                                                             fresh->AddTable(entry->table.get(), now_ms);
                                                         if (dense != nullptr) entry->dense[shard] = dense;
                                                       });
                                                     }),
                                     absl::StrCat("shard ", shard, ", to be followed")));
  roles_.Set(shard, ShardRole::kFollowing);
  return absl::OkStatus();
}

void Store::Impl::ClearState(ShardId shard) {
  UseShard(shard, [&](Shard* followed) {
    roles_.Set(shard, ShardRole::kFollowing);
    states_[shard].fetch_add(1, std::memory_order_acq_rel);
    followed->Reset(options_.time->NowMs());
  });
}

absl::Status Store::Impl::TakeState(ShardId shard, const v1::CheckpointRecord& record,
                                    std::span<const uint8_t> payload) {
  absl::Status status;
  UseShard(shard, [&](Shard* followed) { status = followed->RestoreRecord(record, payload); });
  return Annotate(status, absl::StrCat("shard ", shard));
}

absl::Status Store::Impl::FinishState(ShardId shard, Version version, uint64_t term) {
  absl::Status status;
  UseShard(shard, [&](Shard* followed) {
    status = followed->FinishRestore(version);
    if (!status.ok()) return followed->AbandonRestore();
    followed->RestoreTerm(term);
    roles_.Set(shard, ShardRole::kFollows);
  });
  return Annotate(status, absl::StrCat("shard ", shard));
}

absl::Status Store::Impl::ReplayFollowed(const v1::LogRecord& record, const Payload& payload) {
  const int64_t now_ms = options_.time->NowMs();
  switch (record.what_case()) {
    case v1::LogRecord::kTable:
      return AddTable(record.table());  // Which logs it, if it is new.
    case v1::LogRecord::kSessionOpened:
      KnowSessions({{record.session_opened()}}, 0);
      return absl::OkStatus();
    case v1::LogRecord::kSessionForgotten:
      return absl::OkStatus();  // It may be open here; the shards' windows are the caller's to see to.
    case v1::LogRecord::kPush:
      sessions_.Contact(record.push().worker(), now_ms);
      break;
    case v1::LogRecord::kExpiry:
    case v1::LogRecord::kRestored:
      break;
    case v1::LogRecord::WHAT_NOT_SET:
      return absl::UnimplementedError("the owner sent an update of a kind that this program does not know");
  }
  if (roles_.Of(record.shard()) != ShardRole::kFollows) {
    return absl::FailedPreconditionError(absl::StrCat("shard ", record.shard(), " is not followed here"));
  }
  // Not whether the followers of this ps keep up: it may be one of them that sends this, and waits for this ps.
  LODESTONE_RETURN_IF_ERROR(CheckOwnLogs());
  LODESTONE_ASSIGN_OR_RETURN(const bool next, IsNext(record));
  if (!next) return absl::OkStatus();
  LODESTONE_RETURN_IF_ERROR(ReplayUpdate(record, payload.bytes()).status());
  ShardLog* const log = LogOf(ExecutorOf(record.shard()));
  if (log == nullptr) return absl::OkStatus();
  const ByteView pieces[] = {payload.bytes()};
  log->Append(record, pieces, std::make_shared<Payload>(payload), nullptr);
  return absl::OkStatus();
}

void Store::Impl::KnowSessions(std::span<const Incarnation> open, Incarnation forgotten_max) {
  const int64_t now_ms = options_.time->NowMs();
  for (const Incarnation worker : open) {
    if (!sessions_.Restore(worker, now_ms) || logs_.empty()) continue;
    std::vector<ShardLog::Record> records(1);
    records[0].message.set_session_opened(worker);
    logs_[0]->Append(records, nullptr, nullptr);
  }
  sessions_.RaiseForgotten(forgotten_max);
}

void Store::Impl::Own(ShardId shard, uint64_t term) {
  UseShard(shard, [&](Shard*) {
    own_terms_[shard] = term;
    roles_.Set(shard, ShardRole::kOwns);
  });
}

void Store::Impl::Disown(ShardId shard) {
  UseShard(shard, [&](Shard*) { roles_.Set(shard, ShardRole::kFollowing); });
}

}  // namespace lodestone::server
