#include "common/rpc/process_watch.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "common/base/host_port.h"
#include "common/telemetry/log.h"

namespace lodestone {
namespace {

constexpr int kRefusalsToGone = 3;
constexpr int kRefusalsToWait = 5;             // So long one that is gone waits for others that may have ended with it.
constexpr int64_t kRefusedPauseMs = 100;       // Between two of them.
constexpr int64_t kConnectMs = 2000;           // For an answer of the machine.
constexpr int64_t kTryAgainMs = 1000;          // After what means nothing.
constexpr int64_t kShortMs = 1000;             // A connection that ends sooner is not made again at once.
constexpr size_t kSeenMax = 1000;              // Addresses that are remembered, beyond as many as are watched.
constexpr int64_t kLookUpPollMs = 20;          // Between two looks at whether a name was found.
constexpr size_t kWatchReadBytes = 4096;       // At a time; what a process says is thrown away.
constexpr size_t kWatchReadMaxBytes = 65'536;  // Of a connection: more than a greeting is not listened to.

struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = 0;
};

std::vector<SocketAddress> LookUp(const HostPort& where, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  std::vector<SocketAddress> addresses;
  if (getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found) != 0) return addresses;
  for (const addrinfo* next = found; next != nullptr; next = next->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    address.size = std::min<socklen_t>(next->ai_addrlen, sizeof(address.bytes));
    std::memcpy(&address.bytes, next->ai_addr, address.size);
  }
  freeaddrinfo(found);
  return addresses;
}

bool IsNumeric(const std::string& address) {
  const absl::StatusOr<HostPort> where = ParseHostPort(address);
  return where.ok() && !LookUp(*where, AI_NUMERICHOST).empty();
}

// Whether a connection was made to itself: to a port of this machine at which nobody listens, and which the kernel has
// just given to the connection.
bool IsToItself(int fd) {
  SocketAddress here, there;
  here.size = there.size = sizeof(here.bytes);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&here.bytes), &here.size) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&there.bytes), &there.size) == 0 && here.size == there.size &&
         std::memcmp(&here.bytes, &there.bytes, here.size) == 0;
}

// A name that is being looked up. Belongs to the thread that does and to who asked; the latter may be gone.
struct NameLookUp {
  std::atomic<bool> done{false};
  std::vector<SocketAddress> addresses;  // Once done.
};

std::shared_ptr<NameLookUp> StartLookUp(const HostPort& where) {
  auto look_up = std::make_shared<NameLookUp>();
  look_up->addresses = LookUp(where, AI_NUMERICHOST);
  if (!look_up->addresses.empty()) {
    look_up->done = true;
    return look_up;
  }
  std::thread([look_up, where] {
    look_up->addresses = LookUp(where, 0);
    look_up->done = true;
  }).detach();
  return look_up;
}

}  // namespace

// A process that is watched. Belongs to the watch's thread.
class ProcessWatch::Target {
 public:
  // `reached`: another process was seen listening at the address, which is a number: a name may lead to where a former
  // process was for a while.
  Target(Process process, bool reached)
      : process_(std::move(process)), known_(process_.certain || (process_.announced && reached)) {}
  ~Target() { Close(); }

  const Process& process() const { return process_; }
  // To be polled for; fd is -1 if there is nothing.
  pollfd PollFd() const {
    const short events = state_ == State::kConnecting ? POLLOUT : POLLIN | POLLRDHUP;
    return {fd_, events, 0};
  }
  // When Step is to be called at the latest.
  int64_t due_ms() const { return due_ms_; }
  // Does what is due; `happened` to its descriptor, 0 for nothing.
  void Step(short happened, int64_t now_ms);
  bool seen() const { return seen_; }
  // In a row, since it was seen last.
  int refusals() const { return refusals_; }
  // When the last connection was over.
  int64_t ended_ms() const { return ended_ms_; }
  // The process is not gone: what was seen so far does not count.
  void Doubt(int64_t now_ms) {
    refusals_ = 0;
    ended_ms_ = now_ms;
  }

 private:
  enum class State { kPaused, kLookingUp, kConnecting, kConnected };

  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  void PauseUntil(int64_t ms) {
    Close();
    state_ = State::kPaused;
    due_ms_ = ms;
  }
  void Begin(int64_t now_ms);
  void Connect(int64_t now_ms);
  void OnConnected(int64_t now_ms);
  // The attempt at the next address has failed.
  void OnFailed(int error, int64_t now_ms);
  void Drain(int64_t now_ms);

  const Process process_;
  const bool known_;  // To listen there, or to be gone.
  State state_ = State::kPaused;
  int64_t due_ms_ = 0;
  int fd_ = -1;
  std::shared_ptr<NameLookUp> look_up_;   // While it is looked up.
  std::vector<SocketAddress> addresses_;  // Once it was seen, the one where it was.
  size_t next_ = 0;                       // Of them, that is tried.
  bool refused_ = false;                  // By all of them that were tried in this round.
  bool seen_ = false;                     // Listening.
  int refusals_ = 0;
  int64_t connected_ms_ = 0;
  int64_t ended_ms_ = 0;
  size_t read_bytes_ = 0;
};

void ProcessWatch::Target::Step(short happened, int64_t now_ms) {
  switch (state_) {
    case State::kPaused:
      if (now_ms >= due_ms_) Begin(now_ms);
      break;
    case State::kLookingUp:
      if (!look_up_->done) {
        due_ms_ = now_ms + kLookUpPollMs;
        break;
      }
      addresses_ = std::move(look_up_->addresses);
      look_up_.reset();
      next_ = 0;
      if (addresses_.empty()) {
        PauseUntil(now_ms + kTryAgainMs);
      } else {
        Connect(now_ms);
      }
      break;
    case State::kConnecting:
      if (happened != 0) {
        int error = 0;
        socklen_t size = sizeof(error);
        if (getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
        if (error == 0) {
          OnConnected(now_ms);
        } else {
          OnFailed(error, now_ms);
        }
      } else if (now_ms >= due_ms_) {
        OnFailed(ETIMEDOUT, now_ms);
      }
      break;
    case State::kConnected:
      if (happened != 0) Drain(now_ms);
      break;
  }
}

void ProcessWatch::Target::Begin(int64_t now_ms) {
  if (seen_) return Connect(now_ms);
  const absl::StatusOr<HostPort> where = ParseHostPort(process_.address);
  if (!where.ok()) return PauseUntil(INT64_MAX);  // Nobody joins with such an address.
  look_up_ = StartLookUp(*where);
  refused_ = true;
  state_ = State::kLookingUp;
  due_ms_ = now_ms;
}

void ProcessWatch::Target::Connect(int64_t now_ms) {
  Close();
  const SocketAddress& to = addresses_[next_];
  fd_ = socket(to.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return OnFailed(errno, now_ms);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&to.bytes), to.size) == 0) return OnConnected(now_ms);
  if (errno != EINPROGRESS) return OnFailed(errno, now_ms);
  state_ = State::kConnecting;
  due_ms_ = now_ms + kConnectMs;
}

void ProcessWatch::Target::OnConnected(int64_t now_ms) {
  if (IsToItself(fd_)) {
    const linger at_once{1, 0};  // The port is free at once for a listener.
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    return OnFailed(ECONNREFUSED, now_ms);
  }
  state_ = State::kConnected;
  addresses_ = {addresses_[next_]};
  next_ = 0;
  seen_ = true;
  refusals_ = 0;
  connected_ms_ = now_ms;
  read_bytes_ = 0;
  due_ms_ = INT64_MAX;
}

void ProcessWatch::Target::OnFailed(int error, int64_t now_ms) {
  if (!seen_) {
    refused_ = refused_ && error == ECONNREFUSED;
    if (++next_ < addresses_.size()) return Connect(now_ms);
    if (!known_) return PauseUntil(now_ms + kTryAgainMs);
    if (ended_ms_ == 0) ended_ms_ = now_ms;
  } else {
    refused_ = error == ECONNREFUSED;
  }
  refusals_ = refused_ ? refusals_ + 1 : 0;
  PauseUntil(now_ms + (refused_ ? kRefusedPauseMs : kTryAgainMs));
}

void ProcessWatch::Target::Drain(int64_t now_ms) {
  char thrown_away[kWatchReadBytes];
  const ssize_t got = recv(fd_, thrown_away, sizeof(thrown_away), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got > 0 && (read_bytes_ += static_cast<size_t>(got)) < kWatchReadMaxBytes) return;
  ended_ms_ = now_ms;
  PauseUntil(now_ms - connected_ms_ >= kShortMs ? now_ms : now_ms + kRefusedPauseMs);
}

ProcessWatch::ProcessWatch(OnGone on_gone)
    : on_gone_(std::move(on_gone)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), thread_([this] { Run(); }) {}

ProcessWatch::~ProcessWatch() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (wake_ >= 0) eventfd_write(wake_, 1);
  thread_.join();
  if (wake_ >= 0) close(wake_);
}

void ProcessWatch::Watch(std::vector<Process> processes) {
  MutexLock lock(&mu_);
  processes_ = std::move(processes);
  ordered_ = true;
  if (wake_ >= 0) eventfd_write(wake_, 1);
}

bool ProcessWatch::TakeOrders(const std::set<std::string>& seen, std::vector<std::unique_ptr<Target>>* targets) {
  std::vector<Process> wanted;
  {
    MutexLock lock(&mu_);
    if (stopping_) return false;
    if (!std::exchange(ordered_, false)) return true;
    wanted = processes_;
  }
  std::vector<std::unique_ptr<Target>> next;
  for (Process& process : wanted) {
    const auto known = std::find_if(targets->begin(), targets->end(), [&](const std::unique_ptr<Target>& target) {
      return target != nullptr && target->process() == process;
    });
    const bool reached = seen.contains(process.address) && IsNumeric(process.address);
    next.push_back(known != targets->end() ? std::move(*known) : std::make_unique<Target>(std::move(process), reached));
  }
  *targets = std::move(next);
  return true;
}

void ProcessWatch::Run() {
  if (wake_ < 0) {  // Leases decide alone.
    LODESTONE_LOG(WARN, "watch", "processes that die are not noticed before their leases end: no descriptor is left");
    return;
  }
  const SteadyTime time;
  std::vector<std::unique_ptr<Target>> targets;
  std::vector<pollfd> polls;
  std::set<std::string> seen;
  while (TakeOrders(seen, &targets)) {
    polls.assign(1, {wake_, POLLIN, 0});
    int64_t due_ms = INT64_MAX;
    for (const auto& target : targets) {
      polls.push_back(target->PollFd());
      due_ms = std::min(due_ms, target->due_ms());
    }
    const int64_t wait_ms = std::clamp<int64_t>(due_ms - time.NowMs(), 0, kConnectMs);
    if (poll(polls.data(), polls.size(), due_ms == INT64_MAX ? -1 : static_cast<int>(wait_ms)) < 0) continue;
    eventfd_t ignored = 0;
    if (polls[0].revents != 0) eventfd_read(wake_, &ignored);
    for (size_t i = 0; i < targets.size(); ++i) targets[i]->Step(polls[i + 1].revents, time.NowMs());
    for (const auto& target : targets) {
      if (target->seen()) seen.insert(target->process().address);
    }
    if (seen.size() > targets.size() + kSeenMax) {  // Those where nobody is watched any more are forgotten.
      std::set<std::string> watched;
      for (const auto& target : targets) {
        if (seen.contains(target->process().address)) watched.insert(target->process().address);
      }
      seen = std::move(watched);
    }
    TellGone(&targets);
  }
}

void ProcessWatch::TellGone(std::vector<std::unique_ptr<Target>>* targets) const {
  int most = 0;
  bool suspects = false;
  for (const auto& target : *targets) {
    most = std::max(most, target->refusals());
    suspects = suspects || (target->refusals() > 0 && target->refusals() < kRefusalsToGone);
  }
  if (most < (suspects ? kRefusalsToWait : kRefusalsToGone)) return;
  const int64_t now_ms = SteadyTime().NowMs();
  std::vector<Gone> gone;
  std::vector<std::unique_ptr<Target>> dropped, left;
  for (auto& target : *targets) {
    const bool is_gone = target->refusals() >= kRefusalsToGone;
    if (is_gone) gone.push_back({target->process(), now_ms - target->ended_ms()});
    (is_gone ? dropped : left).push_back(std::move(target));
  }
  on_gone_(gone);
  for (size_t i = 0; i < gone.size(); ++i) {
    if (!gone[i].doubted) continue;
    dropped[i]->Doubt(now_ms);
    left.push_back(std::move(dropped[i]));
  }
  *targets = std::move(left);
}

}  // namespace lodestone
