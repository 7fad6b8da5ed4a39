#include "common/io/machine_limits.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace lodestone {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kMachineBytes = uint64_t{64} << 30;

// A made-up machine, as a tree of files.
class MachineTree : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = std::filesystem::path(std::getenv("TEST_TMPDIR")) / test->name();
    std::filesystem::remove_all(root_);
  }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_.string() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  std::filesystem::path root_;
};

// One of 64 GiB.
class MachineMemory : public MachineTree {
 protected:
  void SetUp() override {
    MachineTree::SetUp();
    Write("/proc/meminfo", "MemTotal:       67108864 kB\nMemFree:         1024 kB\n");
  }
  uint64_t Bytes() const { return MachineMemoryBytes(root_.string()); }
};

class Cores : public MachineTree {
 protected:
  uint32_t Count() const { return MachineCores(root_.string()); }
  // Those that this process may run on: no quota gives more.
  const uint32_t all_ = std::max(1u, std::thread::hardware_concurrency());
};

TEST_F(MachineMemory, IsAllOfTheMachinesWithoutControlGroups) { EXPECT_EQ(Bytes(), kMachineBytes); }

TEST_F(MachineMemory, IsTheLimitOfTheProcesssOwnGroup) {
  Write("/proc/self/cgroup", "0::/system.slice/ps.service\n");
  Write("/sys/fs/cgroup/system.slice/memory.max", "max\n");
  Write("/sys/fs/cgroup/system.slice/ps.service/memory.max", "2147483648\n");
  EXPECT_EQ(Bytes(), 2048 * kMiB);
}

TEST_F(MachineMemory, IsTheLowestLimitOnTheWayUp) {
  Write("/proc/self/cgroup", "0::/pods/a/b\n");
  Write("/sys/fs/cgroup/memory.max", "9000000000\n");
  Write("/sys/fs/cgroup/pods/memory.max", "3000000000\n");
  Write("/sys/fs/cgroup/pods/a/memory.max", "max\n");
  Write("/sys/fs/cgroup/pods/a/b/memory.max", "4000000000\n");
  Write("/sys/fs/cgroup/pods/other/memory.max", "1000\n");
  EXPECT_EQ(Bytes(), 3'000'000'000u);
}

TEST_F(MachineMemory, AContainerSeesItsOwnGroupAtTheTop) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "536870912\n");
  EXPECT_EQ(Bytes(), 512 * kMiB);
}

TEST_F(MachineMemory, AContainersGroupMayHaveAnotherNameOutside) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/docker/4f2a\n4:memory:/docker/4f2a\n1:name=systemd:/docker/4f2a\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n");
  EXPECT_EQ(Bytes(), 512 * kMiB);
}

TEST_F(MachineMemory, IsTheLimitOfVersion1WhicheverControllersAreBesideIt) {
  Write("/proc/self/cgroup", "7:hugetlb,memory,pids:/jobs/17\n0::/\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/jobs/17/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(Bytes(), 1024 * kMiB);
}

TEST_F(MachineMemory, ALimitBeyondTheMachineLimitsNothing) {
  Write("/proc/self/cgroup", "4:memory:/\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Bytes(), kMachineBytes);
}

TEST_F(MachineMemory, OtherControllersNumbersAreNotTaken) {
  Write("/proc/self/cgroup", "4:cpu:/a\n3:memory2:/a\n");
  Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000\n");
  Write("/sys/fs/cgroup/a/memory.max", "1000\n");
  EXPECT_EQ(Bytes(), kMachineBytes);
}

TEST_F(MachineMemory, WhatIsNoNumberOrNoLineLimitsNothing) {
  Write("/proc/self/cgroup", "\n:\n0::relative\n0:\nnonsense\n0::/a\n0::/a/../..\n");
  for (const char* text : {"", "many\n", "-1\n", "12 MiB\n", "99999999999999999999999\n"}) {
    Write("/sys/fs/cgroup/a/memory.max", text);
    EXPECT_EQ(Bytes(), kMachineBytes) << text;
  }
}

TEST_F(MachineMemory, IsKnownWithoutProcToo) {
  std::filesystem::remove(root_ / "proc/meminfo");
  EXPECT_GT(Bytes(), 16 * kMiB);
}

TEST_F(Cores, AreAllThatTheProcessMayRunOnWithoutControlGroups) { EXPECT_EQ(Count(), all_); }

TEST_F(Cores, AreTheQuotaOfTheLowestGroupOnTheWayUp) {
  Write("/proc/self/cgroup", "0::/pods/a\n");
  Write("/sys/fs/cgroup/pods/a/cpu.max", "max 100000\n");
  EXPECT_EQ(Count(), all_);
  Write("/sys/fs/cgroup/pods/cpu.max", "100000 100000\n");
  EXPECT_EQ(Count(), 1u);
}

TEST_F(Cores, APartOfACoreIsOne) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/cpu.max", "10000 100000\n");
  EXPECT_EQ(Count(), 1u);
}

TEST_F(Cores, AreRoundedUp) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(Count(), std::min(all_, 2u));
}

TEST_F(Cores, AreThoseOfVersion1) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/docker/4f2a\n4:memory:/docker/4f2a\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Count(), all_);
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
  EXPECT_EQ(Count(), 1u);
}

TEST_F(Cores, WhatIsNoQuotaLimitsNothing) {
  Write("/proc/self/cgroup", "0::/a\n");
  for (const char* text : {"", "many 100000\n", "0 100000\n", "100000 0\n", "-1 100000\n", "100000\n"}) {
    Write("/sys/fs/cgroup/a/cpu.max", text);
    EXPECT_EQ(Count(), all_) << text;
  }
}

TEST(ThisMachinesMemory, IsKnown) { EXPECT_GT(MachineMemoryBytes(), 16 * kMiB); }

}  // namespace
}  // namespace lodestone
