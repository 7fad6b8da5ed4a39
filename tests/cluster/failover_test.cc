// Real ps that die or freeze while followers hold their shards: every acknowledged push is there exactly once.
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cluster/replicas_fixture.h"

namespace lodestone {
namespace {

constexpr Key kKeys = 200;

// Three ps, and one client that pushes ones.
class FailoverTest : public ReplicasFixture {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StartCluster(/*servers=*/3, {"coordinator.lease_ms=2000"}));
    ASSERT_NO_FATAL_FAILURE(AwaitAllInSync());
    ASSERT_NO_FATAL_FAILURE(Connect({DenseOnes(), RowOnes()}));
    for (Key key = 0; key < kKeys; ++key) keys_.push_back(key);
    pusher_ = std::thread([this] { PushOnes(); });
  }
  void TearDown() override {
    if (!pusher_.joinable()) return;
    done_ = true;
    Await([this] { return pusher_ended_.load(); });
    pusher_.join();
    client_.reset();
  }

  void PushOnes() {
    const std::vector<float> ones(kElements, 1.0f);
    for (Clock clock = 1; !done_; ++clock) {
      const worker::DenseGradient dense{&tables_[0], ones.data(), false};
      const worker::RowGradients rows{&tables_[1], keys_, ones.data()};
      const absl::Status sent =
          client_->Push(clock, {&dense, 1}, {&rows, 1}, {}, [this](const worker::Client::PushResult& result) {
            EXPECT_TRUE(result.status.ok()) << result.status;
            ++acknowledged_;
          });
      EXPECT_TRUE(sent.ok()) << sent;
      if (!sent.ok()) break;
      ++pushed_;
    }
    const absl::Status flushed = client_->Flush();
    EXPECT_TRUE(flushed.ok()) << flushed;
    pusher_ended_ = true;
  }
  bool AwaitPushes(uint64_t count) {
    const uint64_t until = acknowledged_ + count;
    return Await([&] { return acknowledged_ >= until; });
  }
  // Ends the pushing, and compares what all hold with what was pushed.
  void ExpectExact() {
    done_ = true;
    ASSERT_TRUE(Await([this] { return pusher_ended_.load(); }));
    EXPECT_EQ(acknowledged_, pushed_);
    std::vector<float> dense(kElements), rows(kKeys);
    std::atomic<bool> pulled{false};
    absl::Status status;
    client_->Pull({{&tables_[0], dense.data()}}, {{&tables_[1], keys_, rows.data()}},
                  [&](absl::Status outcome, const worker::ShardVersions&) {
                    status = std::move(outcome);
                    pulled = true;
                  });
    ASSERT_TRUE(Await([&] { return pulled.load(); }));
    ASSERT_TRUE(status.ok()) << status;
    const auto sum = static_cast<float>(pushed_);  // Far below 2^24: exact.
    EXPECT_EQ(dense, std::vector<float>(kElements, sum));
    EXPECT_EQ(rows, std::vector<float>(kKeys, sum));
  }

  std::vector<Key> keys_;
  std::atomic<bool> done_{false};
  std::atomic<bool> pusher_ended_{false};
  std::atomic<uint64_t> pushed_{0};
  std::atomic<uint64_t> acknowledged_{0};
  std::thread pusher_;
};

TEST_F(FailoverTest, APsThatDiesForGoodIsReplacedAndNothingIsLostOrDoubled) {
  ASSERT_TRUE(AwaitPushes(100));
  cluster_->Kill(1);
  ASSERT_TRUE(AwaitPushes(200)) << "the run does not go on without it";
  for (const uint32_t server : {0u, 2u}) EXPECT_GT(StatusOf(server).server().shards_owned(), 0u);
  EXPECT_EQ(StatusOf(0).server().shards_owned() + StatusOf(2).server().shards_owned(), kShards);
  // With nothing of what it was.
  std::filesystem::remove_all(cluster_->DataFolder(1));
  ASSERT_TRUE(cluster_->Start(1).ok());
  ASSERT_TRUE(Await([this] { return cluster_->Listens(1) && AllInSync(); }));
  ASSERT_TRUE(AwaitPushes(100));
  ExpectReplicasEqual();
  ExpectExact();
  ExpectReplicasEqual();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

TEST_F(FailoverTest, OneAfterTheOtherMayDie) {
  for (const uint32_t server : {1u, 2u, 1u}) {
    ASSERT_TRUE(AwaitPushes(50));
    cluster_->Kill(server);
    ASSERT_TRUE(AwaitPushes(50));
    ASSERT_TRUE(cluster_->Start(server).ok());
    ASSERT_TRUE(Await([&] { return cluster_->Listens(server) && AllInSync(); }));
  }
  ExpectExact();
  ExpectReplicasEqual();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

TEST_F(FailoverTest, IfTwoDieTogetherTheOneThatComesBackAloneServesWhatBothHeld) {
  for (const uint32_t back : {2u, 1u, 2u}) {
    const uint32_t gone = 3 - back;
    ASSERT_TRUE(AwaitPushes(50));
    cluster_->Kill(gone);
    cluster_->Kill(back);
    ASSERT_TRUE(cluster_->Start(back).ok());
    ASSERT_TRUE(AwaitPushes(50)) << "ps " << back << " is back alone";
    ASSERT_TRUE(cluster_->Start(gone).ok());
    ASSERT_TRUE(Await([&] { return cluster_->Listens(gone) && AllInSync(); }));
  }
  ExpectExact();
  ExpectReplicasEqual();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

TEST_F(FailoverTest, APsThatWasFrozenForLongerThanItsLeaseAcknowledgesNothingAfterIt) {
  ASSERT_TRUE(AwaitPushes(100));
  cluster_->Signal(1, SIGSTOP);
  ASSERT_TRUE(AwaitPushes(200));
  EXPECT_TRUE(client_->shard_map()->ShardsOf(1).empty());
  cluster_->Signal(1, SIGCONT);
  ASSERT_TRUE(AwaitPushes(100));
  // Until it has heard of it, it takes what it owned for in sync.
  ASSERT_TRUE(Await([this] { return cluster_->StatusOf(1, 1000).ok() && StatusOf(1).server().shards_owned() == 0; }));
  ASSERT_TRUE(Await([this] { return AllInSync(); })) << "it follows again";
  EXPECT_EQ(StatusOf(1).server().shards_owned(), 0u);
  ExpectExact();
  ExpectReplicasEqual();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

}  // namespace
}  // namespace lodestone
