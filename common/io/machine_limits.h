// The memory and the cores that this process can have: the machine's, or what its control groups leave it of them.
// A file that is missing, unreadable or says something else limits nothing. `root` stands before the paths of /proc and
// /sys, for tests. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace lodestone {

// Bytes: the machine's memory, or the lowest limit of the control groups that this process is in (memory.max of cgroup
// v2, memory.limit_in_bytes of v1, and those of the groups above), whichever is less. Beyond it the kernel kills the
// process. 0 if not even the machine's memory is known.
uint64_t MachineMemoryBytes(const std::string& root = "");

// Cores, at least 1, for choosing numbers of threads: those that this process may run on, or the lowest CPU quota of
// its control groups (cpu.max of v2, cpu.cfs_quota_us over cpu.cfs_period_us of v1), rounded up, whichever is less.
uint32_t MachineCores(const std::string& root = "");

}  // namespace lodestone
