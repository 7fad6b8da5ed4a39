// The owner's side alone, with a follower by hand.
#include "server/replication/replicator.h"

#include <future>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "server/optimizer/arithmetic.h"
#include "tests/common/telemetry/metric_text.h"
#include "tests/server/replication/fake_coordinator.h"
#include "tests/server/replication/raw_follower.h"
#include "tests/server/store/store_fixture.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;

constexpr Incarnation kFollowingLife = 200;

class Service final : public v1::Replication::WithRawCallbackMethod_Follow<v1::Replication::Service> {
 public:
  explicit Service(Replicator* replicator) : replicator_(replicator) {}
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Follow(grpc::CallbackServerContext* context) override {
    return replicator_->Open(context);
  }

 private:
  Replicator* const replicator_;
};

class ReplicatorTest : public ::testing::Test {
 protected:
  using Pushed = absl::StatusOr<v1::PushResponse>;

  void Start(int64_t patience_ms, uint32_t shards = 1, uint64_t queue_bytes_max = limits::kFollowQueueBytesMax) {
    shards_ = shards;
    Store::Options store;
    store.shards = shards;
    store.time = &time_;
    store_ = std::make_unique<Store>(store);
    Replicator::Options options;
    options.cluster = v1::Config().cluster().name();
    options.seed = v1::Config().cluster().seed();
    options.shards = shards;
    options.queue_bytes_max = queue_bytes_max;
    options.patience_ms = patience_ms;
    options.in_sync_min = in_sync_min_;
    options.report = [this](const v1::ReportSyncRequest& request) { return coordinator_.Report(0, request); };
    options.ask_route = [] {};
    replicator_ = std::make_unique<Replicator>(std::move(options), store_.get(), &newest_);
    store_->log().SetReplicas(replicator_.get());
    service_ = std::make_unique<Service>(replicator_.get());
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
    coordinator_.SetServer(0, address_, 100);
    coordinator_.SetServer(1, "nowhere:1", kFollowingLife);
    std::vector<ShardId> owned(shards);
    std::iota(owned.begin(), owned.end(), 0);
    for (const ShardId shard : owned) replicator_->Own(shard, /*term=*/0);
    store_->OwnShards(owned);
    v1::EnsureTablesRequest tables;
    tables.set_worker_incarnation(kWorker);
    *tables.add_tables() = AddingDense("dense", Elements(), kBlockElements);
    ASSERT_TRUE(store_->EnsureTables(tables).ok());
  }
  void TearDown() override {
    coordinator_.Hold(false);
    replicator_->Shutdown();
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }

  v1::StatusResponse Status() const {
    v1::StatusResponse status;
    replicator_->FillStatus(&status);
    return status;
  }
  // Waits until this ps knows that the shard's follower counts.
  bool AwaitInSync() {
    return coordinator_.Await([this] { return Status().replication().shards_in_sync() == shards_; });
  }
  // What is said of the shard 0 at `version`.
  absl::Status Held(Version version) {
    std::promise<absl::Status> held;
    const ReplicaSink::Position position = {0, version};
    replicator_->Await({&position, 1}, [&held](const absl::Status& status) { held.set_value(status); });
    return held.get_future().get();
  }

  std::future<Pushed> Push(Sequence sequence) {
    RequestBuilder<v1::PushRequest> push(shards_);
    push.header.set_worker_incarnation(kWorker);
    push.header.set_sequence(sequence);
    push.AddDense(TableIdOf("dense"), {Elements(), kBlockElements}, 1.0f);
    auto promise = std::make_shared<std::promise<Pushed>>();
    std::future<Pushed> future = promise->get_future();
    store_->pushes().Push(push.header, push.payload(),
                          [promise](Pushed result) { promise->set_value(std::move(result)); });
    return future;
  }
  static bool Waits(const std::future<Pushed>& push) {
    return push.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
  }
  // Gets the shard's state, and confirms it.
  void Join(RawFollower* raw) {
    raw->Start(RawFollower::StartOf(kFollowingLife, 1, {{0, 0}}));
    ASSERT_TRUE(raw->ReadUntil(v1::FollowItem::kStateEnds));
    raw->Ack(0, store_->shards().VersionOf(0));
  }

  // A block of every shard.
  uint64_t Elements() const { return uint64_t{shards_} * kBlockElements; }

  static constexpr uint32_t kBlockElements = 4;
  static constexpr uint32_t kManyShards = 8;

  ManualTime time_;
  uint32_t in_sync_min_ = 1;
  uint32_t shards_ = 1;
  FakeCoordinator coordinator_{kManyShards, 2};
  std::unique_ptr<Store> store_;
  NewestUpdates newest_{kManyShards, nullptr};
  std::unique_ptr<Replicator> replicator_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

TEST_F(ReplicatorTest, AnAnswerAboutAFormerTimeAsOwnerSaysNothingOfThisOne) {
  ASSERT_NO_FATAL_FAILURE(Start(/*patience_ms=*/10));
  ASSERT_TRUE(Push(1).get().ok());
  coordinator_.Hold(true);
  RawFollower first(address_);
  ASSERT_NO_FATAL_FAILURE(Join(&first));
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.joins() == 1; }));
  replicator_->Disown(0);
  replicator_->Own(0, /*term=*/0);
  coordinator_.Hold(false);  // The coordinator takes it, at epoch 1.
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.InSync(0); }));

  const ShardMap map = coordinator_.Change([](v1::RouteResponse* route) { route->set_in_sync(0, false); });
  coordinator_.SetMode(FakeCoordinator::Mode::kTakeAndFail);
  RawFollower second(address_);
  ASSERT_NO_FATAL_FAILURE(Join(&second));
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.InSync(0); }));
  coordinator_.SetMode(FakeCoordinator::Mode::kFail);
  std::future<Pushed> push = Push(2);
  for (int i = 1; i < 4; ++i) {
    ASSERT_TRUE(coordinator_.Await([&] { return coordinator_.leaves() >= i; }));
    replicator_->SetMap(map);  // Older than what the coordinator took.
  }
  EXPECT_TRUE(Waits(push)) << "the coordinator counts on the follower, which does not have it";
  coordinator_.SetMode(FakeCoordinator::Mode::kTake);
  EXPECT_TRUE(push.get().ok());
}

TEST_F(ReplicatorTest, AFollowerWhoseArithmeticGivesOtherBitsIsNotedAndMayFollow) {
  constexpr char kUnlike[] = "lodestone_ps_replication_unlike_followers_total";
  ASSERT_NO_FATAL_FAILURE(Start(/*patience_ms=*/3600'000));
  const MetricGrowth growth;
  for (const uint64_t differs : {0, 1}) {
    RawFollower raw(address_);
    v1::FollowStart start = RawFollower::StartOf(kFollowingLife, 1, {{0, 0}});
    start.set_arithmetic(ArithmeticFingerprint() ^ (differs << 1));
    start.set_machine(std::string(10'000, 'x'));
    raw.Start(start);
    EXPECT_TRUE(raw.ReadUntil(v1::FollowItem::kStateEnds));
    EXPECT_EQ(growth.Of(kUnlike), differs);
  }
}

TEST_F(ReplicatorTest, AFollowerThatTheCoordinatorDoesNotKnowIsSentAwayAndHoldsNothingUp) {
  ASSERT_NO_FATAL_FAILURE(Start(/*patience_ms=*/3600'000));
  ASSERT_TRUE(Push(1).get().ok());
  coordinator_.SetServer(1, "nowhere:1", kFollowingLife + 1);
  RawFollower raw(address_);
  ASSERT_NO_FATAL_FAILURE(Join(&raw));
  const absl::Status status = raw.AwaitEnd();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(Push(2).get().ok());
}

TEST_F(ReplicatorTest, AFollowerThatIsGoneCountsUntilTheCoordinatorHasHeardOfIt) {
  ASSERT_NO_FATAL_FAILURE(Start(/*patience_ms=*/3600'000));
  EXPECT_TRUE(replicator_->health().ok());
  RawFollower raw(address_);
  ASSERT_NO_FATAL_FAILURE(Join(&raw));
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.InSync(0); }));
  std::future<Pushed> push = Push(1);
  ASSERT_TRUE(coordinator_.Await([this] { return store_->shards().VersionOf(0) == 1; }));
  EXPECT_TRUE(Waits(push));
  raw.Ack(0, 1);
  EXPECT_TRUE(push.get().ok());
  raw.Leave().IgnoreError();
  std::future<Pushed> next = Push(2);
  ASSERT_TRUE(coordinator_.Await([this] { return store_->shards().VersionOf(0) == 2; }));
  EXPECT_TRUE(Waits(next)) << "the follower that is gone counts until the coordinator has heard of it";
  replicator_->Disown(0);
  EXPECT_TRUE(absl::IsAborted(next.get().status()));
}

TEST_F(ReplicatorTest, WhereTwoCopiesAreToBeInSyncAnOwnerThatIsAloneRefusesPushes) {
  in_sync_min_ = 2;
  ASSERT_NO_FATAL_FAILURE(Start(/*patience_ms=*/3600'000));
  const MetricGrowth growth;
  const absl::Status refused = Push(1).get().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("shard 0 has 1 copy in sync, and cluster.in_sync_min wants 2"));
  EXPECT_EQ(growth.Of("lodestone_ps_replication_refused_pushes_total"), 1u);
  EXPECT_EQ(store_->shards().VersionOf(0), 0u) << "it was applied";
  ASSERT_EQ(Status().waits_size(), 1);
  EXPECT_THAT(Status().waits(0).what(), HasSubstr("to which pushes are refused (cluster.in_sync_min: 2)"));

  coordinator_.Hold(true);
  RawFollower raw(address_);
  ASSERT_NO_FATAL_FAILURE(Join(&raw));
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.joins() == 1; }));
  EXPECT_EQ(Push(1).get().status().code(), absl::StatusCode::kUnavailable)
      << "the coordinator would not promote it yet";
  coordinator_.Hold(false);
  ASSERT_TRUE(AwaitInSync());
  EXPECT_EQ(Status().waits_size(), 0);
  std::future<Pushed> push = Push(1);
  ASSERT_TRUE(coordinator_.Await([this] { return store_->shards().VersionOf(0) == 1; }));
  EXPECT_TRUE(Waits(push));
  raw.Ack(0, 1);
  EXPECT_TRUE(push.get().ok());
}

TEST_F(ReplicatorTest, WhereTwoCopiesAreToBeInSyncAPushThatItsFollowerNeverConfirmedIsNotAcknowledgedWithoutIt) {
  in_sync_min_ = 2;
  ASSERT_NO_FATAL_FAILURE(Start(/*patience_ms=*/10));
  {
    RawFollower raw(address_);
    ASSERT_NO_FATAL_FAILURE(Join(&raw));
    ASSERT_TRUE(AwaitInSync());
    const absl::Status alone = Push(1).get().status();  // It confirms nothing, so that it counts no more.
    EXPECT_EQ(alone.code(), absl::StatusCode::kUnavailable) << alone;
    EXPECT_THAT(alone.message(), HasSubstr("fewer copies of shard 0 than cluster.in_sync_min (2)"));
  }
  EXPECT_EQ(store_->shards().VersionOf(0), 1u);
  EXPECT_FALSE(coordinator_.InSync(0));
  // Nor is it shown to a reader that waits for what is durable, as all before it is.
  EXPECT_TRUE(Held(0).ok());
  EXPECT_EQ(Held(1).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Push(1).get().status().code(), absl::StatusCode::kUnavailable);

  RawFollower next(address_);
  ASSERT_NO_FATAL_FAILURE(Join(&next));
  ASSERT_TRUE(AwaitInSync());
  EXPECT_TRUE(Held(1).ok());
  const Pushed again = Push(1).get();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->shards(0).duplicate());
  EXPECT_EQ(store_->shards().VersionOf(0), 1u);
}

// Regression: the new stream of a follower was refused, and its shard stayed unserved until the follower had
// begun again.
TEST_F(ReplicatorTest, AFollowerWhoseStreamBreaksGoesOnWithAShardThatIsGivenUp) {
  ASSERT_NO_FATAL_FAILURE(Start(/*patience_ms=*/3600'000));
  ASSERT_TRUE(Push(1).get().ok());
  std::atomic<uint64_t> reported = 0;
  coordinator_.OnReport([&](const v1::ReportSyncRequest::Report& report) { reported = report.gives_up(); });
  RawFollower first(address_);
  ASSERT_NO_FATAL_FAILURE(Join(&first));
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.InSync(0); }));
  std::future<Pushed> push = Push(2);
  ASSERT_TRUE(coordinator_.Await([this] { return store_->shards().VersionOf(0) == 2; }));
  store_->shards().GiveUp(0);
  replicator_->SetMap(coordinator_.map());
  replicator_->GiveUp(0, /*handover=*/5);
  first.Leave().IgnoreError();
  RawFollower again(address_);
  again.Start(RawFollower::StartOf(kFollowingLife, 1, {{0, 1}}));
  ASSERT_TRUE(again.ReadUntil(v1::FollowItem::kRecord));
  again.Ack(0, 2);
  EXPECT_TRUE(push.get().ok());
  EXPECT_TRUE(coordinator_.Await([&] { return reported == 5; }));
  coordinator_.OnReport(nullptr);
}

TEST_F(ReplicatorTest, AFollowerThatDoesNotCountYetNeverHoldsUpItsOwnerAndCountsOnceItConfirms) {
  constexpr uint64_t kQueueBytesMax = 16 << 10;
  ASSERT_NO_FATAL_FAILURE(Start(/*patience_ms=*/3600'000, kManyShards, kQueueBytesMax));
  RawFollower raw(address_);
  std::vector<std::pair<ShardId, Version>> positions;
  for (ShardId shard = 0; shard < kManyShards; ++shard) positions.emplace_back(shard, 0);
  raw.Start(RawFollower::StartOf(kFollowingLife, kManyShards, positions));
  ASSERT_TRUE(raw.ReadUntil(v1::FollowItem::kStateEnds, kManyShards));
  // It takes all updates, and confirms none, because its disk does not have the states yet.
  Sequence sequence = 0;
  uint64_t taken = 0;
  while (taken < 4 * kQueueBytesMax) {
    const Pushed pushed = Push(++sequence).get();
    ASSERT_TRUE(pushed.ok()) << "push " << sequence << ": " << pushed.status();
    ASSERT_TRUE(raw.ReadUntil(v1::FollowItem::kRecord, kManyShards)) << "it was sent away";
    v1::StatusResponse status;
    replicator_->FillStatus(&status);
    ASSERT_EQ(status.replication().followers_size(), 1) << "it was sent away";
    taken = status.replication().followers(0).bytes();
    EXPECT_LE(status.replication().followers(0).lag_bytes(), kQueueBytesMax);
  }
  for (ShardId shard = 0; shard < kManyShards; ++shard) raw.Ack(shard, store_->shards().VersionOf(shard));
  EXPECT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync(); }));
}

TEST_F(ReplicatorTest, ACopyIsKnownByTheUpdateThatMadeItAndNotByItsVersionAlone) {
  ASSERT_NO_FATAL_FAILURE(Start(/*patience_ms=*/3600'000));
  ASSERT_TRUE(Push(1).get().ok());
  const uint64_t mark = newest_.MarkAt(0, 1);
  ASSERT_NE(mark, 0u);
  v1::FollowStart start = RawFollower::StartOf(kFollowingLife, 1, {{0, 1}});
  start.mutable_follows(0)->set_mark(mark + 1);
  RawFollower other(address_);
  other.Start(start);
  ASSERT_TRUE(other.ReadUntil(v1::FollowItem::kStateEnds)) << "it is of another history";
  other.Leave().IgnoreError();
  start.mutable_follows(0)->set_mark(mark);
  store_->shards().Run(0, [](Shard* owned) { owned->RaiseLineage(2); });
  start.set_lineage(1);
  RawFollower older(address_);
  older.Start(start);
  ASSERT_TRUE(older.ReadUntil(v1::FollowItem::kStateEnds)) << "its owner went back to a checkpoint, and it did not";
  older.Leave().IgnoreError();
  start.mutable_follows(0)->set_lineage(2);
  RawFollower raw(address_);
  raw.Start(start);
  ASSERT_TRUE(raw.ReadUntil(v1::FollowItem::kCaughtUp));
  raw.Ack(0, 1);
  EXPECT_TRUE(coordinator_.Await([this] { return coordinator_.InSync(0); }));
}

}  // namespace
}  // namespace lodestone::server
