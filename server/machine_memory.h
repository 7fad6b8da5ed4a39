// The memory that this process can have.
#pragma once

#include <cstdint>
#include <string>

namespace lodestone::server {

// Bytes: the machine's memory, or the lowest limit of the control groups that this process is in (memory.max of cgroup
// v2, memory.limit_in_bytes of v1, and those of the groups above), whichever is less. Beyond it the kernel kills the
// process. A file that is missing, unreadable or says something else limits nothing; 0 if not even the machine's memory
// is known. `root` stands before the paths of /proc and /sys, for tests.
uint64_t MachineMemoryBytes(const std::string& root = "");

}  // namespace lodestone::server
