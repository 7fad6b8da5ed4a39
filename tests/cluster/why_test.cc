// `psctl why` of real processes that are stopped, or whose disk hangs: it names what they are waited for, across
// processes.
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cluster/psctl_run.h"
#include "tests/cluster/pushing_fixture.h"

namespace lodestone {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// What psctl says and how it ended: "ended" or "failed with exit code 1".
struct Said {
  std::string output;
  std::string end;
};

Said Psctl(const std::vector<std::string>& arguments) {
  PsctlRun run(arguments);
  Said said;
  said.end = run.WaitForEnd();
  said.output = run.output();
  return said;
}

class WhyTest : public PushingFixture {
 protected:
  Said Why(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"why", "--address", absl::StrCat("127.0.0.1:", cluster_->PortOf(0)),
                                          "--timeout", "2s"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Psctl(arguments);
  }
  // Asks until it says `text`.
  bool AwaitWhy(const std::string& text, Said* said) {
    return Await([&] {
      *said = Why();
      return absl::StrContains(said->output, text);
    });
  }
};

TEST_F(WhyTest, NamesTheDiskThatHangs) {
  const std::string gate = TestFile("disk_hangs");
  setenv("LD_PRELOAD", std::filesystem::absolute(ProjectFile("tests/cluster/slow_disk.so")).c_str(), 1);
  setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1);
  setenv("SLOW_DISK_WHILE", gate.c_str(), 1);
  StartCluster(/*servers=*/1, {"cluster.durability=process"}, /*own_disks=*/false, /*replicas=*/1);
  for (const char* name : {"LD_PRELOAD", "ASAN_OPTIONS", "SLOW_DISK_WHILE"}) unsetenv(name);
  ASSERT_FALSE(HasFatalFailure());
  ASSERT_NO_FATAL_FAILURE(StartPushing());
  ASSERT_TRUE(AwaitPushes(10));
  std::ofstream(gate) << "while this is here";
  Said said;
  EXPECT_TRUE(AwaitWhy("on ps 0, which waits for its disk: a write to the log in ", &said)) << said.output;
  EXPECT_THAT(said.output, ContainsRegex("worker 0's push [0-9]+ waits for shards? [0-9]"));
  EXPECT_EQ(said.end, "ended") << "every ps has answered";
  const Said json = Why({"--json"});
  const auto why = nlohmann::json::parse(json.output, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(why.is_object() && !why["why"].empty()) << json.output;
  // Calls behind it wait for an executor, which does not go on before the write does.
  EXPECT_TRUE(std::any_of(why["why"].begin(), why["why"].end(), [](const auto& chain) {
    return chain["root"] == "ROOT_THING" && chain["links"].back()["targets"][0]["kind"] == "DISK";
  })) << json.output;
  // The coordinator's own status has the same, from heartbeats.
  EXPECT_TRUE(Await([this] {
    const v1::StatusResponse status = StatusOf(0);
    for (const v1::WaitChain& chain : status.cluster().why()) {
      if (absl::StrContains(chain.text(), "on ps 0, which waits for its disk: ")) return true;
    }
    return false;
  }));
  std::filesystem::remove(gate);
  EXPECT_TRUE(AwaitWhy("nothing waits", &said)) << said.output;
  ExpectExact();
}

TEST_F(WhyTest, NamesThePsThatDoesNotAnswer) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(/*servers=*/2, {"coordinator.lease_ms=600000"}, false, /*replicas=*/1));
  ASSERT_NO_FATAL_FAILURE(StartPushing());
  ASSERT_TRUE(AwaitPushes(10));
  cluster_->Signal(1, SIGSTOP);
  Said said;
  EXPECT_TRUE(AwaitWhy("on ps 1, which does not answer, last heard of ", &said)) << said.output;
  EXPECT_THAT(said.output, ContainsRegex("worker 0's push [0-9]+ waits for shard"));
  EXPECT_THAT(said.end, HasSubstr("exit code 1"));
  cluster_->Signal(1, SIGCONT);
  EXPECT_TRUE(AwaitWhy("nothing waits", &said)) << said.output;
  EXPECT_THAT(said.output, HasSubstr("pushes on ps"));
  ExpectExact();
}

TEST(WhyOfTraining, NamesTheWorkerThatIsStopped) {
  PsctlRun run({"local", ProjectFile("configs/local.yaml"), "--set", "data.generated.train_samples=4000", "--set",
                "data.generated.test_samples=1000", "--set", "train.epochs=1000000", "--set",
                "coordinator.lease_ms=600000"});
  ASSERT_TRUE(run.WaitForOutput("psctl: training")) << run.output();
  const std::string said = "psctl: ps 0 is at ";
  ASSERT_THAT(run.output(), HasSubstr(said));
  std::string address = run.output().substr(run.output().find(said) + said.size());
  address = address.substr(0, address.find_first_of(" ,\n"));
  const auto workers = nlohmann::json::parse(Psctl({"workers", "--json", "--address", address}).output, nullptr, false);
  ASSERT_TRUE(workers.is_object()) << workers;
  pid_t pids[2] = {0, 0};
  for (const auto& worker : workers["workers"]) {
    const std::string peer = worker["peer"];
    pids[worker["index"].get<size_t>()] = atoi(peer.substr(peer.rfind(' ') + 1).c_str());
  }
  ASSERT_GT(pids[0], 0);
  ASSERT_GT(pids[1], 0);
  kill(pids[1], SIGSTOP);
  kill(pids[0], SIGINT);  // It ends its training, and waits for the other one's end.
  Said why;
  while (!absl::StrContains(why.output, "of worker 1, which is silent, last heard of ") && Lives(pids[0])) {
    why = Psctl({"why", "--address", address});
  }
  EXPECT_THAT(why.output, HasSubstr("worker 0 waits for the end of the training of worker 1, which is silent"));
  kill(pids[1], SIGCONT);
  run.Signal(SIGINT);
  run.WaitForEnd();
}

}  // namespace
}  // namespace lodestone
