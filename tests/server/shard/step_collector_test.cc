#include "server/shard/step_collector.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using StepVerdict = StepCollector::Verdict;

std::unique_ptr<Table> StepTable(bool is_dense) {
  v1::TableSpec spec;
  spec.set_name("t");
  if (is_dense) {
    spec.mutable_dense()->add_dims(10);
    spec.mutable_dense()->set_block_elements(4);
  } else {
    spec.mutable_embedding()->set_dim(3);
  }
  auto table = Table::Create(spec, /*cluster_seed=*/1, /*shards=*/1);
  EXPECT_TRUE(table.ok()) << table.status();
  return *std::move(table);
}

v1::Consistency SyncRule(uint32_t batches, uint32_t quorum = 0, uint32_t grace_ms = 0) {
  v1::Consistency rule;
  rule.mutable_sync()->set_batches(batches);
  rule.mutable_sync()->set_quorum(quorum);
  rule.mutable_sync()->set_grace_ms(grace_ms);
  return rule;
}

v1::Consistency TokensRule(uint32_t batch, uint32_t staleness) {
  v1::Consistency rule;
  rule.mutable_tokens()->set_batch(batch);
  rule.mutable_tokens()->set_staleness(staleness);
  return rule;
}

v1::Contribution StepHeader(uint64_t step, uint32_t batch, uint64_t samples = 1) {
  v1::Contribution header;
  header.set_step(step);
  header.set_batch(batch);
  header.set_samples(samples);
  return header;
}

// One row of dim 3, each element `value`, unless `keys` says which.
std::shared_ptr<StepContribution> OneBatch(const v1::Contribution& header, float value, std::vector<Key> keys = {7},
                                           uint64_t now_ms = 1'000) {
  auto contribution = std::make_shared<StepContribution>();
  contribution->step = header.step();
  contribution->batch = header.batch();
  contribution->samples = header.samples();
  contribution->now_ms = now_ms;
  contribution->gradients.assign(3 * keys.size(), value);
  contribution->keys = std::move(keys);
  return contribution;
}

class StepCollectorTest : public ::testing::Test {
 protected:
  void Make(const v1::Consistency& rule) { collector_ = std::make_unique<StepCollector>(rows_.get(), rule); }

  StepVerdict Bring(const v1::Contribution& header, float value, uint64_t now_ms = 1'000) {
    const auto verdict = collector_->Judge(header);
    EXPECT_TRUE(verdict.ok()) << verdict.status();
    if (!verdict.ok()) return StepVerdict::kDuplicate;
    if (*verdict != StepVerdict::kDuplicate) collector_->Take(OneBatch(header, value, {7}, now_ms), *verdict);
    return *verdict;
  }
  const Table::Counters& counters() const { return rows_->counters(); }

  const std::unique_ptr<Table> rows_ = StepTable(/*is_dense=*/false);
  std::unique_ptr<StepCollector> collector_;
};

// A step of four contributions with random gradients, of which no two have the same blocks or keys; some have one
// twice.
std::vector<std::shared_ptr<const StepContribution>> RandomStep(bool is_dense, std::mt19937* random) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<std::shared_ptr<const StepContribution>> step;
  for (uint32_t batch = 0; batch < 4; ++batch) {
    auto contribution = std::make_shared<StepContribution>();
    contribution->batch = batch;
    contribution->samples = 1 + (*random)() % 5000;
    size_t values = 0;
    if (is_dense) {
      contribution->blocks = {0, batch % 3, 2};  // The last one has two elements.
      for (const BlockIndex block : contribution->blocks) values += block == 2 ? 2 : 4;
    } else {
      contribution->keys = {1, 2, batch, batch, 100 + batch};
      values = 3 * contribution->keys.size();
    }
    for (size_t i = 0; i < values; ++i) contribution->gradients.push_back(normal(*random));
    step.push_back(std::move(contribution));
  }
  return step;
}

TEST(StepOrderTest, EveryOrderOfArrivalMakesTheSameBits) {
  constexpr uint32_t kSeed = 20261124;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (const bool is_dense : {true, false}) {
    const std::unique_ptr<Table> table = StepTable(is_dense);
    const auto step = RandomStep(is_dense, &random);
    std::vector<size_t> order = {0, 1, 2, 3};
    std::unique_ptr<StepGradient> first;
    do {
      StepCollector collector(table.get(), SyncRule(4));
      for (const size_t i : order) {
        EXPECT_EQ(*collector.Judge(StepHeader(0, step[i]->batch)), StepVerdict::kNew);
        collector.Take(step[i], StepVerdict::kNew);
      }
      ASSERT_TRUE(collector.complete());
      auto gradient = std::make_unique<StepGradient>(collector.Close(1'000));
      ASSERT_FALSE(gradient->gradients.empty());
      if (first == nullptr) first = std::move(gradient);
      if (gradient == nullptr) continue;
      EXPECT_EQ(gradient->blocks, first->blocks);
      EXPECT_EQ(gradient->keys, first->keys);
      ASSERT_EQ(gradient->gradients.size(), first->gradients.size());
      EXPECT_EQ(
          std::memcmp(gradient->gradients.data(), first->gradients.data(), first->gradients.size() * sizeof(float)), 0);
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(StepOrderTest, TheAverageIsThatOfAllSamples) {
  const std::unique_ptr<Table> table = StepTable(/*is_dense=*/false);
  StepCollector collector(table.get(), SyncRule(2));
  // 3 samples with 1 at key 5, twice 2 at key 6; 1 sample with 5 at key 6.
  auto first = OneBatch(StepHeader(0, 0, 3), 1, {5, 6, 6});
  std::fill(first->gradients.begin() + 3, first->gradients.end(), 2.0f);
  collector.Take(first, StepVerdict::kNew);
  collector.Take(OneBatch(StepHeader(0, 1, 1), 5, {6}), StepVerdict::kNew);
  const StepGradient gradient = collector.Close(1'000);
  EXPECT_TRUE(gradient.any);
  EXPECT_THAT(gradient.keys, ElementsAre(5, 6));
  // (3 * 1 + 1 * 0) / 4 and (3 * 4 + 1 * 5) / 4, both exact.
  EXPECT_THAT(gradient.gradients, ElementsAre(0.75f, 0.75f, 0.75f, 4.25f, 4.25f, 4.25f));
  EXPECT_EQ(collector.steps(), 1u);
}

TEST(StepOrderTest, TheAverageOfOneContributionIsThatContributionBitForBit) {
  const std::unique_ptr<Table> table = StepTable(/*is_dense=*/false);
  StepCollector collector(table.get(), SyncRule(1));
  constexpr uint32_t kSeed = 7;
  std::mt19937 random(kSeed);
  std::vector<float> values(3 * 500);
  for (float& value : values) {
    // Any finite number, subnormal ones too.
    uint32_t bits = random();
    if ((bits & 0x7f800000) == 0x7f800000) bits &= 0xff7fffff;
    std::memcpy(&value, &bits, sizeof(value));
  }
  std::vector<Key> keys(500);
  std::iota(keys.begin(), keys.end(), 0);
  auto contribution = OneBatch(StepHeader(0, 0, limits::kContributionSamplesMax - 1), 0, keys);
  contribution->gradients = values;
  collector.Take(contribution, StepVerdict::kNew);
  EXPECT_EQ(collector.Close(1'000).gradients, values);  // -0 is 0.
}

TEST_F(StepCollectorTest, AContributionCountsOncePerStepAndBatchAndIsKnownAfterItsStep) {
  Make(SyncRule(2));
  EXPECT_EQ(Bring(StepHeader(0, 0), 1), StepVerdict::kNew);
  EXPECT_EQ(Bring(StepHeader(0, 0), 9), StepVerdict::kDuplicate);
  EXPECT_EQ(Bring(StepHeader(0, 1), 3), StepVerdict::kNew);
  EXPECT_EQ(Bring(StepHeader(0, 1), 9), StepVerdict::kDuplicate);
  EXPECT_EQ(collector_->Close(1'000).gradients[0], 2.0f);
  EXPECT_EQ(Bring(StepHeader(0, 0), 9), StepVerdict::kDuplicate);
  EXPECT_EQ(counters().contributions_late.load(), 0u);
}

TEST_F(StepCollectorTest, AStepWithAllItsBatchesIsAppliedWithTheFirstContributionToALaterOne) {
  Make(SyncRule(2));
  Bring(StepHeader(0, 0), 1);
  Bring(StepHeader(0, 1), 3);
  EXPECT_FALSE(collector_->Closes());
  EXPECT_TRUE(collector_->complete());
  EXPECT_EQ(Bring(StepHeader(1, 1), 7), StepVerdict::kAhead);
  ASSERT_TRUE(collector_->Closes());
  EXPECT_EQ(collector_->Close(1'000).gradients[0], 2.0f);
  EXPECT_FALSE(collector_->Closes());
  EXPECT_FALSE(collector_->may_close());
  Bring(StepHeader(1, 0), 5);
  EXPECT_TRUE(collector_->complete());
  EXPECT_EQ(collector_->Close(1'000).gradients[0], 6.0f);
}

TEST_F(StepCollectorTest, WhatMakesNoSenseIsRefusedWithWhatToDo) {
  Make(SyncRule(2));
  EXPECT_THAT(collector_->Judge(StepHeader(0, 2)).status().message(), HasSubstr("batches 0 to 1"));
  EXPECT_THAT(collector_->Judge(StepHeader(0, 0, 0)).status().message(), HasSubstr("0 samples"));
  EXPECT_FALSE(collector_->Judge(StepHeader(0, 0, limits::kContributionSamplesMax + 1)).ok());
  EXPECT_TRUE(collector_->Judge(StepHeader(limits::kStepsAheadMax - 1, 0)).ok());
  const absl::Status ahead = collector_->Judge(StepHeader(limits::kStepsAheadMax, 0)).status();
  EXPECT_EQ(ahead.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(ahead.message(), HasSubstr("0 of 2 contributions, without batch 0, 1"));
  EXPECT_THAT(ahead.message(), HasSubstr("pull with steps_min 8"));
  EXPECT_THAT(StepCollector::Check(SyncRule(0)).message(), HasSubstr("cluster.workers"));
  EXPECT_THAT(StepCollector::Check(TokensRule(0, 1)).message(), HasSubstr("cluster.workers"));
  EXPECT_THAT(StepCollector::Check(SyncRule(2, 3)).message(), HasSubstr("more than the 2 batches"));
  EXPECT_TRUE(StepCollector::Check(SyncRule(2, 2)).ok());
}

TEST_F(StepCollectorTest, AQuorumEndsAStepAndWhatComesLaterIsDroppedOnce) {
  Make(SyncRule(4, 2));
  Bring(StepHeader(0, 3), 4);
  EXPECT_FALSE(collector_->Closes());
  Bring(StepHeader(0, 1), 2);
  ASSERT_TRUE(collector_->Closes());
  EXPECT_EQ(collector_->Close(1'000).gradients[0], 3.0f);
  EXPECT_EQ(Bring(StepHeader(0, 1), 9), StepVerdict::kDuplicate);
  EXPECT_EQ(Bring(StepHeader(0, 2), 9), StepVerdict::kLate);
  EXPECT_EQ(Bring(StepHeader(0, 2), 9), StepVerdict::kDuplicate);
  EXPECT_EQ(counters().contributions_late.load(), 1u);
  EXPECT_THAT(collector_->pending(), IsEmpty());
}

TEST_F(StepCollectorTest, AStepThatHasAllItsBatchesDoesNotWaitForAnythingWithAQuorum) {
  Make(SyncRule(2, 1, /*grace_ms=*/50));
  Bring(StepHeader(0, 1), 2);
  EXPECT_FALSE(collector_->Closes());
  Bring(StepHeader(0, 0), 4);
  ASSERT_TRUE(collector_->Closes());
  EXPECT_EQ(collector_->Close(1'000).gradients[0], 3.0f);
  EXPECT_EQ(Bring(StepHeader(0, 0), 4), StepVerdict::kDuplicate);
}

TEST_F(StepCollectorTest, ALateContributionCanBePartOfTheNextStepAndDoesNotCountForItsQuorum) {
  v1::Consistency rule = SyncRule(3, 2);
  rule.mutable_sync()->set_late(v1::Consistency::Sync::CARRY);
  Make(rule);
  Bring(StepHeader(0, 0), 1);
  Bring(StepHeader(0, 1), 1);
  collector_->Close(1'000);
  EXPECT_EQ(Bring(StepHeader(0, 2, 2), 10), StepVerdict::kLate);
  EXPECT_EQ(Bring(StepHeader(0, 2, 2), 10), StepVerdict::kDuplicate);
  Bring(StepHeader(1, 1), 1);
  EXPECT_FALSE(collector_->Closes());
  Bring(StepHeader(1, 2), 3);
  ASSERT_TRUE(collector_->Closes());
  EXPECT_EQ(collector_->Close(1'000).gradients[0], (2 * 10 + 1 + 3) / 4.0f);
  EXPECT_EQ(counters().contributions_late.load(), 1u);
  EXPECT_EQ(counters().contributions_pending.load(), 0u);
}

TEST_F(StepCollectorTest, TheTimeForTheRestBeginsWithTheQuorumAndNotBeforeTheStepBeforeIsApplied) {
  Make(SyncRule(3, 2, /*grace_ms=*/50));
  Bring(StepHeader(0, 0), 1, 1'000);
  EXPECT_EQ(collector_->due_ms(), std::nullopt);
  Bring(StepHeader(0, 2), 1, 1'010);
  EXPECT_EQ(collector_->due_ms(), 1'060u);
  Bring(StepHeader(1, 0), 1, 1'020);
  Bring(StepHeader(1, 1), 1, 1'021);
  EXPECT_EQ(collector_->due_ms(), 1'060u);
  collector_->Close(1'060);
  EXPECT_EQ(collector_->due_ms(), 1'110u);
}

TEST_F(StepCollectorTest, TokensMakeAStepOfWhateverComesAndWhatIsTooOldWeighsNothing) {
  Make(TokensRule(2, /*staleness=*/1));
  for (uint64_t step = 0; step < 3; ++step) {
    Bring(StepHeader(step, 0), 1);
    EXPECT_FALSE(collector_->Closes());
    Bring(StepHeader(step, 0), 3);  // The same worker twice: a token is no identity.
    ASSERT_TRUE(collector_->Closes());
    EXPECT_EQ(collector_->Close(1'000).gradients[0], 2.0f);
  }
  Bring(StepHeader(2, 0, 3), 1);  // One step behind.
  Bring(StepHeader(1, 0, 9), 100);
  const StepGradient gradient = collector_->Close(1'000);
  EXPECT_TRUE(gradient.any);
  EXPECT_EQ(gradient.gradients[0], 1.0f);
  EXPECT_EQ(counters().contributions_too_old.load(), 1u);
  Bring(StepHeader(0, 0), 1);
  Bring(StepHeader(1, 0), 1);
  EXPECT_FALSE(collector_->Close(1'000).any);
  EXPECT_EQ(collector_->steps(), 5u);
  EXPECT_EQ(counters().contributions_too_old.load(), 3u);
  EXPECT_EQ(counters().token_ages.Percentile(50), 0u) << "of 0 0 0 0 0 0 1 2 4 3";
  EXPECT_EQ(counters().token_ages.Percentile(90), 3u);
  EXPECT_EQ(counters().token_ages.max(), 4u);
}

TEST_F(StepCollectorTest, WhatOnlyContributionsWithoutRoomHaveGetsNoRow) {
  Make(SyncRule(2));
  auto full = OneBatch(StepHeader(0, 0), 1, {1, 2});
  full->takes_new = false;
  collector_->Take(full, StepVerdict::kNew);
  collector_->Take(OneBatch(StepHeader(0, 1), 1, {2, 3}), StepVerdict::kNew);
  const StepGradient gradient = collector_->Close(1'000);
  EXPECT_THAT(gradient.keys, ElementsAre(1, 2, 3));
  EXPECT_THAT(gradient.takes_new, ElementsAre(0, 1, 1));
}

TEST_F(StepCollectorTest, ARollbackEndsTheStepsThatHaveBegunAndTheirRestIsLate) {
  Make(SyncRule(3));
  Bring(StepHeader(0, 1), 1);
  Bring(StepHeader(2, 0), 1);
  collector_->EndBegunSteps(1'000);
  EXPECT_EQ(collector_->steps(), 3u);
  EXPECT_THAT(collector_->pending(), IsEmpty());
  EXPECT_EQ(Bring(StepHeader(0, 1), 1), StepVerdict::kDuplicate);
  EXPECT_EQ(Bring(StepHeader(0, 2), 1), StepVerdict::kLate);
  EXPECT_EQ(Bring(StepHeader(1, 0), 1), StepVerdict::kLate);
  EXPECT_THAT(collector_->pending(), IsEmpty());
  EXPECT_EQ(Bring(StepHeader(3, 0), 1), StepVerdict::kNew);
}

TEST_F(StepCollectorTest, WhatWaitsCountsAsTheTablesBytesAndNoLonger) {
  Make(SyncRule(3));
  Bring(StepHeader(0, 1), 1);
  auto with_room = OneBatch(StepHeader(0, 2), 1);
  with_room->room_bytes = 1'000'000;
  collector_->Take(with_room, StepVerdict::kNew);
  EXPECT_GT(counters().bytes.load(), 1'000'000u + 2 * 5 * sizeof(float));
  EXPECT_EQ(counters().contributions_pending.load(), 2u);
  Bring(StepHeader(0, 0), 1);
  collector_->Close(1'000);
  EXPECT_EQ(counters().bytes.load(), 0u);
  Bring(StepHeader(1, 0), 1);
  EXPECT_GT(counters().bytes.load(), 0u);
  collector_.reset();
  EXPECT_EQ(counters().bytes.load(), 0u);
  EXPECT_EQ(counters().contribution_bytes.load(), 0u);
  EXPECT_EQ(counters().contributions_pending.load(), 0u);
}

TEST_F(StepCollectorTest, ARestoredCollectorGoesOnAsTheOneThatWasKept) {
  v1::Consistency rule = SyncRule(3, 2);
  rule.mutable_sync()->set_late(v1::Consistency::Sync::CARRY);
  Make(rule);
  Bring(StepHeader(0, 0), 1);
  Bring(StepHeader(0, 1), 2);
  collector_->Close(1'234);
  Bring(StepHeader(0, 2), 4);
  Bring(StepHeader(1, 1), 8);
  StepCollector restored(rows_.get(), rule);
  ASSERT_TRUE(restored.Restore(collector_->ToProto()).ok());
  EXPECT_EQ(restored.Judge(StepHeader(0, 2)).value(), StepVerdict::kDuplicate);
  for (const auto& contribution : collector_->pending()) restored.RestorePending(contribution);
  EXPECT_EQ(restored.steps(), 1u);
  EXPECT_EQ(restored.Judge(StepHeader(1, 1)).value(), StepVerdict::kDuplicate);
  restored.Take(OneBatch(StepHeader(1, 0), 16), StepVerdict::kNew);
  ASSERT_TRUE(restored.Closes());
  EXPECT_EQ(restored.Close(1'300).gradients[0], (4 + 8 + 16) / 3.0f);
  EXPECT_EQ(restored.Restore(collector_->ToProto()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StepCollectorTest, OtherNumbersButOfBatchesGoOnWithWhatWaits) {
  Make(SyncRule(3));
  Bring(StepHeader(0, 2), 1);
  EXPECT_TRUE(collector_->Continues(SyncRule(3, 2)));
  EXPECT_FALSE(collector_->Continues(SyncRule(2)));
  collector_->SetRule(SyncRule(3, 1));
  EXPECT_TRUE(collector_->Closes());
}

TEST_F(StepCollectorTest, WhereStepsEndForGoodWhatWaitsCanBeAppliedAsItIs) {
  Make(SyncRule(3));
  EXPECT_FALSE(collector_->may_end());
  Bring(StepHeader(0, 2), 4);
  EXPECT_FALSE(collector_->may_close());
  ASSERT_TRUE(collector_->may_end());
  EXPECT_THAT(collector_->Close(1'000).gradients, testing::Each(4.0f));
  EXPECT_FALSE(collector_->may_end());
  EXPECT_THAT(collector_->pending(), IsEmpty());
  EXPECT_EQ(counters().bytes.load(), 0u);
}

TEST_F(StepCollectorTest, WhatWaitsOfLaterStepsIsAppliedStepByStepWhereStepsEndForGood) {
  Make(SyncRule(3));
  Bring(StepHeader(0, 1), 1);
  Bring(StepHeader(2, 0), 2);
  Bring(StepHeader(2, 2), 4);
  std::vector<float> averages;
  while (collector_->may_end()) {
    const StepGradient gradient = collector_->Close(1'000);
    averages.push_back(gradient.any ? gradient.gradients[0] : 0.0f);
  }
  EXPECT_THAT(averages, ElementsAre(1.0f, 0.0f, 3.0f));
  EXPECT_EQ(counters().contributions_pending.load(), 0u);
}

}  // namespace
}  // namespace lodestone::server
