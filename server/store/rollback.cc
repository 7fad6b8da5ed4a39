// How a shard's part of a table goes back to what it was: while the ps runs, and in a replay of its log.
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/store/store_impl.h"

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
    LODESTONE_RETURN_IF_ERROR(shard->StageRestored(record.message, BytesOf(record.payload)));
  }
  return shard->CommitRestored(part.table, version, now_ms);
}

}  // namespace

absl::StatusOr<Version> Store::Impl::RollBack(ShardId shard, std::shared_ptr<const TablePart> part) {
  LODESTONE_RETURN_IF_ERROR(CheckReady());
  LODESTONE_RETURN_IF_ERROR(CheckServing());
  ShardLog* const log = LogOf(ExecutorOf(shard));
  // That much waits for the log is no reason not to wait too.
  if (log != nullptr && absl::IsUnavailable(log->health())) return log->health();
  std::vector<ShardLog::Record> records = RecordsOf(shard, *part);
  LogWait wait((log == nullptr ? 0 : 1) + (replicas_ == nullptr ? 0 : 1));
  Version version = 0;
  absl::Status status;
  UseShard(shard, [&](Shard* owned) {
    if (roles_.Of(shard) != ShardRole::kOwns) {
      status = NotOwned(shard);
      return;
    }
    const uint64_t now_ms = options_.time->NowMs();
    version = owned->version() + 1;
    status = Apply(*part, version, now_ms, owned);
    if (!status.ok()) return;
    Stamp(owned, now_ms, records);
    if (replicas_ != nullptr) {
      replicas_->Append(records, part);
      const ReplicaSink::Position position = {shard, version};
      replicas_->Await({&position, 1}, wait.done());
    }
    if (log != nullptr) log->Append(records, part, wait.done());
  });
  if (!status.ok()) return status;
  LODESTONE_RETURN_IF_ERROR(Annotate(wait.Wait(), absl::StrCat("shard ", shard, " has gone back, but may forget it")));
  return version;
}

absl::StatusOr<bool> Store::Impl::ReplayRestored(const v1::LogRecord& record, ByteView payload) {
  const v1::RestoredTable& piece = record.restored();
  std::string copy;
  const uint8_t* bytes = payload.contiguous();
  if (bytes == nullptr) {
    copy.resize(payload.size());
    payload.CopyTo(reinterpret_cast<uint8_t*>(copy.data()));
    bytes = reinterpret_cast<const uint8_t*>(copy.data());
  }
  absl::Status status;
  UseShard(record.shard(), [&](Shard* shard) {
    if (piece.piece() == 0) shard->DropStaged();
    if (shard->staged() != piece.piece()) {
      status = absl::DataLossError(absl::StrCat("piece ", piece.piece(), " of table id ", piece.table(),
                                                " follows on piece ", shard->staged(), " of those before"));
    }
    if (status.ok() && piece.has_record()) {
      status = shard->StageRestored(piece.record(), std::span(bytes, payload.size()));
    }
    if (status.ok() && piece.last()) {
      status = shard->CommitRestored(piece.table(), record.version(), record.now_ms());
    }
  });
  if (status.ok()) return piece.last();
  return absl::DataLossError(
      absl::StrCat("shard ", record.shard(), " version ", record.version(), ": ", status.message()));
}

}  // namespace lodestone::server
