// sync_steps --config FILE --rank R --workers N --mib M --steps S: a worker that computes nothing. In each step it
// pushes the gradient of a dense table as batch R of N, and pulls what the step led to, at the same time; all_reduce.py
// measures it. Prints "ready", waits for a line, and prints the seconds of each step.
#include <cmath>
#include <iostream>
#include <latch>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/options.h"
#include "common/telemetry/histogram.h"
#include "common/telemetry/log.h"
#include "worker/client/client.h"

namespace lodestone::bench {
namespace {

struct Work {
  uint32_t rank = 0;
  uint32_t workers = 0;
  uint64_t elements = 0;
  uint64_t steps = 0;
};

v1::TableSpec SpecOf(const Work& work) {
  v1::TableSpec spec;
  spec.set_name("dense");
  spec.mutable_dense()->add_dims(work.elements);
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_optimizer()->set_learning_rate(1);
  spec.mutable_consistency()->mutable_sync()->set_batches(work.workers);
  return spec;
}

// INTERNAL if the values are not those of the step: of a gradient that is its rank and 1, everywhere.
absl::Status CheckValues(const Work& work, uint64_t step, const std::vector<float>& values) {
  const double expected = -0.5 * (work.workers + 1) * static_cast<double>(step + 1);
  for (const float value : values) {
    if (std::abs(value - expected) <= 1e-5 * std::abs(expected)) continue;
    return absl::InternalError(absl::StrCat("a value after step ", step, " is ", value, ", not ", expected));
  }
  return absl::OkStatus();
}

absl::Status Step(const Work& work, uint64_t step, const worker::TableHandle& table, const std::vector<float>& gradient,
                  worker::Client* client, std::vector<float>* values) {
  worker::StepOrigin origin(step + 1, v1::Contribution());
  origin.contribution->set_step(step);
  origin.contribution->set_batch(work.rank);
  origin.contribution->set_samples(1);
  const worker::DenseGradient pushed{&table, gradient.data(), /*borrowed=*/true};
  absl::Status push_status, pull_status;
  std::latch left(2);
  LODESTONE_RETURN_IF_ERROR(client->Push(origin, {&pushed, 1}, {}, {}, [&](const worker::PushResult& result) {
    push_status = result.status;
    left.count_down();
  }));
  client->PullSteps({.steps_min = step + 1}, {{&table, values->data()}}, {},
                    [&](const absl::Status& status, const worker::ShardVersions&, uint64_t) {
                      pull_status = status;
                      left.count_down();
                    });
  left.wait();
  LODESTONE_RETURN_IF_ERROR(push_status);
  return pull_status;
}

absl::Status Run(const v1::Config& config, const Work& work) {
  LODESTONE_ASSIGN_OR_RETURN(const auto client, worker::Client::Connect(config));
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<worker::TableHandle> tables, client->EnsureTables({SpecOf(work)}));
  const std::vector<float> gradient(work.elements, static_cast<float>(work.rank + 1));
  std::vector<float> values(work.elements);
  std::cout << "ready" << std::endl;
  std::string line;
  if (!std::getline(std::cin, line)) return absl::OkStatus();
  for (uint64_t step = 0; step < work.steps; ++step) {
    const int64_t begin_ns = NowNs();
    LODESTONE_RETURN_IF_ERROR(Step(work, step, tables[0], gradient, client.get(), &values));
    std::cout << 1e-9 * static_cast<double>(NowNs() - begin_ns) << std::endl;
    if (step == 0 || step + 1 == work.steps) LODESTONE_RETURN_IF_ERROR(CheckValues(work, step, values));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  std::string rank, workers = "2", mib = "64", steps = "10";
  OptionsSpec spec;
  spec.program = "sync_steps";
  spec.description = "A worker that computes nothing: synchronous steps of one dense table.";
  spec.flags = {{"--rank", "N", "Which of the workers this is, from 0.", &rank},
                {"--workers", "N", "How many batches a step has, one of each worker.", &workers},
                {"--mib", "N", "The size of the table.", &mib},
                {"--steps", "N", "How many steps.", &steps}};
  ProcessOptions options;
  if (const std::optional<int> code = ParseOptions(argc, argv, spec, &options); code.has_value()) return *code;
  Work work;
  if (!absl::SimpleAtoi(rank, &work.rank) || !absl::SimpleAtoi(workers, &work.workers) ||
      !absl::SimpleAtoi(mib, &work.elements) || !absl::SimpleAtoi(steps, &work.steps) || work.elements == 0 ||
      work.rank >= work.workers) {
    std::cerr
        << "sync_steps: --rank, --workers, --mib and --steps are whole numbers, and the rank is below the workers\n";
    return kExitUsage;
  }
  work.elements = (work.elements << 20) / sizeof(float);
  InitLog(options.config.log(), "sync_steps", "");
  const absl::Status status = Run(options.config, work);
  if (status.ok()) return 0;
  std::cerr << "sync_steps: " << status << std::endl;
  return 1;
}

}  // namespace
}  // namespace lodestone::bench

int main(int argc, char** argv) { return lodestone::bench::Main(argc, argv); }
