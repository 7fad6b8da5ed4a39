// A whole ps of a small cluster, in the test's own process: what its tests begin with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/rpc/channel.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "proto/config.pb.h"
#include "server/process.h"
#include "tests/common/rpc/message_limit.h"

namespace lodestone::server {

inline v1::Config ConfigOf(uint32_t servers, uint32_t index, const std::string& coordinator = "") {
  v1::Config config;
  config.mutable_cluster()->set_servers(servers);
  config.mutable_cluster()->set_shards(8);
  config.mutable_coordinator()->set_address(coordinator);
  config.mutable_coordinator()->set_lease_ms(60'000);
  config.mutable_server()->set_index(index);
  config.mutable_server()->set_executors(1);
  return config;
}

// Null if it does not start.
inline std::unique_ptr<ServerProcess> StartOrFail(const v1::Config& config) {
  auto process = ServerProcess::Start(config);
  EXPECT_TRUE(process.ok()) << process.status();
  return process.ok() ? *std::move(process) : nullptr;
}

inline v1::StatusResponse StatusOf(const ServerProcess& process) {
  grpc::ClientContext context;
  v1::StatusResponse response;
  const auto stub = v1::Admin::NewStub(MakeChannel(process.address(), kMessageBytesMax));
  const grpc::Status status = stub->Status(&context, v1::StatusRequest(), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

}  // namespace lodestone::server
