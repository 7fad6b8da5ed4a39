#include "server/coordinator/clock_calls.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/rpc/grpc_status.h"

namespace lodestone::server {
namespace {

constexpr size_t kWaitsShownMax = 64;  // In a status.

}  // namespace

// One call. Owned by gRPC until OnDone.
class ClockCalls::Call final : public grpc::ServerUnaryReactor {
 public:
  Call(ClockCalls* calls, const v1::AwaitClockRequest* request, v1::AwaitClockResponse* response)
      : calls_(calls),
        request_(request),
        response_(response),
        since_ms_(calls_->time_->NowMs()),
        deadline_ms_(since_ms_ + std::min(request->timeout_ms(), limits::kAwaitTimeoutMaxMs)) {}

  const v1::AwaitClockRequest& request() const { return *request_; }
  v1::AwaitClockResponse* response() { return response_; }
  int64_t since_ms() const { return since_ms_; }
  int64_t deadline_ms() const { return deadline_ms_; }

  // Set by who removed the call from the held ones, and used by it to finish.
  void set_end(absl::Status end) { end_ = std::move(end); }
  void FinishNow() { Finish(calls_->told_(end_)); }

  void OnCancel() override {
    if (calls_->Forget(this)) Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the caller is gone"));
  }
  void OnDone() override {
    ClockCalls* const calls = calls_;
    delete this;
    calls->NoteGone();
  }

 private:
  ClockCalls* const calls_;
  const v1::AwaitClockRequest* const request_;
  v1::AwaitClockResponse* const response_;
  const int64_t since_ms_;
  const int64_t deadline_ms_;
  absl::Status end_;
};

ClockCalls::ClockCalls(const TimeSource* time, size_t held_max, std::function<grpc::Status(const absl::Status&)> told)
    : time_(time), held_max_(held_max), told_(std::move(told)) {}

ClockCalls::~ClockCalls() {
  MutexLock lock(&mu_);
  while (calls_ > 0) gone_.Wait(&mu_);
}

void ClockCalls::NoteGone() {
  MutexLock lock(&mu_);
  if (--calls_ == 0) gone_.NotifyAll();
}

grpc::ServerUnaryReactor* ClockCalls::Hold(const v1::AwaitClockRequest* request, v1::AwaitClockResponse* response) {
  auto* const call = new Call(this, request, response);
  {
    MutexLock lock(&mu_);
    ++calls_;
    if (!shut_down_ && held_.size() < held_max_) {
      held_.insert(call);
      return call;
    }
    call->set_end(shut_down_ ? absl::UnavailableError("the coordinator shuts down")
                             : absl::ResourceExhaustedError(
                                   absl::StrCat("the coordinator holds ", held_.size(), " calls, its limit")));
  }
  call->FinishNow();
  return call;
}

bool ClockCalls::Answer(Call* call, const MemberTable& members, const LowestClocks& clocks, int64_t now_ms) {
  const Incarnation asker = call->request().incarnation();
  if (asker != 0) {
    if (absl::Status alive = members.CheckAlive(asker); !alive.ok()) {
      call->set_end(std::move(alive));
      return true;
    }
  }
  // A worker that is about to begin asks for no clock, but for where the others are.
  if (asker != 0 && call->request().clock() == 0 && !call->request().has_own_clock()) {
    if (absl::Status known = CheckNewestKnown(members, asker); !known.ok()) {
      call->set_end(std::move(known));
      return true;
    }
  }
  const bool holds = asker == clocks.holder;
  call->response()->set_lowest(holds ? clocks.lowest_of_others : clocks.lowest);
  call->response()->set_newest(asker == clocks.newest_holder ? clocks.newest_of_others : clocks.newest);
  if (clocks.Reached(asker, call->request().clock())) {
    call->response()->set_reached(true);
    for (std::string& line : UntrainedWorkers(members, asker)) call->response()->add_untrained(std::move(line));
    return true;
  }
  if (now_ms < call->deadline_ms()) return false;
  for (std::string& line : WorkersBehind(members, asker, call->request().clock(), call->request().has_own_clock())) {
    call->response()->add_waiting_for(std::move(line));
  }
  for (v1::WaitTarget& target :
       ClockTargets(members, asker, call->request().clock(), call->request().has_own_clock())) {
    *call->response()->add_targets() = std::move(target);
  }
  return true;
}

ClockCalls::Answered ClockCalls::TakeAnswered(const MemberTable& members) {
  Answered answered;
  MutexLock lock(&mu_);
  if (held_.empty()) return answered;
  const LowestClocks clocks = LowestClocksOf(members), training = LowestClocksOf(members, /*training=*/true);
  const int64_t now_ms = time_->NowMs();
  for (Call* const call : held_) {
    if (Answer(call, members, call->request().has_own_clock() ? training : clocks, now_ms)) answered.push_back(call);
  }
  for (Call* const call : answered) held_.erase(call);
  return answered;
}

void ClockCalls::Finish(const Answered& answered) {
  for (Call* const call : answered) call->FinishNow();
}

bool ClockCalls::Forget(Call* call) {
  MutexLock lock(&mu_);
  return held_.erase(call) > 0;
}

std::optional<int64_t> ClockCalls::NextEndMs() const {
  MutexLock lock(&mu_);
  std::optional<int64_t> next_ms;
  for (const Call* const call : held_) {
    next_ms = std::min(next_ms.value_or(call->deadline_ms()), call->deadline_ms());
  }
  return next_ms;
}

void ClockCalls::FillStatus(const MemberTable& members, v1::StatusResponse* status) const {
  MutexLock lock(&mu_);
  const int64_t now_ms = time_->NowMs();
  size_t shown = 0;
  for (const Call* const call : held_) {
    if (++shown > kWaitsShownMax) break;
    const Incarnation asker = call->request().incarnation();
    v1::WaitStatus* const wait = status->add_waits();
    wait->set_who(asker == 0 ? "an observer" : members.NameOf(asker));
    wait->set_what(absl::StrCat(
        "clock ", call->request().clock(), ": ",
        absl::StrJoin(WorkersBehind(members, asker, call->request().clock(), call->request().has_own_clock()), "; ")));
    wait->set_seconds(static_cast<double>(now_ms - call->since_ms()) / 1000.0);
    wait->mutable_waiter();  // Another process, known or not.
    if (const MemberPlace* const worker = members.Find(asker); worker != nullptr) {
      wait->mutable_waiter()->set_kind(v1::WaitTarget::WORKER);
      wait->mutable_waiter()->set_index(worker->index);
    }
    for (v1::WaitTarget& target :
         ClockTargets(members, asker, call->request().clock(), call->request().has_own_clock())) {
      *wait->add_targets() = std::move(target);
    }
  }
}

void ClockCalls::Shutdown() {
  Answered ended;
  {
    MutexLock lock(&mu_);
    shut_down_ = true;
    ended.assign(held_.begin(), held_.end());
    held_.clear();
    for (Call* const call : ended) call->set_end(absl::UnavailableError("the coordinator shuts down"));
  }
  Finish(ended);
}

}  // namespace lodestone::server
