#include "worker/rpc/server_channel.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "common/wire/part.h"
#include "worker/rpc/frame_codec.h"

namespace lodestone::worker {
namespace {

// The period of the log of a waiting call, and the age at which a call is logged.
constexpr int64_t kReportEveryMs = 3'000;

CounterMetric retry_metric("lodestone_worker_call_retries_total", "Failed attempts of calls that are made again.");

// ABORTED, naming shard and owner, if `parts` are not all for `server` by `map`.
template <typename Parts>
absl::Status CheckOwner(const Parts& parts, uint32_t server, const ShardMap& map) {
  absl::Status status;
  for (const v1::Part& part : parts) {
    ForEachShard(part, [&](ShardId shard, uint32_t) {
      if (!status.ok() || shard >= map.shards() || map.OwnerOf(shard) == server) return;
      status = absl::AbortedError(absl::StrCat("shard ", shard, " belongs to ps ", map.OwnerOf(shard),
                                               " by the shard map of epoch ", map.epoch()));
    });
  }
  return status;
}

// ABORTED if `server` must not serve `call` by `map`.
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

// The shards of a call, each once, ascending; the first limits::kWaitShardsMax.
std::vector<ShardId> ShardsOf(const v1::Call& call) {
  std::set<ShardId> shards;
  const auto add = [&shards](const auto& parts) {
    for (const v1::Part& part : parts) {
      ForEachShard(part, [&](ShardId shard, uint32_t) { shards.insert(shard); });
    }
  };
  add(call.has_push_pull() ? call.push_pull().push().parts() : call.push().parts());
  add(call.pull().parts());
  auto end = shards.begin();
  std::advance(end, std::min<size_t>(shards.size(), limits::kWaitShardsMax));
  return {shards.begin(), end};
}

// A copy of `request` while it is being sent: of all fields but those that the connection writes.
ServerChannel::Request CopyOf(const ServerChannel::Request& request) {
  ServerChannel::Request copy{
      {}, request.payload, request.what, request.epoch, request.started_ms, request.turned_back};
  if (request.call.has_push()) *copy.call.mutable_push() = request.call.push();
  if (request.call.has_pull()) *copy.call.mutable_pull() = request.call.pull();
  if (request.call.has_push_pull()) *copy.call.mutable_push_pull() = request.call.push_pull();
  if (request.call.has_ensure_tables()) *copy.call.mutable_ensure_tables() = request.call.ensure_tables();
  return copy;
}

}  // namespace

v1::WaitStatus WaitOf(const ServerChannel::Request& request, uint32_t server, int64_t waited_ms) {
  v1::WaitStatus wait;
  wait.set_seconds(static_cast<double>(waited_ms) / 1000);
  const v1::Call& call = request.call;
  wait.set_call(call.has_push() || call.has_push_pull() ? "push" : call.has_pull() ? "pull" : "call");
  wait.set_sequence(call.has_push_pull() ? call.push_pull().push().sequence() : call.push().sequence());
  v1::WaitTarget* const target = wait.add_targets();
  target->set_kind(v1::WaitTarget::SERVER);
  target->set_index(server);
  for (const ShardId shard : ShardsOf(call)) target->add_shards(shard);
  return wait;
}

// The state of a call. Owned by the attempt in flight or the pause between two; what others read is guarded by
// ServerChannel::mu_.
struct ServerChannel::Pending {
  Pending(const RetryPolicy& policy, const TimeSource* time, uint64_t seed, Request sent)
      : request(std::move(sent)), retry(policy, time, seed, request.started_ms) {}

  // The attempt under way has ended without an answer.
  void EndAttempt() {
    retry.EndAttempt();
    request.started_ms = retry.started_ms();
  }

  Request request;
  Done done;
  std::list<std::unique_ptr<Pending>>::iterator self;
  // Set once, by the one that runs the callback. Follow sets it while an attempt is in flight, which
  // then only forgets the call.
  std::atomic<bool> claimed{false};

  Timer::Id pause = 0;
  uint64_t redirects = 0;  // When the attempt in flight began.
  Retry retry;
  absl::Status last_error;
};

ServerChannel::ServerChannel(std::string peer, std::vector<std::unique_ptr<Connection>> connections, Options options)
    : options_(std::move(options)), timer_(options_.timer) {
  LODESTONE_CHECK(!connections.empty());
  MutexLock lock(&mu_);
  place_ = std::make_shared<const Place>(Place{std::move(peer), std::move(connections)});
  report_ = timer_->After(kReportEveryMs, [this] { Report(); });
}

ServerChannel::~ServerChannel() { Cancel(); }

void ServerChannel::Redirect(std::string peer, std::vector<std::unique_ptr<Connection>> connections) {
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
  for (const auto& connection : place->connections) connection->Close();  // Calls in flight there are sent again.
}

void ServerChannel::Follow(std::shared_ptr<const ShardMap> map) {
  struct Turned {
    absl::Status status;
    Request request;
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
      const absl::Status misplaced = CheckPlace(call->request.call, options_.server, *map);
      if (misplaced.ok() || call->claimed.exchange(true)) continue;
      if (call->pause == 0) call->EndAttempt();
      turned.push_back({Annotate(misplaced, absl::StrCat(call->request.what, " to ", place->peer)),
                        CopyOf(call->request), std::move(call->done)});
      // Otherwise an attempt is in flight, or about to be: its end forgets the call.
      if (call->pause != 0 && timer_->Cancel(call->pause)) Forget(call);
    }
  }
  // Streams that are no longer needed would keep what was sent over them alive.
  if (!turned.empty() && map->ShardsOf(options_.server).empty()) {
    for (const auto& connection : place->connections) {
      connection->Reset(absl::UnavailableError("the ps does not own any shard any more"));
    }
  }
  for (Turned& call : turned) {
    const Done done = std::move(call.done);
    done(std::move(call.status), &call.request);
  }
}

std::string ServerChannel::peer() const {
  MutexLock lock(&mu_);
  return place_->peer;
}

void ServerChannel::Call(Request request, Done done) {
  if (request.started_ms == 0) request.started_ms = time_.NowMs();
  Pending* pending = nullptr;
  absl::Status refused;
  {
    MutexLock lock(&mu_);
    if (cancelled_) {
      refused = absl::CancelledError("the client is closing");
    } else if (map_ != nullptr && request.epoch < map_->epoch()) {
      refused = CheckPlace(request.call, options_.server, *map_);
    }
    if (refused.ok()) {
      pending_.push_back(
          std::make_unique<Pending>(options_.policy, &time_, StreamSeed(options_.seed, ++calls_), std::move(request)));
      pending = pending_.back().get();
      pending->self = std::prev(pending_.end());
      pending->done = std::move(done);
    }
  }
  if (pending == nullptr) return done(Annotate(refused, absl::StrCat(request.what, " to ", peer())), &request);
  Attempt(pending);
}

void ServerChannel::Attempt(Pending* call) {
  std::shared_ptr<const Place> place;
  Connection* connection = nullptr;
  {
    MutexLock lock(&mu_);
    if (call->claimed.load()) return Forget(call);
    place = place_;
    connection = place->connections[next_connection_++ % place->connections.size()].get();
    call->redirects = redirects_;
    call->retry.BeginAttempt();
  }
  // The payload is referenced, not copied, so that it can be sent again.
  connection->Send(&call->request.call, call->request.payload,
                   [this, call](absl::StatusOr<Connection::Answer> answer) { OnAttemptDone(call, std::move(answer)); });
}

void ServerChannel::OnAttemptDone(Pending* call, absl::StatusOr<Connection::Answer> answer) {
  if (!answer.ok()) return OnFailure(call, answer.status());
  if (!call->claimed.exchange(true)) {
    call->request.payload = {};  // Before `done`, so that what it refers to is free by then.
    return Finish(call, std::move(answer), &call->request);
  }
  MutexLock lock(&mu_);
  Forget(call);
}

void ServerChannel::OnFailure(Pending* call, absl::Status status) {
  // A ps that shuts down cancels the calls in flight.
  if (absl::IsCancelled(status)) status = absl::UnavailableError(status.message());
  const bool unreachable = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  enum { kAgain, kPause, kEnd } next = kEnd;
  Request request;
  {
    MutexLock lock(&mu_);
    if (call->claimed.load()) return Forget(call);
    call->EndAttempt();
    call->last_error = status;
    if (cancelled_) {
      status = absl::CancelledError("the client is closing");
    } else if (IsListForgotten(status) && !call->request.payload.forgotten) {
      call->request.payload.forgotten = true;
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
      request = std::move(call->request);
    }
  }
  if (next == kAgain) return Attempt(call);
  if (unreachable && !absl::IsCancelled(status) && options_.on_unreachable) options_.on_unreachable();
  if (next == kEnd) Finish(call, std::move(status), &request);
}

void ServerChannel::OnPauseOver(Pending* call) {
  {
    MutexLock lock(&mu_);
    call->pause = 0;
  }
  Attempt(call);
}

void ServerChannel::Finish(Pending* call, absl::StatusOr<Connection::Answer> answer, Request* request) {
  {
    const Done done = std::move(call->done);  // Destroyed before the client may be: it may hold the caller's objects.
    if (answer.ok()) {
      done(std::move(answer), request);
    } else {
      done(Annotate(answer.status(), WhereOf(*call, *request)), request);
    }
  }
  MutexLock lock(&mu_);
  Forget(call);
}

std::string ServerChannel::WhereOf(const Pending& call, const Request& request) const {
  return absl::StrFormat("%s to %s, attempt %d, %.1f s", request.what, peer(), call.retry.attempts(),
                         static_cast<double>(call.retry.elapsed_ms()) / 1000);
}

void ServerChannel::Forget(Pending* call) {
  pending_.erase(call->self);
  if (pending_.empty()) idle_.NotifyAll();
}

void ServerChannel::Cancel() {
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
  for (Pending* call : paused) Finish(call, absl::CancelledError("the client is closing"), &call->request);
  MutexLock lock(&mu_);
  if (timer_->Cancel(report_)) report_ = 0;
  while (!pending_.empty() || report_ != 0) idle_.Wait(&mu_);
}

std::optional<v1::WaitStatus> ServerChannel::WaitLongerThan(int64_t ms) const {
  MutexLock lock(&mu_);
  const auto waits = [](const auto& call) { return !call->claimed.load(); };
  const auto found = std::find_if(pending_.begin(), pending_.end(), waits);
  if (found == pending_.end()) return std::nullopt;
  const Pending& oldest = **found;
  const int64_t waited_ms = oldest.retry.elapsed_ms();
  if (waited_ms <= ms) return std::nullopt;
  v1::WaitStatus wait = WaitOf(oldest.request, options_.server, waited_ms);
  wait.set_what(absl::StrFormat("%s to %s, attempt %d since %.1f s%s", oldest.request.what, place_->peer,
                                oldest.retry.attempts(), wait.seconds(),
                                oldest.last_error.ok() ? "" : absl::StrCat(": ", oldest.last_error.ToString())));
  return wait;
}

void ServerChannel::Report() {
  const std::optional<v1::WaitStatus> waits = WaitLongerThan(kReportEveryMs);
  if (waits.has_value()) LODESTONE_LOG(WARN, "client", "waiting for={}", waits->what());
  MutexLock lock(&mu_);
  report_ = cancelled_ ? 0 : timer_->After(kReportEveryMs, [this] { Report(); });
  idle_.NotifyAll();
}

}  // namespace lodestone::worker
