// A watch on processes by their listening sockets, which distinguishes one that has died from one that cannot be
// reached.
//
// It keeps a TCP connection to each process, on which it says nothing. When that ends it connects again. Where the
// process was seen listening (or another one at its address, and it says that it listened; or it is certain that it
// did) and its machine now refuses connections, several times in a row, the process is gone. Nothing else means
// anything: no time-out, no machine that cannot be reached, no connection that is taken (the kernel takes those of a
// process that is stopped; and another process at the same address announces itself).
//
// Thread-safe. A thread of its own does everything; names are looked up on further ones, as that may take long.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/time_source.h"

namespace lodestone {

class ProcessWatch {
 public:
  // One life of a process, and where it listens, host:port.
  struct Process {
    uint64_t life = 0;
    std::string address;
    // It listened there before it was named here: it need not have been seen itself where another one was at this
    // address.
    bool announced = false;
    // It listens there or is gone, even if nobody was ever seen there.
    bool certain = false;
    bool operator==(const Process&) const = default;
  };
  // One that is gone.
  struct Gone {
    Process process;
    int64_t ended_ms = 0;  // How long ago its connection ended.
    bool doubted = false;  // Set by a listener that knows that it lives: it is watched on. The others are not.
  };
  // Those that ended together are reported together. Runs on the watch's thread, and may call Watch.
  using OnGone = std::function<void(std::span<Gone>)>;

  explicit ProcessWatch(OnGone on_gone);
  // No OnGone runs after it.
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  // Watches these from now on. What was seen of those that were watched already, the same lives at the same addresses,
  // still counts.
  void Watch(std::vector<Process> processes);

 private:
  class Target;

  void Run();
  // Takes over what Watch was called with; false: the watch ends. `seen`: addresses where processes listened.
  bool TakeOrders(const std::set<std::string>& seen, std::vector<std::unique_ptr<Target>>* targets);
  // Tells of those that are gone, and drops them.
  void TellGone(std::vector<std::unique_ptr<Target>>* targets) const;

  // Constant.
  const OnGone on_gone_;
  const int wake_;  // An eventfd.

  Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool ordered_ ABSL_GUARDED_BY(mu_) = false;  // There is something new in processes_.
  std::vector<Process> processes_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace lodestone
