#include "tools/psctl/local/local_cluster.h"

#include <signal.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::psctl {
namespace {

using testing::Contains;
using testing::HasSubstr;

// A cluster of shells.
class LocalClusterTest : public testing::Test {
 protected:
  void Start(Role role, const std::string& name, const std::string& script) {
    const absl::Status status = cluster_.Start(role, name, {"/bin/sh", "-c", script});
    ASSERT_TRUE(status.ok()) << status;
  }
  bool Heard(const std::string& line) { return std::find(lines_.begin(), lines_.end(), line) != lines_.end(); }
  absl::Status WaitForLine(const std::string& line) {
    return cluster_.WaitFor([&] { return Heard(line); }, line, 0);
  }
  absl::Status WaitForWorkers() {
    return cluster_.WaitFor([this] { return cluster_.WorkersDone(); }, "the workers", 0);
  }

  std::vector<std::string> lines_;
  std::vector<pid_t> pids_;
  LocalCluster cluster_{[this](const Child& child, absl::string_view line) {
                          lines_.push_back(child.name() + ": " + std::string(line));
                          pids_.push_back(child.pid());
                        },
                        [] {}};
};

constexpr int kSlowMs = 600'000;  // Longer than the test may take.
void Never() { FAIL() << "it was slow"; }

constexpr char kServer[] = "trap 'echo stopped; exit 0' TERM; echo up; while :; do sleep 0.01; done";

TEST_F(LocalClusterTest, AGoodRunEndsWithTheServersAskedToEnd) {
  Start(Role::kServer, "ps 0", kServer);
  ASSERT_TRUE(WaitForLine("ps 0: up").ok());
  Start(Role::kWorker, "worker 0", "echo trained");
  EXPECT_TRUE(WaitForWorkers().ok());
  EXPECT_TRUE(cluster_.StopServers(kSlowMs, Never).ok());
  EXPECT_THAT(lines_, Contains("worker 0: trained"));
  EXPECT_THAT(lines_, Contains("ps 0: stopped"));
}

TEST_F(LocalClusterTest, AFailedWorkerIsNamedWithItsReason) {
  Start(Role::kServer, "ps 0", kServer);
  Start(Role::kWorker, "worker 0", "sleep 1000");
  Start(Role::kWorker, "worker 1", "echo 'ERROR no data'; exit 1");
  const absl::Status status = WaitForWorkers();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker 1 (pid "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("failed with exit code 1: ERROR no data"));
  cluster_.StopAll();
}

TEST_F(LocalClusterTest, AWorkerThatIsKilledIsStartedAgainIfItMayBe) {
  Start(Role::kServer, "ps 0", kServer);
  const auto script = [](const char* text) { return std::vector<std::string>{"/bin/sh", "-c", text}; };
  ASSERT_TRUE(cluster_.Start(Role::kWorker, "worker 0", script("echo first; kill -9 $$"), script("echo second")).ok());
  EXPECT_TRUE(WaitForWorkers().ok());
  EXPECT_THAT(lines_, Contains("worker 0: second"));
  EXPECT_THAT(lines_, Contains(HasSubstr("; it is started again")));
  ASSERT_TRUE(cluster_.Start(Role::kWorker, "worker 1", script("exit 1"), script("true")).ok());
  EXPECT_EQ(WaitForWorkers().code(), absl::StatusCode::kInternal) << "what fails by itself is a failure";
  cluster_.StopAll();
}

TEST_F(LocalClusterTest, ARunGoesOnWithoutAKilledWorkerWhileEnoughOthersAreThere) {
  cluster_.SetWorkersMin(1);
  Start(Role::kServer, "ps 0", kServer);
  Start(Role::kWorker, "worker 0", "trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done");
  ASSERT_TRUE(WaitForLine("worker 0: up").ok());
  Start(Role::kWorker, "worker 1", "kill -9 $$");
  ASSERT_TRUE(cluster_.WaitFor([this] { return cluster_.IsLost("worker 1"); }, "its death", 0).ok());
  EXPECT_THAT(lines_, Contains(HasSubstr("; the run goes on with the others")));
  EXPECT_EQ(cluster_.RunningWorkers(), 1u);
  EXPECT_FALSE(cluster_.WorkersDone());
  Start(Role::kWorker, "worker 2", "exit 1");
  EXPECT_EQ(WaitForWorkers().code(), absl::StatusCode::kInternal) << "what fails by itself is a failure";
  cluster_.StopAll();
}

TEST_F(LocalClusterTest, WithoutTheLastOfItsWorkersARunHasFailed) {
  cluster_.SetWorkersMin(1);
  Start(Role::kServer, "ps 0", kServer);
  Start(Role::kWorker, "worker 0", "kill -9 $$");
  EXPECT_EQ(WaitForWorkers().code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(cluster_.IsLost("worker 0"));
  cluster_.StopAll();
}

TEST_F(LocalClusterTest, AKilledWorkerDoesNotHoldUpTheEndOfTheOthers) {
  cluster_.SetWorkersMin(1);
  Start(Role::kServer, "ps 0", kServer);
  Start(Role::kWorker, "worker 0", "exit 0");
  ASSERT_TRUE(WaitForWorkers().ok());
  Start(Role::kWorker, "worker 1", "kill -9 $$");
  EXPECT_TRUE(WaitForWorkers().ok()) << "another one has come to the end";
  EXPECT_TRUE(cluster_.IsLost("worker 1"));
  cluster_.StopAll();
}

TEST_F(LocalClusterTest, AServerThatEndsBeforeTheWorkersIsAFailure) {
  Start(Role::kServer, "ps 0", "exit 0");
  Start(Role::kWorker, "worker 0", "sleep 1000");
  EXPECT_THAT(std::string(WaitForWorkers().message()), HasSubstr("ended before the workers"));
  cluster_.StopAll();
}

TEST_F(LocalClusterTest, AServerThatEndsBadlyWhenAskedToEndIsAFailure) {
  Start(Role::kServer, "ps 0", "trap 'exit 5' TERM; echo up; while :; do sleep 0.01; done; exit 0");
  ASSERT_TRUE(WaitForLine("ps 0: up").ok());
  EXPECT_THAT(std::string(cluster_.StopServers(kSlowMs, Never).message()), HasSubstr("exit code 5"));
}

TEST_F(LocalClusterTest, AServerMayTakeItsTimeToEnd) {
  Start(Role::kServer, "ps 0",
        "asked=0 go=0; trap asked=1 TERM; trap go=1 USR1; echo up; while [ $asked$go != 11 ]; do sleep 0.01; done; "
        "exit 0");
  ASSERT_TRUE(WaitForLine("ps 0: up").ok());
  int slow = 0;
  EXPECT_TRUE(cluster_
                  .StopServers(/*slow_ms=*/1,
                               [&] {
                                 ++slow;
                                 kill(pids_.back(), SIGUSR1);
                               })
                  .ok());
  EXPECT_EQ(slow, 1);
}

TEST_F(LocalClusterTest, AnInterruptEndsTheWaitAndStopAllLeavesNothing) {
  Start(Role::kServer, "ps 0", kServer);
  Start(Role::kWorker, "worker 0", "echo up; sleep 1000");
  ASSERT_TRUE(WaitForLine("ps 0: up").ok());
  ASSERT_TRUE(WaitForLine("worker 0: up").ok());
  raise(SIGINT);
  EXPECT_EQ(WaitForWorkers().code(), absl::StatusCode::kCancelled);
  cluster_.StopAll();
  EXPECT_THAT(lines_, Contains("ps 0: stopped"));
  for (const pid_t pid : pids_) EXPECT_NE(kill(pid, 0), 0) << pid;
}

TEST_F(LocalClusterTest, AFirstCtrlCMayAskTheWorkersToFinish) {
  Start(Role::kServer, "ps 0", kServer);
  Start(Role::kWorker, "worker 0", "trap 'echo finished; exit 5' INT; echo up; while :; do sleep 0.01; done; exit 0");
  ASSERT_TRUE(WaitForLine("ps 0: up").ok());
  ASSERT_TRUE(WaitForLine("worker 0: up").ok());
  EXPECT_FALSE(cluster_.AskToFinish()) << "nobody has asked";
  raise(SIGINT);
  EXPECT_EQ(WaitForWorkers().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(cluster_.AskToFinish());
  EXPECT_TRUE(WaitForWorkers().ok()) << "5: not all samples were trained";
  EXPECT_THAT(lines_, Contains("worker 0: finished"));
  raise(SIGTERM);
  EXPECT_EQ(WaitForLine("never").code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(cluster_.AskToFinish()) << "that was more than one Ctrl-C";
}

// Regression: a worker that was added, and still loaded its data, ended the whole run so.
TEST_F(LocalClusterTest, AFirstCtrlCGoesOnWithoutAWorkerThatHasNotBegunToTrain) {
  cluster_.SetWorkersMin(1);
  Start(Role::kServer, "ps 0", kServer);
  Start(Role::kWorker, "worker 0", "trap 'exit 0' INT; echo up; while :; do sleep 0.01; done");
  Start(Role::kWorker, "worker 1", "trap 'exit 130' INT; echo up; while :; do sleep 0.01; done");
  for (const char* name : {"ps 0: up", "worker 0: up", "worker 1: up"}) ASSERT_TRUE(WaitForLine(name).ok());
  raise(SIGINT);
  EXPECT_EQ(WaitForWorkers().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(cluster_.AskToFinish());
  EXPECT_TRUE(WaitForWorkers().ok());
  EXPECT_TRUE(cluster_.IsLost("worker 1"));
}

TEST_F(LocalClusterTest, ASecondInterruptKillsWhatIgnoresTheFirst) {
  const char kStubborn[] = "trap '' TERM INT; echo up; while :; do sleep 0.01; done";
  Start(Role::kServer, "ps 0", kStubborn);
  Start(Role::kWorker, "worker 0", kStubborn);
  ASSERT_TRUE(WaitForLine("ps 0: up").ok());
  ASSERT_TRUE(WaitForLine("worker 0: up").ok());
  raise(SIGINT);
  EXPECT_EQ(WaitForWorkers().code(), absl::StatusCode::kCancelled);
  raise(SIGTERM);
  cluster_.StopAll();
  for (const pid_t pid : pids_) EXPECT_NE(kill(pid, 0), 0) << pid;
}

TEST_F(LocalClusterTest, AWaitNamesWhatItWaitedForInVain) {
  const absl::Status status = cluster_.WaitFor([] { return false; }, "the address of ps 0", 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the address of ps 0"));
}

}  // namespace
}  // namespace lodestone::psctl
