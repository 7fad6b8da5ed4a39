#include "tools/psctl/checkpoint.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"

namespace lodestone {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A ps that writes checkpoints in no time, or not at all.
class FakeAdmin final : public v1::Admin::Service {
 public:
  explicit FakeAdmin(uint32_t index) : index_(index) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address = absl::StrCat("127.0.0.1:", port);
  }
  ~FakeAdmin() override { server_->Shutdown(); }

  grpc::Status Status(grpc::ServerContext*, const v1::StatusRequest*, v1::StatusResponse* response) override {
    response->mutable_server()->set_index(index_);
    if (cluster.servers_expected() > 0) *response->mutable_cluster() = cluster;
    return grpc::Status::OK;
  }
  grpc::Status Checkpoint(grpc::ServerContext*, const v1::CheckpointRequest* request,
                          v1::CheckpointResponse* response) override {
    MutexLock lock(&mu_);
    names_.push_back(request->name());
    response->set_path(absl::StrCat("/data/", request->name()));
    response->set_shards(index_ + 10);
    return answer;
  }
  std::vector<std::string> names() {
    MutexLock lock(&mu_);
    return names_;
  }

  std::string address;
  v1::ClusterStatus cluster;
  grpc::Status answer;

 private:
  const uint32_t index_;
  Mutex mu_;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Server> server_;
};

class CheckpointClusterTest : public ::testing::Test {
 protected:
  CheckpointClusterTest() {
    zero_.cluster.set_servers_expected(2);
    for (const FakeAdmin* each : {&one_, &zero_}) {
      v1::MemberStatus* server = zero_.cluster.add_servers();
      server->set_index(each == &one_ ? 1 : 0);
      server->set_peer(each->address);
    }
  }
  FakeAdmin zero_{0};
  FakeAdmin one_{1};
};

TEST_F(CheckpointClusterTest, AsksEveryServerForTheSameName) {
  const auto parts = CheckpointCluster(zero_.address, "mine", 10'000);
  ASSERT_TRUE(parts.ok()) << parts.status();
  ASSERT_EQ(parts->size(), 2u);
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ((*parts)[i].server, i);
    ASSERT_TRUE((*parts)[i].written.ok()) << (*parts)[i].written.status();
    EXPECT_EQ((*parts)[i].written->shards(), i + 10);
  }
  EXPECT_THAT(zero_.names(), ElementsAre("mine"));
  EXPECT_THAT(one_.names(), ElementsAre("mine"));
}

TEST_F(CheckpointClusterTest, TellsWhichServerFailedAndWhy) {
  one_.answer = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "no space left");
  const auto parts = CheckpointCluster(zero_.address, "mine", 10'000);
  ASSERT_TRUE(parts.ok());
  EXPECT_TRUE((*parts)[0].written.ok());
  EXPECT_THAT(std::string((*parts)[1].written.status().message()), HasSubstr(one_.address + ": no space left"));
  CheckpointOptions options;
  options.address = zero_.address;
  EXPECT_EQ(RunCheckpoint(options), 1);
  one_.answer = grpc::Status::OK;
  EXPECT_EQ(RunCheckpoint(options), 0);
}

TEST_F(CheckpointClusterTest, WantsThePsThatKnowsTheOthersAndAllOfThem) {
  EXPECT_THAT(std::string(CheckpointCluster(one_.address, "mine", 10'000).status().message()),
              HasSubstr("has index 1 and does not know the others"));
  zero_.cluster.set_servers_expected(3);
  EXPECT_THAT(std::string(CheckpointCluster(zero_.address, "mine", 10'000).status().message()),
              HasSubstr("only 2 of the cluster's 3 servers have joined"));
  EXPECT_THAT(zero_.names(), ElementsAre());
}

TEST(RunCheckpoint, RefusesAnAddressOrNameThatIsNone) {
  CheckpointOptions options;
  options.address = "nowhere";
  EXPECT_EQ(RunCheckpoint(options), 2);
  options.address = "127.0.0.1:1";
  options.name = "auto-ps0-000001";
  EXPECT_EQ(RunCheckpoint(options), 2);
}

TEST(ManualCheckpointName, IsTheTimeInUtc) {
  EXPECT_EQ(ManualCheckpointName(absl::FromUnixSeconds(1'700'000'000)), "manual-20231114-221320");
}

}  // namespace
}  // namespace lodestone
