// The sink of log lines: standard error, which holds nobody up. Where nothing reads it (a pipe whose reader hangs, a
// terminal after Ctrl-S), lines are lost and counted instead of waiting, so that a process works on.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>

#include "spdlog/sinks/base_sink.h"

namespace lodestone {

class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // The first line that finds no room waits so long for it; those after it do not, until there is room again.
  static constexpr int kWaitMsMax = 100;

  // `fd`: what is written to, and stays open.
  explicit StderrSink(int fd) : fd_(fd) {}

  // Lines that were lost since the last call, if one could be written now; otherwise 0.
  uint64_t TakeLost();

 private:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}
  // Whether there is room for a line of usual length (POSIX's PIPE_BUF) within that time, or an error to be had.
  bool HasRoom(int wait_ms) const;

  const int fd_;
  // Guarded by mutex_.
  bool full_ = false;
  bool torn_ = false;  // The last line has no end.
  uint64_t lost_ = 0;
};

}  // namespace lodestone
