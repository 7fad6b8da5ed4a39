#include "common/rpc/channel.h"

#include <unistd.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "gtest/gtest.h"
#include "proto/coordinator.grpc.pb.h"
#include "tests/common/rpc/fake_dns.h"

namespace lodestone {
namespace {

// Notes who calls.
class PeerService final : public v1::Coordinator::Service {
 public:
  grpc::Status Join(grpc::ServerContext* context, const v1::JoinRequest*, v1::JoinResponse*) override {
    MutexLock lock(&mu_);
    peers_.insert(context->peer());
    return grpc::Status::OK;
  }
  size_t peers() {
    MutexLock lock(&mu_);
    return peers_.size();
  }

 private:
  Mutex mu_;
  std::set<std::string> peers_ ABSL_GUARDED_BY(mu_);
};

class ChannelTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kMessageBytesMax = 100'000;

  ChannelTest() {
    grpc::ServerBuilder builder;
    ApplyServerSettings(&builder, kMessageBytesMax);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }

  grpc::Status Join(grpc::Channel* channel, const v1::JoinRequest& request) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::JoinResponse response;
    return v1::Coordinator::NewStub(std::shared_ptr<grpc::Channel>(channel, [](auto*) {}))
        ->Join(&context, request, &response);
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  PeerService service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(ChannelTest, GivesEveryChannelAConnectionOfItsOwn) {
  const auto first = MakeChannel(address(), kMessageBytesMax);
  const auto second = MakeChannel(address(), kMessageBytesMax);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Join(first.get(), {}).ok());
    ASSERT_TRUE(Join(second.get(), {}).ok());
  }
  EXPECT_EQ(service_.peers(), 2);
}

TEST_F(ChannelTest, TakesMessagesUpToTheLimitAndRefusesLongerOnesOnBothSides) {
  const auto channel = MakeChannel(address(), kMessageBytesMax);
  v1::JoinRequest request;
  request.set_peer(std::string(kMessageBytesMax - 100, 'x'));
  EXPECT_TRUE(Join(channel.get(), request).ok());
  request.set_peer(std::string(kMessageBytesMax + 1, 'x'));
  EXPECT_EQ(Join(channel.get(), request).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);

  const auto generous = MakeChannel(address(), 10 * kMessageBytesMax);  // So the server has to refuse it.
  EXPECT_EQ(Join(generous.get(), request).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Join(generous.get(), {}).ok()) << "the server goes on serving";
}

// A worker started before its coordinator once went on pausing after the coordinator had come.
TEST_F(ChannelTest, ReconnectsAtOnceThoughGrpcWouldPauseForAnHour) {
  // A name that no other process can take meanwhile, unlike a port.
  const std::string address = absl::StrCat("unix-abstract:lodestone-channel-test-", getpid());
  grpc::ChannelArguments settings = ChannelSettings(kMessageBytesMax);
  settings.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 3'600'000);
  settings.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 3'600'000);
  const auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), settings);
  EXPECT_FALSE(Reconnect(channel.get())) << "nothing was tried yet";
  const auto deadline = std::chrono::system_clock::now() + std::chrono::minutes(10);
  for (auto state = channel->GetState(true); state != GRPC_CHANNEL_TRANSIENT_FAILURE; state = channel->GetState(true)) {
    ASSERT_TRUE(channel->WaitForStateChange(state, deadline));
  }
  PeerService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  ASSERT_TRUE(Reconnect(channel.get()));
  EXPECT_TRUE(channel->WaitForConnected(deadline));
  EXPECT_FALSE(Reconnect(channel.get())) << "it is connected";
  EXPECT_TRUE(Join(channel.get(), {}).ok());
}

// As a ps does that Kubernetes has started on another node.
TEST_F(ChannelTest, FindsAPeerThatHasComeBackWithItsNameAndAnotherAddress) {
  FakeDns dns("127.0.0.9");  // Where nobody listens at that port.
  const auto channel = MakeChannel(dns.Target(absl::StrCat("ps-1.lodestone-ps:", port_)), kMessageBytesMax);
  const auto start = std::chrono::system_clock::now();
  for (auto state = channel->GetState(true); state != GRPC_CHANNEL_TRANSIENT_FAILURE; state = channel->GetState(true)) {
    ASSERT_TRUE(channel->WaitForStateChange(state, start + std::chrono::minutes(10)));
  }
  dns.Move("127.0.0.1");
  // gRPC by itself would not ask for the name again before 30 s have passed.
  EXPECT_TRUE(channel->WaitForConnected(start + std::chrono::seconds(25)));
  EXPECT_TRUE(Join(channel.get(), {}).ok());
}

TEST_F(ChannelTest, RefusesAPortThatIsTaken) {
  grpc::ServerBuilder builder;
  ApplyServerSettings(&builder, kMessageBytesMax);
  PeerService service;
  builder.AddListeningPort(address(), grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  EXPECT_EQ(builder.BuildAndStart(), nullptr);
}

}  // namespace
}  // namespace lodestone
