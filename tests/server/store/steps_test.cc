// Tables whose consistency is sync or tokens, through a store: contributions, the steps that they make, and the pulls
// that wait for them.
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard.h"
#include "server/store/table_entry.h"
#include "tests/server/store/store_fixture.h"

namespace lodestone::server {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

v1::TableSpec WithSync(v1::TableSpec spec, uint32_t batches, uint32_t quorum = 0, uint32_t grace_ms = 0) {
  v1::Consistency::Sync& sync = *spec.mutable_consistency()->mutable_sync();
  sync.set_batches(batches);
  if (quorum > 0) sync.set_quorum(quorum);
  if (grace_ms > 0) sync.set_grace_ms(grace_ms);
  return spec;
}

class StepsTest : public StoreTest {
 protected:
  static constexpr Incarnation kOther = 200;
  static constexpr uint32_t kDim = 2;
  static constexpr Key kKey = 11;
  static constexpr uint64_t kElements = 16;
  static constexpr uint32_t kBlock = 2;

  // A dense table and one of rows with two batches a step, and one that is async.
  void MakeTables(uint32_t batches = 2, uint32_t quorum = 0, uint32_t grace_ms = 0) {
    Make();
    dense_ = WithSync(AddingDense("dense", kElements, kBlock), batches, quorum, grace_ms);
    rows_ = WithSync(AddingRows("rows", kDim), batches, quorum, grace_ms);
    for (const Incarnation worker : {kWorker, kOther}) {
      const auto made = Ensure({dense_, rows_, AddingRows("async", kDim)}, worker);
      ASSERT_TRUE(made.ok()) << made.status();
    }
  }

  // `value` for all of the dense table, and for kKey of both others; a part for each shard.
  RequestBuilder<v1::PushRequest> Contribution(Sequence sequence, uint64_t step, uint32_t batch, float value,
                                               Incarnation worker = kWorker, uint64_t samples = 1) {
    auto push = NewPush(sequence, worker);
    push.AddDense(TableIdOf("dense"), {kElements, kBlock}, value);
    push.AddRows(TableIdOf("rows"), kDim, {{kKey, value}}, true);
    push.AddRows(TableIdOf("async"), kDim, {{kKey, value}}, true);
    for (ShardId shard = 0; shard < kShards; ++shard) {
      if (shard == ShardOfKey(kKey, kShards)) continue;
      v1::Part* const part = push.header.add_parts();
      part->set_shard(shard);
      part->set_table(TableIdOf("rows"));
    }
    push.header.mutable_contribution()->set_step(step);
    push.header.mutable_contribution()->set_batch(batch);
    push.header.mutable_contribution()->set_samples(samples);
    return push;
  }
  v1::PushResponse Bring(Sequence sequence, uint64_t step, uint32_t batch, float value, Incarnation worker = kWorker,
                         uint64_t samples = 1) {
    const auto pushed = Push(Contribution(sequence, step, batch, value, worker, samples));
    EXPECT_TRUE(pushed.ok()) << pushed.status();
    return pushed.ok() ? *pushed : v1::PushResponse();
  }

  RequestBuilder<v1::PullRequest> PullOfAll(uint64_t steps_min) const {
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.header.set_steps_min(steps_min);
    pull.AddDense(TableIdOf("dense"), {kElements, kBlock}, std::nullopt);
    pull.AddRows(TableIdOf("rows"), kDim, {{kKey, 0.0f}}, false);
    return pull;
  }
  // A pull that has ended, or waits.
  std::future<absl::StatusOr<PullPath::Values>> PullLater(const RequestBuilder<v1::PullRequest>& pull) {
    auto result = std::make_shared<std::promise<absl::StatusOr<PullPath::Values>>>();
    store_->pulls().Pull(pull.header, pull.payload(),
                         [result](absl::StatusOr<PullPath::Values> values) { result->set_value(std::move(values)); });
    store_->shards().executors().Drain();
    return result->get_future();
  }
  // The values of a pull that waits for so many steps.
  std::vector<float> ValuesAt(uint64_t steps_min) {
    auto values = Pull(PullOfAll(steps_min));
    EXPECT_TRUE(values.ok()) << values.status();
    return values.ok() ? Floats(Concatenate(values->payload)) : std::vector<float>();
  }
  v1::StatusResponse Status() const {
    v1::StatusResponse status;
    store_->FillStatus(&status);
    return status;
  }
  v1::TableStatus StatusOf(const std::string& name) const {
    const v1::StatusResponse status = Status();
    for (const v1::TableStatus& table : status.tables()) {
      if (table.name() == name) return table;
    }
    ADD_FAILURE() << "no table " << name;
    return {};
  }
  static bool IsReady(const std::future<absl::StatusOr<PullPath::Values>>& pull) {
    return pull.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  v1::TableSpec dense_;
  v1::TableSpec rows_;
};

TEST_F(StepsTest, AStepIsTheWeightedAverageOfItsBatchesAppliedOnceWhenTheNextIsAskedFor) {
  MakeTables();
  Bring(1, 0, 1, 8, kOther, 1);
  Bring(1, 0, 0, 4, kWorker, 3);
  EXPECT_THAT(ValuesAt(0), Each(0.0f));
  EXPECT_THAT(ValuesAt(1), Each(5.0f));
  EXPECT_THAT(PullRows(TableIdOf("async"), kDim, {kKey}), ElementsAre(12.0f));  // At once, as ever.
  EXPECT_EQ(StatusOf("rows").steps(), 1u);
  EXPECT_EQ(StatusOf("dense").contributions_pending(), 0u);
  EXPECT_EQ(StatusOf("rows").contributions_pending(), 2 * (kShards - 1)) << "the other shards were not asked for rows";
  EXPECT_EQ(StatusOf("async").steps(), 0u);
}

TEST_F(StepsTest, AContributionToTheNextStepAppliesTheOneBefore) {
  MakeTables();
  Bring(1, 0, 0, 4);
  Bring(1, 0, 1, 8, kOther);
  Bring(2, 1, 0, 1);
  EXPECT_THAT(ValuesAt(0), Each(6.0f));
  EXPECT_EQ(StatusOf("rows").contributions_pending(), kShards);
}

TEST_F(StepsTest, ABatchThatAnotherWorkerBringsAgainIsAcknowledgedAndNothingOfItIsApplied) {
  MakeTables();
  Bring(1, 0, 0, 4);
  const v1::PushResponse again = Bring(1, 0, 0, 4, kOther);
  ASSERT_EQ(again.shards_size(), static_cast<int>(kShards));
  for (const auto& shard : again.shards()) {
    EXPECT_TRUE(shard.duplicate());
    EXPECT_EQ(shard.version(), 1u);
  }
  Bring(2, 0, 1, 8);
  EXPECT_THAT(ValuesAt(1), Each(6.0f));
  EXPECT_TRUE(Bring(2, 0, 1, 8, kOther).shards(0).duplicate());  // After its step, too.
  EXPECT_THAT(ValuesAt(1), Each(6.0f));
  EXPECT_THAT(PullRows(TableIdOf("async"), kDim, {kKey}), ElementsAre(12.0f));
  EXPECT_EQ(StatusOf("rows").contributions_late(), 0u);
}

TEST_F(StepsTest, AHalfPushedBatchIsCompletedByAnotherWorkerFromTheSameValues) {
  MakeTables();
  Bring(1, 0, 0, 4);
  // Of batch 1 only one shard has got its parts, and then all of its step. It waits with the step for the others.
  auto whole = Contribution(2, 0, 1, 8);
  RequestBuilder<v1::PushRequest> half = NewPush(2);
  *half.header.mutable_contribution() = whole.header.contribution();
  v1::Part* const blocks = half.header.add_parts();
  blocks->set_shard(ShardOfKey(kKey, kShards));
  blocks->set_table(TableIdOf("dense"));
  for (BlockIndex block = 0; block < kElements / kBlock; ++block) {
    if (ShardOfBlock(TableIdOf("dense"), block, kShards) != blocks->shard()) continue;
    blocks->add_blocks(block);
    half.AppendRepeated(8, kBlock);
  }
  half.AddRows(TableIdOf("rows"), kDim, {{kKey, 8.0f}}, true);
  half.AddRows(TableIdOf("async"), kDim, {{kKey, 8.0f}}, true);
  ASSERT_TRUE(Push(half).ok());
  EXPECT_THAT(ValuesAt(0), Each(0.0f));
  whole.header.set_worker_incarnation(kOther);
  const auto again = Push(whole);
  ASSERT_TRUE(again.ok()) << again.status();
  for (const auto& shard : again->shards()) {
    EXPECT_EQ(shard.duplicate(), shard.shard() == ShardOfKey(kKey, kShards));
  }
  EXPECT_THAT(ValuesAt(1), Each(6.0f));
  EXPECT_THAT(PullRows(TableIdOf("async"), kDim, {kKey}), ElementsAre(12.0f));
}

TEST_F(StepsTest, APullWaitsForItsStepWithoutAThreadAndTheStatusSaysForWhat) {
  MakeTables();
  auto waiting = PullLater(PullOfAll(1));
  Bring(1, 0, 1, 4);
  EXPECT_FALSE(IsReady(waiting));
  time_.AdvanceMs(2500);
  const v1::StatusResponse status = Status();
  ASSERT_GE(status.waits_size(), 1);
  EXPECT_THAT(status.waits(0).who(), HasSubstr("pull"));
  EXPECT_THAT(status.waits(0).what(), HasSubstr("1 steps of table `dense` on shard "));
  EXPECT_THAT(status.waits(0).what(), HasSubstr("where step 0 has 1 of 2 contributions, without batch 0"));
  EXPECT_EQ(status.waits(0).seconds(), 2.5);
  ASSERT_EQ(status.waits(0).targets_size(), 1) << "which a chain of waits goes on by";
  EXPECT_EQ(status.waits(0).targets(0).kind(), v1::WaitTarget::CONTRIBUTION);
  EXPECT_EQ(status.waits(0).targets(0).step(), 0u);
  EXPECT_THAT(status.waits(0).targets(0).batches(), ElementsAre(0u));
  EXPECT_GE(status.waits(0).shards_size(), 1);
  Bring(2, 0, 0, 8);
  const auto values = waiting.get();
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_THAT(Floats(Concatenate(values->payload)), Each(6.0f));
  EXPECT_THAT(values->header.steps(), Each(1u));
  EXPECT_EQ(values->header.steps_size(), values->header.parts_size());
  EXPECT_EQ(Status().waits_size(), 0);
}

TEST_F(StepsTest, APullThatWaitsTooLongEndsWithWhatIsMissing) {
  MakeTables();
  Bring(1, 0, 0, 4);
  auto waiting = PullLater(PullOfAll(1));
  time_.AdvanceMs(limits::kStepWaitMaxMs - 1);
  store_->CheckTime();
  EXPECT_FALSE(IsReady(waiting));
  time_.AdvanceMs(1);
  store_->CheckTime();
  const auto ended = waiting.get();
  EXPECT_EQ(ended.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(ended.status().message(), HasSubstr("where step 0 has 1 of 2 contributions, without batch 1"));
  EXPECT_EQ(Status().waits_size(), 0);
  Bring(2, 0, 1, 8);
  EXPECT_THAT(ValuesAt(1), Each(6.0f));
}

TEST_F(StepsTest, APullThatWaitsEndsWhenItsShardIsGivenUpAndWhenThePsEnds) {
  MakeTables();
  auto given_up = PullLater(PullOfAll(1));
  for (ShardId shard = 0; shard < kShards; ++shard) store_->shards().GiveUp(shard);
  EXPECT_EQ(given_up.get().status().code(), absl::StatusCode::kAborted);
  for (ShardId shard = 0; shard < kShards; ++shard) store_->shards().TakeBack(shard);
  auto ended = PullLater(PullOfAll(1));
  EXPECT_FALSE(IsReady(ended));
  store_->StopWaits();
  EXPECT_EQ(ended.get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(PullLater(PullOfAll(1)).get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(PullLater(PullOfAll(0)).get().ok());
}

TEST_F(StepsTest, APullThatWaitsEndsWithItsStore) {
  MakeTables();
  auto waiting = PullLater(PullOfAll(1));
  store_.reset();
  EXPECT_EQ(waiting.get().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(StepsTest, EmptyPartsOfAPullAskForAStepToo) {
  MakeTables();
  Bring(1, 0, 0, 4);
  Bring(2, 0, 1, 8);
  RequestBuilder<v1::PullRequest> pull(kShards);
  pull.header.set_steps_min(1);
  for (ShardId shard = 0; shard < kShards; ++shard) {
    for (const char* const table : {"dense", "rows"}) {
      v1::Part* const part = pull.header.add_parts();
      part->set_shard(shard);
      part->set_table(TableIdOf(table));
    }
  }
  const auto values = Pull(pull);
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_THAT(values->header.steps(), Each(1u));
  EXPECT_THAT(ValuesAt(0), Each(6.0f));
}

TEST_F(StepsTest, StepsAfterTheOneThatIsAskedForStay) {
  MakeTables();
  Bring(1, 0, 0, 4);
  Bring(2, 1, 0, 1);
  Bring(3, 1, 1, 1);
  Bring(4, 0, 1, 8);
  EXPECT_THAT(ValuesAt(1), Each(6.0f));
  EXPECT_THAT(ValuesAt(0), Each(6.0f));
  EXPECT_THAT(ValuesAt(2), Each(7.0f));
}

TEST_F(StepsTest, WhatMakesNoSenseIsRefusedBeforeAnyShardSeesIt) {
  MakeTables();
  const auto refused = [&](const RequestBuilder<v1::PushRequest>& push) {
    const auto pushed = Push(push);
    for (ShardId shard = 0; shard < kShards; ++shard) EXPECT_EQ(store_->shards().VersionOf(shard), 0u);
    return pushed.status();
  };
  auto without = Contribution(1, 0, 0, 4);
  without.header.clear_contribution();
  absl::Status status = refused(without);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("PushRequest.contribution is missing"));
  status = refused(Contribution(1, 0, 2, 4));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("batch 2, and the steps have 2 batches"));
  EXPECT_EQ(refused(Contribution(1, 0, 0, 4, kWorker, 0)).code(), absl::StatusCode::kInvalidArgument);
  auto cut = Contribution(1, 0, 0, 4);
  cut.header.mutable_parts(3)->set_more(v1::Part::FOR_SHARD);
  EXPECT_THAT(refused(cut).message(), HasSubstr("in one message"));
  status = refused(Contribution(1, limits::kStepsAheadMax, 0, 4));
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(status.message(), HasSubstr("step 0 is collected"));
  status = refused(Contribution(1, 0, 0, std::numeric_limits<float>::infinity()));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StatusOf("rows").contributions_pending(), 0u);
}

TEST_F(StepsTest, EnsureTablesRefusesAConsistencyThatLeavesSomethingOpen) {
  Make();
  EXPECT_THAT(Ensure({WithSync(AddingRows("rows", kDim), 0)}).status().message(),
              HasSubstr("table `rows`: consistency.sync.batches is 0"));
  v1::TableSpec tokens = AddingRows("rows", kDim);
  tokens.mutable_consistency()->mutable_tokens();
  EXPECT_THAT(Ensure({tokens}).status().message(), HasSubstr("consistency.tokens.batch is 0"));
  EXPECT_THAT(Ensure({WithSync(AddingRows("rows", kDim), 2, 3)}).status().message(), HasSubstr("quorum is 3"));
  EXPECT_EQ(Ensure({WithSync(AddingRows("rows", kDim), 5000)}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StepsTest, TheConsistencyChangesOnlyWhereNoContributionWaits) {
  MakeTables();
  Bring(1, 0, 0, 4);
  const absl::Status refused = Ensure({AddingRows("rows", kDim)}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("step 0 has 1 of 2 contributions, without batch 1"));
  EXPECT_EQ(Ensure({WithSync(AddingRows("rows", kDim), 3)}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Ensure({WithSync(AddingRows("rows", kDim), 2, 0, 5)}).ok());  // The same batches: the step goes on.
  Bring(2, 0, 1, 8);
  ASSERT_TRUE(Ensure({AddingRows("rows", kDim)}).ok());  // The step has all of its batches, and ends.
  EXPECT_THAT(ValuesAt(1), Each(6.0f));
  auto push = NewPush(3);
  push.AddRows(TableIdOf("rows"), kDim, {{kKey, 1.0f}}, true);
  ASSERT_TRUE(Push(push).ok());
  EXPECT_THAT(PullRows(TableIdOf("rows"), kDim, {kKey}), ElementsAre(7.0f));
  ASSERT_TRUE(Ensure({rows_}).ok());
  const auto values = Pull(PullOfAll(0));
  ASSERT_TRUE(values.ok());
  EXPECT_EQ(values->header.steps(values->header.steps_size() - 1), 0u);  // Of the rows: counted again.
  EXPECT_EQ(StatusOf("rows").steps(), 0u);
}

TEST_F(StepsTest, AtRestAnOperatorEndsStepsAndWhatWaitsIsAppliedAsItIs) {
  MakeTables(/*batches=*/3);
  Bring(1, 0, 0, 4);
  Bring(2, 0, 2, 8);
  v1::SetTableRequest request;
  request.add_fields("consistency");
  request.mutable_settings()->mutable_consistency()->mutable_tokens()->set_batch(4);
  const auto set = [&] {
    for (const char* const table : {"dense", "rows"}) {
      request.set_table(table);
      const auto done = store_->tables().Set(request);
      ASSERT_TRUE(done.ok()) << done.status();
      EXPECT_TRUE(done->changed());
    }
  };
  request.set_table("rows");
  EXPECT_EQ(store_->tables().Set(request).status().code(), absl::StatusCode::kFailedPrecondition);
  request.set_orders(1);
  set();
  EXPECT_THAT(ValuesAt(0), Each(6.0f)) << "the average of two of three";
  EXPECT_EQ(StatusOf("rows").contributions_pending(), 0u);
  Bring(3, 0, 0, 1);
  EXPECT_THAT(ValuesAt(0), Each(6.0f)) << "it waits for three more";
  request.mutable_settings()->mutable_consistency()->mutable_async();
  set();
  EXPECT_THAT(ValuesAt(0), Each(7.0f));
  request.mutable_settings()->mutable_consistency()->mutable_sync()->set_batches(2);
  set();
  EXPECT_EQ(StatusOf("rows").steps(), 0u) << "they are counted again";
  Bring(4, 0, 0, 1);
  Bring(5, 0, 1, 2);
  for (const char* const table : {"dense", "rows"}) {
    request.set_table(table);
    EXPECT_FALSE(store_->tables().Set(request)->changed());
  }
  EXPECT_THAT(ValuesAt(0), Each(8.5f)) << "what was complete is applied, though nothing was set";
}

// Steps that begin while shards are elsewhere, or become owned. No test here ticks: a shard that has other settings
// than its table until then averages nothing, and counts its steps behind the others' for ever.
class BegunStepsTest : public StepsTest {
 protected:
  void MakeAsync() {
    Make();
    store_->gate().SetCheck([this] { return serves_.load() ? absl::OkStatus() : absl::AbortedError("it is asked"); });
    const auto made =
        Ensure({AddingDense("dense", kElements, kBlock), AddingRows("rows", kDim), AddingRows("async", kDim)});
    ASSERT_TRUE(made.ok()) << made.status();
  }
  static v1::SetTableRequest RequestOf(uint32_t batches) {
    v1::SetTableRequest request;
    request.add_fields("consistency");
    request.mutable_settings()->mutable_consistency()->mutable_sync()->set_batches(batches);
    request.set_orders(1);
    return request;
  }
  // Whether the shard collects steps of the table of rows.
  bool HasSteps(ShardId shard) {
    bool has = false;
    store_->shards().Run(shard, [&](Shard* one) { has = one->steps().Of(TableIdOf("rows")) != nullptr; });
    return has;
  }
  // Returns whether the last of the tables had other settings.
  bool BeginSteps(uint32_t batches) {
    v1::SetTableRequest request = RequestOf(batches);
    bool changed = false;
    for (const char* const table : {"dense", "rows"}) {
      request.set_table(table);
      const auto done = store_->tables().Set(request);
      EXPECT_TRUE(done.ok()) << done.status();
      changed = done.ok() && done->changed();
    }
    return changed;
  }
  // Has another ps tell the tables of steps of two batches.
  void TellOfSteps() {
    for (const char* const table : {"dense", "rows"}) {
      v1::TableSpec told = *store_->tables().SpecOf(table);
      told.mutable_consistency()->mutable_sync()->set_batches(2);
      told.add_held("consistency");
      told.set_revision(uint64_t{1} << 32);
      ASSERT_TRUE(store_->tables().Restore(told).ok());
    }
  }
  // Brings the next step of two batches.
  void ExpectAverageOfStep(uint64_t step, Sequence sequence, float before) {
    Bring(sequence, step, 0, 4);
    Bring(sequence + 1, step, 1, 8);
    EXPECT_THAT(ValuesAt(step + 1), Each(before + 6.0f));
  }

  std::atomic<bool> serves_{true};
};

TEST_F(BegunStepsTest, AShardThatIsTakenBackHasThemBeforeItIsServed) {
  MakeAsync();
  store_->shards().GiveUp(3);
  TellOfSteps();
  store_->shards().TakeBack(3);
  ExpectAverageOfStep(0, 1, 0);
}

TEST_F(BegunStepsTest, AShardThatComesFromAnotherPsHasThemBeforeItIsServed) {
  MakeAsync();
  store_->shards().Disown(3);
  store_->shards().SetRole(3, ShardRole::kFollows);
  ASSERT_TRUE(BeginSteps(2));
  store_->shards().Own(3, /*term=*/5);
  ExpectAverageOfStep(0, 1, 0);
}

TEST_F(BegunStepsTest, WhatWaitsOnAShardThatComesFromAnotherPsIsAppliedBeforeStepsBeginAnew) {
  MakeAsync();
  ASSERT_TRUE(BeginSteps(3));
  Bring(1, 0, 0, 4);
  Bring(2, 0, 2, 8);
  store_->shards().Disown(3);
  store_->shards().SetRole(3, ShardRole::kFollows);
  ASSERT_TRUE(BeginSteps(2));
  serves_ = false;  // As while shards go to other owners.
  store_->shards().Own(3, /*term=*/5);
  serves_ = true;
  ExpectAverageOfStep(0, 3, 6);
}

TEST_F(BegunStepsTest, OwnedShardsHaveThemSoonAfterAnotherPsToldOfThem) {
  MakeAsync();
  TellOfSteps();
  ExpectAverageOfStep(0, 1, 0);
}

TEST_F(BegunStepsTest, SetTableIsDoneWhenAllShardsHaveThemThoughAnotherPsToldTheTableBefore) {
  MakeAsync();
  serves_ = false;  // So that shards do not get them by the way.
  TellOfSteps();
  for (ShardId shard = 0; shard < kShards; ++shard) EXPECT_FALSE(HasSteps(shard));
  serves_ = true;
  v1::SetTableRequest question;
  question.set_table("rows");
  ASSERT_TRUE(store_->tables().Set(question).ok());
  EXPECT_FALSE(HasSteps(3)) << "a question changed it";
  EXPECT_FALSE(BeginSteps(2));
  EXPECT_TRUE(HasSteps(3));
  ExpectAverageOfStep(0, 1, 0);
}

TEST_F(BegunStepsTest, TheyDoNotBeginWhileAShardIsGivenToAnotherPs) {
  MakeAsync();
  store_->shards().GiveUp(3);
  v1::SetTableRequest request = RequestOf(2);
  request.set_table("rows");
  const absl::Status given_up = store_->tables().Set(request).status();
  EXPECT_EQ(given_up.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(given_up.message(), HasSubstr("shard 3 is just given to another ps"));
  store_->shards().TakeBack(3);
  ASSERT_TRUE(BeginSteps(2));
  ExpectAverageOfStep(0, 1, 0);
}

TEST_F(BegunStepsTest, WhatHalfFailedIsNoReasonToSkipWhatIsSetNext) {
  MakeAsync();
  ASSERT_TRUE(BeginSteps(4));
  auto push = NewPush(1);
  push.AddRows(TableIdOf("rows"), kDim, {{kKey, 0.0f}}, true);
  push.header.mutable_contribution()->set_samples(1);
  ASSERT_TRUE(Push(push).ok());
  serves_ = false;  // The shard that has it cannot end its step.
  v1::SetTableRequest request = RequestOf(3);
  request.set_table("rows");
  ASSERT_EQ(store_->tables().Set(request).status().code(), absl::StatusCode::kAborted);
  serves_ = true;
  ASSERT_TRUE(BeginSteps(2)) << "not three, which the other shards have";
  ExpectAverageOfStep(0, 2, 0);
  EXPECT_EQ(StatusOf("rows").steps(), 1u);
}

TEST_F(BegunStepsTest, AWorkersSettingsDoNotPassAnOperatorsThatHaveNotEnded) {
  MakeAsync();
  v1::SetTableRequest request = RequestOf(3);
  request.set_table("rows");
  serves_ = false;
  store_->shards().GiveUp(3);
  EXPECT_FALSE(store_->tables().Set(request).ok());
  EXPECT_FALSE(HasSteps(4)) << "it is refused before anything is changed";
  store_->shards().TakeBack(3);
  // As if a shard had come from another ps, where that had ended.
  v1::TableSpec spec = *store_->tables().SpecOf("rows");
  spec.mutable_consistency()->mutable_sync()->set_batches(3);
  spec.set_revision(uint64_t{4} << 32);
  const auto entry = store_->tables().tables()->at(TableIdOf("rows"));
  const auto kept = entry->table->Keep(spec);
  ASSERT_TRUE(kept.ok());
  v1::TableSpec brought = AddingRows("rows", kDim);
  brought.mutable_optimizer()->set_learning_rate(-2);
  const absl::Status refused = Ensure({brought}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("run psctl set again"));
  v1::SetTableRequest question;
  question.set_table("rows");
  EXPECT_EQ(store_->tables().Set(question)->settings().revision(), uint64_t{4} << 32);
  serves_ = true;
  ASSERT_TRUE(BeginSteps(2));
  EXPECT_EQ(store_->tables().SpecOf("rows")->revision(), uint64_t{5} << 32);
  ExpectAverageOfStep(0, 1, 0);
}

TEST_F(BegunStepsTest, WhatIsReleasedMayBeReleasedAgainInAPause) {
  MakeAsync();
  v1::SetTableRequest request;
  request.set_table("rows");
  request.add_released("guard");
  EXPECT_EQ(store_->tables().Set(request).status().code(), absl::StatusCode::kFailedPrecondition);
  request.set_orders(1);
  EXPECT_TRUE(store_->tables().Set(request).ok());
}

TEST_F(BegunStepsTest, ANewRevisionIsAboveThatOfTheRequestWhichIsBounded) {
  MakeAsync();
  v1::SetTableRequest request = RequestOf(2);
  request.set_table("rows");
  request.mutable_settings()->set_revision((uint64_t{7} << 32) + 5);
  const auto done = store_->tables().Set(request);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->settings().revision(), uint64_t{8} << 32);
  for (const uint64_t more : {1, 2}) {
    request.mutable_settings()->mutable_consistency()->mutable_sync()->set_batches(2 + more);
    request.mutable_settings()->set_revision(std::numeric_limits<uint64_t>::max());
    const auto bounded = store_->tables().Set(request);
    ASSERT_TRUE(bounded.ok()) << bounded.status();
    EXPECT_EQ(bounded->settings().revision(), (uint64_t{1} << 63) + (more << 32));
  }
}

TEST_F(BegunStepsTest, AShardThatLacksThemAtTheStartOfItsPsHasThemBeforeItIsServed) {
  Store::Options options;
  options.shards = kShards;
  options.time = &time_;
  store_ = std::make_unique<Store>(options);
  store_->shards().Adopt({0, 1, 2, 3, 4, 5, 6, 7});
  for (v1::TableSpec spec :
       {AddingDense("dense", kElements, kBlock), AddingRows("rows", kDim), AddingRows("async", kDim)}) {
    ASSERT_TRUE(store_->tables().Restore(spec).ok());
    if (spec.name() == "async") continue;
    spec = WithSync(spec, 2);
    spec.set_revision(uint64_t{1} << 32);
    ASSERT_TRUE(store_->tables().Restore(spec).ok());
  }
  serves_ = false;  // As with a lease that is over by then.
  store_->gate().SetCheck([this] { return serves_.load() ? absl::OkStatus() : absl::AbortedError("it is asked"); });
  store_->Serve({});
  serves_ = true;
  ASSERT_TRUE(Ensure({}).ok());
  ExpectAverageOfStep(0, 1, 0);
}

TEST_F(StepsTest, AQuorumEndsAStepAtOnceAndTheRestIsLate) {
  MakeTables(/*batches=*/3, /*quorum=*/2);
  Bring(1, 0, 2, 4);
  Bring(2, 0, 0, 8);
  EXPECT_THAT(ValuesAt(0), Each(6.0f));
  const v1::PushResponse late = Bring(3, 0, 1, 100);
  for (const auto& shard : late.shards()) {
    EXPECT_TRUE(shard.late());
    EXPECT_FALSE(shard.duplicate());
  }
  EXPECT_THAT(ValuesAt(1), Each(6.0f));
  EXPECT_EQ(StatusOf("rows").contributions_late(), kShards);
  EXPECT_THAT(PullRows(TableIdOf("async"), kDim, {kKey}), ElementsAre(112.0f));
  EXPECT_TRUE(Bring(3, 0, 1, 100, kOther).shards(0).duplicate());
}

TEST_F(StepsTest, AStepWithItsQuorumIsAppliedWhenTheTimeForTheRestIsOver) {
  MakeTables(/*batches=*/3, /*quorum=*/2, /*grace_ms=*/50);
  Bring(1, 0, 2, 4);
  Bring(2, 0, 0, 8);
  auto waiting = PullLater(PullOfAll(1));
  time_.AdvanceMs(49);
  store_->CheckTime();
  EXPECT_FALSE(IsReady(waiting));
  time_.AdvanceMs(1);
  store_->CheckTime();
  const auto values = waiting.get();
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_THAT(Floats(Concatenate(values->payload)), Each(6.0f));
  Bring(3, 1, 0, 1);
  Bring(4, 1, 1, 1);
  Bring(5, 1, 2, 4);  // With all of them it does not wait.
  EXPECT_THAT(ValuesAt(2), Each(8.0f));
}

TEST_F(StepsTest, AStepThatNoTimerKnowsIsFoundByTheTick) {
  MakeTables(/*batches=*/3, /*quorum=*/3);
  Bring(1, 0, 2, 4);
  Bring(2, 0, 0, 8);
  // The quorum becomes what is there already.
  ASSERT_TRUE(Ensure({WithSync(dense_, 3, 2, 50), WithSync(rows_, 3, 2, 50)}).ok());
  time_.AdvanceMs(51);
  store_->Tick();
  store_->shards().executors().Drain();
  EXPECT_THAT(ValuesAt(1), Each(6.0f));
}

// Regression: without log and followers the term that a shard told stayed that of an earlier life.
TEST_F(StepsTest, EachKindOfUpdateThatNothingLogsBeginsATermToo) {
  MakeTables();
  v1::TableSpec expires = AddingRows("expires", kDim);
  expires.mutable_embedding()->mutable_eviction()->set_ttl_ms(10'000);
  ASSERT_TRUE(Ensure({expires}).ok());
  auto rows = NewPush(1);
  rows.AddRows(TableIdOf("expires"), kDim, {{kKey, 1.0f}}, true);
  ASSERT_TRUE(Push(rows).ok());
  const ShardId shard = ShardOfKey(kKey, kShards);
  uint64_t term = 0;
  const auto expect_begins_with = [&](const char* what, const std::function<void()>& update) {
    const auto expect_term = [&] {
      store_->shards().Run(shard, [&](Shard* one) { EXPECT_EQ(one->term(), term) << what; });
    };
    store_->shards().Own(shard, term + 1);
    expect_term();
    update();
    ++term;
    expect_term();
  };
  expect_begins_with("a push", [&] { Bring(2, 0, 0, 1); });
  Bring(3, 0, 1, 1);
  expect_begins_with("a step that ends", [&] { ValuesAt(1); });
  expect_begins_with("settings", [&] {
    v1::TableSpec faster = AddingRows("async", kDim);
    faster.mutable_optimizer()->set_learning_rate(-2);
    EXPECT_TRUE(Ensure({faster}).ok());
  });
  expect_begins_with("settings that another ps told", [&] {
    v1::TableSpec told = *store_->tables().SpecOf("async");
    told.mutable_optimizer()->set_learning_rate(-3);
    told.set_revision(uint64_t{1} << 32);
    EXPECT_TRUE(store_->tables().Restore(told).ok());
    store_->shards().executors().Drain();
  });
  expect_begins_with("a sweep", [&] {
    while (StatusOf("expires").rows() > 0) {
      time_.AdvanceMs(10'001);
      store_->Tick();
      for (uint32_t step = 0; step < 2 * kShards; ++step) store_->shards().executors().Drain();
    }
  });
}

TEST_F(StepsTest, TokensMakeAStepOfWhateverComesAndNoPullWaits) {
  Make();
  v1::TableSpec spec = AddingRows("rows", kDim);
  spec.mutable_consistency()->mutable_tokens()->set_batch(2);
  spec.mutable_consistency()->mutable_tokens()->set_staleness(0);
  ASSERT_TRUE(Ensure({spec}).ok());
  const auto bring = [&](Sequence sequence, uint64_t token, float value) {
    auto push = NewPush(sequence);
    push.AddRows(TableIdOf("rows"), kDim, {{kKey, value}}, true);
    push.header.mutable_contribution()->set_step(token);
    push.header.mutable_contribution()->set_samples(1);
    EXPECT_TRUE(Push(push).ok());
  };
  bring(1, 0, 4);
  EXPECT_THAT(PullRows(TableIdOf("rows"), kDim, {kKey}), ElementsAre(0.0f));
  bring(2, 0, 8);
  EXPECT_THAT(PullRows(TableIdOf("rows"), kDim, {kKey}), ElementsAre(6.0f));
  bring(3, 0, 100);  // One step too old.
  bring(4, 1, 1);
  RequestBuilder<v1::PullRequest> pull(kShards);
  pull.header.set_steps_min(50);
  pull.AddRows(TableIdOf("rows"), kDim, {{kKey, 0.0f}}, false);
  const auto values = Pull(pull);
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(Floats(Concatenate(values->payload))[0], 7.0f);
  EXPECT_THAT(values->header.steps(), ElementsAre(2u));
  EXPECT_EQ(StatusOf("rows").contributions_too_old(), 1u);
  EXPECT_EQ(StatusOf("rows").token_age_p50(), 0u);
  EXPECT_EQ(StatusOf("rows").token_age_max(), 1u);
}

TEST_F(StepsTest, AStepIsOneStepOfTheScheduleAndOneCountForBroadcasts) {
  Make();
  rows_ = WithSync(AddingRows("rows", kDim), 2);
  rows_.mutable_optimizer()->mutable_schedule()->mutable_step()->set_every_steps(1);
  rows_.mutable_optimizer()->mutable_schedule()->mutable_step()->set_factor(0.5);
  rows_.mutable_broadcast()->set_every_pushes(2);
  ASSERT_TRUE(Ensure({rows_}).ok());
  std::atomic<int> due{0};
  store_->pushes().SetBroadcastListener(
      [&](std::span<const TableId> tables) { due += static_cast<int>(tables.size()); });
  const auto bring = [&](Sequence sequence, uint64_t step, uint32_t batch) {
    auto push = NewPush(sequence);
    push.AddRows(TableIdOf("rows"), kDim, {{kKey, 8.0f}}, true);
    push.header.mutable_contribution()->set_step(step);
    push.header.mutable_contribution()->set_batch(batch);
    push.header.mutable_contribution()->set_samples(1);
    EXPECT_TRUE(Push(push).ok());
  };
  for (uint64_t step = 0; step < 4; ++step) {
    bring(2 * step + 1, step, 0);
    bring(2 * step + 2, step, 1);
  }
  EXPECT_EQ(due.load(), 1);  // With the second step, that a contribution to the third ended.
  RequestBuilder<v1::PullRequest> pull(kShards);
  pull.header.set_steps_min(4);
  pull.AddRows(TableIdOf("rows"), kDim, {{kKey, 0.0f}}, false);
  const auto values = Pull(pull);
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(Floats(Concatenate(values->payload))[0], 8.0f + 4.0f + 2.0f + 1.0f);
  EXPECT_EQ(due.load(), 2);  // With the fourth, that the pull ended.
}

TEST_F(StepsTest, WhatWaitsCountsInTheMemoryOfItsTable) {
  Make();
  rows_ = WithSync(AddingRows("rows", 1024), 3);
  rows_.set_memory_max_bytes(64 << 10);
  ASSERT_TRUE(Ensure({rows_}).ok());
  const auto bring = [&](Sequence sequence, uint32_t batch, size_t rows) {
    auto push = NewPush(sequence);
    std::vector<std::pair<Key, float>> values;
    for (Key key = 0; values.size() < rows; ++key) {
      if (ShardOfKey(key, kShards) == 0) values.emplace_back(key, 1.0f);
    }
    push.AddRows(TableIdOf("rows"), 1024, values, true);
    push.header.mutable_contribution()->set_batch(batch);
    push.header.mutable_contribution()->set_samples(1);
    return Push(push).status();
  };
  ASSERT_TRUE(bring(1, 0, 2).ok());
  const uint64_t waiting = StatusOf("rows").bytes();
  EXPECT_GE(waiting, 2u * 2 * 1024 * sizeof(float));  // The gradients, and room for the rows.
  const absl::Status refused = bring(2, 1, 20);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("memory_max_bytes"));
  EXPECT_EQ(StatusOf("rows").bytes(), waiting);
}

TEST_F(StepsTest, ARollbackDropsWhatWaitsAndNoPullWaitsForItEver) {
  MakeTables();
  Bring(1, 0, 0, 4);
  Bring(2, 0, 1, 8);
  EXPECT_THAT(ValuesAt(1), Each(6.0f));
  Bring(3, 1, 0, 100);
  auto waiting = PullLater(PullOfAll(2));
  for (const char* const table : {"dense", "rows"}) {
    auto part = std::make_shared<TablePart>();  // Nothing: as the table was made.
    part->table = TableIdOf(table);
    for (ShardId shard = 0; shard < kShards; ++shard) {
      const auto version = store_->replayer().RollBack(shard, part);
      ASSERT_TRUE(version.ok()) << version.status();
    }
  }
  const auto values = waiting.get();
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_THAT(values->header.steps(), Each(2u));
  EXPECT_THAT(ValuesAt(2), Each(0.0f));
  const v1::PushResponse late = Bring(4, 1, 1, 100);
  EXPECT_TRUE(late.shards(0).late());
  EXPECT_THAT(ValuesAt(2), Each(0.0f));
  Bring(5, 2, 0, 1);
  Bring(6, 2, 1, 3);
  EXPECT_THAT(ValuesAt(3), Each(2.0f));
}

}  // namespace
}  // namespace lodestone::server
