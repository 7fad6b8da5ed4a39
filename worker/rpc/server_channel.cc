#include "worker/rpc/server_channel.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"

namespace lodestone::worker {
namespace {

// A call that has waited for this long is spoken of, every so often.
constexpr int64_t kReportEveryMs = 3'000;

CounterMetric retry_metric("lodestone_worker_call_retries_total",
                           "Attempts of calls that failed for a reason that may pass, and are made again.");

// ABORTED, naming shard and owner, if `parts` are not all for `server` by `map`.
template <typename Parts>
absl::Status CheckOwner(const Parts& parts, uint32_t server, const ShardMap& map) {
  for (const v1::Part& part : parts) {
    if (part.shard() >= map.shards() || map.OwnerOf(part.shard()) == server) continue;
    return absl::AbortedError(absl::StrCat("shard ", part.shard(), " belongs to ps ", map.OwnerOf(part.shard()),
                                           " by the shard map of epoch ", map.epoch()));
  }
  return absl::OkStatus();
}

// ABORTED if `call` is not one for `server` by `map`.
absl::Status CheckPlace(const v1::Call& call, uint32_t server, const ShardMap& map) {
  if (call.has_push()) return CheckOwner(call.push().parts(), server, map);
  if (call.has_pull()) return CheckOwner(call.pull().parts(), server, map);
  if (call.has_push_pull()) {
    LODESTONE_RETURN_IF_ERROR(CheckOwner(call.push_pull().push().parts(), server, map));
    return CheckOwner(call.push_pull().pull().parts(), server, map);
  }
  if (!map.Away(server) || !map.ShardsOf(server).empty()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("it is away and owns nothing by the shard map of epoch ", map.epoch()));
}

// What can be read of `message` while it is being sent: all but what the connection writes to it.
Caller::Message CopyOf(const Caller::Message& message) {
  Caller::Message copy{{}, message.numbers, message.what, message.epoch, message.started_ms, message.turned_back};
  if (message.call.has_push()) *copy.call.mutable_push() = message.call.push();
  if (message.call.has_pull()) *copy.call.mutable_pull() = message.call.pull();
  if (message.call.has_push_pull()) *copy.call.mutable_push_pull() = message.call.push_pull();
  if (message.call.has_ensure_tables()) *copy.call.mutable_ensure_tables() = message.call.ensure_tables();
  return copy;
}

}  // namespace

// One call. Belongs to the attempt under way or to the pause between two; what others look at is guarded by
// Caller::mu_.
struct Caller::Pending {
  Pending(const RetryPolicy& policy, const TimeSource* time, uint64_t seed, Message sent)
      : message(std::move(sent)), retry(policy, time, seed, message.started_ms) {}

  Message message;
  Done done;
  std::list<std::unique_ptr<Pending>>::iterator self;
  // Who sets it tells what became of the call: nobody else does. Follow does so while an attempt is under way, which
  // then only forgets the call.
  std::atomic<bool> claimed{false};

  Timer::Id pause = 0;
  uint64_t redirects = 0;  // Of the caller when the attempt under way began.
  Retry retry;
  absl::Status last_error;
};

Caller::Caller(std::string peer, std::vector<std::unique_ptr<Connection>> connections, Options options)
    : options_(std::move(options)), timer_(options_.timer) {
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

void Caller::Follow(std::shared_ptr<const ShardMap> map) {
  struct Turned {
    absl::Status status;
    Message message;
    Done done;
  };
  std::vector<Turned> turned;
  std::shared_ptr<const Place> place;
  {
    MutexLock lock(&mu_);
    map_ = map;
    place = place_;
    for (auto at = pending_.begin(); at != pending_.end();) {
      Pending* const call = (at++)->get();
      if (call->claimed.load()) continue;
      const absl::Status misplaced = CheckPlace(call->message.call, options_.server, *map);
      if (misplaced.ok() || call->claimed.exchange(true)) continue;
      turned.push_back({Annotate(misplaced, absl::StrCat(call->message.what, " to ", place->peer)),
                        CopyOf(call->message), std::move(call->done)});
      // Otherwise an attempt is under way, or about to be: its end forgets the call.
      if (call->pause != 0 && timer_->Cancel(call->pause)) Forget(call);
    }
  }
  // Streams that nobody wants anything of any more hold on to what was sent over them, perhaps for long.
  if (!turned.empty() && map->ShardsOf(options_.server).empty()) {
    for (const auto& connection : place->connections) {
      connection->Reset(absl::UnavailableError("the ps does not own any shard any more"));
    }
  }
  for (Turned& call : turned) {
    const Done done = std::move(call.done);
    done(std::move(call.status), &call.message);
  }
}

std::string Caller::peer() const {
  MutexLock lock(&mu_);
  return place_->peer;
}

void Caller::Call(Message message, Done done) {
  if (message.started_ms == 0) message.started_ms = time_.NowMs();
  Pending* pending = nullptr;
  absl::Status refused;
  {
    MutexLock lock(&mu_);
    if (cancelled_) {
      refused = absl::CancelledError("the client is closing");
    } else if (map_ != nullptr && message.epoch < map_->epoch()) {
      refused = CheckPlace(message.call, options_.server, *map_);
    }
    if (refused.ok()) {
      pending_.push_back(
          std::make_unique<Pending>(options_.policy, &time_, StreamSeed(options_.seed, ++calls_), std::move(message)));
      pending = pending_.back().get();
      pending->self = std::prev(pending_.end());
      pending->done = std::move(done);
    }
  }
  if (pending == nullptr) return done(Annotate(refused, absl::StrCat(message.what, " to ", peer())), &message);
  Attempt(pending);
}

void Caller::Attempt(Pending* call) {
  std::shared_ptr<const Place> place;
  Connection* connection = nullptr;
  {
    MutexLock lock(&mu_);
    if (call->claimed.load()) return Forget(call);
    place = place_;
    connection = place->connections[next_connection_++ % place->connections.size()].get();
    call->redirects = redirects_;
  }
  // The numbers are referenced, not copied, so that they can be sent again.
  connection->Send(&call->message.call, call->message.numbers,
                   [this, call](absl::StatusOr<Connection::Answer> answer) { OnAttemptDone(call, std::move(answer)); });
}

void Caller::OnAttemptDone(Pending* call, absl::StatusOr<Connection::Answer> answer) {
  if (!answer.ok()) return OnFailure(call, answer.status());
  if (!call->claimed.exchange(true)) {
    call->message.numbers = {};  // Before `done`, so that what they refer to is free when the caller hears of it.
    return Finish(call, std::move(answer), &call->message);
  }
  MutexLock lock(&mu_);
  Forget(call);
}

void Caller::OnFailure(Pending* call, absl::Status status) {
  // A ps that shuts down cancels the calls under way.
  if (absl::IsCancelled(status)) status = absl::UnavailableError(status.message());
  const bool unreachable = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  enum { kAgain, kPause, kEnd } next = kEnd;
  Message message;
  {
    MutexLock lock(&mu_);
    if (call->claimed.load()) return Forget(call);
    call->last_error = status;
    if (cancelled_) {
      status = absl::CancelledError("the client is closing");
    } else if (IsListForgotten(status) && !call->message.numbers.forgotten) {
      call->message.numbers.forgotten = true;
      next = kAgain;
    } else if (call->redirects != redirects_) {
      next = kAgain;
    } else if (!absl::IsAborted(status)) {  // To be sent to another ps.
      if (const std::optional<int64_t> pause_ms = call->retry.Next(status.code())) {
        call->pause = timer_->After(*pause_ms, [this, call] { OnPauseOver(call); });
        next = kPause;
        retry_metric.Add(1);
      }
    }
    if (next == kEnd) {
      call->claimed.store(true);
      message = std::move(call->message);
    }
  }
  if (next == kAgain) return Attempt(call);
  if (unreachable && !absl::IsCancelled(status) && options_.on_unreachable) options_.on_unreachable();
  if (next == kEnd) Finish(call, std::move(status), &message);
}

void Caller::OnPauseOver(Pending* call) {
  {
    MutexLock lock(&mu_);
    call->pause = 0;
  }
  Attempt(call);
}

void Caller::Finish(Pending* call, absl::StatusOr<Connection::Answer> answer, Message* message) {
  {
    const Done done = std::move(call->done);  // Gone before the client may be: it may hold things of the caller's.
    if (answer.ok()) {
      done(std::move(answer), message);
    } else {
      done(Annotate(answer.status(), WhereOf(*call, *message)), message);
    }
  }
  MutexLock lock(&mu_);
  Forget(call);
}

std::string Caller::WhereOf(const Pending& call, const Message& message) const {
  return absl::StrFormat("%s to %s, attempt %d, %.1f s", message.what, peer(), call.retry.attempts(),
                         static_cast<double>(call.retry.elapsed_ms()) / 1000);
}

void Caller::Forget(Pending* call) {
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
      if (call->pause == 0 || !timer_->Cancel(call->pause)) continue;
      call->claimed.store(true);
      paused.push_back(call.get());
    }
  }
  for (const auto& connection : place->connections) connection->Close();
  for (Pending* call : paused) Finish(call, absl::CancelledError("the client is closing"), &call->message);
  MutexLock lock(&mu_);
  if (timer_->Cancel(report_)) report_ = 0;
  while (!pending_.empty() || report_ != 0) idle_.Wait(&mu_);
}

std::string Caller::WaitingLongerThan(int64_t ms) const {
  MutexLock lock(&mu_);
  const auto waits = [](const auto& call) { return !call->claimed.load(); };
  const auto found = std::find_if(pending_.begin(), pending_.end(), waits);
  if (found == pending_.end()) return "";
  const Pending& oldest = **found;
  const int64_t waited_ms = oldest.retry.elapsed_ms();
  if (waited_ms <= ms) return "";
  return absl::StrFormat("%s to %s, attempt %d since %.1f s%s", oldest.message.what, place_->peer,
                         oldest.retry.attempts(), static_cast<double>(waited_ms) / 1000,
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
  Caller::Message message{.call = std::move(call), .what = std::move(what)};
  caller->Call(std::move(message), [&wait](absl::StatusOr<Connection::Answer> answer, Caller::Message*) {
    MutexLock lock(&wait.mu);
    wait.answer = std::move(answer);
    wait.done.NotifyAll();
  });
  MutexLock lock(&wait.mu);
  while (!wait.answer.has_value()) wait.done.Wait(&wait.mu);
  return *std::move(wait.answer);
}

}  // namespace lodestone::worker
