// The processes of a cluster on this machine: starts them, passes on what they say, notices how they end, stops them.
//
// Single-threaded; every method that waits also passes on output and watches for signals and for processes that fail.
// The processes live as long as this object: its destructor kills and reaps what still runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/psctl/local/child_process.h"

namespace lodestone::psctl {

// The role of a process. Workers end when they are done, servers on SIGTERM.
enum class Role { kServer, kWorker };

class LocalCluster {
 public:
  // `on_line` gets each line of a process, `on_tick` is called at least every 200 ms while a method waits. Blocks
  // SIGINT, SIGTERM, SIGHUP and SIGCHLD for this thread, and so for those that it starts later: construct this before
  // any.
  using OnLine = std::function<void(const Child& child, absl::string_view line)>;
  LocalCluster(OnLine on_line, std::function<void()> on_tick);
  ~LocalCluster();
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  // Starts a process, also while others run; argv[0] is the program's path. A worker that a signal ends, other than by
  // this object, is started again with `argv_again`; empty: it is lost.
  absl::Status Start(Role role, std::string name, const std::vector<std::string>& argv,
                     std::vector<std::string> argv_again = {});

  // Waits until `condition` holds. CANCELLED after Ctrl-C or another request to end; INTERNAL, with the reason, if a
  // process has failed; DEADLINE_EXCEEDED, naming `what`, after `timeout_ms` (0: never).
  absl::Status WaitFor(const std::function<bool()>& condition, const std::string& what, int timeout_ms);

  // A worker that is lost is the end of the run, unless so many others run or have come to its end.
  void SetWorkersMin(uint32_t workers) { workers_min_ = workers; }

  // Whether all workers have come to the end of the run, with all samples trained or not, but for those that are lost.
  bool WorkersDone() const;
  uint32_t RunningWorkers() const;
  // By name: whether it is lost, and the run goes on.
  bool IsLost(const std::string& name) const;

  // After WaitFor was CANCELLED by a first Ctrl-C: asks the workers to finish, that is to evaluate what they have
  // trained, and lets WaitFor wait again, until a second Ctrl-C. False if what came was more than that: another request
  // to end, or a second Ctrl-C.
  bool AskToFinish();

  // Asks the servers to end, and waits, as their last checkpoint may take a while; calls `on_slow` when that has taken
  // `slow_ms`. CANCELLED and INTERNAL as WaitFor. For the end of a good run.
  absl::Status StopServers(int slow_ms, const std::function<void()>& on_slow);

  // Ends everything: asks the workers, then the servers, then kills. A further Ctrl-C kills at once. No process is left
  // when it returns. For the end of a bad run.
  void StopAll();

 private:
  struct Member {
    Role role;
    std::unique_ptr<Child> child;
    std::vector<std::string> argv_again;
    bool lost = false;
  };

  // Waits up to `wait_ms` for something to happen and deals with it.
  void Pump(int wait_ms);
  void ReadSignals();
  void ReapChildren();
  // Whether a process that has ended was started again.
  bool StartAgain(Member* member);
  // Whether the run goes on without a process that has ended; notes that.
  bool GoesOnWithout(Member* member);
  void Signal(Role role, int signal);
  bool Running(Role role) const;
  // Pumps until no `role` runs, or the grace has passed, or a further interrupt came. True in the first case.
  bool AwaitEnd(Role role, int grace_ms);

  const OnLine on_line_;
  const std::function<void()> on_tick_;
  int signal_fd_ = -1;
  std::vector<Member> members_;  // Servers first.
  int interrupts_ = 0;           // Ctrl-C and other requests to end so far, and
  int interrupts_kept_ = 0;      // those that WaitFor does not mind.
  bool asked_to_end_ = false;    // By SIGTERM or SIGHUP.
  bool servers_may_end_ = false;
  uint32_t workers_min_ = UINT32_MAX;
  std::string failure_;  // Of the first process that failed; empty: none.
};

}  // namespace lodestone::psctl
