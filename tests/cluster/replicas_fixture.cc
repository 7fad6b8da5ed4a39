#include "tests/cluster/replicas_fixture.h"

#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "grpcpp/client_context.h"
#include "proto/admin.grpc.pb.h"

namespace lodestone {
namespace {

v1::TableSpec OnesSpec(const std::string& name) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_optimizer()->set_learning_rate(-1);
  spec.mutable_initializer()->mutable_zeros();
  return spec;
}

}  // namespace

void ReplicasFixture::StartCluster(uint32_t servers, std::vector<std::string> sets, bool own_disks, uint32_t replicas,
                                   std::vector<std::string> zones) {
  chaos::PsCluster::Options options;
  options.ps_binary = absl::StrCat(getenv("TEST_SRCDIR"), "/", getenv("TEST_WORKSPACE"), "/server/ps");
  options.folder =
      absl::StrCat(getenv("TEST_TMPDIR"), "/", testing::UnitTest::GetInstance()->current_test_info()->name());
  std::filesystem::create_directories(options.folder);
  options.data_dir = absl::StrCat(options.folder, "/data");
  options.own_disks = own_disks;
  options.servers = servers;
  options.sets = std::move(sets);
  options.zones = std::move(zones);
  options.sets.push_back(absl::StrCat("cluster.replicas=", replicas));
  replicas_ = replicas;
  auto cluster = chaos::PsCluster::Create(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  cluster_ = *std::move(cluster);
  const uint32_t at_start = cluster_->config().cluster().servers_at_start();
  for (uint32_t server = 0; server < (at_start > 0 ? at_start : servers); ++server) {
    ASSERT_TRUE(cluster_->Start(server).ok());
    ASSERT_TRUE(Await([&] { return cluster_->Listens(server); }));
  }
}

v1::TableSpec ReplicasFixture::DenseOnes() {
  v1::TableSpec spec = OnesSpec("dense");
  spec.mutable_dense()->add_dims(kElements);
  spec.mutable_dense()->set_block_elements(16);
  return spec;
}

v1::TableSpec ReplicasFixture::RowOnes() {
  v1::TableSpec spec = OnesSpec("rows");
  spec.mutable_embedding()->set_dim(1);
  return spec;
}

void ReplicasFixture::Connect(const std::vector<v1::TableSpec>& specs) {
  Run([&] {
    auto client = worker::Client::Connect(cluster_->config());
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    const auto tables = client_->EnsureTables(specs);
    ASSERT_TRUE(tables.ok()) << tables.status();
    tables_ = *tables;
  });
}

bool ReplicasFixture::Await(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    cluster_->Pump(5);
  }
  return true;
}

void ReplicasFixture::Run(const std::function<void()>& use) {
  std::atomic<bool> ended{false};
  std::thread thread([&] {
    use();
    ended = true;
  });
  EXPECT_TRUE(Await([&] { return ended.load(); }));
  thread.join();
}

v1::StatusResponse ReplicasFixture::StatusOf(uint32_t server) {
  const auto status = cluster_->StatusOf(server, 1000);
  return status.ok() ? *status : v1::StatusResponse();
}

bool ReplicasFixture::AllInSync() {
  uint32_t in_sync = 0;
  for (uint32_t server = 0; server < cluster_->servers(); ++server) {
    if (cluster_->Listens(server)) in_sync += StatusOf(server).replication().shards_in_sync();
  }
  return in_sync == kShards;
}

std::vector<v1::VerifyReplicasResponse> ReplicasFixture::Verify() {
  std::vector<v1::VerifyReplicasResponse> verified(cluster_->servers());
  for (uint32_t server = 0; server < cluster_->servers(); ++server) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const auto stub = v1::Admin::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", cluster_->PortOf(server)), 64 << 20));
    const grpc::Status status = stub->VerifyReplicas(&context, v1::VerifyReplicasRequest(), &verified[server]);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  return verified;
}

void ReplicasFixture::ExpectReplicasEqual() {
  std::vector<v1::VerifyReplicasResponse> verified;
  const auto all_are_there = [&] {
    verified = Verify();
    for (const v1::VerifyReplicasResponse& response : verified) {
      for (const auto& shard : response.shards()) {
        if (!shard.missing().empty()) return false;
      }
    }
    return true;
  };
  EXPECT_TRUE(Await(all_are_there));  // Of a move that goes on, one may just be made.
  uint32_t shards = 0;
  for (const v1::VerifyReplicasResponse& response : verified) {
    for (const auto& shard : response.shards()) {
      ++shards;
      EXPECT_EQ(shard.missing(), "") << "shard " << shard.shard();
      EXPECT_EQ(shard.owner_checksum(), shard.follower_checksum()) << "shard " << shard.shard();
    }
  }
  EXPECT_EQ(shards, kShards * (replicas_ - 1));
}

std::vector<float> ReplicasFixture::PullDense() {
  std::vector<float> values(kElements);
  Run([&] {
    const absl::Status pulled = client_->PullNow({{&tables_[0], values.data()}}, {}).status();
    EXPECT_TRUE(pulled.ok()) << pulled;
  });
  return values;
}

}  // namespace lodestone
