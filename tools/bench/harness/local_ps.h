// A real ps process for a benchmark: the program that users run, on a free port of this machine. Where the
// configuration wants a follower of each shard, there are two of them.
//
// Not thread-safe. The ps end with this object.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "tools/bench/harness/measure.h"
#include "tools/psctl/local/child_process.h"

namespace lodestone::bench {

// A folder in `parent`, or in the system's place for temporary files; it goes with this object, with all in it.
class TemporaryFolder {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryFolder>> Create(const std::string& parent = "");
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

class LocalPs {
 public:
  // Starts the ps with its defaults, but without cluster.shared_memory, with `shards` shards (0: the default number)
  // and `options.sets`, and waits until it takes calls. The error of a ps that does not start is what it said.
  static absl::StatusOr<std::unique_ptr<LocalPs>> Start(const Options& options, uint32_t shards);

  // Of ps 0.
  pid_t pid() const { return children_.front()->pid(); }
  std::vector<pid_t> pids() const;
  // What clients of it connect with.
  const v1::Config& config() const { return config_; }
  // What became of those that have ended, which none should: "; ps (pid 7) failed with …" each. Empty: all run.
  std::string Ended() const;
  // Bytes that the ps have copied so far, as their /metrics tell; nullopt: one does not tell.
  std::optional<double> CopiedBytes() const;

 private:
  LocalPs(std::unique_ptr<TemporaryFolder> folder, v1::Config config, std::vector<std::string> http_addresses,
          std::vector<std::unique_ptr<psctl::Child>> children)
      : folder_(std::move(folder)),
        config_(std::move(config)),
        http_addresses_(std::move(http_addresses)),
        children_(std::move(children)) {}

  const std::unique_ptr<TemporaryFolder> folder_;  // A ps may use it for a while after it has written its address.
  v1::Config config_;
  std::vector<std::string> http_addresses_;              // By index.
  std::vector<std::unique_ptr<psctl::Child>> children_;  // By index.
};

// What kind of filesystem TemporaryFolder::Create(parent) uses: "ext4", "tmpfs"; a number in hexadecimal if it is rare.
std::string FilesystemOf(const std::string& parent);

}  // namespace lodestone::bench
