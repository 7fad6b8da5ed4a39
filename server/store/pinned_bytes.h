// Bytes that stay in memory until a subscriber has been sent them, counted in the line of those that wait for room.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "server/store/memory_line.h"

namespace lodestone::server {

class PinnedBytes {
 public:
  enum class Counted { kNow, kAlready };

  // `bytes` count in `line` for as long as this lives. REQUIRES: who ends it holds no lock that the callbacks of those
  // that wait may take.
  PinnedBytes(std::shared_ptr<MemoryLine> line, uint64_t bytes, Counted counted = Counted::kNow)
      : line_(std::move(line)), bytes_(bytes) {
    if (counted == Counted::kNow) line_->Take(bytes_);
  }
  ~PinnedBytes() { line_->Give(bytes_); }
  PinnedBytes(const PinnedBytes&) = delete;
  PinnedBytes& operator=(const PinnedBytes&) = delete;

 private:
  const std::shared_ptr<MemoryLine> line_;
  const uint64_t bytes_;
};

}  // namespace lodestone::server
