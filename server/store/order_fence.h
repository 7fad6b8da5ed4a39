// The fence that keeps a change of the order of steps, made for a pause of training (SetTableRequest.orders), out of
// what comes after that pause: once a worker has asked what the order is, no earlier pause changes it. So a caller that
// was held up, or a call that waited in a queue, does no harm when it goes on late.
//
// Thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/mutex.h"

namespace lodestone::server {

class OrderFence {
 public:
  // The number of the changes so far, as the coordinator has it (JoinResponse.orders).
  void Note(uint64_t orders);
  // The same of a worker, which is about to ask what the order is (EnsureTablesRequest.orders). UNAVAILABLE while a
  // change of an earlier pause is being made.
  absl::Status Follow(uint64_t orders);

  // Begins a change in the pause of `orders`, which EndChange ends. FAILED_PRECONDITION: that pause has ended. One
  // change at a time.
  absl::Status BeginChange(uint64_t orders);
  void EndChange();

 private:
  Mutex mu_;
  uint64_t orders_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t changing_ ABSL_GUARDED_BY(mu_) = 0;  // Of the change that is being made; 0: none is.
};

}  // namespace lodestone::server
