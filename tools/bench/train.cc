// train: whole training steps, ps and workers as psctl starts them.
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "tools/bench/local_ps.h"
#include "tools/bench/suites.h"
#include "tools/psctl/child.h"
#include "tools/psctl/summary.h"

namespace lodestone::bench {
namespace {

constexpr int kPollMs = 5;  // CPU time between the last look at a process and its end is not counted.

// CPU seconds of the processes that psctl has started.
class FamilyCpu {
 public:
  explicit FamilyCpu(pid_t parent) : children_file_(absl::StrCat("/proc/", parent, "/task/", parent, "/children")) {}

  void Look() {
    std::ifstream file(children_file_);
    for (pid_t pid = 0; file >> pid;) {
      if (roles_.count(pid) == 0) {
        std::ifstream command(absl::StrCat("/proc/", pid, "/cmdline"));
        std::string program;
        std::getline(command, program, '\0');
        roles_[pid] = absl::EndsWith(program, "/ps");
      }
      if (const double used = CpuSeconds(pid); used > 0) seconds_[pid] = used;
    }
  }

  double Seconds(bool servers) const {
    double sum = 0;
    for (const auto& [pid, seconds] : seconds_) sum += roles_.at(pid) == servers ? seconds : 0;
    return sum;
  }

 private:
  const std::string children_file_;
  std::map<pid_t, bool> roles_;  // Whether it is a ps. (Between fork and exec it is still psctl: never a ps's path.)
  std::map<pid_t, double> seconds_;
};

// Trains once; operations are samples, seconds those of the training alone; CPU time is that of the whole run.
absl::StatusOr<Sample> Train(const Options& options, const std::string& config, const std::vector<std::string>& sets) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<TemporaryFolder> folder, TemporaryFolder::Create());
  const std::string summary_file = folder->File("summary.json");
  std::vector<std::string> argv = {options.psctl_binary, "local", config, "--quiet", "--summary", summary_file};
  for (const std::string& set : sets) {
    argv.push_back("--set");
    argv.push_back(set);
  }
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<Child> psctl, Child::Start("psctl", argv));
  FamilyCpu cpu(psctl->pid());
  while (!psctl->Reap([](absl::string_view) {})) {
    cpu.Look();
    psctl->ReadOutput([](absl::string_view) {});
    poll(nullptr, 0, kPollMs);
  }
  if (!psctl->succeeded()) return absl::InternalError(psctl->Outcome());
  LODESTONE_ASSIGN_OR_RETURN(const RunSummary summary, ReadSummary(summary_file));
  return Sample{.seconds = summary.seconds,
                .operations = static_cast<double>(summary.samples),
                .client_cpu_seconds = cpu.Seconds(/*servers=*/false),
                .server_cpu_seconds = cpu.Seconds(/*servers=*/true),
                .latencies_us = {}};
}

}  // namespace

absl::Status RunTrain(const Options& options, const AddRow& add) {
  const std::string config = options.root + "/configs/local.yaml";
  if (access(config.c_str(), R_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(config, ": no such file; --root names the project's folder"));
  }
  const int samples = options.quick ? 40'000 : 600'000;
  std::vector<std::string> sets = {absl::StrCat("data.generated.train_samples=", samples),
                                   "data.generated.test_samples=1000", "train.evaluate_train_samples_max=0"};
  sets.insert(sets.end(), options.sets.begin(), options.sets.end());
  const Scale scale{.unit = "samples/s", .cpu_unit = "s/Msamples", .amount = 1, .bytes = 0, .count_messages = false};
  LODESTONE_ASSIGN_OR_RETURN(Row row, MeasureInTurns(
                                          options, "train", "train/deepfm/2ps/2workers", scale,
                                          [&] { return Train(options, config, sets); }, nullptr));
  for (const char* metric : {kClientCpu, kServerCpu}) {  // Per sample so far.
    Spread& spread = row.values[metric];
    spread = {1e6 * spread.median, 1e6 * spread.min, 1e6 * spread.max};
  }
  add(std::move(row));
  return absl::OkStatus();
}

}  // namespace lodestone::bench
