#include "server/replication/logged_positions.h"

#include <set>
#include <utility>

#include "server/store/commit_wait.h"

namespace lodestone::server {

void LoggedPositions::Begin() {
  MutexLock lock(&mu_);
  ++stream_;
  ready_.clear();
}

std::optional<LoggedPositions::Positions> LoggedPositions::Await(Positions positions, Store* store) {
  std::set<ShardLog*> logs;
  for (const v1::ShardPosition& position : positions) {
    ShardLog* const log = store->log().LogOf(store->shards().ExecutorOf(position.shard()));
    if (log != nullptr) logs.insert(log);
  }
  if (logs.empty()) return positions;
  auto batch = std::make_shared<Batch>();
  batch->positions = std::move(positions);
  {
    MutexLock lock(&mu_);
    batch->stream = stream_;
  }
  batch->logs = logs.size() + 1;
  for (ShardLog* const log : logs) {
    log->Sync([self = shared_from_this(), batch](const absl::Status& status) {
      if (!status.ok()) batch->failed = true;
      if (batch->logs.fetch_sub(1) == 1) self->Take(batch);
    });
  }
  if (batch->logs.fetch_sub(1) > 1 || batch->failed) return std::nullopt;
  return std::move(batch->positions);
}

void LoggedPositions::Take(const std::shared_ptr<Batch>& batch) {
  if (batch->failed) return;  // The stream ends at the next update, and the next one begins when the log is well.
  MutexLock lock(&mu_);
  if (batch->stream != stream_) return;
  ready_.insert(ready_.end(), batch->positions.begin(), batch->positions.end());
  changed_.NotifyAll();
}

bool LoggedPositions::AwaitReady() {
  MutexLock lock(&mu_);
  while (!stopped_ && ready_.empty()) changed_.Wait(&mu_);
  return !stopped_;
}

LoggedPositions::Positions LoggedPositions::TakeReady() {
  MutexLock lock(&mu_);
  return std::exchange(ready_, {});
}

void LoggedPositions::Stop() {
  MutexLock lock(&mu_);
  stopped_ = true;
  changed_.NotifyAll();
}

absl::Status AwaitLogs(Store* store) {
  std::vector<ShardLog*> logs;
  for (size_t executor = 0; executor < store->shards().executors().size(); ++executor) {
    if (ShardLog* const log = store->log().LogOf(executor); log != nullptr) logs.push_back(log);
  }
  CommitWait wait(logs.size());
  for (ShardLog* const log : logs) log->Sync([&wait](const absl::Status& status) { wait.Done(status); });
  return wait.Wait();
}

}  // namespace lodestone::server
