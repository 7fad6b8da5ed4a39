#include "worker/client/worker_membership.h"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/wire/message.h"
#include "gtest/gtest.h"
#include "server/coordinator/membership.h"
#include "tests/worker/rpc/fake_server.h"

namespace lodestone::worker {
namespace {

// The coordinator's own bookkeeping behind a server that treats Joins as it is told.
class Coordinator {
 public:
  // What is done to Join number `call`, from 1.
  enum class Fault { kNone, kRefuse, kDropReply };
  using Faults = std::function<Fault(int call)>;

  Coordinator(uint32_t workers, Faults faults) : faults_(std::move(faults)), workers_(workers) {
    {
      MutexLock lock(&mu_);
      members_.emplace(OptionsWith(workers, &time_));
    }
    server_ = std::make_unique<FakeServer>([this](std::shared_ptr<FakeCall> call) { Handle(call.get()); });
    JoinServer(server_->address());
  }

  // Lets the one ps join, in place of the one before.
  void JoinServer(const std::string& address) {
    v1::JoinRequest ps;
    ps.set_role(v1::ROLE_SERVER);
    ps.set_index_plus_one(1);
    ps.set_address(address);
    ps.set_cluster("test");
    ps.set_shards(4);
    ps.set_token(1 + last_token_);
    ps.set_predecessor(last_token_++);
    MutexLock lock(&mu_);
    EXPECT_TRUE(members_->Join(ps).ok());
  }
  // Stops, and goes on at the same port after `meanwhile`, as another life: with what it knew, or with nothing.
  void Restart(bool with_state, const std::function<void()>& meanwhile) {
    const int port = server_->port();
    server_.reset();
    meanwhile();
    {
      MutexLock lock(&mu_);
      const v1::CoordinatorState state = members_->SaveState();
      members_.emplace(OptionsWith(workers_, &time_));
      EXPECT_TRUE(!with_state || members_->Restore(state).ok());
    }
    server_ = std::make_unique<FakeServer>([this](std::shared_ptr<FakeCall> call) { Handle(call.get()); }, port);
  }
  // What Route answers from now on, in place of the truth.
  void SetRoute(const v1::RouteResponse& route) {
    MutexLock lock(&mu_);
    route_ = route;
  }
  v1::RouteResponse route() {
    MutexLock lock(&mu_);
    return *members_->shards().Route();
  }
  int heartbeats() {
    MutexLock lock(&mu_);
    return heartbeats_;
  }

  v1::Config config() const {
    v1::Config config;
    config.mutable_cluster()->set_name("test");
    config.mutable_cluster()->set_shards(4);
    config.mutable_coordinator()->set_address(server_->address());
    config.mutable_coordinator()->set_join_timeout_ms(600'000);
    config.mutable_worker()->set_call_timeout_ms(60'000);
    return config;
  }
  v1::ClusterStatus status() {
    MutexLock lock(&mu_);
    return members_->Status();
  }
  std::vector<v1::JoinRequest> joins() {
    MutexLock lock(&mu_);
    return joins_;
  }
  // Questions for a clock, which no other worker reaches.
  std::vector<v1::AwaitClockRequest> clocks_asked() {
    MutexLock lock(&mu_);
    return clocks_asked_;
  }

 private:
  static server::Membership::Options OptionsWith(uint32_t workers, const TimeSource* time) {
    server::Membership::Options options;
    options.cluster = "test";
    options.workers = workers;
    options.shards = 4;
    options.lease_ms = 600'000;
    options.time = time;
    return options;
  }

  template <typename Request>
  static Request Parse(const FakeCall& call) {
    Request request;
    Payload payload;
    EXPECT_TRUE(ParseMessage(call.request(), &request, &payload).ok());
    return request;
  }

  template <typename Response>
  static void Answer(FakeCall* call, const absl::StatusOr<Response>& response) {
    if (response.ok()) return call->Reply(*response);
    call->Finish(grpc::Status(static_cast<grpc::StatusCode>(response.status().code()),
                              std::string(response.status().message())));
  }

  void Handle(FakeCall* call) {
    MutexLock lock(&mu_);
    if (call->method() == "Join") return Join(call);
    if (call->method() == "AwaitClock") {
      clocks_asked_.push_back(Parse<v1::AwaitClockRequest>(*call));
      return call->Reply(v1::AwaitClockResponse());
    }
    if (call->method() == "Route") {
      if (route_.has_value()) return call->Reply(*route_);
      return Answer(call, members_->shards().Route());
    }
    ++heartbeats_;
    Answer(call, members_->Heartbeat(Parse<v1::HeartbeatRequest>(*call)));
  }

  void Join(FakeCall* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    joins_.push_back(Parse<v1::JoinRequest>(*call));
    const Fault fault = faults_ ? faults_(static_cast<int>(joins_.size())) : Fault::kNone;
    if (fault == Fault::kRefuse) return call->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "not yet"));
    const auto joined = members_->Join(joins_.back());
    if (fault == Fault::kDropReply) return call->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost"));
    Answer(call, joined);
  }

  const Faults faults_;
  const uint32_t workers_;
  const ManualTime time_;  // Stands still: no lease ends.
  uint64_t last_token_ = 0;
  Mutex mu_;
  std::optional<server::Membership> members_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::RouteResponse> route_ ABSL_GUARDED_BY(mu_);
  int heartbeats_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<v1::JoinRequest> joins_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::AwaitClockRequest> clocks_asked_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<FakeServer> server_;
};

// The answer to a Join was lost once, and the worker then took a second place, in which another worker belonged.
TEST(WorkerMembership, AJoinWhoseAnswerWasLostTakesOnePlace) {
  for (const bool has_index : {false, true}) {
    Coordinator coordinator(
        2, [](int call) { return call <= 2 ? Coordinator::Fault::kDropReply : Coordinator::Fault::kNone; });
    v1::Config config = coordinator.config();
    if (has_index) config.mutable_worker()->set_index(1);
    const auto worker = WorkerMembership::Join(config, {});
    ASSERT_TRUE(worker.ok()) << worker.status();
    EXPECT_EQ((*worker)->index(), has_index ? 1 : 0);
    const v1::ClusterStatus status = coordinator.status();
    ASSERT_EQ(status.workers_size(), 1);
    EXPECT_EQ(status.workers(0).incarnation(), (*worker)->incarnation());
    EXPECT_EQ(coordinator.joins().size(), 3u);
  }
}

TEST(WorkerMembership, WorkersOfOneProcessAreToldApart) {
  Coordinator coordinator(2, nullptr);
  const auto first = WorkerMembership::Join(coordinator.config(), {});
  const auto second = WorkerMembership::Join(coordinator.config(), {});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE((*first)->index(), (*second)->index());
  const auto joins = coordinator.joins();
  EXPECT_NE(joins[0].token(), joins[1].token());
  EXPECT_NE(joins[0].token() * joins[1].token(), 0u);
}

TEST(WorkerMembership, DoesNotHurryACoordinatorThatIsNotReady) {
  constexpr int kRefusals = 6;
  Coordinator coordinator(
      1, [](int call) { return call <= kRefusals ? Coordinator::Fault::kRefuse : Coordinator::Fault::kNone; });
  const auto start = std::chrono::steady_clock::now();
  const auto worker = WorkerMembership::Join(coordinator.config(), {});
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(coordinator.joins().size(), kRefusals + 1u);
  // At least the halves of 40, 80, 160, 320, 500, 500 ms (common/base/retry.h).
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20 + 40 + 80 + 160 + 320 + 500));
}

// What a worker is told by its membership.
class Told {
 public:
  WorkerMembership::Events events() {
    return {.on_lost =
                [this](const absl::Status& status) {
                  MutexLock lock(&mu_);
                  lost_ = status;
                  changed_.NotifyAll();
                },
            .waits = nullptr,
            .on_route =
                [this](const std::shared_ptr<const ShardMap>& map) {
                  MutexLock lock(&mu_);
                  addresses_.push_back(map->AddressOf(0));
                  changed_.NotifyAll();
                }};
  }
  std::vector<std::string> AwaitRoutes(size_t count) {
    MutexLock lock(&mu_);
    while (addresses_.size() < count) changed_.Wait(&mu_);
    return addresses_;
  }
  absl::Status AwaitLost() {
    MutexLock lock(&mu_);
    while (lost_.ok()) changed_.Wait(&mu_);
    return lost_;
  }
  absl::Status lost() {
    MutexLock lock(&mu_);
    return lost_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> addresses_ ABSL_GUARDED_BY(mu_);
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
};

void HurryHeartbeat(WorkerMembership* worker, v1::Phase phase) {
  v1::WorkerProgress progress;
  progress.set_phase(phase);
  worker->ReportProgress(progress);
}

TEST(WorkerMembership, TakesOverEveryMapThatIsNewer) {
  Told told;
  Coordinator coordinator(1, nullptr);
  const auto worker = WorkerMembership::Join(coordinator.config(), told.events());
  ASSERT_TRUE(worker.ok()) << worker.status();
  const std::shared_ptr<const ShardMap> first = (*worker)->shard_map();
  EXPECT_EQ(first->epoch(), 1);
  coordinator.JoinServer("127.0.0.1:1");
  HurryHeartbeat(worker->get(), v1::PHASE_LOADING);
  EXPECT_EQ(told.AwaitRoutes(1).back(), "127.0.0.1:1");
  EXPECT_EQ((*worker)->shard_map()->epoch(), 2);
  EXPECT_EQ((*worker)->shard_map()->AddressOf(0), "127.0.0.1:1");
  EXPECT_NE(first->AddressOf(0), "127.0.0.1:1") << "who still holds it may still look at it";
  coordinator.JoinServer("127.0.0.1:2");
  HurryHeartbeat(worker->get(), v1::PHASE_TRAINING);
  EXPECT_EQ(told.AwaitRoutes(2).back(), "127.0.0.1:2");
}

TEST(WorkerMembership, GoesOnWhenTheCoordinatorComesBackWithItsStateAndIsLostOtherwise) {
  Told told;
  Coordinator coordinator(1, nullptr);
  const auto worker = WorkerMembership::Join(coordinator.config(), told.events());
  ASSERT_TRUE(worker.ok()) << worker.status();
  int beats = 0;
  coordinator.Restart(true, [&] { beats = coordinator.heartbeats(); });
  while (coordinator.heartbeats() < beats + 2) std::this_thread::yield();
  EXPECT_TRUE(told.lost().ok()) << told.lost();
  const v1::ClusterStatus status = coordinator.status();
  ASSERT_EQ(status.workers_size(), 1);
  EXPECT_EQ(status.workers(0).incarnation(), (*worker)->incarnation());

  coordinator.Restart(false, [] {});
  const absl::Status lost = told.AwaitLost();
  EXPECT_EQ(lost.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(lost.message().find("the lease is lost: coordinator "), std::string::npos) << lost;
}

TEST(WorkerMembership, IsLostToAClusterOfAnotherShape) {
  Told told;
  Coordinator coordinator(1, nullptr);
  const auto worker = WorkerMembership::Join(coordinator.config(), told.events());
  ASSERT_TRUE(worker.ok()) << worker.status();
  v1::RouteResponse route = coordinator.route();
  route.set_epoch(2);
  route.add_servers()->set_address("127.0.0.1:1");
  coordinator.SetRoute(route);
  coordinator.JoinServer("127.0.0.1:1");
  HurryHeartbeat(worker->get(), v1::PHASE_LOADING);
  const absl::Status lost = told.AwaitLost();
  EXPECT_NE(lost.message().find("4 shards on 2 servers now, and had 4 on 1"), std::string::npos) << lost;
}

// SIGTERM was once not heeded while a worker waited for others.
TEST(WorkerMembership, AWaitForAClockEndsWhenItIsToStopAndNoQuestionIsHeldForLong) {
  Coordinator coordinator(2, nullptr);
  const auto worker = WorkerMembership::Join(coordinator.config(), {});
  ASSERT_TRUE(worker.ok()) << worker.status();
  int looks = 0;
  const auto awaited = (*worker)->AwaitClock(10, [&looks] { return ++looks == 2; });
  EXPECT_EQ(awaited.status().code(), absl::StatusCode::kCancelled) << awaited.status();
  const std::vector<v1::AwaitClockRequest> asked = coordinator.clocks_asked();
  ASSERT_EQ(asked.size(), 2u);
  for (const v1::AwaitClockRequest& request : asked) EXPECT_LE(request.timeout_ms(), 500u);
}

}  // namespace
}  // namespace lodestone::worker
