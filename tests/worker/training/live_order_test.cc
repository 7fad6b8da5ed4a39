#include "worker/training/live_order.h"

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
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
  void Begin(const v1::Consistency& a) {
    std::vector<v1::TableSpec> tables = {Rows("a"), Rows("b")};
    if (a.kind_case() != v1::Consistency::KIND_NOT_SET) *tables[0].mutable_consistency() = a;
    EXPECT_TRUE(client_.EnsureTables(tables).ok());
    order_ = std::make_unique<LiveOrder>(&client_, tables, /*steps=*/0, ClockGate::Options{.time = &time_});
    ASSERT_TRUE(order_->Start().ok());
  }
  std::string InWords() const { return order_->Observed().kind(); }
  // Steps begin until it is so.
  void AwaitWords(const std::string& words) {
    while (InWords() != words) {
      ASSERT_TRUE(order_->BeginStep(++step_).ok());
      std::this_thread::yield();
    }
  }

  absl::Notification starts_, goes_on_;  // Of a test's gate.
  SteadyTime time_;
  FakeClient client_;
  std::unique_ptr<LiveOrder> order_;
  uint64_t step_ = 0;
};

TEST_F(LiveOrderTest, IsThatOfTheTablesUntilSettingsChange) {
  Begin({});
  ASSERT_TRUE(order_->BeginStep(1).ok());
  EXPECT_EQ(InWords(), "");
  EXPECT_EQ(order_->gate(), nullptr);
  EXPECT_FALSE(order_->tells_versions());
  const auto clock = order_->Await();
  ASSERT_TRUE(clock.ok());
  EXPECT_EQ(*clock, std::optional<Clock>(0)) << "nothing waits";
}

TEST_F(LiveOrderTest, StalenessIsBoundedAndTheBoundIsLiftedAndSetAgain) {
  Begin({});
  ASSERT_TRUE(order_->BeginStep(step_ = 40).ok());
  client_.ChangeConsistency("b", Bounded(4));  // The default.
  AwaitWords("bounded, staleness 4");
  const std::shared_ptr<ClockGate> gate = order_->gate();
  ASSERT_NE(gate, nullptr);
  EXPECT_GE(gate->clock(), 40u) << "others know of the steps before";
  EXPECT_FALSE(gate->WillDo(1, 7));
  client_.ChangeConsistency("a", Bounded(1));
  AwaitWords("bounded, staleness 1");  // The least of all tables.
  for (const char* const table : {"a", "b"}) client_.ChangeConsistency(table, {});
  AwaitWords("async");
  EXPECT_TRUE(gate->WillDo(1, 1'000'000));
  EXPECT_EQ(order_->gate(), gate) << "others may have a bound still, and want its clock";
  client_.ChangeConsistency("a", Bounded(0));
  AwaitWords("bounded, staleness 0");
  EXPECT_NE(order_->gate(), gate) << "clocks have drifted apart meanwhile";
  EXPECT_FALSE(order_->gate()->WillDo(1, 3));
}

// Two steps of a worker once had the same clock.
TEST_F(LiveOrderTest, AClockIsGivenOnceThoughStepsBeginWhileABoundIsSetAgain) {
  Begin(Bounded(4));
  for (const char* const table : {"a", "b"}) client_.ChangeConsistency(table, {});
  while (InWords() != "async") ASSERT_TRUE(order_->BeginStep(0).ok());
  const std::shared_ptr<ClockGate> former = order_->gate();
  client_.OnAskClock([this](const v1::AwaitClockRequest& request) {
    if (!request.has_own_clock()) {  // A gate is being started.
      starts_.Notify();
      goes_on_.WaitForNotification();
    }
    v1::AwaitClockResponse response;
    response.set_lowest(std::numeric_limits<Clock>::max());
    return response;
  });
  client_.ChangeConsistency("b", Bounded(4));
  EXPECT_TRUE(order_->BeginStep(0).ok());
  starts_.WaitForNotification();
  std::vector<Clock> clocks;
  for (int step = 0; step < 3; ++step) clocks.push_back(order_->Await().value().value());
  goes_on_.Notify();
  while (order_->gate() == former) std::this_thread::yield();
  clocks.push_back(order_->Await().value().value());
  EXPECT_EQ(clocks, (std::vector<Clock>{1, 2, 3, 4}));
}

// Another worker stands still at clock 0.
TEST_F(LiveOrderTest, AWorkerThatWaitsHearsThatTheBoundIsLifted) {
  client_.OnAskClock([](const v1::AwaitClockRequest&) {
    v1::AwaitClockResponse response;
    response.set_lowest(0);
    return response;
  });
  Begin(Bounded(1));
  for (Clock clock = 1; clock <= 2; ++clock) {
    const auto begun = order_->Await();
    ASSERT_TRUE(begun.ok());
    EXPECT_EQ(*begun, std::optional<Clock>(clock));
    order_->gate()->Acknowledged(clock);
  }
  std::thread waiter([this] {
    const auto begun = order_->Await();
    ASSERT_TRUE(begun.ok());
    EXPECT_EQ(*begun, std::optional<Clock>(3));
  });
  for (const char* const table : {"a", "b"}) client_.ChangeConsistency(table, {});
  waiter.join();  // Without a step that begins.
  EXPECT_EQ(InWords(), "async");
}

TEST_F(LiveOrderTest, AWorkerThatWaitsForSamplesHearsOfABoundAndItsClockFollows) {
  Begin({});
  order_->SetIdle(true);
  client_.ChangeConsistency("a", Bounded(2));
  while (order_->gate() == nullptr) std::this_thread::yield();
  order_->SetIdle(false);
}

TEST_F(LiveOrderTest, ItTellsVersionsWhereATableDividesItsRateByTheDelay) {
  Begin({});
  v1::Consistency by_delay;
  by_delay.mutable_async()->set_rate(v1::Consistency::Async::BY_DELAY);
  client_.ChangeConsistency("b", by_delay);
  while (!order_->tells_versions()) ASSERT_TRUE(order_->BeginStep(++step_).ok());
  EXPECT_EQ(order_->gate(), nullptr);
  client_.ChangeConsistency("b", {});
  while (order_->tells_versions()) ASSERT_TRUE(order_->BeginStep(++step_).ok());
}

TEST_F(LiveOrderTest, AnOrderOfStepsStaysWhatItIs) {
  v1::Consistency tokens;
  tokens.mutable_tokens()->set_batch(2);
  Begin(tokens);
  client_.ChangeConsistency("a", Bounded(1));
  ASSERT_TRUE(order_->BeginStep(1).ok());
  EXPECT_TRUE(order_->HasSteps());
  EXPECT_EQ(order_->gate(), nullptr);
}

}  // namespace
}  // namespace lodestone::worker
