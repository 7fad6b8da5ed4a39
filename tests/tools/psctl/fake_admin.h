// A cluster of two servers that answer what an operator asks, and do nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"

namespace lodestone {

// A ps that writes checkpoints and brings tables back in no time, or not at all.
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
    response->set_coordinator(coordinator);
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
  grpc::Status Rollback(grpc::ServerContext*, const v1::RollbackRequest* request,
                        v1::RollbackResponse* response) override {
    MutexLock lock(&mu_);
    names_.push_back(request->ShortDebugString());
    for (uint32_t i = 0; i < shards_back; ++i) {
      v1::RollbackResponse::ShardRollback* const shard = response->add_shards();
      shard->set_shard(index_ + 2 * i);
      shard->set_version_before(100 + i);
      shard->set_version_after(101 + i);
      shard->set_version_restored(7);
    }
    return answer;
  }
  grpc::Status VerifyReplicas(grpc::ServerContext*, const v1::VerifyReplicasRequest*,
                              v1::VerifyReplicasResponse* response) override {
    *response = replicas;
    return answer;
  }
  // What was asked of it, but for its status.
  std::vector<std::string> names() {
    MutexLock lock(&mu_);
    return names_;
  }

  std::string address;
  v1::ClusterStatus cluster;
  std::string coordinator;
  v1::VerifyReplicasResponse replicas;
  grpc::Status answer;
  uint32_t shards_back = 3;

 private:
  const uint32_t index_;
  Mutex mu_;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Server> server_;
};

class TwoServersTest : public ::testing::Test {
 protected:
  TwoServersTest() {
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

}  // namespace lodestone
