// local_step or torch_step.py as a process of its own, which repeats steps when it is told to.
//
// Not thread-safe. The process ends with this object.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/harness/local_ps.h"
#include "tools/bench/harness/measure.h"
#include "tools/psctl/local/child_process.h"

namespace lodestone::bench {

class StepProgram {
 public:
  // Starts `argv`, with the file that it shall read requests from behind it. `name` is for messages.
  static absl::StatusOr<std::unique_ptr<StepProgram>> Start(const std::string& name, std::vector<std::string> argv);
  // The local_step that was built beside this program, with flags like {"--device", "cuda"}.
  static absl::StatusOr<std::unique_ptr<StepProgram>> StartLocal(const Options& options,
                                                                 const std::vector<std::string>& flags);
  ~StepProgram();
  StepProgram(const StepProgram&) = delete;
  StepProgram& operator=(const StepProgram&) = delete;

  // Repeats what `request` says ("deepfm/256-128 1024 adagrad step") for `seconds`; operations are steps.
  absl::StatusOr<Sample> Ask(const std::string& request, double seconds);

 private:
  StepProgram(std::unique_ptr<TemporaryFolder> folder, int requests, std::unique_ptr<psctl::Child> child)
      : folder_(std::move(folder)), requests_(requests), child_(std::move(child)) {}

  const std::unique_ptr<TemporaryFolder> folder_;
  const int requests_;
  const std::unique_ptr<psctl::Child> child_;
};

}  // namespace lodestone::bench
