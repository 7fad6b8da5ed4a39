// The time for which a reader has not taken what is being written to it.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/limits.h"

namespace lodestone::server {

class UnreadWrite {
 public:
  // At `now_ms` the write under way is the one with this number, of so many bytes (0: there is none): whether it takes
  // longer than with a slow reader. Counts from when it was first looked at.
  bool Look(int64_t now_ms, uint64_t write, size_t bytes) {
    if (bytes == 0 || write != write_) since_ms_ = now_ms;
    write_ = write;
    unread_ms_ = now_ms - since_ms_;
    return unread_ms_ > limits::kUnreadMs + static_cast<int64_t>(bytes * 1000 / limits::kUnreadBytesPerSecond);
  }
  // How long it takes, by the last look.
  int64_t unread_ms() const { return unread_ms_; }

 private:
  uint64_t write_ = 0;
  int64_t since_ms_ = 0;
  int64_t unread_ms_ = 0;
};

}  // namespace lodestone::server
