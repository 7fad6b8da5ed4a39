// step: training steps without a server, beside the matrix products that they consist of, and beside PyTorch.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <sstream>
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

namespace lodestone::bench {
namespace {

// An answer comes after the time asked for, a quarter of it as warm-up, a step of each, and, the first time, the
// drawing of the data.
constexpr int64_t kAnswerNsMax = 180'000'000'000;
constexpr int kPollMs = 100;

// local_step or torch_step.py, which answer requests line by line.
class StepProgram {
 public:
  static absl::StatusOr<std::unique_ptr<StepProgram>> Start(const std::string& name, std::vector<std::string> argv) {
    LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<TemporaryFolder> folder, TemporaryFolder::Create());
    const std::string requests = folder->File("requests");
    if (mkfifo(requests.c_str(), 0600) != 0) return absl::ErrnoToStatus(errno, requests);
    const int fd = open(requests.c_str(), O_RDWR | O_CLOEXEC);  // For reading too: else it would wait for a reader.
    if (fd < 0) return absl::ErrnoToStatus(errno, requests);
    argv.push_back(requests);
    absl::StatusOr<std::unique_ptr<Child>> child = Child::Start(name, argv);
    if (!child.ok()) {
      close(fd);
      return child.status();
    }
    return std::unique_ptr<StepProgram>(new StepProgram(std::move(folder), fd, *std::move(child)));
  }
  ~StepProgram() { close(requests_); }
  StepProgram(const StepProgram&) = delete;
  StepProgram& operator=(const StepProgram&) = delete;

  // Repeats what `request` says ("deepfm/256-128 1024 adagrad step") for `seconds`.
  absl::StatusOr<Sample> Ask(const std::string& request, double seconds) {
    const std::string line = absl::StrCat(request, " ", seconds, "\n");
    if (write(requests_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
      return absl::ErrnoToStatus(errno, absl::StrCat("asking ", child_->name()));
    }
    std::string answer;
    const auto take = [&](absl::string_view text) {
      if (absl::StartsWith(text, "ok ") || absl::StartsWith(text, "error: ")) answer = std::string(text);
    };
    const int64_t deadline_ns = NowNs() + kAnswerNsMax;
    while (answer.empty() && !child_->Reap(take)) {
      if (NowNs() > deadline_ns) {
        return absl::DeadlineExceededError(absl::StrCat(child_->name(), ": no answer to ", request));
      }
      pollfd output = {child_->output_fd(), POLLIN, 0};
      poll(&output, 1, kPollMs);
      child_->ReadOutput(take);
    }
    if (answer.empty()) return absl::InternalError(child_->Outcome());
    Sample sample;
    std::string word;
    if (std::istringstream(answer) >> word >> sample.operations >> sample.seconds >> sample.client_cpu_seconds) {
      return sample;
    }
    return absl::FailedPreconditionError(absl::StrCat(child_->name(), ": ", answer));
  }

 private:
  StepProgram(std::unique_ptr<TemporaryFolder> folder, int requests, std::unique_ptr<Child> child)
      : folder_(std::move(folder)), requests_(requests), child_(std::move(child)) {}

  const std::unique_ptr<TemporaryFolder> folder_;
  const int requests_;
  const std::unique_ptr<Child> child_;
};

struct Case {
  const char* model;
  int batch;
  const char* optimizer;
};

std::vector<Case> Cases(bool quick) {
  if (quick) return {{"deepfm/256-128", 1024, "adagrad"}, {"mlp/512-256", 128, "adagrad"}};
  std::vector<Case> cases;
  for (const char* model : {"deepfm/256-128", "deepfm/1024-512-256", "dlrm/256-128", "dlrm/1024-512-256"}) {
    for (const int batch : {1 << 10, 4 << 10, 16 << 10, 64 << 10}) cases.push_back({model, batch, "adagrad"});
  }
  for (const char* optimizer : {"adagrad", "sgd"}) {
    for (const int batch : {128, 1 << 10, 8 << 10}) cases.push_back({"mlp/512-256", batch, optimizer});
  }
  return cases;
}

// Two rows: a step beside its matrix products and, if there is PyTorch, beside its step.
absl::Status Measure(const Options& options, const Case& of, StepProgram* ours, StepProgram* torch, const AddRow& add) {
  const std::string name = absl::StrCat("step/", of.model, "/batch", of.batch, "/", of.optimizer);
  if (!IsWanted(options, name)) return absl::OkStatus();
  const std::string request = absl::StrCat(of.model, " ", of.batch, " ", of.optimizer);
  const double seconds = 1e-3 * options.window_ms;
  std::vector<Measurement> measurements = {[&] { return ours->Ask(request + " step", seconds); },
                                           [&] { return ours->Ask(request + " products", seconds); }};
  if (torch != nullptr) measurements.push_back([&] { return torch->Ask(request + " step", seconds); });
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<std::vector<Sample>> samples, TakeTurns(options, name, measurements));
  const Scale scale{
      .unit = "ksamples/s", .cpu_unit = "s/ksamples", .amount = 1e-3 * of.batch, .bytes = 0, .count_messages = false};
  add(MakeRow("step", name + "/products", scale, samples[0], samples[1]));
  if (torch != nullptr) add(MakeRow("step", name + "/torch", scale, samples[0], samples[2]));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunStep(const Options& options, const AddRow& add) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<StepProgram> ours,
                             StepProgram::Start("local_step", {options.benchmark_folder + "/local_step"}));
  const std::string script = options.root + "/tools/bench/torch_step.py";
  if (access(script.c_str(), R_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(script, ": no such file; --root names the project's folder"));
  }
  absl::StatusOr<std::unique_ptr<StepProgram>> torch = StepProgram::Start("PyTorch", {options.python, script});
  absl::Status without = torch.status();
  if (without.ok()) without = (*torch)->Ask("mlp/1 1 sgd step", 0).status();  // Whether there is any.
  if (!without.ok()) {
    std::fprintf(stderr, "bench: step: without PyTorch: %s\n", std::string(without.message()).c_str());
  }
  for (const Case& of : Cases(options.quick)) {
    LODESTONE_RETURN_IF_ERROR(Measure(options, of, ours.get(), without.ok() ? torch->get() : nullptr, add));
  }
  return absl::OkStatus();
}

}  // namespace lodestone::bench
