#include "server/shard/spread.h"

#include <latch>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone {
namespace {

constexpr uint64_t kSmall = kShareBytesLarge - 1;

// Which of the shares ran on the thread that submitted them, in their order. Those that did not must run at the same
// time as the last: it waits for them.
std::vector<bool> RunHere(const std::vector<uint64_t>& bytes, bool idle, std::ptrdiff_t elsewhere) {
  std::vector<std::unique_ptr<Executor>> executors;
  std::vector<char> here(bytes.size());
  std::latch others(elsewhere), all(static_cast<std::ptrdiff_t>(bytes.size()));
  std::vector<Share> shares;
  for (size_t i = 0; i < bytes.size(); ++i) {
    executors.push_back(std::make_unique<Executor>());
    shares.push_back({executors[i].get(), bytes[i], [&, i, caller = std::this_thread::get_id()] {
                        here[i] = std::this_thread::get_id() == caller;
                        if (!here[i]) others.count_down();
                        if (i + 1 == bytes.size()) others.wait();
                        all.count_down();
                      }});
  }
  Spread(std::move(shares), idle);
  all.wait();
  return {here.begin(), here.end()};
}

TEST(Spread, ABusyPsRunsAllSharesOnTheThreadThatHasThem) {
  EXPECT_EQ(RunHere({kShareBytesLarge, kShareBytesLarge, kSmall}, /*idle=*/false, 0),
            std::vector<bool>({true, true, true}));
}

TEST(Spread, AnIdlePsRunsLargeSharesAtTheSameTime) {
  EXPECT_EQ(RunHere({kShareBytesLarge, kShareBytesLarge, kShareBytesLarge}, /*idle=*/true, 2),
            std::vector<bool>({false, false, true}));
}

TEST(Spread, SmallSharesAreNotWorthAnotherThread) {
  EXPECT_EQ(RunHere({kSmall, kShareBytesLarge, kSmall, 0}, /*idle=*/true, 1),
            std::vector<bool>({true, false, true, true}));
}

TEST(Spread, AShareOfABusyExecutorWaitsForIt) {
  Executor executor;
  std::latch busy(1), may_end(1), done(1);
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
         /*idle=*/true);
  ended = true;
  may_end.count_down();
  first.join();
  done.wait();
}

TEST(HasIdled, TellsWhetherTheThreadHasWaited) {
  HasIdled();
  // However the machine treats this thread, sooner or later it waits for most of a round in which it does nothing else.
  bool idled = false;
  while (!idled) {
    std::latch started(1);
    std::thread other([&] {
      volatile uint64_t work = 0;
      for (int i = 0; i < 1'000'000; ++i) work = work + 1;
      started.count_down();
    });
    started.wait();
    other.join();
    idled = HasIdled();
  }
  // And computes for most of another.
  while (HasIdled()) {
    volatile uint64_t work = 0;
    for (int i = 0; i < 1'000'000; ++i) work = work + 1;
  }
}

}  // namespace
}  // namespace lodestone
