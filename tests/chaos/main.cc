// chaos: kills a cluster again and again and counts what it loses. tools/chaos builds and runs it.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/version.h"
#include "common/config/options.h"
#include "common/rpc/tuning.h"
#include "common/telemetry/log.h"
#include "proto/config.pb.h"
#include "tests/chaos/report.h"
#include "tests/chaos/run.h"
#include "tests/chaos/schedule.h"

namespace lodestone::chaos {
namespace {

namespace fs = std::filesystem;

constexpr double kMinutesDefault = 10;
constexpr uint32_t kServersOfReplicas = 3;
constexpr uint32_t kRecordersDefault = 6;

std::atomic<int> interrupts{0};

struct CommandLine {
  RunOptions run;
  std::vector<std::string> only;
  std::vector<std::string> without;
  std::string durability = "process";
  bool keep = false;
  std::string dir;
  std::string json_path;
};

std::string Footer() {
  std::string text = "Faults (each comes as often as the number says before all come again):\n";
  for (const FaultInfo& info : FaultInfos()) {
    absl::StrAppend(&text, absl::StrFormat("  %-19s %d  %s\n", info.name, info.share, info.meaning));
  }
  text.append(R"(
How it judges: clients push small integers into tables that add them up, so the sums are exact. Now and then everything
stands still, all ps are killed once more, and what comes back is compared: each acknowledged push must be there once;
of one without an acknowledgement (its client died) each shard must hold all or nothing.
Besides, each push adds a digit of its own to a row, which says of this push alone: lost, there once, or more often. With
--recorders, further clients add to counters and read them, and what they see is checked for linearizability
(tests/chaos/README.md). With --workers, worker processes train, join, leave and die, each of whose samples counts how often
it was trained.
  lost, doubled   blocks and rows that lack an acknowledged push, or hold it twice
  wrong           numbers that fit no set of pushes
  recovery        from a fault to the first acknowledgement, on each shard it met, of what was sent after it (of reshard and
                  drain: after all moves)
With --durability replica each shard has an owner and a follower, and each ps a disk of its own. What takes a copy away
for good waits until there are two of every shard again; all other faults come when they come. Before an audit, and in
it, the ps compare what owners and followers hold.
  failover        from the last acknowledgement on any shard of a ps that is gone to when all of them had one again
On a failure the folder with the logs of all processes, and what the ps had on disk, stays.

Examples:
  tools/chaos --minutes 10 --seed 7             everything for ten minutes
  tools/chaos --only kill --faults 100          a hundred deaths in a row
  tools/chaos --only kill-in-checkpoint,tear,flip --faults 30 --servers 3
  tools/chaos --durability memory --minutes 1   without logs: only faults that nobody dies of
  tools/chaos --durability replica --only lose --faults 100 --seed 7
  tools/chaos --pushes 10000000 --digits-only --only kill,stop,kill-again     ten million, each judged by itself
  tools/chaos --histories 200 --durability replica --history-dir histories    recorded, checked and kept
  tools/chaos --durability replica --digits-only --only kill --every-seconds 15 --faults 10       the price of faults
  tools/chaos --durability replica --only zombie,partition,lose --lease-ms 500 --servers 4
  tools/chaos --durability replica --workers 4 --servers 4      and workers that train, join, leave and die meanwhile

A seed draws the same faults every time; when each comes is counted in acknowledged pushes, or seconds.
Exit codes: 0 nothing lost, nothing doubled, nobody ended; 1 otherwise; 2 wrong command line; 130 interrupted.)");
  return text;
}

void AddOptions(CommandLine* line, CLI::App* app) {
  RunOptions* const run = &line->run;
  app->add_option("--minutes", run->minutes, "How long (default: 10, or until --faults have come)")
      ->check(CLI::Range(0.01, 100'000.0));
  app->add_option("--faults", run->faults, "End after so many faults (default: no limit)")
      ->check(CLI::Range(1, 1'000'000));
  app->add_option("--seed", run->seed, "Draws the faults and the pushes (default: another one each time)");
  app->add_option("--only", line->only, "Only these faults: kill,tear")->delimiter(',');
  app->add_option("--without", line->without, "All but these faults")->delimiter(',');
  app->add_option(
         "--durability", line->durability,
         "What an acknowledged push survives. memory: nothing, the ps keep nothing on disk, and faults that they "
         "die of are left out; replica: each shard has a follower")
      ->check(CLI::IsMember({"memory", "process", "machine", "replica"}))
      ->capture_default_str();
  app->add_option("--lease-ms", run->lease_ms, "With replica: coordinator.lease_ms")
      ->check(CLI::Range(100, 60'000))
      ->capture_default_str();
  app->add_option("--servers", run->servers, "Number of ps (default: 2; with replica 3)")->check(CLI::Range(1, 16));
  app->add_option("--clients", run->clients, "Number of clients")->check(CLI::Range(1, 16))->capture_default_str();
  app->add_option(
         "--workers", run->workers,
         "Worker processes at most, which train beside that, join, leave and are killed, while an operator changes the "
         "order of their steps (default: 0): every sample must be trained once in each epoch")
      ->check(CLI::Range(0, 16));
  app->add_option("--pushes", run->pushes, "End after so many acknowledged pushes (default: no limit)")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40));
  app->add_flag("--digits-only", run->digits_only,
                "A push is one row, in which it has a digit of its own: several times as many pushes");
  app->add_option("--recorders", run->recorders, "Clients that record histories of counters, besides (default: 0)")
      ->check(CLI::Range(0, 8));
  app->add_option("--histories", run->histories, "End after so many histories (default: no limit)")
      ->check(CLI::Range(1, 1'000'000));
  app->add_option("--history-operations", run->history_operations, "Operations of a history")
      ->check(CLI::Range(10, 1'000'000))
      ->capture_default_str();
  app->add_option("--history-dir", run->history_folder, "Keep the histories in this folder, as JSON lines");
  app->add_option("--gap", run->gap_pushes, "Acknowledged pushes between two faults, on average")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app->add_option("--every-seconds", run->every_seconds,
                  "Faults at this distance in time instead, with as long a period without one around each: says what "
                  "share of the rate without faults is left. One audit, at the end; `client` is left out")
      ->check(CLI::Range(1.0, 3600.0));
  app->add_option("--audit-every", run->audit_every, "Faults between two audits")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  app->add_option("--set", run->sets, "Overrides a field of the ps' configuration: a.b=VALUE")->allow_extra_args(false);
  app->add_option("--disk-mb", run->disk_mb,
                  "Put the ps' files on a disk of this size in memory, which disk-full then fills (for root)")
      ->check(CLI::Range(64, 100'000));
  app->add_option("--json", line->json_path, "Writes the result to this file, as one JSON object");
  app->add_option("--dir", line->dir, "Folder for everything that is written; made, or empty (default: a new one)");
  app->add_flag("--keep", line->keep, "Keep the folder also if all went well");
  app->add_option("--ps-binary", run->ps_binary, "The ps program (default: as built)");
  app->add_option("--psctl-binary", run->psctl_binary, "The psctl program (default: as built)");
  app->add_option("--worker-binary", run->worker_binary, "The worker program (default: as built)");
  app->add_option("--other-ps-binary", run->other_ps_binary,
                  "The ps program of another version: half of the ps begin with it, and every ps that is started again "
                  "changes its version (tools/skew)")
      ->check(CLI::ExistingFile);
}

// Follows from --durability.
absl::Status ChooseDurability(bool servers_given, CommandLine* line) {
  RunOptions* const run = &line->run;
  run->durable = line->durability != "memory";
  run->replicas = line->durability == "replica";
  if (line->durability == "machine") run->sets.insert(run->sets.begin(), "cluster.durability=machine");
  if (!run->durable && run->workers > 0) {
    return absl::InvalidArgumentError("--workers needs ps that keep what they know: another --durability than memory");
  }
  if (!run->replicas) return absl::OkStatus();
  if (!servers_given) run->servers = kServersOfReplicas;
  return run->servers > 1 ? absl::OkStatus()
                          : absl::InvalidArgumentError("--durability replica needs --servers 2 or more");
}

// What the faults are chosen from.
absl::Status ChooseKinds(CommandLine* line) {
  const auto only = ParseFaults(line->only);
  if (!only.ok()) return only.status();
  const auto without = ParseFaults(line->without);
  if (!without.ok()) return without.status();
  for (const FaultInfo& info : FaultInfos()) {
    const auto in = [&](const std::vector<FaultKind>& kinds) {
      return std::find(kinds.begin(), kinds.end(), info.kind) != kinds.end();
    };
    if (info.replicas && !line->run.replicas) {
      if (!in(*only)) continue;
      return absl::InvalidArgumentError(absl::StrCat("'", info.name, "' needs --durability replica"));
    }
    const bool wanted = only->empty() ? line->run.durable || !info.durable : in(*only);
    // Of a client that dies audits must read the receipts, now and then.
    if (info.kind == FaultKind::kClient && line->run.every_seconds > 0) continue;
    if (wanted && !in(*without)) line->run.kinds.push_back(info.kind);
  }
  return line->run.kinds.empty() ? absl::InvalidArgumentError("no fault is left") : absl::OkStatus();
}

absl::Status MakeFolder(CommandLine* line) {
  std::error_code error;
  if (line->dir.empty()) {
    std::string name = (fs::temp_directory_path(error) / "lodestone-chaos-XXXXXX").string();
    if (error || mkdtemp(name.data()) == nullptr) return absl::ErrnoToStatus(errno, "making a folder");
    line->dir = name;
  } else {
    fs::create_directories(line->dir, error);
    if (error || !fs::is_empty(line->dir, error)) {
      return absl::InvalidArgumentError(absl::StrCat(line->dir, ": is no empty folder"));
    }
    line->dir = fs::absolute(line->dir).string();
  }
  line->run.folder = line->dir;
  return absl::OkStatus();
}

void CatchSignals() {
  struct sigaction action {};
  action.sa_handler = [](int) { ++interrupts; };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

// What the clients have to say goes to a file like what the ps say: there is a lot of it when a ps is away.
void LogToFile(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd >= 0) dup2(fd, STDERR_FILENO);
  if (fd >= 0) close(fd);
  InitLog(v1::LogConfig(), "chaos", "");
}

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

int Conclude(const CommandLine& line, const Report& report) {
  std::ofstream(line.dir + "/schedule") << absl::StrJoin(report.schedule, "\n") << "\n";
  std::ofstream(line.dir + "/result.json") << ToJson(report) << "\n";
  if (!line.json_path.empty()) {
    std::ofstream file(line.json_path);
    file << ToJson(report) << "\n";
    if (!file.flush()) Say(absl::StrCat("chaos: ", line.json_path, ": cannot be written"));
  }
  Say("\n" + ToTable(report));
  if (!report.ok() && !(report.stopped && report.verdict.ok())) {
    Say(absl::StrCat("The faults up to then, of seed ", report.seed, ":"));
    for (const std::string& fault : report.schedule) Say("  " + fault);
    Say(absl::StrCat("Everything is kept in ", line.dir));
    return 1;
  }
  std::error_code ignored;
  if (line.keep) {
    Say("Everything is in " + line.dir);
  } else {
    fs::remove_all(line.dir, ignored);
  }
  return report.stopped ? 130 : 0;
}

// A program of the same build as this one.
std::string BuiltProgram(const char* path) {
  std::error_code error;
  const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  return (here / "../.." / path).lexically_normal().string();
}

int Main(int argc, char** argv) {
  CommandLine line;
  line.run.faults = 0;
  line.run.seed = std::chrono::system_clock::now().time_since_epoch().count() / 1000 % 1'000'000'000;
  CLI::App app("Kills the processes of a cluster under load, and counts what it loses.", "tools/chaos");
  app.set_version_flag("--version", "chaos " + VersionText());
  app.footer(Footer());
  AddOptions(&line, &app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  if (line.run.minutes == 0 && line.run.faults == 0 && line.run.pushes == 0 && line.run.histories == 0) {
    line.run.minutes = kMinutesDefault;
  }
  if (line.run.histories > 0 && line.run.recorders == 0) line.run.recorders = kRecordersDefault;
  absl::Status status = ChooseDurability(app.count("--servers") > 0, &line);
  if (status.ok()) status = ChooseKinds(&line);
  if (status.ok()) status = MakeFolder(&line);
  if (!status.ok()) {
    std::fprintf(stderr, "chaos: %s\n", std::string(status.message()).c_str());
    return kExitUsage;
  }
  if (line.run.ps_binary.empty()) line.run.ps_binary = BuiltProgram("server/ps");
  if (line.run.worker_binary.empty()) line.run.worker_binary = BuiltProgram("worker/worker");
  if (line.run.psctl_binary.empty()) line.run.psctl_binary = BuiltProgram("tools/psctl/psctl");
  if (!line.run.history_folder.empty()) {
    std::error_code error;
    fs::create_directories(line.run.history_folder, error);
    line.run.history_folder = fs::absolute(line.run.history_folder).string();
  }
  CatchSignals();
  line.run.interrupts = &interrupts;
  line.run.on_progress = Say;
  Say(absl::StrFormat("seed %d; what the processes say is in %s", line.run.seed, line.dir));
  LogToFile(line.dir + "/clients.log");
  return Conclude(line, ChaosRun(line.run).Run());
}

}  // namespace
}  // namespace lodestone::chaos

int main(int argc, char** argv) {
  lodestone::TuneLibraries();  // As ps and worker do.
  return lodestone::chaos::Main(argc, argv);
}
