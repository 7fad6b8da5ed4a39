#include "tools/psctl/local/local_cluster.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/time_source.h"
#include "common/config/options.h"

namespace lodestone::psctl {
namespace {

constexpr int kTickMs = 200;
constexpr int kWorkerGraceMs = 5'000;   // Between SIGTERM to the workers and to the servers.
constexpr int kServerGraceMs = 10'000;  // Between SIGTERM to the servers and SIGKILL to all, in StopAll.

bool EndedWell(const Child& child, Role role) {
  return child.succeeded() || (role == Role::kWorker && child.exit_code() == kExitUntrained);
}

}  // namespace

LocalCluster::LocalCluster(OnLine on_line, std::function<void()> on_tick)
    : on_line_(std::move(on_line)), on_tick_(std::move(on_tick)) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal_fd_ = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
  LODESTONE_CHECK(signal_fd_ >= 0);
}

LocalCluster::~LocalCluster() {
  members_.clear();
  close(signal_fd_);
}

absl::Status LocalCluster::Start(Role role, std::string name, const std::vector<std::string>& argv,
                                 std::vector<std::string> argv_again) {
  absl::StatusOr<std::unique_ptr<Child>> child = Child::Start(std::move(name), argv);
  if (!child.ok()) return child.status();
  members_.push_back({role, *std::move(child), std::move(argv_again)});
  return absl::OkStatus();
}

absl::Status LocalCluster::WaitFor(const std::function<bool()>& condition, const std::string& what, int timeout_ms) {
  const SteadyTime time;
  const int64_t start_ms = time.NowMs();
  for (;;) {
    if (asked_to_end_ || interrupts_ > interrupts_kept_) return absl::CancelledError("interrupted");
    if (!failure_.empty()) return absl::InternalError(failure_);
    if (condition()) return absl::OkStatus();
    if (timeout_ms > 0 && time.NowMs() - start_ms >= timeout_ms) {
      return absl::DeadlineExceededError(absl::StrCat("waited ", timeout_ms, " ms in vain for ", what));
    }
    Pump(kTickMs);
  }
}

bool LocalCluster::WorkersDone() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& member) {
    if (member.role == Role::kServer || member.lost) return true;
    return !member.child->running() && EndedWell(*member.child, member.role);
  });
}

uint32_t LocalCluster::RunningWorkers() const {
  return static_cast<uint32_t>(std::count_if(members_.begin(), members_.end(), [](const Member& member) {
    return member.role == Role::kWorker && member.child->running();
  }));
}

bool LocalCluster::IsLost(const std::string& name) const {
  return std::any_of(members_.begin(), members_.end(),
                     [&name](const Member& member) { return member.lost && member.child->name() == name; });
}

bool LocalCluster::AskToFinish() {
  if (asked_to_end_ || interrupts_ != 1) return false;
  interrupts_kept_ = 1;
  Signal(Role::kWorker, SIGINT);
  return true;
}

absl::Status LocalCluster::StopServers(int slow_ms, const std::function<void()>& on_slow) {
  servers_may_end_ = true;
  Signal(Role::kServer, SIGTERM);
  const auto ended = [this] { return !Running(Role::kServer); };
  const std::string what = "the ps to end after SIGTERM";
  const absl::Status status = WaitFor(ended, what, slow_ms);
  if (!absl::IsDeadlineExceeded(status)) return status;
  on_slow();
  return WaitFor(ended, what, 0);
}

void LocalCluster::StopAll() {
  servers_may_end_ = true;
  Signal(Role::kWorker, SIGTERM);
  AwaitEnd(Role::kWorker, kWorkerGraceMs);
  Signal(Role::kServer, SIGTERM);
  AwaitEnd(Role::kServer, kServerGraceMs);
  Signal(Role::kWorker, SIGKILL);
  Signal(Role::kServer, SIGKILL);
  while (Running(Role::kWorker) || Running(Role::kServer)) Pump(kTickMs);
}

bool LocalCluster::AwaitEnd(Role role, int grace_ms) {
  const SteadyTime time;
  const int64_t start_ms = time.NowMs();
  // The first interrupt is why we stop; a second one is impatience.
  while (Running(role) && time.NowMs() - start_ms < grace_ms && interrupts_ < 2) Pump(kTickMs);
  return !Running(role);
}

void LocalCluster::Pump(int wait_ms) {
  std::vector<pollfd> polls = {{signal_fd_, POLLIN, 0}};
  for (const Member& member : members_) polls.push_back({member.child->output_fd(), POLLIN, 0});  // -1 is skipped.
  if (poll(polls.data(), polls.size(), wait_ms) < 0 && errno != EINTR) LODESTONE_CHECK(errno == ENOMEM);
  for (size_t i = 0; i < members_.size(); ++i) {
    if (polls[i + 1].revents == 0) continue;
    Child& child = *members_[i].child;
    child.ReadOutput([&](absl::string_view line) { on_line_(child, line); });
  }
  ReadSignals();
  ReapChildren();
  on_tick_();
}

void LocalCluster::ReadSignals() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGCHLD) continue;
    ++interrupts_;
    asked_to_end_ |= info.ssi_signo != SIGINT;
  }
}

void LocalCluster::ReapChildren() {
  for (Member& member : members_) {
    Child& child = *member.child;
    if (!child.running() || !child.Reap([&](absl::string_view line) { on_line_(child, line); })) continue;
    if (StartAgain(&member) || GoesOnWithout(&member)) continue;
    const bool expected = member.role == Role::kWorker || servers_may_end_;
    if (failure_.empty() && !(expected && EndedWell(child, member.role))) {
      failure_ = absl::StrCat(child.Outcome(), expected || !child.succeeded() ? "" : " before the workers");
    }
  }
}

bool LocalCluster::StartAgain(Member* member) {
  const bool by_signal = member->child->exit_code() < 0;
  if (member->argv_again.empty() || !by_signal || servers_may_end_ || interrupts_ > 0 || !failure_.empty())
    return false;
  const std::string outcome = member->child->Outcome();
  absl::StatusOr<std::unique_ptr<Child>> child = Child::Start(member->child->name(), member->argv_again);
  if (!child.ok()) return false;
  on_line_(*member->child, absl::StrCat(outcome, "; it is started again"));
  member->child = *std::move(child);
  return true;
}

bool LocalCluster::GoesOnWithout(Member* member) {
  const int code = member->child->exit_code();
  // A worker that has not begun to train ends at the first Ctrl-C, while the others evaluate.
  const bool interrupted = interrupts_ == 1 && interrupts_kept_ == 1 && (code < 0 || code == 128 + SIGINT);
  const bool killed = interrupts_ == 0 && code < 0;
  if (member->role != Role::kWorker || !(interrupted || killed) || !failure_.empty()) return false;
  const auto others = std::count_if(members_.begin(), members_.end(), [](const Member& other) {
    return other.role == Role::kWorker && (other.child->running() || EndedWell(*other.child, other.role));
  });
  if (others < static_cast<int64_t>(workers_min_)) return false;
  member->lost = true;
  on_line_(*member->child, absl::StrCat(member->child->Outcome(), "; the run goes on with the others"));
  return true;
}

void LocalCluster::Signal(Role role, int signal) {
  for (const Member& member : members_) {
    if (member.role == role) member.child->Signal(signal);
  }
}

bool LocalCluster::Running(Role role) const {
  return std::any_of(members_.begin(), members_.end(),
                     [role](const Member& member) { return member.role == role && member.child->running(); });
}

}  // namespace lodestone::psctl
