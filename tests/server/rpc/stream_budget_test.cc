#include "server/rpc/stream_budget.h"

#include <vector>

#include "common/base/limits.h"
#include "common/base/time_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class StreamBudgetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    budget_.Start([this](StreamBudget::Turn turn, size_t bytes) {
      const StreamBudget::Run run = budget_.OnTurn(turn, bytes);
      Settle();
      if (run != nullptr) run(absl::OkStatus());
    });
    memory_.Take(100);  // By others.
    flow_.Expect(1);    // Another answer.
    Settle();
  }
  // As after each step of the stream.
  void Settle() { StreamBudget::Settle(budget_.Count(), &memory_); }
  bool Await(size_t bytes, int id) {
    const bool waits = budget_.Await(bytes, [this, id](const absl::Status& status) {
      EXPECT_TRUE(status.ok());
      had_.push_back(id);
    });
    Settle();
    return waits;
  }

  SteadyTime time_;
  CallMemory memory_{[] { return 100; }, &time_};
  ExchangeFlow flow_;
  StreamBudget budget_{&memory_, &flow_};
  std::vector<int> had_;
};

TEST_F(StreamBudgetTest, CallsHaveTheirTurnsInTheirOrderFromOnePlace) {
  EXPECT_FALSE(budget_.Admit(30));
  EXPECT_TRUE(Await(30, 1));
  EXPECT_TRUE(Await(20, 2));
  EXPECT_EQ(memory_.waiting(), 1u);
  memory_.Give(30);
  EXPECT_THAT(had_, IsEmpty());
  memory_.Give(1);
  EXPECT_THAT(had_, ElementsAre(1));
  EXPECT_FALSE(budget_.Admit(1)) << "one waits before it";
  memory_.Give(20);
  EXPECT_THAT(had_, ElementsAre(1, 2));
  EXPECT_EQ(memory_.bytes(), 49u + 1 + 30 + 20);
}

TEST_F(StreamBudgetTest, TheFirstIsRunOnceTheStreamHasNoOtherAnswerAndItsPlaceIsTheNexts) {
  EXPECT_TRUE(Await(30, 1));
  EXPECT_EQ(budget_.TakeAlone(), nullptr);
  flow_.Expect(-1);
  const StreamBudget::Run alone = budget_.TakeAlone();
  ASSERT_NE(alone, nullptr);
  alone(absl::OkStatus());
  EXPECT_TRUE(Await(20, 2));
  EXPECT_EQ(memory_.waiting(), 1u);
  memory_.Give(60);
  EXPECT_THAT(had_, ElementsAre(1, 2));
  EXPECT_EQ(memory_.bytes(), 40u + 30 + 20) << "what was asked for the first one more is given back";
  memory_.Take(10);
  EXPECT_TRUE(Await(10, 3));
  flow_.Expect(-50);
  budget_.TakeAlone()(absl::OkStatus());
  EXPECT_THAT(had_, ElementsAre(1, 2, 3));
  EXPECT_TRUE(Await(50, 4));
  EXPECT_THAT(had_, ElementsAre(1, 2, 3)) << "the place is that of a shorter one";
  EXPECT_EQ(memory_.waiting(), 1u);
  memory_.Give(50);
  EXPECT_THAT(had_, ElementsAre(1, 2, 3, 4));
}

TEST_F(StreamBudgetTest, CallsThatWaitAreHandedBackAndNoneWaitsAnyMore) {
  EXPECT_TRUE(Await(30, 1));
  EXPECT_TRUE(Await(20, 2));
  EXPECT_EQ(budget_.Close().size(), 2u);
  EXPECT_FALSE(Await(20, 3));
  memory_.Give(100);
  EXPECT_EQ(memory_.waiting(), 0u);
  EXPECT_EQ(memory_.bytes(), 1u);
  EXPECT_THAT(had_, IsEmpty());
}

TEST_F(StreamBudgetTest, ALargeAnswerHasItsTurnAmongLargeOnesAlsoAsTheOnlyOneOfItsStream) {
  constexpr size_t kLarge = limits::kSmallAnswerBytes + 1;
  MemoryLine& large = memory_.large_answers();
  flow_.Expect(-1);
  large.Take(kLarge);  // By others, who do not read.
  EXPECT_FALSE(budget_.Admit(kLarge));
  EXPECT_TRUE(Await(kLarge, 1));
  EXPECT_TRUE(Await(20, 2));
  EXPECT_EQ(budget_.TakeAlone(), nullptr);
  EXPECT_EQ(large.waiting(), 1u);
  EXPECT_EQ(memory_.waiting(), 0u);
  large.Give(kLarge);
  EXPECT_THAT(had_, ElementsAre(1)) << "whatever else is held";
  EXPECT_EQ(large.bytes(), kLarge);
  EXPECT_EQ(memory_.bytes(), 100u);
  EXPECT_EQ(memory_.waiting(), 1u) << "the next, which is small, has its place in the line of all";
  flow_.Expect(-static_cast<int64_t>(kLarge));
  budget_.TakeAlone()(absl::OkStatus());
  Settle();
  EXPECT_THAT(had_, ElementsAre(1, 2));
  EXPECT_EQ(large.bytes(), 20u) << "as much as there is of any answers";
  flow_.Expect(-20);
  Settle();
  EXPECT_EQ(large.bytes(), 0u);
  memory_.Give(100);
  EXPECT_EQ(memory_.bytes(), 0u);
  EXPECT_TRUE(budget_.Admit(kLarge));
  EXPECT_EQ(large.bytes(), kLarge);
  StreamBudget::Settle(budget_.End(), &memory_);
  EXPECT_EQ(large.bytes(), 0u);
  EXPECT_EQ(memory_.bytes(), 0u);
}

TEST_F(StreamBudgetTest, ALargeAnswerHasItsPlaceAsSoonAsItIsTheFirstThatWaits) {
  constexpr size_t kLarge = limits::kSmallAnswerBytes + 1;
  MemoryLine& large = memory_.large_answers();
  EXPECT_TRUE(Await(20, 1));
  EXPECT_TRUE(Await(kLarge, 2));
  EXPECT_EQ(large.waiting(), 0u);
  flow_.Expect(-1);
  budget_.TakeAlone()(absl::OkStatus());
  Settle();
  memory_.large_answers().Settle();
  EXPECT_THAT(had_, ElementsAre(1, 2)) << "though the memory of all others is full";
}

}  // namespace
}  // namespace lodestone::server
