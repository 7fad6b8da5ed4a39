#include "common/rpc/etcd_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/coordinator.grpc.pb.h"
#include "tests/chaos/tcp_proxy.h"
#include "tests/common/rpc/etcd_cluster.h"

namespace lodestone {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kTimeoutMs = 60'000;  // Where no endpoint is to be given up.
constexpr int64_t kShortMs = 500;       // Where one is.
constexpr auto kCreated = EtcdClient::Condition::What::kCreated;
constexpr auto kModified = EtcdClient::Condition::What::kModified;

std::unique_ptr<EtcdCluster> StartEtcd(int members) {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  auto etcd = EtcdCluster::Start(members, absl::StrCat(std::getenv("TEST_TMPDIR"), "/", test->name()));
  if (!etcd.ok()) ADD_FAILURE() << etcd.status();
  return etcd.ok() ? *std::move(etcd) : nullptr;
}

// An address where connections are taken and nothing is ever said.
class SilentPort {
 public:
  SilentPort() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length), 0);
    EXPECT_EQ(listen(socket_, 16), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  ~SilentPort() { close(socket_); }
  const std::string& address() const { return address_; }
  void AwaitConnection() {
    pollfd wait = {socket_, POLLIN, 0};
    poll(&wait, 1, -1);
  }

 private:
  const int socket_;
  std::string address_;
};

TEST(EtcdClientTest, AKeyIsThereOnceItWasWritten) {
  const auto etcd = StartEtcd(1);
  ASSERT_NE(etcd, nullptr);
  EtcdClient client(etcd->endpoints(), kTimeoutMs);
  auto found = client.Get("a");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->has_value());

  const std::string bytes("one\0two\xff", 8);
  const auto put = client.PutIf({}, "a", bytes, 0);
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_TRUE(put->done);
  EXPECT_FALSE(put->repeated);
  found = client.Get("a");
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_TRUE(found->has_value());
  EXPECT_EQ((*found)->bytes, bytes);
  EXPECT_EQ((*found)->created, put->revision);
  EXPECT_EQ((*found)->modified, put->revision);
  EXPECT_EQ((*found)->lease, 0);
}

TEST(EtcdClientTest, AWriteIsDoneOnlyIfAllConditionsHold) {
  const auto etcd = StartEtcd(1);
  ASSERT_NE(etcd, nullptr);
  EtcdClient client(etcd->endpoints(), kTimeoutMs);
  const auto first = client.PutIf({{"a", kCreated, 0}}, "a", "1", 0);
  ASSERT_TRUE(first.ok() && first->done) << first.status();
  const auto again = client.PutIf({{"a", kCreated, 0}}, "a", "2", 0);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->done);
  ASSERT_EQ(again->found.size(), 1u);
  ASSERT_TRUE(again->found[0].has_value());
  EXPECT_EQ(again->found[0]->bytes, "1");
  EXPECT_EQ(again->found[0]->created, first->revision);

  const auto changed = client.PutIf({{"a", kCreated, first->revision}, {"a", kModified, first->revision}}, "a", "3", 0);
  ASSERT_TRUE(changed.ok() && changed->done) << changed.status();
  // Still of the same creation, but no longer of the same change; and of another key there is nothing.
  const auto late = client.PutIf(
      {{"a", kCreated, first->revision}, {"a", kModified, first->revision}, {"b", kModified, 0}}, "b", "4", 0);
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_FALSE(late->done);
  ASSERT_EQ(late->found.size(), 3u);
  EXPECT_EQ(late->found[0]->bytes, "3");
  EXPECT_EQ(late->found[1]->created, first->revision);
  EXPECT_EQ(late->found[1]->modified, changed->revision);
  EXPECT_FALSE(late->found[2].has_value());
  EXPECT_FALSE(client.Get("b")->has_value());
}

TEST(EtcdClientTest, AKeyGoesWithItsLease) {
  const auto etcd = StartEtcd(1);
  ASSERT_NE(etcd, nullptr);
  EtcdClient client(etcd->endpoints(), kTimeoutMs);
  const auto lease = client.Grant(60);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_GE(lease->seconds, 60);
  const auto put = client.PutIf({}, "a", "1", lease->id);
  ASSERT_TRUE(put.ok() && put->done) << put.status();
  EXPECT_EQ((*client.Get("a"))->lease, lease->id);
  const auto renewed = client.KeepAlive(lease->id);
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(*renewed, lease->seconds);

  ASSERT_TRUE(client.Revoke(lease->id).ok());
  EXPECT_FALSE(client.Get("a")->has_value());
  EXPECT_EQ(client.KeepAlive(lease->id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client.Revoke(lease->id).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client.PutIf({}, "a", "2", lease->id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(client.Get("a")->has_value());
}

TEST(EtcdClientTest, CallsGoToTheOtherMembersWhenTheLeaderDies) {
  const auto etcd = StartEtcd(3);
  ASSERT_NE(etcd, nullptr);
  const auto leader = etcd->AwaitLeader();
  ASSERT_TRUE(leader.ok()) << leader.status();
  std::vector<std::string> endpoints = etcd->endpoints();
  std::swap(endpoints[0], endpoints[*leader]);  // Asked first.
  EtcdClient client(endpoints, kTimeoutMs);
  ASSERT_TRUE(client.PutIf({}, "a", "1", 0).ok());
  const auto lease = client.Grant(3600);
  ASSERT_TRUE(lease.ok()) << lease.status();

  etcd->Kill(*leader);
  const auto next = etcd->AwaitLeader();
  ASSERT_TRUE(next.ok()) << next.status();
  const auto found = client.Get("a");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)->bytes, "1");
  EXPECT_TRUE(client.KeepAlive(lease->id).ok());
  const auto put = client.PutIf({{"a", kModified, (*found)->modified}}, "a", "2", 0);
  ASSERT_TRUE(put.ok() && put->done) << put.status();

  // The one that was away answers for what it missed.
  ASSERT_TRUE(etcd->Restart(*leader).ok());
  ASSERT_TRUE(etcd->AwaitLeader().ok());
  EtcdClient alone({etcd->endpoint(*leader)}, kTimeoutMs);
  EXPECT_EQ((*alone.Get("a"))->bytes, "2");
  EXPECT_TRUE(alone.KeepAlive(lease->id).ok());
}

TEST(EtcdClientTest, WhatAnEarlierAttemptMayHaveDoneIsSaid) {
  const auto etcd = StartEtcd(1);
  ASSERT_NE(etcd, nullptr);
  auto proxy = chaos::TcpProxy::Start();
  ASSERT_TRUE(proxy.ok()) << proxy.status();
  (*proxy)->SetTarget(etcd->port(0));
  EtcdClient direct(etcd->endpoints(), kTimeoutMs);
  EtcdClient client({(*proxy)->address(), etcd->endpoint(0)}, kShortMs);
  ASSERT_TRUE(client.Get("a").ok());
  // The request arrives, its answer does not.
  (*proxy)->SetLink({.holds_replies = true});
  const auto put = client.PutIf({{"a", kCreated, 0}}, "a", "1", 0);
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_FALSE(put->done);
  EXPECT_TRUE(put->repeated);
  EXPECT_EQ(put->found[0]->bytes, "1");
  EXPECT_EQ((*direct.Get("a"))->bytes, "1");
}

TEST(EtcdClientTest, AnEndpointThatSaysNothingIsLeftForAnother) {
  const auto etcd = StartEtcd(1);
  ASSERT_NE(etcd, nullptr);
  SilentPort silent;
  EtcdClient client({silent.address(), etcd->endpoint(0)}, kShortMs);
  absl::Status status;
  do {  // Also etcd may be that slow now and then.
    status = client.Get("a").status();
  } while (absl::IsDeadlineExceeded(status));
  EXPECT_TRUE(status.ok()) << status;
}

TEST(EtcdClientTest, ErrorsNameTheEndpoints) {
  chaos::TcpProxy& refuses = *chaos::TcpProxy::Start()->release();
  const std::unique_ptr<chaos::TcpProxy> owner(&refuses);
  SilentPort silent;
  EtcdClient nobody({refuses.address()}, kTimeoutMs);
  const absl::Status refused = nobody.Get("a").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  EXPECT_THAT(refused.message(), HasSubstr(absl::StrCat("etcd ", refuses.address(), ": ")));

  EtcdClient client({silent.address()}, kShortMs);
  const absl::Status late = client.Get("a").status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  EXPECT_THAT(late.message(),
              AllOf(HasSubstr(absl::StrCat("etcd ", silent.address(), ": ")), HasSubstr("no answer within 500 ms")));

  EtcdClient both({silent.address(), refuses.address()}, kShortMs);
  const absl::Status status = both.Grant(10).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr(silent.address()), HasSubstr(refuses.address())));
}

TEST(EtcdClientTest, WhatIsNotEtcdIsSaidToBeNone) {
  v1::Coordinator::Service other;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&other);
  const auto server = builder.BuildAndStart();
  EtcdClient client({absl::StrCat("127.0.0.1:", port)}, kTimeoutMs);
  const absl::Status status = client.Get("a").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr(absl::StrCat(":", port)), HasSubstr("is not etcd")));
  EXPECT_EQ(client.KeepAlive(1).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(EtcdClientTest, StopEndsACallThatWaits) {
  SilentPort silent;
  EtcdClient client({silent.address()}, 3'600'000);
  absl::Status status;
  std::thread caller([&] { status = client.KeepAlive(1).status(); });
  silent.AwaitConnection();
  client.Stop();
  caller.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_EQ(client.Get("a").status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace lodestone
