#include "tools/psctl/verbs/top.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/text/screen.h"
#include "tools/psctl/text/style.h"
#include "tools/psctl/verbs/events.h"
#include "tools/psctl/verbs/flags.h"
#include "tools/psctl/verbs/top_frame.h"

namespace lodestone::psctl {
namespace {

constexpr char kTop[] = "top";
constexpr std::chrono::milliseconds kPeriod(1000);
constexpr size_t kEventsMax = 200;  // That are kept; no terminal shows more.

// Asks a cluster again and again.
class Source {
 public:
  explicit Source(const TopOptions& options) : options_(options), events_(options.address) {}

  absl::StatusOr<TopView> Ask() {
    TopView view;
    fresh_ = 0;
    LODESTONE_ASSIGN_OR_RETURN(view.report, AskCluster(options_.address, options_.timeout_ms));
    if (auto events = events_.Read(options_.timeout_ms); events.ok()) {
      if (events_.restarted()) kept_.clear();
      fresh_ = events->size();
      kept_.insert(kept_.end(), std::make_move_iterator(events->begin()), std::make_move_iterator(events->end()));
      if (kept_.size() > kEventsMax) kept_.erase(kept_.begin(), kept_.end() - kEventsMax);
    }
    view.events = kept_;
    view.time_ms = absl::ToUnixMillis(absl::Now());
    return view;
  }
  // Of the events in the last view, those that the one before had not.
  size_t fresh() const { return std::min(fresh_, kept_.size()); }

 private:
  const TopOptions& options_;
  EventReader events_;
  std::vector<v1::Event> kept_;
  size_t fresh_ = 0;
};

// Asks each second, on a thread of its own, so that keys are heard at once. Thread-safe.
class Poller {
 public:
  explicit Poller(const TopOptions& options) : source_(options), fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    LODESTONE_CHECK(fd_ >= 0);
    thread_ = std::thread([this] { Run(); });
  }
  // Waits for the question under way.
  ~Poller() {
    {
      MutexLock lock(&mu_);
      stop_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
    close(fd_);
  }

  // Readable when there is an answer that Take has not returned yet.
  int fd() const { return fd_; }
  std::optional<absl::StatusOr<TopView>> Take() {
    eventfd_t ignored = 0;
    eventfd_read(fd_, &ignored);
    MutexLock lock(&mu_);
    return std::exchange(newest_, std::nullopt);
  }

 private:
  void Run() {
    for (;;) {
      const auto next = std::chrono::steady_clock::now() + kPeriod;
      absl::StatusOr<TopView> view = source_.Ask();
      MutexLock lock(&mu_);
      newest_ = std::move(view);
      eventfd_write(fd_, 1);
      while (!stop_ && changed_.WaitUntil(&mu_, next)) {
      }
      if (stop_) return;
    }
  }

  Source source_;  // Of the thread.
  const int fd_;
  Mutex mu_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::StatusOr<TopView>> newest_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // Last: it uses everything above.
};

// Signals as something to wait for. Construct it before any other thread is started.
class Signals {
 public:
  Signals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH}) sigaddset(&signals, signal);
    pthread_sigmask(SIG_BLOCK, &signals, &former_);
    fd_ = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
    LODESTONE_CHECK(fd_ >= 0);
  }
  ~Signals() {
    close(fd_);
    pthread_sigmask(SIG_SETMASK, &former_, nullptr);
  }
  int fd() const { return fd_; }
  // The next; 0: there is none.
  int Take() {
    signalfd_siginfo signal;
    return read(fd_, &signal, sizeof(signal)) == sizeof(signal) ? static_cast<int>(signal.ssi_signo) : 0;
  }

 private:
  int fd_ = -1;
  sigset_t former_;
};

// The live view on a terminal.
class TerminalTop {
 public:
  explicit TerminalTop(const TopOptions& options)
      : options_(options), paint_(WantsColor(STDOUT_FILENO)), keys_(isatty(STDIN_FILENO) ? STDIN_FILENO : -1) {}

  int Run() {
    Poller poller(options_);
    while (!done_) {
      pollfd fds[] = {{signals_.fd(), POLLIN, 0}, {poller.fd(), POLLIN, 0}, {keys_, POLLIN, 0}};
      if (poll(fds, std::size(fds), -1) < 0) continue;
      if (fds[0].revents != 0) OnSignals();
      if (fds[1].revents != 0) {
        if (auto answer = poller.Take(); answer.has_value()) OnAnswer(*std::move(answer));
      }
      if (fds[2].revents != 0) OnKeys();
    }
    screen_.reset();  // Before the question under way is waited for.
    if (!failure_.ok()) return Fail(kTop, failure_);
    return kExitDone;
  }

 private:
  void OnAnswer(absl::StatusOr<TopView> answer) {
    if (answer.ok()) {
      view_ = *std::move(answer);
      if (!screen_.has_value()) screen_.emplace(keys_, STDOUT_FILENO);
      ++frames_;
    } else if (!view_.has_value()) {
      failure_ = answer.status();
      done_ = true;
      return;
    } else {
      view_->trouble = absl::StrCat("as it was then: ", answer.status().message());
    }
    Draw();
    if (options_.count > 0 && frames_ >= options_.count) done_ = true;
  }
  void OnSignals() {
    while (const int signal = signals_.Take()) {
      if (signal == SIGWINCH) {
        Draw();
      } else if (signal == SIGTSTP) {
        if (screen_.has_value()) screen_->Leave();
        kill(getpid(), SIGSTOP);  // Until SIGCONT.
        if (screen_.has_value()) screen_->Enter();
        Draw();
      } else {
        done_ = true;
      }
    }
  }
  void OnKeys() {
    char keys[64];
    const ssize_t got = read(keys_, keys, sizeof(keys));
    if (got <= 0) done_ = true;  // The terminal is gone.
    for (ssize_t i = 0; i < got; ++i) {
      if (keys[i] == 'q' || keys[i] == 'Q') done_ = true;
      if (keys[i] == '\f') Draw();  // Ctrl-L.
    }
  }
  void Draw() {
    if (view_.has_value() && screen_.has_value()) screen_->Draw(TopFrame(*view_, screen_->size(), paint_));
  }

  const TopOptions& options_;
  const Painter paint_;
  const int keys_;
  Signals signals_;
  std::optional<Screen> screen_;  // Once there is something to show.
  std::optional<TopView> view_;
  uint32_t frames_ = 0;
  absl::Status failure_;
  bool done_ = false;
};

nlohmann::ordered_json ToJson(const TopView& view, size_t fresh) {
  nlohmann::ordered_json json = ToJson(view.report);
  json["time_ms"] = view.time_ms;
  json["events"] = nlohmann::ordered_json::array();
  for (size_t i = view.events.size() - fresh; i < view.events.size(); ++i) {
    json["events"].push_back(JsonOf(view.events[i]));
  }
  return json;
}

// Frames one after the other, for files and pipes.
int RunPlainly(const TopOptions& options) {
  Source source(options);
  const Painter paint(WantsColor(STDOUT_FILENO));
  for (uint32_t frame = 0; options.count == 0 || frame < options.count; ++frame) {
    const auto next = std::chrono::steady_clock::now() + kPeriod;
    const absl::StatusOr<TopView> view = source.Ask();
    if (!view.ok()) return Fail(kTop, view.status());
    const std::string text =
        options.json
            ? JsonLine(ToJson(*view, source.fresh()))
            : absl::StrCat(frame == 0 ? "" : "\n", absl::StrJoin(TopFrame(*view, FrameSize(), paint), "\n"), "\n");
    std::fputs(text.c_str(), stdout);
    if (std::fflush(stdout) != 0) return kExitFailed;  // Nobody reads any more.
    if (frame + 1 != options.count) std::this_thread::sleep_until(next);
  }
  return kExitDone;
}

}  // namespace

int RunTop(const TopOptions& options) {
  if (const absl::Status address = CheckAddressFlag(options.address); !address.ok()) {
    return FailUsage(kTop, address.message());
  }
  if (options.json || !IsTerminal(STDOUT_FILENO)) return RunPlainly(options);
  return TerminalTop(options).Run();
}

const Verb kTopVerb = {"top",
                       "Shows a cluster live: servers, workers, tables, waits, events. q or Ctrl-C leaves; "
                       "without a terminal each second's picture follows the one before as plain text",
                       "  psctl top --address ps0:7000                           watch a cluster; q leaves\n",
                       [](CLI::App* command) -> Verb::Run {
                         const auto options = std::make_shared<TopOptions>();
                         AddAddress(command, &options->address);
                         command->add_option("--count", options->count, "Ends after so many pictures (default: never)")
                             ->check(CheckCount)
                             ->type_name("N");
                         AddJson(command, &options->json, "Prints one JSON object a line, each second");
                         AddTimeout(command, &options->timeout_ms, "How long to wait for the answers to one picture");
                         return [options] { return RunTop(*options); };
                       }};

}  // namespace lodestone::psctl
