#include "server/coordinator_client.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "gmock/gmock.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_context.h"
#include "gtest/gtest.h"
#include "server/monitoring/event_log.h"

namespace lodestone::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kHour = 3'600'000;  // Of a lease: nothing comes by itself while a test runs.
constexpr uint32_t kShort = 300;
constexpr uint64_t kEndsPerAnswer = 512;

// A coordinator that says what it is told to say.
class FakeCoordinator final : public v1::Coordinator::Service {
 public:
  explicit FakeCoordinator(uint32_t lease_ms) : lease_ms_(lease_ms) {}

  grpc::Status Join(grpc::ServerContext*, const v1::JoinRequest* request, v1::JoinResponse* response) override {
    MutexLock lock(&mu_);
    EXPECT_EQ(request->servers(), 3u);
    incarnation_ = 101 + joins_++;
    alive_ = true;
    response->set_incarnation(incarnation_);
    response->set_lease_ms(lease_ms_);
    response->set_orders(incarnation_ - 97);
    changed_.NotifyAll();
    return grpc::Status::OK;
  }
  grpc::Status Heartbeat(grpc::ServerContext* context, const v1::HeartbeatRequest* request,
                         v1::HeartbeatResponse* response) override {
    MutexLock lock(&mu_);
    ++heartbeats_;
    beats_.push_back(*request);
    heartbeat_ms_ = time_.NowMs();
    changed_.NotifyAll();
    while (heartbeats_stall_ && !request->leaving() && !context->IsCancelled()) Nap();
    if (!alive_ || request->incarnation() != incarnation_) return Lost();
    ++heartbeats_answered_;
    response->set_route_epoch(epoch_);
    response->set_lease_ms(next_lease_ms_);
    const uint64_t from = request->workers_ended_from();
    const uint64_t to = std::min(from + kEndsPerAnswer, ended_to_);
    for (uint64_t end = from; end < to; ++end) response->add_workers_ended(1 + end);
    response->set_workers_ended_to(to);
    changed_.NotifyAll();
    return grpc::Status::OK;
  }
  grpc::Status Route(grpc::ServerContext*, const v1::RouteRequest*, v1::RouteResponse* response) override {
    MutexLock lock(&mu_);
    ++routes_;
    changed_.NotifyAll();
    if (!route_error_.empty()) return {grpc::StatusCode::UNAVAILABLE, route_error_};
    response->set_epoch(epoch_);
    for (int i = 0; i < 2; ++i) response->add_servers()->set_address(absl::StrCat("host:", 1 + i));
    for (uint32_t shard = 0; shard < 8; ++shard) response->add_owners(shard % 2);
    return grpc::Status::OK;
  }
  grpc::Status ReportSync(grpc::ServerContext* context, const v1::ReportSyncRequest* request,
                          v1::ReportSyncResponse* response) override {
    MutexLock lock(&mu_);
    reports_.push_back(*request);
    changed_.NotifyAll();
    while (reports_stall_ && !context->IsCancelled()) Nap();
    if (!alive_ || request->incarnation() != incarnation_) return Lost();
    response->set_route_epoch(epoch_);
    for (const auto& report : request->reports()) response->add_accepted(report.shard() != 7);
    return grpc::Status::OK;
  }

  void SetEpoch(uint64_t epoch) { Set(&epoch_, epoch); }
  void SetRouteError(std::string error) { Set(&route_error_, std::move(error)); }
  void SetLease(uint32_t lease_ms) { Set(&next_lease_ms_, lease_ms); }
  // The workers 1 to `count` have ended.
  void SetEnded(uint64_t count) { Set(&ended_to_, count); }
  void Kill() { Set(&alive_, false); }
  void StallHeartbeats(bool stall) { Set(&heartbeats_stall_, stall); }
  void StallReports(bool stall) { Set(&reports_stall_, stall); }
  void AwaitJoins(int count) { Await(&joins_, count); }
  void AwaitRoutes(int count) { Await(&routes_, count); }
  void AwaitHeartbeats(int count) { Await(&heartbeats_, count); }
  void AwaitHeartbeatsAnswered(int count) { Await(&heartbeats_answered_, count); }
  void AwaitReports(size_t count) {
    MutexLock lock(&mu_);
    while (reports_.size() < count) changed_.Wait(&mu_);
  }
  int heartbeats() { return Get(heartbeats_); }
  int heartbeats_answered() { return Get(heartbeats_answered_); }
  int routes() { return Get(routes_); }
  int64_t heartbeat_ms() { return Get(heartbeat_ms_); }
  std::vector<v1::ReportSyncRequest> reports() { return Get(reports_); }
  std::vector<v1::HeartbeatRequest> beats() { return Get(beats_); }

 private:
  static grpc::Status Lost() { return {grpc::StatusCode::FAILED_PRECONDITION, "the lease has ended"}; }
  // So short that a call that was cancelled ends.
  void Nap() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
  }
  template <typename T>
  void Set(T* field, T value) {
    MutexLock lock(&mu_);
    *field = std::move(value);
    changed_.NotifyAll();
  }
  template <typename T>
  T Get(const T& field) {
    MutexLock lock(&mu_);
    return field;
  }
  void Await(const int* field, int count) {
    MutexLock lock(&mu_);
    while (*field < count) changed_.Wait(&mu_);
  }

  const uint32_t lease_ms_;
  SteadyTime time_;
  Mutex mu_;
  CondVar changed_;
  Incarnation incarnation_ = 0;
  bool alive_ = false;
  bool heartbeats_stall_ = false;
  bool reports_stall_ = false;
  uint64_t epoch_ = 1;
  uint32_t next_lease_ms_ = 0;  // Told by heartbeats; 0: nothing is.
  uint64_t ended_to_ = 0;
  std::string route_error_;
  int joins_ = 0;
  int heartbeats_ = 0;
  int heartbeats_answered_ = 0;
  int routes_ = 0;
  int64_t heartbeat_ms_ = 0;
  std::vector<v1::ReportSyncRequest> reports_;
  std::vector<v1::HeartbeatRequest> beats_;  // All heartbeats, answered or not.
};

class MemberTest : public ::testing::Test {
 protected:
  ~MemberTest() override {
    if (member_ != nullptr) member_->Leave();
    if (server_ != nullptr) server_->Shutdown();
  }

  // Returns when there is the first map.
  void Start(uint32_t lease_ms, uint32_t replicas = 1) {
    coordinator_ = std::make_unique<FakeCoordinator>(lease_ms);
    grpc::ServerBuilder builder;
    builder.RegisterService(coordinator_.get());
    server_ = builder.BuildAndStart();
    CoordinatorClient::Options options;
    v1::Config config;
    config.mutable_coordinator()->set_address("fake:1");
    options.index = 0;
    options.address = "host:1";
    options.cluster = "test";
    options.shards = 8;
    options.servers = 3;
    options.lease_ms = lease_ms;
    options.replicas = replicas;
    options.on_change = [this](const ShardMap& map) { Note(map.epoch()); };
    options.on_joined = [this](const v1::JoinResponse& response) { orders_.push_back(response.orders()); };
    options.progress = [] {
      v1::ServerProgress progress;
      progress.set_rows(77);
      return progress;
    };
    options.on_workers_ended = [this](std::span<const Incarnation> workers) { NoteEnded(workers); };
    options.events = &events_;
    auto channel = std::make_unique<CoordinatorChannel>(
        config, [this](const std::string&) { return server_->InProcessChannel({}); });
    member_ = std::make_unique<CoordinatorClient>(std::move(options), std::move(channel),
                                                  [this](absl::StatusOr<ShardMap> map) {
                                                    EXPECT_TRUE(map.ok()) << map.status();
                                                    Note(map.ok() ? map->epoch() : 0);
                                                  });
    AwaitMaps(1);
  }

  void AwaitMaps(size_t count) {
    MutexLock lock(&mu_);
    while (maps_.size() < count) changed_.Wait(&mu_);
  }
  std::vector<uint64_t> maps() {
    MutexLock lock(&mu_);
    return maps_;
  }
  // The workers that were told to have ended, once these are so many.
  std::vector<Incarnation> AwaitEnded(size_t count) {
    MutexLock lock(&mu_);
    while (ended_.size() < count) changed_.Wait(&mu_);
    return ended_;
  }
  // The first wait that the ps tells of.
  std::string AwaitWait() {
    for (;;) {
      v1::StatusResponse status;
      member_->FillStatus(&status);
      if (status.waits_size() > 0) return status.waits(0).what();
      std::this_thread::yield();
    }
  }
  static v1::ReportSyncRequest Report(uint32_t shard, bool in_sync) {
    v1::ReportSyncRequest request;
    request.add_reports()->set_shard(shard);
    request.mutable_reports(0)->set_in_sync(in_sync);
    return request;
  }

  // What the heartbeats so far have told, each event once, however often it was sent.
  std::string Told() {
    std::map<uint64_t, std::string> told;
    for (const v1::HeartbeatRequest& beat : coordinator_->beats()) {
      EXPECT_LE(beat.events_size(), limits::kHeartbeatEventsMax);
      for (const v1::Event& event : beat.events()) {
        EXPECT_EQ(event.id(), 0);
        told[event.time_ms()] = event.text();
      }
    }
    std::string texts;
    for (const auto& [time_ms, text] : told) texts += text;
    return texts;
  }
  std::string ToldLast() {
    std::string texts;
    const v1::HeartbeatRequest last = coordinator_->beats().back();
    for (const v1::Event& event : last.events()) texts += event.text();
    return texts;
  }
  // Returns once a heartbeat that was made from now on has nothing to tell.
  void AwaitAllTold() {
    coordinator_->AwaitHeartbeats(coordinator_->heartbeats() + 2);  // The first may have been under way.
    while (!ToldLast().empty()) coordinator_->AwaitHeartbeats(coordinator_->heartbeats() + 1);
  }

  SteadyTime time_;
  EventLog events_{&time_};
  std::unique_ptr<FakeCoordinator> coordinator_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<CoordinatorClient> member_;
  std::vector<int64_t> lease_ends_in_change_ms_;
  std::vector<uint64_t> orders_;  // As it was told each time that it joined.

 private:
  void Note(uint64_t epoch) {
    MutexLock lock(&mu_);
    maps_.push_back(epoch);
    if (maps_.size() > 1) lease_ends_in_change_ms_.push_back(member_->lease_ends_ms());
    changed_.NotifyAll();
  }

  void NoteEnded(std::span<const Incarnation> workers) {
    MutexLock lock(&mu_);
    ended_.insert(ended_.end(), workers.begin(), workers.end());
    changed_.NotifyAll();
  }

  Mutex mu_;
  CondVar changed_;
  std::vector<uint64_t> maps_ ABSL_GUARDED_BY(mu_);
  std::vector<Incarnation> ended_ ABSL_GUARDED_BY(mu_);
};

TEST_F(MemberTest, HearsOfEachNewerMapOnceThroughItsHeartbeats) {
  Start(kShort);
  const int routes = coordinator_->routes();
  coordinator_->AwaitHeartbeatsAnswered(coordinator_->heartbeats_answered() + 2);
  EXPECT_EQ(coordinator_->routes(), routes) << "nothing is new";
  coordinator_->SetEpoch(2);
  AwaitMaps(2);
  coordinator_->SetEpoch(5);
  AwaitMaps(3);
  EXPECT_THAT(maps(), ElementsAre(1, 2, 5));
}

TEST_F(MemberTest, AMapThatIsNotThereYetIsAskedForAgainAndTheWaitIsTold) {
  Start(kShort);
  coordinator_->SetRouteError("waits for ps 1");
  coordinator_->SetEpoch(2);
  EXPECT_THAT(AwaitWait(), HasSubstr("goes on with the shard map of epoch 1 for now: coordinator fake:1: waits for"));
  coordinator_->AwaitRoutes(coordinator_->routes() + 2);
  coordinator_->SetRouteError("");
  AwaitMaps(2);
  EXPECT_THAT(maps(), ElementsAre(1, 2));
}

TEST_F(MemberTest, AsksForTheMapAtOnceWhenItIsTold) {
  Start(kHour);
  coordinator_->SetEpoch(2);
  for (int i = 0; i < 100; ++i) member_->AskRoute();
  AwaitMaps(2);
  EXPECT_THAT(maps(), ElementsAre(1, 2));
  EXPECT_LT(coordinator_->routes(), 50) << "many wishes are one question";
}

TEST_F(MemberTest, AQuestionThatBringsNothingNewTellsNothing) {
  Start(kHour);
  const int routes = coordinator_->routes();
  member_->AskRoute();
  coordinator_->AwaitRoutes(routes + 1);
  coordinator_->SetEpoch(2);
  member_->AskRoute();
  AwaitMaps(2);
  EXPECT_THAT(maps(), ElementsAre(1, 2));
}

TEST_F(MemberTest, WithFollowersFailoversAreHeardOfSoonHoweverLongTheLease) {
  Start(kHour, 2);
  coordinator_->SetEpoch(2);
  AwaitMaps(2);
  EXPECT_THAT(maps(), ElementsAre(1, 2));
}

TEST_F(MemberTest, WhoLostItsLeaseJoinsAgainAndIsToldTheNewestMapBeforeTheNewLeaseCounts) {
  Start(kShort);
  EXPECT_EQ(member_->incarnation(), 101);
  coordinator_->Kill();
  AwaitMaps(2);
  EXPECT_THAT(maps(), ElementsAre(1, 1)) << "though it is the same";
  EXPECT_EQ(member_->incarnation(), 102);
  EXPECT_THAT(orders_, ElementsAre(4, 5));
  ASSERT_EQ(lease_ends_in_change_ms_.size(), 1);
  EXPECT_LE(lease_ends_in_change_ms_[0], time_.NowMs());
  coordinator_->AwaitHeartbeatsAnswered(coordinator_->heartbeats_answered() + 2);
  EXPECT_GE(member_->lease_ends_ms(), coordinator_->heartbeat_ms());
}

TEST_F(MemberTest, AnotherCoordinatorsMapIsTakenThoughItsEpochsBeganAnew) {
  Start(kShort);
  coordinator_->SetEpoch(7);
  AwaitMaps(2);
  coordinator_->SetEpoch(1);
  coordinator_->Kill();
  AwaitMaps(3);
  EXPECT_THAT(maps(), ElementsAre(1, 7, 1));
}

TEST_F(MemberTest, TheLeaseCountsFromWhenTheHeartbeatThatWasAnsweredWasSent) {
  Start(kShort);
  coordinator_->StallHeartbeats(true);
  coordinator_->AwaitHeartbeats(coordinator_->heartbeats() + 1);
  const int64_t ends_ms = member_->lease_ends_ms();
  EXPECT_GT(ends_ms, 0);
  EXPECT_LE(ends_ms, coordinator_->heartbeat_ms() + kShort) << "it was not answered";
  const int64_t arrived_ms = coordinator_->heartbeat_ms();
  while (time_.NowMs() < arrived_ms + 5) std::this_thread::yield();
  coordinator_->StallHeartbeats(false);
  while (member_->lease_ends_ms() == ends_ms) std::this_thread::yield();
  coordinator_->StallHeartbeats(true);
  EXPECT_LE(member_->lease_ends_ms(), coordinator_->heartbeat_ms() + kShort);
}

TEST_F(MemberTest, AnotherLifeOfTheCoordinatorMayGiveALongerOrAShorterLease) {
  Start(kShort, 2);
  coordinator_->SetLease(kHour);
  while (member_->lease_ends_ms() < time_.NowMs() + kHour / 2) std::this_thread::yield();
  coordinator_->SetLease(kShort);
  while (member_->lease_ends_ms() > time_.NowMs() + kShort) std::this_thread::yield();
}

TEST_F(MemberTest, HeartbeatsSayHowItGoes) {
  Start(kShort);
  coordinator_->AwaitHeartbeats(1);
  EXPECT_EQ(coordinator_->beats()[0].server().rows(), 77);
  EXPECT_FALSE(coordinator_->beats()[0].has_progress());
}

TEST_F(MemberTest, WhatHappensIsToldUntilThatIsAnsweredAndThenNoMore) {
  Start(kShort);
  events_.Add("disk", "ps 0", "a");
  events_.Add("disk", "ps 0", "b");
  AwaitAllTold();
  EXPECT_EQ(Told(), "ab");
  events_.Add("disk", "ps 0", "c");
  AwaitAllTold();
  EXPECT_EQ(Told(), "abc");
}

TEST_F(MemberTest, WhatAHeartbeatToldThatWasNotAnsweredIsToldAgain) {
  Start(kShort);
  coordinator_->StallHeartbeats(true);
  coordinator_->AwaitHeartbeats(coordinator_->heartbeats() + 1);
  events_.Add("disk", "ps 0", "a");
  coordinator_->AwaitHeartbeats(coordinator_->heartbeats() + 1);
  EXPECT_EQ(ToldLast(), "a");
  events_.Add("disk", "ps 0", "b");
  coordinator_->AwaitHeartbeats(coordinator_->heartbeats() + 1);
  EXPECT_EQ(ToldLast(), "ab");
  coordinator_->StallHeartbeats(false);
  AwaitAllTold();
  EXPECT_EQ(Told(), "ab") << "its times tell that it is the same";
}

TEST_F(MemberTest, MoreThanAHeartbeatTakesWaitsForTheNext) {
  Start(kShort);
  const std::string many(3 * limits::kHeartbeatEventsMax + 1, 'x');
  for (size_t i = 0; i < many.size(); ++i) events_.Add("disk", "ps 0", "x");
  AwaitAllTold();
  EXPECT_EQ(Told(), many);
}

// At the usual pace of heartbeats this would take most of an hour.
TEST_F(MemberTest, OfMoreWorkersThatEndedThanAnAnswerTellsItHearsAtOnce) {
  Start(kHour);
  constexpr size_t kEnded = 1000 * kEndsPerAnswer + 1;
  coordinator_->SetEnded(kEnded);
  member_->AskHeartbeat();
  const std::vector<Incarnation> ended = AwaitEnded(kEnded - 1);  // The last one may wait for the next heartbeat.
  for (size_t i = 0; i < ended.size(); ++i) ASSERT_EQ(ended[i], 1 + i);
}

TEST_F(MemberTest, TheLastHeartbeatTellsWhatNoOtherHas) {
  Start(kHour);
  events_.Add("disk", "ps 0", "a");
  member_->Leave();
  EXPECT_EQ(Told(), "a");
  EXPECT_TRUE(coordinator_->beats().back().leaving());
}

TEST_F(MemberTest, ReportsCarryTheIncarnationAndANumberThatGrows) {
  Start(kHour);
  const auto first = member_->ReportSync(Report(3, true));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(first->accepted(), ElementsAre(true));
  const auto second = member_->ReportSync(Report(7, true));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(second->accepted(), ElementsAre(false));
  const auto reports = coordinator_->reports();
  ASSERT_EQ(reports.size(), 2);
  EXPECT_EQ(reports[0].incarnation(), 101);
  EXPECT_EQ(reports[0].reports(0).shard(), 3);
  EXPECT_LT(reports[0].sequence(), reports[1].sequence());
}

TEST_F(MemberTest, TheAnswerToAReportTellsOfANewerMap) {
  Start(kHour);
  coordinator_->SetEpoch(2);
  EXPECT_TRUE(member_->ReportSync(Report(0, true)).ok());
  AwaitMaps(2);
  EXPECT_THAT(maps(), ElementsAre(1, 2));
}

TEST_F(MemberTest, AReportThatFindsTheLeaseLostLetsThePsJoinAgainAtOnce) {
  Start(kHour);
  coordinator_->Kill();
  EXPECT_EQ(member_->ReportSync(Report(0, true)).status().code(), absl::StatusCode::kFailedPrecondition);
  coordinator_->AwaitJoins(2);
  AwaitMaps(2);
  EXPECT_EQ(member_->incarnation(), 102);
  EXPECT_TRUE(member_->ReportSync(Report(0, true)).ok());
}

TEST_F(MemberTest, AReportThatHangsKeepsNoHeartbeatWaiting) {
  Start(kShort);
  coordinator_->StallReports(true);
  std::thread reporter([&] { (void)member_->ReportSync(Report(0, true)); });
  coordinator_->AwaitReports(1);
  coordinator_->AwaitHeartbeatsAnswered(coordinator_->heartbeats_answered() + 2);
  coordinator_->StallReports(false);
  reporter.join();
}

TEST_F(MemberTest, LeaveCutsAReportShort) {
  Start(kHour);
  coordinator_->StallReports(true);
  std::thread reporter([&] { EXPECT_FALSE(member_->ReportSync(Report(0, true)).ok()); });
  coordinator_->AwaitReports(1);
  member_->Leave();
  reporter.join();
  EXPECT_EQ(member_->ReportSync(Report(0, true)).status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace lodestone::server
