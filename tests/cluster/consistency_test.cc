// What train.consistency promises, with real workers and servers.
//
// Sync: the parameters after a run are the same, bit for bit, however many workers there are, and whichever of them and
// of the servers die. LODESTONE_CONSISTENCY_KILLS: how many kills, instead of a few.
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "common/base/mutex.h"
#include "common/base/random.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/chaos/counting_workers.h"
#include "tests/chaos/ps_cluster.h"
#include "tests/cluster/psctl_run.h"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/local/child_process.h"
#include "worker/client/client.h"
#include "worker/training/clock_gate.h"

namespace lodestone {
namespace {

constexpr uint64_t kSeed = 20261124;
constexpr int kKills = 6;  // Of workers and servers in a disturbed run, unless it is told how many.

std::string ProgramOf(const std::string& name) {
  return absl::StrCat(getenv("TEST_SRCDIR"), "/", getenv("TEST_WORKSPACE"), "/", name);
}

uint64_t NumberOf(const char* variable, uint64_t otherwise) {
  const char* const text = getenv(variable);
  uint64_t number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : otherwise;
}

// The tensors of a safetensors file, without what it says about where they are from.
std::string TensorsOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes = {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  uint64_t header = 0;
  if (bytes.size() < sizeof(header)) return "";
  std::memcpy(&header, bytes.data(), sizeof(header));
  nlohmann::json names = nlohmann::json::parse(bytes.substr(sizeof(header), header));
  names.erase("__metadata__");
  return names.dump() + bytes.substr(sizeof(header) + header);
}

// So many pulls of rows of one float, some of them at a time. Calls `check` with the values of each, one call at a time
// but from any thread; returns when all have been answered, and how many have been.
uint64_t PullAgainAndAgain(worker::Client* client, const worker::TableHandle* table, const std::vector<Key>& keys,
                           uint64_t pulls, const std::function<void(const std::vector<float>& values)>& check) {
  constexpr size_t kAtOnce = 16;
  struct State {
    std::vector<std::vector<float>> values;  // By chain of pulls, each of which begins the next.
    std::atomic<uint64_t> begun{0}, answered{0};
    Mutex mu;
    Countdown left{kAtOnce};
    std::function<void(size_t)> next;
  } state;
  state.values.assign(kAtOnce, std::vector<float>(keys.size()));
  state.next = [&](size_t chain) {
    if (state.begun++ >= pulls) return state.left.CountDown();
    client->Pull({}, {{table, keys, state.values[chain].data()}}, [&, chain](const absl::Status& status, const auto&) {
      EXPECT_TRUE(status.ok()) << status;
      if (!status.ok()) return state.left.CountDown();
      {
        MutexLock lock(&state.mu);
        check(state.values[chain]);
      }
      ++state.answered;
      state.next(chain);
    });
  };
  for (size_t chain = 0; chain < kAtOnce; ++chain) state.next(chain);
  state.left.Wait();
  return state.answered;
}

class ConsistencyRun : public testing::Test {
 protected:
  void SetUp() override { std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed)); }

  // A fresh cluster of two ps, and what workers of it are to train.
  void StartServers(const std::string& name, const std::string& rest, int lease_ms = 2000) {
    workers_.clear();
    ended_.clear();
    killed_ = 0;
    cluster_.reset();
    folder_ = TestFile(absl::StrCat(testing::UnitTest::GetInstance()->current_test_info()->name(), "-", name));
    std::filesystem::create_directories(folder_);
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
        << "worker: {call_timeout_ms: 2000, deterministic: true}\n"
        << rest;
  }
  void StartWorker() {
    ++started_;
    auto worker = psctl::Child::Start(absl::StrCat("worker ", started_),
                                      {ProgramOf("worker/worker"), "--config", absl::StrCat(folder_, "/worker.yaml"),
                                       "--summary", absl::StrCat(folder_, "/summary-", started_, ".json")});
    ASSERT_TRUE(worker.ok()) << worker.status();
    workers_.push_back(*std::move(worker));
  }
  void Pump() {
    cluster_->Pump(10);
    std::erase_if(workers_, [this](const std::unique_ptr<psctl::Child>& worker) {
      const auto note = [](absl::string_view line) {
        std::printf("%.*s\n", static_cast<int>(line.size()), line.data());
      };
      worker->ReadOutput(note);
      if (!worker->Reap(note)) return false;
      ended_.push_back(worker->exit_code());
      killed_ += worker->signal() == SIGKILL;
      return true;
    });
  }
  v1::RangeState State() {
    const auto status = cluster_->StatusOf(0, /*timeout_ms=*/2000);
    return status.ok() ? status->cluster().ranges() : v1::RangeState();
  }
  // Kills a ps, and starts it again.
  void KillServer(uint32_t server) {
    cluster_->SetMayEnd(server, true);
    cluster_->Kill(server);
    ASSERT_TRUE(cluster_->Start(server).ok());
    for (uint32_t each = 0; each < 2; ++each) {
      while (!cluster_->Serves(each)) Pump();
    }
  }
  // The tensors that the run has come to, by psctl export.
  std::string Parameters() {
    PsctlRun checkpoint({"checkpoint", "end", "--address", cluster_->config().coordinator().address()});
    EXPECT_EQ(checkpoint.WaitForEnd(), "ended") << checkpoint.output();
    const std::string file = absl::StrCat(folder_, "/model.safetensors");
    PsctlRun exported({"export", absl::StrCat(folder_, "/data/checkpoints/end"), "--out", file});
    EXPECT_EQ(exported.WaitForEnd(), "ended") << exported.output();
    const std::string tensors = TensorsOf(file);
    EXPECT_GT(tensors.size(), 1000u);
    return tensors;
  }
  // An undisturbed run of so many workers.
  std::string Undisturbed(int workers, const std::string& rest) {
    StartServers(absl::StrCat(workers), rest);
    for (int i = 0; i < workers; ++i) StartWorker();
    while (!workers_.empty()) Pump();
    EXPECT_THAT(ended_, testing::Each(0));
    EXPECT_TRUE(State().over());
    return Parameters();
  }
  // How many kills a disturbed run is to have.
  static int Kills() {
    const char* more = getenv("LODESTONE_CONSISTENCY_KILLS");
    int kills = 0;
    return more != nullptr && absl::SimpleAtoi(more, &kills) ? kills : kKills;
  }
  // A run in which workers come and die, and so do servers, at random points.
  std::string Disturbed(const std::string& rest) {
    const int kills = Kills();
    StartServers("killed", rest);
    uint64_t drawn = 0;
    const auto draw = [&](uint64_t n) { return RandomBits(kSeed, drawn++) % n; };
    int killed_servers = 0, asked_to_leave = 0;
    // Towards the end a worker that is started could come too late for this run, and begin another.
    const auto goes_on = [this] {
      const v1::RangeState state = State();
      return !state.over() && 2 * state.batches_closed() <= state.plan().batches();
    };
    while (killed_ + killed_servers < kills && goes_on()) {
      for (size_t wanted = 1 + draw(4); workers_.size() < wanted;) StartWorker();
      const uint64_t next = State().batches_closed() + 1 + draw(30);
      while (State().batches_closed() < next && !State().over()) {
        if (workers_.empty()) StartWorker();
        Pump();
      }
      if (draw(3) == 0) {
        KillServer(static_cast<uint32_t>(draw(2)));
        ++killed_servers;
      } else if (!workers_.empty()) {
        const std::unique_ptr<psctl::Child>& worker = workers_[draw(workers_.size())];
        if (draw(4) == 0) {
          worker->Signal(SIGTERM);
          ++asked_to_leave;
          continue;
        }
        worker->Signal(SIGKILL);
        const size_t before = ended_.size();
        while (ended_.size() == before) Pump();  // Until it is counted.
      }
    }
    std::printf("killed %d workers and %d servers; %d workers were asked to leave; %llu of %llu batches then\n",
                killed_, killed_servers, asked_to_leave, static_cast<unsigned long long>(State().batches_closed()),
                static_cast<unsigned long long>(State().plan().batches()));
    EXPECT_EQ(killed_ + killed_servers, kills) << "half of the run was over before";
    while (!State().over()) {
      if (workers_.empty()) StartWorker();
      Pump();
    }
    while (!workers_.empty()) Pump();
    std::printf("leased again: %llu\n", static_cast<unsigned long long>(State().leased_again()));
    return Parameters();
  }
  // `rest` has $0 for the epochs: so many, and as many more as it takes for more kills.
  void ExpectTheSameParametersHowever(const std::string& rest, int epochs) {
    const std::string all = absl::Substitute(rest, std::max(epochs, (epochs * Kills() + kKills - 1) / kKills));
    const std::string one = Undisturbed(1, all);
    EXPECT_TRUE(Undisturbed(2, all) == one) << "of two workers";
    EXPECT_TRUE(Undisturbed(4, all) == one) << "of four workers";
    EXPECT_TRUE(Disturbed(all) == one) << "of workers and servers that are killed";
  }

  std::string folder_;
  std::unique_ptr<chaos::PsCluster> cluster_;
  std::vector<std::unique_ptr<psctl::Child>> workers_;
  int started_ = 0;
  std::vector<int> ended_;  // Exit codes of those that were not killed; -1 of those that were.
  int killed_ = 0;          // Workers that SIGKILL ended.
};

TEST_F(ConsistencyRun, SyncComesToTheSameBitsOfAnMlpHoweverManyWorkersThereAreAndWhicheverDie) {
  const std::string data = TestFile("numbers.csv");
  std::ofstream file(data);
  file << "a,b,c,d,label\n";
  for (uint64_t i = 0; i < 3000; ++i) {
    for (uint64_t c = 0; c < 4; ++c) file << RandomNormal(kSeed + c, i) << ",";
    file << (RandomNormal(kSeed, i) + RandomNormal(kSeed + 7, i) > 0 ? 1 : 0) << "\n";
  }
  file.close();
  // 3000 samples are 94 batches an epoch: 846 are 211 steps of 4 and one of what is left.
  ExpectTheSameParametersHowever(
      absl::StrCat("model: {type: mlp, hidden: [32, 16]}\n", "data: {train: ", data, ", csv: {label: label}}\n",
                   "train: {epochs: $0, batch_size: 32, sharing: ranges, consistency: {sync: {batches: 4}}}\n"),
      /*epochs=*/9);
}

TEST_F(ConsistencyRun, SyncComesToTheSameBitsOfADeepfmHoweverManyWorkersThereAreAndWhicheverDie) {
  ExpectTheSameParametersHowever(
      "model: {type: deepfm, embedding_dim: 4, hidden: [16]}\n"
      "data: {format: generated, generated: {train_samples: 6000, test_samples: 100, values_per_field: 300}}\n"
      "train: {epochs: $0, batch_size: 64, sharing: ranges, consistency: {sync: {batches: 3}}}\n",
      /*epochs=*/7);
}

// One of four workers is stopped, in the middle of a batch sooner or later, while the others go on; the leases outlast
// that.
TEST_F(ConsistencyRun, AQuorumGoesOnWithoutAWorkerThatIsStoppedAndWhatItBringsLateIsCounted) {
  constexpr int kLongLeaseMs = 3'600'000;
  StartServers("quorum",
               "model: {type: deepfm, embedding_dim: 4, hidden: [16]}\n"
               "data: {format: generated, generated: {train_samples: 6000, test_samples: 100, values_per_field: 300}}\n"
               "train: {epochs: 40, batch_size: 64, sharing: ranges,\n"
               "        consistency: {sync: {batches: 4, quorum: 3, grace_ms: 20, late: CARRY}}}\n",
               kLongLeaseMs);
  const auto late = [this] {  // Contributions to a shard.
    uint64_t late = 0;
    for (uint32_t server = 0; server < 2; ++server) {
      const auto status = cluster_->StatusOf(server, /*timeout_ms=*/10'000);
      EXPECT_TRUE(status.ok()) << status.status();
      if (!status.ok()) continue;
      for (const v1::TableStatus& table : status->tables()) late += table.contributions_late();
    }
    return late;
  };
  // Until so many more batches are done, or this worker holds the rest up: with two batches of a step, of which a
  // quorum of three lacks only one. A worker has two while there are fewer of them than batches, or one of them is
  // late.
  const auto train_for = [this](uint64_t batches, Incarnation stopped) {
    const uint64_t until = State().batches_closed() + batches;
    while (workers_.size() == 4) {
      const v1::RangeState state = State();
      if (state.over() || state.batches_closed() >= until) return;
      std::vector<uint64_t> steps;
      for (const v1::RangeLease& lease : state.open()) {
        if (lease.holder() == stopped) steps.push_back(lease.step());
      }
      if (steps.size() == 2 && steps[0] == steps[1]) return;
      Pump();
    }
  };
  const auto workers = [this] {
    const auto status = cluster_->StatusOf(0, /*timeout_ms=*/10'000);
    EXPECT_TRUE(status.ok()) << status.status();
    if (!status.ok()) return std::vector<v1::MemberStatus>();
    return std::vector<v1::MemberStatus>(status->cluster().workers().begin(), status->cluster().workers().end());
  };
  const auto all_train = [&workers] {
    const auto all = workers();
    return std::count_if(all.begin(), all.end(), [](const v1::MemberStatus& worker) {
             return worker.alive() && worker.progress().samples() > 0;
           }) == 4;
  };
  const auto incarnation_of = [&workers](pid_t pid) -> Incarnation {
    for (const v1::MemberStatus& worker : workers()) {
      if (absl::EndsWith(worker.peer(), absl::StrCat(" pid ", pid))) return worker.incarnation();
    }
    return 0;
  };
  for (int i = 0; i < 4; ++i) StartWorker();
  while (!all_train() && workers_.size() == 4) Pump();
  int stops = 0;
  for (bool is_late = false; !is_late; ++stops) {
    ASSERT_FALSE(State().over() || workers_.size() < 4) << "none of " << stops << " stops was in the middle of a batch";
    psctl::Child* const stopped = workers_[stops % 4].get();
    const Incarnation incarnation = incarnation_of(stopped->pid());
    ASSERT_NE(incarnation, 0u);
    stopped->Signal(SIGSTOP);
    const uint64_t closed = State().batches_closed();
    train_for(40, incarnation);
    const uint64_t meanwhile = late();
    std::printf("stop %d: %llu batches were done meanwhile", stops,
                static_cast<unsigned long long>(State().batches_closed() - closed));
    stopped->Signal(SIGCONT);
    train_for(40, /*stopped=*/0);
    const uint64_t after = late() - meanwhile;
    std::printf(", %llu contributions to shards were late after that\n", static_cast<unsigned long long>(after));
    is_late = after > 0;
  }
  while (!workers_.empty()) Pump();
  EXPECT_THAT(ended_, testing::ElementsAre(0, 0, 0, 0));
  EXPECT_TRUE(State().over());
  uint64_t told = 0;
  for (int worker = 1; worker <= 4; ++worker) {
    std::ifstream file(absl::StrCat(folder_, "/summary-", worker, ".json"));
    const nlohmann::json summary = nlohmann::json::parse(file);
    EXPECT_EQ(summary["consistency"]["kind"], "sync, steps of 4 batches, quorum 3");
    told += summary["consistency"]["late"].get<uint64_t>();
  }
  std::printf("late: %llu batches by the workers, %llu contributions by the shards\n",
              static_cast<unsigned long long>(told), static_cast<unsigned long long>(late()));
  EXPECT_GT(told, 0u);
  EXPECT_GE(late(), told) << "a batch is late on a shard at least";
}

// Each worker has a row that counts its steps, and looks at those of all others in each pull of a step, in the values
// that the step would be computed from. LODESTONE_BOUNDED_STEPS and LODESTONE_BOUNDED_PULLS: how many steps, and pulls
// of each, instead of a few.
TEST_F(ConsistencyRun, BoundedReadsLackNoUpdateThatIsOlderThanTheStaleness) {
  constexpr size_t kWorkers = 4;
  constexpr uint32_t kStaleness = 3;
  const uint64_t steps = NumberOf("LODESTONE_BOUNDED_STEPS", 300), pulls = NumberOf("LODESTONE_BOUNDED_PULLS", 2);
  StartServers("bounded", "");
  v1::Config config = cluster_->config();
  config.mutable_cluster()->set_workers(kWorkers);
  config.mutable_train()->set_sharing(v1::TrainConfig::RANGES);  // Any place will do.
  v1::TableSpec spec;
  spec.set_name("steps");
  spec.mutable_embedding()->set_dim(1);
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_optimizer()->set_learning_rate(1);
  spec.mutable_initializer()->mutable_zeros();
  spec.mutable_consistency()->mutable_bounded()->set_staleness(kStaleness);
  const SteadyTime time;
  std::vector<std::unique_ptr<worker::Client>> clients;
  std::vector<std::unique_ptr<worker::ClockGate>> gates;
  for (size_t w = 0; w < kWorkers; ++w) {
    auto client = worker::Client::Connect(config);
    ASSERT_TRUE(client.ok()) << client.status();
    clients.push_back(*std::move(client));
    gates.push_back(std::make_unique<worker::ClockGate>(
        clients.back().get(), worker::ClockGate::Options{.staleness = kStaleness, .time = &time}));
    ASSERT_TRUE(gates.back()->Start().ok());
  }
  std::atomic<uint64_t> reads{0}, lacking{0};
  const auto train = [&](size_t w) {
    const auto tables = clients[w]->EnsureTables({spec});
    ASSERT_TRUE(tables.ok()) << tables.status();
    const worker::TableHandle* const table = &tables->front();
    std::vector<Key> keys(kWorkers);
    for (size_t v = 0; v < kWorkers; ++v) keys[v] = v;
    const float minus_one = -1;
    for (uint64_t step = 1; step <= steps; ++step) {
      const auto clock = gates[w]->Await();
      ASSERT_TRUE(clock.ok()) << clock.status();
      EXPECT_EQ(*clock, step);
      // Worker 0 is slow now and then.
      const uint64_t times = w == 0 && RandomBits(kSeed, step) % 4 == 0 ? 2 : 1;
      reads += PullAgainAndAgain(clients[w].get(), table, keys, times * pulls, [&](const std::vector<float>& counts) {
        for (size_t v = 0; v < kWorkers; ++v) {
          if (v != w && static_cast<uint64_t>(counts[v]) + kStaleness + 1 < step) ++lacking;
        }
      });
      const worker::RowGradients gradient{table, {&keys[w], 1}, &minus_one};
      ASSERT_TRUE(clients[w]
                      ->Push(step, {}, {&gradient, 1}, {},
                             [&gates, w, step](const worker::PushResult& result) {
                               EXPECT_TRUE(result.status.ok()) << result.status;
                               gates[w]->Acknowledged(step);
                             })
                      .ok());
    }
    ASSERT_TRUE(clients[w]->Flush().ok());
    v1::WorkerProgress progress;
    progress.set_phase(v1::PHASE_FINISHED);
    clients[w]->ReportProgress(progress);
  };
  std::vector<std::thread> threads;
  for (size_t w = 0; w < kWorkers; ++w) threads.emplace_back(train, w);
  for (std::thread& thread : threads) thread.join();
  std::printf("%llu pulls of %llu steps\n", static_cast<unsigned long long>(reads),
              static_cast<unsigned long long>(kWorkers * steps));
  EXPECT_GE(reads, kWorkers * steps * pulls);
  EXPECT_EQ(lacking, 0u);
  for (size_t w = 0; w < kWorkers; ++w) {
    EXPECT_LE(gates[w]->Observed().behind_max(), kStaleness);
    gates[w]->Stop();
  }
}

TEST_F(ConsistencyRun, BoundedTrainsWithLeasedRangesWhileAWorkerIsKilledAndOneJoinsLate) {
  StartServers(
      "ranges",
      "model: {type: deepfm, embedding_dim: 4, hidden: [16]}\n"
      "data: {format: generated, generated: {train_samples: 40000, test_samples: 100, values_per_field: 300}}\n"
      "train: {batch_size: 32, sharing: ranges, range_batches: 8, consistency: {bounded: {staleness: 2}}}\n");
  StartWorker(), StartWorker();
  while (State().batches_closed() < 100) Pump();
  StartWorker();
  while (State().batches_closed() < 300) Pump();
  workers_.front()->Signal(SIGKILL);
  while (!workers_.empty()) Pump();
  EXPECT_THAT(ended_, testing::UnorderedElementsAre(-1, 0, 0));
  EXPECT_TRUE(State().over());
  std::ifstream file(absl::StrCat(folder_, "/summary-3.json"));
  const nlohmann::json summary = nlohmann::json::parse(file);
  EXPECT_EQ(summary["consistency"]["kind"], "bounded, staleness 2");
  EXPECT_LE(summary["consistency"]["clocks_behind"]["max"], 2);
}

TEST_F(ConsistencyRun, AnOperatorBoundsStalenessAndLiftsTheBoundWhileWorkersTrainAndJoin) {
  StartServers(
      "set",
      "model: {type: deepfm, embedding_dim: 4, hidden: [16]}\n"
      "data: {format: generated, generated: {train_samples: 40000, test_samples: 100, values_per_field: 300}}\n"
      "train: {epochs: 1000, batch_size: 32, sharing: ranges, range_batches: 8}\n");
  const auto set = [this](const std::string& value) {
    PsctlRun run({"set", "embedding", value, "--address", cluster_->config().coordinator().address()});
    EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
    return run.output();
  };
  // All workers that live and have so many are of this order of steps.
  const auto all_are = [this](const std::string& kind, int count) {
    const auto status = cluster_->StatusOf(0, /*timeout_ms=*/2000);
    if (!status.ok()) return false;
    int are = 0;
    for (const v1::MemberStatus& worker : status->cluster().workers())
      are += worker.progress().consistency().kind() == kind;
    return are == count;
  };
  StartWorker(), StartWorker();
  while (State().batches_closed() < 100) Pump();
  while (!all_are("", 2)) Pump();
  EXPECT_THAT(set("consistency={bounded: {}}"), testing::HasSubstr("ps 1: changed"));
  while (!all_are("bounded, staleness 4", 2)) Pump();
  const uint64_t bounded = State().batches_closed();
  while (State().batches_closed() < bounded + 100) Pump();
  StartWorker();  // Whose configuration says nothing of that.
  while (!all_are("bounded, staleness 4", 3)) Pump();
  set("consistency={async: {}}");
  while (!all_are("async", 3)) Pump();
  const uint64_t lifted = State().batches_closed();
  while (State().batches_closed() < lifted + 100) Pump();
  set("consistency={bounded: {staleness: 0}}");
  while (!all_are("bounded, staleness 0", 3)) Pump();
  const uint64_t again = State().batches_closed();
  while (State().batches_closed() < again + 100) Pump();
  const auto status = cluster_->StatusOf(0, /*timeout_ms=*/2000);
  ASSERT_TRUE(status.ok()) << status.status();
  for (const v1::MemberStatus& worker : status->cluster().workers()) {
    EXPECT_EQ(worker.progress().consistency().behind_max(), 0u) << "since the bound was set again";
  }
  KillServer(1);
  PsctlRun print({"set", "embedding", "--address", cluster_->config().coordinator().address()});
  EXPECT_EQ(print.WaitForEnd(), "ended") << print.output();
  EXPECT_THAT(print.output(), testing::HasSubstr("# held against what workers bring: consistency"));
  EXPECT_THAT(print.output(), testing::Not(testing::HasSubstr("other settings")));
  for (const auto& worker : workers_) worker->Signal(SIGTERM);
  while (!workers_.empty()) Pump();
  EXPECT_EQ(ended_.size(), 3u);
}

// Each sample adds to a weight of its own (CountingWorkers), so that what was trained can be counted.
TEST_F(ConsistencyRun, AnOperatorHasStepsBeginAndEndWhileWorkersTrainDieAndJoinAndEverySampleIsTrainedOnce) {
  constexpr uint32_t kEpochs = 150;
  StartServers("orders", "");
  chaos::CountingWorkers training(
      cluster_.get(), {.worker_binary = ProgramOf("worker/worker"), .folder = folder_, .epochs = kEpochs, .sets = {}});
  const auto pump = [&] {
    cluster_->Pump(10);
    for (const chaos::CountingWorkers::End& end : training.Pump()) ended_.push_back(end.exit_code);
  };
  const auto train_for = [&](uint64_t batches) {
    const uint64_t until = chaos::CountingWorkers::Done(training.State()) + batches;
    while (chaos::CountingWorkers::Done(training.State()) < until && !training.running().empty()) pump();
  };
  const auto signal_first = [&](int signal) {
    ASSERT_FALSE(training.running().empty());
    training.running().front()->Signal(signal);
  };
  const auto set = [&](const std::string& value) {
    PsctlRun run({"set", "--all-tables", value, "--address", cluster_->config().coordinator().address()});
    EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
    EXPECT_THAT(run.output(), testing::HasSubstr("workers that train paused for it"));
    std::printf("%s: %s\n", value.c_str(), run.output().substr(run.output().rfind("workers that")).c_str());
  };
  // Of steps of one batch one worker may take all.
  const auto one_is = [&](const std::string& kind) {
    const auto status = cluster_->StatusOf(0, /*timeout_ms=*/2000);
    if (!status.ok()) return false;
    const auto& all = status->cluster().workers();
    return std::any_of(all.begin(), all.end(), [&](const v1::MemberStatus& worker) {
      return worker.alive() && worker.progress().consistency().kind() == kind;
    });
  };
  ASSERT_TRUE(training.Start().ok() && training.Start().ok());
  train_for(100);
  // One batch a step: so each sample counts as much as without steps.
  set("consistency={sync: {batches: 1}}");
  while (!one_is("sync, steps of 1 batches")) pump();
  train_for(100);
  ASSERT_TRUE(training.Start().ok());  // Whose configuration says nothing of that.
  train_for(100);
  signal_first(SIGKILL);
  set("consistency={tokens: {batch: 1, staleness: 1000}}");  // None is too old.
  while (!one_is("tokens, steps of 1 gradients, staleness 1000")) pump();
  train_for(200);
  signal_first(SIGTERM);
  ASSERT_TRUE(training.Start().ok());
  set("consistency={async: {}}");
  train_for(200);
  set("consistency={sync: {batches: 1}}");
  signal_first(SIGKILL);
  KillServer(1);
  ASSERT_TRUE(training.Start().ok());
  train_for(100);
  set("consistency={bounded: {staleness: 2}}");
  train_for(100);
  std::printf("%llu of %llu batches when the order was set last\n",
              static_cast<unsigned long long>(chaos::CountingWorkers::Done(training.State())),
              static_cast<unsigned long long>(kEpochs * chaos::CountingWorkers::kBatchesPerEpoch));
  const auto set_late = [&](uint32_t server) {  // By an operator that was held up in the first pause.
    v1::SetTableRequest request;
    request.set_table("linear");
    request.set_orders(1);
    request.add_fields("consistency");
    request.mutable_settings()->mutable_consistency()->mutable_sync()->set_batches(1);
    return psctl::RequestSetTable(absl::StrCat("127.0.0.1:", cluster_->PortOf(server)), request, /*timeout_ms=*/5000)
        .status();
  };
  EXPECT_EQ(set_late(0).code(), absl::StatusCode::kFailedPrecondition) << set_late(0);
  EXPECT_THAT(std::string(set_late(1).message()), testing::HasSubstr("has ended"));
  while (!training.running().empty()) pump();
  EXPECT_THAT(ended_, testing::UnorderedElementsAre(-1, 143, -1, 0, 0)) << "killed, asked to stop, killed";
  KillServer(1);
  EXPECT_THAT(std::string(set_late(1).message()), testing::HasSubstr("has ended")) << "as it heard when it joined";
  EXPECT_TRUE(training.State().over());
  const auto counts = training.Counts(/*times_max=*/2 * kEpochs + 3);
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_THAT(*counts, testing::ElementsAre(testing::Pair(kEpochs, chaos::CountingWorkers::kSamples)));
  if (HasFailure()) std::cout << std::ifstream(absl::StrCat(folder_, "/workers.log")).rdbuf();
}

TEST_F(ConsistencyRun, TokensTrainToTheEnd) {
  StartServers(
      "tokens",
      "model: {type: deepfm, embedding_dim: 4, hidden: [16]}\n"
      "data: {format: generated, generated: {train_samples: 20000, test_samples: 100, values_per_field: 300}}\n"
      "train: {batch_size: 32, sharing: ranges, consistency: {tokens: {batch: 2, staleness: 4}}}\n");
  StartWorker(), StartWorker();
  while (!workers_.empty()) Pump();
  EXPECT_THAT(ended_, testing::ElementsAre(0, 0));
  const auto status = cluster_->StatusOf(0, /*timeout_ms=*/2000);
  ASSERT_TRUE(status.ok()) << status.status();
  uint64_t steps = 0;
  for (const v1::TableStatus& table : status->tables()) steps = std::max<uint64_t>(steps, table.steps());
  EXPECT_EQ(steps, 625u / 2) << "of 625 gradients";
}

}  // namespace
}  // namespace lodestone
