// bench: measures Lodestone, and the machine's limits beside it, and writes what it measured as lines of JSON.
// tools/bench/run builds it and runs it by bench.py, which makes tables of them.
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/version.h"
#include "common/config/options.h"
#include "common/rpc/tuning.h"
#include "tools/bench/harness/local_ps.h"
#include "tools/bench/harness/peer.h"
#include "tools/bench/suite/suites.h"

namespace lodestone::bench {

const std::vector<Suite>& Suites() {
  static const auto& suites = *new std::vector<Suite>{
      {"limit", "memcpy; request/reply over raw TCP and Unix sockets; one socket server that sends to many", RunLimit},
      {"dense", "push, pull, push-pull of 64 B to 64 MiB, 1 or 8 outstanding, 1 to 4 clients, beside raw TCP",
       RunDense},
      {"push-pull", "push and pull of 4 KiB to 4 MiB in one exchange, beside one after the other", RunPushPull},
      {"same-machine",
       "push and pull of 4 KiB to 4 MiB through a ps's Unix socket and shared memory, beside the same over TCP",
       RunSameMachine},
      {"embedding", "4096 random keys of 1 M and 10 M rows, 16 and 64 wide, beside a minimal gRPC server",
       RunEmbedding},
      {"keys", "4096 keys of 1 M rows, 1 to 64 wide, in lists that repeat, beside lists that do not", RunKeys},
      {"scale", "the same keys of 30 and of 1000 tables beside one; 16 and 200 clients beside one", RunScale},
      {"broadcast",
       "4 MiB to 1 to 16 subscribers after every push, beside a raw server that does the same; pushes with 8 beside "
       "none",
       RunBroadcast},
      {"durability", "pushes at each durability, in turns; appends to a file of the same disk beside them",
       RunDurability},
      {"checkpoint", "checkpoints and loading beside plain files; pushes during a checkpoint; replay of a log",
       RunCheckpoint},
      {"step",
       "samples per second of training steps without a server, on one core or a device, beside their matrix products "
       "and PyTorch",
       RunStep},
      {"train",
       "samples per second of whole training steps: DeepFM, 1 ps and 1 worker beside a step without a server; "
       "2 ps, 2 workers (configs/local.yaml)",
       RunTrain},
  };
  return suites;
}

namespace {

constexpr int kQuickRuns = 3;
constexpr int kQuickWindowMs = 60;
constexpr int kQuickStateMib = 16;

struct CommandLine {
  Options options;
  std::vector<std::string> names;
  double seconds_max = 0;
  bool list = false;
  bool machine = false;
  std::string json_path;  // Empty: standard output.
};

std::string Footer() {
  std::string text = "What can be measured against servers (all of it if no name is given):\n";
  for (const Suite& suite : Suites())
    absl::StrAppend(&text, absl::StrFormat("  %-11s %s\n", suite.name, suite.meaning));
  return text;
}

std::string FirstLineAfter(const char* path, const std::string& prefix) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, prefix))
      return line.substr(std::min(line.size(), line.find_first_not_of(" \t:", prefix.size())));
  }
  return "unknown";
}

// What the figures depend on, beside us.
std::map<std::string, std::string> DescribeMachine(const Options& options) {
  utsname name{};
  uname(&name);
  return {{"CPU", FirstLineAfter("/proc/cpuinfo", "model name")},
          {"cores", absl::StrCat(std::thread::hardware_concurrency())},
          {"kernel", name.release},
          {"filesystem", FilesystemOf(options.folder)},
          {"congestion control", FirstLineAfter("/proc/sys/net/ipv4/tcp_congestion_control", "")},
          {"load before", FirstLineAfter("/proc/loadavg", "")},
          {"version", kVersion},
          {"date", absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone())},
          {"runs", absl::StrCat(options.runs, " of ", options.window_ms, " ms", options.quick ? ", quick" : "")}};
}

// The programs lie where they were built to, beside this one.
void FindPrograms(Options* options) {
  std::error_code error;
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  const auto beside = [&](const char* path) { return (here / path).lexically_normal().string(); };
  if (options->ps_binary.empty()) options->ps_binary = beside("../../server/ps");
  if (options->psctl_binary.empty()) options->psctl_binary = beside("../psctl/psctl");
  options->local_step_binary = beside("step/local_step");
  if (!std::filesystem::exists(options->local_step_binary)) options->local_step_binary = beside("local_step");
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "bench: %s\n", std::string(status.message()).c_str());
  return 1;
}

// Measures, and writes the machine's description and the rows to standard output as they come.
int Measure(const CommandLine& line) {
  std::FILE* const out = line.json_path.empty() ? stdout : std::fopen(line.json_path.c_str(), "w");
  if (out == nullptr) return Fail(absl::UnavailableError(absl::StrCat(line.json_path, ": cannot be written")));
  const auto write = [out](const std::string& text) {
    std::fprintf(out, "%s\n", text.c_str());
    std::fflush(out);
  };
  write(ToJson(DescribeMachine(line.options)));
  if (line.machine) return 0;
  int exit_code = 0;
  for (const Suite& suite : Suites()) {
    const bool named = std::find(line.names.begin(), line.names.end(), suite.name) != line.names.end();
    if (!named && !line.names.empty()) continue;
    const absl::Status status = suite.run(line.options, [&](const Row& row) { write(ToJson(row)); });
    if (!status.ok()) exit_code = Fail(status);
  }
  return exit_code;
}

void AddOptions(CommandLine* line, CLI::App* app) {
  std::vector<std::string> names;
  for (const Suite& suite : Suites()) names.push_back(suite.name);
  app->add_option("NAMES", line->names, "What to measure; see below")->check(CLI::IsMember(names));
  app->add_flag("--quick", line->options.quick,
                "Fewer rows, three short runs: shows that it works, not how fast it is");
  app->add_option("--only", line->options.only,
                  "Of dense, same-machine, embedding, broadcast, checkpoint, step and train only the rows whose names "
                  "contain this: push/1MiB");
  app->add_option("--seconds-max", line->seconds_max,
                  "Begins none of those rows after so many seconds, and names what it leaves out (default: no limit)")
      ->check(CLI::PositiveNumber);
  app->add_option("--device", line->options.device,
                  "What step and train compute on: cpu, cuda or cuda:N (default: cpu)");
  app->add_option("--runs", line->options.runs, "How often each row is measured (default: 5; quick: 3)")
      ->check(CLI::Range(1, 1000));
  app->add_option("--window-ms", line->options.window_ms, "How long each measurement lasts (default: 400; quick: 60)")
      ->check(CLI::Range(10, 600'000));
  app->add_option("--set", line->options.sets, "Overrides a field of the configuration: a.b=VALUE")
      ->allow_extra_args(false);
  app->add_option(
      "--folder", line->options.folder,
      "Where durability and checkpoint keep their data for a while: on the disk to be measured (default: the "
      "system's place for temporary files)");
  app->add_option("--state-mib", line->options.state_mib,
                  "How much checkpoint has in its tables: half of the memory, for example (default: 1024; quick: 16)")
      ->check(CLI::Range(16, 1 << 20));
  app->add_flag("--list", line->list, "Prints the names");
  app->add_option("--json", line->json_path, "Writes the rows to this file (default: standard output)");
  app->add_flag("--machine", line->machine, "Measures nothing: prints the machine's description");
  app->add_option("--root", line->options.root,
                  "The project's folder; train needs its configs, step tools/bench (default: here)");
  app->add_option("--python", line->options.python,
                  "The Python that has PyTorch, for step (default: /usr/bin/python3)");
  app->add_option("--ps-binary", line->options.ps_binary, "The ps program (default: as built)");
  app->add_option("--psctl-binary", line->options.psctl_binary, "The psctl program (default: as built)");
}

int Main(int argc, char** argv) {
  CommandLine line;
  line.options.runs = 0;
  line.options.window_ms = 0;
  line.options.state_mib = 0;
  line.options.root = ".";
  CLI::App app("Measures Lodestone, and in turns with it the limits of the machine that it runs on.",
               "tools/bench/run");
  app.set_version_flag("--version", "bench " + VersionText());
  app.footer(Footer());
  AddOptions(&line, &app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  if (line.list) {
    for (const Suite& suite : Suites()) std::printf("%-12s %s\n", suite.name, suite.meaning);
    return 0;
  }
  if (line.options.runs == 0) line.options.runs = line.options.quick ? kQuickRuns : 5;
  if (line.options.state_mib == 0) line.options.state_mib = line.options.quick ? kQuickStateMib : 1024;
  if (line.options.window_ms == 0) line.options.window_ms = line.options.quick ? kQuickWindowMs : 400;
  if (line.seconds_max > 0) line.options.deadline_ns = NowNs() + static_cast<int64_t>(1e9 * line.seconds_max);
  FindPrograms(&line.options);
  return Measure(line);
}

}  // namespace
}  // namespace lodestone::bench

int main(int argc, char** argv) {
  lodestone::TuneLibraries();  // As ps and worker do; clients are forked from here.
  return lodestone::bench::Main(argc, argv);
}
