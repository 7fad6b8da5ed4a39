// The seam of the simulation (tests/simulation), which runs many processes in one thread: what they take for threads,
// waits, clocks and the machine they run on is its own. There is none in any other program, and nothing here is asked
// for where a process does not wait anyway.
//
// Not thread-safe: one thread at a time runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <utility>

namespace lodestone {

class Simulation {
 public:
  using ThreadId = uint64_t;  // 0 names none.
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  virtual ~Simulation() = default;

  // The one that runs this process; null: it is a real one.
  static Simulation* Current() { return current_.load(std::memory_order_relaxed); }
  static void SetCurrent(Simulation* simulation) { current_.store(simulation, std::memory_order_relaxed); }

  virtual int64_t NowMs() const = 0;
  virtual ThreadId StartThread(std::function<void()> body) = 0;
  // Waits until the body has returned.
  virtual void JoinThread(ThreadId thread) = 0;
  // Waits until Notify is called with `on`, or until `until_ms` (kNever: without end); perhaps for less.
  virtual void Wait(const void* on, int64_t until_ms) = 0;
  virtual void Notify(const void* on) = 0;
  // Names the boot of the machine that this process runs on (common/io/boot_id.h).
  virtual std::string BootId() const = 0;

 private:
  static inline std::atomic<Simulation*> current_{nullptr};
};

// A thread of a process: std::thread, or one of the simulation.
class Thread {
 public:
  Thread() = default;
  template <typename Body>
  explicit Thread(Body body) {
    if (Simulation* const simulation = Simulation::Current(); simulation != nullptr) {
      simulated_ = simulation->StartThread(std::move(body));
    } else {
      thread_ = std::thread(std::move(body));
    }
  }
  Thread(Thread&& other) noexcept : thread_(std::move(other.thread_)), simulated_(std::exchange(other.simulated_, 0)) {}
  Thread& operator=(Thread&& other) noexcept {
    thread_ = std::move(other.thread_);
    simulated_ = std::exchange(other.simulated_, 0);
    return *this;
  }

  bool joinable() const { return simulated_ != 0 || thread_.joinable(); }
  void join() {
    if (simulated_ == 0) return thread_.join();
    Simulation::Current()->JoinThread(std::exchange(simulated_, 0));
  }

 private:
  std::thread thread_;
  Simulation::ThreadId simulated_ = 0;
};

}  // namespace lodestone
