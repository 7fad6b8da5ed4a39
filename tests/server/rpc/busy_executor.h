// An executor that tests keep busy.
#pragma once

#include <latch>
#include <thread>

#include "server/shard/executor.h"

namespace lodestone::server {

// An executor that is busy until Release.
class BusyExecutor {
 public:
  explicit BusyExecutor(Executor* executor)
      : executor_(executor), thread_([this] {
          executor_->Submit([this] {
            busy_.count_down();
            released_.wait();
          });
        }) {
    busy_.wait();
  }
  void Release() {
    released_.count_down();
    thread_.join();
  }
  void AwaitQueued() const {
    while (executor_->queue_length() == 0) std::this_thread::yield();
  }

 private:
  std::latch busy_{1};
  std::latch released_{1};
  Executor* const executor_;
  std::thread thread_;
};

}  // namespace lodestone::server
