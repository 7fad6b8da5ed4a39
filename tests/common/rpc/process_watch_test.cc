#include "common/rpc/process_watch.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "gtest/gtest.h"
#include "tests/common/rpc/listener.h"
#include "tests/common/rpc/reserved_port.h"

namespace lodestone {
namespace {

constexpr int kAwaitMs = 60'000;  // What is waited for comes at once, or the test fails.

// Who was told to be gone.
class Deaths {
 public:
  // Says of the first `doubts` deaths that they are none.
  explicit Deaths(int doubts = 0) : doubts_(doubts) {}
  ProcessWatch::OnGone Note() {
    return [this](std::span<ProcessWatch::Gone> gone) {
      MutexLock lock(&mu_);
      ++calls_;
      for (ProcessWatch::Gone& one : gone) {
        one.doubted = doubts_-- > 0;
        lives_.push_back(one.process.life);
        EXPECT_GE(one.ended_ms, 0);
      }
      changed_.NotifyAll();
    };
  }
  // The lives that were told, sorted, once there are this many.
  std::vector<uint64_t> Await(size_t count) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kAwaitMs);
    MutexLock lock(&mu_);
    while (lives_.size() < count && changed_.WaitUntil(&mu_, until)) {
    }
    std::sort(lives_.begin(), lives_.end());
    return lives_;
  }
  int calls() {
    MutexLock lock(&mu_);
    return calls_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<uint64_t> lives_ ABSL_GUARDED_BY(mu_);
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
  int doubts_ ABSL_GUARDED_BY(mu_);
};

TEST(ProcessWatchTest, AProcessWhosePortRefusesConnectionsIsGone) {
  Listener listener;
  ASSERT_TRUE(listener.listens());
  Deaths deaths;
  ProcessWatch watch(deaths.Note());
  watch.Watch({{7, listener.address()}});
  ASSERT_TRUE(listener.Accept());
  listener.Die();
  EXPECT_EQ(deaths.Await(1), std::vector<uint64_t>{7});
}

TEST(ProcessWatchTest, NamesAndIpV6AreWatchedToo) {
  Listener named;
  Listener v6(AF_INET6);
  if (!v6.listens()) GTEST_SKIP() << "this machine has no IPv6";
  Deaths deaths;
  ProcessWatch watch(deaths.Note());
  watch.Watch({{1, absl::StrCat("localhost:", named.port())}, {2, v6.address()}});
  ASSERT_TRUE(named.Accept());
  ASSERT_TRUE(v6.Accept());
  named.Die();
  v6.Die();
  EXPECT_EQ(deaths.Await(2), (std::vector<uint64_t>{1, 2}));
}

TEST(ProcessWatchTest, AConnectionThatEndsAloneMeansNothing) {
  Listener listener, other;
  Deaths deaths;
  ProcessWatch watch(deaths.Note());
  watch.Watch({{1, listener.address()}, {2, other.address()}});
  ASSERT_TRUE(other.Accept());
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(listener.Accept());
    listener.HangUp();
  }
  ASSERT_TRUE(listener.Accept());
  other.Die();
  EXPECT_EQ(deaths.Await(1), std::vector<uint64_t>{2});
}

// As one that is stopped: its kernel takes connections, and nobody answers.
TEST(ProcessWatchTest, AProcessThatDoesNotAnswerIsNotGoneNorIsOneThatWasNeverSeen) {
  Listener silent;
  const ReservedPort nobody;
  Deaths deaths;
  ProcessWatch watch(deaths.Note());
  // For several times as long as it takes to be gone, or to try again.
  for (uint64_t life = 10; life < 20; ++life) {
    Listener dies;
    watch.Watch({{1, silent.address()}, {2, nobody.address()}, {life, dies.address()}});
    ASSERT_TRUE(dies.Accept());
    dies.Die();
    ASSERT_EQ(deaths.Await(life - 9).back(), life);
  }
  EXPECT_EQ(deaths.Await(10).front(), 10u);
}

TEST(ProcessWatchTest, OneThatListenedBeforeItWasNamedIsGoneUnseenWhereAnotherWasSeen) {
  Listener former;
  const ReservedPort nobody;
  const std::string address = former.address(), name = absl::StrCat("localhost:", former.port());
  Deaths deaths;
  ProcessWatch watch(deaths.Note());
  watch.Watch({{1, address}, {6, name}});
  ASSERT_TRUE(former.Accept());
  ASSERT_TRUE(former.Accept());
  former.Die();
  EXPECT_EQ(deaths.Await(2), (std::vector<uint64_t>{1, 6}));
  Listener last;
  watch.Watch({{.life = 2, .address = nobody.address(), .announced = true},
               {.life = 3, .address = address, .announced = false},
               {.life = 4, .address = address, .announced = true},
               {.life = 7, .address = name, .announced = true},
               {.life = 5, .address = last.address()}});
  EXPECT_EQ(deaths.Await(3), (std::vector<uint64_t>{1, 4, 6}))
      << "nobody was seen where 2 is, 3 may not listen yet, and the name of 7 may still lead to a former machine";
  ASSERT_TRUE(last.Accept());
  last.Die();
  EXPECT_EQ(deaths.Await(4), (std::vector<uint64_t>{1, 4, 5, 6}));
}

// Regression: the addresses of a cluster whose machines come and go were kept for ever.
TEST(ProcessWatchTest, OfAddressesThatAreWatchedNoMoreAThousandAreRemembered) {
  constexpr int kBatch = 100, kBatches = 12;
  Listener listener(AF_INET, 0, /*everywhere=*/true);
  ASSERT_TRUE(listener.listens());
  const auto address = [&](int i) {
    return absl::StrCat("127.0.", i / kBatch, ".", 1 + i % kBatch, ":", listener.port());
  };
  Deaths deaths;
  ProcessWatch watch(deaths.Note());
  for (int first = 0; first < kBatches * kBatch; first += kBatch) {
    std::vector<ProcessWatch::Process> processes;
    for (int i = first; i < first + kBatch; ++i) processes.push_back({static_cast<uint64_t>(i), address(i)});
    watch.Watch(processes);
    for (int i = 0; i < kBatch; ++i) ASSERT_TRUE(listener.Accept());
    listener.HangUp();  // Each connects again: then the first connection was seen.
    for (int i = 0; i < kBatch; ++i) ASSERT_TRUE(listener.Accept());
    listener.HangUp();
  }
  watch.Watch({});
  listener.Die();
  watch.Watch({{.life = 1, .address = address(0), .announced = true},
               {.life = 2, .address = address(kBatches * kBatch - 1), .announced = true}});
  EXPECT_EQ(deaths.Await(1), std::vector<uint64_t>{2}) << "that a process was seen where 1 is, is forgotten";
}

TEST(ProcessWatchTest, OneThatIsCertainToHaveListenedIsGoneThoughNobodyWasSeen) {
  Listener lives;
  const ReservedPort nobody;
  Deaths deaths;
  ProcessWatch watch(deaths.Note());
  watch.Watch({{.life = 1, .address = lives.address(), .certain = true},
               {.life = 2, .address = nobody.address(), .certain = true}});
  EXPECT_EQ(deaths.Await(1), (std::vector<uint64_t>{2}));
  EXPECT_TRUE(lives.Accept());
}

TEST(ProcessWatchTest, AnotherProcessThatListensThereMeansNothing) {
  Listener listener, other;
  Deaths deaths;
  ProcessWatch watch(deaths.Note());
  watch.Watch({{1, listener.address()}, {2, other.address()}});
  ASSERT_TRUE(listener.Accept());
  ASSERT_TRUE(other.Accept());
  listener.Die();
  Listener next(AF_INET, listener.port());
  ASSERT_TRUE(next.listens());
  ASSERT_TRUE(next.Accept());
  other.Die();
  EXPECT_EQ(deaths.Await(1), std::vector<uint64_t>{2});
}

TEST(ProcessWatchTest, OneThatIsKnownToLiveIsWatchedOn) {
  Listener listener;
  Deaths deaths(2);
  ProcessWatch watch(deaths.Note());
  watch.Watch({{7, listener.address()}});
  ASSERT_TRUE(listener.Accept());
  listener.Die();
  EXPECT_EQ(deaths.Await(3), (std::vector<uint64_t>{7, 7, 7}));
}

TEST(ProcessWatchTest, ThoseThatEndTogetherAreToldTogether) {
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<ProcessWatch::Process> processes;
  Deaths deaths;
  ProcessWatch watch(deaths.Note());
  for (uint64_t life = 1; life <= 3; ++life) {
    listeners.push_back(std::make_unique<Listener>());
    processes.push_back({life, listeners.back()->address()});
  }
  watch.Watch(processes);
  for (const auto& listener : listeners) ASSERT_TRUE(listener->Accept());
  for (const auto& listener : listeners) listener->Die();
  EXPECT_EQ(deaths.Await(3), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(deaths.calls(), 1);
}

TEST(ProcessWatchTest, WhatWasSeenOfAProcessCountsWhenOthersComeAndGo) {
  Listener listener, other;
  Deaths deaths;
  ProcessWatch watch(deaths.Note());
  watch.Watch({{1, listener.address()}});
  ASSERT_TRUE(listener.Accept());
  listener.Die();
  watch.Watch({{1, listener.address()}, {2, other.address()}});
  ASSERT_TRUE(other.Accept());
  EXPECT_EQ(deaths.Await(1), std::vector<uint64_t>{1});
}

}  // namespace
}  // namespace lodestone
