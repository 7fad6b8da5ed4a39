// Clusters whose coordinator is elected by etcd, with real processes of both that die.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/time_source.h"
#include "common/rpc/etcd_client.h"
#include "gtest/gtest.h"
#include "tests/chaos/ps_cluster.h"
#include "tests/cluster/psctl_run.h"
#include "tests/common/rpc/etcd_cluster.h"
#include "tests/common/security/test_certificates.h"
#include "worker/client/client.h"

namespace lodestone {
namespace {

constexpr uint32_t kWorkers = 2;
constexpr size_t kEtcdElements = 4096;
constexpr int kStatusMs = 60'000;
constexpr int64_t kLead = 2;  // Clocks that a worker may be ahead of the other.

std::vector<v1::TableSpec> SumTable() {
  std::vector<v1::TableSpec> specs(1);
  specs[0].set_name("sum");
  specs[0].mutable_dense()->add_dims(kEtcdElements);
  specs[0].mutable_optimizer()->mutable_sgd();
  specs[0].mutable_optimizer()->set_learning_rate(-1);
  specs[0].mutable_initializer()->mutable_zeros();
  return specs;
}

// A worker that adds 1 to everything at each clock, and waits for the others' clocks.
class Adder {
 public:
  explicit Adder(const v1::Config& config)
      : thread_([this, config] {
          status_ = Run(config);
          ended_ = true;
        }) {}
  ~Adder() {
    EndAt(0);
    if (thread_.joinable()) thread_.join();
  }

  int64_t clock() const { return clock_; }
  // The clock it ends at.
  void EndAt(int64_t clock) { end_ = clock; }
  bool ended() const { return ended_; }
  absl::Status AwaitEnd() {
    if (thread_.joinable()) thread_.join();
    return status_;
  }
  // REQUIRES: it has ended well.
  std::vector<float> Pull() {
    std::vector<float> sums(kEtcdElements);
    const auto pulled = client_->PullNow({{&tables_[0], sums.data()}}, {});
    EXPECT_TRUE(pulled.ok()) << pulled.status();
    return sums;
  }

 private:
  absl::Status Run(const v1::Config& config) {
    auto client = worker::Client::Connect(config);
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    auto tables = client_->EnsureTables(SumTable());
    if (!tables.ok()) return tables.status();
    tables_ = *std::move(tables);
    const std::vector<float> ones(kEtcdElements, 1.0f);
    while (clock_ < end_) {
      const worker::DenseGradient gradient{&tables_[0], ones.data()};
      if (absl::Status status = client_->Push(clock_ + 1, {&gradient, 1}, {}, {}, {}); !status.ok()) return status;
      if (absl::Status status = client_->Flush(); !status.ok()) return status;
      ++clock_;
      v1::WorkerProgress progress;
      progress.set_phase(v1::PHASE_TRAINING);
      progress.set_clock(clock_);
      client_->ReportProgress(progress);
      const auto awaited = client_->AwaitClock(std::max<int64_t>(0, clock_ - kLead));
      if (!awaited.ok()) return awaited.status();
    }
    return client_->Health();
  }

  std::atomic<int64_t> clock_{0};
  std::atomic<int64_t> end_{std::numeric_limits<int64_t>::max()};
  std::atomic<bool> ended_{false};
  absl::Status status_;
  std::unique_ptr<worker::Client> client_;
  std::vector<worker::TableHandle> tables_;
  std::thread thread_;
};

class EtcdTest : public ::testing::Test {
 protected:
  // Fails the test if it cannot. `sets` are further settings. `tls`: etcd asks for certificates, and all processes have
  // one.
  void Start(int etcd_members, uint32_t servers, std::vector<std::string> sets, bool tls = false) {
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", test->name());
    std::filesystem::create_directories(folder_);
    std::optional<EtcdCluster::Tls> files;
    if (tls) files = MakeCertificates(&sets);
    auto etcd = EtcdCluster::Start(etcd_members, folder_, files);
    ASSERT_TRUE(etcd.ok()) << etcd.status();
    etcd_ = *std::move(etcd);
    v1::CoordinatorConfig coordinator;
    if (tls) {
      coordinator.mutable_etcd_tls()->set_authorities(files->authorities);
      coordinator.mutable_etcd_tls()->set_certificate(files->certificate);
      coordinator.mutable_etcd_tls()->set_key(files->key);
    }
    const absl::StatusOr<CredentialsRef> credentials = EtcdCredentials(coordinator);
    ASSERT_TRUE(credentials.ok()) << credentials.status();
    client_ = std::make_unique<EtcdClient>(etcd_->endpoints(), 60'000, *credentials);
    chaos::PsCluster::Options options;
    options.ps_binary = ProjectFile("server/ps");
    options.folder = folder_;
    options.servers = servers;
    options.sets = {absl::StrCat("coordinator.etcd=[\"", absl::StrJoin(etcd_->endpoints(), "\", \""), "\"]"),
                    absl::StrCat("cluster.workers=", kWorkers), "coordinator.lease_ms=3000"};
    for (std::string& set : sets) {
      if (absl::StartsWith(set, "server.data_dir=")) options.data_dir = set.substr(set.find('=') + 1);
      options.sets.push_back(std::move(set));
    }
    auto cluster = chaos::PsCluster::Create(std::move(options));
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    for (uint32_t server = 0; server < servers; ++server) {
      const absl::Status started = cluster_->Start(server);
      ASSERT_TRUE(started.ok()) << started;
    }
    for (uint32_t worker = 0; worker < kWorkers; ++worker) {
      adders_.push_back(std::make_unique<Adder>(cluster_->config()));
    }
    AwaitClocks(5);
    // A ps that dies before its followers have everything is not replaced: they lack what was acknowledged.
    if (cluster_->config().cluster().replicas() > 1) {
      EXPECT_TRUE(WaitFor([&] { return InSync() == cluster_->config().cluster().shards(); }));
    }
  }

  // Waits, meanwhile reading what the ps say. False if a worker has ended.
  bool WaitFor(const std::function<bool()>& condition) {
    while (!condition()) {
      cluster_->Pump(5);
      for (const auto& adder : adders_) {
        if (adder->ended()) return false;
      }
    }
    return true;
  }
  // Until all workers have come this much further.
  void AwaitClocks(int64_t more) {
    const int64_t goal = LastClock() + more;
    const bool reached = WaitFor([&] {
      return std::all_of(adders_.begin(), adders_.end(), [&](const auto& adder) { return adder->clock() >= goal; });
    });
    for (const auto& adder : adders_) EXPECT_TRUE(reached || !adder->ended()) << adder->AwaitEnd();
    ASSERT_TRUE(reached);
  }
  int64_t LastClock() const {
    int64_t last = 0;
    for (const auto& adder : adders_) last = std::max(last, adder->clock());
    return last;
  }
  // The ps that is elected; nullopt if none is.
  std::optional<uint32_t> Elected() {
    const auto found = client_->Get(EtcdCoordinatorKey("chaos"));
    if (!found.ok() || !found->has_value()) return std::nullopt;
    for (uint32_t server = 0; server < cluster_->servers(); ++server) {
      if (cluster_->ProxyOf(server)->address() == (*found)->bytes) return server;
    }
    return std::nullopt;
  }
  // Waits until another ps than `former` is elected; returns it.
  uint32_t AwaitOther(uint32_t former) {
    std::optional<uint32_t> elected;
    EXPECT_TRUE(WaitFor([&] { return (elected = Elected()).has_value() && *elected != former; }));
    return elected.value_or(former);
  }
  // Shards whose follower has everything.
  uint32_t InSync() {
    uint32_t in_sync = 0;
    for (uint32_t server = 0; server < cluster_->servers(); ++server) {
      if (!cluster_->Listens(server)) continue;
      const auto status = cluster_->StatusOf(server, kStatusMs);
      if (status.ok()) in_sync += status->replication().shards_in_sync();
    }
    return in_sync;
  }
  // Each push of each worker counts once.
  void EndAndCheckSums() {
    const int64_t end = LastClock() + 20;
    for (const auto& adder : adders_) adder->EndAt(end);
    while (!std::all_of(adders_.begin(), adders_.end(), [](const auto& adder) { return adder->ended(); })) {
      cluster_->Pump(5);
    }
    for (const auto& adder : adders_) {
      const absl::Status ended = adder->AwaitEnd();
      ASSERT_TRUE(ended.ok()) << ended;
    }
    EXPECT_EQ(adders_[0]->Pull(), std::vector<float>(kEtcdElements, static_cast<float>(kWorkers * end)));
    EXPECT_EQ(cluster_->TakeDeaths(), std::vector<std::string>());
  }

  // Certificates of members, and of processes, which are told of theirs in `sets`.
  EtcdCluster::Tls MakeCertificates(std::vector<std::string>* sets) const {
    const TestAuthority authority("etcd");
    const auto path = [this](const char* file) { return absl::StrCat(folder_, "/", file); };
    PutFile(path("authorities.pem"), authority.pem());
    for (const std::string name : {"member", "process"}) {
      const TestAuthority::Issued issued = authority.Issue({.common_name = name});
      PutFile(path((name + ".pem").c_str()), issued.certificate);
      PutFile(path((name + ".key").c_str()), issued.key);
    }
    sets->push_back("coordinator.etcd_tls.authorities=" + path("authorities.pem"));
    sets->push_back("coordinator.etcd_tls.certificate=" + path("process.pem"));
    sets->push_back("coordinator.etcd_tls.key=" + path("process.key"));
    return {path("authorities.pem"), path("member.pem"), path("member.key")};
  }

  std::string folder_;
  std::unique_ptr<EtcdCluster> etcd_;
  std::unique_ptr<EtcdClient> client_;
  std::unique_ptr<chaos::PsCluster> cluster_;
  std::vector<std::unique_ptr<Adder>> adders_;
};

TEST_F(EtcdTest, WhenThePsThatServesTheCoordinatorDiesAnotherDoesAndItsShardsGoToTheirFollowers) {
  Start(1, 3, {"cluster.replicas=2"});
  ASSERT_FALSE(HasFatalFailure());
  const std::optional<uint32_t> elected = Elected();
  ASSERT_TRUE(elected.has_value());
  cluster_->Kill(*elected);
  const uint32_t other = AwaitOther(*elected);
  EXPECT_NE(other, *elected);
  AwaitClocks(20);
  // The third ps knows whom to ask for what has happened.
  const uint32_t third = 3 - *elected - other;
  const std::string address = absl::StrCat("127.0.0.1:", cluster_->PortOf(third));
  for (const std::string& event :
       {absl::StrCat("elected       ps ", other), absl::StrCat("died          ps ", *elected),
        absl::StrCat("moved         ps ", *elected)}) {
    EXPECT_TRUE(WaitFor([&] {
      PsctlRun run({"events", "--address", address, "--timeout", "60s"});
      run.WaitForEnd();
      return absl::StrContains(run.output(), event);
    })) << event;
  }
  EndAndCheckSums();
}

TEST_F(EtcdTest, ByTlsACoordinatorIsElectedFoundAndReplacedToo) {
  Start(1, 3, {"cluster.replicas=2"}, /*tls=*/true);
  ASSERT_FALSE(HasFatalFailure());
  const std::optional<uint32_t> elected = Elected();
  ASSERT_TRUE(elected.has_value());
  cluster_->Kill(*elected);
  EXPECT_NE(AwaitOther(*elected), *elected);
  AwaitClocks(20);
  EndAndCheckSums();
}

TEST_F(EtcdTest, WhenTheProcessThatServesTheCoordinatorDiesNobodyWaitsForItsLease) {
  constexpr int64_t kDeadLeaseMs = 60'000;  // Of the coordinator's place, and of the members.
  constexpr int kDeaths = 3;
  Start(1, 3, {"cluster.replicas=2", absl::StrCat("coordinator.lease_ms=", kDeadLeaseMs)});
  ASSERT_FALSE(HasFatalFailure());
  const SteadyTime time;
  int64_t least_elected_ms = kDeadLeaseMs, least_served_ms = kDeadLeaseMs;
  for (int deaths = 0; deaths < kDeaths; ++deaths) {
    const std::optional<uint32_t> elected = Elected();
    ASSERT_TRUE(elected.has_value());
    const int64_t from_ms = time.NowMs();
    cluster_->Kill(*elected);
    AwaitOther(*elected);
    const int64_t elected_ms = time.NowMs() - from_ms;
    AwaitClocks(2 * kLead);
    const int64_t served_ms = time.NowMs() - from_ms;
    std::printf(
        "from the death of the ps that serves the coordinator: another is elected after %lld ms, and its shards "
        "are served after %lld ms\n",
        static_cast<long long>(elected_ms), static_cast<long long>(served_ms));
    EXPECT_LT(served_ms, kDeadLeaseMs / 2);
    least_elected_ms = std::min(least_elected_ms, elected_ms);
    least_served_ms = std::min(least_served_ms, served_ms);
    ASSERT_TRUE(cluster_->Start(*elected).ok());
    EXPECT_TRUE(WaitFor([&] { return InSync() == cluster_->config().cluster().shards(); }));
  }
#ifndef LODESTONE_SANITIZER
  // Of the quickest, as a machine may be busy now and then: 0.3 s and 0.7 s are usual.
  EXPECT_LT(least_elected_ms, 1000);
  EXPECT_LT(least_served_ms, 2000);
#endif
  EndAndCheckSums();
}

TEST_F(EtcdTest, APsThatComesBackJoinsTheNextCoordinator) {
  Start(1, 2, {absl::StrCat("server.data_dir=", std::getenv("TEST_TMPDIR"), "/back")});
  ASSERT_FALSE(HasFatalFailure());
  for (int deaths = 0; deaths < 2; ++deaths) {
    const std::optional<uint32_t> elected = Elected();
    ASSERT_TRUE(elected.has_value());
    cluster_->Kill(*elected);
    EXPECT_NE(AwaitOther(*elected), *elected);
    ASSERT_TRUE(cluster_->Start(*elected).ok());
    AwaitClocks(20);
  }
  EndAndCheckSums();
}

// With SIGTERM, at moments that differ: just after its election, and later.
TEST_F(EtcdTest, APsThatIsElectedEndsInGoodOrderAndAnotherIsElectedTwentyTimes) {
  constexpr int kTimes = 20;
  Start(1, 3, {"cluster.replicas=2", absl::StrCat("server.data_dir=", std::getenv("TEST_TMPDIR"), "/stops")});
  ASSERT_FALSE(HasFatalFailure());
  std::optional<uint32_t> elected = Elected();
  for (int i = 0; i < kTimes; ++i) {
    ASSERT_TRUE(elected.has_value());
    const uint32_t stopped = *elected;
    cluster_->Pump(10 * i);
    cluster_->Terminate(stopped);
    elected = AwaitOther(stopped);
    ASSERT_NE(*elected, stopped);
    ASSERT_TRUE(WaitFor([&] { return !cluster_->Runs(stopped); }));
    EXPECT_EQ(cluster_->OutcomeOf(stopped), "ended");
    AwaitClocks(2);
    ASSERT_TRUE(cluster_->Start(stopped).ok());
    ASSERT_TRUE(WaitFor([&] { return cluster_->Serves(stopped); }));
  }
  EndAndCheckSums();
}

TEST_F(EtcdTest, OneThatStoodStillFindsThatItWasDeposed) {
  Start(1, 3, {"cluster.replicas=2"});
  ASSERT_FALSE(HasFatalFailure());
  const std::optional<uint32_t> elected = Elected();
  ASSERT_TRUE(elected.has_value());
  cluster_->Signal(*elected, SIGSTOP);
  const uint32_t next = AwaitOther(*elected);
  AwaitClocks(20);  // Its shards are its followers' too.
  cluster_->Signal(*elected, SIGCONT);
  AwaitClocks(20);
  EXPECT_EQ(Elected(), next);
  EndAndCheckSums();
}

TEST_F(EtcdTest, WhenTheLeaderOfEtcdDiesNothingHappens) {
  Start(3, 2, {});
  ASSERT_FALSE(HasFatalFailure());
  for (int round = 0; round < 2; ++round) {
    const auto leader = etcd_->AwaitLeader();
    ASSERT_TRUE(leader.ok()) << leader.status();
    etcd_->Kill(*leader);
    AwaitClocks(20);
    ASSERT_TRUE(etcd_->AwaitLeader().ok());
    AwaitClocks(20);
    ASSERT_TRUE(etcd_->Restart(*leader).ok());
    ASSERT_TRUE(etcd_->AwaitLeader().ok());
  }
  EndAndCheckSums();
}

TEST_F(EtcdTest, AfterEtcdWasAwayTheWorkersGoOn) {
  Start(1, 2, {});
  ASSERT_FALSE(HasFatalFailure());
  etcd_->Kill(0);
  // Until nobody serves the coordinator, for want of a lease.
  EXPECT_TRUE(WaitFor([&] {
    for (uint32_t server = 0; server < cluster_->servers(); ++server) {
      const auto status = cluster_->StatusOf(server, kStatusMs);
      if (!status.ok() || status->has_cluster()) return false;
    }
    return true;
  }));
  ASSERT_TRUE(etcd_->Restart(0).ok());
  ASSERT_TRUE(etcd_->AwaitLeader().ok());
  AwaitClocks(20);
  EndAndCheckSums();
}

}  // namespace
}  // namespace lodestone
