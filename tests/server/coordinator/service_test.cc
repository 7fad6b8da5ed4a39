#include "server/coordinator/service.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/rpc/tuning.h"
#include "gmock/gmock.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "server/coordinator/control_service.h"

namespace lodestone::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kWorkers = 4;

// A call of AwaitClock that runs by itself.
class Await {
 public:
  // `own`: the asker trains with bounded staleness, and has come so far.
  Await(v1::Coordinator::Stub* stub, Incarnation asker, Clock clock, uint32_t timeout_ms,
        std::optional<Clock> own = std::nullopt) {
    if (own.has_value()) request_.set_own_clock(*own);
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

// A disk that writes, waits or fails as it is told.
class Disk {
 public:
  CoordinatorService::Save save() {
    return [this](const v1::CoordinatorState& state) {
      MutexLock lock(&mu_);
      ++attempts_;
      changed_.NotifyAll();
      while (stalled_) changed_.Wait(&mu_);
      if (!broken_) state_ = state;
      return broken_ ? absl::ResourceExhaustedError("no space left on device") : absl::OkStatus();
    };
  }
  void SetStalled(bool stalled) {
    MutexLock lock(&mu_);
    stalled_ = stalled;
    changed_.NotifyAll();
  }
  void SetBroken(bool broken) {
    MutexLock lock(&mu_);
    broken_ = broken;
  }
  void AwaitAttempts(int attempts) {
    MutexLock lock(&mu_);
    while (attempts_ < attempts) changed_.Wait(&mu_);
  }
  int attempts() {
    MutexLock lock(&mu_);
    return attempts_;
  }
  v1::CoordinatorState state() {
    MutexLock lock(&mu_);
    return state_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool stalled_ ABSL_GUARDED_BY(mu_) = false;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  int attempts_ ABSL_GUARDED_BY(mu_) = 0;
  v1::CoordinatorState state_ ABSL_GUARDED_BY(mu_);
};

class CoordinatorServiceTest : public ::testing::Test {
 protected:
  ~CoordinatorServiceTest() override {
    if (server_ == nullptr) return;
    service_->Shutdown();
    server_->Shutdown();
    control_->Shutdown();
  }

  void Start(const TimeSource* time, uint32_t lease_ms, CoordinatorService::Save save = nullptr,
             const v1::CoordinatorState* state = nullptr) {
    Membership::Options options;
    options.cluster = "test";
    options.servers = servers_;
    options.replicas = replicas_;
    options.workers = kWorkers;
    options.shards = 8;
    options.lease_ms = lease_ms;
    options.time = time;
    options.stall_time = stall_time_;
    options.watches_processes = watches_;
    service_ = std::make_unique<CoordinatorService>(options, std::move(save));
    if (state != nullptr) {
      const absl::Status restored = service_->Restore(*state);
      EXPECT_TRUE(restored.ok()) << restored;
    }
    grpc::ServerBuilder builder;
    control_ = std::make_unique<ControlService>(service_.get(), service_.get(), CallbackThreadsAreBusy);
    control_->Register(&builder);
    server_ = builder.BuildAndStart();
    control_->Start();
    stub_ = v1::Coordinator::NewStub(server_->InProcessChannel({}));
  }

  const TimeSource* stall_time_ = nullptr;
  bool watches_ = false;

  // Ends this life of the coordinator; returns what it knew.
  v1::CoordinatorState Stop() {
    v1::CoordinatorState state = service_->State();
    service_->Shutdown();
    server_->Shutdown();
    control_->Shutdown();
    server_.reset();
    control_.reset();
    service_.reset();
    return state;
  }

  static v1::JoinRequest Worker(uint64_t token) {
    v1::JoinRequest request;
    request.set_role(v1::ROLE_WORKER);
    request.set_cluster("test");
    request.set_peer("host:1");
    request.set_token(token);
    return request;
  }
  static v1::JoinRequest Server(const std::string& address, uint32_t index = 0) {
    v1::JoinRequest request;
    request.set_role(v1::ROLE_SERVER);
    request.set_address(address);
    request.set_index_plus_one(index + 1);
    request.set_cluster("test");
    request.set_shards(8);
    return request;
  }
  grpc::Status Join(const v1::JoinRequest& request, v1::JoinResponse* response) {
    grpc::ClientContext context;
    return stub_->Join(&context, request, response);
  }
  Incarnation JoinWorker(uint64_t token = 0) {
    ++joined_;
    v1::JoinResponse response;
    const grpc::Status status = Join(Worker(token), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.incarnation();
  }

  // Lets a worker come and go in every place that is left, so that nobody waits for them.
  void FillTheOtherPlaces() {
    while (joined_ < kWorkers) ASSERT_TRUE(Beat(JoinWorker(), 0, true).ok());
  }

  grpc::Status Beat(Incarnation incarnation, Clock clock, bool leaving = false, uint64_t* epoch = nullptr) {
    grpc::ClientContext context;
    v1::HeartbeatRequest request;
    request.set_incarnation(incarnation);
    request.mutable_progress()->set_clock(clock);
    request.set_leaving(leaving);
    v1::HeartbeatResponse response;
    const grpc::Status status = stub_->Heartbeat(&context, request, &response);
    if (epoch != nullptr) *epoch = response.route_epoch();
    return status;
  }
  grpc::Status AskRoute(v1::RouteResponse* route) {
    grpc::ClientContext context;
    return stub_->Route(&context, v1::RouteRequest(), route);
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

  uint32_t servers_ = 1, replicas_ = 1;
  ManualTime manual_;
  Disk disk_;
  uint32_t joined_ = 0;  // Workers.
  SteadyTime steady_;
  std::unique_ptr<CoordinatorService> service_;
  std::unique_ptr<ControlService> control_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

TEST_F(CoordinatorServiceTest, MembershipsErrorsReachTheCaller) {
  Start(&manual_, 1000);
  v1::RouteResponse route;
  const grpc::Status status = AskRoute(&route);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "waiting for 1 of 1 servers: index 0 has not joined");
  EXPECT_EQ(Beat(99, 0).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(CoordinatorServiceTest, AServerJoinsAndGetsTheRoute) {
  Start(&manual_, 1000);
  v1::JoinResponse joined;
  ASSERT_TRUE(Join(Server("localhost:7000"), &joined).ok());
  v1::RouteResponse route;
  ASSERT_TRUE(AskRoute(&route).ok());
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

TEST_F(CoordinatorServiceTest, WhatItTellsIsSavedAndHeartbeatsSaveNothing) {
  Start(&manual_, 1000, disk_.save());
  const Incarnation w0 = JoinWorker(7);
  ASSERT_EQ(disk_.state().places_size(), 1);
  EXPECT_EQ(disk_.state().places(0).incarnation(), w0);
  EXPECT_EQ(disk_.state().places(0).token(), 7);
  for (Clock clock = 0; clock < 10; ++clock) ASSERT_TRUE(Beat(w0, clock).ok());
  EXPECT_EQ(JoinWorker(7), w0);
  EXPECT_EQ(disk_.attempts(), 1);
  v1::JoinResponse server;
  ASSERT_TRUE(Join(Server("a:1"), &server).ok());
  EXPECT_EQ(disk_.state().epoch(), 1);
  EXPECT_EQ(disk_.state().owners_size(), 8);
  ASSERT_TRUE(Beat(w0, 9, true).ok());
  EXPECT_TRUE(disk_.state().places(1).left());
  EXPECT_EQ(disk_.attempts(), 3);
  manual_.AdvanceMs(1000);
  service_->CheckTime();
  disk_.AwaitAttempts(4);
  Stop();
  EXPECT_TRUE(disk_.state().places(0).expired()) << "the end of a lease, too";
}

TEST_F(CoordinatorServiceTest, NobodyHearsNewsBeforeItIsSavedAndHeartbeatsDoNotWait) {
  Start(&manual_, 1000, disk_.save());
  const Incarnation w0 = JoinWorker();
  disk_.SetStalled(true);
  std::atomic<bool> told{false};
  std::thread joins([&] {
    v1::JoinResponse response;
    EXPECT_TRUE(Join(Server("a:1"), &response).ok());
    told = true;
  });
  disk_.AwaitAttempts(2);
  std::thread asks([&] {
    v1::RouteResponse route;
    EXPECT_TRUE(AskRoute(&route).ok());
    EXPECT_TRUE(told || disk_.state().epoch() == 1);
  });
  uint64_t epoch = 1;
  for (Clock clock = 0; clock < 10; ++clock) EXPECT_TRUE(Beat(w0, clock, false, &epoch).ok());
  EXPECT_EQ(epoch, 0);
  EXPECT_FALSE(told);
  disk_.SetStalled(false);
  joins.join();
  asks.join();
  EXPECT_TRUE(Beat(w0, 10, false, &epoch).ok());
  EXPECT_EQ(epoch, 1);
}

TEST_F(CoordinatorServiceTest, WhatCannotBeSavedIsUnavailableAndTakesNoSecondPlace) {
  Start(&manual_, 1000, disk_.save());
  const Incarnation w0 = JoinWorker();
  disk_.SetBroken(true);
  v1::JoinResponse response;
  v1::RouteResponse route;
  for (const grpc::Status& status : {Join(Worker(7), &response), Join(Worker(7), &response),
                                     Join(Server("a:1"), &response), AskRoute(&route), Beat(w0, 3, true)}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(status.error_message(), "the coordinator's state cannot be saved: no space left on device");
  }
  v1::StatusResponse status;
  service_->FillStatus(&status);
  ASSERT_EQ(status.waits_size(), 1);
  EXPECT_THAT(status.waits(0).what(), HasSubstr("no space left on device"));
  disk_.SetBroken(false);
  ASSERT_TRUE(Join(Worker(7), &response).ok());
  EXPECT_EQ(response.index(), 1);
  EXPECT_EQ(disk_.state().places_size(), 3);
  EXPECT_TRUE(AskRoute(&route).ok());
  v1::StatusResponse healed;
  service_->FillStatus(&healed);
  EXPECT_EQ(healed.waits_size(), 0);
  EXPECT_EQ(healed.cluster().workers_size(), 2);
}

TEST_F(CoordinatorServiceTest, AMapThatWasToldStaysTheNewestThoughTheDiskIsBroken) {
  Start(&manual_, 1000, disk_.save());
  v1::JoinResponse response;
  ASSERT_TRUE(Join(Server("a:1"), &response).ok());
  const Incarnation w0 = JoinWorker();
  disk_.SetBroken(true);
  v1::RouteResponse route;
  EXPECT_FALSE(Join(Worker(8), &response).ok());
  EXPECT_TRUE(AskRoute(&route).ok()) << "nothing about it is new";
  EXPECT_FALSE(Join(Server("a:1"), &response).ok());
  uint64_t epoch = 0;
  EXPECT_TRUE(Beat(w0, 0, false, &epoch).ok());
  EXPECT_EQ(epoch, 1) << "2 was told to nobody";
  EXPECT_FALSE(AskRoute(&route).ok());
}

TEST_F(CoordinatorServiceTest, ManyJoinsShareASave) {
  Start(&steady_, 3'600'000, disk_.save());
  disk_.SetStalled(true);
  std::vector<std::thread> threads;
  for (uint32_t worker = 0; worker < kWorkers; ++worker) {
    threads.emplace_back([&, worker] {
      v1::JoinResponse response;
      EXPECT_TRUE(Join(Worker(1 + worker), &response).ok());
    });
  }
  for (v1::StatusResponse status; status.cluster().workers_size() < static_cast<int>(kWorkers);) {
    service_->FillStatus(&status);
    std::this_thread::yield();
  }
  disk_.SetStalled(false);
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(disk_.attempts(), 2);
  EXPECT_EQ(disk_.state().places_size(), static_cast<int>(kWorkers));
}

// Another life of the coordinator would take the range for open, and the ps would refuse what is pushed of it.
TEST_F(CoordinatorServiceTest, APsHearsThatARangeHasEndedOnceThatIsSaved) {
  Start(&steady_, 3'600'000, disk_.save());
  v1::JoinResponse ps;
  ASSERT_TRUE(Join(Server("localhost:7000"), &ps).ok());
  v1::LeaseRangesRequest request;
  request.set_incarnation(JoinWorker());
  request.mutable_plan()->set_description("two batches");
  request.mutable_plan()->set_batches(2);
  request.mutable_plan()->set_epoch_batches(2);
  request.mutable_plan()->set_range_batches(2);
  request.set_wants_range(true);
  const auto lease = [this](const v1::LeaseRangesRequest& asked) {
    grpc::ClientContext context;
    v1::LeaseRangesResponse response;
    const grpc::Status status = stub_->LeaseRanges(&context, asked, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  };
  const Incarnation range = lease(request).lease().incarnation();
  ASSERT_NE(range, 0u);
  uint64_t from = 0;
  const auto told = [&] {
    grpc::ClientContext context;
    v1::HeartbeatRequest beat;
    beat.set_incarnation(ps.incarnation());
    beat.set_workers_ended_from(from);
    v1::HeartbeatResponse response;
    const grpc::Status status = stub_->Heartbeat(&context, beat, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    from = response.workers_ended_to();
    return std::vector<Incarnation>(response.workers_ended().begin(), response.workers_ended().end());
  };
  EXPECT_THAT(told(), IsEmpty());
  disk_.SetStalled(true);
  const int attempts = disk_.attempts();
  request.set_wants_range(false);
  request.add_held()->set_incarnation(range);
  request.mutable_held(0)->set_done(2);
  std::thread done([&] { lease(request); });
  disk_.AwaitAttempts(attempts + 1);
  EXPECT_THAT(told(), IsEmpty());
  disk_.SetStalled(false);
  done.join();
  EXPECT_THAT(told(), ElementsAre(range));
  EXPECT_THAT(told(), IsEmpty());
}

TEST_F(CoordinatorServiceTest, ShutdownSavesWhatIsWaitedForAndRefusesMore) {
  Start(&steady_, 3'600'000, disk_.save());
  disk_.SetStalled(true);
  std::thread joins([&] {
    v1::JoinResponse response;
    EXPECT_TRUE(Join(Worker(1), &response).ok());
  });
  disk_.AwaitAttempts(1);
  service_->Shutdown();
  v1::JoinResponse response;
  EXPECT_EQ(Join(Worker(2), &response).error_code(), grpc::StatusCode::UNAVAILABLE);
  disk_.SetStalled(false);
  joins.join();
}

TEST_F(CoordinatorServiceTest, AnotherLifeKnowsTheWorkersAndReleasesNobodyBeforeItHasHeardOfThem) {
  Start(&manual_, 1000);
  const Incarnation w0 = JoinWorker();
  const Incarnation w1 = JoinWorker();
  FillTheOtherPlaces();
  ASSERT_TRUE(Beat(w0, 8).ok());
  ASSERT_TRUE(Beat(w1, 8).ok());
  const v1::CoordinatorState state = Stop();
  manual_.AdvanceMs(100'000);
  Start(&manual_, 1000, nullptr, &state);
  Await await(stub_.get(), w0, 7, 60'000);
  const v1::StatusResponse held = AwaitHeld(1);
  EXPECT_THAT(held.waits(0).what(), HasSubstr("was not heard of since the coordinator was started again"));
  ASSERT_TRUE(Beat(w0, 8).ok());
  EXPECT_FALSE(await.done());
  ASSERT_TRUE(Beat(w1, 8).ok());
  EXPECT_TRUE(await.status().ok());
  EXPECT_TRUE(await.response().reached());
}

// Two servers that follow each other's shards; the even ones are server 0's.
class FollowersServiceTest : public CoordinatorServiceTest {
 protected:
  FollowersServiceTest() {
    servers_ = 2;
    replicas_ = 2;
  }
  void StartBoth(const v1::CoordinatorState* state = nullptr) {
    Start(&manual_, 1000, disk_.save(), state);
    ps0_ = JoinServer(0);
    ps1_ = JoinServer(1);
  }
  Incarnation JoinServer(uint32_t index) {
    v1::JoinResponse response;
    const grpc::Status status = Join(Server(index == 0 ? "a:1" : "b:2", index), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.incarnation();
  }
  // Server 0 tells whether server 1 is in sync with its shard 0.
  grpc::Status Report(bool in_sync, bool* accepted) {
    grpc::ClientContext context;
    v1::ReportSyncRequest request;
    request.set_incarnation(ps0_);
    request.add_reports()->set_follower(ps1_);
    request.mutable_reports(0)->set_in_sync(in_sync);
    v1::ReportSyncResponse response;
    const grpc::Status status = stub_->ReportSync(&context, request, &response);
    *accepted = status.ok() && response.accepted(0);
    return status;
  }
  // Heartbeats of server 1, until they tell of a newer map than `epoch`.
  void AwaitNewerMap(uint64_t epoch) {
    for (uint64_t told = 0; told <= epoch;) ASSERT_TRUE(Beat(ps1_, 0, false, &told).ok());
  }

  Incarnation ps0_ = 0, ps1_ = 0;
  bool accepted_ = false;
};

TEST_F(FollowersServiceTest, AReportIsAnsweredOnceItIsSavedAndNobodyHearsOfItBefore) {
  StartBoth();
  disk_.SetStalled(true);
  const int attempts = disk_.attempts();
  std::atomic<bool> told{false};
  std::thread reports([&] {
    bool accepted = false;
    EXPECT_TRUE(Report(true, &accepted).ok());
    EXPECT_TRUE(accepted);
    told = true;
  });
  disk_.AwaitAttempts(attempts + 1);
  std::thread asks([&] {
    v1::RouteResponse route;
    EXPECT_TRUE(AskRoute(&route).ok());
    EXPECT_TRUE(route.in_sync(0));
    EXPECT_TRUE(disk_.state().in_sync(0));
  });
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Beat(ps1_, 0).ok()) << "heartbeats do not wait";
  EXPECT_FALSE(told);
  disk_.SetStalled(false);
  reports.join();
  asks.join();
  EXPECT_TRUE(disk_.state().in_sync(0));
}

TEST_F(FollowersServiceTest, AnOwnerIsNotReleasedWhileThatCannotBeSaved) {
  StartBoth();
  ASSERT_TRUE(Report(true, &accepted_).ok());
  disk_.SetBroken(true);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Report(false, &accepted_).error_code(), grpc::StatusCode::UNAVAILABLE) << "sent again, too";
  }
  v1::RouteResponse route;
  EXPECT_EQ(AskRoute(&route).error_code(), grpc::StatusCode::UNAVAILABLE) << "nor told by the map";
  EXPECT_TRUE(disk_.state().in_sync(0));
  disk_.SetBroken(false);
  EXPECT_TRUE(Report(false, &accepted_).ok());
  EXPECT_TRUE(accepted_);
  EXPECT_FALSE(disk_.state().in_sync(0));
}

TEST_F(FollowersServiceTest, MembershipsErrorsReachTheReporter) {
  StartBoth();
  ps0_ = 4711;
  EXPECT_EQ(Report(true, &accepted_).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(FollowersServiceTest, WhenALeaseEndsTheFollowersTakeOverAndHeartbeatsTellOnceItIsSaved) {
  StartBoth();
  ASSERT_TRUE(Report(true, &accepted_).ok());
  const uint64_t epoch = disk_.state().epoch();
  manual_.AdvanceMs(999);
  ASSERT_TRUE(Beat(ps1_, 0).ok());
  manual_.AdvanceMs(1);
  service_->CheckTime();
  AwaitNewerMap(epoch);
  EXPECT_EQ(disk_.state().owners(0), 1);
  v1::RouteResponse route;
  ASSERT_TRUE(AskRoute(&route).ok());
  EXPECT_EQ(route.owners(0), 1);
  EXPECT_EQ(route.owners(2), 0) << "its follower was not in sync";
  EXPECT_TRUE(route.servers(0).away());
}

TEST_F(FollowersServiceTest, WhenAProcessDiesTheFollowersTakeOverWithoutWaitingForItsLease) {
  // Its listening socket, and what the coordinator connects to, as far as it matters here.
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  watches_ = true;
  Start(&manual_, 1000, disk_.save());
  v1::JoinResponse joined;
  ASSERT_TRUE(Join(Server(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)), 0), &joined).ok());
  ps0_ = joined.incarnation();
  ps1_ = JoinServer(1);
  ASSERT_TRUE(Report(true, &accepted_).ok());
  const uint64_t epoch = disk_.state().epoch();
  const int connection = accept(listener, nullptr, nullptr);
  ASSERT_GE(connection, 0);
  manual_.AdvanceMs(900);
  ASSERT_TRUE(Beat(ps1_, 0).ok());
  disk_.SetStalled(true);
  const int attempts = disk_.attempts();
  close(connection);
  close(listener);
  disk_.AwaitAttempts(attempts + 1);
  uint64_t told = 0;
  ASSERT_TRUE(Beat(ps1_, 0, false, &told).ok());
  EXPECT_EQ(told, epoch) << "nobody hears of it before it is saved";
  disk_.SetStalled(false);
  AwaitNewerMap(epoch);
  EXPECT_EQ(disk_.state().owners(0), 1u);
  EXPECT_EQ(Beat(ps0_, 0).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(FollowersServiceTest, WhoLeavesHearsThatItsShardsAreInOtherHandsOnceThatIsSaved) {
  StartBoth();
  ASSERT_TRUE(Report(true, &accepted_).ok());
  ASSERT_TRUE(Beat(ps0_, 0, true).ok());
  EXPECT_EQ(disk_.state().owners(0), 1);
  EXPECT_GT(disk_.state().terms(0), 0);
}

TEST_F(FollowersServiceTest, AfterARestartTheFirstHeartbeatOfAFollowerDecides) {
  StartBoth();
  ASSERT_TRUE(Report(true, &accepted_).ok());
  const v1::CoordinatorState state = Stop();
  Start(&manual_, 1000, disk_.save(), &state);
  ps0_ = JoinServer(0);
  v1::RouteResponse route;
  const grpc::Status open = AskRoute(&route);
  EXPECT_EQ(open.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(open.error_message(), HasSubstr("may own 1 of the shards of ps 0"));
  AwaitNewerMap(disk_.state().epoch());
  ASSERT_TRUE(AskRoute(&route).ok());
  EXPECT_EQ(route.owners(0), 1);
  EXPECT_EQ(disk_.state().owners(0), 1);
}

TEST_F(FollowersServiceTest, FollowersThatTheConfigurationBringsAreToldOnceTheyAreSaved) {
  replicas_ = 1;
  StartBoth();
  const v1::CoordinatorState state = Stop();
  EXPECT_EQ(state.followers_size(), 0);
  replicas_ = 2;
  disk_.SetBroken(true);
  Start(&manual_, 1000, disk_.save(), &state);
  v1::RouteResponse route;
  EXPECT_EQ(AskRoute(&route).error_code(), grpc::StatusCode::UNAVAILABLE);
  disk_.SetBroken(false);
  ASSERT_TRUE(AskRoute(&route).ok());
  EXPECT_EQ(route.followers_size(), 8);
  EXPECT_EQ(route.epoch(), state.epoch() + 1);
  EXPECT_EQ(disk_.state().epoch(), route.epoch());
}

TEST_F(CoordinatorServiceTest, TellsWhatHasHappenedHereAndOnServers) {
  Start(&manual_, 1000);
  v1::JoinResponse joined;
  ASSERT_TRUE(Join(Server("a:1"), &joined).ok());
  grpc::ClientContext context;
  v1::HeartbeatRequest request;
  request.set_incarnation(joined.incarnation());
  v1::Event* const told = request.add_events();
  told->set_time_ms(7);
  told->set_kind("checkpointed");
  told->set_who("ps 0");
  v1::HeartbeatResponse response;
  ASSERT_TRUE(stub_->Heartbeat(&context, request, &response).ok());
  manual_.AdvanceMs(2000);
  service_->CheckTime();
  const v1::EventsResponse events = service_->Events(0);
  ASSERT_EQ(events.events_size(), 3);
  EXPECT_EQ(events.events(0).kind(), "joined");
  EXPECT_EQ(events.events(1).kind(), "checkpointed");
  EXPECT_EQ(events.events(1).time_ms(), 7);
  EXPECT_EQ(events.events(2).kind(), "died");
  EXPECT_EQ(events.events(2).time_ms(), static_cast<uint64_t>(manual_.NowMs()));
  EXPECT_EQ(service_->Events(2).events_size(), 1);
  EXPECT_EQ(service_->Events(2).incarnation(), events.incarnation());
}

TEST_F(CoordinatorServiceTest, TheHistoryGoesOnWhileAWorkerIsAtWork) {
  Start(&manual_, 10'000);
  manual_.AdvanceMs(5000);
  service_->CheckTime();
  EXPECT_EQ(service_->TellHistory().points_size(), 0) << "nobody is there";
  const Incarnation worker = JoinWorker();
  while (service_->TellHistory().points_size() == 0) std::this_thread::yield();  // By itself.
  for (int i = 0; i < 3; ++i) {
    manual_.AdvanceMs(1000);
    service_->CheckTime();
    service_->CheckTime();
  }
  EXPECT_EQ(service_->TellHistory().points_size(), 4) << "one when it came, and one each second";
  ASSERT_TRUE(Beat(worker, 1, true).ok());
  for (int i = 0; i < 3; ++i) {
    manual_.AdvanceMs(1000);
    service_->CheckTime();
  }
  const v1::HistoryResponse history = service_->TellHistory();
  ASSERT_EQ(history.points_size(), 5);
  EXPECT_EQ(history.points(3).workers(), 1);
  EXPECT_EQ(history.points(4).workers(), 0);
}

TEST_F(CoordinatorServiceTest, TheHistoryGoesOnByItself) {
  Start(&steady_, 10'000);
  JoinWorker();
  while (service_->TellHistory().points_size() == 0) std::this_thread::yield();
  EXPECT_EQ(service_->TellHistory().points(0).workers(), 1);
}

TEST_F(CoordinatorServiceTest, AnotherLifesHistoryBeginsWhenAWorkerIsHeardOf) {
  constexpr uint32_t kHourMs = 3'600'000;
  Start(&manual_, kHourMs);
  const Incarnation worker = JoinWorker();
  const v1::CoordinatorState state = Stop();
  Start(&manual_, kHourMs, nullptr, &state);
  manual_.AdvanceMs(5000);
  service_->CheckTime();
  EXPECT_EQ(service_->TellHistory().points_size(), 0);
  ASSERT_TRUE(Beat(worker, 1).ok());
  while (service_->TellHistory().points_size() == 0) std::this_thread::yield();  // Long before a lease ends.
  EXPECT_EQ(service_->TellHistory().points(0).workers(), 1);
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

TEST_F(CoordinatorServiceTest, AwaitClockWithTheAskersOwnTellsTheOthersAndWaitsOnlyForThoseThatTrain) {
  Start(&manual_, 1000);
  const Incarnation w0 = JoinWorker();
  const Incarnation w1 = JoinWorker();
  const Incarnation w2 = JoinWorker();
  Await first(stub_.get(), w0, 9, 60'000, /*own=*/5);
  EXPECT_TRUE(first.response().reached()) << "no other has begun, and one has not even joined";
  EXPECT_EQ(first.response().lowest(), std::numeric_limits<Clock>::max());
  Await second(stub_.get(), w1, 0, 60'000, /*own=*/7);
  EXPECT_EQ(second.response().lowest(), 5u);
  EXPECT_EQ(second.response().newest(), 5u);
  Await third(stub_.get(), w2, 0, 60'000, /*own=*/6);
  EXPECT_EQ(third.response().lowest(), 5u);
  EXPECT_EQ(third.response().newest(), 7u);
  Await held(stub_.get(), w1, 6, 60'000, /*own=*/7);
  EXPECT_THAT(AwaitHeld(1).waits(0).what(), HasSubstr("clock 6: worker 0 (host:1) is at clock 5"));
  Await told(stub_.get(), w0, 0, 60'000, /*own=*/6);
  EXPECT_TRUE(held.response().reached());
  EXPECT_EQ(held.response().lowest(), 6u);
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
  const size_t held_max = 4 * kWorkers + 40;
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

TEST_F(CoordinatorServiceTest, AfterTheCoordinatorStoodStillNobodyThatRenewedInTimeHasLostItsLease) {
  constexpr uint32_t kLeaseMs = 10'000;
  ManualTime time;
  stall_time_ = &time;
  Start(&time, kLeaseMs);
  const Incarnation alive = JoinWorker(), dead = JoinWorker();
  time.AdvanceMs(kLeaseMs + 1000);  // What both sent meanwhile waits in their sockets.
  service_->CheckTime();
  EXPECT_TRUE(Beat(alive, 1).ok());
  EXPECT_TRUE(Beat(dead, 1).ok());
  for (int i = 0; i < 3; ++i) {
    time.AdvanceMs(kLeaseMs * 2 / 5);
    EXPECT_TRUE(Beat(alive, 2).ok());
    service_->CheckTime();
  }
  EXPECT_EQ(Beat(dead, 2).error_code(), grpc::StatusCode::FAILED_PRECONDITION) << "it was silent for a lease";
}

}  // namespace
}  // namespace lodestone::server
