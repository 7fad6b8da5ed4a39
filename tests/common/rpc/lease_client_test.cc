#include "common/rpc/lease_client.h"

#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "gmock/gmock.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/config.pb.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;

// A coordinator of one server and four shards whose answers a test sets.
class ScriptedCoordinator final : public v1::Coordinator::Service {
 public:
  grpc::Status Join(grpc::ServerContext*, const v1::JoinRequest* request, v1::JoinResponse* response) override {
    MutexLock lock(&mu_);
    joins_.push_back(*request);
    if (!join_status_.ok()) return std::exchange(join_status_, next_join_status_);
    response->set_index(3);
    response->set_incarnation(100 + joins_.size());
    response->set_lease_ms(30);
    return grpc::Status::OK;
  }
  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest* request,
                         v1::HeartbeatResponse* response) override {
    MutexLock lock(&mu_);
    beats_.push_back(*request);
    response->set_route_epoch(1);
    return heartbeat_status_;
  }
  grpc::Status Route(grpc::ServerContext*, const v1::RouteRequest*, v1::RouteResponse* response) override {
    MutexLock lock(&mu_);
    ++routes_;
    response->set_epoch(epoch_);
    response->add_servers()->set_address("host:1");
    for (int shard = 0; shard < 4; ++shard) response->add_owners(0);
    return route_status_;
  }

  // The next Join ends with `first`, those after it with `then`; OK: as usual.
  void SetJoins(grpc::Status first, grpc::Status then) {
    MutexLock lock(&mu_);
    join_status_ = std::move(first);
    next_join_status_ = std::move(then);
  }
  void SetHeartbeats(grpc::Status status) {
    MutexLock lock(&mu_);
    heartbeat_status_ = std::move(status);
  }
  void SetRoutes(grpc::Status status) {
    MutexLock lock(&mu_);
    route_status_ = std::move(status);
  }
  void SetEpoch(uint64_t epoch) {
    MutexLock lock(&mu_);
    epoch_ = epoch;
  }
  int routes() {
    MutexLock lock(&mu_);
    return routes_;
  }
  std::vector<v1::JoinRequest> joins() {
    MutexLock lock(&mu_);
    return joins_;
  }
  std::vector<v1::HeartbeatRequest> beats() {
    MutexLock lock(&mu_);
    return beats_;
  }

 private:
  Mutex mu_;
  grpc::Status join_status_ ABSL_GUARDED_BY(mu_);
  grpc::Status next_join_status_ ABSL_GUARDED_BY(mu_);
  grpc::Status heartbeat_status_ ABSL_GUARDED_BY(mu_);
  grpc::Status route_status_ ABSL_GUARDED_BY(mu_);
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 1;  // Of the map; heartbeats always tell of 1.
  int routes_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<v1::JoinRequest> joins_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::HeartbeatRequest> beats_ ABSL_GUARDED_BY(mu_);
};

class LeaseClientTest : public ::testing::Test {
 protected:
  LeaseClientTest() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&coordinator_);
    server_ = builder.BuildAndStart();
    options_.join.set_role(v1::ROLE_WORKER);
    options_.lease_ms = 10'000;
    options_.poll_ms_max = 1;
    options_.joins_again = false;
    options_.without_lease = "waits for the coordinator";
  }
  ~LeaseClientTest() override {
    client_.reset();
    server_->Shutdown();
  }

  // Returns what the first map, or its absence, was reported with.
  absl::StatusOr<ShardMap> Start() {
    v1::Config config;
    config.mutable_coordinator()->set_address(address_);
    client_ = std::make_unique<LeaseClient>(
        options_,
        LeaseClient::Delegate{.fill_heartbeat = [](bool, v1::HeartbeatRequest*) {},
                              .on_heartbeat_answered = [](const v1::HeartbeatResponse&) {},
                              .check_route = [](const ShardMap&) { return absl::OkStatus(); },
                              .on_first_route =
                                  [this](absl::StatusOr<ShardMap> map) {
                                    map_ = std::move(map);
                                    first_.count_down();
                                  },
                              .on_route = [](const ShardMap&) {},
                              .on_lost =
                                  [this](const absl::Status& status) {
                                    lost_ = status;
                                    is_lost_.count_down();
                                  }},
        std::make_unique<CoordinatorChannel>(config,
                                             [this](const std::string&) { return server_->InProcessChannel({}); }));
    first_.wait();
    return map_;
  }

  ScriptedCoordinator coordinator_;
  std::unique_ptr<grpc::Server> server_;
  LeaseClient::Options options_;
  std::string address_ = "fake:1";
  absl::StatusOr<ShardMap> map_;
  absl::Status lost_;
  std::latch first_{1}, is_lost_{1};  // Which ThreadSanitizer sees, unlike the libraries' own.
  std::unique_ptr<LeaseClient> client_;
};

TEST_F(LeaseClientTest, WaitsForAPlaceThatIsHeldAndJoinsUnderOneToken) {
  coordinator_.SetJoins({grpc::StatusCode::ALREADY_EXISTS, "held"}, grpc::Status::OK);
  const absl::StatusOr<ShardMap> map = Start();
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->epoch(), 1);
  EXPECT_EQ(client_->index(), 3);
  EXPECT_EQ(client_->incarnation(), 102);
  const std::vector<v1::JoinRequest> joins = coordinator_.joins();
  ASSERT_EQ(joins.size(), 2);
  EXPECT_NE(joins[0].token(), 0);
  EXPECT_EQ(joins[0].token(), joins[1].token());
  EXPECT_NE(joins[0].peer(), "");
}

TEST_F(LeaseClientTest, EveryJoinSaysWhereTheProcessCanBeSeenToLive) {
  options_.shows_life = true;
  address_ = "127.0.0.1:1";
  coordinator_.SetJoins({grpc::StatusCode::ALREADY_EXISTS, "held"}, grpc::Status::OK);
  ASSERT_TRUE(Start().ok());
  const std::vector<v1::JoinRequest> joins = coordinator_.joins();
  ASSERT_EQ(joins.size(), 2);
  EXPECT_THAT(joins[0].watched_at(), testing::StartsWith("127.0.0.1:"));
  EXPECT_EQ(joins[0].watched_at(), joins[1].watched_at()) << "a coordinator may watch it already";
}

TEST_F(LeaseClientTest, AProcessWhoseCoordinatorsNameIsNotFoundJoinsAllTheSame) {
  options_.shows_life = true;
  address_ = "does-not-exist.invalid:1";
  ASSERT_TRUE(Start().ok());
  EXPECT_EQ(coordinator_.joins()[0].watched_at(), "");
}

TEST_F(LeaseClientTest, GivesUpAPlaceThatStaysHeldForLongerThanALease) {
  const grpc::Status held(grpc::StatusCode::ALREADY_EXISTS, "held by worker 3");
  options_.lease_ms = 10;
  coordinator_.SetJoins(held, held);
  const absl::Status status = Start().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("held by worker 3"));
}

TEST_F(LeaseClientTest, GivesUpWithTheLastReasonAfterTheJoinTimeout) {
  options_.join_timeout_ms = 1000;
  coordinator_.SetRoutes({grpc::StatusCode::UNAVAILABLE, "waiting for 1 of 1 servers"});
  const absl::Status status = Start().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("coordinator fake:1: waiting for 1 of 1 servers"));
}

TEST_F(LeaseClientTest, ANewerMapThatWasRequestedOnceIsAskedForUntilItIsThere) {
  options_.route_request_ms_max = 1;
  ASSERT_TRUE(Start().ok());
  const int before = coordinator_.routes();
  client_->RequestRoute();
  while (coordinator_.routes() < before + 5) std::this_thread::yield();
  coordinator_.SetEpoch(2);
  while (client_->epoch() < 2) std::this_thread::yield();
}

TEST_F(LeaseClientTest, AnErrorThatStaysIsNotWaitedOut) {
  coordinator_.SetJoins({grpc::StatusCode::INVALID_ARGUMENT, "another cluster"}, grpc::Status::OK);
  EXPECT_EQ(Start().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(coordinator_.joins().size(), 1);
}

TEST_F(LeaseClientTest, AProcessThatDoesNotJoinAgainSendsNothingMoreOnceItsLeaseIsLost) {
  ASSERT_TRUE(Start().ok());
  const Incarnation incarnation = client_->incarnation();
  coordinator_.SetHeartbeats({grpc::StatusCode::FAILED_PRECONDITION, "the lease has ended"});
  is_lost_.wait();
  EXPECT_EQ(lost_.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(client_->incarnation(), incarnation);
  client_->Leave();
  EXPECT_EQ(coordinator_.joins().size(), 1);
  EXPECT_FALSE(coordinator_.beats().back().leaving());
}

TEST_F(LeaseClientTest, WaitsWhileHeartbeatsAreNotAnsweredAndLeavesWithALastOne) {
  ASSERT_TRUE(Start().ok());
  coordinator_.SetHeartbeats({grpc::StatusCode::UNAVAILABLE, "starts"});
  while (!client_->wait().has_value()) std::this_thread::yield();
  EXPECT_EQ(client_->wait()->what, "waits for the coordinator: coordinator fake:1: starts");
  coordinator_.SetHeartbeats(grpc::Status::OK);
  while (client_->wait().has_value()) std::this_thread::yield();
  client_->Leave();
  EXPECT_TRUE(coordinator_.beats().back().leaving());
  EXPECT_EQ(client_->Call(1000, [](auto*, auto*) { return grpc::Status::OK; }).code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace lodestone
