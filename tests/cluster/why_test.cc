// `psctl why` of real processes that are stopped, or whose disk hangs: it names what they are waited for, across
// processes.
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
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
  cluster_->Stop(1);
  Said said;
  EXPECT_TRUE(AwaitWhy("on ps 1, which does not answer, last heard of ", &said)) << said.output;
  EXPECT_THAT(said.output, ContainsRegex("worker 0's push [0-9]+ waits for shard"));
  EXPECT_THAT(said.end, HasSubstr("exit code 1"));
  cluster_->Signal(1, SIGCONT);
  EXPECT_TRUE(AwaitWhy("nothing waits", &said)) << said.output;
  EXPECT_THAT(said.output, HasSubstr("pushes on ps"));
  ExpectExact();
}

// Two workers, each of which has leased one of the two batches of the first step of a table; another table takes pushes
// as they come.
class WhyOfStepsTest : public WhyTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StartCluster(/*servers=*/2, {"coordinator.lease_ms=600000"}, false, /*replicas=*/1));
    v1::TableSpec steps = DenseOnes();
    steps.mutable_consistency()->mutable_sync()->set_batches(2);
    ASSERT_NO_FATAL_FAILURE(Connect({steps, RowOnes()}));
    Run([&] {
      auto other = worker::Client::Connect(cluster_->config());
      ASSERT_TRUE(other.ok()) << other.status();
      other_ = *std::move(other);
      ASSERT_TRUE(other_->EnsureTables({steps, RowOnes()}).ok());
      LeaseBatch(client_.get(), 0);
      LeaseBatch(other_.get(), 1);
    });
    for (Key key = 0; key < kKeys; ++key) keys_.push_back(key);
  }
  void TearDown() override {
    Run([this] { other_.reset(); });
  }

  static void LeaseBatch(worker::Client* client, uint64_t batch) {
    v1::LeaseRangesRequest request;
    v1::RangePlan& plan = *request.mutable_plan();
    plan.set_description("steps of two batches");
    plan.set_epoch_batches(20);
    plan.set_batches(20);
    plan.set_range_batches(1);
    plan.set_step_batches(2);
    request.set_wants_range(true);
    const auto leased = client->LeaseRanges(request);
    ASSERT_TRUE(leased.ok()) << leased.status();
    ASSERT_TRUE(leased->has_lease()) << leased->waiting_for();
    EXPECT_EQ(leased->lease().first_batch(), batch);
  }
  void Contribute(worker::Client* client, uint32_t batch) {
    v1::Contribution contribution;
    contribution.set_batch(batch);
    contribution.set_samples(1);
    const worker::DenseGradient ones{&tables_[0], ones_.data(), true};
    const absl::Status sent = client->Push({0, contribution}, {&ones, 1}, {}, {}, [](const auto& result) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    });
    EXPECT_TRUE(sent.ok()) << sent;
  }

  const std::vector<float> ones_ = std::vector<float>(kElements, 1.0f);
  std::vector<Key> keys_;
  std::unique_ptr<worker::Client> other_;
};

TEST_F(WhyOfStepsTest, AStepLeadsToTheWorkerWhoseBatchIsMissingAndToWhatThatOneWaitsFor) {
  Run([this] {
    Contribute(client_.get(), 0);
    EXPECT_TRUE(client_->Flush().ok());
  });
  std::vector<float> values(kElements);
  std::atomic<bool> pulled{false};
  client_->PullSteps({.steps_min = 1}, {{&tables_[0], values.data()}}, {},
                     [&](const absl::Status& status, const worker::ShardVersions&, uint64_t steps) {
                       EXPECT_TRUE(status.ok()) << status;
                       EXPECT_EQ(steps, 1u);
                       pulled = true;
                     });
  Said said;
  EXPECT_TRUE(AwaitWhy("which waits for batch 1 of step 0 of worker 1", &said)) << said.output;
  EXPECT_THAT(said.output, ContainsRegex("worker 0's pull waits for shard[^,]* on ps [01], which waits for batch 1 of "
                                         "step 0 of worker 1"));
  // It has another push under way before it contributes, to a ps that is stopped.
  cluster_->Stop(1);
  const worker::RowGradients rows{&tables_[1], keys_, ones_.data()};
  ASSERT_TRUE(other_->Push(0, {}, {&rows, 1}, {}, [](const auto&) {}).ok());
  EXPECT_TRUE(AwaitWhy("of worker 1, whose push", &said)) << said.output;
  EXPECT_THAT(said.output,
              ContainsRegex("worker 0's pull waits for shard[^,]* on ps 0, which waits for batch 1 of step "
                            "0 of worker 1, whose push [0-9]+ waits for shard.* on ps 1, which does not answer"));
  cluster_->Signal(1, SIGCONT);
  Run([this] { Contribute(other_.get(), 1); });
  EXPECT_TRUE(Await([&] { return pulled.load(); }));
  EXPECT_EQ(values, ones_) << "the mean of both";
  EXPECT_TRUE(AwaitWhy("nothing waits", &said)) << said.output;
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
