#include "tests/chaos/tcp_proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace lodestone::chaos {
namespace {

constexpr int kBacklog = 128;
constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kHeldBytesMax = 1 << 20;
constexpr int kPortsTried = 1000;
constexpr int kPortsBelowEphemeral = 12'000;
constexpr uint64_t kQuantumBytes = 4 << 10;  // Of one connection at a time, where bytes_per_second is limited.
constexpr int64_t kBurstUs = 20'000;         // What bytes_per_second lets pass at once, in time.

int64_t NowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// The lowest port that the kernel gives to sockets without one.
int EphemeralPortMin() {
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  int low = 0;
  return file >> low ? low : 32768;
}

void SetNoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace

// One direction of a connection.
struct TcpProxy::Flow {
  struct Chunk {
    int64_t due_us = 0;
    std::vector<char> bytes;
    size_t passed = 0;
  };

  Direction direction = Direction::kRequests;
  std::optional<int> client;
  int from = -1;
  int to = -1;
  std::deque<Chunk> held;
  size_t held_bytes = 0;
  bool ended = false;     // `from` will send no more.
  bool broken = false;    // `to` takes no more.
  bool readable = false;  // As poll said.
};

struct TcpProxy::Connection {
  int front = -1;
  int back = -1;
  Flow requests;
  Flow replies;
};

absl::StatusOr<std::unique_ptr<TcpProxy>> TcpProxy::Start(ClientOf client_of) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listener < 0) return absl::ErrnoToStatus(errno, "a socket for a proxy");
  const int low = EphemeralPortMin();
  int bound = 0;
  for (int i = 0; i < kPortsTried && bound == 0; ++i) {
    // Somewhere else at each start: several may be started at the same time.
    const int port = low - 1 - static_cast<int>((NowUs() + 7919 * i) % kPortsBelowEphemeral);
    const sockaddr_in address = Loopback(port);
    if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) bound = port;
  }
  // It will listen again while connections from before are there. (Set after bind, so that the port is nobody else's.)
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const int wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (bound == 0 || wake < 0) {
    const absl::Status status = absl::ErrnoToStatus(errno, "a port for a proxy");
    close(listener);
    if (wake >= 0) close(wake);
    return status;
  }
  return std::unique_ptr<TcpProxy>(new TcpProxy(listener, bound, wake, std::move(client_of)));
}

TcpProxy::TcpProxy(int listener, int port, int wake, ClientOf client_of)
    : listener_(listener),
      wake_(wake),
      port_(port),
      address_(absl::StrCat("127.0.0.1:", port)),
      client_of_(std::move(client_of)),
      thread_([this] { Run(); }) {}

TcpProxy::~TcpProxy() {
  Order([](Orders* orders) { orders->stop = true; });
  thread_.join();
  close(listener_);
  close(wake_);
}

void TcpProxy::Order(const std::function<void(Orders*)>& change) {
  const uint64_t one = 1;
  MutexLock lock(&mu_);
  change(&orders_);
  const uint64_t order = ++ordered_;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
  while (obeyed_ < order) obeyed_changed_.Wait(&mu_);
}

void TcpProxy::SetLink(const Link& link) {
  Order([&](Orders* orders) { orders->link = link; });
}

void TcpProxy::SetLinkOf(int client, const Link& link) {
  LODESTONE_CHECK(link.bytes_per_second == 0);
  const bool good = link.delay_ms == 0 && !link.holds_requests && !link.holds_replies;
  Order([&](Orders* orders) {
    orders->links_of.erase(client);
    if (!good) orders->links_of[client] = link;
  });
}

void TcpProxy::CutAfter(Direction direction, uint64_t bytes) {
  Order([&](Orders* orders) { orders->tripwire = Tripwire{direction, bytes}; });
}

TcpProxy::Traffic TcpProxy::traffic() const {
  MutexLock lock(&mu_);
  return traffic_;
}

void TcpProxy::Run() {
  tokens_at_us_ = NowUs();
  while (Wait()) {
    const int64_t now_us = NowUs();
    const double rate = static_cast<double>(current_link_.bytes_per_second) / 1e6;
    for (double& tokens : tokens_) {
      tokens = std::min(tokens + rate * static_cast<double>(now_us - tokens_at_us_), rate * kBurstUs + 1);
    }
    tokens_at_us_ = now_us;
    for (auto it = connections_.begin(); it != connections_.end();) {
      it = Serve(it->get()) ? std::next(it) : connections_.erase(it);
    }
    // What few bytes may pass shall not all be those of the first one.
    if (!connections_.empty()) connections_.splice(connections_.end(), connections_, connections_.begin());
    Publish();
  }
  for (const auto& connection : connections_) Close(connection.get(), true);
}

bool TcpProxy::Wait() {
  std::vector<pollfd> fds = {{wake_, POLLIN, 0}};
  if (listening_) fds.push_back({listener_, POLLIN, 0});
  const size_t first = fds.size();
  const int64_t now_us = NowUs();
  int64_t wait_us = INT64_MAX;
  const auto want = [&](Flow* flow) {
    short events = 0;
    if (!flow->held.empty() && !Holds(*flow)) {
      const int64_t left_us = flow->held.front().due_us - now_us;
      if (left_us > 0) {
        wait_us = std::min(wait_us, left_us);
      } else if (Allowance(flow->direction) == 0) {
        wait_us = std::min<int64_t>(wait_us, 1000);
      } else {
        events = POLLOUT;
      }
    }
    return events;
  };
  for (const auto& connection : connections_) {
    const auto add = [&](int fd, const Flow& in, Flow* out) {
      const bool reads = !in.ended && in.held_bytes < kHeldBytesMax;
      const auto events = static_cast<short>((reads ? POLLIN : 0) | want(out));
      fds.push_back({events == 0 ? -1 : fd, events, 0});
    };
    add(connection->front, connection->requests, &connection->replies);
    add(connection->back, connection->replies, &connection->requests);
  }
  const int wait_ms = wait_us == INT64_MAX ? -1 : static_cast<int>((wait_us + 999) / 1000);
  if (poll(fds.data(), fds.size(), wait_ms) < 0) return true;
  size_t i = first;
  for (const auto& connection : connections_) {
    for (Flow* flow : {&connection->requests, &connection->replies}) {
      flow->readable = (fds[i++].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
    }
  }
  const bool accepts = listening_ && (fds[1].revents & POLLIN) != 0;
  if ((fds[0].revents & POLLIN) != 0) {
    uint64_t ignored = 0;
    [[maybe_unused]] const ssize_t got = read(wake_, &ignored, sizeof(ignored));
    {
      MutexLock lock(&mu_);
      if (orders_.stop) {
        obeyed_ = ordered_;
        obeyed_changed_.NotifyAll();
        return false;
      }
    }
    ObeyOrders();
  }
  if (accepts && listening_) Accept();
  return true;
}

void TcpProxy::ObeyOrders() {
  bool cut = false;
  std::set<int> cut_of;
  uint64_t order = 0;
  {
    MutexLock lock(&mu_);
    current_target_ = orders_.target;
    current_link_ = orders_.link;
    current_links_of_ = orders_.links_of;
    cut = std::exchange(orders_.cut, false);
    cut_of.swap(orders_.cut_of);
    if (orders_.tripwire.has_value()) current_tripwire_ = *std::exchange(orders_.tripwire, std::nullopt);
    order = ordered_;
  }
  if (current_target_.has_value() && !listening_) {
    LODESTONE_CHECK(listen(listener_, kBacklog) == 0);  // The port stayed ours.
    listening_ = true;
  } else if (!current_target_.has_value() && listening_) {
    shutdown(listener_, SHUT_RD);  // Keeps the port, and refuses connections.
    listening_ = false;
  }
  const auto is_cut = [&](const Connection& connection) {
    const std::optional<int> client = connection.requests.client;
    return cut || (client.has_value() && cut_of.contains(*client));
  };
  for (auto it = connections_.begin(); it != connections_.end();) {
    const bool closes = is_cut(**it);
    if (closes) Close(it->get(), true);
    current_traffic_.cut += closes;
    it = closes ? connections_.erase(it) : std::next(it);
  }
  MutexLock lock(&mu_);
  traffic_ = current_traffic_;
  obeyed_ = order;
  obeyed_changed_.NotifyAll();
}

void TcpProxy::Publish() {
  current_traffic_.replies_held = 0;
  for (const auto& connection : connections_) current_traffic_.replies_held += connection->replies.held_bytes;
  MutexLock lock(&mu_);
  traffic_ = current_traffic_;
}

void TcpProxy::Accept() {
  sockaddr_in from{};
  socklen_t from_size = sizeof(from);
  const int front = accept4(listener_, reinterpret_cast<sockaddr*>(&from), &from_size, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (front < 0) return;
  const int back = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(*current_target_);
  // On the loopback interface this is decided at once.
  if (back < 0 || connect(back, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (back >= 0) close(back);
    close(front);
    return;
  }
  SetNoDelay(front);
  SetNoDelay(back);
  auto connection = std::make_unique<Connection>();
  if (client_of_) connection->requests.client = client_of_(ntohs(from.sin_port), port_);
  connection->replies.client = connection->requests.client;
  connection->front = front;
  connection->back = back;
  connection->requests.direction = Direction::kRequests;
  connection->requests.from = connection->replies.to = front;
  connection->requests.to = connection->replies.from = back;
  connection->replies.direction = Direction::kReplies;
  connections_.push_back(std::move(connection));
  ++current_traffic_.connections;
}

bool TcpProxy::Serve(Connection* connection) {
  for (Flow* flow : {&connection->requests, &connection->replies}) {
    if (flow->readable && !Read(flow)) flow->ended = true;
    flow->readable = false;
    if (!Write(flow)) {
      ++current_traffic_.cut;
      Close(connection, true);
      return false;
    }
  }
  // What one end sent before it went still gets to the other, if that is there.
  const auto passed = [](const Flow& flow) { return flow.ended && flow.held.empty(); };
  const bool over = passed(connection->requests) || passed(connection->replies) || connection->replies.broken;
  if (over) Close(connection, false);
  return !over;
}

bool TcpProxy::Read(Flow* flow) {
  while (flow->held_bytes < kHeldBytesMax) {
    Flow::Chunk chunk;
    chunk.bytes.resize(kReadBytes);
    const ssize_t got = recv(flow->from, chunk.bytes.data(), chunk.bytes.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) return false;
    if (flow->broken) continue;
    chunk.bytes.resize(got);
    const Link* const own = LinkOf(*flow);
    chunk.due_us = NowUs() + std::max(current_link_.delay_ms, own == nullptr ? 0 : own->delay_ms) * 1000;
    flow->held_bytes += got;
    flow->held.push_back(std::move(chunk));
  }
  return true;
}

bool TcpProxy::Write(Flow* flow) {
  while (!flow->held.empty() && !Holds(*flow)) {
    Flow::Chunk& chunk = flow->held.front();
    if (chunk.due_us > NowUs()) return true;
    uint64_t size = std::min<uint64_t>(chunk.bytes.size() - chunk.passed, Allowance(flow->direction));
    const bool trips = current_tripwire_.bytes > 0 && current_tripwire_.direction == flow->direction;
    if (trips) size = std::min(size, current_tripwire_.bytes);
    if (size == 0) return true;
    const ssize_t sent = send(flow->to, chunk.bytes.data() + chunk.passed, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return true;
    if (sent < 0) {  // Nobody is there any more; what it said before may still be on its way.
      flow->held.clear();
      flow->held_bytes = 0;
      flow->broken = true;
      return true;
    }
    chunk.passed += sent;
    flow->held_bytes -= sent;
    if (chunk.passed == chunk.bytes.size()) flow->held.pop_front();
    (flow->direction == Direction::kRequests ? current_traffic_.request_bytes : current_traffic_.reply_bytes) += sent;
    if (current_link_.bytes_per_second > 0) tokens_[static_cast<int>(flow->direction)] -= static_cast<double>(sent);
    if (trips && (current_tripwire_.bytes -= sent) == 0) return false;
    if (current_link_.bytes_per_second > 0) return true;  // The next connection's turn.
  }
  return true;
}

uint64_t TcpProxy::Allowance(Direction direction) const {
  if (current_link_.bytes_per_second == 0) return UINT64_MAX;
  const double tokens = std::max(0.0, tokens_[static_cast<int>(direction)]);
  return std::min<uint64_t>(static_cast<uint64_t>(tokens), kQuantumBytes);
}

const TcpProxy::Link* TcpProxy::LinkOf(const Flow& flow) const {
  if (!flow.client.has_value()) return nullptr;
  const auto found = current_links_of_.find(*flow.client);
  return found == current_links_of_.end() ? nullptr : &found->second;
}

bool TcpProxy::Holds(const Flow& flow) const {
  const auto holds = [&](const Link& link) {
    return flow.direction == Direction::kRequests ? link.holds_requests : link.holds_replies;
  };
  const Link* const own = LinkOf(flow);
  return holds(current_link_) || (own != nullptr && holds(*own));
}

void TcpProxy::Close(Connection* connection, bool reset) {
  const linger at_once{1, 0};
  for (const int fd : {connection->front, connection->back}) {
    if (reset) setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    close(fd);
  }
}

}  // namespace lodestone::chaos
