#include "common/telemetry/stderr_sink.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace lodestone {

bool StderrSink::HasRoom(int wait_ms) const {
  pollfd out = {fd_, POLLOUT, 0};
  const int ready = poll(&out, 1, wait_ms);
  return ready > 0 || (ready < 0 && errno != EINTR);  // A signal interrupts it only where there is no room.
}

uint64_t StderrSink::TakeLost() {
  std::lock_guard lock(mutex_);
  return lost_ > 0 && HasRoom(0) ? std::exchange(lost_, 0) : 0;
}

void StderrSink::sink_it_(const spdlog::details::log_msg& message) {
  full_ = !HasRoom(full_ ? 0 : kWaitMsMax);
  if (full_) {
    ++lost_;
    return;
  }
  spdlog::memory_buf_t line;
  if (torn_) line.push_back('\n');
  formatter_->format(message, line);
  for (size_t at = 0; at < line.size();) {
    const ssize_t written = write(fd_, line.data() + at, line.size() - at);
    if (written < 0 && errno != EINTR) {
      full_ = errno == EAGAIN;  // Another process has made it non-blocking, and this line is long.
      torn_ = torn_ || at > 0;
      lost_ += full_;
      return;
    }
    if (written > 0) at += static_cast<size_t>(written);
  }
  torn_ = false;
}

}  // namespace lodestone
