// local_step [FLAGS] [FILE]: training steps without a server, on one thread and, if it is told so, a device; the peer
// of torch_step.py, which says how requests and answers look. What can be repeated: step, gradients (a worker's part of
// it) and products; see LocalTraining.
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/options.h"
#include "kernels/blas_core.h"
#include "kernels/cpu_backend.h"
#include "tools/bench/step/local_training.h"
#include "worker/device.h"

namespace lodestone::bench {
namespace {

double Seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename Work>
absl::StatusOr<std::string> Repeat(double seconds, const Work& work) {
  const double warm = Seconds(CLOCK_MONOTONIC) + seconds / 4;
  while (Seconds(CLOCK_MONOTONIC) < warm) LODESTONE_RETURN_IF_ERROR(work());
  const double cpu = Seconds(CLOCK_PROCESS_CPUTIME_ID), begin = Seconds(CLOCK_MONOTONIC);
  for (int steps = 1;; ++steps) {
    LODESTONE_RETURN_IF_ERROR(work());
    const double taken = Seconds(CLOCK_MONOTONIC) - begin;
    if (taken >= seconds) return absl::StrCat("ok ", steps, " ", taken, " ", Seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu);
  }
}

// Answers requests; keeps the training of the last one.
class Answers {
 public:
  Answers(kernels::Backend* backend, bool ordered) : backend_(backend), ordered_(ordered) {}

  absl::StatusOr<std::string> To(const std::string& line) {
    std::istringstream request(line);
    std::string model, optimizer, what;
    size_t batch = 0;
    double seconds = 0;
    if (!(request >> model >> batch >> optimizer >> what >> seconds) || batch == 0 ||
        (what != "step" && what != "gradients" && what != "products")) {
      return absl::InvalidArgumentError(
          absl::StrCat("not MODEL BATCH OPTIMIZER step|gradients|products SECONDS: ", line));
    }
    if (const std::string wanted = absl::StrCat(model, " ", batch, " ", optimizer); wanted != made_) {
      training_.reset();
      LODESTONE_ASSIGN_OR_RETURN(training_, LocalTraining::Create(model, batch, optimizer, backend_, ordered_));
      made_ = wanted;
    }
    if (what == "products") return Repeat(seconds, [&] { return training_->Products(); });
    if (what == "gradients") return Repeat(seconds, [&] { return training_->Gradients().status(); });
    return Repeat(seconds, [&] { return training_->Step().status(); });
  }

 private:
  kernels::Backend* const backend_;
  const bool ordered_;
  std::unique_ptr<LocalTraining> training_;
  std::string made_;
};

int Fail(const absl::Status& status) {
  std::cout << "error: " << std::string(status.message()) << std::endl;
  return 1;
}

int Main(int argc, char** argv) {
  std::string device = "cpu", precision = "f32", cublas, path;
  bool deterministic = false;
  CLI::App app("Training steps without a server: MODEL BATCH OPTIMIZER step|gradients|products SECONDS, one a line.");
  app.add_option("--device", device, "What computes: cpu, cuda or cuda:N");
  app.add_option("--precision", precision, "Of matrix products on a device")
      ->check(CLI::IsMember({"f32", "tf32", "bf16"}));
  app.add_option("--cublas", cublas, "Where cuBLAS is, if not where it is looked for");
  app.add_flag("--deterministic", deterministic, "Sums on a device come in a fixed order");
  app.add_option("FILE", path, "The requests (default: standard input)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  v1::WorkerConfig config;
  v1::WorkerConfig::Precision parsed = v1::WorkerConfig::F32;
  v1::WorkerConfig::Precision_Parse(absl::AsciiStrToUpper(precision), &parsed);
  config.set_device(device);
  config.set_precision(parsed);
  config.set_cublas(cublas);
  auto backend = worker::OpenDevice(config, /*index=*/0);
  if (!backend.ok()) return Fail(backend.status());
  std::ifstream file;
  if (!path.empty()) file.open(path);
  if (!path.empty() && !file) return Fail(absl::NotFoundError(absl::StrCat(path, " cannot be read")));
  std::istream& requests = path.empty() ? std::cin : file;
  Answers answers(*backend == nullptr ? kernels::Cpu() : backend->get(), deterministic);
  for (std::string line; std::getline(requests, line);) {
    const absl::StatusOr<std::string> answer = answers.To(line);
    if (!answer.ok()) return Fail(answer.status());
    std::cout << *answer << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace lodestone::bench

int main(int argc, char** argv) {
  lodestone::kernels::cpu::RestartOnBetterCoreType(argv);  // As the worker.
  return lodestone::bench::Main(argc, argv);
}
