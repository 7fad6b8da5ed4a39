// The memory of steps' outputs, which is used in turns: a step takes some, and it is free again once nobody holds it,
// the push that sends gradients from it among them.
//
// Thread safety: Take is for one thread; what it gave may be dropped by any, also after the pool's end. The backend
// must outlive both.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "kernels/backend.h"
#include "worker/training/step_outputs.h"

namespace lodestone::worker {

class OutputPool {
 public:
  explicit OutputPool(kernels::Backend* backend) : backend_(backend), free_(std::make_shared<Free>()) {}

  // What was dropped last, whose memory the caches may still have; new ones if all are held.
  std::shared_ptr<StepOutputs> Take() {
    std::unique_ptr<StepOutputs> outputs;
    {
      MutexLock lock(&free_->mu);
      if (!free_->outputs.empty()) {
        outputs = std::move(free_->outputs.back());
        free_->outputs.pop_back();
      }
    }
    if (outputs == nullptr) outputs = std::make_unique<StepOutputs>(backend_);
    return std::shared_ptr<StepOutputs>(outputs.release(), [free = free_](StepOutputs* dropped) {
      MutexLock lock(&free->mu);
      free->outputs.emplace_back(dropped);
    });
  }

 private:
  struct Free {
    Mutex mu;
    std::vector<std::unique_ptr<StepOutputs>> outputs ABSL_GUARDED_BY(mu);
  };

  kernels::Backend* const backend_;
  const std::shared_ptr<Free> free_;
};

}  // namespace lodestone::worker
