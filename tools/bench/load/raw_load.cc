#include "tools/bench/load/raw_load.h"

#include <errno.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace lodestone::bench {
namespace {

// What surely fits into a direction's buffers, so that sending it does not wait for the peer to receive.
constexpr uint64_t kBytesBuffered = 64 << 10;

struct MessageHead {
  uint64_t body_bytes = 0;
  uint64_t reply_bytes = 0;
};

// Memory that is gone through in runs of equal length.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes, 1) {}
  uint8_t* Next(size_t size) {
    if (at_ + size > bytes_.size()) at_ = 0;
    uint8_t* const next = bytes_.data() + at_;
    at_ += size;
    return next;
  }

 private:
  std::vector<uint8_t> bytes_;
  size_t at_ = 0;
};

void ServeConnection(int fd, size_t memory_bytes) {
  SocketReader reader(fd);
  Memory replies(memory_bytes);
  std::vector<uint8_t> request;
  MessageHead head;
  while (reader.Read(&head, sizeof(head))) {
    if (request.size() < head.body_bytes) request.resize(head.body_bytes);
    if (!reader.Read(request.data(), head.body_bytes)) break;
    const MessageHead reply{head.reply_bytes, 0};
    if (!SendMessage(fd, &reply, sizeof(reply), replies.Next(head.reply_bytes), head.reply_bytes)) break;
  }
  close(fd);
}

// Counts an operation if it ended in the order's window.
void Count(const Order& order, int64_t begin_ns, int64_t end_ns, Outcome* outcome) {
  if (end_ns < order.start_ns || end_ns >= order.end_ns) return;
  ++outcome->operations;
  outcome->latencies_us.push_back(1e-3f * static_cast<float>(end_ns - begin_ns));
}

// A message on its way to the server and back.
struct Exchange {
  int64_t begin_ns = 0;  // Of its operation.
  bool second = false;   // The operation's second exchange.
};

// What is under way when one thread sends and another receives. Thread-safe.
class Traffic {
 public:
  explicit Traffic(const Order& order) : order_(order), two_(order.second_request_bytes > 0) {}

  // Waits until there is something to send; false if there will be no more.
  bool AwaitSend(Exchange* exchange) {
    MutexLock lock(&mu_);
    for (;; changed_.Wait(&mu_)) {
      const int64_t now = NowNs();
      if (!seconds_.empty()) {
        *exchange = seconds_.front();
        seconds_.pop_front();
        break;
      }
      const bool ending = now >= order_.end_ns || failed_;
      if (!ending && operations_ < order_.depth) {
        ++operations_;
        *exchange = {now, false};
        break;
      }
      if (ending && (failed_ || operations_ == 0)) {
        all_sent_ = true;
        changed_.NotifyAll();
        return false;
      }
    }
    under_way_.push_back(*exchange);
    changed_.NotifyAll();
    return true;
  }

  // Waits until a reply is to be received; false if there will be no more.
  bool AwaitReceive(Exchange* exchange) {
    MutexLock lock(&mu_);
    while (under_way_.empty() && !all_sent_) changed_.Wait(&mu_);
    if (under_way_.empty()) return false;
    *exchange = under_way_.front();
    under_way_.pop_front();
    return true;
  }

  // The reply has come.
  void OnReceived(Exchange exchange, Outcome* outcome) {
    MutexLock lock(&mu_);
    if (two_ && !exchange.second) {
      exchange.second = true;
      seconds_.push_back(exchange);
    } else {
      Count(order_, exchange.begin_ns, NowNs(), outcome);
      --operations_;
    }
    changed_.NotifyAll();
  }

  // The connection is gone.
  void Fail() {
    MutexLock lock(&mu_);
    failed_ = true;
    seconds_.clear();
    under_way_.clear();
    changed_.NotifyAll();
  }

 private:
  const Order order_;
  const bool two_;

  Mutex mu_;
  CondVar changed_;
  uint32_t operations_ ABSL_GUARDED_BY(mu_) = 0;         // Begun and not ended.
  std::deque<Exchange> seconds_ ABSL_GUARDED_BY(mu_);    // To be sent.
  std::deque<Exchange> under_way_ ABSL_GUARDED_BY(mu_);  // Sent, or being sent; replies come in this order.
  bool all_sent_ ABSL_GUARDED_BY(mu_) = false;
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
};

class RawExchange final : public Load {
 public:
  RawExchange(int fd, size_t memory_bytes)
      : fd_(fd), reader_(fd), sent_from_(memory_bytes), received_into_(memory_bytes) {}
  ~RawExchange() override { close(fd_); }

  absl::StatusOr<Outcome> Run(const Order& order) override {
    const bool both_large =
        order.depth * order.request_bytes > kBytesBuffered && order.depth * order.reply_bytes > kBytesBuffered;
    const bool send_may_wait_for_receive = order.depth > 1 && (both_large || order.second_request_bytes > 0);
    return send_may_wait_for_receive ? RunOnTwoThreads(order) : RunOnOneThread(order);
  }

 private:
  absl::StatusOr<Outcome> RunOnOneThread(const Order& order) {
    Outcome outcome;
    std::deque<Exchange> under_way;
    int64_t now = NowNs();
    while (now < order.end_ns || !under_way.empty()) {
      if (under_way.size() < order.depth && now < order.end_ns) {
        under_way.push_back({NowNs(), false});
        if (!Send(order, false)) return Lost();
        continue;
      }
      const int64_t begin_ns = under_way.front().begin_ns;
      under_way.pop_front();
      if (!Receive(order, false)) return Lost();
      if (order.second_request_bytes > 0 && !(Send(order, true) && Receive(order, true))) return Lost();
      now = NowNs();
      Count(order, begin_ns, now, &outcome);
    }
    return outcome;
  }

  // A thread that only sends lets the server go on sending replies while we send requests.
  absl::StatusOr<Outcome> RunOnTwoThreads(const Order& order) {
    Traffic traffic(order);
    std::thread sender([&] {
      for (Exchange exchange; traffic.AwaitSend(&exchange);) {
        if (!Send(order, exchange.second)) shutdown(fd_, SHUT_RDWR);  // The receiver is to notice.
      }
    });
    Outcome outcome;
    bool ok = true;
    for (Exchange exchange; ok && traffic.AwaitReceive(&exchange);) {
      ok = Receive(order, exchange.second);
      if (ok) traffic.OnReceived(exchange, &outcome);
    }
    if (!ok) traffic.Fail();
    sender.join();
    if (!ok) return Lost();
    return outcome;
  }

  static absl::Status Lost() { return absl::ErrnoToStatus(errno, "the limit's connection broke"); }

  bool Send(const Order& order, bool second) {
    const uint64_t bytes = second ? order.second_request_bytes : order.request_bytes;
    const MessageHead head{bytes, second ? order.second_reply_bytes : order.reply_bytes};
    return SendMessage(fd_, &head, sizeof(head), sent_from_.Next(bytes), bytes);
  }

  bool Receive(const Order& order, bool second) {
    const uint64_t bytes = second ? order.second_reply_bytes : order.reply_bytes;
    MessageHead head;
    return reader_.Read(&head, sizeof(head)) && reader_.Read(received_into_.Next(bytes), bytes);
  }

  const int fd_;
  SocketReader reader_;
  Memory sent_from_;
  Memory received_into_;
};

class MemoryCopy final : public Load {
 public:
  explicit MemoryCopy(size_t memory_bytes) : from_(memory_bytes / 2), to_(memory_bytes / 2) {}

  absl::StatusOr<Outcome> Run(const Order& order) override {
    Outcome outcome;
    int64_t now = NowNs();
    while (now < order.end_ns) {
      const int64_t begin = now;
      std::memcpy(to_.Next(order.request_bytes), from_.Next(order.request_bytes), order.request_bytes);
      now = NowNs();
      Count(order, begin, now, &outcome);
    }
    return outcome;
  }

 private:
  Memory from_;
  Memory to_;
};

}  // namespace

void ServeRaw(const Listener& listener, size_t memory_bytes) {
  for (;;) {
    const int fd = AcceptFrom(listener);
    if (fd >= 0) std::thread(ServeConnection, fd, memory_bytes).detach();
  }
}

Peer::MakeLoad RawLoad(const Listener& listener, size_t memory_bytes) {
  return [&listener, memory_bytes]() -> absl::StatusOr<std::unique_ptr<Load>> {
    LODESTONE_ASSIGN_OR_RETURN(const int fd, ConnectTo(listener));
    return std::make_unique<RawExchange>(fd, memory_bytes);
  };
}

Peer::MakeLoad MemcpyLoad(size_t memory_bytes) {
  return
      [memory_bytes]() -> absl::StatusOr<std::unique_ptr<Load>> { return std::make_unique<MemoryCopy>(memory_bytes); };
}

}  // namespace lodestone::bench
