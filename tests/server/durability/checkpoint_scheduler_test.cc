#include "server/durability/checkpoint_scheduler.h"

#include <atomic>
#include <latch>
#include <thread>

#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

using std::chrono::milliseconds;

absl::Status NoCheckpoint() {
  ADD_FAILURE() << "no checkpoint is due";
  return absl::OkStatus();
}

TEST(CheckpointSchedulerTest, RefusesJobsBeforeItsStartAndAfterItsEnd) {
  CheckpointScheduler scheduler(milliseconds(0), {NoCheckpoint, NoCheckpoint, [] { return false; }});
  const auto job = [] { return absl::NotFoundError("from the job"); };
  EXPECT_EQ(scheduler.Run(job).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(scheduler.Close()) << "it has not started";
  scheduler.Start();
  EXPECT_EQ(scheduler.Run(job).code(), absl::StatusCode::kNotFound) << "the job's own result";
  EXPECT_TRUE(scheduler.Close());
  EXPECT_FALSE(scheduler.Close());
  EXPECT_EQ(scheduler.Run(job).code(), absl::StatusCode::kUnavailable);
}

TEST(CheckpointSchedulerTest, AJobThatWaitsWhenItEndsIsRefusedAndTheOneUnderWayEnds) {
  CheckpointScheduler scheduler(milliseconds(0), {NoCheckpoint, NoCheckpoint, [] { return false; }});
  scheduler.Start();
  std::latch running(1), go_on(1);
  absl::Status first = absl::UnknownError(""), second = absl::UnknownError("");
  std::thread one([&] {
    first = scheduler.Run([&] {
      running.count_down();
      go_on.wait();
      return absl::OkStatus();
    });
  });
  running.wait();
  std::thread two([&] { second = scheduler.Run([] { return absl::InternalError("it must not run"); }); });
  std::thread closing([&] { EXPECT_TRUE(scheduler.Close()); });
  two.join();  // At the latest by Close, while the first is still under way.
  go_on.count_down();
  one.join();
  closing.join();
  EXPECT_EQ(first, absl::OkStatus());
  EXPECT_EQ(second.code(), absl::StatusCode::kUnavailable);
}

TEST(CheckpointSchedulerTest, WritesACheckpointEachPeriod) {
  std::latch thrice(3);
  std::atomic<int> written{0};
  const auto checkpoint = [&] {
    if (++written <= 3) thrice.count_down();
    return absl::OkStatus();
  };
  CheckpointScheduler scheduler(milliseconds(10), {checkpoint, NoCheckpoint, [] { return false; }});
  scheduler.Start();
  thrice.wait();
}

TEST(CheckpointSchedulerTest, WhatHasArrivedIsWrittenOnceAndTriedAgainIfItFails) {
  std::latch twice(2);
  std::atomic<int> written{0};
  const auto arrived = [&]() -> absl::Status {
    twice.count_down();
    return ++written == 1 ? absl::UnavailableError("no space left") : absl::OkStatus();
  };
  CheckpointScheduler scheduler(milliseconds(0), {NoCheckpoint, arrived, [] { return false; }});
  scheduler.Soon();  // Is remembered until there is a thread.
  scheduler.Start();
  scheduler.Soon();
  twice.wait();
  scheduler.Close();
  EXPECT_EQ(written, 2);
}

TEST(CheckpointSchedulerTest, WhatHasArrivedGoesBeforeACheckpointThatIsDueTheWholeTime) {
  std::latch arrived(1);
  const auto write = [&] {
    arrived.count_down();
    return absl::OkStatus();
  };
  const auto checkpoint = [] { return absl::OkStatus(); };
  CheckpointScheduler scheduler(milliseconds(1), {checkpoint, write, [] { return true; }});
  scheduler.Start();
  scheduler.Soon();
  arrived.wait();
}

TEST(CheckpointSchedulerTest, WritesACheckpointThatIsDueForAnotherReasonThanTime) {
  std::latch written(1);
  std::atomic<bool> due{false};
  const auto checkpoint = [&] {
    EXPECT_TRUE(due.exchange(false)) << "it is not due any more";
    written.count_down();
    return absl::OkStatus();
  };
  CheckpointScheduler scheduler(milliseconds(0), {checkpoint, NoCheckpoint, [&] { return due.load(); }});
  scheduler.Start();
  due = true;
  written.wait();
}

}  // namespace
}  // namespace lodestone::server
