// The kernel of the simulation: a clock, a queue of events in (time, order) sequence, processes, and their threads as
// fibers, all in one thread of the operating system. Everything random is drawn from one seed, so that the same seed
// gives the same trace.
//
// A fiber runs until it waits (a CondVar, a join, a lock that another one has, the disk); then the next event runs, and
// time passes only between events. What a process gets from outside (messages, answers) comes as events, each on a
// fiber of its own. A process that is killed gets no more of them; its fibers run on until they end, and reach nobody.
// One that is stopped runs nothing until it goes on.
//
// Used by one thread. There is one kernel at a time.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/simulation.h"

namespace lodestone::simulation {

class Kernel;

// One life of a process.
struct Process {
  std::string name;
  uint32_t machine = 0;
  bool alive = true;
  bool stopped = false;
  std::string boot;                         // Of its machine.
  std::vector<std::function<void()>> held;  // What is to run when it goes on.
};
using ProcessRef = std::shared_ptr<Process>;

class Kernel final : public Simulation {
 public:
  // `trace`: the trace goes to standard output.
  Kernel(uint64_t seed, bool trace);
  // REQUIRES: no fiber is left.
  ~Kernel() override;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  int64_t NowUs() const { return now_us_; }
  // Runs what comes until then, or until `done` says so.
  void RunUntil(int64_t until_us, const std::function<bool()>& done = nullptr);

  // A number in [0, below).
  uint64_t Draw(uint64_t below);
  // A number in [low, high]. REQUIRES: low <= high.
  int64_t Between(int64_t low, int64_t high);
  bool Chance(double probability) { return static_cast<double>(Draw(1'000'000)) < probability * 1e6; }

  // Whether a fiber runs, and this is it: not a thread that it has started, and waits for.
  bool in_fiber() const { return running_ != nullptr && std::this_thread::get_id() == thread_; }
  // The process that the running fiber is of; outside of fibers, the world.
  const ProcessRef& process() const;
  // The world itself: never stops.
  const ProcessRef& world() const { return world_; }

  // Runs `event` on a fiber of `process` in `us`, unless it is dead then (or `also_dead`).
  void After(int64_t us, const ProcessRef& process, std::function<void()> event, bool also_dead = false);
  // Waits for so long, or for less once the process is dead.
  void Sleep(int64_t us);
  // What waits in `process` looks again.
  void WakeAll(const Process* process);
  // Lets what was held run.
  void Continue(const ProcessRef& process);
  // Waits until no event of the process runs.
  void AwaitEventsOf(const Process* process);

  // A line of the trace: what happened, in words that depend on the seed alone.
  void Trace(absl::string_view line);
  uint64_t hash() const { return hash_; }
  uint64_t events() const { return events_; }

  // Simulation.
  int64_t NowMs() const override { return now_us_ / 1000; }
  ThreadId StartThread(std::function<void()> body) override;
  void JoinThread(ThreadId thread) override;
  void Wait(const void* on, int64_t until_ms) override;
  void Notify(const void* on) override;
  std::string BootId() const override { return process()->boot; }

 private:
  struct Fiber {
    ThreadId id = 0;
    ProcessRef process;
    std::function<void()> body;
    ucontext_t context;
    char* stack = nullptr;
    bool is_event = false;
    bool done = false;
    bool ready = false;        // An event is to resume it.
    const void* on = nullptr;  // Waits for it.
    uint64_t wait = 0;         // Numbers its waits.
  };
  struct Event {
    int64_t at_us;
    uint64_t order;
    mutable std::function<void()> run;
    ProcessRef process;
    bool operator<(const Event& other) const {
      return at_us != other.at_us ? at_us > other.at_us : order > other.order;
    }
  };

  void Push(int64_t us, const ProcessRef& process, std::function<void()> run);
  Fiber* Make(const ProcessRef& process, std::function<void()> body);
  void Resume(Fiber* fiber);
  void WakeSoon(Fiber* fiber);
  void WaitUs(const void* on, int64_t until_us);
  static void Enter(uint32_t high, uint32_t low);
  void End(Fiber* fiber);

  const std::thread::id thread_ = std::this_thread::get_id();
  uint64_t random_;
  const bool trace_;
  int64_t now_us_ = 1'000'000'000;
  uint64_t order_ = 0;
  uint64_t events_ = 0;
  uint64_t hash_ = 14695981039346656037u;
  std::priority_queue<Event> queue_;
  ProcessRef world_;
  ThreadId last_id_ = 0;
  std::map<ThreadId, std::unique_ptr<Fiber>> fibers_;
  std::unordered_map<const void*, std::set<ThreadId>> waiting_;
  Fiber* running_ = nullptr;
  ucontext_t main_;
  std::vector<char*> stacks_;  // Free.
};

}  // namespace lodestone::simulation
