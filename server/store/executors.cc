#include "server/store/executors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"

namespace lodestone::server {

Executors::Executors(uint32_t count, int64_t turn_ns) : turn_ns_(turn_ns) {
  for (uint32_t i = 0; i < std::max(1u, count); ++i) executors_.push_back(std::make_unique<Executor>());
}

bool Executors::IsTurnOver(size_t executor, int64_t taken_ns) const {
  return taken_ns >= turn_ns_ && executors_[executor]->FreeOnesWait();
}

absl::Status Executors::CheckQueue(size_t executor) const {
  const size_t length = executors_[executor]->queue_length();
  if (length < limits::kExecutorQueueMax) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("executor ", executor,
                                                   " of this ps, which owns shards of the call, has ", length,
                                                   " messages waiting, its limit; try again later"));
}

void Executors::Drain() {
  for (const auto& executor : executors_) executor->SubmitAndWait([] {});
  background_->SubmitAndWait([] {});
}

void Executors::Stop() {
  for (const auto& executor : executors_) executor->SubmitAndWait([] {});  // What runs still asks for its executor.
  executors_.clear();
}

void Executors::StopBackground() { background_.reset(); }

void Executors::FillStatus(v1::StatusResponse* status) const {
  Executor::Stats slowest;
  for (const auto& executor : executors_) {
    const Executor::Stats stats = executor->stats();
    if (stats.oldest_wait_ns > slowest.oldest_wait_ns) slowest = stats;
    v1::ExecutorStatus* out = status->add_executors();
    out->set_queue_length(static_cast<uint32_t>(stats.queue_length));
    out->set_executed(stats.executed);
    out->set_queue_length_max(static_cast<uint32_t>(stats.queue_length_max));
  }
  if (slowest.oldest_wait_ns < limits::kWaitTellMs * 1'000'000) return;
  v1::WaitStatus* const wait = status->add_waits();
  wait->set_who("pushes and pulls");
  wait->set_what(absl::StrCat(slowest.queue_length, " messages wait for one of its ", executors_.size(), " executors"));
  wait->set_seconds(1e-9 * static_cast<double>(slowest.oldest_wait_ns));
  wait->add_targets()->set_kind(v1::WaitTarget::PROCESSOR);
}

}  // namespace lodestone::server
