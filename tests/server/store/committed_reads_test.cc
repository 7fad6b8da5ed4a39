// Reads that show only what no death could take back (cluster.reads: durable), beside those that show the newest.
#include <unistd.h>

#include <future>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/store/store_fixture.h"
#include "tests/server/wal/log_files.h"

namespace lodestone::server {
namespace {

// A follower in sync that confirms when it is told to.
class StalledSink final : public ReplicaSink {
 public:
  void Append(std::span<const ShardLog::Record> records, const std::shared_ptr<const void>&) override {
    MutexLock lock(&mu_);
    for (const ShardLog::Record& record : records) {
      if (record.message.version() > 0) newest_[record.message.shard()] = record.message.version();
    }
  }
  void Await(std::span<const Position> positions, Done done) override {
    {
      MutexLock lock(&mu_);
      bool held = true;
      for (const Position& position : positions) held &= confirmed_[position.shard] >= position.version;
      if (!held) return waiting_.push_back(std::move(done));
    }
    done(absl::OkStatus());
  }
  absl::Status health() const override { return absl::OkStatus(); }

  // Confirms all that it was sent, or says why it does not.
  void End(const absl::Status& status) {
    std::vector<Done> waiting;
    {
      MutexLock lock(&mu_);
      if (status.ok()) confirmed_ = newest_;
      waiting.swap(waiting_);
    }
    for (const Done& done : waiting) done(status);
  }
  size_t waiting() const {
    MutexLock lock(&mu_);
    return waiting_.size();
  }

 private:
  mutable Mutex mu_;
  std::map<ShardId, Version> newest_ ABSL_GUARDED_BY(mu_);
  std::map<ShardId, Version> confirmed_ ABSL_GUARDED_BY(mu_);
  std::vector<Done> waiting_ ABSL_GUARDED_BY(mu_);
};

// A disk whose syncs take until they are told to end.
class StalledDisk {
 public:
  FileCalls Calls() {
    FileCalls calls = FileCalls::System();
    calls.fdatasync = [this](int fd) {
      MutexLock lock(&mu_);
      while (stalled_) changed_.Wait(&mu_);
      return fdatasync(fd);
    };
    return calls;
  }
  void Stall(bool stalled) {
    MutexLock lock(&mu_);
    stalled_ = stalled;
    changed_.NotifyAll();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool stalled_ ABSL_GUARDED_BY(mu_) = false;
};

class CommittedReadsTest : public StoreTest {
 protected:
  static constexpr uint32_t kDim = 2;

  ~CommittedReadsTest() override {
    sink_.End(absl::OkStatus());
    disk_.Stall(false);
    store_.reset();
  }

  void MakeStore(bool committed_reads) {
    Store::Options options;
    options.shards = kShards;
    options.executors = 2;
    options.time = &time_;
    options.committed_reads = committed_reads;
    store_ = std::make_unique<Store>(options);
    store_->log().SetReplicas(&sink_);
    std::vector<ShardId> all;
    for (ShardId shard = 0; shard < kShards; ++shard) all.push_back(shard);
    store_->OwnShards(all);
    ASSERT_TRUE(Ensure({AddingDense("dense", 8, 4), AddingRows("rows", kDim)}).ok());
  }
  // The same with a log on the disk instead of a follower, which is synced before a push is acknowledged.
  void MakeStoreWithLog() {
    Store::Options options;
    options.shards = kShards;
    options.executors = 1;
    options.time = &time_;
    options.committed_reads = true;
    store_ = std::make_unique<Store>(options);
    ShardLog::Options log;
    log.segments.dir = LogFolder();
    log.segments.header = LogHeader();
    log.segments.sync = true;
    log.segments.calls = disk_.Calls();
    auto opened = ShardLog::Open(std::move(log));
    ASSERT_TRUE(opened.ok()) << opened.status();
    std::vector<ShardId> all;
    for (ShardId shard = 0; shard < kShards; ++shard) all.push_back(shard);
    store_->shards().Adopt(all);
    std::vector<std::unique_ptr<ShardLog>> logs;
    logs.push_back(*std::move(opened));
    store_->Serve(std::move(logs));
    ASSERT_TRUE(Ensure({AddingDense("dense", 8, 4), AddingRows("rows", kDim)}).ok());
  }
  // A push of 1 to all of the dense table and one row, which is applied and waits for the follower.
  void StartPush(Sequence sequence) {
    auto push = NewPush(sequence);
    push.AddDense(TableIdOf("dense"), {8, 4}, 1.0f);
    push.AddRows(TableIdOf("rows"), kDim, {{kKey, 1.0f}}, true);
    store_->pushes().Push(push.header, push.payload(), [](const absl::StatusOr<v1::PushResponse>&) {});
  }
  using Pulled = absl::StatusOr<PullPath::Values>;
  std::future<Pulled> StartPull(const RequestBuilder<v1::PullRequest>& pull) {
    auto promise = std::make_shared<std::promise<Pulled>>();
    std::future<Pulled> future = promise->get_future();
    store_->pulls().Pull(pull.header, pull.payload(),
                         [promise](Pulled values) { promise->set_value(std::move(values)); });
    return future;
  }
  static RequestBuilder<v1::PullRequest> OfRow() {
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.AddRows(TableIdOf("rows"), kDim, {{kKey, 0.0f}}, false);
    return pull;
  }
  static RequestBuilder<v1::PullRequest> OfBlocks() {
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.AddDense(TableIdOf("dense"), {8, 4}, std::nullopt);
    return pull;
  }
  static bool Answered(const std::future<Pulled>& pull) {
    return pull.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  static constexpr Key kKey = 7;
  StalledSink sink_;
  StalledDisk disk_;
};

TEST_F(CommittedReadsTest, ByDefaultWhatIsAppliedIsShownBeforeItIsAcknowledged) {
  ASSERT_NO_FATAL_FAILURE(MakeStore(/*committed_reads=*/false));
  StartPush(1);
  Pulled rows = StartPull(OfRow()).get();
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(Floats(Concatenate(rows->payload))[0], 1.0f);
  EXPECT_TRUE(StartPull(OfBlocks()).get().ok());
}

TEST_F(CommittedReadsTest, ADurablePullWaitsForWhatItReadAndForNothingElse) {
  ASSERT_NO_FATAL_FAILURE(MakeStore(/*committed_reads=*/true));
  EXPECT_TRUE(StartPull(OfRow()).get().ok()) << "nothing was pushed: nothing to wait for";
  Sequence sequence = 1;
  StartPush(sequence);
  for (const auto& pull : {OfRow(), OfBlocks()}) {
    sink_.End(absl::OkStatus());
    EXPECT_TRUE(StartPull(pull).get().ok()) << "the follower has all";
    StartPush(++sequence);
    std::future<Pulled> waits = StartPull(pull);
    EXPECT_FALSE(Answered(waits)) << "what it read is held by this ps alone";
    sink_.End(absl::OkStatus());
    Pulled values = waits.get();
    ASSERT_TRUE(values.ok()) << values.status();
    EXPECT_GE(Floats(Concatenate(values->payload))[0], 2.0f);
  }
}

TEST_F(CommittedReadsTest, ADurablePullWaitsForTheDisk) {
  ASSERT_NO_FATAL_FAILURE(MakeStoreWithLog());
  EXPECT_TRUE(StartPull(OfRow()).get().ok());
  disk_.Stall(true);
  StartPush(1);
  std::vector<std::future<Pulled>> pulls;
  RequestBuilder<v1::PullRequest> one_cut = OfBlocks();
  one_cut.header.set_one_cut(true);
  for (const auto& pull : {OfRow(), OfBlocks(), one_cut}) pulls.push_back(StartPull(pull));
  for (const auto& pull : pulls) EXPECT_FALSE(Answered(pull));
  disk_.Stall(false);
  for (auto& pull : pulls) {
    Pulled values = pull.get();
    ASSERT_TRUE(values.ok()) << values.status();
    EXPECT_EQ(Floats(Concatenate(values->payload))[0], 1.0f);
  }
}

TEST_F(CommittedReadsTest, ADurablePullIsRefusedIfWhatItReadCannotBeMadeDurable) {
  ASSERT_NO_FATAL_FAILURE(MakeStore(/*committed_reads=*/true));
  StartPush(1);
  std::future<Pulled> pull = StartPull(OfBlocks());
  sink_.End(absl::UnavailableError("no follower answers"));
  EXPECT_TRUE(absl::IsUnavailable(pull.get().status()));
}

TEST_F(CommittedReadsTest, DeltasWaitToo) {
  ASSERT_NO_FATAL_FAILURE(MakeStore(/*committed_reads=*/true));
  v1::SubscribeRequest request;
  request.add_tables()->set_table(TableIdOf("rows"));
  request.mutable_tables(0)->set_rows(true);
  const auto subscription = store_->deltas().MakeSubscription(request);
  ASSERT_TRUE(subscription.ok()) << subscription.status();
  const ShardId shard = ShardOfKey(kKey, kShards);
  const auto collect = [&] {
    auto promise = std::make_shared<std::promise<absl::StatusOr<Version>>>();
    store_->deltas().Collect(shard, *subscription, std::nullopt, [promise](const absl::StatusOr<ShardChange>& change) {
      promise->set_value(change.ok() ? absl::StatusOr<Version>(change->version) : change.status());
    });
    return promise->get_future();
  };
  StartPush(1);
  std::future<absl::StatusOr<Version>> delta = collect();
  EXPECT_EQ(delta.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  sink_.End(absl::OkStatus());
  const absl::StatusOr<Version> version = delta.get();
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(*version, store_->shards().VersionOf(shard));

  StartPush(2);
  delta = collect();
  sink_.End(absl::UnavailableError("no follower answers"));
  EXPECT_TRUE(absl::IsUnavailable(delta.get().status()));
}

TEST_F(CommittedReadsTest, SnapshotsForSubscribersOfDenseTablesWaitToo) {
  ASSERT_NO_FATAL_FAILURE(MakeStore(/*committed_reads=*/true));
  v1::SubscribeRequest request;
  request.add_tables()->set_table(TableIdOf("dense"));
  const auto subscription = store_->deltas().MakeSubscription(request);
  ASSERT_TRUE(subscription.ok()) << subscription.status();
  StartPush(1);
  auto promise = std::make_shared<std::promise<bool>>();
  std::future<bool> taken = promise->get_future();
  store_->deltas().Snapshot(
      ShardOfBlock(TableIdOf("dense"), 0, kShards), *subscription,
      [promise](const absl::StatusOr<DeltaPath::SharedSnapshot>& snapshot) { promise->set_value(snapshot.ok()); });
  EXPECT_EQ(taken.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  sink_.End(absl::OkStatus());
  EXPECT_TRUE(taken.get());
}

}  // namespace
}  // namespace lodestone::server
