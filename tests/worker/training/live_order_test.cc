#include "worker/training/live_order.h"

#include <vector>

#include "common/base/time_source.h"
#include "gtest/gtest.h"
#include "tests/worker/client/fake_client.h"

namespace lodestone::worker {
namespace {

v1::TableSpec Rows(const std::string& name) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.mutable_embedding()->set_dim(1);
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_initializer()->mutable_zeros();
  return spec;
}

v1::Consistency Bounded(uint32_t staleness) {
  v1::Consistency consistency;
  consistency.mutable_bounded()->set_staleness(staleness);
  return consistency;
}

class LiveOrderTest : public ::testing::Test {
 protected:
  // The order of tables "a" and "b", of which `a` is so.
  LiveOrder Begin(const v1::Consistency& a) {
    std::vector<v1::TableSpec> tables = {Rows("a"), Rows("b")};
    if (a.kind_case() != v1::Consistency::KIND_NOT_SET) *tables[0].mutable_consistency() = a;
    EXPECT_TRUE(client_.EnsureTables(tables).ok());
    return LiveOrder(&client_, tables, {.time = &time_});
  }

  SteadyTime time_;
  FakeClient client_;
};

TEST_F(LiveOrderTest, IsThatOfTheTablesUntilSettingsChange) {
  LiveOrder order = Begin({});
  ASSERT_TRUE(order.Start().ok());
  ASSERT_TRUE(order.Follow().ok());
  EXPECT_EQ(order.InWords(), "");
  EXPECT_EQ(order.gate(), nullptr);
  EXPECT_FALSE(order.tells_versions());
}

TEST_F(LiveOrderTest, StalenessIsBoundedAndTheBoundIsLiftedAndSetAgain) {
  LiveOrder order = Begin({});
  ASSERT_TRUE(order.Start().ok());
  client_.ChangeConsistency("b", Bounded(3));
  ASSERT_TRUE(order.Follow().ok());
  EXPECT_EQ(order.InWords(), "bounded, staleness 3");
  const std::shared_ptr<ClockGate> gate = order.gate();
  ASSERT_NE(gate, nullptr);
  EXPECT_FALSE(gate->WillDo(1, 6));
  client_.ChangeConsistency("a", Bounded(1));
  ASSERT_TRUE(order.Follow().ok());
  EXPECT_EQ(order.InWords(), "bounded, staleness 1") << "the least of all tables";
  for (const char* const table : {"a", "b"}) client_.ChangeConsistency(table, {});
  ASSERT_TRUE(order.Follow().ok());
  EXPECT_EQ(order.InWords(), "async");
  EXPECT_TRUE(gate->WillDo(1, 1'000'000));
  EXPECT_EQ(order.gate(), gate) << "others may have a bound still, and want its clock";
  client_.ChangeConsistency("a", Bounded(0));
  ASSERT_TRUE(order.Follow().ok());
  EXPECT_FALSE(gate->WillDo(1, 3));
  gate->Stop();
}

TEST_F(LiveOrderTest, ItTellsVersionsWhereATableDividesItsRateByTheDelay) {
  LiveOrder order = Begin({});
  v1::Consistency by_delay;
  by_delay.mutable_async()->set_rate(v1::Consistency::Async::BY_DELAY);
  client_.ChangeConsistency("b", by_delay);
  ASSERT_TRUE(order.Follow().ok());
  EXPECT_TRUE(order.tells_versions());
  EXPECT_EQ(order.gate(), nullptr);
  client_.ChangeConsistency("b", {});
  ASSERT_TRUE(order.Follow().ok());
  EXPECT_FALSE(order.tells_versions());
}

TEST_F(LiveOrderTest, AnOrderOfStepsStaysWhatItIs) {
  v1::Consistency tokens;
  tokens.mutable_tokens()->set_batch(2);
  LiveOrder order = Begin(tokens);
  ASSERT_TRUE(order.Start().ok());
  client_.ChangeConsistency("a", Bounded(1));
  ASSERT_TRUE(order.Follow().ok());
  EXPECT_TRUE(order.HasSteps());
  EXPECT_EQ(order.gate(), nullptr);
}

}  // namespace
}  // namespace lodestone::worker
