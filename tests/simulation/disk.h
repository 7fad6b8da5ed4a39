// The simulated disks: files lie in a folder of a file system in memory, and are read as they are by the program's own
// code; what is written to logs goes through FileCalls that know what has been synced. When a machine goes down, what
// was not synced is lost, in part: cut off anywhere, or with sectors of it zero. A process can be killed within a
// write.
//
// Used by one thread (and by those that recovery starts and waits for). The kernel must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "common/io/file.h"
#include "tests/simulation/kernel.h"

namespace lodestone::simulation {

class Disk {
 public:
  // `folder` exists, and is empty.
  Disk(Kernel* kernel, std::string folder) : kernel_(kernel), folder_(std::move(folder)) {}

  // The calls of one process, by which it writes its logs below `folder`. A dead process's do nothing.
  FileCalls CallsOf(const ProcessRef& process);
  const std::string& folder() const { return folder_; }

  // How long a sync takes, in microseconds, at most.
  void SetSyncUs(int64_t most_us) { sync_us_ = most_us; }
  // `death` is called within the process's next write, of which a part only reaches the file: it is to kill it.
  void KillInWrite(const ProcessRef& process, std::function<void()> death) {
    doomed_ = process;
    death_ = std::move(death);
  }
  // The machine of the files that are below `folder` has gone down.
  void LoseUnsynced(const std::string& folder);

 private:
  struct Open {
    std::string path;
    ProcessRef process;
  };

  int OpenFile(const ProcessRef& process, const char* path, int flags, mode_t mode);
  ssize_t Write(int fd, const iovec* pieces, int count);
  int Sync(int fd);
  int Truncate(int fd, off_t bytes);

  Kernel* const kernel_;
  const std::string folder_;
  int64_t sync_us_ = 2000;
  std::map<int, Open> open_;                // By descriptor; the newest that had it.
  std::map<std::string, uint64_t> synced_;  // By path: bytes that the disk has.
  ProcessRef doomed_;
  std::function<void()> death_;
};

}  // namespace lodestone::simulation
