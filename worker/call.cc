#include "worker/call.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/log.h"
#include "common/random.h"
#include "common/status.h"

namespace lodestone {
namespace {

// A call that has waited for this long is spoken of, every so often.
constexpr int64_t kReportEveryMs = 3'000;

}  // namespace

// One call. Belongs to the attempt under way or to the pause between two; what others look at is guarded by
// Caller::mu_.
struct Caller::Pending {
  Pending(const RetryPolicy& policy, const TimeSource* time, uint64_t seed) : retry(policy, time, seed) {}

  v1::Call call;
  std::vector<grpc::Slice> payload;
  std::string what;
  Done done;
  std::list<std::unique_ptr<Pending>>::iterator self;

  Timer::Id pause = 0;
  uint64_t redirects = 0;  // Of the caller when the attempt under way began.
  Retry retry;
  absl::Status last_error;
};

Caller::Caller(std::string peer, std::vector<std::unique_ptr<Connection>> connections, const RetryPolicy& policy,
               Timer* timer, uint64_t seed)
    : policy_(policy), seed_(seed), timer_(timer) {
  LODESTONE_CHECK(!connections.empty());
  MutexLock lock(&mu_);
  place_ = std::make_shared<const Place>(Place{std::move(peer), std::move(connections)});
  report_ = timer_->After(kReportEveryMs, [this] { Report(); });
}

Caller::~Caller() { Cancel(); }

void Caller::Redirect(std::string peer, std::vector<std::unique_ptr<Connection>> connections) {
  LODESTONE_CHECK(!connections.empty());
  auto place = std::make_shared<const Place>(Place{std::move(peer), std::move(connections)});
  std::vector<Pending*> paused;
  {
    MutexLock lock(&mu_);
    place_.swap(place);
    ++redirects_;
    for (const auto& call : pending_) {
      if (call->pause == 0 || !timer_->Cancel(call->pause)) continue;
      call->pause = 0;
      paused.push_back(call.get());
    }
  }
  for (Pending* call : paused) Attempt(call);
  for (const auto& connection : place->connections) connection->Close();  // What is under way there is sent again.
}

std::string Caller::peer() const {
  MutexLock lock(&mu_);
  return place_->peer;
}

void Caller::Call(v1::Call call, std::vector<grpc::Slice> payload, std::string what, Done done) {
  Pending* pending = nullptr;
  {
    MutexLock lock(&mu_);
    if (!cancelled_) {
      pending_.push_back(std::make_unique<Pending>(policy_, &time_, StreamSeed(seed_, ++calls_)));
      pending = pending_.back().get();
      pending->self = std::prev(pending_.end());
      pending->call = std::move(call);
      pending->payload = std::move(payload);
      pending->what = std::move(what);
      pending->done = std::move(done);
    }
  }
  if (pending == nullptr) {
    done(absl::CancelledError(absl::StrCat(what, " to ", peer(), ": the client is closing")));
    return;
  }
  Attempt(pending);
}

void Caller::Attempt(Pending* call) {
  std::shared_ptr<const Place> place;
  Connection* connection = nullptr;
  {
    MutexLock lock(&mu_);
    place = place_;
    connection = place->connections[next_connection_++ % place->connections.size()].get();
    call->redirects = redirects_;
  }
  // The payload's slices are referenced, not copied, so that they can be sent again.
  connection->Send(&call->call, call->payload,
                   [this, call](absl::StatusOr<Connection::Answer> answer) { OnAttemptDone(call, std::move(answer)); });
}

void Caller::OnAttemptDone(Pending* call, absl::StatusOr<Connection::Answer> answer) {
  if (answer.ok()) {
    Finish(call, std::move(answer));
    return;
  }
  absl::Status status = answer.status();
  // A ps that shuts down cancels the calls under way.
  if (absl::IsCancelled(status)) status = absl::UnavailableError(status.message());
  bool moved = false;
  {
    MutexLock lock(&mu_);
    call->last_error = status;
    moved = !cancelled_ && call->redirects != redirects_;
    if (cancelled_) {
      status = absl::CancelledError("the client is closing");
    } else if (!moved) {
      if (const std::optional<int64_t> pause_ms = call->retry.Next(status.code())) {
        call->pause = timer_->After(*pause_ms, [this, call] { OnPauseOver(call); });
        return;
      }
    }
  }
  if (moved) return Attempt(call);
  Finish(call, std::move(status));
}

void Caller::OnPauseOver(Pending* call) {
  {
    MutexLock lock(&mu_);
    call->pause = 0;
  }
  Attempt(call);
}

void Caller::Finish(Pending* call, absl::StatusOr<Connection::Answer> answer) {
  {
    const Done done = std::move(call->done);  // Gone before the client may be: it may hold things of the caller's.
    if (answer.ok()) {
      done(std::move(answer));
    } else {
      const std::string where =
          absl::StrFormat("%s to %s, attempt %d, %.1f s", call->what, peer(), call->retry.attempts(),
                          static_cast<double>(call->retry.elapsed_ms()) / 1000);
      done(Annotate(answer.status(), where));
    }
  }
  MutexLock lock(&mu_);
  pending_.erase(call->self);
  if (pending_.empty()) idle_.NotifyAll();
}

void Caller::Cancel() {
  std::vector<Pending*> paused;
  std::shared_ptr<const Place> place;
  {
    MutexLock lock(&mu_);
    cancelled_ = true;
    place = place_;
    for (const auto& call : pending_) {
      if (call->pause != 0 && timer_->Cancel(call->pause)) paused.push_back(call.get());
    }
  }
  for (const auto& connection : place->connections) connection->Close();
  for (Pending* call : paused) Finish(call, absl::CancelledError("the client is closing"));
  MutexLock lock(&mu_);
  if (timer_->Cancel(report_)) report_ = 0;
  while (!pending_.empty() || report_ != 0) idle_.Wait(&mu_);
}

std::string Caller::WaitingLongerThan(int64_t ms) const {
  MutexLock lock(&mu_);
  if (pending_.empty()) return "";
  const Pending& oldest = *pending_.front();
  const int64_t waited_ms = oldest.retry.elapsed_ms();
  if (waited_ms <= ms) return "";
  return absl::StrFormat("%s to %s, attempt %d since %.1f s%s", oldest.what, place_->peer, oldest.retry.attempts(),
                         static_cast<double>(waited_ms) / 1000,
                         oldest.last_error.ok() ? "" : absl::StrCat(": ", oldest.last_error.ToString()));
}

void Caller::Report() {
  const std::string waiting = WaitingLongerThan(kReportEveryMs);
  if (!waiting.empty()) LODESTONE_LOG(WARN, "client", "waiting for={}", waiting);
  MutexLock lock(&mu_);
  report_ = cancelled_ ? 0 : timer_->After(kReportEveryMs, [this] { Report(); });
  idle_.NotifyAll();
}

absl::StatusOr<Connection::Answer> CallAndWait(Caller* caller, v1::Call call, std::string what) {
  struct {
    Mutex mu;
    CondVar done;
    std::optional<absl::StatusOr<Connection::Answer>> answer ABSL_GUARDED_BY(mu);
  } wait;
  caller->Call(std::move(call), {}, std::move(what), [&wait](absl::StatusOr<Connection::Answer> answer) {
    MutexLock lock(&wait.mu);
    wait.answer = std::move(answer);
    wait.done.NotifyAll();
  });
  MutexLock lock(&wait.mu);
  while (!wait.answer.has_value()) wait.done.Wait(&wait.mu);
  return *std::move(wait.answer);
}

}  // namespace lodestone
