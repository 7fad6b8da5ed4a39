#include <sys/types.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/telemetry/log.h"
#include "gtest/gtest.h"
#include "proto/config.pb.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/kernel.h"
#include "tests/simulation/network.h"
#include "tests/simulation/run.h"

namespace lodestone::simulation {
namespace {

RunOptions SeedOptions(uint64_t seed) {
  RunOptions options;
  options.seed = seed;
  options.folder = absl::StrCat(::testing::TempDir(), "/simulation-", getpid());
  return options;
}

#ifdef LODESTONE_SANITIZER  // A cluster takes seconds there.
constexpr uint64_t kSeeds = 20;
#else
constexpr uint64_t kSeeds = 100;
#endif

class SimulationTest : public ::testing::Test {
 protected:
  SimulationTest() {
    v1::LogConfig log;  // Above all levels: processes that are killed have much to complain of.
    log.set_level(static_cast<v1::LogConfig::Level>(v1::LogConfig::ERROR + 1));
    InitLog(log, "simulation", "");
  }
};

TEST_F(SimulationTest, ThreadsWaitAndSleepOnTheSimulatedClock) {
  Kernel kernel(1, /*trace=*/false);
  Mutex mu;
  CondVar changed;
  bool ready = false;
  std::vector<std::string> order;
  const int64_t began_ms = kernel.NowMs();
  kernel.After(0, kernel.world(), [&] {
    Thread waits([&] {
      MutexLock lock(&mu);
      while (!ready) changed.Wait(&mu);
      order.push_back("woken");
    });
    Thread sleeps([&] {
      kernel.Sleep(3'600'000'000);
      MutexLock lock(&mu);
      ready = true;
      order.push_back("slept");
      changed.NotifyAll();
    });
    waits.join();
    sleeps.join();
    order.push_back("joined");
  });
  kernel.RunUntil(Simulation::kNever, [&] { return order.size() == 3; });
  EXPECT_EQ(order, (std::vector<std::string>{"slept", "woken", "joined"}));
  EXPECT_GE(SteadyTime().NowMs() - began_ms, 3'600'000);
}

TEST_F(SimulationTest, AStoppedProcessRunsNothingAndAKilledOneGetsNothingMore) {
  Kernel kernel(1, /*trace=*/false);
  const auto process = std::make_shared<Process>();
  int ran = 0;
  kernel.After(10, process, [&] { ++ran; });
  process->stopped = true;
  kernel.RunUntil(kernel.NowUs() + 100);
  EXPECT_EQ(ran, 0);
  kernel.Continue(process);
  kernel.RunUntil(kernel.NowUs() + 100);
  EXPECT_EQ(ran, 1);
  kernel.After(10, process, [&] { ++ran; });
  process->alive = false;
  kernel.RunUntil(kernel.NowUs() + 100);
  EXPECT_EQ(ran, 1);
}

TEST_F(SimulationTest, MessagesOfAConnectionArriveInOrderAndNotBetweenMachinesThatAreCutOff) {
  Kernel kernel(7, /*trace=*/false);
  Network network(&kernel);
  const auto a = std::make_shared<Process>(), b = std::make_shared<Process>();
  b->machine = 1;
  const LineRef line = network.Connect(a, b);
  std::string got;
  line->Listen(
      1, [&](const std::string& message) { got += message; }, [&](const absl::Status&) { got += "."; });
  network.Cut(0, 1);
  for (const char* const message : {"a", "b", "c", "d"}) line->Send(0, message);
  line->Close(0, absl::OkStatus());
  kernel.RunUntil(kernel.NowUs() + 1'000'000);
  EXPECT_EQ(got, "");
  network.Heal();
  kernel.RunUntil(kernel.NowUs() + 1'000'000);
  EXPECT_EQ(got, "abcd.");
}

// Regression (seed 5329): the second one took the end of the first along, and a follower listened for ever.
TEST_F(SimulationTest, AConnectionThatIsTornTwiceBeforeItsEndIsToldOfEndsOnce) {
  Kernel kernel(7, /*trace=*/false);
  Network network(&kernel);
  const auto a = std::make_shared<Process>(), b = std::make_shared<Process>();
  b->machine = 1;
  const LineRef line = network.Connect(a, b);
  int ends = 0;
  line->Listen(
      1, [&](const std::string&) { FAIL() << "it was torn"; }, [&](const absl::Status&) { ++ends; });
  line->Send(0, "lost");
  b->stopped = true;
  for (int i = 0; i < 2; ++i) {
    line->Tear();
    kernel.RunUntil(kernel.NowUs() + 1'000'000);
    EXPECT_EQ(ends, 0);
  }
  kernel.Continue(b);
  kernel.RunUntil(kernel.NowUs() + 1'000'000);
  EXPECT_EQ(ends, 1);
  line->Tear();
  kernel.RunUntil(kernel.NowUs() + 1'000'000);
  EXPECT_EQ(ends, 1);
}

TEST_F(SimulationTest, TheSameSeedGivesTheSameTraceAndAnotherSeedAnother) {
  const RunResult first = simulation::Run(SeedOptions(5)), again = simulation::Run(SeedOptions(5)),
                  other = simulation::Run(SeedOptions(6));
  EXPECT_EQ(first.hash, again.hash);
  EXPECT_EQ(first.events, again.events);
  EXPECT_NE(first.hash, other.hash);
}

TEST_F(SimulationTest, EveryAcknowledgedPushCountsOnceWhateverHappens) {
  uint64_t faults = 0, acknowledged = 0, resent = 0, times_back = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const RunResult result = simulation::Run(SeedOptions(seed));
    faults += result.faults;
    acknowledged += result.acknowledged;
    resent += result.resent;
    times_back += result.times_back;
    ASSERT_EQ(result.failure, "") << result.shape << "\nto see it again: tools/simulate --seed " << seed << " --trace";
  }
  std::printf("seeds 1 to %lu: %lu faults, %lu times back to a checkpoint, %lu pushes acknowledged\n", kSeeds, faults,
              times_back, acknowledged);
  EXPECT_GT(faults, 5 * kSeeds);
  EXPECT_GT(acknowledged, 250 * kSeeds);
  EXPECT_GT(resent, 5 * kSeeds);
  EXPECT_GT(times_back, kSeeds / 10);
}

}  // namespace
}  // namespace lodestone::simulation
