#include "tools/psctl/local/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace lodestone::psctl {
namespace {

constexpr size_t kLineBytesMax = 64 << 10;
constexpr size_t kLinesKept = 20;

// Runs in the child between fork and exec: only async-signal-safe calls. Does not return.
[[noreturn]] void BecomeProgram(char* const* argv, pid_t parent, int output_fd, int error_fd) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // The parent died before prctl.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  const int null_fd = open("/dev/null", O_RDONLY);
  if (null_fd >= 0) dup2(null_fd, STDIN_FILENO);
  dup2(output_fd, STDOUT_FILENO);
  dup2(output_fd, STDERR_FILENO);
  execv(argv[0], argv);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(error_fd, &error, sizeof(error));
  _exit(127);
}

// The errno that exec failed with; 0 if it did not (the pipe closed at exec).
int ExecError(int error_fd) {
  int error = 0;
  ssize_t got;
  do {
    got = read(error_fd, &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  return got == sizeof(error) ? error : 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Child>> Child::Start(std::string name, const std::vector<std::string>& argv) {
  int output[2];
  int exec_error[2];
  if (pipe2(output, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("a pipe for ", name));
  if (pipe2(exec_error, O_CLOEXEC) != 0) {
    const int error = errno;
    close(output[0]);
    close(output[1]);
    return absl::ErrnoToStatus(error, absl::StrCat("a pipe for ", name));
  }
  std::vector<char*> pointers;
  for (const std::string& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeProgram(pointers.data(), parent, output[1], exec_error[1]);
  const int fork_error = errno;
  close(output[1]);
  close(exec_error[1]);
  const int error = pid < 0 ? fork_error : ExecError(exec_error[0]);
  close(exec_error[0]);
  if (error != 0) {
    close(output[0]);
    if (pid > 0) waitpid(pid, nullptr, 0);
    return absl::ErrnoToStatus(error, absl::StrCat("starting ", name, " (", argv[0], ")"));
  }
  fcntl(output[0], F_SETFL, O_NONBLOCK);
  return std::unique_ptr<Child>(new Child(std::move(name), pid, output[0]));
}

Child::~Child() {
  if (running_) {
    Signal(SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (output_fd_ >= 0) close(output_fd_);
}

bool Child::succeeded() const { return exit_code() == 0; }

int Child::exit_code() const { return WIFEXITED(wait_status_) ? WEXITSTATUS(wait_status_) : -1; }

int Child::signal() const { return WIFSIGNALED(wait_status_) ? WTERMSIG(wait_status_) : 0; }

void Child::ReadOutput(const OnLine& on_line) {
  char buffer[16384];
  while (output_fd_ >= 0) {
    const ssize_t got = read(output_fd_, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      close(output_fd_);
      output_fd_ = -1;
      break;
    }
    partial_.append(buffer, got);
    size_t begin = 0;
    for (size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      TakeLine(absl::string_view(partial_).substr(begin, end - begin), on_line);
    }
    partial_.erase(0, begin);
    if (partial_.size() >= kLineBytesMax) TakeLine(std::exchange(partial_, ""), on_line);
  }
  if (!partial_.empty()) TakeLine(std::exchange(partial_, ""), on_line);
}

void Child::TakeLine(absl::string_view line, const OnLine& on_line) {
  line = absl::StripTrailingAsciiWhitespace(line);
  if (!line.empty()) {
    last_lines_.emplace_back(line);
    if (last_lines_.size() > kLinesKept) last_lines_.pop_front();
  }
  on_line(line);
}

bool Child::Reap(const OnLine& on_line) {
  if (!running_) return true;
  if (waitpid(pid_, &wait_status_, WNOHANG) != pid_) return false;
  running_ = false;
  ReadOutput(on_line);
  return true;
}

void Child::Signal(int signal) const {
  if (!running_) return;
  kill(-pid_, signal);  // Its group is there: Start returns after exec.
}

std::string Child::Outcome() const {
  std::string text = absl::StrCat(name_, " (pid ", pid_, ") ");
  if (WIFSIGNALED(wait_status_)) {
    absl::StrAppend(&text, "was killed by signal ", WTERMSIG(wait_status_), " (", strsignal(WTERMSIG(wait_status_)),
                    ")");
  } else if (succeeded()) {
    absl::StrAppend(&text, "ended");
  } else {
    absl::StrAppend(&text, "failed with exit code ", WEXITSTATUS(wait_status_));
  }
  if (succeeded() || last_lines_.empty()) return text;
  const std::string* reason = &last_lines_.back();
  for (const std::string& line : last_lines_) {
    if (absl::StrContains(line, "ERROR")) reason = &line;
  }
  return absl::StrCat(text, ": ", *reason);
}

}  // namespace lodestone::psctl
