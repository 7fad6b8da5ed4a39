// `psctl local` with real processes.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/psctl_run.h"
#include "tests/common/http/http_client.h"
#include "tests/common/rpc/reserved_port.h"

namespace lodestone {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

// A model that is trained in a moment, with further arguments.
std::vector<std::string> Small(std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"--set", "data.generated.train_samples=4000",
                                        "--set", "data.generated.test_samples=1000",
                                        "--set", "train.epochs=1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// `psctl local configs/local.yaml` that would train for days, with further arguments.
std::vector<std::string> Endless(std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"--set", "train.epochs=1000000"});
  std::vector<std::string> arguments = Small(more);
  arguments.insert(arguments.begin(), {"local", ProjectFile("configs/local.yaml")});
  return arguments;
}

// Waits until the cluster trains, then returns all its processes.
std::vector<pid_t> AwaitTraining(PsctlRun* run) {
  EXPECT_TRUE(run->WaitForOutput("psctl: training")) << run->output();
  const std::vector<pid_t> processes = run->Processes("");
  EXPECT_THAT(processes, SizeIs(4)) << "2 ps and 2 workers";
  return processes;
}

void ExpectAllGone(const std::vector<pid_t>& processes) {
  for (const pid_t pid : processes) EXPECT_FALSE(Lives(pid)) << "process " << pid << " is left";
}

TEST(PsctlLocal, TrainsAndWritesTheResult) {
  const psctl::RunSummary summary = TrainLocally("local", Small());
  EXPECT_EQ(summary.samples, 4000u);
  EXPECT_EQ(summary.model, "deepfm");
  EXPECT_GT(summary.seconds, 0);
  EXPECT_GT(summary.samples_per_second, 0);
  EXPECT_EQ(MetricOf(summary.test, "samples"), 1000);
  EXPECT_GT(MetricOf(summary.test, "loss"), 0);
  EXPECT_GT(MetricOf(summary.test, "auc"), 0);
  EXPECT_GT(MetricOf(summary.train, "loss"), 0);
  EXPECT_GT(MetricOf(summary.best_reachable, "auc"), 0.5);
}

TEST(PsctlLocal, RunsOtherNumbersOfServersAndWorkers) {
  for (const auto& [servers, workers] : {std::pair("1", "1"), std::pair("4", "3")}) {
    const psctl::RunSummary summary =
        TrainLocally("local", Small({"--set", std::string("cluster.servers=") + servers, "--set",
                                     std::string("cluster.workers=") + workers}));
    EXPECT_EQ(summary.samples, 4000u) << workers << " workers";
  }
}

TEST(PsctlLocal, RunsTheServersThatTheClusterBeginsWith) {
  const std::string summary_file = TestFile("kept.json");
  std::vector<std::string> arguments = Small(
      {"--verbose", "--summary", summary_file, "--set", "cluster.servers=4", "--set", "cluster.servers_at_start=2"});
  arguments.insert(arguments.begin(), {"local", ProjectFile("configs/local.yaml")});
  PsctlRun run(arguments);
  EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
  const auto summary = psctl::ReadSummary(summary_file);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->samples, 4000u);
  EXPECT_EQ(summary->servers, 2u);
  EXPECT_THAT(run.output(), Not(HasSubstr("no server name supplied"))) << "gRPC is given no target for those to come";

  // And those that have come since.
  const std::string data_dir = TestFile("kept");
  std::filesystem::create_directories(data_dir + "/ps-2");
  for (const char* set : {"--set", "server.data_dir="}) arguments.push_back(set);
  arguments.back() += data_dir;
  PsctlRun more(arguments);
  EXPECT_EQ(more.WaitForEnd(), "ended") << more.output();
  const auto now = psctl::ReadSummary(summary_file);
  ASSERT_TRUE(now.ok()) << now.status();
  EXPECT_EQ(now->servers, 3u);
}

TEST(PsctlLocal, ReachesItsServersThroughUnixSocketsUnlessToldOtherwise) {
  for (const bool told : {false, true}) {
    PsctlRun run(
        Endless(told ? std::vector<std::string>{"--set", "cluster.local_sockets=false"} : std::vector<std::string>{}));
    for (const pid_t pid : AwaitTraining(&run)) {
      std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
      const std::string command{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
      EXPECT_EQ(command.find("cluster.local_sockets=true") != std::string::npos, !told) << command;
    }
    run.Signal(SIGTERM);
    run.WaitForEnd();
  }
}

TEST(PsctlLocal, SharesTheCoresAmongTheWorkersIfToldTo) {
  EXPECT_EQ(TrainLocally("local", Small({"--set", "worker.threads=0"})).samples, 4000u);
}

TEST(PsctlLocal, PrintsATableAndPrefixesTheLogs) {
  std::vector<std::string> arguments = Small({"--verbose"});
  arguments.insert(arguments.begin(), {"local", ProjectFile("configs/local.yaml")});
  PsctlRun run(arguments);
  EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
  for (const char* text : {"ps 0 | ", "ps 1 | ", "worker 0 | ", "worker 1 | ", "best reachable", "2 ps, 2 workers"}) {
    EXPECT_THAT(run.output(), HasSubstr(text));
  }
}

TEST(PsctlLocal, EachWorkerWritesItsResultsIntoTheFolderThatIsGiven) {
  const std::string folder = TestFile("results/of/run");
  std::vector<std::string> arguments = Small({"--set", "worker.results_dir=" + folder});
  arguments.insert(arguments.begin(), {"local", ProjectFile("configs/local.yaml")});
  PsctlRun run(arguments);
  EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
  EXPECT_THAT(run.output(), HasSubstr("results         " + folder));
  EXPECT_THAT(run.output(), HasSubstr("time went to    "));
  for (const std::string worker : {"/worker-0", "/worker-1"}) {
    std::ifstream lines(folder + worker + ".jsonl");
    std::string first, line, last;
    std::getline(lines, first);
    while (std::getline(lines, line)) last = line;
    EXPECT_THAT(first, HasSubstr("{\"event\":\"run\",")) << worker;
    EXPECT_THAT(last, HasSubstr("{\"event\":\"result\",")) << worker;
    EXPECT_THAT(last, HasSubstr("\"samples\":2000,")) << worker;
    const std::filesystem::directory_iterator files(folder + worker);
    ASSERT_NE(files, std::filesystem::directory_iterator()) << worker;
    EXPECT_THAT(files->path().filename().string(), HasSubstr("events.out.tfevents."));
  }
}

TEST(PsctlLocal, AFolderForResultsThatCannotBeStopsTheRunAndIsNamed) {
  PsctlRun run({"local", ProjectFile("configs/local.yaml"), "--set", "worker.results_dir=/dev/null/results"});
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 1"));
  EXPECT_THAT(run.output(), HasSubstr("worker.results_dir cannot be used: /dev/null/results"));
}

TEST(PsctlLocal, SaysWhereTheClustersPageIs) {
  PsctlRun run(Endless());
  const std::string said = "psctl: the cluster's page is http://";
  ASSERT_TRUE(run.WaitForOutput(said)) << run.output();
  const std::string address = run.output().substr(run.output().find(said) + said.size());
  EXPECT_EQ(CodeOf(Get(PortIn(address.substr(0, address.find('/'))), "/")), 200);
}

TEST(PsctlLocal, AnHttpPortThatIsGivenIsThatOfTheFirstOfEachKind) {
  const ReservedPort ps, worker;
  PsctlRun run(
      Endless({"--set", "server.http_listen=" + ps.address(), "--set", "worker.http_listen=" + worker.address()}));
  AwaitTraining(&run);
  EXPECT_TRUE(run.WaitForOutput("psctl: the cluster's page is http://" + ps.address() + "/\n")) << run.output();
  EXPECT_EQ(CodeOf(Get(PortIn(ps.address()), "/healthz")), 200);
  EXPECT_EQ(CodeOf(Get(PortIn(worker.address()), "/healthz")), 200);
}

TEST(PsctlLocal, QuietPrintsTheResultOnly) {
  std::vector<std::string> arguments = Small({"--quiet"});
  arguments.insert(arguments.begin(), {"local", ProjectFile("configs/local.yaml")});
  PsctlRun run(arguments);
  EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
  EXPECT_THAT(run.output(), Not(HasSubstr(" | ")));
  EXPECT_THAT(run.output(), HasSubstr("best reachable"));
}

TEST(PsctlLocal, PrintsWhatTheProcessesLogOnlyIfItIsAsked) {
  for (const bool verbose : {false, true}) {
    std::vector<std::string> arguments =
        Small(verbose ? std::vector<std::string>{"--verbose"} : std::vector<std::string>{});
    arguments.insert(arguments.begin(), {"local", ProjectFile("configs/local.yaml")});
    PsctlRun run(arguments);
    EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
    EXPECT_THAT(run.output(), HasSubstr("psctl: ps 0 is at "));
    EXPECT_EQ(run.output().find(" INFO ") != std::string::npos, verbose) << run.output();
  }
}

TEST(PsctlLocal, PrintsTheResultAsJsonIfToldTo) {
  std::vector<std::string> arguments = Small({"--quiet", "--json"});
  arguments.insert(arguments.begin(), {"local", ProjectFile("configs/local.yaml")});
  PsctlRun run(arguments);
  EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
  EXPECT_EQ(run.output().front(), '{');
  EXPECT_THAT(run.output(), HasSubstr("\"samples\": 4000"));
}

TEST(PsctlLocal, AWorkerThatIsKilledStopsEverythingAndIsNamed) {
  PsctlRun run(Endless());
  const std::vector<pid_t> processes = AwaitTraining(&run);
  const std::vector<pid_t> workers = run.Processes("worker");
  ASSERT_THAT(workers, SizeIs(2));
  kill(workers[1], SIGKILL);
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 1"));
  EXPECT_THAT(run.output(), HasSubstr("(pid " + std::to_string(workers[1]) + ") was killed by signal 9"));
  ExpectAllGone(processes);
}

TEST(PsctlLocal, WorkersAreAddedWhileAllTrainAndMayDieWhileEnoughAreLeft) {
  const std::string path = TestFile("elastic.json");
  PsctlRun run(Endless({"--workers", "1..3", "--set", "train.sharing=ranges", "--summary", path}));
  ASSERT_TRUE(run.WaitForOutput("all 1 workers train; worker 1 is started")) << run.output();
  ASSERT_TRUE(run.WaitForOutput("all 2 workers train; worker 2 is started")) << run.output();
  const std::vector<pid_t> workers = run.Processes("worker");
  ASSERT_THAT(workers, SizeIs(3));
  const std::vector<pid_t> processes = run.Processes("");
  const std::string said = "psctl: ps 0 is at ";
  ASSERT_THAT(run.output(), HasSubstr(said));
  std::string address = run.output().substr(run.output().find(said) + said.size());
  address = address.substr(0, address.find_first_of(" ,\n"));
  size_t train = 0;
  while (train < 3) {
    PsctlRun status({"status", "--json", "--address", address});
    ASSERT_EQ(status.WaitForEnd(), "ended") << status.output();
    train = 0;
    for (size_t at = 0; (at = status.output().find("\"PHASE_TRAINING\"", at)) != std::string::npos; ++at) ++train;
  }
  kill(workers[0], SIGKILL);
  ASSERT_TRUE(run.WaitForOutput("(pid " + std::to_string(workers[0]) + ") was killed by signal 9")) << run.output();
  ASSERT_TRUE(run.WaitForOutput("the run goes on with the others")) << run.output();
  run.Signal(SIGINT);
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 130"));
  ExpectAllGone(processes);
  const auto summary = psctl::ReadSummary(path);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->workers, 2u);
  EXPECT_EQ(MetricOf(summary->test, "samples"), 1000) << "any worker evaluates";
}

TEST(PsctlLocal, AWorkerThatIsKilledIsStartedAgainIfToldTo) {
  for (const char* const sharing : {"ranges", "partitions"}) {
    PsctlRun run(Endless({"--restart-workers", "--set", std::string("train.sharing=") + sharing}));
    AwaitTraining(&run);
    const std::vector<pid_t> workers = run.Processes("worker");
    ASSERT_THAT(workers, SizeIs(2));
    kill(workers[1], SIGKILL);
    const std::string said =
        "(pid " + std::to_string(workers[1]) + ") was killed by signal 9 (Killed); it is started again";
    ASSERT_TRUE(run.WaitForOutput(said)) << run.output();
    const std::vector<pid_t> now = run.Processes("worker");
    EXPECT_THAT(now, SizeIs(2)) << sharing;
    EXPECT_THAT(now, Contains(workers[0]));
    EXPECT_THAT(now, Not(Contains(workers[1])));
    const std::vector<pid_t> processes = run.Processes("");
    run.Signal(SIGINT);
    EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 130")) << run.output();
    ExpectAllGone(processes);
  }
}

TEST(PsctlLocal, ANumberOfWorkersTakesThePlaceOfTheConfigurations) {
  const psctl::RunSummary summary = TrainLocally("local", Small({"--workers", "3"}));
  EXPECT_EQ(summary.workers, 3u);
  EXPECT_EQ(summary.samples, 4000u);
}

TEST(PsctlLocal, WorkersThatCannotBeAddedAreAUsageError) {
  for (const char* bad : {"0", "6..2", "2..", "2..3..4", "two"}) {
    PsctlRun run({"local", ProjectFile("configs/local.yaml"), "--workers", bad});
    EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 2")) << bad;
    EXPECT_THAT(run.output(), HasSubstr("as 2..6")) << bad;
  }
  PsctlRun run({"local", ProjectFile("configs/local.yaml"), "--workers", "1..2"});
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 2"));
  EXPECT_THAT(run.output(), HasSubstr("set train.sharing=ranges"));
}

TEST(PsctlLocal, AServerThatIsKilledStopsEverythingAndIsNamed) {
  PsctlRun run(Endless());
  const std::vector<pid_t> processes = AwaitTraining(&run);
  const std::vector<pid_t> servers = run.Processes("ps");
  ASSERT_THAT(servers, SizeIs(2));
  kill(servers[0], SIGKILL);
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 1"));
  EXPECT_THAT(run.output(), HasSubstr("(pid " + std::to_string(servers[0]) + ") was killed by signal 9"));
  ExpectAllGone(processes);
}

TEST(PsctlLocal, CtrlCEndsTheTrainingAndEvaluatesWhatWasTrained) {
  const std::string path = TestFile("interrupted.json");
  PsctlRun run(Endless({"--summary", path}));
  const std::vector<pid_t> processes = AwaitTraining(&run);
  run.Signal(SIGINT);
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 130"));
  ExpectAllGone(processes);
  EXPECT_THAT(run.output(), HasSubstr("incomplete      worker 0 trained "));
  const auto summary = psctl::ReadSummary(path);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_TRUE(summary->interrupted);
  EXPECT_FALSE(summary->complete);
  EXPECT_THAT(summary->missing, HasSubstr("worker 1 "));
  EXPECT_EQ(MetricOf(summary->test, "samples"), 1000);
  EXPECT_GT(MetricOf(summary->test, "auc"), 0);
}

TEST(PsctlLocal, SigtermStopsEverything) {
  PsctlRun run(Endless());
  const std::vector<pid_t> processes = AwaitTraining(&run);
  run.Signal(SIGTERM);
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 130"));
  ExpectAllGone(processes);
}

TEST(PsctlLocal, ASecondCtrlCKillsAtOnce) {
  PsctlRun run(Endless());
  const std::vector<pid_t> processes = AwaitTraining(&run);
  for (const pid_t pid : processes) kill(pid, SIGSTOP);  // They cannot end by themselves.
  run.Signal(SIGINT);
  EXPECT_TRUE(run.WaitForOutput("Ctrl-C again"));
  run.Signal(SIGINT);
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 130"));
  ExpectAllGone(processes);
}

TEST(PsctlLocal, NothingIsLeftWhenPsctlItselfIsKilled) {
  PsctlRun run(Endless());
  const std::vector<pid_t> processes = AwaitTraining(&run);
  run.Signal(SIGKILL);
  // The end of the output: nobody holds its other end any more.
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("killed by signal 9"));
  for (const pid_t pid : processes) {
    while (Lives(pid)) {
    }
  }
}

// Regression: the places of the workers that were killed were theirs for ten seconds more, and the run waited.
TEST(PsctlLocal, ARunThatWasKilledLeavesNoPlacesTaken) {
  const std::string folder = TestFile("killed");
  PsctlRun killed(Endless({"--set", "server.data_dir=" + folder}));
  const std::vector<pid_t> processes = AwaitTraining(&killed);
  killed.Signal(SIGKILL);
  killed.WaitForEnd();
  while (std::any_of(processes.begin(), processes.end(), Lives)) killed.Read(10);
  std::vector<std::string> again = Small({"--set", "server.data_dir=" + folder, "--set", "train.epochs=0"});
  again.insert(again.begin(), {"local", ProjectFile("configs/local.yaml")});
  PsctlRun run(again);
  EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
  EXPECT_THAT(run.output(), Not(HasSubstr("was not heard of for"))) << "a lease has ended, and not a process";
}

TEST(PsctlLocal, MissingDataFailsWithTheWorkersReason) {
  PsctlRun run({"local", ProjectFile("configs/a9a.yaml"), "--set", "data.train=/nowhere/a9a"});
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 1"));
  EXPECT_THAT(run.output(), HasSubstr("psctl: worker "));
  EXPECT_THAT(run.output(), HasSubstr("/nowhere/a9a"));
}

TEST(PsctlLocal, AWrongConfigurationIsAUsageError) {
  EXPECT_THAT(PsctlRun({"local", "/nowhere/config.yaml"}).WaitForEnd(), HasSubstr("exit code 2"));
  const std::string path = TestFile("wrong.yaml");
  std::ofstream(path) << "model:\n  tipe: linear\n";
  PsctlRun run({"local", path});
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 2"));
  EXPECT_THAT(run.output(), HasSubstr("wrong.yaml:2:"));
  EXPECT_THAT(run.output(), HasSubstr("`type`"));
}

TEST(PsctlLocal, AnUnwritableSummaryIsRefusedBeforeTheTraining) {
  PsctlRun run({"local", ProjectFile("configs/local.yaml"), "--summary", "/nowhere/summary.json"});
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 2"));
  EXPECT_THAT(run.output(), HasSubstr("/nowhere/summary.json"));
}

// Regression: it was refused after the training, which was lost.
TEST(PsctlLocal, AModelThatCannotBeWrittenIsRefusedBeforeTheTraining) {
  for (const auto& [file, why] : {std::pair("/nowhere/model.safetensors", "there is no folder /nowhere"),
                                  {"/tmp", "must end in .safetensors or .npz"}}) {
    PsctlRun run({"local", ProjectFile("configs/local.yaml"), "--model", file});
    EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 2"));
    EXPECT_THAT(run.output(), HasSubstr(why));
    EXPECT_THAT(run.output(), Not(HasSubstr("ps 0 is at")));
  }
}

// Regression: the result was lost too.
TEST(PsctlLocal, AModelThatCouldNotBeWrittenLeavesTheResultAndWhatItWasToBeWrittenFrom) {
  const std::string model = TestFile("full.safetensors");
  std::filesystem::create_symlink("/dev/full", model);
  std::vector<std::string> arguments = Small({"--model", model});
  arguments.insert(arguments.begin(), {"local", ProjectFile("configs/local.yaml")});
  PsctlRun run(arguments);
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 1"));
  EXPECT_THAT(run.output(), HasSubstr("auc "));
  const std::string again = "to try again: psctl export ";
  const size_t at = run.output().find(again);
  ASSERT_NE(at, std::string::npos) << run.output();
  const size_t begin = at + again.size();
  const std::filesystem::path source = run.output().substr(begin, run.output().find(" --out", begin) - begin);
  EXPECT_TRUE(std::filesystem::is_directory(source)) << source;
  std::filesystem::remove_all(source.parent_path().parent_path());  // The run's own folder.
}

TEST(PsctlLocal, AMissingProgramIsNamed) {
  PsctlRun run({"local", ProjectFile("configs/local.yaml"), "--worker-binary", "/nowhere/worker"});
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 1"));
  EXPECT_THAT(run.output(), HasSubstr("/nowhere/worker"));
}

TEST(PsctlStatus, ShowsARunningCluster) {
  PsctlRun cluster(Endless());
  AwaitTraining(&cluster);
  const std::string said = "psctl status --address ";
  const size_t at = cluster.output().find(said) + said.size();
  const std::string address = cluster.output().substr(at, cluster.output().find(')', at) - at);
  PsctlRun table({"status", "--address", address, "--timeout", "60s"});
  EXPECT_EQ(table.WaitForEnd(), "ended") << table.output();
  for (const char* text : {"ps 0 at ", "workers", "tables", "sessions", "training"}) {
    EXPECT_THAT(table.output(), HasSubstr(text));
  }
  PsctlRun json({"status", "--address", address, "--timeout", "60s", "--json"});
  EXPECT_EQ(json.WaitForEnd(), "ended");
  EXPECT_THAT(json.output(), HasSubstr("\"servers_expected\": 2"));
  for (const auto& [verb, text] : {std::pair("workers", "training"), {"tables", "embedding"}, {"top", "cluster "}}) {
    std::vector<std::string> arguments = {verb, "--address", address, "--timeout", "60s"};
    if (arguments[0] == "top") arguments.insert(arguments.end(), {"--count", "1"});
    PsctlRun run(arguments);
    EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
    EXPECT_THAT(run.output(), HasSubstr(text));
  }
  PsctlRun events({"events", "--address", address, "--timeout", "60s"});
  EXPECT_EQ(events.WaitForEnd(), "ended");
  for (const char* who : {"ps 0", "ps 1", "worker 0", "worker 1"}) {
    EXPECT_THAT(events.output(), HasSubstr(std::string("joined        ") + who));
  }
}

TEST(PsctlStatus, SaysThatNothingListens) {
  PsctlRun run({"status", "--address", "127.0.0.1:1", "--timeout", "60s"});
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 3"));
  EXPECT_THAT(run.output(), HasSubstr("no ps answers at 127.0.0.1:1"));
}

TEST(PsctlCheck, PrintsWhatHoldsOrWhatIsWrong) {
  PsctlRun good({"check", ProjectFile("configs/local.yaml")});
  EXPECT_EQ(good.WaitForEnd(), "ended");
  EXPECT_THAT(good.output(), HasSubstr("embedding_dim: 8"));
  PsctlRun bad({"check", ProjectFile("configs/local.yaml"), "--set", "cluster.servers=0"});
  EXPECT_THAT(bad.WaitForEnd(), HasSubstr("exit code 2"));
  EXPECT_THAT(bad.output(), HasSubstr("cluster.servers"));
}

TEST(Psctl, HelpTeachesByExample) {
  PsctlRun run({"--help"});
  EXPECT_EQ(run.WaitForEnd(), "ended");
  EXPECT_THAT(run.output(), HasSubstr("psctl local configs/local.yaml"));
  EXPECT_THAT(PsctlRun({"frobnicate"}).WaitForEnd(), HasSubstr("exit code 2"));
}

}  // namespace
}  // namespace lodestone
