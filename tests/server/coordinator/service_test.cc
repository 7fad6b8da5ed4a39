#include "server/coordinator/service.h"

#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kWorkers = 4;

// A call of AwaitClock that runs by itself.
class Await {
 public:
  Await(v1::Coordinator::Stub* stub, Incarnation asker, Clock clock, uint32_t timeout_ms) {
    request_.set_incarnation(asker);
    request_.set_clock(clock);
    request_.set_timeout_ms(timeout_ms);
    stub->async()->AwaitClock(&context_, &request_, &response_, [this](grpc::Status status) {
      status_ = std::move(status);
      done_.count_down();
    });
  }
  ~Await() {
    context_.TryCancel();
    done_.wait();
  }
  void Cancel() { context_.TryCancel(); }
  const grpc::Status& status() {
    done_.wait();
    return status_;
  }
  const v1::AwaitClockResponse& response() {
    done_.wait();
    return response_;
  }
  bool done() const { return done_.try_wait(); }

 private:
  grpc::ClientContext context_;
  v1::AwaitClockRequest request_;
  v1::AwaitClockResponse response_;
  grpc::Status status_;
  std::latch done_{1};
};

class CoordinatorServiceTest : public ::testing::Test {
 protected:
  ~CoordinatorServiceTest() override {
    if (server_ == nullptr) return;
    service_->Shutdown();
    server_->Shutdown();
  }

  void Start(const TimeSource* time, uint32_t lease_ms) {
    Membership::Options options;
    options.cluster = "test";
    options.servers = 1;
    options.workers = kWorkers;
    options.shards = 8;
    options.lease_ms = lease_ms;
    options.time = time;
    service_ = std::make_unique<CoordinatorService>(options);
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::Coordinator::NewStub(server_->InProcessChannel({}));
  }

  Incarnation JoinWorker(uint64_t token = 0) {
    ++joined_;
    grpc::ClientContext context;
    v1::JoinRequest request;
    request.set_role(v1::ROLE_WORKER);
    request.set_cluster("test");
    request.set_peer("host:1");
    request.set_token(token);
    v1::JoinResponse response;
    const grpc::Status status = stub_->Join(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.incarnation();
  }

  // Lets a worker come and go in every place that is left, so that nobody waits for them.
  void FillTheOtherPlaces() {
    while (joined_ < kWorkers) ASSERT_TRUE(Beat(JoinWorker(), 0, true).ok());
  }

  grpc::Status Beat(Incarnation incarnation, Clock clock, bool leaving = false) {
    grpc::ClientContext context;
    v1::HeartbeatRequest request;
    request.set_incarnation(incarnation);
    request.mutable_progress()->set_clock(clock);
    request.set_leaving(leaving);
    v1::HeartbeatResponse response;
    return stub_->Heartbeat(&context, request, &response);
  }

  // Returns once the coordinator holds `count` calls.
  v1::StatusResponse AwaitHeld(int count) {
    for (;;) {
      v1::StatusResponse status;
      service_->FillStatus(&status);
      if (status.waits_size() == count) return status;
      std::this_thread::yield();
    }
  }

  ManualTime manual_;
  uint32_t joined_ = 0;  // Workers.
  SteadyTime steady_;
  std::unique_ptr<CoordinatorService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

TEST_F(CoordinatorServiceTest, MembershipsErrorsReachTheCaller) {
  Start(&manual_, 1000);
  grpc::ClientContext context;
  v1::RouteResponse route;
  const grpc::Status status = stub_->Route(&context, v1::RouteRequest(), &route);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "waiting for 1 of 1 servers: index 0 has not joined");
  EXPECT_EQ(Beat(99, 0).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(CoordinatorServiceTest, AServerJoinsAndGetsTheRoute) {
  Start(&manual_, 1000);
  v1::JoinRequest request;
  request.set_role(v1::ROLE_SERVER);
  request.set_address("localhost:7000");
  request.set_cluster("test");
  request.set_shards(8);
  v1::JoinResponse joined;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Join(&context, request, &joined).ok());
  }
  grpc::ClientContext context;
  v1::RouteResponse route;
  ASSERT_TRUE(stub_->Route(&context, v1::RouteRequest(), &route).ok());
  EXPECT_EQ(route.epoch(), 1);
  EXPECT_EQ(route.servers(0).address(), "localhost:7000");
  EXPECT_EQ(route.owners_size(), 8);
}

TEST_F(CoordinatorServiceTest, AJoinSentTwiceTakesOnePlace) {
  Start(&manual_, 1000);
  EXPECT_EQ(JoinWorker(77), JoinWorker(77));
  EXPECT_NE(JoinWorker(77), JoinWorker(78));
  v1::StatusResponse status;
  service_->FillStatus(&status);
  EXPECT_EQ(status.cluster().workers_size(), 2);
}

TEST_F(CoordinatorServiceTest, AwaitClockAnswersAtOnceWhatIsReached) {
  Start(&manual_, 1000);
  const Incarnation w0 = JoinWorker();
  const Incarnation w1 = JoinWorker();
  FillTheOtherPlaces();
  ASSERT_TRUE(Beat(w1, 7).ok());
  Await await(stub_.get(), w0, 7, 60'000);
  EXPECT_TRUE(await.status().ok());
  EXPECT_TRUE(await.response().reached());
}

TEST_F(CoordinatorServiceTest, AwaitClockHoldsUntilTheLastWorkerGetsThere) {
  Start(&manual_, 1000);
  const Incarnation w0 = JoinWorker();
  const Incarnation w1 = JoinWorker();
  const Incarnation w2 = JoinWorker();
  FillTheOtherPlaces();
  Await await(stub_.get(), w0, 7, 60'000);
  const v1::StatusResponse held = AwaitHeld(1);
  EXPECT_EQ(held.waits(0).who(), "worker 0 (host:1)");
  EXPECT_THAT(held.waits(0).what(), HasSubstr("clock 7: worker 1 (host:1) is at clock 0"));
  ASSERT_TRUE(Beat(w1, 8).ok());
  ASSERT_TRUE(Beat(w2, 6).ok());
  AwaitHeld(1);
  EXPECT_FALSE(await.done());
  ASSERT_TRUE(Beat(w2, 7).ok());
  EXPECT_TRUE(await.status().ok());
  EXPECT_TRUE(await.response().reached());
  AwaitHeld(0);
}

TEST_F(CoordinatorServiceTest, AwaitClockIsReleasedByAWorkerThatLeaves) {
  Start(&manual_, 1000);
  const Incarnation w0 = JoinWorker();
  const Incarnation w1 = JoinWorker();
  FillTheOtherPlaces();
  Await await(stub_.get(), w0, 7, 60'000);
  AwaitHeld(1);
  ASSERT_TRUE(Beat(w1, 0, true).ok());
  EXPECT_TRUE(await.response().reached());
}

TEST_F(CoordinatorServiceTest, AwaitClockTellsAfterItsTimeoutWhomItWaitsFor) {
  Start(&manual_, 100'000);
  const Incarnation w0 = JoinWorker();
  const Incarnation w1 = JoinWorker();
  FillTheOtherPlaces();
  ASSERT_TRUE(Beat(w1, 3).ok());
  Await await(stub_.get(), w0, 7, 500);
  AwaitHeld(1);
  manual_.AdvanceMs(499);
  service_->CheckTime();
  AwaitHeld(1);
  manual_.AdvanceMs(1);
  service_->CheckTime();
  ASSERT_TRUE(await.status().ok());
  EXPECT_FALSE(await.response().reached());
  ASSERT_EQ(await.response().waiting_for_size(), 1);
  EXPECT_EQ(await.response().waiting_for(0), "worker 1 (host:1) is at clock 3, last heard of 0.5 s ago");
}

TEST_F(CoordinatorServiceTest, AwaitClockIsNeverHeldLongerThanItsLimit) {
  Start(&manual_, 3'600'000);
  const Incarnation w0 = JoinWorker();
  JoinWorker();
  FillTheOtherPlaces();
  Await await(stub_.get(), w0, 7, 0xffffffff);
  AwaitHeld(1);
  manual_.AdvanceMs(60'000);
  service_->CheckTime();
  ASSERT_TRUE(await.status().ok());
  EXPECT_FALSE(await.response().reached());
}

TEST_F(CoordinatorServiceTest, AnAskerThatHasLostItsLeaseIsTold) {
  Start(&manual_, 1000);
  const Incarnation w0 = JoinWorker();
  JoinWorker();
  FillTheOtherPlaces();
  Await unknown(stub_.get(), 4711, 0, 60'000);
  EXPECT_EQ(unknown.status().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  Await await(stub_.get(), w0, 7, 60'000);
  AwaitHeld(1);
  manual_.AdvanceMs(1000);
  service_->CheckTime();
  EXPECT_EQ(await.status().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

// The following run on the machine's clock: the timer must act by itself.

TEST_F(CoordinatorServiceTest, TheEndOfALeaseReleasesThoseWhoWaitForItsHolder) {
  Start(&steady_, 100);
  JoinWorker();
  FillTheOtherPlaces();
  Await await(stub_.get(), 0, 7, 60'000);
  EXPECT_TRUE(await.status().ok());
  EXPECT_TRUE(await.response().reached());
}

TEST_F(CoordinatorServiceTest, ATimeoutEndsAHeldCall) {
  Start(&steady_, 3'600'000);
  JoinWorker();
  FillTheOtherPlaces();
  Await await(stub_.get(), 0, 7, 50);
  EXPECT_TRUE(await.status().ok());
  EXPECT_FALSE(await.response().reached());
}

TEST_F(CoordinatorServiceTest, ACallerThatGoesAwayIsForgotten) {
  Start(&steady_, 3'600'000);
  JoinWorker();
  FillTheOtherPlaces();
  Await await(stub_.get(), 0, 7, 60'000);
  AwaitHeld(1);
  await.Cancel();
  EXPECT_EQ(await.status().error_code(), grpc::StatusCode::CANCELLED);
  AwaitHeld(0);
}

TEST_F(CoordinatorServiceTest, HeldCallsAreBounded) {
  Start(&steady_, 3'600'000);
  JoinWorker();
  FillTheOtherPlaces();
  const size_t held_max = 4 * kWorkers + 4;
  std::vector<std::unique_ptr<Await>> held;
  for (size_t i = 0; i < held_max; ++i) held.push_back(std::make_unique<Await>(stub_.get(), 0, 7, 60'000));
  AwaitHeld(held_max);
  Await more(stub_.get(), 0, 7, 60'000);
  EXPECT_EQ(more.status().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(CoordinatorServiceTest, ShutdownEndsHeldCallsAndRefusesNewOnes) {
  Start(&steady_, 3'600'000);
  JoinWorker();
  FillTheOtherPlaces();
  Await await(stub_.get(), 0, 7, 60'000);
  AwaitHeld(1);
  service_->Shutdown();
  EXPECT_EQ(await.status().error_code(), grpc::StatusCode::UNAVAILABLE);
  Await late(stub_.get(), 0, 7, 60'000);
  EXPECT_EQ(late.status().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(CoordinatorServiceTest, ManyWaitersAreReleasedByOneHeartbeatWhileOthersCancel) {
  Start(&steady_, 3'600'000);
  const Incarnation slow = JoinWorker();
  FillTheOtherPlaces();
  for (int round = 1; round <= 50; ++round) {
    std::vector<std::unique_ptr<Await>> waiters;
    for (int i = 0; i < 16; ++i) waiters.push_back(std::make_unique<Await>(stub_.get(), 0, round, 60'000));
    std::thread canceller([&] {
      for (size_t i = 0; i < waiters.size(); i += 2) waiters[i]->Cancel();
    });
    ASSERT_TRUE(Beat(slow, round).ok());
    canceller.join();
    for (size_t i = 1; i < waiters.size(); i += 2) {
      ASSERT_TRUE(waiters[i]->status().ok()) << waiters[i]->status().error_message();
      ASSERT_TRUE(waiters[i]->response().reached());
    }
  }
}

}  // namespace
}  // namespace lodestone
