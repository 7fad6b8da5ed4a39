#include "tools/psctl/client/held_pause.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "tools/psctl/client/admin_client.h"

namespace lodestone::psctl {
namespace {

constexpr int64_t kAskEveryMs = 5;
constexpr int64_t kKeepEveryMs = 500;
constexpr int kEndMsMax = 10'000;
constexpr auto kLookEvery = std::chrono::milliseconds(50);  // Whether there was an interrupt.

uint64_t DrawToken() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

v1::PauseTrainingRequest RequestOf(uint64_t token, bool end) {
  v1::PauseTrainingRequest request;
  request.set_token(token);
  request.set_end(end);
  return request;
}

int64_t NowMs() { return SteadyTime().NowMs(); }

}  // namespace

HeldPause::HeldPause(std::string address, int timeout_ms)
    : address_(std::move(address)), timeout_ms_(timeout_ms), token_(DrawToken()), thread_([this] { Run(); }) {}

HeldPause::~HeldPause() {
  if (thread_.joinable()) (void)End();
}

void HeldPause::Run() {
  while (true) {
    const int64_t asked_ms = NowMs();
    const absl::StatusOr<v1::PauseTrainingResponse> response =
        RequestPauseTraining(address_, RequestOf(token_, /*end=*/false), timeout_ms_);
    MutexLock lock(&mu_);
    if (response.ok()) {
      accepted_ = true;
      at_rest_ = response->at_rest();
      orders_ = response->orders();
      ends_ms_ = asked_ms + response->ends_after_ms();
      waiting_for_ = {response->waiting_for().begin(), response->waiting_for().end()};
    } else if (accepted_ && NowMs() < ends_ms_) {
      waiting_for_ = {std::string(response.status().message())};
      if (absl::IsFailedPrecondition(response.status())) at_rest_ = false;
    } else if (!absl::IsUnavailable(response.status()) || accepted_) {
      error_ = response.status();
    }
    changed_.NotifyAll();
    if (!error_.ok()) return;
    const int64_t pause_ms = response.ok() && at_rest_ ? kKeepEveryMs : kAskEveryMs;
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(pause_ms);
    while (!stop_ && std::chrono::steady_clock::now() < until) changed_.WaitUntil(&mu_, until);
    if (stop_) return;
  }
}

bool HeldPause::RestsLocked(int64_t sure_ms) const { return at_rest_ && ends_ms_ - NowMs() >= sure_ms; }

absl::StatusOr<uint64_t> HeldPause::Await(int64_t timeout_ms, int64_t sure_ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  MutexLock lock(&mu_);
  while (!RestsLocked(sure_ms) && error_.ok() && !interrupted() && std::chrono::steady_clock::now() < until) {
    // A signal wakes no condition variable.
    changed_.WaitUntil(&mu_, std::min(until, std::chrono::steady_clock::now() + kLookEvery));
  }
  LODESTONE_RETURN_IF_ERROR(error_);
  if (interrupted()) return absl::CancelledError("interrupted: training is to go on as it was");
  if (RestsLocked(sure_ms) && orders_ == 0) {
    return absl::UnimplementedError("the coordinator is of an older version: start its ps again with this one");
  }
  if (RestsLocked(sure_ms)) return orders_;
  return absl::DeadlineExceededError(absl::StrCat(
      "training has not paused within ", timeout_ms / 1000, " s, and goes on as it was (--timeout): ",
      waiting_for_.empty() ? std::string("the coordinator does not answer") : absl::StrJoin(waiting_for_, "; ")));
}

absl::Status HeldPause::AwaitRest(int64_t timeout_ms) { return Await(timeout_ms, /*sure_ms=*/0).status(); }

absl::StatusOr<uint64_t> HeldPause::StillRests(int64_t timeout_ms) { return Await(timeout_ms, kSureMs); }

absl::Status HeldPause::End() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  // Where the coordinator does not answer, the pause is over by then anyway.
  return RequestPauseTraining(address_, RequestOf(token_, /*end=*/true), std::min(timeout_ms_, kEndMsMax)).status();
}

}  // namespace lodestone::psctl
