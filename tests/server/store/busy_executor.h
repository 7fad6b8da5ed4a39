// Executors that tests keep busy.
#pragma once

#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "server/shard/executor.h"
#include "server/store/store.h"

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

// All executors of a store.
class BusyExecutors {
 public:
  explicit BusyExecutors(Store* store) {
    Executors& executors = store->shards().executors();
    for (size_t e = 0; e < executors.size(); ++e) busy_.push_back(std::make_unique<BusyExecutor>(&executors[e]));
  }
  void Release() {
    for (const auto& busy : busy_) busy->Release();
  }

 private:
  std::vector<std::unique_ptr<BusyExecutor>> busy_;
};

}  // namespace lodestone::server
