// Tables whose steps wait in their shards: a follower has what its owner has of a step, and goes on with it.
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "server/shard/shard.h"
#include "tests/server/replication/replica_fixture.h"

namespace lodestone::server {
namespace {

class StepsReplicationTest : public ReplicaFixture {
 protected:
  static v1::TableSpec Spec(const std::string& name, uint32_t quorum, uint32_t grace_ms) {
    v1::TableSpec spec = AddingRows(name, kDim);
    spec.mutable_consistency()->mutable_sync()->set_batches(3);
    spec.mutable_consistency()->mutable_sync()->set_quorum(quorum);
    spec.mutable_consistency()->mutable_sync()->set_grace_ms(grace_ms);
    return spec;
  }
  void EnsureSteps(Node* node) { Ensure(node, {Spec("all", 0, 0), Spec("grace", 2, 50)}); }

  // A row of each shard and table gets `value`.
  Pushed Bring(Node* node, Sequence sequence, uint64_t step, uint32_t batch, float value) {
    RequestBuilder<v1::PushRequest> push(kShards);
    push.header.set_worker_incarnation(kWorker);
    push.header.set_sequence(sequence);
    push.header.mutable_contribution()->set_step(step);
    push.header.mutable_contribution()->set_batch(batch);
    push.header.mutable_contribution()->set_samples(1);
    std::vector<std::pair<Key, float>> rows;
    for (Key key = 0; key < 40; ++key) rows.emplace_back(key, value);
    for (const char* const table : {"all", "grace"}) push.AddRows(TableIdOf(table), kDim, rows, true);
    return Send(node, push).get();
  }
  void BringWell(Node* node, Sequence sequence, uint64_t step, uint32_t batch, float value) {
    const Pushed pushed = Bring(node, sequence, step, batch, value);
    ASSERT_TRUE(pushed.ok()) << pushed.status();
  }
  static std::future<absl::StatusOr<PullPath::Values>> PullAt(Node* node, const std::string& table,
                                                              uint64_t steps_min) {
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.header.set_steps_min(steps_min);
    std::vector<std::pair<Key, float>> rows;
    for (Key key = 0; key < 40; ++key) rows.emplace_back(key, 0.0f);
    pull.AddRows(TableIdOf(table), kDim, rows, false);
    auto result = std::make_shared<std::promise<absl::StatusOr<PullPath::Values>>>();
    node->store->pulls().Pull(pull.header, pull.payload(), [result](absl::StatusOr<PullPath::Values> values) {
      result->set_value(std::move(values));
    });
    return result->get_future();
  }
  static void ExpectAll(Node* node, const std::string& table, uint64_t steps_min, float value) {
    const auto values = PullAt(node, table, steps_min).get();
    ASSERT_TRUE(values.ok()) << values.status();
    std::string bytes;
    for (const grpc::Slice& slice : values->payload) {
      bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    std::vector<float> floats(bytes.size() / sizeof(float));
    std::memcpy(floats.data(), bytes.data(), bytes.size());
    EXPECT_THAT(floats, testing::Each(value));
  }
};

TEST_F(StepsReplicationTest, AFollowerThatComesInTheMiddleOfAStepGetsItAndGoesOnAsTheOwner) {
  ASSERT_NO_FATAL_FAILURE(Start());
  EnsureSteps(&a());
  ASSERT_NO_FATAL_FAILURE(BringWell(&a(), 1, 0, 2, 3));
  b().Begin();  // By a state.
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync() && InSyncShards(a()) == kShards; }));
  ASSERT_NO_FATAL_FAILURE(ExpectSame(&a(), &b()));
  ASSERT_NO_FATAL_FAILURE(BringWell(&a(), 2, 0, 0, 6));
  ASSERT_NO_FATAL_FAILURE(ExpectSame(&a(), &b()));
  a().time.AdvanceMs(50);
  a().store->CheckTime();  // The quorum's time is over.
  ExpectAll(&a(), "grace", 1, 4.5f);
  ASSERT_NO_FATAL_FAILURE(ExpectSame(&a(), &b()));
  ASSERT_NO_FATAL_FAILURE(BringWell(&a(), 3, 0, 1, 9));
  ExpectAll(&a(), "all", 1, 6.0f);
  ASSERT_NO_FATAL_FAILURE(ExpectSame(&a(), &b()));
}

TEST_F(StepsReplicationTest, AFollowerThatTakesOverInTheMiddleOfAStepEndsIt) {
  ASSERT_NO_FATAL_FAILURE(Start());
  EnsureSteps(&a());
  b().Begin();
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync() && InSyncShards(a()) == kShards; }));
  ASSERT_NO_FATAL_FAILURE(BringWell(&a(), 1, 0, 2, 3));
  ASSERT_NO_FATAL_FAILURE(BringWell(&a(), 2, 0, 0, 6));
  auto waiting = PullAt(&a(), "all", 1);
  const ShardMap map = coordinator_.Promote(1, 0);
  b().replication->SetMap(map);
  ASSERT_TRUE(coordinator_.Await([this] { return b().store->shards().owned().size() == kShards; }));
  a().replication->SetMap(map);
  EXPECT_TRUE(absl::IsAborted(waiting.get().status()));
  ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync(); }));
  // The worker does not know whether the owner had it: it has, and the batch is known by its number, too.
  const Pushed again = Bring(&b(), 2, 0, 0, 6);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->shards(0).duplicate());
  const Pushed by_other = Bring(&b(), 3, 0, 2, 3);
  ASSERT_TRUE(by_other.ok()) << by_other.status();
  EXPECT_TRUE(by_other->shards(0).duplicate());
  // No timer was set here: the tick finds that the quorum's time is over.
  b().time.AdvanceMs(50);
  b().store->Tick();
  ExpectAll(&b(), "grace", 1, 4.5f);
  ASSERT_NO_FATAL_FAILURE(BringWell(&b(), 4, 0, 1, 9));
  ExpectAll(&b(), "all", 1, 6.0f);
  ASSERT_NO_FATAL_FAILURE(ExpectSame(&b(), &a()));
}

}  // namespace
}  // namespace lodestone::server
