#include "tests/chaos/order_changes.h"

#include <signal.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "common/config/options.h"

namespace lodestone::chaos {
namespace {

// Each of a single batch, so that a sample counts as much as without steps.
constexpr const char* kOrders[] = {"consistency={async: {}}", "consistency={sync: {batches: 1}}",
                                   "consistency={tokens: {batch: 1, staleness: 100000}}",
                                   "consistency={bounded: {staleness: 3}}"};
constexpr int64_t kDisturbedMsMax = 300;  // After its start; about as long as an undisturbed change takes.
constexpr int64_t kStoppedMs = 11'000;    // A pause of training outlives its operator for 10 s.
constexpr int64_t kAgainMs = 300;
constexpr char kTimeout[] = "30s";
constexpr int64_t kTriedMsMax = 240'000;

int64_t NowMs() { return SteadyTime().NowMs(); }

}  // namespace

OrderChanges::OrderChanges(Options options)
    : options_(std::move(options)), log_(absl::StrCat(options_.folder, "/operator.log")) {}

void OrderChanges::Want(uint64_t random) {
  if (!settled()) return;
  wanted_ = kOrders[random % std::size(kOrders)];
  random_ = random / std::size(kOrders);
  next_ms_ = NowMs();
}

absl::Status OrderChanges::Start() {
  const std::vector<std::string> argv = {options_.psctl_binary, "set",       options_.tables, wanted_, "--address",
                                         options_.coordinator,  "--timeout", kTimeout};
  LODESTONE_ASSIGN_OR_RETURN(psctl_, psctl::Child::Start("operator", argv));
  interrupted_ = false;
  log_ << "chaos: " << wanted_ << std::endl;
  const uint64_t fate = std::exchange(random_, 0);  // The one that does it again is left alone.
  constexpr int kFates[] = {0, SIGKILL, 0, SIGKILL, 0, SIGSTOP, 0, 0};
  disturbance_ = kFates[fate % std::size(kFates)];
  due_ms_ = NowMs() + static_cast<int64_t>(fate / std::size(kFates) % kDisturbedMsMax);
  return absl::OkStatus();
}

void OrderChanges::Disturb() {
  if (resume_ms_ > 0 && NowMs() >= resume_ms_) {
    psctl_->Signal(SIGCONT);
    resume_ms_ = 0;
  }
  if (disturbance_ == 0 || NowMs() < due_ms_) return;
  psctl_->Signal(disturbance_);
  log_ << "chaos: signal " << disturbance_ << std::endl;
  if (disturbance_ == SIGSTOP) resume_ms_ = NowMs() + kStoppedMs;
  ++(disturbance_ == SIGSTOP ? stopped_ : killed_);
  disturbance_ = 0;
}

void OrderChanges::Interrupt() {
  if (psctl_ != nullptr && !std::exchange(interrupted_, true)) psctl_->Signal(SIGTERM);
}

absl::Status OrderChanges::Tick(bool may_begin) {
  const int64_t now_ms = NowMs();
  if (!wanted_.empty() && may_begin) tried_ms_ += now_ms - ticked_ms_;
  ticked_ms_ = now_ms;
  if (psctl_ == nullptr) {
    return wanted_.empty() || !may_begin || NowMs() < next_ms_ ? absl::OkStatus() : Start();
  }
  if (!may_begin) {  // Its end is waited for.
    disturbance_ = 0;
    if (resume_ms_ > 0) resume_ms_ = 1;
  }
  Disturb();
  const auto note = [&](absl::string_view line) { log_ << line << "\n"; };
  psctl_->ReadOutput(note);
  if (!psctl_->Reap(note)) return absl::OkStatus();
  const std::string outcome = psctl_->Outcome();
  log_ << "chaos: " << outcome << std::endl;
  if (psctl_->succeeded()) {
    wanted_.clear();
    tried_ms_ = 0;
    ++set_;
  } else if (tried_ms_ > kTriedMsMax || psctl_->exit_code() == kExitUsage) {
    return absl::InternalError(absl::StrCat("the order of steps could not be set, ", wanted_, ": ", outcome));
  }
  next_ms_ = NowMs() + kAgainMs;
  psctl_.reset();
  resume_ms_ = 0;
  return absl::OkStatus();
}

}  // namespace lodestone::chaos
