#include "worker/call.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/log.h"
#include "common/random.h"
#include "common/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"

namespace lodestone {
namespace {

// A call that has waited for this long is spoken of, every so often.
constexpr int64_t kReportEveryMs = 3'000;

constexpr char kService[] = "/lodestone.v1.ParameterServer/";

}  // namespace

// One call. Belongs to the attempt under way or to the pause between two; what others look at is guarded by
// Caller::mu_.
struct Caller::Pending {
  Pending(const RetryPolicy& policy, const TimeSource* time, uint64_t seed) : retry(policy, time, seed) {}

  std::string method;
  std::string what;
  grpc::ByteBuffer request;
  Done done;
  std::list<std::unique_ptr<Pending>>::iterator self;

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<grpc::ClientContext> context;  // Of the attempt under way; null during a pause.
  grpc::ByteBuffer response;
  Timer::Id pause = 0;
  Retry retry;
  absl::Status last_error;
};

Caller::Caller(std::string peer, std::vector<std::shared_ptr<grpc::Channel>> channels, const RetryPolicy& policy,
               Timer* timer, uint64_t seed)
    : peer_(std::move(peer)), channels_(std::move(channels)), policy_(policy), seed_(seed), timer_(timer) {
  LODESTONE_CHECK(!channels_.empty());
  MutexLock lock(&mu_);
  report_ = timer_->After(kReportEveryMs, [this] { Report(); });
}

Caller::~Caller() { Cancel(); }

void Caller::Call(const std::string& method, std::string what, grpc::ByteBuffer request, Done done) {
  Pending* call = nullptr;
  {
    MutexLock lock(&mu_);
    if (!cancelled_) {
      pending_.push_back(std::make_unique<Pending>(policy_, &time_, StreamSeed(seed_, ++calls_)));
      call = pending_.back().get();
      call->self = std::prev(pending_.end());
      call->method = absl::StrCat(kService, method);
      call->what = std::move(what);
      call->request = std::move(request);
      call->done = std::move(done);
      call->channel = channels_[next_channel_++ % channels_.size()];
    }
  }
  if (call == nullptr) {
    done(absl::CancelledError(absl::StrCat(what, " to ", peer_, ": the client is closing")));
    return;
  }
  Attempt(call);
}

void Caller::Attempt(Pending* call) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(policy_.call_timeout_ms));
  grpc::ClientContext* raw_context = context.get();
  bool cancelled = false;
  {
    MutexLock lock(&mu_);
    cancelled = cancelled_;
    if (!cancelled) {
      call->context = std::move(context);
      call->response.Clear();
    }
  }
  if (cancelled) {
    Finish(call, absl::CancelledError("the client is closing"));
    return;
  }
  // The request's slices are referenced, not copied, so that it can be sent again.
  grpc::GenericStub(call->channel)
      .UnaryCall(raw_context, call->method, grpc::StubOptions(), &call->request, &call->response,
                 [this, call](grpc::Status status) { OnAttemptDone(call, FromGrpc(status)); });
}

void Caller::OnAttemptDone(Pending* call, absl::Status status) {
  if (status.ok()) {
    Finish(call, absl::OkStatus());
    return;
  }
  // A ps that shuts down cancels the calls under way.
  if (absl::IsCancelled(status)) status = absl::UnavailableError(status.message());
  {
    MutexLock lock(&mu_);
    call->context.reset();
    call->last_error = status;
    if (!cancelled_) {
      if (const std::optional<int64_t> pause_ms = call->retry.Next(status.code())) {
        call->channel = channels_[next_channel_++ % channels_.size()];
        call->pause = timer_->After(*pause_ms, [this, call] { OnPauseOver(call); });
        return;
      }
    } else {
      status = absl::CancelledError("the client is closing");
    }
  }
  Finish(call, std::move(status));
}

void Caller::OnPauseOver(Pending* call) {
  {
    MutexLock lock(&mu_);
    call->pause = 0;
  }
  Attempt(call);
}

void Caller::Finish(Pending* call, absl::Status status) {
  {
    const Done done = std::move(call->done);  // Gone before the client may be: it may hold things of the caller's.
    if (status.ok()) {
      done(std::move(call->response));
    } else {
      const std::string where =
          absl::StrFormat("%s to %s, attempt %d, %.1f s", call->what, peer_, call->retry.attempts(),
                          static_cast<double>(call->retry.elapsed_ms()) / 1000);
      done(Annotate(status, where));
    }
  }
  // Destroyed before anybody is told: a channel must not end on one of gRPC's own threads.
  MutexLock lock(&mu_);
  pending_.erase(call->self);
  if (pending_.empty()) idle_.NotifyAll();
}

void Caller::Cancel() {
  std::vector<Pending*> paused;
  {
    MutexLock lock(&mu_);
    cancelled_ = true;
    for (const auto& call : pending_) {
      if (call->context != nullptr) call->context->TryCancel();
      if (call->pause != 0 && timer_->Cancel(call->pause)) paused.push_back(call.get());
    }
  }
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
  return absl::StrFormat("%s to %s, attempt %d since %.1f s%s", oldest.what, peer_, oldest.retry.attempts(),
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

absl::StatusOr<grpc::ByteBuffer> CallAndWait(Caller* caller, const std::string& method, std::string what,
                                             grpc::ByteBuffer request) {
  struct {
    Mutex mu;
    CondVar done;
    std::optional<absl::StatusOr<grpc::ByteBuffer>> answer ABSL_GUARDED_BY(mu);
  } wait;
  caller->Call(method, std::move(what), std::move(request), [&wait](absl::StatusOr<grpc::ByteBuffer> answer) {
    MutexLock lock(&wait.mu);
    wait.answer = std::move(answer);
    wait.done.NotifyAll();
  });
  MutexLock lock(&wait.mu);
  while (!wait.answer.has_value()) wait.done.Wait(&wait.mu);
  return *std::move(wait.answer);
}

}  // namespace lodestone
