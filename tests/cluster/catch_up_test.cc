// A real ps that dies and is started again with its folder: it gets what it lacks from its owners' logs.
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/rpc/channel.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "proto/admin.grpc.pb.h"
#include "tests/chaos/ps_cluster.h"
#include "worker/client/client.h"

namespace lodestone {
namespace {

using chaos::PsCluster;

constexpr uint32_t kPair = 2;
constexpr uint32_t kPairShards = 16;
constexpr uint64_t kPairElements = 1000;

class CatchUpTest : public testing::Test {
 protected:
  void SetUp() override {
    PsCluster::Options options;
    options.ps_binary = absl::StrCat(getenv("TEST_SRCDIR"), "/", getenv("TEST_WORKSPACE"), "/server/ps");
    options.folder = absl::StrCat(getenv("TEST_TMPDIR"), "/catch_up");
    std::filesystem::create_directories(options.folder);
    options.data_dir = absl::StrCat(options.folder, "/data");
    options.own_disks = true;  // Or a checkpoint of ps 0 might bring ps 1 up.
    options.servers = kPair;
    options.sets = {"cluster.replicas=2", "coordinator.lease_ms=2000", "server.http_listen=127.0.0.1:0"};
    auto cluster = PsCluster::Create(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    for (uint32_t server = 0; server < kPair; ++server) {
      ASSERT_TRUE(cluster_->Start(server).ok());
      ASSERT_TRUE(Await([&] { return cluster_->Listens(server); }));
    }
    ASSERT_TRUE(Await([this] { return AllInSync(); }));
  }

  // Passes on what the ps say until `condition` holds; false if it never does.
  bool Await(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      cluster_->Pump(20);
    }
    return true;
  }
  // Runs `use` on a thread of its own: this one has to read what the ps say.
  void Run(const std::function<void()>& use) {
    std::atomic<bool> ended{false};
    std::thread thread([&] {
      use();
      ended = true;
    });
    EXPECT_TRUE(Await([&] { return ended.load(); }));
    thread.join();
  }
  void Connect() {
    Run([this] {
      auto client = worker::Client::Connect(cluster_->config());
      ASSERT_TRUE(client.ok()) << client.status();
      client_ = *std::move(client);
      v1::TableSpec spec;
      spec.set_name("dense");
      spec.mutable_dense()->add_dims(kPairElements);
      spec.mutable_dense()->set_block_elements(16);
      spec.mutable_optimizer()->mutable_sgd();
      spec.mutable_optimizer()->set_learning_rate(-1);
      spec.mutable_initializer()->mutable_zeros();
      const auto tables = client_->EnsureTables({spec});
      ASSERT_TRUE(tables.ok()) << tables.status();
      tables_ = *tables;
    });
  }
  // Pushes ones, and waits until all are acknowledged.
  void PushOnes(int count) {
    Run([this, count] {
      const std::vector<float> ones(kPairElements, 1.0f);
      for (int i = 0; i < count; ++i) {
        const worker::DenseGradient dense{&tables_[0], ones.data(), false};
        const absl::Status sent = client_->Push(++pushed_, {&dense, 1}, {}, {}, [](const auto& result) {
          EXPECT_TRUE(result.status.ok()) << result.status;
        });
        ASSERT_TRUE(sent.ok()) << sent;
      }
      const absl::Status flushed = client_->Flush();
      EXPECT_TRUE(flushed.ok()) << flushed;
    });
  }
  void ExpectExact() {
    std::vector<float> values(kPairElements);
    std::atomic<bool> pulled{false};
    client_->Pull({{&tables_[0], values.data()}}, {}, [&](const absl::Status& status, const worker::ShardVersions&) {
      EXPECT_TRUE(status.ok()) << status;
      pulled = true;
    });
    ASSERT_TRUE(Await([&] { return pulled.load(); }));
    EXPECT_EQ(values, std::vector<float>(kPairElements, static_cast<float>(pushed_)));
  }

  v1::StatusResponse StatusOf(uint32_t server) {
    const auto status = cluster_->StatusOf(server, 1000);
    return status.ok() ? *status : v1::StatusResponse();
  }
  bool AllInSync() {
    uint32_t in_sync = 0;
    for (uint32_t server = 0; server < kPair; ++server) {
      if (cluster_->Listens(server)) in_sync += StatusOf(server).replication().shards_in_sync();
    }
    return in_sync == kPairShards;
  }
  // A counter of ps 0.
  uint64_t Counted(const std::string& name) {
    httplib::Client http(absl::StrCat("http://", StatusOf(0).server().http()));
    const httplib::Result answer = http.Get("/metrics");
    EXPECT_TRUE(answer) << "ps 0 does not answer";
    if (!answer) return 0;
    for (absl::string_view line : absl::StrSplit(answer->body, '\n')) {
      uint64_t value = 0;
      if (absl::ConsumePrefix(&line, name + " ") && absl::SimpleAtoi(line, &value)) return value;
    }
    ADD_FAILURE() << "there is no " << name;
    return 0;
  }
  void ExpectReplicasEqual() {
    uint32_t shards = 0;
    for (uint32_t server = 0; server < kPair; ++server) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
      v1::VerifyReplicasResponse response;
      const auto stub = v1::Admin::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", cluster_->PortOf(server)), 64 << 20));
      const grpc::Status status = stub->VerifyReplicas(&context, v1::VerifyReplicasRequest(), &response);
      ASSERT_TRUE(status.ok()) << status.error_message();
      for (const auto& shard : response.shards()) {
        ++shards;
        EXPECT_EQ(shard.missing(), "") << "shard " << shard.shard();
        EXPECT_EQ(shard.owner_checksum(), shard.follower_checksum()) << "shard " << shard.shard();
      }
    }
    EXPECT_EQ(shards, kPairShards);
  }

  std::unique_ptr<PsCluster> cluster_;
  std::unique_ptr<worker::Client> client_;
  std::vector<worker::TableHandle> tables_;
  uint64_t pushed_ = 0;
};

TEST_F(CatchUpTest, APsThatIsStartedAgainWithItsFolderGetsWhatItLacksFromTheLogAndNoState) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  PushOnes(50);
  for (int life = 0; life < 2; ++life) {
    const uint64_t states = Counted("lodestone_ps_replication_states_total");
    const uint64_t shards = Counted("lodestone_ps_replication_caught_up_shards_total");
    const uint64_t records = Counted("lodestone_ps_replication_caught_up_records_total");
    cluster_->Kill(1);
    PushOnes(100);
    ASSERT_TRUE(cluster_->Start(1).ok());
    ASSERT_TRUE(Await([this] { return cluster_->Listens(1) && AllInSync(); }));
    EXPECT_EQ(Counted("lodestone_ps_replication_states_total"), states);
    EXPECT_EQ(Counted("lodestone_ps_replication_caught_up_shards_total"), shards + kPairShards);
    EXPECT_GT(Counted("lodestone_ps_replication_caught_up_records_total"), records);
    PushOnes(20);
    ExpectReplicasEqual();
  }
  ExpectExact();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

}  // namespace
}  // namespace lodestone
