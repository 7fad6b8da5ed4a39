// Every sample trained once in each epoch, with real workers and servers that come, go and die.
//
// Sample i has the key i and nothing else, and nothing else is trained: the weight of key i says how often the sample
// was. LODESTONE_RANGE_KILLS: how many kills, instead of a few.
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/time_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/chaos/ps_cluster.h"
#include "tools/psctl/local/child_process.h"
#include "worker/client/cluster_reader.h"

namespace lodestone {
namespace {

constexpr uint64_t kSeed = 20261123;
constexpr uint64_t kSamples = 3200, kBatch = 20;
constexpr double kRate = 0.5;

std::string ProgramOf(const std::string& name) {
  return absl::StrCat(getenv("TEST_SRCDIR"), "/", getenv("TEST_WORKSPACE"), "/", name);
}

// What the weight of a sample with label 1 is after so many steps, each with 1 / kBatch of its gradient.
std::vector<double> WeightsAfter(uint64_t steps) {
  std::vector<double> weights = {0};
  for (uint64_t i = 0; i < steps; ++i) {
    weights.push_back(weights.back() + kRate / kBatch / (1 + std::exp(weights.back())));
  }
  return weights;
}

// The number of steps after which the weight is `weight`; -1: none.
int64_t StepsOf(const std::vector<double>& after, double weight) {
  const auto above = std::lower_bound(after.begin(), after.end(), weight);
  for (auto at = above == after.begin() ? above : above - 1; at != after.end() && at <= above; ++at) {
    const double step = at + 1 != after.end() ? at[1] - at[0] : at[0] - at[-1];
    if (std::abs(*at - weight) < step / 3) return at - after.begin();
  }
  return -1;
}

class RangesRun : public testing::Test {
 protected:
  void SetUp() override {
    std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
    folder_ = absl::StrCat(getenv("TEST_TMPDIR"), "/", testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
    std::ofstream data(absl::StrCat(folder_, "/samples"));
    for (uint64_t i = 0; i < kSamples; ++i) data << i % 2 << " " << i << ":1\n";
  }

  // With `spilled`, workers hold a part of the samples on the disk, and go by windows.
  void StartServers(uint32_t epochs, bool spilled = false, int lease_ms = 2000) {
    epochs_ = epochs;
    chaos::PsCluster::Options options;
    options.ps_binary = ProgramOf("server/ps");
    options.folder = folder_;
    options.data_dir = absl::StrCat(folder_, "/data");
    options.servers = 2;
    options.sets = {"cluster.workers=1", absl::StrCat("coordinator.lease_ms=", lease_ms),
                    absl::StrCat("coordinator.worker_lease_ms=", lease_ms)};
    auto cluster = chaos::PsCluster::Create(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    for (uint32_t server = 0; server < 2; ++server) {
      ASSERT_TRUE(cluster_->Start(server).ok());
      while (!cluster_->Listens(server)) cluster_->Pump(10);
    }
    std::ofstream(absl::StrCat(folder_, "/worker.yaml"))
        << "cluster: {name: " << cluster_->config().cluster().name() << ", servers: 2, workers: 1, seed: 3}\n"
        << "coordinator: {address: '" << cluster_->config().coordinator().address() << "', lease_ms: " << lease_ms
        << "}\n"
        << "worker: {call_timeout_ms: 2000}\n"
        << "model: {type: linear, optimizer: {sgd: {}, learning_rate: " << kRate << "},\n"
        << "        dense: {optimizer: {sgd: {}, learning_rate: 1.0e-12}}}\n"
        << "data: {format: libsvm, train: " << folder_ << "/samples"
        << (spilled ? absl::StrCat(", memory_max_bytes: 30000, spill_dir: ", folder_, "/spill") : "") << "}\n"
        << "train: {epochs: " << epochs << ", batch_size: " << kBatch << ", sharing: ranges, range_batches: 8,\n"
        << "        bias_from_labels: false, shuffle_window: " << (spilled ? 640 : 0) << "}\n";
  }

  void StartWorker() {
    auto worker = psctl::Child::Start(absl::StrCat("worker ", ++started_),
                                      {ProgramOf("worker/worker"), "--config", absl::StrCat(folder_, "/worker.yaml")});
    ASSERT_TRUE(worker.ok()) << worker.status();
    workers_.push_back(*std::move(worker));
  }
  // Reads what the processes say. Those workers that have ended are taken out; the exit codes of those that were not
  // killed are noted.
  void Pump() {
    cluster_->Pump(10);
    std::erase_if(workers_, [this](const std::unique_ptr<psctl::Child>& worker) {
      const auto note = [](absl::string_view line) {
        std::printf("%.*s\n", static_cast<int>(line.size()), line.data());
      };
      worker->ReadOutput(note);
      if (!worker->Reap(note)) return false;
      ended_.push_back(worker->exit_code());
      return true;
    });
  }
  // What the coordinator knows of the run; empty while it does not answer.
  v1::RangeState State() {
    const auto status = cluster_->StatusOf(0, /*timeout_ms=*/2000);
    return status.ok() ? status->cluster().ranges() : v1::RangeState();
  }
  static uint64_t Done(const v1::RangeState& state) {
    uint64_t done = state.batches_closed();
    for (const v1::RangeLease& range : state.open()) done += range.done();
    return done;
  }
  void AwaitServers() {
    for (uint32_t server = 0; server < 2; ++server) {
      while (!cluster_->Serves(server)) Pump();
    }
  }

  // How often each sample was trained, as an observer reads it: number of samples by that.
  std::map<int64_t, uint64_t> Counts() {
    v1::Config config = cluster_->config();
    const auto reader = worker::ClusterReader::Observe(config);
    EXPECT_TRUE(reader.ok()) << reader.status();
    if (!reader.ok()) return {};
    auto specs = (*reader)->DescribeTables({"linear"});
    EXPECT_TRUE(specs.ok() && specs->size() == 1) << specs.status();
    if (!specs.ok() || specs->empty()) return {};
    const auto tables = (*reader)->EnsureTables(*specs);
    EXPECT_TRUE(tables.ok()) << tables.status();
    if (!tables.ok()) return {};
    std::vector<Key> keys(kSamples);
    for (uint64_t i = 0; i < kSamples; ++i) keys[i] = i;
    std::vector<float> weights(kSamples);
    EXPECT_TRUE((*reader)->PullNow({}, {{&tables->front(), keys, weights.data()}}).ok());
    const std::vector<double> after = WeightsAfter(2 * epochs_ + 3);
    std::map<int64_t, uint64_t> counts;
    for (uint64_t i = 0; i < kSamples; ++i) {
      const double weight = i % 2 == 1 ? weights[i] : -weights[i];
      ++counts[StepsOf(after, weight)];
    }
    return counts;
  }

  std::string folder_;
  uint32_t epochs_ = 1;
  std::unique_ptr<chaos::PsCluster> cluster_;
  std::vector<std::unique_ptr<psctl::Child>> workers_;
  int started_ = 0;
  std::vector<int> ended_;  // Exit codes.
};

TEST_F(RangesRun, OneEpochWithAWorkerThatIsKilledAndOneThatComesLater) {
  StartServers(/*epochs=*/8);
  StartWorker();
  while (Done(State()) == 0) Pump();
  StartWorker();  // Beyond cluster.workers.
  while (Done(State()) < 2 * kSamples / kBatch) Pump();
  workers_.front()->Signal(SIGKILL);
  while (!workers_.empty()) Pump();
  EXPECT_THAT(ended_, testing::UnorderedElementsAre(-1, 0));
  EXPECT_THAT(Counts(), testing::ElementsAre(testing::Pair(8, kSamples)));
  EXPECT_TRUE(State().over());
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
    workers_.front()->Signal(SIGSTOP);
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
  workers_.front()->Signal(SIGKILL);
  while (!State().over()) Pump();
  std::printf("from the death of the worker to the end of the run: %lld ms\n",
              static_cast<long long>(SteadyTime().NowMs() - from_ms));
  while (!workers_.empty()) Pump();
  EXPECT_THAT(ended_, testing::UnorderedElementsAre(-1, 0));
  ExpectEachTrainedOnce();
}

TEST_F(StoppedWorkerRun, WhenItGoesOnItHasItsRanges) {
  ASSERT_NO_FATAL_FAILURE(StopOneInTheMiddle());
  workers_.front()->Signal(SIGCONT);
  while (!workers_.empty()) Pump();
  EXPECT_THAT(ended_, testing::UnorderedElementsAre(0, 0));
  EXPECT_EQ(State().leased_again(), 0u);
  ExpectEachTrainedOnce();
}

TEST_F(RangesRun, SamplesOnTheDiskWithAWorkerThatIsKilled) {
  StartServers(/*epochs=*/6, /*spilled=*/true);
  StartWorker();
  StartWorker();
  while (Done(State()) < kSamples / kBatch) Pump();
  workers_.front()->Signal(SIGKILL);
  while (!workers_.empty()) Pump();
  EXPECT_THAT(ended_, testing::UnorderedElementsAre(-1, 0));
  EXPECT_THAT(Counts(), testing::ElementsAre(testing::Pair(6, kSamples)));
  EXPECT_TRUE(std::filesystem::is_empty(absl::StrCat(folder_, "/spill"))) << "of a worker that is killed, too";
}

TEST_F(RangesRun, EverySampleIsTrainedOnceInEachEpochWhileWorkersAndServersAreKilled) {
  const char* more = getenv("LODESTONE_RANGE_KILLS");
  int kills = 0;
  if (more == nullptr || !absl::SimpleAtoi(more, &kills)) kills = 10;
  StartServers(/*epochs=*/static_cast<uint32_t>(6 + 3 * kills));
  uint64_t drawn = 0;
  const auto draw = [&](uint64_t n) { return RandomBits(kSeed, drawn++) % n; };
  int killed_workers = 0, killed_servers = 0;
  for (int kill = 0; kill < kills; ++kill) {
    const size_t wanted = 1 + draw(6);
    while (workers_.size() < wanted) StartWorker();
    const uint64_t before = Done(State()), next = before + draw(3 * kSamples / kBatch);
    while (Done(State()) < next && !State().over()) {
      if (workers_.empty()) StartWorker();  // One that was to end may have been the last.
      Pump();
    }
    if (draw(3) == 0) {
      const auto server = static_cast<uint32_t>(draw(2));
      cluster_->SetMayEnd(server, true);
      cluster_->Kill(server);
      ASSERT_TRUE(cluster_->Start(server).ok());
      AwaitServers();
      ++killed_servers;
    } else if (!workers_.empty()) {
      const std::unique_ptr<psctl::Child>& worker = workers_[draw(workers_.size())];
      worker->Signal(draw(4) == 0 ? SIGTERM : SIGKILL);
      ++killed_workers;
    }
  }
  std::printf("killed %d workers and %d servers\n", killed_workers, killed_servers);
  while (!State().over()) {
    if (workers_.empty()) StartWorker();
    Pump();
  }
  while (!workers_.empty()) Pump();
  std::printf("leased again: %llu\n", static_cast<unsigned long long>(State().leased_again()));
  EXPECT_THAT(Counts(), testing::ElementsAre(testing::Pair(static_cast<int64_t>(epochs_), kSamples)));
}

}  // namespace
}  // namespace lodestone
