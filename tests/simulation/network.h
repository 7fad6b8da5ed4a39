// The simulated network: calls, and connections that carry messages in order in both directions, between processes on
// machines. Each message takes its own time; those of different connections overtake each other. Machines can be cut
// off from each other: what is sent meanwhile arrives afterwards, if its receiver still waits for it. Connections can
// be torn, with what is on the way.
//
// Used by one thread. The kernel must outlive it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/simulation/kernel.h"

namespace lodestone::simulation {

class Network;

// A connection between two processes. Each has a Side: 0 opened it, 1 took it.
class Line : public std::enable_shared_from_this<Line> {
 public:
  using OnMessage = std::function<void(const std::string&)>;
  // The other side has closed it, or is gone; nothing comes any more.
  using OnClosed = std::function<void(const absl::Status&)>;

  Line(Network* network, const ProcessRef& opener, const ProcessRef& taker);

  // Where what arrives at a side goes, as events of its process; `also_dead`: of a dead one too.
  void Listen(int side, OnMessage on_message, OnClosed on_closed, bool also_dead = false);
  // From a side to the other.
  void Send(int side, std::string message);
  // Closes a side; the other hears of it after what was sent.
  void Close(int side, const absl::Status& status);
  // Both sides find it closed; what is on the way is lost.
  void Tear();
  bool closed(int side) const { return ends_[side].closed; }
  const ProcessRef& process(int side) const { return ends_[side].process; }

 private:
  friend class Network;
  struct Item {
    std::string message;
    std::optional<absl::Status> end;
  };
  struct End {
    ProcessRef process;
    OnMessage on_message;
    OnClosed on_closed;
    bool also_dead = false;
    bool listens = false;  // What comes before is kept.
    bool closed = false;   // Takes and sends nothing more.
    bool telling = false;  // Its end is on the way.
    int64_t arrival_us = 0;
    std::deque<Item> coming;
  };

  void Queue(int to, Item item, int64_t us);
  void Arrive(int to);

  Network* const network_;
  End ends_[2];
};
using LineRef = std::shared_ptr<Line>;

class Network {
 public:
  explicit Network(Kernel* kernel) : kernel_(kernel) {}

  // How long messages take, in microseconds: mostly the first, sometimes up to the second.
  void SetDelays(int64_t usual_us, int64_t most_us) {
    usual_us_ = usual_us;
    most_us_ = most_us;
  }
  int64_t DelayUs();
  // Machines that do not reach each other.
  void Cut(uint32_t a, uint32_t b) { cuts_.insert(std::minmax(a, b)); }
  void Heal() { cuts_.clear(); }
  bool IsCut(uint32_t a, uint32_t b) const { return a != b && cuts_.contains(std::minmax(a, b)); }
  // Answers and calls that get lost.
  void SetLoss(double probability) { loss_ = probability; }

  LineRef Connect(const ProcessRef& opener, const ProcessRef& taker);
  // Tears some connections between two machines.
  void TearLines(uint32_t a, uint32_t b);
  // The process has ended: its peers hear of it after `us`.
  void EndLinesOf(const ProcessRef& process, int64_t us);

  // A call from the running process to `callee` (null: nobody is there), which answers by calling `answer`, once.
  // UNAVAILABLE or DEADLINE_EXCEEDED if none comes.
  using Answer = std::function<void(absl::StatusOr<std::string>)>;
  using Handler = std::function<void(const std::string& request, Answer answer)>;
  absl::StatusOr<std::string> Call(const ProcessRef& callee, const Handler& handler, std::string request,
                                   int64_t timeout_ms);

  Kernel* kernel() const { return kernel_; }

 private:
  // Runs `event` on `to` once what `from` sends now has arrived there.
  void Carry(const ProcessRef& from, const ProcessRef& to, std::function<void()> event);

  Kernel* const kernel_;
  int64_t usual_us_ = 300;
  int64_t most_us_ = 3000;
  double loss_ = 0;
  std::set<std::pair<uint32_t, uint32_t>> cuts_;
  std::vector<std::weak_ptr<Line>> lines_;
};

}  // namespace lodestone::simulation
