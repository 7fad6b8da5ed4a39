// step: training steps without a server, beside the matrix products that they consist of, and beside PyTorch.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "tools/bench/step_program.h"
#include "tools/bench/suites.h"

namespace lodestone::bench {
namespace {

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
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<StepProgram> ours, StepProgram::StartLocal(options));
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
