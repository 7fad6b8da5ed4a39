// An observer: reads as a worker does, and is none.
#include <future>
#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/worker/client/client_fixture.h"
#include "worker/client/cluster_reader.h"

namespace lodestone::worker {
namespace {

constexpr uint64_t kObservedElements = 20'000;
constexpr uint32_t kObservedDim = 3;

class ObserverTest : public ClientFixture {
 protected:
  ObserverTest() : ClientFixture(/*servers=*/2, /*shards=*/8, kObservedElements, kObservedDim) {}

  void Observe() {
    v1::Config config = cluster_.config();
    config.mutable_cluster()->clear_shards();  // It learns of them.
    auto observer = ClusterReader::Observe(config);
    ASSERT_TRUE(observer.ok()) << observer.status();
    observer_ = *std::move(observer);
    auto tables = observer_->EnsureTables({DenseSpec("d", kObservedElements), RowsSpec("r", kObservedDim)});
    ASSERT_TRUE(tables.ok()) << tables.status();
    observed_ = *std::move(tables);
  }
  void PushOnes() {
    const std::vector<float> ones(kObservedElements, 1);
    const std::vector<Key> keys = {7, 8};
    const std::vector<float> rows = {1, 2, 3, 4, 5, 6};
    const DenseGradient dense{&tables_[0], ones.data()};
    const RowGradients embedding{&tables_[1], keys, rows.data()};
    std::promise<absl::Status> pushed;
    ASSERT_TRUE(
        client_->Push(1, {&dense, 1}, {&embedding, 1}, {}, [&](const auto& result) { pushed.set_value(result.status); })
            .ok());
    const absl::Status status = pushed.get_future().get();
    ASSERT_TRUE(status.ok()) << status;
  }
  void ExpectSeen(float dense, const std::vector<float>& row) {
    std::vector<float> values(kObservedElements, -1), rows(kObservedDim, -1);
    const std::vector<Key> keys = {8};
    const auto versions = observer_->PullNow({{&observed_[0], values.data()}}, {{&observed_[1], keys, rows.data()}});
    ASSERT_TRUE(versions.ok()) << versions.status();
    EXPECT_EQ(values, std::vector<float>(kObservedElements, dense));
    EXPECT_EQ(rows, row);
  }

  std::vector<TableHandle> observed_;
  std::unique_ptr<ClusterReader> observer_;
};

TEST_F(ObserverTest, ReadsWhatAWorkerPushesAndTakesNoPlace) {
  Connect();
  Observe();
  PushOnes();
  ExpectSeen(1, {4, 5, 6});
  EXPECT_EQ(cluster_.calls(0, "Join"), 1u);
  EXPECT_EQ(cluster_.pulls().back().second.worker_incarnation(), 0u);
  EXPECT_TRUE(observer_->Health().ok());
  observer_.reset();
}

TEST_F(ObserverTest, SubscribesAsAnObserver) {
  Connect();
  Observe();
  std::latch shards(8);
  ASSERT_TRUE(observer_
                  ->Subscribe({&observed_[0]}, {.on_block = [](const BlockUpdate&) {},
                                                .on_shard = [&](ShardId, Version) { shards.count_down(); }})
                  .ok());
  shards.wait();  // The anchors.
  EXPECT_EQ(cluster_.subscribed(0).worker_incarnation(), 0u);
  observer_.reset();  // Before what it writes to.
}

TEST_F(ObserverTest, FollowsAPsToAnotherAddress) {
  Connect();
  Observe();
  PushOnes();
  ExpectSeen(1, {4, 5, 6});
  cluster_.Move(1);
  ExpectSeen(1, {4, 5, 6});
  EXPECT_EQ(observer_->shard_map()->epoch(), 2u);
  observer_.reset();
}

TEST(Observer, WaitsForTheCoordinatorAndForAllOwners) {
  FakeCluster cluster(2, 4);
  cluster.SetFaults([](uint32_t, const std::string& method, uint64_t call) {
    return method == "Route" && call <= 3 ? Fault::kRefuse : Fault::kNone;
  });
  const auto observer = ClusterReader::Observe(cluster.config());
  ASSERT_TRUE(observer.ok()) << observer.status();
  EXPECT_EQ((*observer)->shard_map()->servers(), 2u);

  cluster.SetFaults(nullptr);
  cluster.SetAway(1, true);
  v1::Config config = cluster.config();
  config.mutable_coordinator()->set_join_timeout_ms(200);
  const absl::Status away = ClusterReader::Observe(config).status();
  EXPECT_TRUE(absl::IsUnavailable(away)) << away;
  EXPECT_TRUE(Contains(away, "ps 1 is away; it was at 127.0.0.1:")) << away;
  cluster.SetFaults([](uint32_t, const std::string&, uint64_t) { return Fault::kRefuse; });
  const absl::Status refused = ClusterReader::Observe(config).status();
  EXPECT_TRUE(Contains(refused, "the coordinator at 127.0.0.1:")) << refused;
}

}  // namespace
}  // namespace lodestone::worker
