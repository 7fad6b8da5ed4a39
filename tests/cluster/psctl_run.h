// Runs `psctl` in tests, as a user would.
//
// Not thread-safe. What psctl has started dies with it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/psctl/local/child_process.h"
#include "tools/psctl/local/run_summary.h"

namespace lodestone {

class PsctlRun {
 public:
  // Starts psctl with these arguments, after the program's name.
  explicit PsctlRun(const std::vector<std::string>& arguments);

  // Waits until the output holds `text`, or is what `holds` wants. False if psctl ended without it.
  bool WaitForOutput(const std::string& text);
  bool WaitForOutput(const std::function<bool(const std::string& output)>& holds);
  // Waits for the end. Returns "ended" or "failed with exit code 2: …", see Child::Outcome.
  std::string WaitForEnd();
  // Waits for output for so long at most (-1: for as long as it takes), and takes it.
  void Read(int timeout_ms = -1);
  // Everything that psctl and its processes have said.
  const std::string& output() const { return output_; }
  void Signal(int signal) { child_->Signal(signal); }
  // Process ids of the children of psctl whose program is called `program` ("" for all).
  std::vector<pid_t> Processes(const std::string& program) const;

 private:
  std::string output_;
  std::unique_ptr<psctl::Child> child_;
};

// The path of a file of this project, "configs/local.yaml".
std::string ProjectFile(const std::string& path);
// A path for a file of this test's own.
std::string TestFile(const std::string& name);
// Whether the process still runs (a zombie does not).
bool Lives(pid_t pid);
// Runs `psctl local configs/CONFIG.yaml` with these further arguments and returns its result; the test fails if psctl
// does.
psctl::RunSummary TrainLocally(const std::string& config, const std::vector<std::string>& arguments);
// The value of a metric; the test fails if there is none.
double MetricOf(const psctl::Metrics& metrics, const std::string& name);

}  // namespace lodestone
