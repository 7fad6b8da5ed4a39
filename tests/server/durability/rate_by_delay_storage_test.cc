// Tables whose learning rate is divided by the delay of gradients: what a replay makes of the log is what the pushes
// made.
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/durability/storage_fixture.h"

namespace lodestone::server {
namespace {

class RateByDelayStorageTest : public StorageFixture {
 protected:
  static v1::TableSpec WithRateByDelay(v1::TableSpec spec) {
    spec.mutable_optimizer()->mutable_adagrad();
    spec.mutable_consistency()->mutable_async()->set_rate(v1::Consistency::Async::BY_DELAY);
    return spec;
  }

  static void Ensure(const Ps& ps) {
    v1::EnsureTablesRequest request;
    request.set_worker_incarnation(kWorker);
    *request.add_tables() = WithRateByDelay(AddingDense("dense", kElements, kBlockElements));
    *request.add_tables() = WithRateByDelay(AddingRows("rows", 2));
    const auto response = ps.store->EnsureTables(request);
    ASSERT_TRUE(response.ok()) << response.status();
  }

  // Rows of all shards in one part, and all blocks, of values that were read some updates ago.
  RequestBuilder<v1::PushRequest> PushOf(Sequence sequence) {
    RequestBuilder<v1::PushRequest> push(kShards);
    push.header.set_worker_incarnation(kWorker);
    push.header.set_sequence(sequence);
    const auto read = [&] { return sequence > 8 ? sequence - random_() % 8 : 0; };
    push.AddDense(TableIdOf("dense"), {kElements, kBlockElements}, static_cast<float>(random_() % 100));
    for (v1::Part& part : *push.header.mutable_parts()) part.add_read_versions(read());
    v1::Part* const part = push.header.add_parts();
    part->set_table(TableIdOf("rows"));
    std::set<std::pair<ShardId, Key>> rows;
    for (int i = 0; i < 20; ++i) {
      const Key key = random_() % 200;
      rows.emplace(ShardOfKey(key, kShards), key);
    }
    for (const auto& [shard, key] : rows) {
      push.Append(key);
      if (part->shards_size() == 0 || part->shards(part->shards_size() - 1) != shard) {
        part->add_shards(shard);
        part->add_row_counts(0);
        part->add_read_versions(read());
      }
      part->set_row_counts(part->row_counts_size() - 1, part->row_counts(part->row_counts_size() - 1) + 1);
    }
    push.AppendRepeated(static_cast<float>(random_() % 100), rows.size() * 2);
    return push;
  }

  std::mt19937 random_{1};
};

TEST_F(RateByDelayStorageTest, APsThatDiesComesBackWithTheSameValues) {
  const Ps ps = StartWell(config_);
  Ensure(ps);
  for (Sequence sequence = 1; sequence <= 40; ++sequence) {
    const auto pushed = Push(ps, PushOf(sequence));
    ASSERT_TRUE(pushed.ok()) << pushed.status();
  }
  const Ps again = StartWell(Killed());
  EXPECT_GT(StatusOf(again).replayed_records(), 0u);
  EXPECT_EQ(Content(again), Content(ps));
}

}  // namespace
}  // namespace lodestone::server
