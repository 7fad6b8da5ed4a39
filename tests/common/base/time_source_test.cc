#include "common/base/time_source.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

#include "gtest/gtest.h"

namespace lodestone {
namespace {

constexpr int kNewTimeNamespace = 0x80;  // CLONE_NEWTIME, which not every header has.

int64_t ClockMs(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

TEST(SteadyTime, CountsTheTimeThatTheMachineWasSuspended) {
  const int64_t before_ms = ClockMs(CLOCK_BOOTTIME);
  const int64_t now_ms = SteadyTime().NowMs();
  EXPECT_LE(before_ms, now_ms);
  EXPECT_LE(now_ms, ClockMs(CLOCK_BOOTTIME));
}

// A process to which the machine seems to have slept for 1000 s, where the kernel lets it: leases that began before
// have ended for it, and by CLOCK_MONOTONIC they would not.
TEST(SteadyTime, ALeaseEndsWhileTheMachineIsSuspended) {
  constexpr int64_t kSleptMs = 1'000'000;
  constexpr char kOffset[] = "boottime 1000 0\n";
  enum Outcome { kCounted, kNotCounted, kNotAllowed };
  const int64_t lease_ends_ms = SteadyTime().NowMs() + kSleptMs / 2;
  const pid_t outer = fork();
  ASSERT_GE(outer, 0);
  if (outer == 0) {
    if (unshare(CLONE_NEWUSER | kNewTimeNamespace) != 0 && unshare(kNewTimeNamespace) != 0) _exit(kNotAllowed);
    const int offsets = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    if (offsets < 0 || write(offsets, kOffset, strlen(kOffset)) < 0) _exit(kNotAllowed);
    const pid_t inner = fork();  // The first that is in the namespace.
    if (inner == 0) _exit(SteadyTime().NowMs() > lease_ends_ms ? kCounted : kNotCounted);
    int status = 0;
    _exit(inner > 0 && waitpid(inner, &status, 0) == inner ? WEXITSTATUS(status) : kNotAllowed);
  }
  int status = 0;
  ASSERT_EQ(waitpid(outer, &status, 0), outer);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotAllowed) GTEST_SKIP() << "the kernel lets nobody set a clock of a namespace here";
  EXPECT_EQ(WEXITSTATUS(status), kCounted);
}

}  // namespace
}  // namespace lodestone
