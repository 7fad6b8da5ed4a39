// Simulates clusters: see README.md. tools/simulate builds and runs it.
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "common/telemetry/log.h"
#include "proto/config.pb.h"
#include "tests/simulation/run.h"

namespace lodestone::simulation {
namespace {

constexpr char kAbout[] =
    "Simulates clusters, one per seed: ps, coordinator, clients, network, disks and clock in one thread, much faster\n"
    "than they would run. Processes are killed, also within a write, stopped and continued, cut off; machines go down\n"
    "and lose what was not synced; messages are late or lost. Every acknowledged push must be applied once, reads "
    "must\n"
    "not go back, and when all is left alone it must heal, with copies that are the same.\n\n"
    "The same seed gives the same trace, whose hash is printed.\n";
constexpr char kMore[] =
    "Examples:\n"
    "  simulate --seeds 1000            seeds 1 to 1000; ends at the first that fails\n"
    "  simulate --seed 4711 --trace     one of them, and all that happens in it";

int Main(int argc, char** argv) {
  uint64_t seed = 1, seeds = 1;
  RunOptions options;
  bool verbose = false, logs = false;
  CLI::App app(kAbout);
  app.footer(kMore);
  app.add_option("--seed", seed, "The first seed")->capture_default_str();
  app.add_option("--seeds", seeds, "How many, from --seed on")->capture_default_str();
  app.add_option("--faults-ms", options.faults_ms, "How long faults go on, in simulated time")->capture_default_str();
  app.add_flag("--trace", options.trace, "Print all that happens");
  app.add_flag("--logs", logs, "Print what the processes log, too");
  app.add_flag("--verbose", verbose, "A line for each seed");
  CLI11_PARSE(app, argc, argv);

  v1::LogConfig log;
  // Above all levels: processes that are killed have much to complain of.
  log.set_level(logs ? v1::LogConfig::INFO : static_cast<v1::LogConfig::Level>(v1::LogConfig::ERROR + 1));
  InitLog(log, "simulation", "");
  const char* const memory = std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "/tmp";
  options.folder = std::string(memory) + "/lodestone-simulation-" + std::to_string(getpid());
  const auto began = std::chrono::steady_clock::now();
  double simulated = 0;
  uint64_t faults = 0, pushes = 0, acknowledged = 0, resent = 0;
  for (uint64_t n = 0; n < seeds; ++n) {
    options.seed = seed + n;
    const RunResult result = Run(options);
    simulated += result.simulated_seconds;
    faults += result.faults;
    pushes += result.pushes;
    acknowledged += result.acknowledged;
    resent += result.resent;
    if (verbose || options.trace || seeds == 1 || !result.failure.empty()) {
      std::printf("seed %" PRIu64 " trace %016" PRIx64 ": %s; %.1f s, %" PRIu64 " events, %" PRIu64 " faults, %" PRIu64
                  " pushes, %" PRIu64 " acknowledged; %s\n",
                  options.seed, result.hash, result.shape.c_str(), result.simulated_seconds, result.events,
                  result.faults, result.pushes, result.acknowledged,
                  result.failure.empty() ? "all is as promised" : result.failure.c_str());
      std::fflush(stdout);
    }
    if (result.failure.empty()) continue;
    std::printf("FAILED after %" PRIu64 " seeds. To see it again: tools/simulate --seed %" PRIu64 " --trace\n", n + 1,
                options.seed);
    return 1;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::printf("%" PRIu64 " seeds passed: %.0f simulated seconds in %.1f (%.0f x as fast), %" PRIu64 " faults, %" PRIu64
              " pushes, %" PRIu64 " acknowledged, %" PRIu64 " answers that were no acknowledgement\n",
              seeds, simulated, seconds, simulated / seconds, faults, pushes, acknowledged, resent);
  return 0;
}

}  // namespace
}  // namespace lodestone::simulation

int main(int argc, char** argv) { return lodestone::simulation::Main(argc, argv); }
