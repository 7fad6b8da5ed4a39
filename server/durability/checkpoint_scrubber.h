// The scrubber of a ps's checkpoints: reads their files again now and then and compares them with the checksums that
// were kept of them, so that what a disk has lost is found while the shards are still in memory, and not when a start
// needs it.
//
// It reads from the disk, not what the page cache still has, and slowly, on a thread of its own. What it finds damaged
// of periodic checkpoints it hands over to be replaced, and tries again until that is well; a named one cannot be made
// again, and is told of in the status.
//
// Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/simulation.h"
#include "common/base/time_source.h"
#include "proto/admin.pb.h"

namespace lodestone::server {

struct ShardFileSize;

class CheckpointScrubber {
 public:
  struct Options {
    std::string dir;                          // Of all checkpoints.
    std::string cluster;                      // cluster.name.
    uint32_t server = 0;                      // server.index: whose files are read.
    std::chrono::milliseconds period{0};      // From the end of a pass to the next one; 0: no pass begins by itself.
    std::chrono::milliseconds again{60'000};  // Until damage is tried to be replaced again.
    uint64_t bytes_per_second = uint64_t{32} << 20;  // That are read, on average; 0: as many as the disk gives.
  };

  // What is damaged: a checkpoint, by its name, and how, naming the file.
  struct Damage {
    std::string checkpoint;
    std::string what;

    bool operator==(const Damage&) const = default;
  };
  // Puts an intact checkpoint in the place of periodic ones that are damaged; called on the scrubber's thread.
  using Replace = std::function<absl::Status(const std::vector<std::string>& checkpoints)>;
  CheckpointScrubber(Options options, Replace replace) : options_(std::move(options)), replace_(std::move(replace)) {}
  ~CheckpointScrubber() { Stop(); }

  // The first pass begins after a tenth of the period: a ps that is often started again gets to it too. Call once.
  void Start();
  // Ends the thread, in the middle of a file too. `replace` must return meanwhile.
  void Stop();

  // Reads all files of this ps's checkpoints once, and returns what is damaged. CANCELLED by Stop; the errors of the
  // folder, and of files that cannot be read at the moment, which says nothing about what is in them.
  absl::StatusOr<std::vector<Damage>> Pass();

  // Sets the fields about scrubbing.
  void FillStatus(v1::StorageStatus* status) const;

 private:
  void RunThread();
  // A pass, and what follows from it.
  void RunPass();
  // DATA_LOSS if a file is not as it was written, or the disk fails; the errors of files; CANCELLED.
  absl::Status CheckFile(const std::string& path, const ShardFileSize& written);
  // The same by a second reading, if the first found anything: of what it is judged by.
  absl::Status CheckTwice(const std::string& path, const ShardFileSize& written);
  // Counts bytes that were read, and waits until the rate allows more; false once it is stopped.
  bool Count(uint64_t read);
  bool WaitUntil(int64_t time_ms);

  const Options options_;
  const SteadyTime time_;
  const Replace replace_;

  mutable Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t passes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;          // That the newest pass has read.
  int64_t due_us_ ABSL_GUARDED_BY(mu_) = 0;          // When more may be read.
  std::vector<Damage> damage_ ABSL_GUARDED_BY(mu_);  // Of the last pass; some may be gone.
  Thread thread_;
};

}  // namespace lodestone::server
