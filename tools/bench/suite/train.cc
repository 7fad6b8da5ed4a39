// train: whole training steps, ps and workers as psctl starts them; and beside the same steps without a server.
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
#include "common/base/random.h"
#include "common/base/status.h"
#include "tools/bench/harness/local_ps.h"
#include "tools/bench/step/step_program.h"
#include "tools/bench/step/step_sizes.h"
#include "tools/bench/suite/suites.h"
#include "tools/psctl/local/child_process.h"
#include "tools/psctl/local/run_summary.h"
#include "worker/data/zipf.h"

namespace lodestone::bench {
namespace {

constexpr int kCpuBatch = 1024;
constexpr int kDeviceBatch = 8192;  // A device wants large batches.
constexpr int kPollMs = 5;          // CPU time between the last look at a process and its end is not counted.

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
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<psctl::Child> psctl, psctl::Child::Start("psctl", argv));
  FamilyCpu cpu(psctl->pid());
  while (!psctl->Reap([](absl::string_view) {})) {
    cpu.Look();
    psctl->ReadOutput([](absl::string_view) {});
    poll(nullptr, 0, kPollMs);
  }
  if (!psctl->succeeded()) return absl::InternalError(psctl->Outcome());
  LODESTONE_ASSIGN_OR_RETURN(const psctl::RunSummary summary, psctl::ReadSummary(summary_file));
  return Sample{.seconds = summary.seconds,
                .operations = static_cast<double>(summary.samples),
                .client_cpu_seconds = cpu.Seconds(/*servers=*/false),
                .server_cpu_seconds = cpu.Seconds(/*servers=*/true),
                .latencies_us = {}};
}

// Clicks as local_step draws them, in Criteo's format: numbers below 100, so that none is missing.
absl::Status WriteClicks(const std::string& path, int samples) {
  std::ofstream file(path);
  const worker::Zipf zipf(kValuesPerField, kZipfExponent);
  for (uint64_t s = 0; s < static_cast<uint64_t>(samples); ++s) {
    std::string line = absl::StrCat(RandomUniform(s, 0) < kPositiveShare ? 1 : 0);
    for (uint64_t i = 1; i <= kNumeric; ++i) absl::StrAppend(&line, "\t", RandomBits(s, i) % 100);
    for (uint64_t f = 0; f < kFields; ++f) {
      absl::StrAppend(&line, "\t", absl::Hex(zipf.Draw(StreamSeed(s, f + 1), 0), absl::kZeroPad8));
    }
    file << line << "\n";
  }
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  return absl::OkStatus();
}

// DeepFM with one ps and one worker, beside one thread (with the device, if the worker has one) without a server.
absl::Status RunBesideLocal(const Options& options, const AddRow& add) {
  const bool on_cpu = options.device == "cpu";
  const int batch = on_cpu ? kCpuBatch : kDeviceBatch;
  const std::string name =
      absl::StrCat("train/", on_cpu ? "" : options.device + "/", "deepfm/256-128/batch", batch, "/1ps/1worker");
  if (!IsWanted(options, name)) return absl::OkStatus();
  std::vector<std::string> flags, sets = options.sets;
  if (!on_cpu) {
    flags = {"--device", options.device};
    sets.push_back("worker.device=" + options.device);
  }
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<StepProgram> local, StepProgram::StartLocal(options, flags));
  const std::string request = absl::StrCat("deepfm/256-128 ", batch, " adagrad step");
  LODESTONE_RETURN_IF_ERROR(local->Ask(request, 0).status());  // Before the clicks, which take seconds.
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<TemporaryFolder> folder, TemporaryFolder::Create());
  const std::string clicks = folder->File("clicks"), config = folder->File("config.yaml");
  LODESTONE_RETURN_IF_ERROR(WriteClicks(clicks, options.quick ? 20 * batch : 100 * batch));
  std::ofstream(config) << "cluster: {servers: 1, workers: 1}\n"
                        << "model:\n  type: deepfm\n  embedding_dim: " << kDim << "\n  hidden: [256, 128]\n"
                        << "  optimizer: {adagrad: {}, learning_rate: 0.05}\n"
                        << "data: {format: criteo, train: [" << clicks << "]}\n"
                        << "train: {epochs: 2, batch_size: " << batch << ", evaluate_train_samples_max: 0}\n";
  const Measurement without_server = [&]() -> absl::StatusOr<Sample> {
    LODESTONE_ASSIGN_OR_RETURN(Sample sample, local->Ask(request, 1e-3 * options.window_ms));
    sample.operations *= batch;
    return sample;
  };
  // No CPU times: those of the cluster are of start, data and end too.
  const Scale scale{.unit = "samples/s", .cpu_unit = "", .amount = 1, .bytes = 0, .count_messages = false};
  LODESTONE_ASSIGN_OR_RETURN(
      Row row, MeasureInTurns(
                   options, "train", name, scale, [&] { return Train(options, config, sets); }, without_server));
  add(std::move(row));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunTrain(const Options& options, const AddRow& add) {
  LODESTONE_RETURN_IF_ERROR(RunBesideLocal(options, add));
  const std::string name =
      absl::StrCat("train/", options.device == "cpu" ? "" : options.device + "/", "deepfm/2ps/2workers");
  if (!IsWanted(options, name)) return absl::OkStatus();
  const std::string config = options.root + "/configs/local.yaml";
  if (access(config.c_str(), R_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(config, ": no such file; --root names the project's folder"));
  }
  const int samples = options.quick ? 40'000 : 600'000;
  std::vector<std::string> sets = {absl::StrCat("data.generated.train_samples=", samples),
                                   "data.generated.test_samples=1000", "train.evaluate_train_samples_max=0"};
  if (options.device != "cpu") sets.push_back("worker.device=" + options.device);
  sets.insert(sets.end(), options.sets.begin(), options.sets.end());
  const Scale scale{.unit = "samples/s", .cpu_unit = "s/Msamples", .amount = 1, .bytes = 0, .count_messages = false};
  LODESTONE_ASSIGN_OR_RETURN(Row row,
                             MeasureInTurns(
                                 options, "train", name, scale, [&] { return Train(options, config, sets); }, nullptr));
  for (const char* metric : {kClientCpu, kServerCpu}) {  // Per sample so far.
    for (double& value : row.values[metric]) value *= 1e6;
  }
  add(std::move(row));
  return absl::OkStatus();
}

}  // namespace lodestone::bench
