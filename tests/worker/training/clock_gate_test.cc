#include "worker/training/clock_gate.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/random.h"
#include "common/base/time_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/client/fake_client.h"

namespace lodestone::worker {
namespace {

using ::testing::HasSubstr;

// A coordinator that holds calls until the clocks of the others are where they are wanted.
class GateClocks {
 public:
  // Lets `client` speak in the name of worker `index`.
  void Connect(FakeClient* client, size_t index) {
    {
      MutexLock lock(&mu_);
      clocks_.resize(std::max(clocks_.size(), index + 1));
    }
    client->OnAskClock([this, index](const v1::AwaitClockRequest& request) { return Answer(index, request); },
                       [this, index](Clock clock) { Tell(index, clock); });
  }
  // The worker takes no further step.
  void Finish(size_t index) {
    MutexLock lock(&mu_);
    clocks_[index].trains = false;
    changed_.NotifyAll();
  }
  uint64_t asked() const { return asked_; }

 private:
  struct Of {
    bool trains = false;
    Clock clock = 0;
  };

  void Tell(size_t index, Clock clock) {
    MutexLock lock(&mu_);
    clocks_[index].clock = std::max(clocks_[index].clock, clock);
    changed_.NotifyAll();
  }
  absl::StatusOr<v1::AwaitClockResponse> Answer(size_t index, const v1::AwaitClockRequest& request) {
    ++asked_;
    MutexLock lock(&mu_);
    if (request.has_own_clock()) {
      clocks_[index].trains = true;
      clocks_[index].clock = std::max(clocks_[index].clock, Clock{request.own_clock()});
      changed_.NotifyAll();
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(request.timeout_ms());
    v1::AwaitClockResponse response;
    while (true) {
      Clock lowest = std::numeric_limits<Clock>::max(), newest = 0;
      for (size_t i = 0; i < clocks_.size(); ++i) {
        if (i == index || !clocks_[i].trains) continue;
        lowest = std::min(lowest, clocks_[i].clock);
        newest = std::max(newest, clocks_[i].clock);
      }
      response.set_lowest(lowest);
      response.set_newest(newest);
      response.set_reached(lowest >= request.clock());
      if (response.reached() || std::chrono::steady_clock::now() >= deadline) return response;
      changed_.WaitUntil(&mu_, deadline);
    }
  }

  Mutex mu_;
  CondVar changed_;
  std::vector<Of> clocks_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> asked_{0};
};

// Workers of the test; each of their steps checks the others' clocks from outside.
class ClockGateTest : public testing::TestWithParam<uint32_t> {
 protected:
  static constexpr uint64_t kSeed = 20261124;

  void Add(bool moves_up = false) {
    const size_t index = clients_.size();
    clients_.push_back(std::make_unique<FakeClient>(8, index));
    clocks_.Connect(clients_.back().get(), index);
    gates_.push_back(std::make_unique<ClockGate>(
        clients_.back().get(),
        ClockGate::Options{
            .staleness = GetParam(), .moves_up = moves_up, .retry_timeout_ms = 0, .time = &time_, .stops = [this] {
              return stops_.load();
            }}));
    takes_part_.push_back(std::make_unique<std::atomic<bool>>(false));
  }
  // Takes so many steps, with pushes in flight, some of which take long.
  void Train(size_t index, int steps, uint64_t pauses) {
    ClockGate* const gate = gates_[index].get();
    ASSERT_TRUE(gate->Start().ok());
    *takes_part_[index] = true;
    std::deque<Clock> in_flight;
    for (int step = 0; step < steps; ++step) {
      while (in_flight.size() > RandomBits(kSeed + index, step) % 3) {
        gate->Acknowledged(in_flight.front());
        in_flight.pop_front();
      }
      const auto clock = AwaitWith(gate, &in_flight);
      ASSERT_TRUE(clock.ok()) << clock.status();
      for (size_t other = 0; other < gates_.size(); ++other) {
        if (other == index || !*takes_part_[other]) continue;
        const Clock reached = gates_[other]->clock();
        if (!*takes_part_[other]) continue;  // Its last step ended meanwhile.
        EXPECT_GE(reached + GetParam() + 1, *clock) << "worker " << index << " reads without worker " << other;
      }
      in_flight.push_back(*clock);
      for (uint64_t i = 0; i < RandomBits(kSeed - index, step) % (pauses + 1); ++i) std::this_thread::yield();
    }
    while (!in_flight.empty()) {
      gate->Acknowledged(in_flight.front());
      in_flight.pop_front();
    }
    *takes_part_[index] = false;
    gate->Stop();  // It says no more that it trains.
    clocks_.Finish(index);
  }
  // Await, while pushes go on being acknowledged.
  static absl::StatusOr<Clock> AwaitWith(ClockGate* gate, std::deque<Clock>* in_flight) {
    std::thread acknowledged([gate, in_flight] {
      while (!in_flight->empty()) {
        std::this_thread::yield();
        gate->Acknowledged(in_flight->front());
        in_flight->pop_front();
      }
    });
    const absl::StatusOr<Clock> clock = gate->Await();
    acknowledged.join();
    return clock;
  }

  const SteadyTime time_{};
  GateClocks clocks_;
  std::atomic<bool> stops_{false};
  std::vector<std::unique_ptr<FakeClient>> clients_;
  std::vector<std::unique_ptr<std::atomic<bool>>> takes_part_;
  std::vector<std::unique_ptr<ClockGate>> gates_;
};

TEST_P(ClockGateTest, NoStepReadsWithoutAnUpdateOlderThanTheStaleness) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  constexpr int kSteps = 200;
  for (int i = 0; i < 3; ++i) Add();
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 3; ++i) threads.emplace_back([this, i] { Train(i, kSteps, i * 50); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& gate : gates_) {
    EXPECT_GE(gate->clock(), kSteps);
    EXPECT_LE(gate->Observed().behind_max(), GetParam());
  }
}

TEST_P(ClockGateTest, ASlowWorkerWithFewerStepsDoesNotHoldTheOthersUpWhereItsClockMovesUp) {
  for (int i = 0; i < 3; ++i) Add(/*moves_up=*/true);
  std::vector<std::thread> threads;
  threads.emplace_back([this] { Train(0, 20, 20'000); });
  for (size_t i = 1; i < 3; ++i) threads.emplace_back([this, i] { Train(i, 300, 10); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(gates_[1]->clock(), 300u);
}

TEST_P(ClockGateTest, AWorkerThatJoinsLateBeginsAtTheNewestClockAndOneThatIsAloneWaitsForNobody) {
  Add();
  Train(0, 50, 0);
  EXPECT_EQ(gates_[0]->clock(), 50u);
  Add(), Add();
  std::thread first([this] { Train(1, 100, 10); });
  while (gates_[1]->clock() < 30) std::this_thread::yield();
  Train(2, 20, 0);
  first.join();
  EXPECT_GE(gates_[2]->clock(), 20u);
}

TEST_P(ClockGateTest, AWorkerWithoutABatchFollowsTheOthers) {
  Add(/*moves_up=*/true), Add(/*moves_up=*/true);
  ASSERT_TRUE(gates_[0]->Start().ok());
  gates_[0]->SetIdle(true);
  Train(1, 100, 0);
  EXPECT_GE(gates_[0]->clock() + GetParam() + 1, 100u);
}

TEST_P(ClockGateTest, StoppingEndsTheWait) {
  Add(), Add();
  ASSERT_TRUE(gates_[0]->Start().ok());
  ASSERT_TRUE(gates_[1]->Start().ok());
  for (uint32_t i = 0; i <= GetParam(); ++i) ASSERT_NE(*gates_[0]->Await(), 0u);
  stops_ = true;
  EXPECT_EQ(*gates_[0]->Await(), 0u) << "the other has not taken a step";
  EXPECT_GT(gates_[0]->Observed().waited_seconds(), 0);
}

TEST_P(ClockGateTest, ACoordinatorThatTellsNoClocksIsRefused) {
  Add();
  clients_[0]->OnAskClock([](const v1::AwaitClockRequest&) {
    v1::AwaitClockResponse response;
    response.set_reached(true);
    return response;
  });
  EXPECT_THAT(gates_[0]->Start().message(), HasSubstr("start the ps with a version as new as this worker's"));
}

INSTANTIATE_TEST_SUITE_P(Staleness, ClockGateTest, testing::Values(0, 1, 4), testing::PrintToStringParamName());

}  // namespace
}  // namespace lodestone::worker
