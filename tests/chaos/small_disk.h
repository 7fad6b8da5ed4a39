// A small disk, in memory, that can be full: only this process and those that it starts see it, and it goes with them.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lodestone::chaos {

class SmallDisk {
 public:
  // Mounts it at `folder`, which exists. PERMISSION_DENIED unless the process may (root). For the calling thread and
  // the threads and processes that it starts from now on.
  static absl::StatusOr<std::unique_ptr<SmallDisk>> Mount(const std::string& folder, uint64_t megabytes);
  ~SmallDisk();
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  // Takes all room but `spare_bytes`.
  absl::Status Fill(uint64_t spare_bytes);
  // Gives it back.
  absl::Status Free();

 private:
  explicit SmallDisk(std::string folder) : folder_(std::move(folder)) {}
  std::string Balloon() const { return folder_ + "/balloon"; }

  const std::string folder_;
};

}  // namespace lodestone::chaos
