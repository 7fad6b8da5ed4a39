#include "server/durability/checkpoint_scheduler.h"

#include <algorithm>
#include <utility>

namespace lodestone::server {
namespace {

// Soon waits for so long for more to come: states come one shard after the other.
constexpr int64_t kSoonMs = 100;
// Until a checkpoint that was wanted soon, and failed, is tried again.
constexpr int64_t kAgainMs = 1000;
// How often it is asked whether a checkpoint is due for another reason than time; and after one that failed.
constexpr int64_t kLookMs = 1000;
constexpr int64_t kLookAfterFailureMs = 30'000;

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
    bool due = period_.count() > 0 && now_ms >= next_ms;
    if (!due && now_ms >= look_ms) {
      look_ms = now_ms + kLookMs;
      mu_.Unlock();
      due = calls_.is_due();
      mu_.Lock();
    }
    if (!due && (!soon_at_ms_.has_value() || now_ms < *soon_at_ms_)) continue;
    const bool arrived = std::exchange(soon_at_ms_, std::nullopt).has_value();
    mu_.Unlock();
    const absl::Status written = due ? calls_.checkpoint() : calls_.arrived();
    mu_.Lock();
    if (arrived && !written.ok()) soon_at_ms_ = time_.NowMs() + kAgainMs;
    if (!due) continue;
    next_ms = time_.NowMs() + period_.count();
    if (!written.ok()) look_ms = time_.NowMs() + kLookAfterFailureMs;
  }
}

}  // namespace lodestone::server
