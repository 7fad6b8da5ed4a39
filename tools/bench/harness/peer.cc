#include "tools/bench/harness/peer.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace lodestone::bench {
namespace {

constexpr int kEndGraceMs = 10'000;
constexpr int64_t kNsPerSecond = 1'000'000'000;

// What precedes each message of a peer: whether it holds an outcome or the words of an error.
struct Head {
  int32_t error_code = 0;
  uint64_t operations = 0;
  uint64_t started = 0;
  uint64_t bytes_copied = 0;
  uint64_t size = 0;  // Of the words, or count of latencies.
};

bool SendAll(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool ReceiveAll(int fd, void* data, size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = recv(fd, at, size, MSG_WAITALL);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

bool SendError(int fd, const absl::Status& status) {
  const std::string text(status.message());
  const Head head{static_cast<int32_t>(status.code()), 0, 0, 0, text.size()};
  return SendAll(fd, &head, sizeof(head)) && SendAll(fd, text.data(), text.size());
}

bool SendOutcome(int fd, const Outcome& outcome) {
  const Head head{0, outcome.operations, outcome.started, outcome.bytes_copied, outcome.latencies_us.size()};
  return SendAll(fd, &head, sizeof(head)) &&
         SendAll(fd, outcome.latencies_us.data(), outcome.latencies_us.size() * sizeof(float));
}

// The life of a peer's process. An order of depth 0 ends it.
void Serve(int fd, const Peer::MakeLoad& make_load) {
  absl::StatusOr<std::unique_ptr<Load>> load = make_load();
  if (!load.ok()) {
    SendError(fd, load.status());
    return;
  }
  if (!SendOutcome(fd, {})) return;
  Order order;
  while (ReceiveAll(fd, &order, sizeof(order)) && order.depth > 0) {
    const absl::StatusOr<Outcome> outcome = (*load)->Run(order);
    if (!(outcome.ok() ? SendOutcome(fd, *outcome) : SendError(fd, outcome.status()))) return;
  }
}

// Forks; the child runs `run` and ends. It dies with its parent.
absl::StatusOr<pid_t> Fork(const std::string& name, const std::function<void()>& run) {
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, absl::StrCat("starting ", name));
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() == parent) run();
  std::fflush(nullptr);
  _exit(0);
}

// A child and our end of the socket to it.
struct Process {
  pid_t pid = 0;
  int fd = -1;
};
absl::StatusOr<Process> ForkWithSocket(const std::string& name, const std::function<void(int fd)>& run) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("a socket for ", name));
  }
  const absl::StatusOr<pid_t> pid = Fork(name, [&] {
    close(fds[0]);
    run(fds[1]);
  });
  close(fds[1]);
  if (pid.ok()) return Process{*pid, fds[0]};
  close(fds[0]);
  return pid.status();
}

absl::Status HasEnded(const std::string& name) { return absl::UnavailableError(absl::StrCat(name, " has ended")); }

// The head of the next message, or the error that it is.
absl::Status ReceiveHead(int fd, const std::string& name, Head* head) {
  if (!ReceiveAll(fd, head, sizeof(*head))) return HasEnded(name);
  if (head->error_code == 0) return absl::OkStatus();
  std::string text(head->size, '\0');
  if (!ReceiveAll(fd, text.data(), text.size())) return HasEnded(name);
  return absl::Status(static_cast<absl::StatusCode>(head->error_code), absl::StrCat(name, ": ", text));
}

// Whether the process ended in time.
bool AwaitEnd(pid_t pid, int timeout_ms) {
  for (const int64_t end = NowNs() + int64_t{timeout_ms} * 1'000'000; NowNs() < end; poll(nullptr, 0, 1)) {
    const pid_t ended = waitpid(pid, nullptr, WNOHANG);
    if (ended == pid || (ended < 0 && errno != EINTR)) return true;
  }
  return false;
}

}  // namespace

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNsPerSecond + now.tv_nsec;
}

double CpuSeconds(pid_t pid) {
  clockid_t clock;
  timespec used;
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &used) != 0) return 0;
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

absl::StatusOr<std::unique_ptr<Peer>> Peer::Start(std::string name, const MakeLoad& make_load) {
  LODESTONE_ASSIGN_OR_RETURN(const Process process, ForkWithSocket(name, [&](int fd) { Serve(fd, make_load); }));
  std::unique_ptr<Peer> peer(new Peer(std::move(name), process.pid, process.fd));
  if (absl::Status ready = peer->Collect().status(); !ready.ok()) return ready;
  return peer;
}

absl::StatusOr<std::unique_ptr<Peer>> Peer::StartServer(std::string name, const std::function<void()>& serve) {
  LODESTONE_ASSIGN_OR_RETURN(const pid_t pid, Fork(name, serve));
  return std::unique_ptr<Peer>(new Peer(std::move(name), pid, -1));
}

Peer::~Peer() {
  Order end;
  end.depth = 0;
  const bool asked = fd_ >= 0 && SendAll(fd_, &end, sizeof(end));
  if (!asked || !AwaitEnd(pid_, kEndGraceMs)) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (fd_ >= 0) close(fd_);
}

absl::Status Peer::Send(const Order& order) {
  if (SendAll(fd_, &order, sizeof(order))) return absl::OkStatus();
  return HasEnded(name_);
}

absl::StatusOr<Outcome> Peer::Collect() {
  Head head;
  LODESTONE_RETURN_IF_ERROR(ReceiveHead(fd_, name_, &head));
  Outcome outcome{head.operations, head.started, head.bytes_copied, std::vector<float>(head.size)};
  if (!ReceiveAll(fd_, outcome.latencies_us.data(), head.size * sizeof(float))) return HasEnded(name_);
  return outcome;
}

absl::StatusOr<std::unique_ptr<Errand>> Errand::Start(std::string name, const Run& run) {
  const auto work = [&run](int fd) {
    const absl::StatusOr<std::string> result = run();
    if (result.ok()) {
      const Head head{0, 0, 0, 0, result->size()};
      if (SendAll(fd, &head, sizeof(head))) SendAll(fd, result->data(), result->size());
    } else {
      SendError(fd, result.status());
    }
  };
  LODESTONE_ASSIGN_OR_RETURN(const Process process, ForkWithSocket(name, work));
  return std::unique_ptr<Errand>(new Errand(std::move(name), process.pid, process.fd));
}

Errand::~Errand() {
  if (!ended()) kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  close(fd_);
}

bool Errand::ended() const {
  pollfd result = {fd_, POLLIN, 0};
  return poll(&result, 1, 0) > 0;
}

absl::StatusOr<std::string> Errand::Wait() {
  Head head;
  LODESTONE_RETURN_IF_ERROR(ReceiveHead(fd_, name_, &head));
  std::string result(head.size, '\0');
  if (!ReceiveAll(fd_, result.data(), head.size)) return HasEnded(name_);
  return result;
}

}  // namespace lodestone::bench
