#include "tests/tools/psctl/verbs/terminal_run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace lodestone::psctl {
namespace {

constexpr char kHome[] = "\x1b[H";
constexpr char kNextLine[] = "\x1b[K\r\r\n";  // The terminal itself writes "\n" as "\r\n".
constexpr char kEnd[] = "\x1b[K\x1b[J";

std::vector<char*> Pointers(std::vector<std::string>* texts) {
  std::vector<char*> pointers;
  for (std::string& text : *texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

TerminalRun::TerminalRun(const std::vector<std::string>& arguments, int columns, int lines,
                         const std::vector<std::string>& environment) {
  terminal_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  EXPECT_EQ(grantpt(terminal_), 0);
  EXPECT_EQ(unlockpt(terminal_), 0);
  const std::string name = ptsname(terminal_);
  Resize(columns, lines);
  std::vector<std::string> argv = {
      absl::StrCat(getenv("TEST_SRCDIR"), "/", getenv("TEST_WORKSPACE"), "/tools/psctl/psctl")};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = {"TERM=xterm"};
  variables.insert(variables.end(), environment.begin(), environment.end());
  // The first terminal that the leader of a session opens is its own.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, name.c_str(), O_RDWR, 0);
  posix_spawn_file_actions_adddup2(&files, 0, 1);
  posix_spawn_file_actions_adddup2(&files, 0, 2);
  EXPECT_EQ(
      posix_spawn(&pid_, argv[0].c_str(), &files, &attributes, Pointers(&argv).data(), Pointers(&variables).data()), 0)
      << argv[0];
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
}

TerminalRun::~TerminalRun() {
  if (!ended_ && pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(terminal_);
}

bool TerminalRun::Read() {
  char buffer[4096];
  ssize_t got = 0;
  do {
    got = read(terminal_, buffer, sizeof(buffer));
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return false;  // EIO: nobody has the other end any more.
  output_.append(buffer, static_cast<size_t>(got));
  return true;
}

bool TerminalRun::Await(const std::string& text) {
  for (;;) {
    if (const size_t at = output_.find(text, seen_); at != std::string::npos) {
      seen_ = at + text.size();
      return true;
    }
    if (!Read()) return false;
  }
}

std::vector<std::string> TerminalRun::AwaitFrame() {
  if (!Await(kHome)) return {};
  const size_t begin = seen_;
  if (!Await(kEnd)) return {};
  return absl::StrSplit(output_.substr(begin, seen_ - sizeof(kEnd) + 1 - begin), kNextLine);
}

void TerminalRun::Type(const std::string& keys) {
  EXPECT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
}

void TerminalRun::Resize(int columns, int lines) {
  winsize size{};
  size.ws_col = static_cast<unsigned short>(columns);
  size.ws_row = static_cast<unsigned short>(lines);
  EXPECT_EQ(ioctl(terminal_, TIOCSWINSZ, &size), 0);
}

void TerminalRun::Signal(int signal) { EXPECT_EQ(kill(pid_, signal), 0); }

bool TerminalRun::AwaitStop() {
  int status = 0;
  return waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status);
}

int TerminalRun::AwaitEnd() {
  while (Read()) {
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
  ended_ = true;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool TerminalRun::HasUsualSettings() const {
  termios settings{};
  EXPECT_EQ(tcgetattr(terminal_, &settings), 0);
  return (settings.c_lflag & ICANON) != 0 && (settings.c_lflag & ECHO) != 0;
}

}  // namespace lodestone::psctl
