// local_step [FILE]: training steps without a server, on one thread; the peer of torch_step.py, which says how requests
// and answers look.
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "tools/bench/local_training.h"

namespace lodestone::bench {
namespace {

double Seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename Work>
std::string Repeat(double seconds, const Work& work) {
  const double warm = Seconds(CLOCK_MONOTONIC) + seconds / 4;
  while (Seconds(CLOCK_MONOTONIC) < warm) work();
  const double cpu = Seconds(CLOCK_PROCESS_CPUTIME_ID), begin = Seconds(CLOCK_MONOTONIC);
  for (int steps = 1;; ++steps) {
    work();
    const double taken = Seconds(CLOCK_MONOTONIC) - begin;
    if (taken >= seconds) return absl::StrCat("ok ", steps, " ", taken, " ", Seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu);
  }
}

int Main(std::istream& requests) {
  std::unique_ptr<LocalTraining> training;
  std::string made;
  for (std::string line; std::getline(requests, line);) {
    std::istringstream request(line);
    std::string model, optimizer, what;
    size_t batch = 0;
    double seconds = 0;
    if (!(request >> model >> batch >> optimizer >> what >> seconds) || batch == 0 ||
        (what != "step" && what != "products")) {
      std::cout << "error: not MODEL BATCH OPTIMIZER step|products SECONDS: " << line << std::endl;
      return 1;
    }
    if (const std::string wanted = absl::StrCat(model, " ", batch, " ", optimizer); wanted != made) {
      training.reset();
      auto created = LocalTraining::Create(model, batch, optimizer);
      if (!created.ok()) {
        std::cout << "error: " << std::string(created.status().message()) << std::endl;
        return 1;
      }
      training = *std::move(created);
      made = wanted;
    }
    std::cout << (what == "step" ? Repeat(seconds, [&] { training->Step(); })
                                 : Repeat(seconds, [&] { training->Products(); }))
              << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace lodestone::bench

int main(int argc, char** argv) {
  if (argc < 2) return lodestone::bench::Main(std::cin);
  std::ifstream file(argv[1]);
  if (file) return lodestone::bench::Main(file);
  std::cout << "error: " << argv[1] << " cannot be read" << std::endl;
  return 1;
}
