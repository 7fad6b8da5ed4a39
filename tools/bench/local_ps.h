// A real ps process for a benchmark: the program that users run, on a free port of this machine.
//
// Not thread-safe. The ps ends with this object.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "tools/bench/measure.h"
#include "tools/psctl/child.h"

namespace lodestone::bench {

class LocalPs {
 public:
  // Starts the ps with its defaults, but `shards` shards (0: the default number) and `options.sets`, and waits until it
  // takes calls. The error of a ps that does not start is what it said.
  static absl::StatusOr<std::unique_ptr<LocalPs>> Start(const Options& options, uint32_t shards);

  pid_t pid() const { return child_->pid(); }
  // What clients of it connect with.
  const v1::Config& config() const { return config_; }

 private:
  LocalPs(v1::Config config, std::unique_ptr<Child> child) : config_(std::move(config)), child_(std::move(child)) {}

  v1::Config config_;
  std::unique_ptr<Child> child_;
};

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

// What kind of filesystem TemporaryFolder::Create(parent) uses: "ext4", "tmpfs"; a number in hexadecimal if it is rare.
std::string FilesystemOf(const std::string& parent);

}  // namespace lodestone::bench
