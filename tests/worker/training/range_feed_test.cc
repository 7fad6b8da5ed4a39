// The feed against the coordinator's own Membership, behind FakeClients.
#include "worker/training/range_feed.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/membership.h"
#include "tests/worker/client/fake_client.h"
#include "worker/data/epoch_batches.h"

namespace lodestone::worker {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kFedSamples = 100, kFedBatch = 10;

// A coordinator that several clients ask.
class RangeCoordinator {
 public:
  RangeCoordinator() {
    server::Membership::Options options;
    options.cluster = "test";
    options.workers = 1;
    options.lease_ms = kLeaseMs;
    options.time = &time_;
    members_ = std::make_unique<server::Membership>(options);
  }

  // Lets `client` ask in the name of a worker that joins now.
  Incarnation Join(FakeClient* client) {
    v1::JoinRequest join;
    join.set_role(v1::ROLE_WORKER);
    join.set_cluster("test");
    join.set_any_place(true);
    MutexLock lock(&mu_);
    const Incarnation incarnation = members_->Join(join)->incarnation();
    client->OnLeaseRanges([this, incarnation](v1::LeaseRangesRequest request) {
      request.set_incarnation(incarnation);
      MutexLock lock(&mu_);
      ++asked_;
      return members_->LeaseRanges(request);
    });
    return incarnation;
  }
  // All workers that have joined so far are dead.
  void EndLeases() {
    MutexLock lock(&mu_);
    time_.AdvanceMs(kLeaseMs + 1);
    members_->TakeExpired();
  }
  v1::RangeState State() {
    MutexLock lock(&mu_);
    return members_->ranges().state();
  }
  // Whether no worker trains.
  bool Pause(bool end = false) {
    v1::PauseTrainingRequest request;
    request.set_end(end);
    MutexLock lock(&mu_);
    request.set_token(end ? token_++ : token_);
    const auto response = members_->PauseTraining(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() && response->at_rest();
  }
  int asked() const { return asked_; }

 private:
  static constexpr uint32_t kLeaseMs = 1000;

  ManualTime time_;
  Mutex mu_;
  uint64_t token_ = 1;
  std::unique_ptr<server::Membership> members_;
  std::atomic<int> asked_{0};
};

// A worker of the test.
struct FedWorker {
  explicit FedWorker(RangeCoordinator* coordinator, const v1::Config& config, uint32_t index = 0,
                     const std::optional<v1::Consistency::Sync>& sync = std::nullopt, uint64_t steps = 0)
      : client(8, index), batches(kFedSamples, 2, kFedBatch, 7, true) {
    coordinator->Join(&client);
    Begin(config, sync, steps, /*orders=*/0);
  }
  void Begin(const v1::Config& config, const std::optional<v1::Consistency::Sync>& sync, uint64_t steps,
             uint64_t orders) {
    feed = std::make_unique<RangeFeed>(&client, &batches,
                                       RangeFeed::Options{.plan = PlanOf(config, kFedSamples, &batches, sync),
                                                          .retry_timeout_ms = 0,
                                                          .time = &time,
                                                          .steps = steps,
                                                          .orders = orders,
                                                          .stops = [this] {
                                                            ++looked;
                                                            return stops.load();
                                                          }});
  }
  // Trains the next batch; false at the end.
  bool Train(std::map<uint64_t, int>* trained) {
    BatchPipeline::Assignment batch;
    const auto more = feed->Next(&batch);
    EXPECT_TRUE(more.ok()) << more.status();
    if (!more.ok() || !*more) return false;
    for (const uint64_t sample : batch.indices) ++(*trained)[sample];
    feed->Acknowledged(batch.range.incarnation, batch.sequence);
    return true;
  }

  FakeClient client;
  EpochBatches batches;
  const SteadyTime time{};
  std::atomic<bool> stops{false};
  std::atomic<int> looked{0};  // Times that it was asked whether it stops.
  std::unique_ptr<RangeFeed> feed;
};

class RangeFeedTest : public testing::Test {
 protected:
  RangeFeedTest() {
    config_.mutable_train()->set_epochs(2);
    config_.mutable_train()->set_batch_size(kFedBatch);
    config_.mutable_train()->set_shuffle(true);
    config_.mutable_train()->set_range_batches(3);
  }
  void ExpectAllTrained() const {
    ASSERT_EQ(trained_.size(), kFedSamples);
    for (const auto& [sample, times] : trained_) EXPECT_EQ(times, 2) << "sample " << sample;
  }

  // The coordinator has workers pause, of which these are all.
  void AwaitPause(const std::vector<FedWorker*>& workers) {
    (void)coordinator_.Pause();
    for (FedWorker* worker : workers) worker->client.announce_pause = true;
    for (FedWorker* worker : workers) {
      while (!worker->feed->paused()) std::this_thread::yield();
      worker->client.announce_pause = false;
    }
  }

  v1::Config config_;
  RangeCoordinator coordinator_;
  std::map<uint64_t, int> trained_;  // How often, by sample.
};

TEST_F(RangeFeedTest, OneWorkerGetsEverySampleOnceInEachEpochInTheOrderOfThePartition) {
  FedWorker worker(&coordinator_, config_);
  EpochBatches alone(kFedSamples, 2, kFedBatch, 7, true);
  std::vector<uint64_t> indices;
  BatchPipeline::Assignment batch;
  while (alone.Next(&indices)) {
    ASSERT_TRUE(*worker.feed->Next(&batch));
    EXPECT_EQ(batch.indices, indices);
    worker.feed->Acknowledged(batch.range.incarnation, batch.sequence);
  }
  EXPECT_FALSE(*worker.feed->Next(&batch));
  EXPECT_EQ(*worker.feed->Finish([] { return false; }), RangeFeed::Ending::kEvaluate);
  EXPECT_TRUE(worker.feed->complete());
  EXPECT_TRUE(worker.feed->Evaluated().ok());
  EXPECT_TRUE(coordinator_.State().over());
}

TEST_F(RangeFeedTest, TheSecondWorkerTakesWhatTheFirstGivesBack) {
  FedWorker first(&coordinator_, config_), second(&coordinator_, config_, 1);
  ASSERT_TRUE(second.Train(&trained_)) << "it takes part, so that the first need not evaluate";
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(first.Train(&trained_));
  BatchPipeline::Assignment read_ahead;
  ASSERT_TRUE(*first.feed->Next(&read_ahead)) << "and not trained";
  first.feed->Stop();
  EXPECT_FALSE(*first.feed->Next(&read_ahead));
  EXPECT_EQ(*first.feed->Finish([] { return true; }), RangeFeed::Ending::kStopped);
  while (second.Train(&trained_)) {
  }
  ExpectAllTrained();
}

TEST_F(RangeFeedTest, AStepThatIsTrainedAgainHasTheIdentityThatItHad) {
  FedWorker dead(&coordinator_, config_);
  BatchPipeline::Assignment lost;
  ASSERT_TRUE(*dead.feed->Next(&lost));
  dead.feed.reset();
  coordinator_.EndLeases();
  FedWorker next(&coordinator_, config_);
  BatchPipeline::Assignment again;
  ASSERT_TRUE(*next.feed->Next(&again));
  EXPECT_EQ(again.range.incarnation, lost.range.incarnation);
  EXPECT_EQ(again.sequence, lost.sequence);
  EXPECT_EQ(again.indices, lost.indices);
  EXPECT_EQ(again.number, lost.number);
}

TEST_F(RangeFeedTest, AWorkerWithoutARangeWaitsForThoseOfOthers) {
  FedWorker holder(&coordinator_, config_);
  std::vector<BatchPipeline::Assignment> held;
  std::map<uint64_t, int> trained_held;  // By the holder, after that.
  BatchPipeline::Assignment batch;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(*holder.feed->Next(&batch));
    held.push_back(batch);
  }
  FedWorker waiting(&coordinator_, config_, 1);
  std::thread other([&] {
    while (waiting.Train(&trained_)) {
    }
  });
  // It has trained what is left but for the holder's ranges, and asks again and again for these.
  while (coordinator_.State().next_batch() < 20 || coordinator_.State().open_size() > 2) std::this_thread::yield();
  const int asked = coordinator_.asked();
  while (coordinator_.asked() < asked + 3) std::this_thread::yield();
  for (const BatchPipeline::Assignment& of : held) {
    for (const uint64_t sample : of.indices) ++trained_held[sample];
    holder.feed->Acknowledged(of.range.incarnation, of.sequence);
  }
  while (holder.Train(&trained_held)) {
  }
  other.join();
  for (const auto& [sample, times] : trained_held) trained_[sample] += times;
  ExpectAllTrained();
}

TEST_F(RangeFeedTest, AWorkerThatWaitsForARangeStops) {
  FedWorker holder(&coordinator_, config_);
  BatchPipeline::Assignment batch;
  ASSERT_TRUE(*holder.feed->Next(&batch));
  FedWorker waiting(&coordinator_, config_, 1);
  bool ended = false;
  std::thread other([&] {
    while (waiting.Train(&trained_)) {
    }
    ended = true;
  });
  const int before = waiting.looked;
  while (waiting.looked < before + 2) std::this_thread::yield();  // The holder has what is left.
  waiting.stops = true;
  other.join();
  EXPECT_TRUE(ended);
  EXPECT_FALSE(waiting.feed->complete());
}

TEST_F(RangeFeedTest, ACoordinatorThatRefusesEndsIt) {
  FedWorker worker(&coordinator_, config_);
  BatchPipeline::Assignment batch;
  ASSERT_TRUE(*worker.feed->Next(&batch));
  coordinator_.EndLeases();
  absl::StatusOr<bool> more = true;
  while (more.ok() && *more) more = worker.feed->Next(&batch);
  EXPECT_EQ(more.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RangeFeedTest, ACoordinatorThatShutsDownIsAskedAgain) {
  FakeClient client;
  EpochBatches batches(kFedSamples, 2, kFedBatch, 7, true);
  const SteadyTime time;
  std::atomic<int> asked{0};
  client.OnLeaseRanges([&](const v1::LeaseRangesRequest&) -> absl::StatusOr<v1::LeaseRangesResponse> {
    if (++asked == 1) return absl::CancelledError("the server is shut down");
    v1::LeaseRangesResponse response;
    response.mutable_lease()->set_incarnation(100);
    response.mutable_lease()->set_batches(1);
    return response;
  });
  RangeFeed feed(&client, &batches, {.plan = PlanOf(config_, kFedSamples, &batches), .time = &time});
  BatchPipeline::Assignment batch;
  const auto more = feed.Next(&batch);
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_TRUE(*more);
  EXPECT_EQ(batch.range.incarnation, 100u);
  EXPECT_GE(asked, 2);
}

TEST_F(RangeFeedTest, SynchronousStepsAreTheSameContributionsHoweverManyWorkersThereAre) {
  v1::Consistency::Sync sync;
  sync.set_batches(3);
  std::map<std::pair<uint64_t, uint32_t>, std::vector<uint64_t>> alone, together;  // Samples by step and batch.
  const auto train = [](FedWorker* worker, auto* into, Mutex* mu) {
    BatchPipeline::Assignment batch;
    while (true) {
      const auto more = worker->feed->Next(&batch);
      ASSERT_TRUE(more.ok()) << more.status();
      if (!*more) return;
      EXPECT_EQ(batch.contribution->samples(), batch.indices.size());
      {
        MutexLock lock(mu);
        const auto [at, fresh] =
            into->emplace(std::pair(batch.contribution->step(), batch.contribution->batch()), batch.indices);
        EXPECT_TRUE(fresh) << "step " << at->first.first << " batch " << at->first.second << " twice";
        for (const auto& [key, samples] : *into) EXPECT_LE(key.first, batch.contribution->step());
      }
      worker->feed->Acknowledged(batch.range.incarnation, batch.sequence);
    }
  };
  Mutex mu;
  {
    FedWorker worker(&coordinator_, config_, 0, sync, /*steps=*/5);
    train(&worker, &alone, &mu);
    EXPECT_EQ(*worker.feed->Finish([] { return false; }), RangeFeed::Ending::kEvaluate);
    EXPECT_EQ(worker.feed->steps_done(), 12u);
  }
  EXPECT_EQ(alone.size(), 21u) << "20 batches in steps of 3: the last two are 3 smaller ones";
  EXPECT_EQ(alone.begin()->first.first, 5u);
  EXPECT_EQ(alone.rbegin()->first.first, 11u);
  std::map<uint64_t, int> visits;
  for (const auto& [key, samples] : alone) {
    for (const uint64_t sample : samples) ++visits[sample];
  }
  for (const auto& [sample, times] : visits) EXPECT_EQ(times, 2) << "sample " << sample;
  RangeCoordinator coordinator;
  FedWorker first(&coordinator, config_, 0, sync, 5), second(&coordinator, config_, 1, sync, 5);
  std::thread other([&] { train(&second, &together, &mu); });
  train(&first, &together, &mu);
  other.join();
  EXPECT_EQ(together, alone);
}

// A coordinator that is started again does not know of the last steps.
TEST_F(RangeFeedTest, WhatWasOnceDoneIsSaidToACoordinatorThatWasStartedAgain) {
  v1::Consistency::Sync sync;
  sync.set_batches(3);
  FakeClient client;
  EpochBatches batches(kFedSamples, 2, kFedBatch, 7, true);
  const SteadyTime time;
  std::atomic<uint64_t> told{0};
  client.OnLeaseRanges([&](const v1::LeaseRangesRequest& request) {
    told = request.steps();
    v1::LeaseRangesResponse response;
    response.set_complete(!request.finished());
    response.set_evaluate(request.finished());
    response.set_steps(request.finished() ? 6 : 7);
    return response;
  });
  RangeFeed feed(&client, &batches, {.plan = PlanOf(config_, kFedSamples, &batches, sync), .time = &time});
  BatchPipeline::Assignment batch;
  EXPECT_FALSE(*feed.Next(&batch));
  EXPECT_EQ(*feed.Finish([] { return false; }), RangeFeed::Ending::kEvaluate);
  EXPECT_EQ(feed.steps_done(), 7u);
  EXPECT_EQ(told, 0u) << "that all shards have them is not known before they are asked";
  feed.NoteSteps(7);
  ASSERT_TRUE(feed.Evaluated().ok());
  EXPECT_EQ(told, 7u);
}

TEST_F(RangeFeedTest, APauseEndsItBetweenTwoStepsAndFeedsOfOtherOrdersGoOnWithTheRest) {
  v1::Consistency::Sync sync;
  sync.set_batches(3);
  FedWorker first(&coordinator_, config_), second(&coordinator_, config_, 1);
  const std::vector<FedWorker*> workers = {&first, &second};
  uint64_t orders = 0;
  std::optional<v1::Consistency::Sync> order;
  for (const bool steps : {true, false, true}) {
    for (FedWorker* worker : workers) worker->stops = true;  // So that it does not wait for what the other has.
    for (int left = 3; left > 0;) {                          // Batches; of synchronous ones, a step.
      for (FedWorker* worker : workers) left -= left > 0 && worker->Train(&trained_) ? 1 : 0;
    }
    for (FedWorker* worker : workers) worker->stops = false;
    AwaitPause({&first, &second});
    for (FedWorker* worker : workers) {
      while (worker->Train(&trained_)) {  // What it has of a step.
      }
    }
    std::vector<std::thread> threads;
    Mutex mu;
    std::vector<uint64_t> followed;
    for (FedWorker* worker : workers) {
      threads.emplace_back([&, worker] {
        std::map<uint64_t, int> trained;
        for (;;) {
          const auto goes_on = worker->feed->AwaitEndOfPause([] { return false; });
          ASSERT_TRUE(goes_on.ok() && goes_on->has_value()) << goes_on.status();
          if (**goes_on != orders) {
            MutexLock lock(&mu);
            followed.push_back(**goes_on);
            for (const auto& [sample, times] : trained) trained_[sample] += times;
            return;
          }
          // It is to come back: both have brought a batch of a step, which lacks the third.
          worker->feed.reset();
          worker->Begin(config_, order, 0, orders);
          while (worker->Train(&trained)) {
          }
        }
      });
    }
    while (!coordinator_.Pause()) std::this_thread::yield();
    coordinator_.Pause(/*end=*/true);
    for (std::thread& thread : threads) thread.join();
    orders += 2;
    EXPECT_EQ(followed, std::vector<uint64_t>(2, orders));
    order = steps ? std::optional(sync) : std::nullopt;
    for (FedWorker* worker : workers) {
      worker->feed.reset();
      worker->Begin(config_, order, 0, orders);
    }
    if (HasFailure()) return;
  }
  std::thread other([&] {
    std::map<uint64_t, int> trained;
    while (second.Train(&trained)) {
    }
    while (!first.feed->complete()) std::this_thread::yield();
    for (const auto& [sample, times] : trained) trained_[sample] += times;
  });
  std::map<uint64_t, int> trained;
  while (first.Train(&trained)) {
  }
  other.join();
  for (const auto& [sample, times] : trained) trained_[sample] += times;
  ExpectAllTrained();
  EXPECT_EQ(coordinator_.State().batches_closed(), coordinator_.State().batches_total());
}

TEST_F(RangeFeedTest, AWorkerThatIsToStopDoesNotWaitForTheEndOfAPause) {
  FedWorker worker(&coordinator_, config_);
  ASSERT_TRUE(worker.Train(&trained_));
  AwaitPause({&worker});
  BatchPipeline::Assignment batch;
  EXPECT_FALSE(*worker.feed->Next(&batch));
  const auto goes_on = worker.feed->AwaitEndOfPause([] { return true; });
  ASSERT_TRUE(goes_on.ok()) << goes_on.status();
  EXPECT_FALSE(goes_on->has_value());
  EXPECT_EQ(*worker.feed->Finish([] { return true; }), RangeFeed::Ending::kEvaluate) << "no other worker trains";
}

TEST_F(RangeFeedTest, APlanSaysWhatIsTrainedOn) {
  config_.mutable_train()->set_run("monday");
  config_.mutable_cluster()->set_seed(9);
  EpochBatches batches(kFedSamples, 2, kFedBatch, 7, true);
  const v1::RangePlan plan = PlanOf(config_, kFedSamples, &batches);
  EXPECT_EQ(plan.run(), "monday");
  EXPECT_EQ(plan.description(), "100 samples, 2 epochs, batches of 10, shuffled by seed 9");
  EXPECT_EQ(plan.batches(), 20u);
  EXPECT_EQ(plan.epoch_batches(), 10u);
  EXPECT_EQ(plan.samples(), 200u);
  config_.mutable_train()->set_range_batches(0);
  EXPECT_EQ(PlanOf(config_, kFedSamples, &batches).range_batches(), 64u);
  config_.mutable_train()->set_shuffle_window(50);
  EXPECT_EQ(PlanOf(config_, kFedSamples, &batches).description(),
            "100 samples, 2 epochs, batches of 10, shuffled by seed 9 in windows of 50");
}

}  // namespace
}  // namespace lodestone::worker
