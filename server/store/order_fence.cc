#include "server/store/order_fence.h"

#include <algorithm>

#include "common/base/check.h"

namespace lodestone::server {

void OrderFence::Note(uint64_t orders) {
  MutexLock lock(&mu_);
  orders_ = std::max(orders_, orders);
}

absl::Status OrderFence::Follow(uint64_t orders) {
  MutexLock lock(&mu_);
  if (changing_ > 0 && changing_ < orders) {
    return absl::UnavailableError("the order of steps is being changed by a call of a pause that has ended since");
  }
  orders_ = std::max(orders_, orders);
  return absl::OkStatus();
}

absl::Status OrderFence::BeginChange(uint64_t orders) {
  MutexLock lock(&mu_);
  LODESTONE_CHECK(changing_ == 0);
  if (orders < orders_) {
    return absl::FailedPreconditionError(
        "the pause of training that this was meant for has ended; run psctl set again");
  }
  orders_ = orders;
  changing_ = orders;
  return absl::OkStatus();
}

void OrderFence::EndChange() {
  MutexLock lock(&mu_);
  changing_ = 0;
}

}  // namespace lodestone::server
