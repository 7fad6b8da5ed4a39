// A process of the benchmark's own that puts load on something when it is told to: forked from the benchmark, so that
// its CPU time is its own, and steered through a socket.
//
// Not thread-safe. The benchmark itself starts no threads and touches no gRPC, which is why it may fork.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lodestone::bench {

// Nanoseconds of CLOCK_MONOTONIC, which all processes share.
int64_t NowNs();

// CPU time, user and system, that all threads of a process have used, in seconds; 0 if there is no such process. Finer
// than /proc/PID/stat, which counts in ticks of 10 ms.
double CpuSeconds(pid_t pid);

// What a peer is to do. Times are NowNs's; the load begins at once, operations that end in [start_ns, end_ns) count,
// and those under way at the end are awaited.
struct Order {
  uint32_t operation = 0;      // What the load makes of it.
  uint32_t depth = 1;          // Operations outstanding at a time.
  uint64_t request_bytes = 0;  // Raw loads only: payload of a request and of its reply, …
  uint64_t reply_bytes = 0;
  uint64_t second_request_bytes = 0;  // … and of those that follow once that has come; 0: none do.
  uint64_t second_reply_bytes = 0;
  uint32_t tables = 1;       // Rows: that the keys of an operation are of.
  bool repeat_keys = false;  // Rows: the same lists of keys again and again, instead of others every time.
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

// What it did.
struct Outcome {
  uint64_t operations = 0;
  uint64_t started = 0;             // Operations, those that did not end in time included; 0 where that is not counted.
  uint64_t bytes_copied = 0;        // By the client, in all operations; 0 where that is not counted.
  std::vector<float> latencies_us;  // One for each of the operations, if they have one.
};

// What runs in a peer's process.
class Load {
 public:
  virtual ~Load() = default;
  virtual absl::StatusOr<Outcome> Run(const Order& order) = 0;
};

class Peer {
 public:
  // Starts a process that makes its load, and returns when it has. `name` is for messages: "client 1".
  using MakeLoad = std::function<absl::StatusOr<std::unique_ptr<Load>>()>;
  static absl::StatusOr<std::unique_ptr<Peer>> Start(std::string name, const MakeLoad& make_load);
  // Starts a process that runs `serve` until the peer is destroyed.
  static absl::StatusOr<std::unique_ptr<Peer>> StartServer(std::string name, const std::function<void()>& serve);
  // Lets the load end and waits for it; kills a server, and a client that does not end in time.
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  pid_t pid() const { return pid_; }
  // Hands out an order. After each comes one Collect.
  absl::Status Send(const Order& order);
  absl::StatusOr<Outcome> Collect();

 private:
  Peer(std::string name, pid_t pid, int fd) : name_(std::move(name)), pid_(pid), fd_(fd) {}

  const std::string name_;
  const pid_t pid_;
  const int fd_;  // -1: a server.
};

// A function that runs once in a process of its own: for what the benchmark's own process does not touch.
class Errand {
 public:
  using Run = std::function<absl::StatusOr<std::string>()>;
  static absl::StatusOr<std::unique_ptr<Errand>> Start(std::string name, const Run& run);
  ~Errand();  // Kills it, if nobody has waited.
  Errand(const Errand&) = delete;
  Errand& operator=(const Errand&) = delete;

  // Whether Wait would return at once.
  bool ended() const;
  // What the function returned. Call once.
  absl::StatusOr<std::string> Wait();

 private:
  Errand(std::string name, pid_t pid, int fd) : name_(std::move(name)), pid_(pid), fd_(fd) {}

  const std::string name_;
  const pid_t pid_;
  const int fd_;
};

}  // namespace lodestone::bench
