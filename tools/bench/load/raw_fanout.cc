#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "tools/bench/harness/progress_meter.h"
#include "tools/bench/load/broadcast_load.h"

namespace lodestone::bench {
namespace {

constexpr char kPusherHello = 'P';
constexpr char kSubscriberHello = 'S';

// A connection of the server, and how much of the message under way has been moved.
struct Connection {
  int fd = -1;
  bool pusher = false;
  uint64_t number = 0;  // Subscribers: of the message under way, which is its head; 0: none yet.
  uint64_t done = 0;    // Bytes of it, head included.
};

class FanoutServer {
 public:
  FanoutServer(const Listener& listener, uint64_t bytes) : listener_(listener), message_bytes_(bytes), body_(bytes) {}

  [[noreturn]] void Serve() {
    for (;;) {
      std::vector<pollfd> polls = {{listener_.fd, POLLIN, 0}};
      for (const Connection& connection : connections_) {
        const short sending = Idle(connection) ? 0 : POLLOUT;
        polls.push_back({connection.fd, static_cast<short>(connection.pusher ? POLLIN : sending), 0});
      }
      if (poll(polls.data(), polls.size(), -1) < 0) continue;
      for (size_t i = 0; i < connections_.size(); ++i) {
        Connection& connection = connections_[i];
        if ((polls[i + 1].revents & (POLLERR | POLLHUP)) != 0) Close(&connection);
        if ((polls[i + 1].revents & POLLIN) != 0) Receive(&connection);
      }
      for (Connection& connection : connections_) {
        if (!connection.pusher) Send(&connection);
      }
      if (polls[0].revents != 0) Accept();
    }
  }

 private:
  bool Idle(const Connection& connection) const { return connection.done == 0 && connection.number == newest_; }

  void Close(Connection* connection) {
    close(connection->fd);
    connection->fd = -1;  // poll skips it.
  }

  void Accept() {
    char hello = 0;
    const int fd = AcceptFrom(listener_);
    if (fd < 0) return;
    if (recv(fd, &hello, 1, MSG_WAITALL) != 1) {
      close(fd);
      return;
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    connections_.push_back({fd, hello == kPusherHello, newest_, 0});
  }

  void Receive(Connection* connection) {
    while (connection->fd >= 0) {
      const ssize_t got = recv(connection->fd, body_.data() + connection->done, message_bytes_ - connection->done, 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (got <= 0) return Close(connection);
      connection->done += static_cast<uint64_t>(got);
      if (connection->done < message_bytes_) continue;
      connection->done = 0;
      ++newest_;
      return;  // The subscribers' turn.
    }
  }

  void Send(Connection* connection) {
    while (connection->fd >= 0 && !Idle(*connection)) {
      if (connection->done == 0) connection->number = newest_;
      const uint64_t head_left = connection->done < sizeof(uint64_t) ? sizeof(uint64_t) - connection->done : 0;
      const uint64_t body_done = connection->done + head_left - sizeof(uint64_t);
      iovec parts[2] = {{reinterpret_cast<uint8_t*>(&connection->number) + sizeof(uint64_t) - head_left, head_left},
                        {body_.data() + body_done, message_bytes_ - body_done}};
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = 2;
      const ssize_t sent = sendmsg(connection->fd, &message, MSG_NOSIGNAL);
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (sent <= 0) return Close(connection);
      connection->done += static_cast<uint64_t>(sent);
      if (connection->done == sizeof(uint64_t) + message_bytes_) connection->done = 0;
    }
  }

  const Listener& listener_;
  const uint64_t message_bytes_;
  std::vector<uint8_t> body_;  // What was received last, in part perhaps: nobody looks at it.
  uint64_t newest_ = 0;        // Messages received.
  std::vector<Connection> connections_;
};

class FanoutSubscriber final : public Load {
 public:
  FanoutSubscriber(int subscription_fd, int push_fd, uint64_t bytes)
      : subscription_fd_(subscription_fd), push_fd_(push_fd), gradient_(push_fd >= 0 ? bytes : 0), values_(bytes) {
    meter_.Reach(0);
    receiver_ = std::thread([this] { Receive(); });
  }
  ~FanoutSubscriber() override {
    shutdown(subscription_fd_, SHUT_RDWR);
    receiver_.join();
    close(subscription_fd_);
    if (push_fd_ >= 0) close(push_fd_);
  }

  absl::StatusOr<Outcome> Run(const Order& order) override {
    if (push_fd_ < 0) return meter_.RunSubscriber(order);
    return meter_.RunPusher(order, [this](uint64_t) {
      if (SendMessage(push_fd_, nullptr, 0, gradient_.data(), gradient_.size())) return absl::OkStatus();
      return absl::ErrnoToStatus(errno, "the limit's connection broke");
    });
  }

 private:
  void Receive() {
    SocketReader reader(subscription_fd_);
    uint64_t number = 0;
    while (reader.Read(&number, sizeof(number))) {
      for (size_t at = 0; at < values_.size(); at += kPieceBytes) {
        const size_t piece = std::min(kPieceBytes, values_.size() - at);
        if (!reader.Read(values_.data() + at, piece)) return;
        meter_.AddBytes(piece);
      }
      meter_.Reach(number);
    }
  }

  static constexpr size_t kPieceBytes = 256 << 10;  // After which received bytes count: a block's.

  const int subscription_fd_;
  const int push_fd_;  // -1: pushes nothing.
  const std::vector<uint8_t> gradient_;
  std::vector<uint8_t> values_;
  ProgressMeter meter_;
  std::thread receiver_;
};

absl::StatusOr<int> ConnectAs(const Listener& listener, char hello) {
  LODESTONE_ASSIGN_OR_RETURN(const int fd, ConnectTo(listener));
  if (SendMessage(fd, &hello, 1, nullptr, 0)) return fd;
  return absl::ErrnoToStatus(errno, "the limit's connection broke");
}

}  // namespace

void ServeFanout(const Listener& listener, uint64_t bytes) { FanoutServer(listener, bytes).Serve(); }

Peer::MakeLoad FanoutLoad(const Listener& listener, uint64_t bytes, bool pusher) {
  return [&listener, bytes, pusher]() -> absl::StatusOr<std::unique_ptr<Load>> {
    LODESTONE_ASSIGN_OR_RETURN(const int subscription_fd, ConnectAs(listener, kSubscriberHello));
    int push_fd = -1;
    if (pusher) {
      LODESTONE_ASSIGN_OR_RETURN(push_fd, ConnectAs(listener, kPusherHello));
    }
    return std::make_unique<FanoutSubscriber>(subscription_fd, push_fd, bytes);
  };
}

}  // namespace lodestone::bench
