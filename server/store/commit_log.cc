#include "server/store/commit_log.h"

#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "server/shard/shard.h"
#include "server/store/commit_wait.h"
#include "server/store/shard_set.h"

namespace lodestone::server {
namespace {

// The ends of a commit that one caller waits for.
class JoinedEnds {
 public:
  JoinedEnds(size_t ends, CommitLog::Done done) : left_(ends), done_(std::move(done)) {}

  void End(const absl::Status& status) {
    {
      MutexLock lock(&mu_);
      if (first_error_.ok()) first_error_ = status;
      if (--left_ > 0) return;
    }
    done_(first_error_);
  }

 private:
  Mutex mu_;
  size_t left_ ABSL_GUARDED_BY(mu_);
  absl::Status first_error_;  // Guarded by mu_ until all have ended.
  const CommitLog::Done done_;
};

std::vector<ShardLog::Record> RecordsOf(const v1::LogRecord& record) {
  std::vector<ShardLog::Record> records(1);
  records[0].message = record;
  return records;
}

}  // namespace

void CommitLog::Open(std::vector<std::unique_ptr<ShardLog>> logs) {
  LODESTONE_CHECK(!gate_->open() && (logs.empty() || logs.size() == shards_->executors().size()));
  logs_ = std::move(logs);
}

void CommitLog::Stamp(Shard* shard, uint64_t now_ms, std::span<ShardLog::Record> records) const {
  if (records.empty()) return;  // A term begins with a record that tells the one before.
  const uint64_t former = shard->term();
  BeginTerm(shard);
  const uint64_t term = shard->term();
  for (ShardLog::Record& record : records) {
    record.message.set_shard(shard->id());
    record.message.set_version(shard->version());
    record.message.set_now_ms(now_ms);
    record.message.set_term(term);
    record.message.set_lineage(shard->lineage());
    if (term != former) record.message.set_previous_term(former);
  }
}

void CommitLog::BeginTerm(Shard* shard) const {
  const uint64_t term = shards_->OwnTermOf(shard->id());
  if (term > shard->term()) shard->BeginTerm(term);
}

void CommitLog::AwaitCommitted(size_t executor, std::span<const ReplicaSink::Position> positions, Done done) {
  if (!HasLogOrFollowers()) return done(absl::OkStatus());
  auto ends_left = std::make_shared<JoinedEnds>(ends(), std::move(done));
  Append(executor, {}, positions, nullptr,
         [ends_left](CommitEnd, const absl::Status& status) { ends_left->End(status); });
}

void CommitLog::AppendUnawaited(Shard* shard, uint64_t now_ms, std::vector<ShardLog::Record> records) {
  Stamp(shard, now_ms, records);
  if (replicas_ != nullptr && HasLogOrFollowers()) replicas_->Append(records, nullptr);
  ShardLog* const log = LogOf(shards_->ExecutorOf(shard->id()));
  if (log != nullptr) log->Append(records, nullptr, nullptr);
}

absl::Status CommitLog::AppendToAll(const v1::LogRecord& record) {
  const std::vector<ShardLog::Record> records = RecordsOf(record);
  CommitWait wait(logs_.size());
  if (replicas_ != nullptr) replicas_->Append(records, nullptr);
  for (const auto& log : logs_) {
    log->Append(records, nullptr, [&wait](const absl::Status& status) { wait.Done(status); });
  }
  return wait.Wait();
}

void CommitLog::AppendToOneUnawaited(const v1::LogRecord& record) {
  const std::vector<ShardLog::Record> records = RecordsOf(record);
  if (replicas_ != nullptr) replicas_->Append(records, nullptr);
  if (!logs_.empty()) logs_[0]->Append(records, nullptr, nullptr);
}

void CommitLog::AppendToOne(const v1::LogRecord& record, std::function<void(const absl::Status&)> done) {
  const std::vector<ShardLog::Record> records = RecordsOf(record);
  if (replicas_ != nullptr) replicas_->Append(records, nullptr);
  if (logs_.empty()) return done(absl::OkStatus());
  logs_[0]->Append(records, nullptr, std::move(done));
}

absl::Status CommitLog::log_health() const {
  for (const auto& log : logs_) LODESTONE_RETURN_IF_ERROR(log->health());
  return absl::OkStatus();
}

absl::Status CommitLog::health() const {
  LODESTONE_RETURN_IF_ERROR(log_health());
  return replicas_ == nullptr ? absl::OkStatus() : replicas_->health();
}

std::vector<uint64_t> CommitLog::Roll() {
  std::vector<uint64_t> marks;
  for (const auto& log : logs_) marks.push_back(log->Roll());
  return marks;
}

void CommitLog::DropBefore(std::span<const uint64_t> marks) {
  for (size_t i = 0; i < marks.size(); ++i) logs_[i]->DropBefore(marks[i]);
}

void CommitLog::FillWaits(v1::StatusResponse* status) const {
  ShardLog::Wait longest;
  for (const auto& log : logs_) {
    ShardLog::Wait wait = log->wait(limits::kWaitTellMs);
    if (!wait.what.empty() && (longest.what.empty() || wait.ms > longest.ms)) longest = std::move(wait);
  }
  if (longest.what.empty()) return;
  v1::WaitStatus* const wait = status->add_waits();
  wait->set_who("pushes");
  wait->set_what(longest.what);
  wait->set_seconds(static_cast<double>(longest.ms) / 1000);
  wait->add_targets()->set_kind(v1::WaitTarget::DISK);
}

uint64_t CommitLog::written_bytes() const {
  uint64_t bytes = 0;
  for (const auto& log : logs_) bytes += log->stats().written;
  return bytes;
}

void CommitLog::FillStatus(v1::StorageStatus* status) const {
  for (const auto& log : logs_) {
    const ShardLog::Stats stats = log->stats();
    status->set_log_bytes(status->log_bytes() + stats.bytes);
    status->set_log_records(status->log_records() + stats.records);
    status->set_log_commits(status->log_commits() + stats.commits);
  }
  if (const absl::Status well = health(); !well.ok()) status->set_log_error(well.ToString());
}

}  // namespace lodestone::server
