// step: training steps without a server, beside the matrix products that they consist of, and beside PyTorch.
#include <unistd.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "tools/bench/step/step_program.h"
#include "tools/bench/suite/suites.h"

namespace lodestone::bench {
namespace {

using Flags = std::vector<std::string>;

struct Case {
  const char* model;
  int batch;
  const char* optimizer;
};

// DeepFM and DLRM of two sizes on clicks, an MLP on images.
std::vector<Case> ClickCases() {
  std::vector<Case> cases;
  for (const char* model : {"deepfm/256-128", "deepfm/1024-512-256", "dlrm/256-128", "dlrm/1024-512-256"}) {
    for (const int batch : {1 << 10, 4 << 10, 16 << 10, 64 << 10}) cases.push_back({model, batch, "adagrad"});
  }
  return cases;
}

std::vector<Case> ImageCases(const char* optimizer) {
  std::vector<Case> cases;
  for (const int batch : {128, 1 << 10, 8 << 10}) cases.push_back({"mlp/512-256", batch, optimizer});
  return cases;
}

const std::vector<Case>& QuickCases() {
  static const auto& cases =
      *new std::vector<Case>{{"deepfm/256-128", 1024, "adagrad"}, {"mlp/512-256", 128, "adagrad"}};
  return cases;
}

// One batch of each network: torch.compile takes half a minute for each shape.
const std::vector<Case>& OneBatchCases() {
  static const auto& cases = *new std::vector<Case>{{"deepfm/1024-512-256", 16 << 10, "adagrad"},
                                                    {"deepfm/256-128", 16 << 10, "adagrad"},
                                                    {"dlrm/1024-512-256", 16 << 10, "adagrad"},
                                                    {"dlrm/256-128", 16 << 10, "adagrad"},
                                                    {"mlp/512-256", 8 << 10, "adagrad"}};
  return cases;
}

std::vector<Case> Join(std::vector<Case> cases, const std::vector<Case>& more) {
  cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

// local_step and torch_step.py, one process for each set of flags, started when it is first needed.
class Programs {
 public:
  explicit Programs(const Options& options) : options_(options), script_(options.root + "/tools/bench/torch_step.py") {}

  absl::Status CheckScript() const {
    if (access(script_.c_str(), R_OK) == 0) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat(script_, ": no such file; --root names the project's folder"));
  }

  absl::StatusOr<StepProgram*> Local(const Flags& flags) {
    std::unique_ptr<StepProgram>& program = local_[flags];
    if (program == nullptr) {
      LODESTONE_ASSIGN_OR_RETURN(program, StepProgram::StartLocal(options_, flags));
    }
    return program.get();
  }

  // Null if it cannot do `request`; why is told. It is asked before it is measured, since it draws its data first and
  // may have to compile. One that could not do the first request is not asked again.
  StepProgram* Torch(const Flags& flags, const std::string& request) {
    Peer& peer = torch_[flags];
    if (peer.gone) return nullptr;
    absl::Status status;
    if (peer.program == nullptr) {
      peer.gone = true;  // Until it has answered.
      Flags argv = {options_.python, script_};
      argv.insert(argv.end(), flags.begin(), flags.end());
      absl::StatusOr<std::unique_ptr<StepProgram>> started = StepProgram::Start("PyTorch", argv);
      status = started.status();
      if (started.ok()) peer.program = *std::move(started);
    }
    if (status.ok()) status = peer.program->Ask(request, 0).status();
    if (status.ok()) {
      peer.gone = false;
      return peer.program.get();
    }
    // It would still answer, to what it is asked next.
    if (absl::IsDeadlineExceeded(status)) {
      peer.program.reset();
      peer.gone = true;
    }
    std::fprintf(stderr, "bench: step: without PyTorch%s%s: %s\n", flags.empty() ? "" : " ",
                 absl::StrJoin(flags, " ").c_str(), std::string(status.message()).c_str());
    return nullptr;
  }

 private:
  struct Peer {
    std::unique_ptr<StepProgram> program;
    bool gone = false;
  };

  const Options& options_;
  const std::string script_;
  std::map<Flags, std::unique_ptr<StepProgram>> local_;
  std::map<Flags, Peer> torch_;
};

std::string RequestOf(const Case& of, const char* what) {
  return absl::StrCat(of.model, " ", of.batch, " ", of.optimizer, " ", what);
}

Scale ScaleOf(const Case& of) {
  return {
      .unit = "ksamples/s", .cpu_unit = "s/ksamples", .amount = 1e-3 * of.batch, .bytes = 0, .count_messages = false};
}

// A program that repeats `what`.
Measurement Asking(StepProgram* program, const Case& of, const char* what, const Options& options) {
  return [=, &options] { return program->Ask(RequestOf(of, what), 1e-3 * options.window_ms); };
}

// Two rows: a step beside its matrix products and, if there is PyTorch, beside its step.
absl::Status MeasureOnCpu(const Options& options, const Case& of, Programs* programs, const AddRow& add) {
  const std::string name = absl::StrCat("step/", of.model, "/batch", of.batch, "/", of.optimizer);
  if (!IsWanted(options, name)) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(StepProgram* const ours, programs->Local({}));
  StepProgram* const torch = programs->Torch({}, RequestOf(of, "step"));
  std::vector<Measurement> measurements = {Asking(ours, of, "step", options), Asking(ours, of, "products", options)};
  if (torch != nullptr) measurements.push_back(Asking(torch, of, "step", options));
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<std::vector<Sample>> samples, TakeTurns(options, name, measurements));
  add(MakeRow("step", name + "/products", ScaleOf(of), samples[0], samples[1]));
  if (torch != nullptr) add(MakeRow("step", name + "/torch", ScaleOf(of), samples[0], samples[2]));
  return absl::OkStatus();
}

// On a device, where PyTorch does all of its step and we do the worker's part of ours.
class OnDevice {
 public:
  OnDevice(const Options& options, Programs* programs, const AddRow& add)
      : options_(options), programs_(programs), add_(add) {}

  // Two rows, as on the CPU.
  absl::Status BesideProductsAndTorch(const Case& of, const std::string& precision) {
    const std::string name = NameOf(of, precision);
    if (!IsWanted(options_, name)) return absl::OkStatus();
    LODESTONE_ASSIGN_OR_RETURN(StepProgram* const ours, programs_->Local(FlagsOf(precision)));
    StepProgram* const torch = programs_->Torch(FlagsOf(precision), RequestOf(of, "step"));
    std::vector<Measurement> measurements = {Asking(ours, of, "gradients", options_),
                                             Asking(ours, of, "products", options_)};
    if (torch != nullptr) measurements.push_back(Asking(torch, of, "step", options_));
    LODESTONE_ASSIGN_OR_RETURN(const std::vector<std::vector<Sample>> samples, TakeTurns(options_, name, measurements));
    add_(MakeRow("step", name + "/products", ScaleOf(of), samples[0], samples[1]));
    if (torch != nullptr) add_(MakeRow("step", name + "/torch", ScaleOf(of), samples[0], samples[2]));
    return absl::OkStatus();
  }

  // Beside what torch.compile makes of PyTorch's.
  absl::Status BesideCompiled(const Case& of, const std::string& precision) {
    const std::string name = NameOf(of, precision) + "/torch.compile";
    if (!IsWanted(options_, name)) return absl::OkStatus();
    LODESTONE_ASSIGN_OR_RETURN(StepProgram* const ours, programs_->Local(FlagsOf(precision)));
    StepProgram* const torch = programs_->Torch(FlagsOf(precision, "--compile"), RequestOf(of, "step"));
    if (torch == nullptr) return absl::OkStatus();
    return Pair(name, of, Asking(ours, of, "gradients", options_), Asking(torch, of, "step", options_));
  }

  // With sums in a fixed order, and with the server's part done on the host after it, each beside ours without.
  absl::Status BesideItself(const Case& of) {
    const std::string ordered = NameOf(of, "f32") + "/deterministic", update = NameOf(of, "f32") + "/update";
    const bool wants_ordered = IsWanted(options_, ordered), wants_update = IsWanted(options_, update);
    if (!wants_ordered && !wants_update) return absl::OkStatus();
    LODESTONE_ASSIGN_OR_RETURN(StepProgram* const plain, programs_->Local(FlagsOf("f32")));
    const Measurement gradients = Asking(plain, of, "gradients", options_);
    if (wants_ordered) {
      LODESTONE_ASSIGN_OR_RETURN(StepProgram* const ours, programs_->Local(FlagsOf("f32", "--deterministic")));
      LODESTONE_RETURN_IF_ERROR(Pair(ordered, of, Asking(ours, of, "gradients", options_), gradients));
    }
    return wants_update ? Pair(update, of, Asking(plain, of, "step", options_), gradients) : absl::OkStatus();
  }

 private:
  std::string NameOf(const Case& of, const std::string& precision) const {
    return absl::StrCat("step/", options_.device, "/", of.model, "/batch", of.batch, "/", precision);
  }
  Flags FlagsOf(const std::string& precision, const char* more = nullptr) const {
    Flags flags = {"--device", options_.device, "--precision", precision};
    if (more != nullptr) flags.push_back(more);
    return flags;
  }
  absl::Status Pair(const std::string& name, const Case& of, const Measurement& ours, const Measurement& limit) {
    LODESTONE_ASSIGN_OR_RETURN(Row row, MeasureInTurns(options_, "step", name, ScaleOf(of), ours, limit));
    add_(std::move(row));
    return absl::OkStatus();
  }

  const Options& options_;
  Programs* const programs_;
  const AddRow& add_;
};

// What tells most comes first, in case that --seconds-max cuts the rest off.
absl::Status RunOnDevice(const Options& options, Programs* programs, const AddRow& add) {
  OnDevice on(options, programs, add);
  const std::vector<Case> all = options.quick ? QuickCases() : Join(ClickCases(), ImageCases("adagrad"));
  const std::vector<Case>& some = options.quick ? QuickCases() : OneBatchCases();
  for (const char* precision : {"f32", "bf16"}) {
    for (const Case& of : all) LODESTONE_RETURN_IF_ERROR(on.BesideProductsAndTorch(of, precision));
  }
  for (const char* precision : {"f32", "bf16"}) {
    for (const Case& of : some) LODESTONE_RETURN_IF_ERROR(on.BesideCompiled(of, precision));
  }
  for (const Case& of : some) {
    LODESTONE_RETURN_IF_ERROR(on.BesideItself(of));
    LODESTONE_RETURN_IF_ERROR(on.BesideProductsAndTorch(of, "tf32"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunStep(const Options& options, const AddRow& add) {
  Programs programs(options);
  LODESTONE_RETURN_IF_ERROR(programs.CheckScript());
  if (options.device != "cpu") return RunOnDevice(options, &programs, add);
  const std::vector<Case> all = Join(Join(ClickCases(), ImageCases("adagrad")), ImageCases("sgd"));
  for (const Case& of : options.quick ? QuickCases() : all) {
    LODESTONE_RETURN_IF_ERROR(MeasureOnCpu(options, of, &programs, add));
  }
  return absl::OkStatus();
}

}  // namespace lodestone::bench
