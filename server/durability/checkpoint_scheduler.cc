#include "server/durability/checkpoint_scheduler.h"

#include <algorithm>
#include <utility>

namespace lodestone::server {
namespace {

// Soon waits for so long for more to come: states come one shard after the other.
constexpr int64_t kSoonMs = 100;
// Until a checkpoint that was wanted soon, and failed, is tried again.
constexpr int64_t kAgainMs = 1000;
// How often it is asked whether a checkpoint is due for another reason than time; and after one that failed: twice as
// long after each.
constexpr int64_t kLookMs = 1000;
constexpr int64_t kAfterFailureMs = 15'000;
constexpr int64_t kAfterFailureMsMax = 600'000;

}  // namespace

void CheckpointScheduler::Start() {
  MutexLock lock(&mu_);
  started_ = true;
  thread_ = Thread([this] { RunThread(); });
}

absl::Status CheckpointScheduler::Run(std::function<absl::Status()> run) {
  Job job{std::move(run), std::nullopt};
  MutexLock lock(&mu_);
  if (!started_) return absl::UnavailableError("this ps is bringing its shards back: try again when it is ready");
  if (closing_) return absl::UnavailableError("this ps shuts down");
  jobs_.push_back(&job);
  changed_.NotifyAll();
  while (!job.result.has_value()) changed_.Wait(&mu_);
  return *std::move(job.result);
}

void CheckpointScheduler::Soon() {
  MutexLock lock(&mu_);
  if (soon_at_ms_.has_value()) return;
  soon_at_ms_ = time_.NowMs() + kSoonMs;
  changed_.NotifyAll();
}

bool CheckpointScheduler::Close() {
  {
    MutexLock lock(&mu_);
    if (closing_ || !started_) return false;
    closing_ = true;
    for (Job* const job : jobs_) job->result = absl::UnavailableError("this ps shuts down");
    jobs_.clear();
    changed_.NotifyAll();
  }
  thread_.join();
  return true;
}

void CheckpointScheduler::RunThread() {
  int64_t next_ms = time_.NowMs() + period_.count();
  int64_t look_ms = time_.NowMs() + kLookMs;
  int64_t after_failure_ms = kAfterFailureMs;
  MutexLock lock(&mu_);
  while (!closing_) {
    if (!jobs_.empty()) {
      Job* const job = jobs_.front();
      jobs_.pop_front();
      mu_.Unlock();
      absl::Status result = job->run();
      mu_.Lock();
      job->result = std::move(result);
      changed_.NotifyAll();
      continue;
    }
    int64_t wake_ms = std::min(look_ms, soon_at_ms_.value_or(look_ms));
    if (period_.count() > 0) wake_ms = std::min(wake_ms, next_ms);
    const int64_t now_ms = time_.NowMs();
    if (now_ms < wake_ms) {
      changed_.WaitForMs(&mu_, wake_ms - now_ms);
      continue;
    }
    // What has arrived goes first: it may be a small part of what a periodic one holds, and a move waits for it.
    if (soon_at_ms_.has_value() && now_ms >= *soon_at_ms_) {
      soon_at_ms_.reset();
      mu_.Unlock();
      const absl::Status written = calls_.arrived();
      mu_.Lock();
      if (!written.ok()) soon_at_ms_ = time_.NowMs() + kAgainMs;
      continue;
    }
    bool due = period_.count() > 0 && now_ms >= next_ms;
    mu_.Unlock();
    if (!due) {
      look_ms = now_ms + kLookMs;
      due = calls_.is_due();
    }
    const absl::Status written = due ? calls_.checkpoint() : absl::OkStatus();
    mu_.Lock();
    if (!due) continue;
    next_ms = time_.NowMs() + period_.count();
    // It may take all that is free each time.
    after_failure_ms = written.ok() ? kAfterFailureMs : std::min(2 * after_failure_ms, kAfterFailureMsMax);
    if (!written.ok()) look_ms = time_.NowMs() + after_failure_ms;
  }
}

}  // namespace lodestone::server
