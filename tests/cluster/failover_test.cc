// Real ps that die or freeze while followers hold their shards: every acknowledged push is there exactly once.
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "tests/chaos/ps_cluster.h"
#include "worker/client/client.h"

namespace lodestone {
namespace {

using chaos::PsCluster;

constexpr uint32_t kServers = 3;
constexpr uint32_t kShards = 16;
constexpr uint64_t kElements = 1000;
constexpr Key kKeys = 200;

// Three ps, each shard with a follower, and one client that pushes ones.
class FailoverTest : public testing::Test {
 protected:
  void SetUp() override {
    PsCluster::Options options;
    options.ps_binary = absl::StrCat(getenv("TEST_SRCDIR"), "/", getenv("TEST_WORKSPACE"), "/server/ps");
    options.folder =
        absl::StrCat(getenv("TEST_TMPDIR"), "/", testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(options.folder);
    options.data_dir = absl::StrCat(options.folder, "/data");
    options.servers = kServers;
    options.sets = {"cluster.replicas=2", "coordinator.lease_ms=2000"};
    auto cluster = PsCluster::Create(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    for (uint32_t server = 0; server < kServers; ++server) {
      ASSERT_TRUE(cluster_->Start(server).ok());
      ASSERT_TRUE(Await([&] { return cluster_->Listens(server); }));
    }
    ASSERT_TRUE(Await([this] { return AllInSync(); }));
    Connect();
  }
  void TearDown() override {
    if (client_ == nullptr) return;
    done_ = true;
    Await([this] { return pusher_ended_.load(); });
    pusher_.join();
    client_.reset();
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
  void Connect() {
    // On a thread of its own: somebody has to read what the ps say.
    std::atomic<bool> connected{false};
    std::thread thread([&] {
      auto client = worker::Client::Connect(cluster_->config());
      EXPECT_TRUE(client.ok()) << client.status();
      if (client.ok()) client_ = *std::move(client);
      connected = true;
    });
    EXPECT_TRUE(Await([&] { return connected.load(); }));
    thread.join();
    ASSERT_NE(client_, nullptr);
    std::vector<v1::TableSpec> specs(2);
    specs[0].set_name("dense");
    specs[0].mutable_dense()->add_dims(kElements);
    specs[0].mutable_dense()->set_block_elements(16);
    specs[1].set_name("rows");
    specs[1].mutable_embedding()->set_dim(1);
    for (v1::TableSpec& spec : specs) {
      spec.mutable_optimizer()->mutable_sgd();
      spec.mutable_optimizer()->set_learning_rate(-1);
      spec.mutable_initializer()->mutable_zeros();
    }
    const auto tables = client_->EnsureTables(specs);
    ASSERT_TRUE(tables.ok()) << tables.status();
    tables_ = *tables;
    for (Key key = 0; key < kKeys; ++key) keys_.push_back(key);
    pusher_ = std::thread([this] { PushOnes(); });
  }
  void PushOnes() {
    const std::vector<float> ones(kElements, 1.0f);
    for (Clock clock = 1; !done_; ++clock) {
      const worker::DenseGradient dense{&tables_[0], ones.data(), false};
      const worker::RowGradients rows{&tables_[1], keys_, ones.data()};
      const absl::Status sent =
          client_->Push(clock, {&dense, 1}, {&rows, 1}, {}, [this](const worker::Client::PushResult& result) {
            EXPECT_TRUE(result.status.ok()) << result.status;
            ++acknowledged_;
          });
      EXPECT_TRUE(sent.ok()) << sent;
      if (!sent.ok()) break;
      ++pushed_;
    }
    const absl::Status flushed = client_->Flush();
    EXPECT_TRUE(flushed.ok()) << flushed;
    pusher_ended_ = true;
  }
  bool AwaitPushes(uint64_t count) {
    const uint64_t until = acknowledged_ + count;
    return Await([&] { return acknowledged_ >= until; });
  }
  // Ends the pushing, and compares what all hold with what was pushed.
  void ExpectExact() {
    done_ = true;
    ASSERT_TRUE(Await([this] { return pusher_ended_.load(); }));
    EXPECT_EQ(acknowledged_, pushed_);
    std::vector<float> dense(kElements), rows(kKeys);
    std::atomic<bool> pulled{false};
    absl::Status status;
    client_->Pull({{&tables_[0], dense.data()}}, {{&tables_[1], keys_, rows.data()}},
                  [&](absl::Status outcome, const worker::ShardVersions&) {
                    status = std::move(outcome);
                    pulled = true;
                  });
    ASSERT_TRUE(Await([&] { return pulled.load(); }));
    ASSERT_TRUE(status.ok()) << status;
    const auto sum = static_cast<float>(pushed_);  // Far below 2^24: exact.
    EXPECT_EQ(dense, std::vector<float>(kElements, sum));
    EXPECT_EQ(rows, std::vector<float>(kKeys, sum));
  }

  v1::StatusResponse StatusOf(uint32_t server) {
    const auto status = cluster_->StatusOf(server, 1000);
    return status.ok() ? *status : v1::StatusResponse();
  }
  bool AllInSync() {
    uint32_t in_sync = 0;
    for (uint32_t server = 0; server < kServers; ++server) {
      if (cluster_->Listens(server)) in_sync += StatusOf(server).replication().shards_in_sync();
    }
    return in_sync == kShards;
  }
  // All shards have a follower, which holds the same.
  void ExpectReplicasEqual() {
    uint32_t shards = 0;
    for (uint32_t server = 0; server < kServers; ++server) {
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
    EXPECT_EQ(shards, kShards);
  }

  std::unique_ptr<PsCluster> cluster_;
  std::unique_ptr<worker::Client> client_;
  std::vector<worker::TableHandle> tables_;
  std::vector<Key> keys_;
  std::atomic<bool> done_{false};
  std::atomic<bool> pusher_ended_{false};
  std::atomic<uint64_t> pushed_{0};
  std::atomic<uint64_t> acknowledged_{0};
  std::thread pusher_;
};

TEST_F(FailoverTest, APsThatDiesForGoodIsReplacedAndNothingIsLostOrDoubled) {
  ASSERT_TRUE(AwaitPushes(100));
  cluster_->Kill(1);
  ASSERT_TRUE(AwaitPushes(200)) << "the run does not go on without it";
  for (const uint32_t server : {0u, 2u}) EXPECT_GT(StatusOf(server).server().shards_owned(), 0u);
  EXPECT_EQ(StatusOf(0).server().shards_owned() + StatusOf(2).server().shards_owned(), kShards);
  // With nothing of what it was.
  std::filesystem::remove_all(cluster_->DataFolder(1));
  ASSERT_TRUE(cluster_->Start(1).ok());
  ASSERT_TRUE(Await([this] { return cluster_->Listens(1) && AllInSync(); }));
  ASSERT_TRUE(AwaitPushes(100));
  ExpectReplicasEqual();
  ExpectExact();
  ExpectReplicasEqual();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

TEST_F(FailoverTest, OneAfterTheOtherMayDie) {
  for (const uint32_t server : {1u, 2u, 1u}) {
    ASSERT_TRUE(AwaitPushes(50));
    cluster_->Kill(server);
    ASSERT_TRUE(AwaitPushes(50));
    ASSERT_TRUE(cluster_->Start(server).ok());
    ASSERT_TRUE(Await([&] { return cluster_->Listens(server) && AllInSync(); }));
  }
  ExpectExact();
  ExpectReplicasEqual();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

TEST_F(FailoverTest, APsThatWasFrozenForLongerThanItsLeaseAcknowledgesNothingAfterIt) {
  ASSERT_TRUE(AwaitPushes(100));
  cluster_->Signal(1, SIGSTOP);
  ASSERT_TRUE(AwaitPushes(200));
  EXPECT_TRUE(client_->shard_map()->ShardsOf(1).empty());
  cluster_->Signal(1, SIGCONT);
  ASSERT_TRUE(AwaitPushes(100));
  ASSERT_TRUE(Await([this] { return AllInSync(); })) << "it follows again";
  EXPECT_EQ(StatusOf(1).server().shards_owned(), 0u);
  ExpectExact();
  ExpectReplicasEqual();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

}  // namespace
}  // namespace lodestone
