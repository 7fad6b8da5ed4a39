// Tables whose steps wait in their shards for the rest of their batches: a ps that dies in the middle of a step comes
// back with what it had of it, from its log, its checkpoints, or on other servers.
#include <filesystem>
#include <latch>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard.h"
#include "tests/server/durability/storage_fixture.h"

namespace lodestone::server {
namespace {

using testing::Each;

constexpr uint32_t kStepBatches = 3;
constexpr Incarnation kStepWorkers[] = {100, 101, 102};

// Rows that a full table evicts, so that closing a step evicts some; with state and counts.
v1::TableSpec StepRows(const std::string& name) {
  v1::TableSpec spec = AddingRows(name, 2);
  spec.mutable_optimizer()->mutable_adam();
  spec.mutable_optimizer()->set_learning_rate(0.1f);
  spec.mutable_embedding()->mutable_eviction()->set_rows_max(120);
  spec.mutable_consistency()->mutable_sync()->set_batches(kStepBatches);
  return spec;
}

class StepsStorageTest : public StorageFixture {
 protected:
  StepsStorageTest() {
    specs_.push_back(AddingDense("dense", kElements, kBlockElements));
    specs_.back().mutable_consistency()->mutable_sync()->set_batches(kStepBatches);
    specs_.push_back(StepRows("rows"));
    specs_.push_back(StepRows("quorum"));
    specs_.back().mutable_consistency()->mutable_sync()->set_quorum(2);
    specs_.back().mutable_consistency()->mutable_sync()->set_late(v1::Consistency::Sync::CARRY);
    specs_.push_back(StepRows("grace"));
    specs_.back().mutable_consistency()->mutable_sync()->set_quorum(1);
    specs_.back().mutable_consistency()->mutable_sync()->set_grace_ms(40);
    specs_.push_back(StepRows("tokens"));
    specs_.back().mutable_consistency()->mutable_tokens()->set_batch(2);
    specs_.push_back(AddingRows("async", 2));
  }

  void Ensure(const Ps& ps) {
    for (const Incarnation worker : kStepWorkers) {
      v1::EnsureTablesRequest request;
      request.set_worker_incarnation(worker);
      for (const v1::TableSpec& spec : specs_) *request.add_tables() = spec;
      const auto response = ps.store->EnsureTables(request);
      ASSERT_TRUE(response.ok()) << response.status();
    }
  }

  // Gradients of one batch, as a function of the step and the batch alone.
  absl::Status Bring(const Ps& ps, uint64_t step, uint32_t batch, size_t worker) {
    std::mt19937 random(static_cast<uint32_t>(step * kStepBatches + batch + 1));
    RequestBuilder<v1::PushRequest> push(kShards);
    push.header.set_worker_incarnation(kStepWorkers[worker]);
    push.header.set_sequence(++sequence_);
    push.header.mutable_contribution()->set_step(step);
    push.header.mutable_contribution()->set_batch(batch);
    push.header.mutable_contribution()->set_samples(1 + random() % 7);
    const float value = static_cast<float>(random() % 100) / 7;
    push.AddDense(TableIdOf("dense"), {kElements, kBlockElements}, value);
    for (const v1::TableSpec& spec : specs_) {
      if (spec.has_dense()) continue;
      std::vector<std::pair<Key, float>> rows;
      for (int i = 0; i < 40; ++i) rows.emplace_back(random() % 400, static_cast<float>(random() % 100) / 9);
      push.AddRows(TableIdOf(spec.name()), 2, rows, true);
      std::set<ShardId> has;
      for (const auto& row : rows) has.insert(ShardOfKey(row.first, kShards));
      for (ShardId shard = 0; shard < kShards; ++shard) {  // Empty parts: a batch is a contribution to every shard.
        if (has.contains(shard)) continue;
        v1::Part* const part = push.header.add_parts();
        part->set_shard(shard);
        part->set_table(TableIdOf(spec.name()));
      }
    }
    const absl::Status status = Push(ps, push).status();
    if (absl::IsOutOfRange(status)) return absl::OkStatus();  // One of the tables is not so far yet.
    return status;
  }
  // The values of the dense table and the steps of all of its shards, when these have so many.
  absl::StatusOr<std::vector<uint64_t>> StepsAt(const Ps& ps, uint64_t steps_min,
                                                const std::vector<std::string>& tables = {"dense", "rows"}) {
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.header.set_steps_min(steps_min);
    for (const ShardId shard : ps.store->shards().owned()) {
      for (const std::string& table : tables) {
        v1::Part* const part = pull.header.add_parts();
        part->set_shard(shard);
        part->set_table(TableIdOf(table));
      }
    }
    absl::StatusOr<std::vector<uint64_t>> result;
    std::latch done(1);
    ps.store->pulls().Pull(pull.header, pull.payload(), [&](const absl::StatusOr<PullPath::Values>& values) {
      if (values.ok()) {
        result = std::vector<uint64_t>(values->header.steps().begin(), values->header.steps().end());
      } else {
        result = values.status();
      }
      done.count_down();
    });
    done.wait();
    return result;
  }

  std::vector<v1::TableSpec> specs_;
  Sequence sequence_ = 0;
};

TEST_F(StepsStorageTest, APsThatDiesInTheMiddleOfAStepHasWhatItHadOfIt) {
  const Ps ps = StartWell(config_);
  Ensure(ps);
  ASSERT_TRUE(Bring(ps, 0, 2, 0).ok());
  ASSERT_TRUE(Bring(ps, 0, 0, 1).ok());
  const Ps again = StartWell(Killed());
  EXPECT_EQ(Content(again), Content(ps));
  ASSERT_TRUE(Bring(again, 0, 0, 2).ok());  // Had it.
  ASSERT_TRUE(Bring(again, 0, 1, 2).ok());
  ASSERT_TRUE(StepsAt(again, 1).ok());
  ASSERT_TRUE(Bring(ps, 0, 1, 0).ok());
  EXPECT_THAT(*StepsAt(ps, 1), Each(1u));
  std::map<ShardId, uint64_t> sums[2];
  for (const Ps* const one : {&ps, &again}) {
    for (ShardId shard = 0; shard < kShards; ++shard) {
      one->store->shards().Run(shard, [&](Shard* owned) {
        Shard::State state = owned->CollectState(nullptr);
        state.windows.clear();  // Other workers brought it there.
        state.version = 0;
        sums[one == &again][shard] = ContentChecksum(state);
      });
    }
  }
  EXPECT_EQ(sums[0], sums[1]);
  // What a pull applied is in the log too.
  Ps third = StartWell(Killed());
  EXPECT_EQ(Content(third), Content(ps));
  EXPECT_THAT(*StepsAt(third, 1), Each(1u));
}

TEST_F(StepsStorageTest, CheckpointsOfTheMiddleOfAStepHaveWhatItHad) {
  const Ps ps = StartWell(config_);
  Ensure(ps);
  ASSERT_TRUE(Bring(ps, 0, 2, 0).ok());
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  ASSERT_TRUE(Bring(ps, 0, 0, 0).ok());
  ASSERT_TRUE(Bring(ps, 0, 1, 0).ok());
  ASSERT_TRUE(Bring(ps, 1, 1, 0).ok());
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());  // Builds on the first one.
  const std::map<ShardId, uint64_t> content = Content(ps);
  v1::Config config = Killed();
  // The log that came before is gone: all of it comes from the checkpoints.
  const Ps again = StartWell(config);
  EXPECT_EQ(Content(again), content);
  EXPECT_EQ(StatusOf(again).replayed_records(), 0u);
  EXPECT_THAT(*StepsAt(again, 1), Each(1u));
}

TEST_F(StepsStorageTest, WhateverComesAndWheneverItDiesItComesBackTheSame) {
  for (const uint32_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(seed);
    config_ = MakeConfig(absl::StrCat("random", seed));
    std::mt19937 random(seed);
    const Ps ps = StartWell(config_);
    Ensure(ps);
    uint64_t step = 0;
    for (int i = 0; i < 90; ++i) {
      time_.AdvanceMs(random() % 30);
      ps.store->CheckTime();
      const absl::Status status = Bring(ps, step + (random() % 8 == 0), random() % kStepBatches, random() % 3);
      ASSERT_TRUE(status.ok()) << status;
      bool complete = true;
      ps.store->shards().Run(0, [&](Shard* shard) {
        const StepCollector& collector = *shard->steps().Of(TableIdOf("dense"));
        complete = (collector.steps() == step && collector.complete()) || collector.steps() > step;
      });
      if (complete) ++step;
      if (complete && random() % 2 == 0) {
        ASSERT_TRUE(StepsAt(ps, step, {"dense"}).ok());
      }
      if (random() % 20 == 0) {
        ASSERT_TRUE(ps.storage->Checkpoint("").ok());
      }
      if (i == 40) {
        ASSERT_TRUE(ps.storage->Checkpoint("early").ok());
      }
      if (i == 60) {
        v1::RollbackRequest back;
        back.set_table(seed == 1 ? "dense" : seed == 2 ? "quorum" : "tokens");
        back.set_checkpoint("early");
        ASSERT_TRUE(ps.storage->Rollback(back).ok());
        step = std::max<uint64_t>(step, (*StepsAt(ps, 0, {"dense"}))[0]);
      }
      if (random() % 12 != 0) continue;
      Ps again = StartWell(Killed());
      ASSERT_EQ(Content(again), Content(ps)) << "after " << i;
    }
    EXPECT_GT(step, 5u);
  }
}

TEST_F(StepsStorageTest, CheckpointsOfTheMiddleOfAStepLoadOnAnotherNumberOfServers) {
  const std::string checkpoints = (root_ / "checkpoints").string();
  std::map<ShardId, uint64_t> content;
  config_.mutable_checkpoint()->set_dir(checkpoints);
  {
    const Ps ps = StartWell(config_);
    Ensure(ps);
    ASSERT_TRUE(Bring(ps, 0, 2, 0).ok());
    ASSERT_TRUE(Bring(ps, 0, 1, 0).ok());
    content = Content(ps);
    ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  }
  for (const uint32_t server : {0u, 1u}) {
    v1::Config config = MakeConfig(absl::StrCat("two", server));
    config.mutable_cluster()->set_servers(2);
    config.mutable_server()->set_index(server);
    config.mutable_checkpoint()->set_dir(checkpoints);
    const Ps ps = StartWell(config);
    for (const auto& [shard, sum] : Content(ps)) EXPECT_EQ(sum, content[shard]) << "shard " << shard;
    EXPECT_EQ(Content(ps).size(), kShards / 2);
  }
}

TEST_F(StepsStorageTest, ATablesConsistencyOfALaterWorkerComesBackWithItsSteps) {
  const v1::TableSpec rows = specs_[1];
  specs_[1].clear_consistency();
  const Ps ps = StartWell(config_);
  Ensure(ps);
  ASSERT_TRUE(Bring(ps, 0, 2, 0).ok());  // Of `rows` at once.
  specs_[1] = rows;
  Ensure(ps);
  ASSERT_TRUE(Bring(ps, 0, 1, 0).ok());
  Ps again = StartWell(Killed());
  EXPECT_EQ(Content(again), Content(ps));
  ASSERT_TRUE(ps.storage->Checkpoint("").ok());
  Ps third = StartWell(Killed());
  EXPECT_EQ(Content(third), Content(ps));
  ASSERT_TRUE(Bring(third, 0, 0, 0).ok());
  EXPECT_THAT(*StepsAt(third, 1, {"dense"}), Each(1u));
  EXPECT_THAT(*StepsAt(third, 0, {"rows"}), Each(0u));
}

// The first record of an owner tells the term before: where settings are brought that the shard has already, there is
// no record, and the term begins with the next one.
TEST_F(StepsStorageTest, AShardOfAnotherTermComesBackThoughSettingsWereBroughtThatItHad) {
  const Ps ps = StartWell(config_);
  Ensure(ps);
  v1::SetTableRequest request;
  request.set_table("rows");
  request.add_fields("consistency");
  request.mutable_settings()->mutable_consistency()->mutable_sync()->set_batches(kStepBatches);
  request.set_orders(1);
  ASSERT_TRUE(ps.store->tables().Set(request).ok());
  ASSERT_TRUE(Bring(ps, 0, 0, 0).ok());
  ps.store->shards().Own(0, /*term=*/5);
  const auto same = ps.store->tables().Set(request);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_FALSE(same->changed());
  ASSERT_TRUE(Bring(ps, 0, 1, 0).ok());
  EXPECT_EQ(Content(StartWell(Killed())), Content(ps));
}

}  // namespace
}  // namespace lodestone::server
