// Every sample trained once in each epoch, with real workers and servers that come, go and die.
//
// LODESTONE_RANGE_KILLS: how many kills, instead of a few.
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/chaos/checkpoint_call.h"
#include "tests/chaos/counting_workers.h"
#include "tests/chaos/ps_cluster.h"
#include "tools/psctl/local/child_process.h"

namespace lodestone {
namespace {

constexpr uint64_t kSeed = 20261123;
constexpr uint64_t kSamples = chaos::CountingWorkers::kSamples, kBatch = chaos::CountingWorkers::kBatch;

std::string ProgramOf(const std::string& name) {
  return absl::StrCat(getenv("TEST_SRCDIR"), "/", getenv("TEST_WORKSPACE"), "/", name);
}

class RangesRun : public testing::Test {
 protected:
  void SetUp() override {
    std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
    folder_ = absl::StrCat(getenv("TEST_TMPDIR"), "/", testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }

  void TearDown() override {
    if (HasFailure()) std::cout << std::ifstream(absl::StrCat(folder_, "/workers.log")).rdbuf();
  }

  // With `spilled`, workers hold a part of the samples on the disk, and go by windows. `lease_ms`: of all processes;
  // nullopt: the defaults.
  void StartServers(uint32_t epochs, bool spilled = false, std::optional<int> lease_ms = 2000) {
    epochs_ = epochs;
    chaos::PsCluster::Options options;
    options.ps_binary = ProgramOf("server/ps");
    options.folder = folder_;
    options.data_dir = absl::StrCat(folder_, "/data");
    options.servers = 2;
    options.sets = {"cluster.workers=1"};
    if (lease_ms.has_value()) {
      options.sets.push_back(absl::StrCat("coordinator.lease_ms=", *lease_ms));
      options.sets.push_back(absl::StrCat("coordinator.worker_lease_ms=", *lease_ms));
    }
    auto cluster = chaos::PsCluster::Create(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    for (uint32_t server = 0; server < 2; ++server) {
      ASSERT_TRUE(cluster_->Start(server).ok());
      while (!cluster_->Listens(server)) cluster_->Pump(10);
    }
    chaos::CountingWorkers::Options training{
        .worker_binary = ProgramOf("worker/worker"), .folder = folder_, .epochs = epochs};
    if (spilled) {
      training.sets = {"data.memory_max_bytes=30000", absl::StrCat("data.spill_dir=", folder_, "/spill"),
                       "train.shuffle_window=640"};
    }
    training_ = std::make_unique<chaos::CountingWorkers>(cluster_.get(), training);
  }

  void StartWorker() { ASSERT_TRUE(training_->Start().ok()); }
  // Reads what the processes say. The exit codes of those workers that have ended are noted.
  void Pump() {
    cluster_->Pump(10);
    for (const chaos::CountingWorkers::End& end : training_->Pump()) {
      ended_.push_back(end.exit_code);
      killed_ += end.signal == SIGKILL;
    }
  }
  bool IsRunning(pid_t worker) const {
    return std::any_of(workers().begin(), workers().end(),
                       [worker](const std::unique_ptr<psctl::Child>& each) { return each->pid() == worker; });
  }
  const std::vector<std::unique_ptr<psctl::Child>>& workers() const { return training_->running(); }
  v1::RangeState State() { return training_->State(); }
  static uint64_t Done(const v1::RangeState& state) { return chaos::CountingWorkers::Done(state); }
  void AwaitServers() {
    for (uint32_t server = 0; server < 2; ++server) {
      while (!cluster_->Serves(server)) Pump();
    }
  }

  void Checkpoint(const std::string& name) {
    for (uint32_t server = 0; server < 2; ++server) {
      chaos::CheckpointCall call(cluster_->PortOf(server), name);
      while (!call.done()) Pump();
      ASSERT_TRUE(call.Result().ok()) << call.Result();
    }
  }
  // All servers end, and come back.
  void RestartServers() {
    for (uint32_t server = 0; server < 2; ++server) cluster_->Terminate(server);
    for (uint32_t server = 0; server < 2; ++server) {
      while (cluster_->Runs(server)) Pump();
    }
    for (uint32_t server = 0; server < 2; ++server) ASSERT_TRUE(cluster_->Start(server).ok());
    AwaitServers();
  }

  std::map<int64_t, uint64_t> Counts() {
    const auto counts = training_->Counts(2 * epochs_ + 3);
    EXPECT_TRUE(counts.ok()) << counts.status();
    return counts.ok() ? *counts : std::map<int64_t, uint64_t>();
  }

  std::string folder_;
  uint32_t epochs_ = 1;
  std::unique_ptr<chaos::PsCluster> cluster_;
  std::unique_ptr<chaos::CountingWorkers> training_;
  std::vector<int> ended_;  // Exit codes.
  int killed_ = 0;          // Workers that SIGKILL ended.
};

TEST_F(RangesRun, OneEpochWithAWorkerThatIsKilledAndOneThatComesLater) {
  StartServers(/*epochs=*/8);
  StartWorker();
  while (Done(State()) == 0) Pump();
  StartWorker();  // Beyond cluster.workers.
  while (Done(State()) < 2 * kSamples / kBatch) Pump();
  workers().front()->Signal(SIGKILL);
  while (!workers().empty()) Pump();
  EXPECT_THAT(ended_, testing::UnorderedElementsAre(-1, 0));
  EXPECT_THAT(Counts(), testing::ElementsAre(testing::Pair(8, kSamples)));
  EXPECT_TRUE(State().over());
}

// A run stays where it is when its tables go back: it has trained what the checkpoint lacks.
TEST_F(RangesRun, AnotherRunTrainsTablesThatWentBackToACheckpoint) {
  StartServers(/*epochs=*/2);
  StartWorker();
  while (!workers().empty()) Pump();
  ASSERT_NO_FATAL_FAILURE(Checkpoint("end"));
  ASSERT_TRUE(training_->Start({"train.run=second"}).ok());
  while (State().plan().run() != "second" || Done(State()) < kSamples / kBatch) Pump();
  workers().front()->Signal(SIGTERM);
  while (!workers().empty()) Pump();
  cluster_->AddSet("checkpoint.load=end");
  ASSERT_NO_FATAL_FAILURE(RestartServers());
  EXPECT_THAT(Counts(), testing::ElementsAre(testing::Pair(2, kSamples)));
  ASSERT_TRUE(training_->Start({"train.run=third"}).ok());
  while (!workers().empty()) Pump();
  EXPECT_TRUE(State().over());
  EXPECT_THAT(Counts(), testing::ElementsAre(testing::Pair(4, kSamples)));
}

// A worker that is stopped in the middle of its ranges, beside another one that trains all the rest.
class StoppedWorkerRun : public RangesRun {
 protected:
  static constexpr int kLongLeaseMs = 3'600'000;
  static constexpr uint32_t kEpochs = 4;

  void StopOneInTheMiddle() {
    StartServers(kEpochs, /*spilled=*/false, kLongLeaseMs);
    StartWorker();
    while (Done(State()) == 0) Pump();
    workers().front()->Signal(SIGSTOP);
    v1::RangeState state = State();
    ASSERT_GT(state.open_size(), 0);
    const Incarnation stopped = state.open(0).holder();
    StartWorker();
    const auto rest_is_trained = [&] {
      const auto is_its = [stopped](const v1::RangeLease& range) { return range.holder() == stopped; };
      state = State();
      return state.next_batch() == kEpochs * kSamples / kBatch &&
             std::all_of(state.open().begin(), state.open().end(), is_its);
    };
    while (!rest_is_trained()) Pump();
    ASSERT_GT(state.open_size(), 0) << "another has had its ranges";
  }
  void ExpectEachTrainedOnce() { EXPECT_THAT(Counts(), testing::ElementsAre(testing::Pair(kEpochs, kSamples))); }
};

TEST_F(StoppedWorkerRun, WhenItDiesItsRangesAreGivenAgainWithoutWaitingForItsLease) {
  ASSERT_NO_FATAL_FAILURE(StopOneInTheMiddle());
  const int64_t from_ms = SteadyTime().NowMs();
  workers().front()->Signal(SIGKILL);
  while (!State().over()) Pump();
  std::printf("from the death of the worker to the end of the run: %lld ms\n",
              static_cast<long long>(SteadyTime().NowMs() - from_ms));
  while (!workers().empty()) Pump();
  EXPECT_THAT(ended_, testing::UnorderedElementsAre(-1, 0));
  ExpectEachTrainedOnce();
}

TEST_F(StoppedWorkerRun, WhenItGoesOnItHasItsRanges) {
  ASSERT_NO_FATAL_FAILURE(StopOneInTheMiddle());
  workers().front()->Signal(SIGCONT);
  while (!workers().empty()) Pump();
  EXPECT_THAT(ended_, testing::UnorderedElementsAre(0, 0));
  EXPECT_EQ(State().leased_again(), 0u);
  ExpectEachTrainedOnce();
}

// At the default lease. The stopped one goes on while the other one trains what it had, finds that it is no longer part
// of the cluster, and ends with an error: its operator, or psctl, starts another one.
TEST_F(RangesRun, AWorkerThatIsStoppedBeyondItsLeaseLosesItsRangesToAnother) {
  constexpr uint32_t kEpochs = 8;
  StartServers(kEpochs, /*spilled=*/false, /*lease_ms=*/std::nullopt);
  ASSERT_EQ(cluster_->config().coordinator().worker_lease_ms(), 3000u) << "the default";
  StartWorker();
  while (Done(State()) == 0) Pump();
  psctl::Child* const stopped = workers().front().get();
  stopped->Signal(SIGSTOP);
  const int64_t stopped_ms = SteadyTime().NowMs();
  ASSERT_GT(State().open_size(), 0);
  StartWorker();
  while (State().leased_again() == 0 && !State().over()) Pump();
  ASSERT_GT(State().leased_again(), 0u);
  std::printf("from the stop of the worker until another had one of its ranges: %lld ms\n",
              static_cast<long long>(SteadyTime().NowMs() - stopped_ms));
  stopped->Signal(SIGCONT);
  while (!workers().empty()) Pump();
  EXPECT_TRUE(State().over());
  EXPECT_THAT(ended_, testing::UnorderedElementsAre(1, 0));
  std::stringstream log;
  log << std::ifstream(absl::StrCat(folder_, "/workers.log")).rdbuf();
  EXPECT_THAT(log.str(), testing::ContainsRegex("worker 1: .* no longer part of the cluster: the lease is lost"));
  EXPECT_THAT(Counts(), testing::ElementsAre(testing::Pair(kEpochs, kSamples)));
}

TEST_F(RangesRun, SamplesOnTheDiskWithAWorkerThatIsKilled) {
  StartServers(/*epochs=*/6, /*spilled=*/true);
  StartWorker();
  StartWorker();
  while (Done(State()) < kSamples / kBatch) Pump();
  workers().front()->Signal(SIGKILL);
  while (!workers().empty()) Pump();
  EXPECT_THAT(ended_, testing::UnorderedElementsAre(-1, 0));
  EXPECT_THAT(Counts(), testing::ElementsAre(testing::Pair(6, kSamples)));
  EXPECT_TRUE(std::filesystem::is_empty(absl::StrCat(folder_, "/spill"))) << "of a worker that is killed, too";
}

TEST_F(RangesRun, EverySampleIsTrainedOnceInEachEpochWhileWorkersAndServersAreKilled) {
  const char* more = getenv("LODESTONE_RANGE_KILLS");
  int kills = 0;
  if (more == nullptr || !absl::SimpleAtoi(more, &kills)) kills = 10;
  // One and a half of them go by before a signal, on average, and some signals are no kills.
  StartServers(/*epochs=*/static_cast<uint32_t>(6 + 4 * kills));
  uint64_t drawn = 0;
  const auto draw = [&](uint64_t n) { return RandomBits(kSeed, drawn++) % n; };
  int killed_servers = 0, asked_to_leave = 0;
  while (killed_ + killed_servers < kills && !State().over()) {
    const size_t wanted = 1 + draw(6);
    while (workers().size() < wanted) StartWorker();
    const uint64_t before = Done(State()), next = before + draw(3 * kSamples / kBatch);
    while (Done(State()) < next && !State().over()) {
      if (workers().empty()) StartWorker();  // One that was to end may have been the last.
      Pump();
    }
    if (draw(3) == 0) {
      const auto server = static_cast<uint32_t>(draw(2));
      cluster_->SetMayEnd(server, true);
      cluster_->Kill(server);
      ASSERT_TRUE(cluster_->Start(server).ok());
      AwaitServers();
      ++killed_servers;
    } else if (!workers().empty()) {
      const std::unique_ptr<psctl::Child>& worker = workers()[draw(workers().size())];
      if (draw(4) == 0) {
        worker->Signal(SIGTERM);
        ++asked_to_leave;
        continue;
      }
      const pid_t pid = worker->pid();
      worker->Signal(SIGKILL);
      while (IsRunning(pid)) Pump();  // Until it is counted, unless it had just ended.
    }
  }
  std::printf("killed %d workers and %d servers; %d workers were asked to leave\n", killed_, killed_servers,
              asked_to_leave);
  EXPECT_EQ(killed_ + killed_servers, kills) << "the run was over before";
  while (!State().over()) {
    if (workers().empty()) StartWorker();
    Pump();
  }
  while (!workers().empty()) Pump();
  std::printf("leased again: %llu\n", static_cast<unsigned long long>(State().leased_again()));
  EXPECT_THAT(Counts(), testing::ElementsAre(testing::Pair(static_cast<int64_t>(epochs_), kSamples)));
}

}  // namespace
}  // namespace lodestone
