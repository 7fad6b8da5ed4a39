#include "server/shard/spread.h"

#include <cstddef>
#include <cstdint>
#include <latch>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

constexpr size_t kSmall = kGroupRowsMin - 1;

void Compute(int steps) {
  volatile uint64_t work = 0;
  for (int i = 0; i < steps; ++i) work = work + 1;
}

// Which of the shares ran on the thread that submitted them, in their order.
std::vector<bool> RunHere(const std::vector<size_t>& rows, bool (*idle)()) {
  std::vector<char> here(rows.size());
  std::latch all(static_cast<std::ptrdiff_t>(rows.size()));
  std::vector<std::unique_ptr<Executor>> executors;  // End first.
  std::vector<Share> shares;
  for (size_t i = 0; i < rows.size(); ++i) {
    executors.push_back(std::make_unique<Executor>());
    shares.push_back({executors[i].get(), rows[i], [&, i, caller = std::this_thread::get_id()] {
                        here[i] = std::this_thread::get_id() == caller;
                        all.count_down();
                      }});
  }
  Spread(std::move(shares), idle);
  all.wait();
  return {here.begin(), here.end()};
}

bool Idle() { return true; }
bool Busy() { return false; }
bool NotAsked() {
  ADD_FAILURE() << "there is nothing to hand over";
  return true;
}

TEST(Spread, ABusyPsRunsAllSharesOnTheThreadThatHasThem) {
  EXPECT_EQ(RunHere({kGroupRowsMin, kGroupRowsMin, kSmall}, Busy), std::vector<bool>({true, true, true}));
}

TEST(Spread, AnIdlePsHandsAllButTheLastGroupOver) {
  EXPECT_EQ(RunHere({kGroupRowsMin, kGroupRowsMin, kGroupRowsMin}, Idle), std::vector<bool>({false, false, true}));
  EXPECT_EQ(RunHere({kSmall, kGroupRowsMin, kSmall, 0}, Idle), std::vector<bool>({false, false, true, true}));
  // With many executors each has few rows of a call: together they are worth it.
  EXPECT_EQ(RunHere(std::vector<size_t>(8, kGroupRowsMin / 2), Idle),
            std::vector<bool>({false, false, false, false, false, false, true, true}));
}

TEST(Spread, AsksWhetherThePsIsIdleOnlyIfThatMatters) {
  EXPECT_EQ(RunHere({}, NotAsked), std::vector<bool>());
  EXPECT_EQ(RunHere({kGroupRowsMin}, NotAsked), std::vector<bool>({true}));
  EXPECT_EQ(RunHere({kSmall, kGroupRowsMin}, NotAsked), std::vector<bool>({true, true}));
}

TEST(Spread, SharesRunAtTheSameTime) {
  std::latch both(2);
  Executor first, second;  // End first.
  Spread({{&first, kGroupRowsMin, [&] { both.arrive_and_wait(); }},
          {&second, kGroupRowsMin, [&] { both.arrive_and_wait(); }}},
         Idle);
}

TEST(Spread, AShareOfABusyExecutorWaitsForIt) {
  std::latch busy(1), may_end(1), done(1);
  Executor executor;  // Ends first.
  std::thread first([&] {
    executor.Submit([&] {
      busy.count_down();
      may_end.wait();
    });
  });
  busy.wait();
  bool ended = false;
  Spread({{&executor, 1,
           [&] {
             EXPECT_TRUE(ended);
             done.count_down();
           }}},
         NotAsked);
  ended = true;
  may_end.count_down();
  first.join();
  done.wait();
}

TEST(HasIdled, TellsWhetherTheThreadHasWaited) {
  HasIdled();
  // Sooner or later each of these happens, however the machine treats this thread.
  while (!HasIdled()) std::thread([] { Compute(1'000'000); }).join();
  while (HasIdled()) Compute(10'000);
}

}  // namespace
}  // namespace lodestone::server
