#include "worker/client/push_window.h"

#include <atomic>
#include <latch>
#include <thread>

#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

constexpr int64_t kLongMs = 60'000;

TEST(PushWindow, LetsThatManyPushesInAndTheNextAfterOneLeft) {
  PushWindow window(2);
  ASSERT_TRUE(window.Enter(0).ok());
  ASSERT_TRUE(window.Enter(0).ok());
  EXPECT_EQ(window.Enter(0).code(), absl::StatusCode::kDeadlineExceeded);
  std::thread third([&] { EXPECT_TRUE(window.Enter(kLongMs).ok()); });
  window.Leave(absl::OkStatus());
  third.join();
  EXPECT_EQ(window.Enter(0).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(PushWindow, KeepsTheSpanOfSequencesInFlightBelowItsLimit) {
  PushWindow window(1, 4);
  for (Sequence expected = 1; expected <= 4; ++expected) ASSERT_EQ(*window.NextSequence(1, 0), expected);
  window.Acknowledge(2);
  window.Acknowledge(3);
  window.Acknowledge(4);
  const absl::Status full = window.NextSequence(1, 0).status();  // 1 … 5 would span five.
  EXPECT_EQ(full.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(full.message().find("the oldest with sequence 1"), std::string::npos) << full;
  window.Acknowledge(1);
  EXPECT_EQ(*window.NextSequence(1, 0), 5);
}

TEST(PushWindow, KeepsTheBytesInFlightBelowTheirLimitUnlessAMessageIsAlone) {
  PushWindow window(1, 1024, /*bytes_max=*/100);
  EXPECT_EQ(*window.NextSequence(500, 0), 1) << "alone it may be as long as it likes";
  EXPECT_EQ(window.NextSequence(1, 0).status().code(), absl::StatusCode::kDeadlineExceeded);
  window.Acknowledge(1);
  window.Acknowledge(1);  // A message that was split is acknowledged once, whatever its pieces do.
  EXPECT_EQ(*window.NextSequence(60, 0), 2);
  EXPECT_EQ(*window.NextSequence(40, 0), 3);
  EXPECT_FALSE(window.NextSequence(1, 0).ok());
  std::thread waiter([&] { EXPECT_EQ(*window.NextSequence(50, kLongMs), 4); });
  window.Acknowledge(2);
  waiter.join();
}

TEST(PushWindow, WakesThoseWhoWaitWhenItFails) {
  PushWindow window(1);
  ASSERT_TRUE(window.Enter(0).ok());
  std::latch waiting(1);
  std::thread waiter([&] {
    waiting.count_down();
    EXPECT_EQ(window.Enter(kLongMs).code(), absl::StatusCode::kAborted);
  });
  waiting.wait();
  window.Fail(absl::AbortedError("over"));
  waiter.join();
  EXPECT_EQ(window.NextSequence(1, 0).status().code(), absl::StatusCode::kAborted);
}

TEST(PushWindow, FlushWaitsForAllAndTellsTheFirstError) {
  PushWindow window(3);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(window.Enter(0).ok());
  std::atomic<int> left{0};
  std::thread pushes([&] {
    left = 1, window.Leave(absl::OkStatus());
    left = 2, window.Leave(absl::DataLossError("first"));
    left = 3, window.Leave(absl::InternalError("second"));
  });
  EXPECT_EQ(window.Flush().message(), "first");
  EXPECT_EQ(left.load(), 3);
  pushes.join();
}

TEST(PushWindow, FlushOfNothingReturnsAtOnce) { EXPECT_TRUE(PushWindow(1).Flush().ok()); }

TEST(PushWindow, TakesMoreOrFewerPushesFromNowOn) {
  PushWindow window(2);
  ASSERT_TRUE(window.Enter(1000).ok());
  ASSERT_TRUE(window.Enter(1000).ok());
  EXPECT_FALSE(window.Enter(1).ok());
  window.SetPushesMax(3);
  EXPECT_TRUE(window.Enter(1).ok());
  window.SetPushesMax(1);
  for (int i = 0; i < 2; ++i) window.Leave(absl::OkStatus());
  EXPECT_FALSE(window.Enter(1).ok()) << "one is still in flight";
  window.Leave(absl::OkStatus());
  EXPECT_TRUE(window.Enter(1).ok());
}

}  // namespace
}  // namespace lodestone::worker
