// A child process whose output is read line by line.
//
// Not thread-safe. The child leads a process group of its own, so that a Ctrl-C at the terminal reaches only us, and is
// killed by the kernel if the thread that started it dies.
#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lodestone::psctl {

class Child {
 public:
  // Gets each line of the child's stdout and stderr, without its end.
  using OnLine = std::function<void(absl::string_view line)>;

  // Starts the program argv[0] (a path) with stdin empty. `name`, as "worker 1", is for messages. NOT_FOUND or so, with
  // the path, if it cannot be run.
  static absl::StatusOr<std::unique_ptr<Child>> Start(std::string name, const std::vector<std::string>& argv);
  // Kills the child's process group and waits for it if it still runs.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }
  // Readable when there is output; -1 once there will be none.
  int output_fd() const { return output_fd_; }
  bool running() const { return running_; }
  // REQUIRES: !running().
  bool succeeded() const;
  // Of a process that exited; -1 of one that a signal ended. REQUIRES: !running().
  int exit_code() const;
  // Of a process that a signal ended; 0 of one that exited. REQUIRES: !running().
  int signal() const;

  // Passes on the lines that have come, without waiting. A line beyond 64 KiB is cut in pieces.
  void ReadOutput(const OnLine& on_line);
  // Whether the child has ended; if so, passes on the rest of its output.
  bool Reap(const OnLine& on_line);
  // Sends `signal` to the child's process group. Does nothing once it has ended.
  void Signal(int signal) const;
  // "worker 1 (pid 7) failed with exit code 1: <the line that looks most like the reason>". REQUIRES: !running().
  std::string Outcome() const;

 private:
  Child(std::string name, pid_t pid, int output_fd) : name_(std::move(name)), pid_(pid), output_fd_(output_fd) {}
  void TakeLine(absl::string_view line, const OnLine& on_line);

  const std::string name_;
  const pid_t pid_;
  int output_fd_;
  bool running_ = true;
  int wait_status_ = 0;
  std::string partial_;                 // Output after the last line end.
  std::deque<std::string> last_lines_;  // The newest few.
};

}  // namespace lodestone::psctl
