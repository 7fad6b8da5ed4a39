#include "server/durability/checkpoint_scheduler.h"

#include <algorithm>
#include <utility>

namespace lodestone::server {
namespace {

// Soon waits for so long for more to come: states come one shard after the other.
constexpr std::chrono::milliseconds kSoon(100);
// Until a checkpoint that was wanted soon, and failed, is tried again.
constexpr std::chrono::milliseconds kAgain(1000);

}  // namespace

void CheckpointScheduler::Start() {
  MutexLock lock(&mu_);
  started_ = true;
  thread_ = std::thread([this] { RunThread(); });
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
  if (soon_at_.has_value()) return;
  soon_at_ = Clock::now() + kSoon;
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
  auto next = Clock::now() + period_;
  MutexLock lock(&mu_);
  while (!closing_) {
    std::optional<Clock::time_point> wake = soon_at_;
    if (period_.count() > 0) wake = std::min(next, wake.value_or(next));
    const bool due = wake.has_value() && Clock::now() >= *wake;
    if (jobs_.empty() && !due) {
      if (wake.has_value()) {
        changed_.WaitUntil(&mu_, *wake);
      } else {
        changed_.Wait(&mu_);
      }
      continue;
    }
    Job* job = nullptr;
    const bool soon = soon_at_.has_value();
    if (!jobs_.empty()) {
      job = jobs_.front();
      jobs_.pop_front();
    } else {
      soon_at_.reset();
    }
    mu_.Unlock();
    absl::Status result = job != nullptr ? job->run() : checkpoint_();
    mu_.Lock();
    if (job == nullptr && soon && !result.ok()) soon_at_ = Clock::now() + kAgain;
    if (job != nullptr) {
      job->result = std::move(result);
      changed_.NotifyAll();
    }
    if (due) next = Clock::now() + period_;
  }
}

}  // namespace lodestone::server
