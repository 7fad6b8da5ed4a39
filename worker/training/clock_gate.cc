#include "worker/training/clock_gate.h"

#include <algorithm>
#include <optional>

#include "common/base/retry.h"
#include "common/base/status.h"
#include "common/telemetry/histogram.h"
#include "worker/client/client.h"

namespace lodestone::worker {
namespace {

constexpr Clock kNoOthers = std::numeric_limits<Clock>::max();
constexpr uint32_t kHoldMs = 500;  // One question at the coordinator. The gate ends only after it.
constexpr int64_t kAloneMs = 100;  // Between two looks for others, where there were none.
constexpr int64_t kLookForStopEveryMs = 100;
constexpr int64_t kLookEveryMs = 5;  // Between two looks for how far the others have come, at least.
constexpr int64_t kAttemptMs = 5'000;
constexpr int64_t kReportUnboundedEveryMs = 50;

}  // namespace

ClockGate::~ClockGate() { Stop(); }

absl::Status ClockGate::Ask(const Question& question, bool takes_part) {
  Retry retry({kAttemptMs, options_.retry_timeout_ms}, options_.time, static_cast<uint64_t>(options_.time->NowMs()));
  while (true) {
    v1::AwaitClockRequest request;
    request.set_clock(question.clock);
    request.set_timeout_ms(question.hold_ms);
    Clock own = 0, begun = 0;
    {
      MutexLock lock(&mu_);
      own = ReachedLocked();
      begun = begun_;
    }
    if (takes_part) request.set_own_clock(own);
    const absl::StatusOr<v1::AwaitClockResponse> response = client_->AskClock(request);
    MutexLock lock(&mu_);
    if (response.ok()) {
      if (!response->has_lowest()) {
        return absl::FailedPreconditionError(
            "the coordinator does not tell the clocks of workers, which bounded staleness needs: start the ps with a "
            "version as new as this worker's");
      }
      asked_ns_ = NowNs();
      asked_own_ = own;
      asked_begun_ = begun;
      alone_ = response->lowest() == kNoOthers;
      newest_ = std::max(newest_, response->newest());
      if (!takes_part) return absl::OkStatus();
      reported_ = std::max(reported_, own);
      // Those that come later begin at this worker's clock, or above.
      lowest_ = std::max(lowest_, alone_ ? own : response->lowest());
      changed_.NotifyAll();
      return absl::OkStatus();
    }
    const std::optional<int64_t> pause_ms = retry.Next(response.status().code());
    if (!pause_ms.has_value() || stopped_) return Annotate(response.status(), "the clocks of the other workers");
    changed_.WaitForMs(&mu_, *pause_ms);
  }
}

absl::Status ClockGate::Start() {
  LODESTONE_RETURN_IF_ERROR(Ask({}, /*takes_part=*/false));
  {
    MutexLock lock(&mu_);
    MoveUpLocked(std::max(newest_, options_.reached));
  }
  LODESTONE_RETURN_IF_ERROR(Ask({}, /*takes_part=*/true));
  {
    // From now on the others know that it takes part. What they had heard of each other by then is no newer than this.
    MutexLock lock(&mu_);
    MoveUpLocked(newest_);
    reported_ = begun_;
    client_->ReportClock(begun_);
  }
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void ClockGate::MoveUpLocked(Clock to) {
  if (unacknowledged_.empty()) begun_ = std::max(begun_, to);
}

void ClockGate::ReportLocked() {
  const Clock reached = ReachedLocked(), every = IsBounded() ? std::max<Clock>(1, staleness_ / 2) : 1;
  if (reached < reported_ + (waits_ || idle_ ? 1 : every)) return;
  if (!IsBounded() && NowNs() < reported_ns_ + kReportUnboundedEveryMs * 1'000'000) return;
  reported_ns_ = NowNs();
  reported_ = reached;
  client_->ReportClock(reached);
}

std::optional<ClockGate::Question> ClockGate::NextLocked() const {
  // With nobody to wait for, the answer is the same until this worker has come further, or another one joins.
  if (alone_ && ReachedLocked() == asked_own_ && NowNs() < asked_ns_ + kAloneMs * 1'000'000) return std::nullopt;
  if (waits_ && !MayBeginLocked()) return Question{begun_ - staleness_, kHoldMs};
  if (idle_ && options_.moves_up && unacknowledged_.empty()) return Question{begun_ + 1, kHoldMs};
  if (!IsBounded()) return std::nullopt;
  // Ahead of need, by as much as the others' reports may be late.
  const Clock margin = std::max<Clock>(1, staleness_ / 2) + 1;
  if (!WillDoLocked(lowest_, begun_ + margin) && (!alone_ || begun_ != asked_begun_))
    return Question{lowest_ + 1, kHoldMs};
  // Whether the others have left it behind.
  if (options_.moves_up && begun_ != asked_begun_ && NowNs() >= asked_ns_ + kLookEveryMs * 1'000'000) return Question{};
  return std::nullopt;
}

absl::StatusOr<Clock> ClockGate::Await() {
  MutexLock lock(&mu_);
  const int64_t start_ns = NowNs();
  bool ends = stopped_;
  while (!ends && error_.ok()) {
    if (options_.moves_up) MoveUpLocked(newest_);
    if (!DrainsLocked() && MayBeginLocked()) break;
    waits_ = true;
    ReportLocked();
    changed_.NotifyAll();
    const bool changed = changed_.WaitForMs(&mu_, kLookForStopEveryMs);
    ends = stopped_ || (!changed && options_.stops && options_.stops());
  }
  if (waits_) waited_ns_ += NowNs() - start_ns;
  waits_ = false;
  LODESTONE_RETURN_IF_ERROR(error_);
  if (ends) return Clock{0};
  ReportLocked();  // It may have moved up.
  if (IsBounded()) behind_.Add(0, static_cast<double>(begun_ - std::min(begun_, lowest_)));
  unacknowledged_.insert(++begun_);
  changed_.NotifyAll();
  return begun_;
}

void ClockGate::Acknowledged(Clock clock) {
  MutexLock lock(&mu_);
  unacknowledged_.erase(clock);
  ReportLocked();
  if (idle_ || waits_) changed_.NotifyAll();
}

void ClockGate::SetStaleness(uint32_t staleness) {
  MutexLock lock(&mu_);
  staleness_ = staleness;
  ReportLocked();
  changed_.NotifyAll();
}

bool ClockGate::WillDo(Clock lowest, Clock clock) const {
  MutexLock lock(&mu_);
  return WillDoLocked(lowest, clock);
}

void ClockGate::SetIdle(bool idle) {
  MutexLock lock(&mu_);
  idle_ = idle;
  changed_.NotifyAll();
}

Clock ClockGate::Close() {
  MutexLock lock(&mu_);
  stopped_ = true;
  changed_.NotifyAll();
  return begun_;
}

void ClockGate::Stop() {
  Close();
  if (thread_.joinable()) thread_.join();
}

void ClockGate::MoveUp(Clock to) {
  MutexLock lock(&mu_);
  MoveUpLocked(to);
  ReportLocked();
}

void ClockGate::Run() {
  while (true) {
    Question question;
    {
      MutexLock lock(&mu_);
      std::optional<Question> next;
      while (!stopped_ && !(next = NextLocked()).has_value()) {
        changed_.WaitForMs(&mu_, kAloneMs);
        ReportLocked();  // What was too early to be told.
      }
      if (stopped_) return;
      question = *next;
    }
    const absl::Status asked = Ask(question, /*takes_part=*/true);
    MutexLock lock(&mu_);
    if (!asked.ok()) {
      error_ = asked;
      changed_.NotifyAll();
      return;
    }
    if (idle_ && options_.moves_up) MoveUpLocked(lowest_);
    ReportLocked();
  }
}

Clock ClockGate::lowest() const {
  MutexLock lock(&mu_);
  return lowest_;
}

Clock ClockGate::clock() const {
  MutexLock lock(&mu_);
  return ReachedLocked();
}

Clock ClockGate::begun() const {
  MutexLock lock(&mu_);
  return begun_;
}

v1::ConsistencyProgress ClockGate::Observed() const {
  v1::ConsistencyProgress observed;
  MutexLock lock(&mu_);
  observed.set_waited_seconds(1e-9 * static_cast<double>(waited_ns_));
  if (behind_.pushes() == 0) return observed;
  const DelaySummary summary = behind_.Summarize("");
  observed.set_behind_p50(static_cast<uint32_t>(summary.p50));
  observed.set_behind_p90(static_cast<uint32_t>(summary.p90));
  observed.set_behind_max(static_cast<uint32_t>(summary.max));
  return observed;
}

}  // namespace lodestone::worker
