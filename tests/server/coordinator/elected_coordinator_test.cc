#include "server/coordinator/elected_coordinator.h"

#include <cstdlib>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/etcd_client.h"
#include "common/rpc/tuning.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "server/coordinator/control_service.h"
#include "tests/common/rpc/etcd_cluster.h"
#include "tests/common/rpc/listener.h"

namespace lodestone::server {
namespace {

constexpr uint32_t kEndlessLeaseMs = 3'600'000;  // Ends only where the test ends it.

// A ps as far as the coordinator goes.
class Ps {
 public:
  Ps(const EtcdCluster& etcd, const TimeSource* time, const std::string& address) {
    ElectedCoordinator::Options options;
    options.membership.cluster = options.election.cluster = "test";
    options.membership.workers = 2;
    options.membership.lease_ms = options.election.lease_ms = kEndlessLeaseMs;
    options.membership.ends_with_server_0 = false;
    options.membership.time = options.election.time = time;
    options.election.etcd = etcd.endpoints();
    coordinator_ = std::make_unique<ElectedCoordinator>(std::move(options));
    grpc::ServerBuilder builder;
    control_ = std::make_unique<ControlService>(coordinator_.get(), coordinator_.get(), CallbackThreadsAreBusy);
    control_->Register(&builder);
    server_ = builder.BuildAndStart();
    control_->Start();
    stub_ = v1::Coordinator::NewStub(server_->InProcessChannel({}));
    coordinator_->Start(address);
  }
  ~Ps() { Shutdown(); }
  void Shutdown() {
    coordinator_->Shutdown();
    server_->Shutdown();
    control_->Shutdown();
  }

  void SetPeers(std::vector<ProcessWatch::Process> peers) { coordinator_->SetPeers(std::move(peers)); }
  v1::Coordinator::Stub* stub() { return stub_.get(); }
  // Of a coordinator that serves, as its status tells.
  bool Serves() {
    v1::StatusResponse status;
    coordinator_->FillStatus(&status);
    return status.has_cluster();
  }
  std::optional<v1::EventsResponse> Events() { return coordinator_->Events(0); }
  std::optional<v1::HistoryResponse> History() { return coordinator_->TellHistory(); }
  void AwaitElected() {
    while (!Serves()) std::this_thread::yield();
  }
  grpc::Status Join(v1::Role role, uint64_t token, v1::JoinResponse* response) {
    v1::JoinRequest request;
    request.set_role(role);
    request.set_cluster("test");
    request.set_shards(1);
    request.set_token(token);
    if (role == v1::ROLE_SERVER) request.set_address("host:1");
    grpc::ClientContext context;
    return stub_->Join(&context, request, response);
  }
  grpc::Status Beat(Incarnation incarnation) {
    v1::HeartbeatRequest request;
    request.set_incarnation(incarnation);
    v1::HeartbeatResponse response;
    grpc::ClientContext context;
    return stub_->Heartbeat(&context, request, &response);
  }
  grpc::Status Route(v1::RouteResponse* response) {
    grpc::ClientContext context;
    return stub_->Route(&context, v1::RouteRequest(), response);
  }

 private:
  std::unique_ptr<ElectedCoordinator> coordinator_;
  std::unique_ptr<ControlService> control_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

// A call of AwaitClock that is held.
class Await {
 public:
  Await(Ps* ps, Incarnation asker, Clock clock) {
    request_.set_incarnation(asker);
    request_.set_clock(clock);
    request_.set_timeout_ms(60'000);
    ps->stub()->async()->AwaitClock(&context_, &request_, &response_, [this](grpc::Status status) {
      status_ = std::move(status);
      done_.count_down();
    });
  }
  ~Await() { done_.wait(); }
  const grpc::Status& status() {
    done_.wait();
    return status_;
  }

 private:
  grpc::ClientContext context_;
  v1::AwaitClockRequest request_;
  v1::AwaitClockResponse response_;
  grpc::Status status_;
  std::latch done_{1};
};

class ElectedCoordinatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    auto etcd = EtcdCluster::Start(1, absl::StrCat(std::getenv("TEST_TMPDIR"), "/", test->name()));
    ASSERT_TRUE(etcd.ok()) << etcd.status();
    etcd_ = *std::move(etcd);
    client_ = std::make_unique<EtcdClient>(etcd_->endpoints(), 60'000);
  }
  // As if the lease of who is elected had ended.
  void EndLease() {
    const auto leader = client_->Get(EtcdCoordinatorKey("test"));
    ASSERT_TRUE(leader.ok() && leader->has_value()) << leader.status();
    ASSERT_TRUE(client_->Revoke((*leader)->lease).ok());
  }

  ManualTime time_;
  std::unique_ptr<EtcdCluster> etcd_;
  std::unique_ptr<EtcdClient> client_;
};

TEST_F(ElectedCoordinatorTest, OnlyTheElectedAnswersAndTheOthersSayWhoItIs) {
  Ps first(*etcd_, &time_, "ps-0:7000");
  first.AwaitElected();
  Ps second(*etcd_, &time_, "ps-1:7000");
  v1::JoinResponse joined;
  EXPECT_TRUE(first.Join(v1::ROLE_SERVER, 1, &joined).ok());
  grpc::Status other;
  do {  // Until it has asked etcd.
    other = second.Join(v1::ROLE_WORKER, 2, &joined);
    EXPECT_EQ(other.error_code(), grpc::StatusCode::UNAVAILABLE) << other.error_message();
  } while (other.error_message().find("ps-0:7000") == std::string::npos);
  EXPECT_EQ(second.Beat(joined.incarnation()).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Await(&second, 0, 1).status().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(second.Serves());
}

TEST_F(ElectedCoordinatorTest, OnlyTheElectedTellsWhatHappensAndTheNextBeginsAnew) {
  Ps first(*etcd_, &time_, "ps-0:7000");
  first.AwaitElected();
  Ps second(*etcd_, &time_, "ps-1:7000");
  v1::JoinResponse joined;
  EXPECT_TRUE(first.Join(v1::ROLE_WORKER, 1, &joined).ok());
  ASSERT_TRUE(first.Events().has_value());
  ASSERT_EQ(first.Events()->events_size(), 1);
  EXPECT_EQ(first.Events()->events(0).kind(), "joined");
  EXPECT_TRUE(first.History().has_value());
  EXPECT_FALSE(second.Events().has_value());
  EXPECT_FALSE(second.History().has_value());
  const uint64_t incarnation = first.Events()->incarnation();
  first.Shutdown();
  second.AwaitElected();
  EXPECT_FALSE(first.Events().has_value());
  ASSERT_TRUE(second.Events().has_value());
  EXPECT_EQ(second.Events()->events_size(), 0);
  EXPECT_NE(second.Events()->incarnation(), incarnation);
}

TEST_F(ElectedCoordinatorTest, TheNextKnowsWhatAnybodyWasTold) {
  Ps first(*etcd_, &time_, "ps-0:7000");
  first.AwaitElected();
  v1::JoinResponse server, worker;
  ASSERT_TRUE(first.Join(v1::ROLE_SERVER, 1, &server).ok());
  ASSERT_TRUE(first.Join(v1::ROLE_WORKER, 2, &worker).ok());
  v1::RouteResponse route, next_route;
  ASSERT_TRUE(first.Route(&route).ok());
  Ps second(*etcd_, &time_, "ps-1:7000");
  first.Shutdown();
  second.AwaitElected();
  EXPECT_TRUE(second.Beat(server.incarnation()).ok());
  EXPECT_TRUE(second.Beat(worker.incarnation()).ok());
  ASSERT_TRUE(second.Route(&next_route).ok());
  EXPECT_EQ(next_route.SerializeAsString(), route.SerializeAsString());
  v1::JoinResponse another;
  ASSERT_TRUE(second.Join(v1::ROLE_WORKER, 3, &another).ok());
  EXPECT_GT(another.incarnation(), worker.incarnation());
  EXPECT_EQ(another.index(), 1u);
}

TEST_F(ElectedCoordinatorTest, WhatIsAskedOfOneThatWasDeposedIsNotToldAndItsHeldCallsEnd) {
  Ps first(*etcd_, &time_, "ps-0:7000");
  first.AwaitElected();
  v1::JoinResponse worker, another;
  ASSERT_TRUE(first.Join(v1::ROLE_WORKER, 1, &worker).ok());
  Await held(&first, worker.incarnation(), 7);
  Ps second(*etcd_, &time_, "ps-1:7000");
  EndLease();
  second.AwaitElected();
  EXPECT_TRUE(first.Serves());  // It does not know.
  const grpc::Status refused = first.Join(v1::ROLE_WORKER, 2, &another);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE) << refused.error_message();
  EXPECT_EQ(held.status().error_code(), grpc::StatusCode::UNAVAILABLE) << held.status().error_message();
  EXPECT_TRUE(second.Beat(worker.incarnation()).ok());
  ASSERT_TRUE(second.Join(v1::ROLE_WORKER, 3, &another).ok());
  EXPECT_EQ(another.index(), 1u);  // Not taken by the one that was refused.
}

// The others once waited for the lease of one that had died before they looked where it was.
TEST_F(ElectedCoordinatorTest, OneThatIsElectedAndDiesAtOnceDoesNotKeepThePlaceWhereItsPsWasSeen) {
  const auto elect = [this](const std::string& address) {
    const auto lease = client_->Grant(kEndlessLeaseMs / 1000);
    ASSERT_TRUE(lease.ok()) << lease.status();
    ASSERT_TRUE(client_->PutIf({}, EtcdCoordinatorKey("test"), address, lease->id).ok());
  };
  elect("nobody.invalid:1");
  Ps ps(*etcd_, &time_, "ps-0:7000");
  Listener peer;
  ps.SetPeers({{.life = 1, .address = peer.address()}});
  ASSERT_TRUE(peer.Accept());
  peer.Die();
  EXPECT_FALSE(ps.Serves());
  elect(peer.address());
  ps.AwaitElected();
}

// A ps that was stopped for long, and woken up, believes that nobody else lives any more.
TEST_F(ElectedCoordinatorTest, OneWhoseLeaseHasEndedTellsNobodyThatTheirsHas) {
  Ps ps(*etcd_, &time_, "ps-0:7000");
  ps.AwaitElected();
  v1::JoinResponse worker, behind;
  ASSERT_TRUE(ps.Join(v1::ROLE_WORKER, 1, &worker).ok());
  ASSERT_TRUE(ps.Join(v1::ROLE_WORKER, 2, &behind).ok());
  Await held(&ps, worker.incarnation(), 7);
  time_.AdvanceMs(2 * int64_t{kEndlessLeaseMs});
  const grpc::Status beat = ps.Beat(worker.incarnation());
  EXPECT_EQ(beat.error_code(), grpc::StatusCode::UNAVAILABLE) << beat.error_message();
  // Nobody lives who is behind that clock; and the one that waits for it does not either.
  EXPECT_EQ(Await(&ps, 0, 7).status().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(held.status().error_code(), grpc::StatusCode::UNAVAILABLE) << held.status().error_message();
  v1::RouteResponse route;
  EXPECT_EQ(ps.Route(&route).error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace lodestone::server
