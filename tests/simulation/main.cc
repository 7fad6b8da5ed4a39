// Simulates clusters: see README.md. tools/simulate builds and runs it.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "common/base/check.h"
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
    "  simulate --seeds 1000 --jobs 2   seeds 1 to 1000, two at a time; ends at the first that fails\n"
    "  simulate --seed 4711 --trace     one of them, and all that happens in it";

// What some seeds came to, passed between processes as it is.
struct Totals {
  uint64_t seeds = 0;
  bool failed = false;
  double simulated_seconds = 0;
  uint64_t faults = 0, times_back = 0, pushes = 0, acknowledged = 0, resent = 0;

  void Add(const Totals& other) {
    seeds += other.seeds;
    failed |= other.failed;
    simulated_seconds += other.simulated_seconds;
    faults += other.faults;
    times_back += other.times_back;
    pushes += other.pushes;
    acknowledged += other.acknowledged;
    resent += other.resent;
  }
};

// The seeds of one process: `count` of them, each `step` after the one before. Ends at the first that fails.
struct Share {
  uint64_t first = 1, count = 1, step = 1;
  bool tells_all = false;
};

// For the files of a process, in memory if that can be.
std::string FolderOf(pid_t process) {
  const char* const memory = std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "/tmp";
  return std::string(memory) + "/lodestone-simulation-" + std::to_string(process);
}

std::atomic<uint64_t> seed_under_way{0};

// Tells which seed a check has failed in: abort goes on when this has returned.
void TellSeed(int) {
  std::fprintf(stderr, "FAILED. To see it again: tools/simulate --seed %" PRIu64 " --trace\n", seed_under_way.load());
}

Totals RunShare(const Share& share, RunOptions options) {
  options.folder = FolderOf(getpid());
  std::signal(SIGABRT, TellSeed);
  Totals totals;
  for (uint64_t n = 0; n < share.count; ++n) {
    options.seed = share.first + n * share.step;
    seed_under_way.store(options.seed);
    const RunResult result = Run(options);
    totals.Add({1, !result.failure.empty(), result.simulated_seconds, result.faults, result.times_back, result.pushes,
                result.acknowledged, result.resent});
    if (share.tells_all || totals.failed) {
      std::printf("seed %" PRIu64 " trace %016" PRIx64 ": %s; %.1f s, %" PRIu64 " events, %" PRIu64 " faults, %" PRIu64
                  " times back, %" PRIu64 " pushes, %" PRIu64 " acknowledged; %s\n",
                  options.seed, result.hash, result.shape.c_str(), result.simulated_seconds, result.events,
                  result.faults, result.times_back, result.pushes, result.acknowledged,
                  totals.failed ? result.failure.c_str() : "all is as promised");
      std::fflush(stdout);
    }
    if (!totals.failed) continue;
    std::printf("FAILED. To see it again: tools/simulate --seed %" PRIu64 " --trace\n", options.seed);
    break;
  }
  return totals;
}

// The totals of all shares, each run by a process of its own. When a seed fails, the other processes end.
Totals RunShares(const std::vector<Share>& shares, const RunOptions& options) {
  int ends[2];
  LODESTONE_CHECK(pipe(ends) == 0);
  std::vector<pid_t> children;
  for (const Share& share : shares) {
    const pid_t child = fork();
    LODESTONE_CHECK(child >= 0);
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const Totals totals = RunShare(share, options);
      std::fflush(stdout);
      _exit(write(ends[1], &totals, sizeof(totals)) == sizeof(totals) ? 0 : 1);  // Shorter than PIPE_BUF: whole.
    }
    children.push_back(child);
  }
  close(ends[1]);
  Totals all, one;
  size_t told = 0;
  for (; !all.failed && read(ends[0], &one, sizeof(one)) == sizeof(one); ++told) all.Add(one);
  close(ends[0]);
  if (!all.failed && told < shares.size()) {
    std::printf(
        "FAILED: %zu of %zu processes ended without their totals: a check has failed, as it said, or the system "
        "has killed them, for memory perhaps\n",
        shares.size() - told, shares.size());
    all.failed = true;
  }
  for (const pid_t child : children) {
    if (all.failed) kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    std::error_code none;
    std::filesystem::remove_all(FolderOf(child), none);
  }
  return all;
}

int Main(int argc, char** argv) {
  uint64_t seed = 1, seeds = 1, jobs = 1;
  RunOptions options;
  bool verbose = false, logs = false;
  CLI::App app(kAbout);
  app.footer(kMore);
  app.add_option("--seed", seed, "The first seed")->capture_default_str();
  app.add_option("--seeds", seeds, "How many, from --seed on")->capture_default_str();
  app.add_option("--jobs", jobs, "How many at a time, each in a process of its own")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--faults-ms", options.faults_ms, "How long faults go on, in simulated time")->capture_default_str();
  app.add_flag("--trace", options.trace, "Print all that happens");
  app.add_flag("--logs", logs, "Print what the processes log, too");
  app.add_flag("--verbose", verbose, "A line for each seed");
  CLI11_PARSE(app, argc, argv);

  v1::LogConfig log;
  // Above all levels: processes that are killed have much to complain of.
  log.set_level(logs ? v1::LogConfig::INFO : static_cast<v1::LogConfig::Level>(v1::LogConfig::ERROR + 1));
  InitLog(log, "simulation", "");
  const auto began = std::chrono::steady_clock::now();
  jobs = std::min(jobs, std::max<uint64_t>(seeds, 1));
  std::vector<Share> shares;
  for (uint64_t job = 0; job < jobs; ++job) {
    const uint64_t count = (seeds + jobs - 1 - job) / jobs;
    shares.push_back({seed + job, count, jobs, verbose || options.trace || seeds == 1});
  }
  const Totals totals = jobs == 1 ? RunShare(shares[0], options) : RunShares(shares, options);
  if (totals.failed) return 1;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::printf("%" PRIu64 " seeds passed: %.0f simulated seconds in %.1f (%.0f x as fast), %" PRIu64 " faults, %" PRIu64
              " times back to a checkpoint, %" PRIu64 " pushes, %" PRIu64 " acknowledged, %" PRIu64
              " answers that were no acknowledgement\n",
              totals.seeds, totals.simulated_seconds, seconds, totals.simulated_seconds / seconds, totals.faults,
              totals.times_back, totals.pushes, totals.acknowledged, totals.resent);
  return 0;
}

}  // namespace
}  // namespace lodestone::simulation

int main(int argc, char** argv) { return lodestone::simulation::Main(argc, argv); }
